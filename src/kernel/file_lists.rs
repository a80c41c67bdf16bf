//! Which files texts have in common.

use crate::kernel::module::*;
use crate::kernel::specialization::{Loads, Specialization};
use crate::view::dtype::DType;

/// Numbers: the uniform, storage types.
pub(crate) const NUMBERS: &[Module] = &[PARAMS, DTYPE];

/// The same, and what a row may see by position and lengths.
pub(crate) const BASE: &[Module] = &[PARAMS, DTYPE, SEQUENCE];

/// A row: which pairs are visible, their scores, its softmax.
pub(crate) const ROW: &[Module] = &[VISIBILITY, SCORE, SOFTMAX];

/// A workgroup's tile.
pub(crate) fn tile(key: Specialization) -> &'static [Module] {
    match key.shared {
        false => &[UNIFORM_READ, GRID, TILE],
        true => &[UNIFORM_SHARED, GRID, TILE],
    }
}

/// Loads of queries and keys, and the scores of a tile.
pub(crate) fn rows(key: Specialization) -> &'static [Module] {
    match (key.loads, key.kv_dtype) {
        (Loads::Words, _) => &[ROWS_NARROW, SCORES_TILE],
        (_, DType::F32) => &[QUAD_F32, ROWS_WIDE, SCORES_TILE],
        (_, DType::F16 | DType::BF16) => &[QUAD_HALF, ROWS_WIDE, SCORES_TILE],
    }
}

/// Loads of values, their sum over a tile, and the output.
pub(crate) fn values(key: Specialization) -> &'static [Module] {
    match key.loads {
        Loads::Words => &[VALUES_NARROW, VALUES_TILE, STORE, OUTPUT_TILE],
        _ => &[VALUES_WIDE, VALUES_TILE, STORE, OUTPUT_TILE],
    }
}

/// What a lane-broadcast kernel loads chunks of queries and keys with.
pub(crate) fn chunks(key: Specialization) -> Vec<Module> {
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
pub(crate) fn value_chunks(key: Specialization) -> Module {
    match (key.loads, key.kv_dtype) {
        (Loads::Words, _) => CHUNK_VALUES_WORDS,
        (_, DType::F32) => CHUNK_VALUES_F32,
        (_, DType::F16 | DType::BF16) => CHUNK_VALUES_HALVES,
    }
}
