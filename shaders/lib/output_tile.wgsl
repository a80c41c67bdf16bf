// Stores a tile of O, each row times its factor in wg_factors.

fn store_output(acc: ptr<function, Accumulator>, lane: u32, output_base: u32, row: u32, column: u32) {
    let rows = lane >> 3u;
    // Loops with selects: 16 written-out stores would be 16 times the code.
    for (var n = 0u; n < params.trips_rows * 2u; n++) {
        let r = n >> 1u;
        let lo = r < 4u;
        var x = select((*acc).a4, (*acc).a0, lo);
        x = select(x, select((*acc).a5, (*acc).a1, lo), (r & 3u) == 1u);
        x = select(x, select((*acc).a6, (*acc).a2, lo), (r & 3u) == 2u);
        x = select(x, select((*acc).a7, (*acc).a3, lo), (r & 3u) == 3u);
        var y = select((*acc).b4, (*acc).b0, lo);
        y = select(y, select((*acc).b5, (*acc).b1, lo), (r & 3u) == 1u);
        y = select(y, select((*acc).b6, (*acc).b2, lo), (r & 3u) == 2u);
        y = select(y, select((*acc).b7, (*acc).b3, lo), (r & 3u) == 3u);
        x = select(x, y, (n & 1u) == 1u);
        let factor = wg_factors[rows * 8u + r];
        x = select(x * factor, vec4<f32>(), factor < 0.0);
        let i = row + rows * 8u + r;
        let c = column + (n & 1u) * 32u + (lane & 7u) * 4u;
        if i < params.row_end && c < params.v_dim {
            store_run(output_base + (i - params.row_first) * params.output.row + c, min(4u, params.v_dim - c), x);
        }
    }
}
