// A projection, Y = X W^T + b: the rows of X are in the place of queries, those of W
// (one an output) of keys, and a tile of scores is a tile of Y.
//
// One workgroup of 128 lanes per 64 rows x 64 outputs.
//
// In range, with staged_scores's argument for the tile, whose rows end at row_end
// and whose keys end at kv_len; what is stored is guarded by i < row_end and
// j < kv_len, and a bias is read at min(j, kv_len - 1). Wide loads take elements up
// to depth + 1, below sizes that are multiples of 4. Loops: the trips of the uniform
// (8, 16), and ceil(qk_dim / 16). Divisors as in staged_scores.

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
    let row_first = params.row_first + id.row * TILE_ROWS;
    let first = id.column * TILE_KEYS;
    var y = scores_tile(
        lane,
        query_head(params.query, id),
        row_first,
        params.row_end,
        key_head(params.key, id),
        first,
        params.kv_len,
        (params.qk_dim + TILE_DEPTH - 1u) / TILE_DEPTH,
    );
    let base = query_head(params.output, id);
    for (var n = 0u; n < params.trips_rows; n++) {
        let i = row_first + (lane >> 3u) * 4u + (n >> 1u);
        let j = first + lane_key(lane, (n & 1u) * 4u);
        if i < params.row_end && j < params.kv_len {
            let at = base + (i - params.row_first) * params.output.row + j;
            store_run(at, min(4u, params.kv_len - j), y.a0 + bias_of(j));
        }
        turn(&y, y.a0);
    }
}
