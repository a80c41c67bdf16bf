// Copies blocks of queries, keys and values into workgroup memory, four elements
// at a time: strides, bases and head sizes are multiples of 4 elements, and the
// three tensors are stored alike. What lies outside counts as zeros and is never
// read.

fn load_query_pair(base: u32, row: u32, row_end: u32, depth: u32) -> vec2<f32> {
    let inside = row < row_end && depth < params.qk_dim;
    let index = select(0u, base + (row - params.row_first) * params.query.row + depth, inside);
    return select(vec2<f32>(), widen_pair(query[index >> 1u]), inside);
}

fn load_key_pair(base: u32, row: u32, row_end: u32, depth: u32) -> vec2<f32> {
    let inside = row < row_end && depth < params.qk_dim;
    let index = select(0u, base + row * params.key.row + depth, inside);
    return select(vec2<f32>(), widen_pair(key[index >> 1u]), inside);
}

// 4 rows by 2 depths a lane, turned so that a vec4 holds one depth of 4 rows.
fn stage_queries(lane: u32, base: u32, row: u32, row_end: u32, depth: u32) {
    // A loop of one turn: compilers keep what is loaded here and for the keys apart,
    // which takes 8 registers less.
    for (var n = lane; n < params.trips_keys * 2u; n += LANES) {
        let r = row + (n & 15u) * 4u;
        let d = (n >> 4u) * 2u;
        let a = load_query_pair(base, r, row_end, depth + d);
        let b = load_query_pair(base, r + 1u, row_end, depth + d);
        let c = load_query_pair(base, r + 2u, row_end, depth + d);
        let e = load_query_pair(base, r + 3u, row_end, depth + d);
        wg_left[d * 16u + (n & 15u)] = vec4<f32>(a.x, b.x, c.x, e.x);
        wg_left[d * 16u + 16u + (n & 15u)] = vec4<f32>(a.y, b.y, c.y, e.y);
    }
}

fn stage_keys(lane: u32, base: u32, first: u32, end: u32, depth: u32) {
    let j = first + (lane & 15u) * 4u;
    let d = (lane >> 4u) * 2u;
    let a = load_key_pair(base, j, end, depth + d);
    let b = load_key_pair(base, j + 1u, end, depth + d);
    let c = load_key_pair(base, j + 2u, end, depth + d);
    let e = load_key_pair(base, j + 3u, end, depth + d);
    wg_right[d * 16u + (lane & 15u)] = vec4<f32>(a.x, b.x, c.x, e.x);
    wg_right[d * 16u + 16u + (lane & 15u)] = vec4<f32>(a.y, b.y, c.y, e.y);
}
