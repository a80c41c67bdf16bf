// Scale is done; this is the rest of a row, in place over `scores`: softcap,
// bias, ALiBi, mask, softmax, and the row's log-sum-exp.
//
// `params.stage` says where to stop: 1 after the softcap, 2 after bias and mask
// (excluded pairs hold -inf), 3 at the probabilities (excluded pairs hold 0),
// 4 at weights for the value pass (excluded pairs hold -2, so that their values
// can be left out whatever they are).
//
// One workgroup of 64 lanes per row.
//
// In range: past the first return number < workgroups = batches * heads * rows,
// so b, h and i lie in the pass's box. For a box the plan binds each operand
// from its first corner's element (`base`) to its last corner's, all keys
// included (src/split.rs; tests/plan compares the sums), and j < kv_len
// throughout: `scores`, `bias` and `mask_words` are read at such places only,
// `stats` at the row's one or two words. `aux` holds a whole list wherever its
// rule is set, indexed by batch, batch and row, batch and key, or head; what the
// lists hold is clamped (lengths) or never becomes an index. wg_reduce: lane and
// lane + width are below 64. Loops: j grows by 64 to kv_len <= 2^30, width
// halves to 0. rows and heads are at least 1 where there is a workgroup.

var<workgroup> wg_seen: atomic<u32>;
var<workgroup> wg_total: vec2<f32>;
var<workgroup> wg_stop: u32;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = workgroup.x + workgroup.y * workgroups.x;
    if number >= params.workgroups {
        return;
    }
    // Here a row tile is one row.
    let rows = params.row_end - params.row_first;
    let heads = number / rows;
    let i = params.row_first + number - heads * rows;
    let h = heads % params.heads;
    let b = heads / params.heads;
    let sequence = load_sequence(params.batch_first + b);
    let row = load_row(params.batch_first + b, params.head_first + h, i, sequence);
    let base = params.scores.base + b * params.scores.batch + h * params.scores.head
        + (i - params.row_first) * params.scores.row;
    if lane == 0u {
        atomicStore(&wg_seen, 0u);
    }
    workgroupBarrier(); // wg_seen is ready

    var maximum = LOWEST;
    var seen = 0u;
    for (var j = lane; j < params.kv_len; j += 64u) {
        let raw = bitcast<f32>(scores[base + j]);
        if params.stage == STAGE_SOFTCAPPED {
            scores[base + j] = bitcast<u32>(softcapped(raw));
        } else if is_visible(row, j) {
            let s = modified(row, j, raw);
            scores[base + j] = bitcast<u32>(s);
            maximum = max(maximum, s);
            seen = 1u;
        } else {
            scores[base + j] = NEGATIVE_INFINITY_BITS;
        }
    }
    if params.stage <= STAGE_MASKED {
        return;
    }

    atomicOr(&wg_seen, seen);
    maximum = reduce(lane, maximum, false);
    var sum = 0.0;
    for (var j = lane; j < params.kv_len; j += 64u) {
        let bits = scores[base + j];
        let excluded = bits == NEGATIVE_INFINITY_BITS;
        let p = exp_difference(bitcast<f32>(select(bits, 0u, excluded)), maximum);
        sum = select(sum + p, sum, excluded);
    }
    sum = reduce(lane, sum, true);
    let sink = load_sink(params.head_first + h);
    let end = softmax_finish(SoftmaxState(maximum, sum, atomicLoad(&wg_seen) != 0u), sink);
    // Not -1, which Mesa 22.3 makes the negative of 1 or 0 of, and so -0 of 0.
    let mark = select(0u, bitcast<u32>(-2.0), params.stage == STAGE_WEIGHTS);
    for (var j = lane; j < params.kv_len; j += 64u) {
        let bits = scores[base + j];
        let excluded = bits == NEGATIVE_INFINITY_BITS;
        let p = exp_difference(bitcast<f32>(select(bits, 0u, excluded)), maximum) * end.factor;
        scores[base + j] = select(bitcast<u32>(p), mark, excluded);
    }
    if has(RULE_STATS) && lane == 0u {
        let index = params.stats.base + b * params.stats.batch + h * params.stats.head
            + (i - params.row_first) * params.stats.row;
        store_stats(index, end, sink);
    }
}
