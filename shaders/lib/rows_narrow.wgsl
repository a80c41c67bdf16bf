// Copies blocks of queries, keys and values into workgroup memory, element by
// element: any stride, base and storage type. What lies outside counts as zeros
// and is never read.

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

// A vec4 holds one depth of 4 rows.
fn stage_queries(lane: u32, base: u32, row: u32, row_end: u32, depth: u32) {
    for (var n = lane; n < params.trips_depth * 16u; n += LANES) {
        let r = row + (n >> 4u) * 4u;
        let d = n & 15u;
        wg_left[d * 16u + (n >> 4u)] = vec4<f32>(
            load_query(base, r, row_end, depth + d),
            load_query(base, r + 1u, row_end, depth + d),
            load_query(base, r + 2u, row_end, depth + d),
            load_query(base, r + 3u, row_end, depth + d),
        );
    }
}

fn stage_keys(lane: u32, base: u32, first: u32, end: u32, depth: u32) {
    for (var n = lane; n < params.trips_depth * 16u; n += LANES) {
        let j = first + (n >> 4u) * 4u;
        let d = n & 15u;
        wg_right[d * 16u + (n >> 4u)] = vec4<f32>(
            load_key(base, j, end, depth + d),
            load_key(base, j + 1u, end, depth + d),
            load_key(base, j + 2u, end, depth + d),
            load_key(base, j + 3u, end, depth + d),
        );
    }
}
