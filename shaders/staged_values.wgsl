// Last stage of the staged path: O = P V, from the weights in `scores`.
//
// One workgroup of 128 lanes per 64 rows x 64 value columns.
//
// In range, with staged_softmax's argument for the box: load_weight indexes 0
// unless i < rows_end <= row_end and the key is below keys.y <= kv_len,
// load_value unless the same and column < v_dim; store_output is guarded by
// i < row_end and c < v_dim, and its run ends at v_dim. wg_left: a key of 16 and
// rows of 16, permuted among themselves; wg_right: 16 keys of COLUMN_QUADS, read
// up to run 7 + 8 (COLUMN_RUNS - 1) < COLUMN_QUADS. Loops: the trips; `first`
// starts at or below kv_len or the loop is empty, and grows by 64 to
// kv_len <= 2^30; a run has at most 4 words. Divisors as in staged_scores.

fn load_weight(base: u32, i: u32, rows_end: u32, j: u32, keys_end: u32) -> f32 {
    let inside = i < rows_end && j < keys_end;
    let index = base + (i - params.row_first) * params.scores.row + j;
    return select(-1.0, bitcast<f32>(scores[select(0u, index, inside)]), inside);
}

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
    let column = id.column * TILE_COLUMNS;
    let rows_end = min(row_first + TILE_ROWS, params.row_end);
    let keys = rows_interval(row_first, rows_end, sequence);
    let base = query_head(params.scores, id);
    let value_base = key_head(params.value, id);
    var acc: Accumulator;
    for (var first = keys.x & ~63u; first < keys.y; first += TILE_KEYS) {
        for (var step = 0u; step < params.trips_rows / 2u; step++) {
            // Two keys of 4 rows a lane.
            for (var n = lane >> 4u; n < params.trips_depth; n += 8u) {
                let i = row_first + (lane & 15u) * 4u;
                let j = first + step_key(step, n);
                wg_left[weight_index(n, lane & 15u)] = vec4<f32>(
                    load_weight(base, i, rows_end, j, keys.y),
                    load_weight(base, i + 1u, rows_end, j, keys.y),
                    load_weight(base, i + 2u, rows_end, j, keys.y),
                    load_weight(base, i + 3u, rows_end, j, keys.y),
                );
            }
            stage_values(lane, value_base, column, first, keys.y, step);
            workgroupBarrier(); // the step is complete
            add_step(&acc, lane, true);
            workgroupBarrier(); // its last readers are done
        }
    }
    store_output(&acc, lane, query_head(params.output, id), row_first, column, vec4<f32>(1.0));
}
