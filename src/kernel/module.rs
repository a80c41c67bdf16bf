//! Which WGSL files a shader is made of.

use crate::kernel::shader::Shader;
use crate::kernel::specialization::{Loads, Specialization};
use crate::view::dtype::DType;

/// A WGSL file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Module {
    pub name: &'static str,
    pub text: &'static str,
}

macro_rules! file {
    ($file:literal) => {
        Module {
            name: $file,
            text: include_str!(concat!("../../shaders/", $file)),
        }
    };
}

const PARAMS: Module = file!("lib/params.wgsl");
const DTYPE: Module = file!("lib/dtype.wgsl");
const SEQUENCE: Module = file!("lib/sequence.wgsl");
const VISIBILITY: Module = file!("lib/visibility.wgsl");
const VISIBILITY_BITS: Module = file!("lib/visibility_bits.wgsl");
const SCORE: Module = file!("lib/score.wgsl");
const SOFTMAX: Module = file!("lib/softmax.wgsl");
const STORE_STATS: Module = file!("lib/store_stats.wgsl");
const GRID: Module = file!("lib/grid.wgsl");
const UNIFORM_READ: Module = file!("lib/uniform_read.wgsl");
const UNIFORM_SHARED: Module = file!("lib/uniform_shared.wgsl");
const TILE: Module = file!("lib/tile.wgsl");
const QUAD_F32: Module = file!("lib/quad_f32.wgsl");
const QUAD_HALF: Module = file!("lib/quad_half.wgsl");
const ROWS_NARROW: Module = file!("lib/rows_narrow.wgsl");
const ROWS_WIDE: Module = file!("lib/rows_wide.wgsl");
const VALUES_NARROW: Module = file!("lib/values_narrow.wgsl");
const VALUES_WIDE: Module = file!("lib/values_wide.wgsl");
const SCORES_TILE: Module = file!("lib/scores_tile.wgsl");
const VALUES_TILE: Module = file!("lib/values_tile.wgsl");
const STORE: Module = file!("lib/store.wgsl");
const OUTPUT_TILE: Module = file!("lib/output_tile.wgsl");
const FORWARD_TILE: Module = file!("lib/forward_tile.wgsl");
const CELL: Module = file!("lib/cell.wgsl");
const CELL_WIDE: Module = file!("lib/cell_wide.wgsl");
const CHUNK_QUERY_F32: Module = file!("lib/chunk_query_f32.wgsl");
const CHUNK_QUERY_HALVES: Module = file!("lib/chunk_query_halves.wgsl");
const CHUNK_KEYS_F32: Module = file!("lib/chunk_keys_f32.wgsl");
const CHUNK_KEYS_HALVES: Module = file!("lib/chunk_keys_halves.wgsl");
const CHUNK_F32: Module = file!("lib/chunk_f32.wgsl");
const CHUNK_WIDE_F32: Module = file!("lib/chunk_wide_f32.wgsl");
const CHUNK_WIDE_HALVES: Module = file!("lib/chunk_wide_halves.wgsl");
const CHUNK_HALVES: Module = file!("lib/chunk_halves.wgsl");
const CHUNK_WORDS: Module = file!("lib/chunk_words.wgsl");
const CHUNK_VALUES_F32: Module = file!("lib/chunk_values_f32.wgsl");
const CHUNK_VALUES_HALVES: Module = file!("lib/chunk_values_halves.wgsl");
const CHUNK_VALUES_WORDS: Module = file!("lib/chunk_values_words.wgsl");
const STAGES: Module = file!("lib/stages.wgsl");
const REDUCE: Module = file!("lib/reduce.wgsl");
const WEIGHTS: Module = file!("lib/weights.wgsl");
const PAIRS: Module = file!("lib/pairs.wgsl");
const PROJECT: Module = file!("lib/project.wgsl");

