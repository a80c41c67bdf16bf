// O += P V for one tile of keys. Weights are in wg_scores[row][key / 4]; an
// excluded pair holds a negative weight and leaves the sum bit-identical
// whatever V holds there (0 * NaN would not).

// 8 rows by two runs of 4 columns, 32 columns apart.
struct Accumulator {
    a0: vec4<f32>, a1: vec4<f32>, a2: vec4<f32>, a3: vec4<f32>,
    a4: vec4<f32>, a5: vec4<f32>, a6: vec4<f32>, a7: vec4<f32>,
    b0: vec4<f32>, b1: vec4<f32>, b2: vec4<f32>, b3: vec4<f32>,
    b4: vec4<f32>, b5: vec4<f32>, b6: vec4<f32>, b7: vec4<f32>,
}

fn load_value(base: u32, row: u32, row_end: u32, column: u32) -> f32 {
    let inside = row < row_end && column < params.v_dim;
    let index = select(0u, base + row * params.value.row + column, inside);
    return select(0.0, widen(value[word_index(index, KV_DTYPE)], index, KV_DTYPE), inside);
}

// One number a row: during the pass how much a tile shrinks what was summed,
// at the end the factor of the output (negative: the row is empty, its output 0).
var<workgroup> wg_factors: array<f32, 64>;

fn shrink_rows(acc: ptr<function, Accumulator>, lane: u32) {
    let rows = (lane >> 3u) * 8u;
    let f0 = wg_factors[rows + 0u];
    (*acc).a0 *= f0;
    (*acc).b0 *= f0;
    let f1 = wg_factors[rows + 1u];
    (*acc).a1 *= f1;
    (*acc).b1 *= f1;
    let f2 = wg_factors[rows + 2u];
    (*acc).a2 *= f2;
    (*acc).b2 *= f2;
    let f3 = wg_factors[rows + 3u];
    (*acc).a3 *= f3;
    (*acc).b3 *= f3;
    let f4 = wg_factors[rows + 4u];
    (*acc).a4 *= f4;
    (*acc).b4 *= f4;
    let f5 = wg_factors[rows + 5u];
    (*acc).a5 *= f5;
    (*acc).b5 *= f5;
    let f6 = wg_factors[rows + 6u];
    (*acc).a6 *= f6;
    (*acc).b6 *= f6;
    let f7 = wg_factors[rows + 7u];
    (*acc).a7 *= f7;
    (*acc).b7 *= f7;
}

// Adds one key that every row sees: weights of 8 rows times 2 x 4 columns.
fn add_key(acc: ptr<function, Accumulator>, lo: vec4<f32>, hi: vec4<f32>, a: vec4<f32>, b: vec4<f32>) {
    (*acc).a0 = fma(vec4<f32>(lo.x), a, (*acc).a0);
    (*acc).a1 = fma(vec4<f32>(lo.y), a, (*acc).a1);
    (*acc).a2 = fma(vec4<f32>(lo.z), a, (*acc).a2);
    (*acc).a3 = fma(vec4<f32>(lo.w), a, (*acc).a3);
    (*acc).a4 = fma(vec4<f32>(hi.x), a, (*acc).a4);
    (*acc).a5 = fma(vec4<f32>(hi.y), a, (*acc).a5);
    (*acc).a6 = fma(vec4<f32>(hi.z), a, (*acc).a6);
    (*acc).a7 = fma(vec4<f32>(hi.w), a, (*acc).a7);
    (*acc).b0 = fma(vec4<f32>(lo.x), b, (*acc).b0);
    (*acc).b1 = fma(vec4<f32>(lo.y), b, (*acc).b1);
    (*acc).b2 = fma(vec4<f32>(lo.z), b, (*acc).b2);
    (*acc).b3 = fma(vec4<f32>(lo.w), b, (*acc).b3);
    (*acc).b4 = fma(vec4<f32>(hi.x), b, (*acc).b4);
    (*acc).b5 = fma(vec4<f32>(hi.y), b, (*acc).b5);
    (*acc).b6 = fma(vec4<f32>(hi.z), b, (*acc).b6);
    (*acc).b7 = fma(vec4<f32>(hi.w), b, (*acc).b7);
}

// The same sum, or what it was for an excluded pair.
fn add_visible(sum: vec4<f32>, p: f32, v: vec4<f32>) -> vec4<f32> {
    return select(fma(vec4<f32>(p), v, sum), sum, p < 0.0);
}

// Adds one key that some rows do not see.
fn add_mixed_key(acc: ptr<function, Accumulator>, lo: vec4<f32>, hi: vec4<f32>, a: vec4<f32>, b: vec4<f32>) {
    (*acc).a0 = add_visible((*acc).a0, lo.x, a);
    (*acc).a1 = add_visible((*acc).a1, lo.y, a);
    (*acc).a2 = add_visible((*acc).a2, lo.z, a);
    (*acc).a3 = add_visible((*acc).a3, lo.w, a);
    (*acc).a4 = add_visible((*acc).a4, hi.x, a);
    (*acc).a5 = add_visible((*acc).a5, hi.y, a);
    (*acc).a6 = add_visible((*acc).a6, hi.z, a);
    (*acc).a7 = add_visible((*acc).a7, hi.w, a);
    (*acc).b0 = add_visible((*acc).b0, lo.x, b);
    (*acc).b1 = add_visible((*acc).b1, lo.y, b);
    (*acc).b2 = add_visible((*acc).b2, lo.z, b);
    (*acc).b3 = add_visible((*acc).b3, lo.w, b);
    (*acc).b4 = add_visible((*acc).b4, hi.x, b);
    (*acc).b5 = add_visible((*acc).b5, hi.y, b);
    (*acc).b6 = add_visible((*acc).b6, hi.z, b);
    (*acc).b7 = add_visible((*acc).b7, hi.w, b);
}

