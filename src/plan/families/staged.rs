//! Three kernels over materialised scores: what the others are checked against, and what
//! gives the stages.

use crate::kernel::shader::Shader;
use crate::kernel::uniform::tile;
use crate::plan::caps::DeviceCaps;
use crate::plan::dispatch::Pass;
use crate::plan::families::tiled::WORKGROUP;
use crate::plan::family::{FamilyRow, ScoreTiles};
use crate::plan::loop_count::{Loops, NONE, Shape, reduce, repeat};
use crate::plan::passes::Part;
use crate::plan::tiling::{Tiles, Tiling};

pub(crate) static ROW: FamilyRow = FamilyRow {
    name: "staged",
    shaders: &[
        Shader::StagedScores,
        Shader::StagedSoftmax,
        Shader::StagedValues,
    ],
    scores: ScoreTiles::Workgroup,
    holds_scores: true,
    lacks: |_| None,
    tiling,
    column_runs: |_| tile::STAGED_COLUMN_RUNS,
    dispatches,
    workgroups,
    loops,
};

fn tiling(_v_dim: usize, _caps: &DeviceCaps) -> Tiling {
    Tiling {
        columns: tile::RUN * tile::STAGED_COLUMN_RUNS,
        ..WORKGROUP
    }
}

fn dispatches(part: &Part<'_>) -> Vec<Pass> {
    let mut passes = Vec::new();
    if part.task.dims.kv_len > 0 {
        passes.push(part.scores(Shader::StagedScores));
    }
    passes.push(part.rows(Shader::StagedSoftmax));
    passes.push(part.columns(Shader::StagedValues, part.params));
    passes
}

/// A row, or a tile of rows and of value columns or keys each.
pub(crate) fn workgroups(tiles: &Tiles) -> u64 {
    let columns = tiles.column_tiles.max(tiles.key_tiles);
    tiles.rows.max(tiles.row_tiles.saturating_mul(columns))
}

fn loops(shape: &Shape<'_>, shader: Shader) -> Loops {
    match shader {
        Shader::StagedScores => shape.scores_tile() + repeat(8, repeat(4, NONE)),
        Shader::StagedSoftmax => {
            let keys = repeat(shape.steps(), NONE);
            keys + reduce() + keys + reduce() + keys
        }
        _ => shape.staged_values(),
    }
}
