// The one uniform of every forward kernel; mirror of `Params` in src/params.rs
// (tests/layout.rs compares the two by reflection).
//
// Counts, strides and bases are in elements of their tensor (u32 words for
// statistics, scores and bit masks). A pass covers a box of batch entries,
// query heads and rows; bases belong to the box's first corner.

// Strides of batch, head and row, and the first element; the last axis is contiguous.
struct View {
    batch: u32,
    head: u32,
    row: u32,
    base: u32,
}

struct Params {
    query: View,
    key: View,
    value: View,
    output: View,
    bias: View,
    mask: View,
    stats: View,
    scores: View,
    // A number a key: norms of values, and mass received.
    norms: View,
    received: View,

    q_len: u32,
    kv_len: u32,
    qk_dim: u32,
    v_dim: u32,

    batch_first: u32,
    head_first: u32,
    row_first: u32,
    row_end: u32,

    heads: u32,
    row_tiles: u32,
    column_tiles: u32,
    workgroups: u32,

    // Query heads a kv head.
    group: u32,
    alignment: u32,
    offset: i32,
    rules: u32,

    window_left: u32,
    window_right: u32,
    scale: f32,
    softcap: f32,

    query_dtype: u32,
    output_dtype: u32,
    bias_dtype: u32,
    bias_key: u32,

    mask_key: u32,
    stage: u32,
    // First words of the lists in `aux`.
    aux_kv_lengths: u32,
    aux_q_lengths: u32,

    aux_offsets: u32,
    aux_q_segments: u32,
    aux_kv_segments: u32,
    aux_slopes: u32,

    aux_sinks: u32,
    // Trip counts that the driver must not know, or it unrolls the loops
    // (18.8 s against 0.56 s of compilation on lavapipe for one such kernel).
    trips_depth: u32,
    trips_keys: u32,
    trips_rows: u32,

    // The keys that inspection shows.
    key_first: u32,
    key_end: u32,
    // Of a row's summary: how many of its largest weights, and of its first keys.
    top: u32,
    first_keys: u32,
}

@group(0) @binding(0) var<uniform> params: Params;

// Bits of `params.rules`.
const RULE_CAUSAL: u32 = 1u;
const RULE_LEFT: u32 = 2u;
const RULE_RIGHT: u32 = 4u;
const RULE_KV_LENGTHS: u32 = 8u;
const RULE_Q_LENGTHS: u32 = 16u;
const RULE_SEGMENTS: u32 = 32u;
const RULE_BIAS: u32 = 64u;
const RULE_MASK_BYTES: u32 = 128u;
const RULE_MASK_BITS: u32 = 256u;
const RULE_MASK_DROP: u32 = 512u;
const RULE_ALIBI: u32 = 1024u;
const RULE_SINKS: u32 = 2048u;
const RULE_SOFTCAP: u32 = 4096u;
const RULE_STATS: u32 = 8192u;
const RULE_STATS_PAIRS: u32 = 16384u;
const RULE_NORMS: u32 = 32768u;
// The norms are a query head's, not a kv head's.
const RULE_NORMS_BY_QUERY: u32 = 65536u;
// Mass of rows before these has been received already.
const RULE_CONTINUED: u32 = 131072u;

// Rules that are decided pair by pair, not by a row's interval of keys.
const PAIR_RULES: u32 = RULE_SEGMENTS | RULE_BIAS | RULE_MASK_BYTES | RULE_MASK_BITS;
// Rules that change a score after the scale.
const SCORE_RULES: u32 = RULE_SOFTCAP | RULE_BIAS | RULE_ALIBI;

const ALIGN_TOP_LEFT: u32 = 0u;
const ALIGN_BOTTOM_RIGHT: u32 = 1u;
const ALIGN_OFFSET: u32 = 2u;
const ALIGN_PER_SEQUENCE: u32 = 3u;

// RULES holds the bits that this text was composed for.
fn has(rules: u32) -> bool {
    return (params.rules & rules & RULES) != 0u;
}
