// Weights from a row's statistics: exp(s - maximum - log_sum).

// A row's maximum and the log of its sum relative to it, or its LSE and 0.
struct State {
    maximum: f32,
    log_sum: f32,
    // exp(-log_sum).
    factor: f32,
}

fn load_state(index: u32) -> State {
    let top = stats[index];
    let log_sum = bitcast<f32>(stats[select(index, index + 1u, has(RULE_STATS_PAIRS))]);
    var state: State;
    // A row without keys has -inf here, and no weight that is not selected away.
    state.maximum = bitcast<f32>(select(top, 0u, top == NEGATIVE_INFINITY_BITS));
    state.log_sum = select(0.0, log_sum, has(RULE_STATS_PAIRS));
    state.factor = exp2(-state.log_sum * LOG2_E);
    return state;
}

// First element of a head's norms.
fn norms_head(batch: u32, head: u32) -> u32 {
    let of_key = head / params.group - params.head_first / params.group;
    let h = select(of_key, head - params.head_first, has(RULE_NORMS_BY_QUERY));
    return params.norms.base + (batch - params.batch_first) * params.norms.batch + h * params.norms.head;
}

// The norm of a key's value; that of a key past the end is of no use.
fn norm_at(base: u32, j: u32) -> f32 {
    return bitcast<f32>(norms[base + min(j, params.kv_len - 1u) * params.norms.row]);
}
