//! One kernel in tiles of workgroup memory: a micro-tile of scores and outputs a lane.

use crate::kernel::shader::Shader;
use crate::kernel::uniform::tile;
use crate::plan::caps::DeviceCaps;
use crate::plan::family::{FamilyRow, ScoreTiles};
use crate::plan::loop_count::{NONE, repeat};
use crate::plan::tiling::{Tiles, Tiling};

pub(crate) static ROW: FamilyRow = FamilyRow {
    name: "tiled",
    shaders: &[Shader::ForwardTiled],
    scores: ScoreTiles::Workgroup,
    holds_scores: false,
    lacks: |_| None,
    tiling,
    column_runs,
    dispatches: |part| vec![part.columns(Shader::ForwardTiled, part.params)],
    workgroups,
    loops: |shape, _| shape.forward_tile(repeat(8, NONE), repeat(8, NONE)),
};

/// Workgroup memory of the largest tiled kernel.
pub(crate) const TILE_MEMORY: u64 = 14_720;

pub(crate) fn tiling(v_dim: usize, _caps: &DeviceCaps) -> Tiling {
    Tiling {
        columns: tile::RUN * column_runs(v_dim),
        ..WORKGROUP
    }
}

/// A workgroup of the tiled and the staged kernels, but for its value columns.
pub(crate) const WORKGROUP: Tiling = Tiling {
    rows: tile::ROWS,
    keys: tile::KEYS,
    columns: 0,
    lanes: tile::LANES,
    memory: TILE_MEMORY,
};

/// The fewest runs that hold all columns, or the most that there are.
pub(crate) fn column_runs(v_dim: usize) -> u32 {
    let [_, _, most] = tile::COLUMN_RUNS;
    let holds = |runs: &u32| (runs * tile::RUN) as usize >= v_dim;
    tile::COLUMN_RUNS.into_iter().find(holds).unwrap_or(most)
}

/// A tile of rows and of value columns each.
pub(crate) fn workgroups(tiles: &Tiles) -> u64 {
    tiles.row_tiles.saturating_mul(tiles.column_tiles)
}
