// Which keys a query row may see, by every rule: the row's interval of keys,
// then mask, segments and -inf in the bias pair by pair.

// What a row needs to know of itself.
struct Row {
    // The interval of keys that lengths, causal mask and window leave.
    keys_first: u32,
    keys_end: u32,
    // Position i + offset as a magnitude; `before` if it is negative.
    position: u32,
    before: bool,
    segment: u32,
    kv_segments: u32,
    bias: u32,
    mask: u32,
    slope: f32,
}

// Row i, its segment and slope not loaded but 0.
fn bare_row(batch: u32, head: u32, i: u32, sequence: Sequence) -> Row {
    let interval = row_interval(i, sequence);
    let b = batch - params.batch_first;
    let h = head - params.head_first;
    let r = i - params.row_first;
    var row: Row;
    row.keys_first = interval.x;
    row.keys_end = interval.y;
    row.position = row_position(i, sequence.offset);
    row.before = row_is_before(i, sequence.offset);
    row.bias = params.bias.base + b * params.bias.batch + h * params.bias.head + r * params.bias.row;
    row.mask = params.mask.base + b * params.mask.batch + h * params.mask.head + r * params.mask.row;
    row.segment = 0u;
    row.kv_segments = params.aux_kv_segments + batch * params.kv_len;
    row.slope = 0.0;
    return row;
}

fn load_slope(head: u32) -> f32 {
    var slope = 0.0;
    if has(RULE_ALIBI) {
        slope = bitcast<f32>(aux[params.aux_slopes + head]);
    }
    return slope;
}

fn load_row(batch: u32, head: u32, i: u32, sequence: Sequence) -> Row {
    var row = bare_row(batch, head, i, sequence);
    if has(RULE_SEGMENTS) {
        row.segment = aux[params.aux_q_segments + batch * params.q_len + i];
    }
    row.slope = load_slope(head);
    return row;
}

// Whether the row may see key j, by every rule.
fn is_visible(row: Row, j: u32) -> bool {
    if j < row.keys_first || j >= row.keys_end {
        return false;
    }
    if has(RULE_MASK_BYTES | RULE_MASK_BITS) {
        // A byte a pair, or a bit a pair in words of 32 keys.
        let element = j * params.mask_key;
        let per_word = select(5u, 2u, has(RULE_MASK_BYTES));
        let flat = select(element, row.mask + element, has(RULE_MASK_BYTES));
        let start = select(row.mask, 0u, has(RULE_MASK_BYTES));
        let word = mask_words[start + (flat >> per_word)];
        let byte = (word >> ((flat & 3u) << 3u)) & 0xffu;
        let bit = (word >> (flat & 31u)) & 1u;
        let is_set = select(bit, byte, has(RULE_MASK_BYTES)) != 0u;
        if is_set == has(RULE_MASK_DROP) {
            return false;
        }
    }
    if has(RULE_SEGMENTS) && aux[row.kv_segments + j] != row.segment {
        return false;
    }
    if has(RULE_BIAS) {
        let index = row.bias + j * params.bias_key;
        let word = bias[word_index(index, params.bias_dtype)];
        if is_negative_infinity(word, index, params.bias_dtype) {
            return false;
        }
    }
    return true;
}
