//! The uniforms, mirrors of `shaders/lib/params.wgsl` and of `CopyParams` in
//! `shaders/copy_words.wgsl`. `tests/layout.rs` compares them by reflection.

use bytemuck::{Pod, Zeroable};

/// Strides and base of one tensor, in its elements.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct View {
    pub batch: u32,
    pub head: u32,
    pub row: u32,
    pub base: u32,
}

/// The uniform of every forward kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
pub(crate) struct Params {
    pub query: View,
    pub key: View,
    pub value: View,
    pub output: View,
    pub bias: View,
    pub mask: View,
    pub stats: View,
    pub scores: View,
    pub norms: View,
    pub received: View,

    pub q_len: u32,
    pub kv_len: u32,
    pub qk_dim: u32,
    pub v_dim: u32,

    pub batch_first: u32,
    pub head_first: u32,
    pub row_first: u32,
    pub row_end: u32,

    pub heads: u32,
    pub row_tiles: u32,
    pub column_tiles: u32,
    pub workgroups: u32,

    pub group: u32,
    pub alignment: u32,
    pub offset: i32,
    pub rules: u32,

    pub window_left: u32,
    pub window_right: u32,
    pub scale: f32,
    pub softcap: f32,

    pub query_dtype: u32,
    pub output_dtype: u32,
    pub bias_dtype: u32,
    pub bias_key: u32,

    pub mask_key: u32,
    pub stage: u32,
    pub aux_kv_lengths: u32,
    pub aux_q_lengths: u32,

    pub aux_offsets: u32,
    pub aux_q_segments: u32,
    pub aux_kv_segments: u32,
    pub aux_slopes: u32,

    pub aux_sinks: u32,
    pub trips_depth: u32,
    pub trips_keys: u32,
    pub trips_rows: u32,

    pub key_first: u32,
    pub key_end: u32,
    pub top: u32,
    pub first_keys: u32,
}

/// The uniform of `copy_words`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct CopyParams {
    pub source: u32,
    pub destination: u32,
    pub count: u32,
    pub stride: u32,
}

/// Bits of `Params::rules`, the `RULE_` constants of the shader.
pub(crate) mod rules {
    pub const CAUSAL: u32 = 1;
    pub const LEFT: u32 = 2;
    pub const RIGHT: u32 = 4;
    pub const KV_LENGTHS: u32 = 8;
    pub const Q_LENGTHS: u32 = 16;
    pub const SEGMENTS: u32 = 32;
    pub const BIAS: u32 = 64;
    pub const MASK_BYTES: u32 = 128;
    pub const MASK_BITS: u32 = 256;
    pub const MASK_DROP: u32 = 512;
    pub const ALIBI: u32 = 1024;
    pub const SINKS: u32 = 2048;
    pub const SOFTCAP: u32 = 4096;
    pub const STATS: u32 = 8192;
    pub const STATS_PAIRS: u32 = 16384;
    pub const NORMS: u32 = 32768;
    pub const NORMS_BY_QUERY: u32 = 65536;
    pub const CONTINUED: u32 = 131_072;

    /// Those that are decided pair by pair.
    pub const PAIRS: u32 = SEGMENTS | BIAS | MASK_BYTES | MASK_BITS | MASK_DROP;

    /// Those that change a score.
    pub const SCORES: u32 = SOFTCAP | BIAS | ALIBI;

    /// What leaves each row an interval of keys; sinks; statistics.
    pub const INTERVALS: u32 =
        CAUSAL | LEFT | RIGHT | KV_LENGTHS | Q_LENGTHS | SINKS | STATS | STATS_PAIRS;
}

/// Values of `Params::alignment`, the `ALIGN_` constants of the shader.
pub(crate) mod align {
    pub const TOP_LEFT: u32 = 0;
    pub const BOTTOM_RIGHT: u32 = 1;
    pub const OFFSET: u32 = 2;
    pub const PER_SEQUENCE: u32 = 3;
}

/// Invocations of a workgroup of the kernels without tiles.
pub(crate) const LANES: u32 = 64;

/// Lanes, rows, keys and depth of a tile, as in `shaders/lib/tile.wgsl`.
pub(crate) mod tile {
    pub const LANES: u32 = 128;
    pub const ROWS: u32 = 64;
    pub const KEYS: u32 = 64;
    pub const DEPTH: u32 = 16;
    /// Columns of a run; a tile has 1, 2 or 4 of them.
    pub const RUN: u32 = 32;
    pub const COLUMN_RUNS: [u32; 3] = [1, 2, 4];
    pub const STAGED_COLUMN_RUNS: u32 = 2;
}

/// The tile of the lane-broadcast kernel, as in `shaders/forward_lanes.wgsl`.
pub(crate) mod lane_tile {
    /// Rows of a lane.
    pub const ROWS: u32 = 4;
    /// Keys of a lane.
    pub const GROUPS: u32 = 4;
    /// Value columns times lanes.
    pub const OUTPUT_SLOTS: u32 = 1024;
}
