// One tile of scaled scores, S = scale * Q K^T, in registers: 4 rows of two runs
// of 4 keys a lane.

// `a`: keys 4 (lane & 7) and the three after it; `b`: the same, 32 keys on.
struct Scores {
    a0: vec4<f32>, b0: vec4<f32>,
    a1: vec4<f32>, b1: vec4<f32>,
    a2: vec4<f32>, b2: vec4<f32>,
    a3: vec4<f32>, b3: vec4<f32>,
}

// Key `k` (0 to 7) of a lane within its tile.
fn lane_key(lane: u32, k: u32) -> u32 {
    return (k >> 2u) * 32u + (lane & 7u) * 4u + (k & 3u);
}

// `chunks` is ceil(qk_dim / 16), or 0 for a tile that nobody needs.
fn scores_tile(lane: u32, query_base: u32, row: u32, row_end: u32, key_base: u32, first: u32, key_end: u32, chunks: u32) -> Scores {
    let rows = lane >> 3u;
    let keys = lane & 7u;
    var s: Scores;
    for (var chunk = 0u; chunk < chunks; chunk++) {
        let depth = chunk * TILE_DEPTH;
        stage_queries(lane, query_base, row, row_end, depth);
        stage_keys(lane, key_base, first, key_end, depth);
        workgroupBarrier(); // the chunk is complete
        for (var d = 0u; d < params.trips_depth; d++) {
            let q = wg_left[d * 16u + rows];
            let a = wg_right[d * 16u + keys];
            let b = wg_right[d * 16u + keys + 8u];
            s.a0 = fma(vec4<f32>(q.x), a, s.a0);
            s.a1 = fma(vec4<f32>(q.y), a, s.a1);
            s.a2 = fma(vec4<f32>(q.z), a, s.a2);
            s.a3 = fma(vec4<f32>(q.w), a, s.a3);
            s.b0 = fma(vec4<f32>(q.x), b, s.b0);
            s.b1 = fma(vec4<f32>(q.y), b, s.b1);
            s.b2 = fma(vec4<f32>(q.z), b, s.b2);
            s.b3 = fma(vec4<f32>(q.w), b, s.b3);
        }
        workgroupBarrier(); // its last readers are done
    }
    return Scores(
        s.a0 * params.scale, s.b0 * params.scale,
        s.a1 * params.scale, s.b1 * params.scale,
        s.a2 * params.scale, s.b2 * params.scale,
        s.a3 * params.scale, s.b3 * params.scale,
    );
}

// Puts `x` in the place of the first run and the next run in the first place;
// after eight turns each run is where it was.
fn turn(s: ptr<function, Scores>, x: vec4<f32>) {
    (*s).a0 = (*s).b0;
    (*s).b0 = (*s).a1;
    (*s).a1 = (*s).b1;
    (*s).b1 = (*s).a2;
    (*s).a2 = (*s).b2;
    (*s).b2 = (*s).a3;
    (*s).a3 = (*s).b3;
    (*s).b3 = x;
}
