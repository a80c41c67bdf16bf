// Scores, weights or contributions of a box of batch entries, heads and rows and a
// range of keys, the weights from the rows' statistics.
//
// One workgroup of 128 lanes per 64 rows x 64 keys.
//
// In range, with staged_scores's argument for the tile; what is stored is guarded
// by i < row_end and j < key_end, and key_end <= kv_len; there `stats` is read at
// the row's one or two words, `bias` and `mask_words` with staged_softmax's
// argument, a bias and a norm at min(j, kv_len - 1). Loops: the trips of the uniform
// (8, 16, and 4 for a half of 8), and ceil(qk_dim / 16). Divisors as in
// staged_scores.

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
    let first = params.key_first + id.column * TILE_KEYS;
    let rows_end = min(min(row_first + TILE_ROWS, params.row_end), sequence.q_len);
    let keys = rows_interval(row_first, rows_end, sequence);
    let is_hidden = params.stage > STAGE_SOFTCAPPED && (first >= keys.y || first + TILE_KEYS <= keys.x);
    let chunks = (params.qk_dim + TILE_DEPTH - 1u) / TILE_DEPTH;
    var s = scores_tile(
        lane,
        query_head(params.query, id),
        row_first,
        rows_end,
        key_head(params.key, id),
        first,
        min(params.key_end, sequence.kv_len),
        select(chunks, 0u, is_hidden),
    );
    let base = query_head(params.output, id);
    let norms_base = norms_head(id.batch, id.head);
    for (var n = 0u; n < params.trips_rows; n++) {
        let i = row_first + (lane >> 3u) * 4u + (n >> 1u);
        let j = first + lane_key(lane, (n & 1u) * 4u);
        if i < params.row_end && j < params.key_end {
            let row = load_row(id.batch, id.head, i, sequence);
            let state = state_at(query_head(params.stats, id) + (i - params.row_first) * params.stats.row);
            let x = shown(row, i, j, s.a0, sequence, state, norms_at(norms_base, j), params.trips_rows / 2u);
            let at = base + (i - params.row_first) * params.output.row + j - params.key_first;
            store_run(at, min(4u, params.key_end - j), x);
        }
        turn(&s, s.a0);
    }
}
