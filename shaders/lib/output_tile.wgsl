// Stores a lane's part of a tile of O, each row times its factor; a negative
// factor stands for a row that saw nothing and is 0.
fn store_output(acc: ptr<function, Accumulator>, lane: u32, output_base: u32, row: u32, column: u32, factors: vec4<f32>) {
    // A loop with selects: 16 written-out stores would be 16 times the code.
    for (var n = 0u; n < params.trips_rows * COLUMN_RUNS / 2u; n++) {
        let r = n & 3u;
        let run = n >> 2u;
        var x = row_of((*acc).a0, (*acc).a1, (*acc).a2, (*acc).a3, r);
        x = select(x, row_of((*acc).b0, (*acc).b1, (*acc).b2, (*acc).b3, r), run == 1u);
        x = select(x, row_of((*acc).c0, (*acc).c1, (*acc).c2, (*acc).c3, r), run == 2u);
        x = select(x, row_of((*acc).d0, (*acc).d1, (*acc).d2, (*acc).d3, r), run == 3u);
        let factor = component(factors, r);
        x = select(x * factor, vec4<f32>(), factor < 0.0);
        let i = row + (lane >> 3u) * 4u + r;
        let c = column + run * 32u + (lane & 7u) * 4u;
        if i < params.row_end && c < params.v_dim {
            store_run(output_base + (i - params.row_first) * params.output.row + c, min(4u, params.v_dim - c), x);
        }
    }
}

fn row_of(x0: vec4<f32>, x1: vec4<f32>, x2: vec4<f32>, x3: vec4<f32>, r: u32) -> vec4<f32> {
    return select(select(x0, x1, r == 1u), select(x2, x3, r == 3u), r >= 2u);
}
