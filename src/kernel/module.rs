//! The WGSL files.

/// A WGSL file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Module {
    pub name: &'static str,
    pub text: &'static str,
}

/// A file of `shaders/`.
macro_rules! wgsl {
    ($file:literal) => {
        Module {
            name: $file,
            text: include_str!(concat!("../../shaders/", $file)),
        }
    };
}

pub const PARAMS: Module = wgsl!("lib/params.wgsl");
pub const DTYPE: Module = wgsl!("lib/dtype.wgsl");
pub const SEQUENCE: Module = wgsl!("lib/sequence.wgsl");
pub const VISIBILITY: Module = wgsl!("lib/visibility.wgsl");
pub const VISIBILITY_BITS: Module = wgsl!("lib/visibility_bits.wgsl");
pub const SCORE: Module = wgsl!("lib/score.wgsl");
pub const SOFTMAX: Module = wgsl!("lib/softmax.wgsl");
pub const STORE_STATS: Module = wgsl!("lib/store_stats.wgsl");
pub const GRID: Module = wgsl!("lib/grid.wgsl");
pub const UNIFORM_READ: Module = wgsl!("lib/uniform_read.wgsl");
pub const UNIFORM_SHARED: Module = wgsl!("lib/uniform_shared.wgsl");
pub const TILE: Module = wgsl!("lib/tile.wgsl");
pub const QUAD_F32: Module = wgsl!("lib/quad_f32.wgsl");
pub const QUAD_HALF: Module = wgsl!("lib/quad_half.wgsl");
pub const ROWS_NARROW: Module = wgsl!("lib/rows_narrow.wgsl");
pub const ROWS_WIDE: Module = wgsl!("lib/rows_wide.wgsl");
pub const VALUES_NARROW: Module = wgsl!("lib/values_narrow.wgsl");
pub const VALUES_WIDE: Module = wgsl!("lib/values_wide.wgsl");
pub const SCORES_TILE: Module = wgsl!("lib/scores_tile.wgsl");
pub const VALUES_TILE: Module = wgsl!("lib/values_tile.wgsl");
pub const STORE: Module = wgsl!("lib/store.wgsl");
pub const OUTPUT_TILE: Module = wgsl!("lib/output_tile.wgsl");
pub const FORWARD_TILE: Module = wgsl!("lib/forward_tile.wgsl");
pub const CELL: Module = wgsl!("lib/cell.wgsl");
pub const CELL_WIDE: Module = wgsl!("lib/cell_wide.wgsl");
pub const CHUNK_QUERY_F32: Module = wgsl!("lib/chunk_query_f32.wgsl");
pub const CHUNK_QUERY_HALVES: Module = wgsl!("lib/chunk_query_halves.wgsl");
pub const CHUNK_KEYS_F32: Module = wgsl!("lib/chunk_keys_f32.wgsl");
pub const CHUNK_KEYS_HALVES: Module = wgsl!("lib/chunk_keys_halves.wgsl");
pub const CHUNK_F32: Module = wgsl!("lib/chunk_f32.wgsl");
pub const CHUNK_WIDE_F32: Module = wgsl!("lib/chunk_wide_f32.wgsl");
pub const CHUNK_WIDE_HALVES: Module = wgsl!("lib/chunk_wide_halves.wgsl");
pub const CHUNK_HALVES: Module = wgsl!("lib/chunk_halves.wgsl");
pub const CHUNK_WORDS: Module = wgsl!("lib/chunk_words.wgsl");
pub const CHUNK_VALUES_F32: Module = wgsl!("lib/chunk_values_f32.wgsl");
pub const CHUNK_VALUES_HALVES: Module = wgsl!("lib/chunk_values_halves.wgsl");
pub const CHUNK_VALUES_WORDS: Module = wgsl!("lib/chunk_values_words.wgsl");
pub const STAGES: Module = wgsl!("lib/stages.wgsl");
pub const REDUCE: Module = wgsl!("lib/reduce.wgsl");
pub const WEIGHTS: Module = wgsl!("lib/weights.wgsl");
pub const PAIRS: Module = wgsl!("lib/pairs.wgsl");
pub const PROJECT: Module = wgsl!("lib/project.wgsl");

pub(crate) use wgsl;
