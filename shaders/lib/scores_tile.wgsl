// One tile of scaled scores, S = scale * Q K^T, into wg_scores[row][key / 4].
// Rows past row_end, keys past key_end and depth past qk_dim count as zeros
// and are never read.

fn load_query(base: u32, row: u32, row_end: u32, depth: u32) -> f32 {
    let inside = row < row_end && depth < params.qk_dim;
    let index = select(0u, base + (row - params.row_first) * params.query.row + depth, inside);
    return select(0.0, widen(query[word_index(index, params.query_dtype)], index, params.query_dtype), inside);
}

fn load_key(base: u32, row: u32, row_end: u32, depth: u32) -> f32 {
    let inside = row < row_end && depth < params.qk_dim;
    let index = select(0u, base + row * params.key.row + depth, inside);
    return select(0.0, widen(key[word_index(index, KV_DTYPE)], index, KV_DTYPE), inside);
}

// `chunks` is ceil(qk_dim / 16), or 0 for a tile that nobody needs.
fn scores_tile(lane: u32, query_base: u32, row: u32, row_end: u32, key_base: u32, first: u32, key_end: u32, chunks: u32) {
    let rows = (lane >> 3u) * 2u;
    let keys = lane & 7u;
    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    var s4 = vec4<f32>();
    var s5 = vec4<f32>();
    var s6 = vec4<f32>();
    var s7 = vec4<f32>();
    for (var chunk = 0u; chunk < chunks; chunk++) {
        workgroupBarrier(); // the last readers of wg_left and wg_right are done
        let depth = chunk * TILE_DEPTH + (lane & 15u);
        for (var n = lane >> 4u; n < params.trips_depth; n += 4u) {
            let r = row + n * 4u;
            wg_left[(lane & 15u) * 16u + n] = vec4<f32>(
                load_query(query_base, r, row_end, depth),
                load_query(query_base, r + 1u, row_end, depth),
                load_query(query_base, r + 2u, row_end, depth),
                load_query(query_base, r + 3u, row_end, depth),
            );
        }
        for (var n = lane >> 4u; n < params.trips_rows; n += 4u) {
            let j = first + n * 4u;
            wg_right[(lane & 15u) * 8u + n] = vec4<f32>(
                load_key(key_base, j, key_end, depth),
                load_key(key_base, j + 1u, key_end, depth),
                load_key(key_base, j + 2u, key_end, depth),
                load_key(key_base, j + 3u, key_end, depth),
            );
        }
        workgroupBarrier(); // the chunk is complete
        for (var d = 0u; d < params.trips_depth; d++) {
            let lo = wg_left[d * 16u + rows];
            let hi = wg_left[d * 16u + rows + 1u];
            let k = wg_right[d * 8u + keys];
            s0 = fma(vec4<f32>(lo.x), k, s0);
            s1 = fma(vec4<f32>(lo.y), k, s1);
            s2 = fma(vec4<f32>(lo.z), k, s2);
            s3 = fma(vec4<f32>(lo.w), k, s3);
            s4 = fma(vec4<f32>(hi.x), k, s4);
            s5 = fma(vec4<f32>(hi.y), k, s5);
            s6 = fma(vec4<f32>(hi.z), k, s6);
            s7 = fma(vec4<f32>(hi.w), k, s7);
        }
    }
    let at = (lane >> 3u) * 8u * SCORE_STRIDE + keys;
    wg_scores[at] = s0 * params.scale;
    wg_scores[at + 1u * SCORE_STRIDE] = s1 * params.scale;
    wg_scores[at + 2u * SCORE_STRIDE] = s2 * params.scale;
    wg_scores[at + 3u * SCORE_STRIDE] = s3 * params.scale;
    wg_scores[at + 4u * SCORE_STRIDE] = s4 * params.scale;
    wg_scores[at + 5u * SCORE_STRIDE] = s5 * params.scale;
    wg_scores[at + 6u * SCORE_STRIDE] = s6 * params.scale;
    wg_scores[at + 7u * SCORE_STRIDE] = s7 * params.scale;
    workgroupBarrier(); // the tile is complete
}
