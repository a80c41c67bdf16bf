// A projection, Y = X W^T + b, for software adapters: the scores of forward_lanes
// without the rest. The rows of X are in the place of queries, those of W (one an
// output) of keys.
//
// One workgroup is one subgroup of SUBGROUP lanes and computes 4 * SUBGROUP rows of
// OUTPUTS outputs; a lane owns 4 rows, the components of every vec4 here unless said
// otherwise. For each chunk of the depth a lane loads its rows of X and GROUPS rows
// of W, and all lanes use the latter by broadcast. With 8 groups a load feeds a third
// more multiply-adds, but on Mesa 25.0.7 it took 40 ms of processor time instead of 28
// for 512 x 512 x 512 (`bench --case project-512`, a busy AMD EPYC without AVX-512),
// and 4.5 s for a first dispatch instead of 0.7: more sums than registers.
//
// In range: rows are clamped below row_end and outputs below kv_len, chunks of a row
// are below ceil(qk_dim / DIMS), so that `query` and `key` are read within the boxes
// that the plan binds (src/split.rs); what is stored is guarded by both, and a bias
// is read at min(j, kv_len - 1). r is below 4, as trips_rows is. Loops: the
// trips, and ceil(qk_dim / DIMS), at least 1. Divisors as in grid.wgsl: column_tiles,
// row_tiles, heads and group are at least 1.

const ROWS: u32 = 4u * SUBGROUP;
const OUTPUTS: u32 = GROUPS * SUBGROUP;

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
    let row_first = params.row_first + id.row * ROWS;
    let first = id.column * OUTPUTS;
    let weight_base = key_head(params.key, id);

    // Rows past the last one repeat it and store nothing.
    let rows = vec4<u32>(row_first + lane) + vec4<u32>(0u, SUBGROUP, 2u * SUBGROUP, 3u * SUBGROUP);
    let i = min(rows, vec4<u32>(params.row_end - 1u));
    let starts = vec4<u32>(query_head(params.query, id)) + (i - params.row_first) * params.query.row;
#for g in GROUPS
    let w_row_$g = weight_base + min(first + $gu * SUBGROUP + lane, params.kv_len - 1u) * params.key.row;
#end

    // Output group * SUBGROUP + 4 * quad + m.
#for g in GROUPS
#for q in QUADS
#for m in 4
    var y_$g_$q_$m = vec4<f32>();
#end
#end
#end
    let chunks = (params.qk_dim + DIMS - 1u) / DIMS;
    var c = 0u;
    loop {
#for r in 4
        let x_$r = query_chunk(starts[$r], c);
#end
#for g in GROUPS
        let w_$g = key_chunk(w_row_$g, c);
#end
#for d in DIMS
        let x_of_$d = vec4<f32>(x_0[$d], x_1[$d], x_2[$d], x_3[$d]);
#end
#for g in GROUPS
#for q in QUADS
#for m in 4
#for d in DIMS
        y_$g_$q_$m = fma(x_of_$d, vec4<f32>(subgroupBroadcast(w_$g[$d], $qu * 4u + $mu)), y_$g_$q_$m);
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
    for (var n = 0u; n < params.trips_keys; n++) {
        let column = first + n * 4u;
#for m in 4
        var y_$m = vec4<f32>();
#for g in GROUPS
#for q in QUADS
        y_$m = select(y_$m, y_$g_$q_$m, n == $gu * QUADS + $qu);
#end
#end
#end
        let b = bias_of(column);
        for (var r = 0u; r < params.trips_rows; r++) {
            if rows[r] < params.row_end && column < params.kv_len {
                let at = output_base + (rows[r] - params.row_first) * params.output.row + column;
                let y = vec4<f32>(y_0[r], y_1[r], y_2[r], y_3[r]);
                store_run(at, min(4u, params.kv_len - column), y + b);
            }
        }
    }
}
