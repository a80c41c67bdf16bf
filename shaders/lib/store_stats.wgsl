// Writes LSE, or the pair (maximum, log of the sum), of one row.
fn store_stats(index: u32, end: SoftmaxEnd, sink_bits: u32) {
    let empty = end.factor < 0.0 && sink_bits == NEGATIVE_INFINITY_BITS;
    let first = select(end.maximum + end.log_sum, end.maximum, has(RULE_STATS_PAIRS));
    stats[index] = select(bitcast<u32>(first), NEGATIVE_INFINITY_BITS, empty);
    if has(RULE_STATS_PAIRS) {
        stats[index + 1u] = bitcast<u32>(end.log_sum);
    }
}
