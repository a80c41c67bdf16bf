// Scores, weights or contributions of a box of batch entries, heads and rows and a
// range of keys, for software adapters: the scores of project_lanes, the weights
// from the rows' statistics.
//
// One workgroup is one subgroup of SUBGROUP lanes and computes 4 * SUBGROUP rows of
// SHOWN_KEYS keys; a lane owns 4 rows, the components of every vec4 of scores.
//
// In range: rows are clamped below row_end and keys below key_end <= kv_len, chunks
// of a row are below ceil(qk_dim / DIMS); so `query`, `key` and `stats` are read
// within the boxes that the plan binds (src/split.rs). `bias` and `mask_words` with
// staged_softmax's argument, a bias and a norm at min(j, kv_len - 1). What is stored
// is guarded. r is below 4, as trips_rows is. Loops: the trips, and at most
// ceil(qk_dim / DIMS), at least 1. Divisors as in grid.wgsl.

const ROWS: u32 = 4u * SUBGROUP;
const SHOWN_KEYS: u32 = GROUPS * SUBGROUP;

@compute @workgroup_size(SUBGROUP)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let number = tile_number(workgroup, workgroups);
    if number >= params.workgroups {
        return;
    }
    let id = tile_id(number);
    let sequence = load_sequence(id.batch);
    let row_first = params.row_first + id.row * ROWS;
    let first = params.key_first + id.column * SHOWN_KEYS;
    let seen = rows_interval(row_first, min(row_first + ROWS, params.row_end), sequence);
    let is_hidden = params.stage > STAGE_SOFTCAPPED && (first >= seen.y || first + SHOWN_KEYS <= seen.x);
    let key_base = key_head(params.key, id);

    // Rows past the last one repeat it and store nothing.
    let rows = vec4<u32>(row_first + lane) + vec4<u32>(0u, SUBGROUP, 2u * SUBGROUP, 3u * SUBGROUP);
    let i = min(rows, vec4<u32>(params.row_end - 1u));
    let starts = vec4<u32>(query_head(params.query, id)) + (i - params.row_first) * params.query.row;
    let stats_rows = vec4<u32>(query_head(params.stats, id)) + (i - params.row_first) * params.stats.row;
#for r in 4
    let state_$r = state_at(stats_rows[$r]);
#end
    let maximum = vec4<f32>(state_0.maximum, state_1.maximum, state_2.maximum, state_3.maximum);
    let factor = vec4<f32>(state_0.factor, state_1.factor, state_2.factor, state_3.factor);
#for g in GROUPS
    let k_row_$g = key_base + min(first + $gu * SUBGROUP + lane, params.key_end - 1u) * params.key.row;
#end

    // Key group * SUBGROUP + 4 * quad + m.
#for g in GROUPS
#for q in QUADS
#for m in 4
    var y_$g_$q_$m = vec4<f32>();
#end
#end
#end
    let chunks = select((params.qk_dim + DIMS - 1u) / DIMS, 1u, is_hidden);
    var c = 0u;
    loop {
#for r in 4
        let x_$r = query_chunk(starts[$r], c);
#end
#for g in GROUPS
        let k_$g = key_chunk(k_row_$g, c);
#end
#for d in DIMS
        let x_of_$d = vec4<f32>(x_0[$d], x_1[$d], x_2[$d], x_3[$d]);
#end
#for g in GROUPS
#for q in QUADS
#for m in 4
#for d in DIMS
        y_$g_$q_$m = fma(x_of_$d, vec4<f32>(subgroupBroadcast(k_$g[$d], $qu * 4u + $mu)), y_$g_$q_$m);
#end
#end
#end
#end
        continuing {
            c++;
            break if c >= chunks;
        }
    }

    let output_base = query_head(params.output, id);
    let norms_base = norms_head(id.batch, id.head);
    for (var n = 0u; n < params.trips_keys; n++) {
        let j = first + n * 4u;
#for m in 4
        var y_$m = vec4<f32>();
#for g in GROUPS
#for q in QUADS
        y_$m = select(y_$m, y_$g_$q_$m, n == $gu * QUADS + $qu);
#end
#end
#end
        let norm = norms_at(norms_base, j);
        for (var r = 0u; r < params.trips_rows; r++) {
            if rows[r] < params.row_end && j < params.key_end {
                let raw = vec4<f32>(y_0[r], y_1[r], y_2[r], y_3[r]) * params.scale;
                let row = load_row(id.batch, id.head, rows[r], sequence);
                let state = State(maximum[r], 0.0, factor[r]);
                let x = shown(row, rows[r], j, raw, sequence, state, norm, params.trips_rows);
                let at = output_base + (rows[r] - params.row_first) * params.output.row + j - params.key_first;
                store_run(at, min(4u, params.key_end - j), x);
            }
        }
    }
}
