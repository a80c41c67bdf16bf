// Mass that each key receives: the sum of its weights over the rows, in their
// order. `scores` holds the weights (-1 at excluded pairs).
//
// One invocation per key; a workgroup of 64 has one head.

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
    let j = id.column * 64u + lane;
    if j >= params.kv_len {
        return;
    }
    let base = query_head(params.scores, id) + j;
    let at = query_head(params.received, id) + j;
    var total = 0.0;
    if has(RULE_CONTINUED) {
        total = bitcast<f32>(received[at]);
    }
    let rows = params.row_end - params.row_first;
    for (var r = 0u; r < rows; r++) {
        let p = bitcast<f32>(scores[base + r * params.scores.row]);
        total = select(total + p, total, p < 0.0);
    }
    received[at] = bitcast<u32>(total);
}
