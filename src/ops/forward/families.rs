//! The dispatches of each family of kernels.

use crate::kernel::shader::Shader;
use crate::kernel::uniform::{Params, lane_tile};
use crate::plan::dispatch::Pass;
use crate::plan::family::Kernel;
use crate::plan::passes::Part;
use crate::plan::tiling::Tiles;

/// The forward pass of a chunk.
pub(crate) fn dispatches(part: &Part<'_>) -> Vec<Pass> {
    match part.kernel {
        Kernel::Tiled => vec![columns(part, Shader::ForwardTiled, part.params)],
        Kernel::TiledSubgroup => vec![columns(part, Shader::ForwardTiledSubgroup, part.params)],
        Kernel::LaneBroadcast => {
            let params = Params {
                trips_rows: lane_tile::ROWS,
                trips_keys: part.tiling.keys,
                ..part.params
            };
            vec![columns(part, Shader::ForwardLanes, params)]
        }
        Kernel::Staged => {
            let mut passes = Vec::new();
            if part.task.dims.kv_len > 0 {
                passes.push(part.scores(Shader::StagedScores));
            }
            passes.push(part.rows(Shader::StagedSoftmax));
            passes.push(columns(part, Shader::StagedValues, part.params));
            passes
        }
    }
}

/// A workgroup for each tile of rows and of value columns.
fn columns(part: &Part<'_>, shader: Shader, params: Params) -> Pass {
    let columns = (part.task.dims.v_dim as u32).div_ceil(part.tiling.columns);
    part.tiles(shader, [part.row_tiles(), columns], params)
}

/// Workgroups of the largest dispatch, of one head.
pub(crate) fn workgroups(tiles: &Tiles, kernel: Kernel) -> u64 {
    let Tiles {
        rows,
        row_tiles,
        key_tiles,
        column_tiles,
    } = *tiles;
    match kernel {
        Kernel::Tiled | Kernel::TiledSubgroup | Kernel::LaneBroadcast => {
            row_tiles.saturating_mul(column_tiles)
        }
        Kernel::Staged => rows.max(row_tiles.saturating_mul(column_tiles.max(key_tiles))),
    }
}
