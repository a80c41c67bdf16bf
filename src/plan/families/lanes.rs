//! One kernel for software adapters: keys and values are loaded once a subgroup and
//! spread by broadcasts.

use crate::error::Error;
use crate::kernel::shader::Shader;
use crate::kernel::specialization::Lanes;
use crate::kernel::uniform::{Params, lane_tile, tile};
use crate::plan::caps::DeviceCaps;
use crate::plan::dispatch::Pass;
use crate::plan::families::tiled;
use crate::plan::family::{FamilyRow, ScoreTiles};
use crate::plan::passes::Part;
use crate::plan::tiling::Tiling;

pub(crate) static ROW: FamilyRow = FamilyRow {
    name: "lane-broadcast",
    shaders: &[Shader::ForwardLanes],
    scores: ScoreTiles::Lanes,
    holds_scores: false,
    lacks,
    tiling,
    column_runs: |_| tile::STAGED_COLUMN_RUNS,
    dispatches,
    workgroups: tiled::workgroups,
    loops: |shape, _| shape.forward_lanes(),
};

/// Workgroup memory of the lane-broadcast kernel.
pub(crate) const LANE_MEMORY: u64 = 16 * lane_tile::OUTPUT_SLOTS as u64;

fn lacks(caps: &DeviceCaps) -> Option<Error> {
    caps.lanes().is_none().then(|| {
        Error::value(
            "device",
            "the feature SUBGROUP and subgroups of one size, 4 or at least 8 lanes",
            match caps.subgroup_size {
                Some(size) => format!("subgroups of {size} lanes"),
                None => "no subgroups of one size".to_owned(),
            },
        )
    })
}

fn tiling(_v_dim: usize, caps: &DeviceCaps) -> Tiling {
    let lanes = caps.lanes().unwrap_or(Lanes::Eight).count();
    Tiling {
        rows: lane_tile::ROWS * lanes,
        keys: lane_tile::GROUPS * lanes,
        columns: lane_tile::OUTPUT_SLOTS / lanes,
        lanes,
        memory: LANE_MEMORY,
    }
}

fn dispatches(part: &Part<'_>) -> Vec<Pass> {
    let params = Params {
        trips_rows: lane_tile::ROWS,
        trips_keys: part.tiling.keys,
        ..part.params
    };
    vec![part.columns(Shader::ForwardLanes, params)]
}
