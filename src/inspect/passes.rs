//! The dispatches of an inspection.

use crate::aux_layout::AuxLayout;
use crate::caps::DeviceCaps;
use crate::host::DType;
use crate::kernel::{Kernel, Shader, Slot, dtype_code};
use crate::params::{LANES, Params, lane_tile, rules};
use crate::passes::{bound, dispatch, params};
use crate::plan::{Bind, Pass};
use crate::problem::{Goal, Problem};
use crate::split::{Chunk, slabs};
use crate::tiling::Tiling;

/// The dispatches of one chunk of pairs, rows or norms.
pub(crate) fn inspection(
    problem: &Problem,
    kernel: Kernel,
    chunk: &Chunk,
    aux: &AuxLayout,
    caps: &DeviceCaps,
) -> Vec<Pass> {
    let found = slabs(problem, kernel, chunk, caps);
    let all = params(problem, chunk, aux, &found);
    let heads = (chunk.batches.len() * chunk.heads.len()) as u32;
    let rows = chunk.rows.len() as u32;
    let pass = |shader: Shader, tiles: [u32; 2], params: Params| {
        let workgroups = heads * tiles[0] * tiles[1];
        let params = Params {
            row_tiles: tiles[0],
            column_tiles: tiles[1],
            workgroups,
            ..params
        };
        dispatch(problem, shader, params, &found, aux, caps)
    };
    let tiling = Tiling::of(kernel, problem.dims.v_dim, caps);
    let row_tiles = rows.div_ceil(tiling.rows);
    let key_tiles = |keys: usize| (keys as u32).div_ceil(tiling.keys);
    let of_family = match kernel {
        Kernel::LaneBroadcast => Params {
            trips_rows: lane_tile::ROWS,
            // Runs of 4 keys.
            trips_keys: tiling.keys / 4,
            ..all
        },
        Kernel::Tiled | Kernel::TiledSubgroup | Kernel::Staged => all,
    };
    match &problem.goal {
        Goal::Pairs(pairs) => {
            let params = Params {
                key_first: pairs.keys.start as u32,
                key_end: pairs.keys.end as u32,
                ..of_family
            };
            let tiles = [row_tiles, key_tiles(pairs.keys.len())];
            vec![pass(kernel.inspection(), tiles, params)]
        }
        Goal::Rows(wanted) => {
            // Raw scores go to the workspace, and weights take their place.
            let raw = Params {
                output: all.scores,
                output_dtype: dtype_code(DType::F32),
                ..of_family
            };
            let tiles = [row_tiles, key_tiles(problem.dims.kv_len)];
            let mut scores = pass(kernel.inspection(), tiles, raw);
            for bind in scores.binds.iter_mut().filter(|b| b.slot == Slot::Output) {
                *bind = Bind {
                    slot: Slot::Scores,
                    range: bound(problem, Slot::Scores, &found, aux),
                };
            }
            let summary = Params {
                top: wanted.top as u32,
                first_keys: wanted.first_keys as u32,
                ..all
            };
            let keys = problem.received.as_ref().map(|_| {
                let continued = chunk.rows.start > wanted.region.rows.start;
                let mut params = all;
                params.rules |= if continued { rules::CONTINUED } else { 0 };
                let columns = (problem.dims.kv_len as u32).div_ceil(LANES);
                pass(Shader::InspectKeys, [1, columns], params)
            });
            let summaries = pass(Shader::InspectRows, [rows, 1], summary);
            match (rows, problem.dims.kv_len) {
                // No row gives a mass, and every key has to hear of it.
                (0, _) => keys.into_iter().collect(),
                // No scores, and no key that receives a mass.
                (_, 0) => vec![summaries],
                _ => [scores, summaries].into_iter().chain(keys).collect(),
            }
        }
        Goal::Norms => vec![pass(Shader::RowNorms, [rows.div_ceil(LANES), 1], all)],
        Goal::Forward | Goal::Stage(..) | Goal::Projection => Vec::new(),
    }
}
