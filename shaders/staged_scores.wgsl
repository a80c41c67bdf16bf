// Stage 0 of the staged path: S = scale * Q K^T for a box of batch entries,
// heads and rows, and all keys; 0 past the sequence's lengths.
//
// One workgroup of 64 lanes per 64 rows x 32 keys.
//
// In range, with staged_softmax's argument for the box: load_query and load_key
// index 0 unless row < row_end and depth < qk_dim, with rows_end <= row_end and
// kv_len clamped to the tensor's; `scores` is guarded by i < row_end and
// first + k < kv_len. wg_left: 15 * 16 + 15 < 256, wg_right: 15 * 8 + 7 < 128,
// wg_scores: 63 * 9 + 7 < 576, as trips_depth is 16 and trips_rows 8
// (src/passes.rs). Loops: the trips, and ceil(qk_dim / 16). Divisors:
// column_tiles, row_tiles, heads and group are at least 1.

var<workgroup> wg_sequence: Sequence;

@compute @workgroup_size(64)
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
    if lane == 0u {
        wg_sequence = load_sequence(id.batch);
    }
    let sequence = workgroupUniformLoad(&wg_sequence);
    let row_first = params.row_first + id.row * TILE_ROWS;
    let first = id.column * TILE_KEYS;
    let rows_end = min(min(row_first + TILE_ROWS, params.row_end), sequence.q_len);
    let depth_chunks = (params.qk_dim + TILE_DEPTH - 1u) / TILE_DEPTH;
    scores_tile(
        lane,
        query_head(params.query, id),
        row_first,
        rows_end,
        key_head(params.key, id),
        first,
        sequence.kv_len,
        depth_chunks,
    );
    let base = query_head(params.scores, id);
    let k = lane & 31u;
    for (var r = lane >> 5u; r < TILE_ROWS; r += 2u) {
        let i = row_first + r;
        if i < params.row_end && first + k < params.kv_len {
            let inside = i < sequence.q_len && first + k < sequence.kv_len;
            let s = select(0.0, component(wg_scores[r * SCORE_STRIDE + (k >> 2u)], k & 3u), inside);
            scores[base + (i - params.row_first) * params.scores.row + first + k] = bitcast<u32>(s);
        }
    }
}