impl Shader {
    /// Modules before the root, in order of dependence.
    pub(crate) fn modules(self, key: Specialization) -> Vec<Module> {
        let is_f32 = key.kv_dtype == DType::F32;
        let numbers: &[Module] = &[PARAMS, DTYPE];
        let base: &[Module] = &[PARAMS, DTYPE, SEQUENCE];
        let row: &[Module] = &[VISIBILITY, SCORE, SOFTMAX];
        let tile: &[Module] = match key.shared {
            false => &[UNIFORM_READ, GRID, TILE],
            true => &[UNIFORM_SHARED, GRID, TILE],
        };
        let rows: &[Module] = match (key.loads, is_f32) {
            (Loads::Words, _) => &[ROWS_NARROW, SCORES_TILE],
            (_, true) => &[QUAD_F32, ROWS_WIDE, SCORES_TILE],
            (_, false) => &[QUAD_HALF, ROWS_WIDE, SCORES_TILE],
        };
        let values: &[Module] = match key.loads {
            Loads::Words => &[VALUES_NARROW, VALUES_TILE, STORE, OUTPUT_TILE],
            _ => &[VALUES_WIDE, VALUES_TILE, STORE, OUTPUT_TILE],
        };
        match self {
            Shader::ForwardTiled | Shader::ForwardTiledSubgroup => [
                base,
                row,
                &[STORE_STATS],
                tile,
                rows,
                values,
                &[FORWARD_TILE],
            ]
            .concat(),
            Shader::ForwardLanes => {
                let (chunks, values) = (chunk_modules(key), [value_chunks(key)]);
                let own = [VISIBILITY_BITS, STORE_STATS, GRID, STORE];
                [base, row, &own, &chunks, &values].concat()
            }
            Shader::StagedScores => [base, tile, rows].concat(),
            Shader::StagedSoftmax => [base, row, &[STORE_STATS, STAGES, REDUCE]].concat(),
            Shader::StagedValues => [base, tile, values].concat(),
            Shader::ProjectTiled => [numbers, &[GRID, TILE], rows, &[STORE, PROJECT]].concat(),
            Shader::ProjectLanes => {
                [numbers, &[GRID, STORE, PROJECT], &chunk_modules(key)].concat()
            }
            Shader::InspectTiled => {
                [base, row, tile, rows, &[STORE, STAGES, WEIGHTS, PAIRS]].concat()
            }
            Shader::InspectLanes => {
                let pairs = [GRID, STORE, STAGES, WEIGHTS, PAIRS];
                [base, row, &pairs, &chunk_modules(key)].concat()
            }
            Shader::InspectRows => [base, row, &[GRID, REDUCE, WEIGHTS]].concat(),
            Shader::InspectKeys => [numbers, &[GRID]].concat(),
            Shader::RowNorms => [numbers, &[GRID, STORE]].concat(),
            Shader::CopyWords => Vec::new(),
        }
    }

    /// The file with its entry point.
    pub(crate) fn root(self) -> Module {
        match self {
            Shader::ForwardTiled => file!("forward_tiled.wgsl"),
            Shader::ForwardTiledSubgroup => file!("forward_tiled_subgroup.wgsl"),
            Shader::ForwardLanes => file!("forward_lanes.wgsl"),
            Shader::StagedScores => file!("staged_scores.wgsl"),
            Shader::StagedSoftmax => file!("staged_softmax.wgsl"),
            Shader::StagedValues => file!("staged_values.wgsl"),
            Shader::ProjectTiled => file!("project_tiled.wgsl"),
            Shader::ProjectLanes => file!("project_lanes.wgsl"),
            Shader::InspectTiled => file!("inspect_tiled.wgsl"),
            Shader::InspectLanes => file!("inspect_lanes.wgsl"),
            Shader::InspectRows => file!("inspect_rows.wgsl"),
            Shader::InspectKeys => file!("inspect_keys.wgsl"),
            Shader::RowNorms => file!("row_norms.wgsl"),
            Shader::CopyWords => file!("copy_words.wgsl"),
        }
    }
}

/// What a lane-broadcast kernel loads chunks of queries and keys with.
fn chunk_modules(key: Specialization) -> Vec<Module> {
    let is_wide = key.loads == Loads::WideChunks;
    let pick = |first: bool, yes: Module, no: Module| if first { yes } else { no };
    let mut modules = vec![pick(is_wide, CELL_WIDE, CELL)];
    if key.loads == Loads::Words {
        modules.push(CHUNK_WORDS);
        return modules;
    }
    let [query, keys] = [key.query_dtype, key.kv_dtype].map(|dtype| dtype == DType::F32);
    if query || keys {
        modules.push(pick(is_wide, CHUNK_WIDE_F32, CHUNK_F32));
    }
    if !query || !keys {
        modules.push(QUAD_HALF);
        modules.push(pick(is_wide, CHUNK_WIDE_HALVES, CHUNK_HALVES));
    }
    modules.push(pick(query, CHUNK_QUERY_F32, CHUNK_QUERY_HALVES));
    modules.push(pick(keys, CHUNK_KEYS_F32, CHUNK_KEYS_HALVES));
    modules
}

/// What it loads chunks of values with, after those.
fn value_chunks(key: Specialization) -> Module {
    match (key.loads, key.kv_dtype) {
        (Loads::Words, _) => CHUNK_VALUES_WORDS,
        (_, DType::F32) => CHUNK_VALUES_F32,
        (_, DType::F16 | DType::BF16) => CHUNK_VALUES_HALVES,
    }
}
