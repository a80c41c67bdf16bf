// O += P V, 16 keys of a tile at a time. A negative weight stands for an excluded
// pair and leaves the sum bit-identical whatever V holds there (0 * NaN would not).

// 4 rows by up to 4 runs of 4 columns, 32 columns apart.
struct Accumulator {
    a0: vec4<f32>, a1: vec4<f32>, a2: vec4<f32>, a3: vec4<f32>,
    b0: vec4<f32>, b1: vec4<f32>, b2: vec4<f32>, b3: vec4<f32>,
    c0: vec4<f32>, c1: vec4<f32>, c2: vec4<f32>, c3: vec4<f32>,
    d0: vec4<f32>, d1: vec4<f32>, d2: vec4<f32>, d3: vec4<f32>,
}

// The n-th key of a step within its tile: every lane of scores_tile holds two of
// the 16, the pair n / 2.
fn step_key(step: u32, n: u32) -> u32 {
    return (step >> 1u) * 32u + (n >> 1u) * 4u + (step & 1u) * 2u + (n & 1u);
}

// Where the weights of key n for 4 rows lie. Rows are permuted within a key, so
// that lanes that write different keys hit different banks.
fn weight_index(n: u32, rows: u32) -> u32 {
    return n * 16u + (rows ^ (n >> 1u));
}

// Each row times its factor.
fn multiply_rows(acc: ptr<function, Accumulator>, factors: vec4<f32>) {
    (*acc).a0 *= factors.x;
    (*acc).a1 *= factors.y;
    (*acc).a2 *= factors.z;
    (*acc).a3 *= factors.w;
    if COLUMN_RUNS > 1u {
        (*acc).b0 *= factors.x;
        (*acc).b1 *= factors.y;
        (*acc).b2 *= factors.z;
        (*acc).b3 *= factors.w;
    }
    if COLUMN_RUNS > 2u {
        (*acc).c0 *= factors.x;
        (*acc).c1 *= factors.y;
        (*acc).c2 *= factors.z;
        (*acc).c3 *= factors.w;
        (*acc).d0 *= factors.x;
        (*acc).d1 *= factors.y;
        (*acc).d2 *= factors.z;
        (*acc).d3 *= factors.w;
    }
}

// The sum and one product more, or what it was for an excluded pair.
fn add_visible(sum: vec4<f32>, p: f32, v: vec4<f32>) -> vec4<f32> {
    return select(fma(vec4<f32>(p), v, sum), sum, p < 0.0);
}

// Adds the step whose weights and values are in workgroup memory. `mixed` says
// that some pair of the tile is excluded. Trip counts, not branches, choose the
// loop: lavapipe executes both sides of an `if`.
fn add_step(acc: ptr<function, Accumulator>, lane: u32, mixed: bool) {
    let rows = lane >> 3u;
    let run = lane & 7u;
    for (var n = 0u; n < select(params.trips_depth, 0u, mixed); n++) {
        let p = wg_left[weight_index(n, rows)];
        let at = n * COLUMN_QUADS + run;
        let a = wg_right[at];
        (*acc).a0 = fma(vec4<f32>(p.x), a, (*acc).a0);
        (*acc).a1 = fma(vec4<f32>(p.y), a, (*acc).a1);
        (*acc).a2 = fma(vec4<f32>(p.z), a, (*acc).a2);
        (*acc).a3 = fma(vec4<f32>(p.w), a, (*acc).a3);
        if COLUMN_RUNS > 1u {
            let b = wg_right[at + 8u];
            (*acc).b0 = fma(vec4<f32>(p.x), b, (*acc).b0);
            (*acc).b1 = fma(vec4<f32>(p.y), b, (*acc).b1);
            (*acc).b2 = fma(vec4<f32>(p.z), b, (*acc).b2);
            (*acc).b3 = fma(vec4<f32>(p.w), b, (*acc).b3);
        }
        if COLUMN_RUNS > 2u {
            let c = wg_right[at + 16u];
            (*acc).c0 = fma(vec4<f32>(p.x), c, (*acc).c0);
            (*acc).c1 = fma(vec4<f32>(p.y), c, (*acc).c1);
            (*acc).c2 = fma(vec4<f32>(p.z), c, (*acc).c2);
            (*acc).c3 = fma(vec4<f32>(p.w), c, (*acc).c3);
            let d = wg_right[at + 24u];
            (*acc).d0 = fma(vec4<f32>(p.x), d, (*acc).d0);
            (*acc).d1 = fma(vec4<f32>(p.y), d, (*acc).d1);
            (*acc).d2 = fma(vec4<f32>(p.z), d, (*acc).d2);
            (*acc).d3 = fma(vec4<f32>(p.w), d, (*acc).d3);
        }
    }
    for (var n = 0u; n < select(0u, params.trips_depth, mixed); n++) {
        let p = wg_left[weight_index(n, rows)];
        let at = n * COLUMN_QUADS + run;
        let a = wg_right[at];
        (*acc).a0 = add_visible((*acc).a0, p.x, a);
        (*acc).a1 = add_visible((*acc).a1, p.y, a);
        (*acc).a2 = add_visible((*acc).a2, p.z, a);
        (*acc).a3 = add_visible((*acc).a3, p.w, a);
        if COLUMN_RUNS > 1u {
            let b = wg_right[at + 8u];
            (*acc).b0 = add_visible((*acc).b0, p.x, b);
            (*acc).b1 = add_visible((*acc).b1, p.y, b);
            (*acc).b2 = add_visible((*acc).b2, p.z, b);
            (*acc).b3 = add_visible((*acc).b3, p.w, b);
        }
        if COLUMN_RUNS > 2u {
            let c = wg_right[at + 16u];
            (*acc).c0 = add_visible((*acc).c0, p.x, c);
            (*acc).c1 = add_visible((*acc).c1, p.y, c);
            (*acc).c2 = add_visible((*acc).c2, p.z, c);
            (*acc).c3 = add_visible((*acc).c3, p.w, c);
            let d = wg_right[at + 24u];
            (*acc).d0 = add_visible((*acc).d0, p.x, d);
            (*acc).d1 = add_visible((*acc).d1, p.y, d);
            (*acc).d2 = add_visible((*acc).d2, p.z, d);
            (*acc).d3 = add_visible((*acc).d3, p.w, d);
        }
    }
}
