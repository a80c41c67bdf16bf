// Stage 0 of the staged path: S = scale * Q K^T for a box of batch entries,
// heads and rows, and all keys; 0 past the sequence's lengths.
//
// One workgroup of 128 lanes per 64 rows x 64 keys.
//
// In range, with staged_softmax's argument for the box: load_query and load_key
// index 0 unless row < row_end and depth < qk_dim, with rows_end <= row_end and
// kv_len clamped to the tensor's; `scores` is guarded by i < row_end and
// j < kv_len. wg_left and wg_right: 15 * 16 + 15 < 256, as trips_depth is 16
// (src/passes.rs). Loops: the trips, and ceil(qk_dim / 16). Divisors:
// column_tiles, row_tiles, heads and group are at least 1.

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = tile_number(workgroup, workgroups);
    if number >= params.workgroups {
        return;
    }
    let id = tile_id(number);
    let sequence = uniform_sequence(lane, id.batch);
    let row_first = params.row_first + id.row * TILE_ROWS;
    let first = id.column * TILE_KEYS;
    let rows_end = min(min(row_first + TILE_ROWS, params.row_end), sequence.q_len);
    var s = scores_tile(
        lane,
        query_head(params.query, id),
        row_first,
        rows_end,
        key_head(params.key, id),
        first,
        sequence.kv_len,
        (params.qk_dim + TILE_DEPTH - 1u) / TILE_DEPTH,
    );
    let base = query_head(params.scores, id);
    for (var n = 0u; n < params.trips_rows; n++) {
        let i = row_first + (lane >> 3u) * 4u + (n >> 1u);
        for (var k = 0u; k < params.trips_rows / 2u; k++) {
            let j = first + lane_key(lane, (n & 1u) * 4u + k);
            if i < params.row_end && j < params.kv_len {
                let inside = i < sequence.q_len && j < sequence.kv_len;
                let x = select(0.0, component(s.a0, k), inside);
                scores[base + (i - params.row_first) * params.scores.row + j] = bitcast<u32>(x);
            }
        }
        turn(&s, s.a0);
    }
}
