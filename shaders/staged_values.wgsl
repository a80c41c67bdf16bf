// Last stage of the staged path: O = P V, from the weights in `scores`.
//
// One workgroup of 64 lanes per 64 rows x 64 value columns.
//
// In range, with staged_softmax's argument for the box: load_weight indexes 0
// unless i < rows_end <= row_end and the key is below keys.y <= kv_len,
// load_value unless the same and column < v_dim; store_output is guarded by
// i < row_end and c < v_dim, and its run ends at v_dim. wg_left: 15 * 16 + 15 and
// 3 * 64 + 56 + 7 < 256, wg_scores: 63 * 9 + 7 < 576, wg_factors: 7 * 8 + 7 < 64, as
// trips_depth is 16 and trips_rows 8. Loops: `first` starts at or below kv_len
// or the loop is empty, and grows by 32 to kv_len <= 2^30; a run has at most 4
// words. Divisors as in staged_scores.

var<workgroup> wg_sequence: Sequence;

fn load_weight(index: u32, inside: bool) -> f32 {
    return select(-1.0, bitcast<f32>(scores[select(0u, index, inside)]), inside);
}

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
    let column = id.column * TILE_COLUMNS;
    let rows_end = min(row_first + TILE_ROWS, params.row_end);
    let keys = rows_interval(row_first, rows_end, sequence);
    let base = query_head(params.scores, id);
    let value_base = key_head(params.value, id);
    var acc: Accumulator;
    for (var first = keys.x & ~31u; first < keys.y; first += TILE_KEYS) {
        workgroupBarrier(); // the last readers of wg_scores are done
        for (var n = lane; n < TILE_ROWS * 8u; n += LANES) {
            let g = n & 7u;
            let i = row_first + (n >> 3u);
            let j = first + g * 4u;
            let index = base + (i - params.row_first) * params.scores.row + j;
            let count = select(0u, subtract_saturated(keys.y, j), i < rows_end);
            wg_scores[(n >> 3u) * SCORE_STRIDE + g] = vec4<f32>(
                load_weight(index, count > 0u),
                load_weight(index + 1u, count > 1u),
                load_weight(index + 2u, count > 2u),
                load_weight(index + 3u, count > 3u),
            );
        }
        values_tile(&acc, lane, value_base, column, first, keys.y, 2u, true);
    }
    workgroupBarrier();
    wg_factors[lane] = 1.0;
    workgroupBarrier(); // factors are complete
    store_output(&acc, lane, query_head(params.output, id), row_first, column);
}
