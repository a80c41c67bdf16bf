// Lengths and offset of a batch entry, and the interval of keys that causal
// mask, window and lengths leave to a row: twin of src/mask.rs.

// Lengths and offset of one batch entry.
struct Sequence {
    kv_len: u32,
    q_len: u32,
    offset: i32,
}

fn load_sequence(batch: u32) -> Sequence {
    var sequence = Sequence(params.kv_len, params.q_len, 0);
    if has(RULE_KV_LENGTHS) {
        sequence.kv_len = min(aux[params.aux_kv_lengths + batch], params.kv_len);
    }
    if has(RULE_Q_LENGTHS) {
        sequence.q_len = min(aux[params.aux_q_lengths + batch], params.q_len);
    }
    if params.alignment == ALIGN_BOTTOM_RIGHT {
        sequence.offset = i32(sequence.kv_len) - i32(sequence.q_len);
    } else if params.alignment == ALIGN_OFFSET {
        sequence.offset = params.offset;
    } else if params.alignment == ALIGN_PER_SEQUENCE {
        sequence.offset = bitcast<i32>(aux[params.aux_offsets + batch]);
    }
    return sequence;
}

// a + b and a - b that stop at the ends of u32.
fn add_saturated(a: u32, b: u32) -> u32 {
    return select(a + b, 0xffffffffu, a + b < a);
}

fn subtract_saturated(a: u32, b: u32) -> u32 {
    return a - min(a, b);
}

// Magnitude of i + offset, and its sign. Lengths are at most 2^30, so the sum fits.
fn row_position(i: u32, offset: i32) -> u32 {
    let shift = select(bitcast<u32>(offset), 0u - bitcast<u32>(offset), offset < 0);
    return select(i + shift, max(i, shift) - min(i, shift), offset < 0);
}

fn row_is_before(i: u32, offset: i32) -> bool {
    return offset < 0 && i < 0u - bitcast<u32>(offset);
}

// The keys that row i may see: [x, y), empty if x >= y.
fn row_interval(i: u32, sequence: Sequence) -> vec2<u32> {
    let position = row_position(i, sequence.offset);
    let before = row_is_before(i, sequence.offset);
    var first = 0u;
    if has(RULE_LEFT) && !before {
        first = subtract_saturated(position, params.window_left);
    }
    var end = sequence.kv_len;
    if has(RULE_CAUSAL | RULE_RIGHT) {
        // The causal mask is a window that shows nothing to the right.
        let right = select(params.window_right, 0u, has(RULE_CAUSAL));
        let reach = add_saturated(right, 1u);
        end = min(end, select(add_saturated(position, reach), subtract_saturated(reach, position), before));
    }
    if i >= sequence.q_len {
        end = 0u;
    }
    return vec2<u32>(first, end);
}

// The keys that any of the rows [first, end) may see. Both ends of a row's
// interval grow with the row, so the outer rows decide.
fn rows_interval(first: u32, end: u32, sequence: Sequence) -> vec2<u32> {
    let last = min(end, sequence.q_len);
    if first >= last {
        return vec2<u32>(0u, 0u);
    }
    return vec2<u32>(row_interval(first, sequence).x, row_interval(last - 1u, sequence).y);
}

// The keys that every one of those rows may see by its interval alone.
fn rows_common_interval(first: u32, end: u32, sequence: Sequence) -> vec2<u32> {
    let last = max(min(end, sequence.q_len), first + 1u);
    return vec2<u32>(row_interval(last - 1u, sequence).x, row_interval(first, sequence).y);
}
