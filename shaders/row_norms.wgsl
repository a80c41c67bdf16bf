// sqrt(max(0, x . y)) of rows x of `query` and y of `key`: where both are the
// values, their norms |v|; where x = v G, the norms through an output projection,
// sqrt(v G v).
//
// One invocation per row; a workgroup of 64 has one head.

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
    let row = params.row_first + id.row * 64u + lane;
    if row >= params.row_end {
        return;
    }
    let x = query_head(params.query, id) + (row - params.row_first) * params.query.row;
    let y = key_head(params.key, id) + row * params.key.row;
    var sum = 0.0;
    for (var d = 0u; d < params.qk_dim; d++) {
        let of_x = widen(query[word_index(x + d, params.query_dtype)], x + d, params.query_dtype);
        let of_y = widen(key[word_index(y + d, KV_DTYPE)], y + d, KV_DTYPE);
        sum = fma(of_x, of_y, sum);
    }
    let norm = sqrt(select(sum, 0.0, sum < 0.0));
    store_run(query_head(params.output, id) + (row - params.row_first) * params.output.row, 1u, vec4<f32>(norm));
}
