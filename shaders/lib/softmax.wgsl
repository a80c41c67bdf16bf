// Online softmax of one row: the state, how scores enter it, how it ends.
//
// `seen` says whether any key was visible; a row is never judged empty because
// a float looks like a sentinel. Excluded scores never enter the state, and a
// tile without a visible key leaves it bit-identical (shrink is exactly 1).
// Reference: Milakov and Gimelshein 2018, "Online normalizer calculation for
// softmax".

// Exact: -3.4028235e38 is below it, and not every compiler rounds.
const LOWEST: f32 = -0x1.fffffep+127f;
const NEGATIVE_INFINITY_BITS: u32 = 0xff800000u;
const LOG2_E: f32 = 1.4426950408889634;

struct SoftmaxState {
    maximum: f32,
    sum: f32,
    seen: bool,
}

const SOFTMAX_EMPTY = SoftmaxState(LOWEST, 0.0, false);

// exp(a - b) for a <= b. The halves keep a difference of two huge numbers
// finite; it is clamped from below by a comparison, so that NaN passes.
fn exp_difference(a: f32, b: f32) -> f32 {
    let half = 0.5 * a - 0.5 * b;
    return exp2(select(half, -64.0, half < -64.0) * (2.0 * LOG2_E));
}

// The same for four scores of one row.
fn exp_difference4(a: vec4<f32>, b: f32) -> vec4<f32> {
    let half = 0.5 * a - vec4<f32>(0.5 * b);
    return exp2(select(half, vec4<f32>(-64.0), half < vec4<f32>(-64.0)) * (2.0 * LOG2_E));
}

// The factor that brings what was summed under `state` to a new maximum.
fn softmax_shrink(state: SoftmaxState, maximum: f32) -> f32 {
    return select(1.0, exp_difference(state.maximum, maximum), state.seen && state.maximum != maximum);
}

// What the row ends with: factor for the unnormalised output (negative: the
// row is empty and its output 0), maximum and log of the sum relative to it.
struct SoftmaxEnd {
    factor: f32,
    maximum: f32,
    log_sum: f32,
}

// A sink joins the denominator once and has no value row; -inf is no sink.
fn softmax_finish(state: SoftmaxState, sink_bits: u32) -> SoftmaxEnd {
    let has_sink = sink_bits != NEGATIVE_INFINITY_BITS;
    let sink = bitcast<f32>(select(0u, sink_bits, has_sink));
    if !state.seen {
        return SoftmaxEnd(-1.0, sink, 0.0);
    }
    let maximum = select(state.maximum, max(state.maximum, sink), has_sink);
    let shrink = select(1.0, exp_difference(state.maximum, maximum), has_sink);
    let extra = select(0.0, exp_difference(sink, maximum), has_sink);
    let sum = state.sum * shrink + extra;
    // One adapter's log() makes a number of NaN.
    let no_number = (bitcast<u32>(sum) & 0x7fffffffu) > 0x7f800000u;
    return SoftmaxEnd(shrink / sum, maximum, select(log(sum), sum, no_number));
}

fn load_sink(head: u32) -> u32 {
    if has(RULE_SINKS) {
        return aux[params.aux_sinks + head];
    }
    return NEGATIVE_INFINITY_BITS;
}