// `mixed` says that some pair of the tile is excluded; `halves` is 2, or 0 for
// a tile that nobody sees. Trip counts, not branches, choose the loop: lavapipe
// executes both sides of an `if`.
fn values_tile(acc: ptr<function, Accumulator>, lane: u32, value_base: u32, column: u32, first: u32, key_end: u32, halves: u32, mixed: bool) {
    let rows = (lane >> 3u) * 8u * SCORE_STRIDE;
    let run = lane & 7u;
    let load_run = lane & 15u;
    let trips = params.trips_depth / 4u;
    let plain_trips = select(trips, 0u, mixed);
    let careful_trips = select(0u, trips, mixed);
    for (var half = 0u; half < halves; half++) {
        workgroupBarrier(); // the last readers of wg_left are done
        for (var n = lane >> 4u; n < params.trips_depth; n += 4u) {
            let j = first + half * 16u + n;
            let c = column + load_run * 4u;
            wg_left[n * 16u + load_run] = vec4<f32>(
                load_value(value_base, j, key_end, c),
                load_value(value_base, j, key_end, c + 1u),
                load_value(value_base, j, key_end, c + 2u),
                load_value(value_base, j, key_end, c + 3u),
            );
        }
        workgroupBarrier(); // the values are complete
        for (var k = 0u; k < plain_trips; k++) {
            let at = rows + half * 4u + k;
            let p0 = wg_scores[at];
            let p1 = wg_scores[at + 1u * SCORE_STRIDE];
            let p2 = wg_scores[at + 2u * SCORE_STRIDE];
            let p3 = wg_scores[at + 3u * SCORE_STRIDE];
            let p4 = wg_scores[at + 4u * SCORE_STRIDE];
            let p5 = wg_scores[at + 5u * SCORE_STRIDE];
            let p6 = wg_scores[at + 6u * SCORE_STRIDE];
            let p7 = wg_scores[at + 7u * SCORE_STRIDE];
            let v = k * 64u + run;
            add_key(acc, vec4<f32>(p0.x, p1.x, p2.x, p3.x), vec4<f32>(p4.x, p5.x, p6.x, p7.x), wg_left[v], wg_left[v + 8u]);
            add_key(acc, vec4<f32>(p0.y, p1.y, p2.y, p3.y), vec4<f32>(p4.y, p5.y, p6.y, p7.y), wg_left[v + 16u], wg_left[v + 24u]);
            add_key(acc, vec4<f32>(p0.z, p1.z, p2.z, p3.z), vec4<f32>(p4.z, p5.z, p6.z, p7.z), wg_left[v + 32u], wg_left[v + 40u]);
            add_key(acc, vec4<f32>(p0.w, p1.w, p2.w, p3.w), vec4<f32>(p4.w, p5.w, p6.w, p7.w), wg_left[v + 48u], wg_left[v + 56u]);
        }
        for (var k = 0u; k < careful_trips; k++) {
            let at = rows + half * 4u + k;
            let p0 = wg_scores[at];
            let p1 = wg_scores[at + 1u * SCORE_STRIDE];
            let p2 = wg_scores[at + 2u * SCORE_STRIDE];
            let p3 = wg_scores[at + 3u * SCORE_STRIDE];
            let p4 = wg_scores[at + 4u * SCORE_STRIDE];
            let p5 = wg_scores[at + 5u * SCORE_STRIDE];
            let p6 = wg_scores[at + 6u * SCORE_STRIDE];
            let p7 = wg_scores[at + 7u * SCORE_STRIDE];
            let v = k * 64u + run;
            add_mixed_key(acc, vec4<f32>(p0.x, p1.x, p2.x, p3.x), vec4<f32>(p4.x, p5.x, p6.x, p7.x), wg_left[v], wg_left[v + 8u]);
            add_mixed_key(acc, vec4<f32>(p0.y, p1.y, p2.y, p3.y), vec4<f32>(p4.y, p5.y, p6.y, p7.y), wg_left[v + 16u], wg_left[v + 24u]);
            add_mixed_key(acc, vec4<f32>(p0.z, p1.z, p2.z, p3.z), vec4<f32>(p4.z, p5.z, p6.z, p7.z), wg_left[v + 32u], wg_left[v + 40u]);
            add_mixed_key(acc, vec4<f32>(p0.w, p1.w, p2.w, p3.w), vec4<f32>(p4.w, p5.w, p6.w, p7.w), wg_left[v + 48u], wg_left[v + 56u]);
        }
    }
}
