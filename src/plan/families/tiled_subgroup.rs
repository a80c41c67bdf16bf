//! The tiled kernel with reductions in subgroups.

use crate::error::Error;
use crate::kernel::shader::Shader;
use crate::plan::caps::DeviceCaps;
use crate::plan::families::tiled;
use crate::plan::family::{FamilyRow, ScoreTiles};
use crate::plan::loop_count::{NONE, repeat};

pub(crate) static ROW: FamilyRow = FamilyRow {
    name: "tiled-subgroup",
    shaders: &[Shader::ForwardTiledSubgroup],
    scores: ScoreTiles::Workgroup,
    holds_scores: false,
    lacks,
    tiling: tiled::tiling,
    column_runs: tiled::column_runs,
    dispatches: |part| vec![part.columns(Shader::ForwardTiledSubgroup, part.params)],
    workgroups: tiled::workgroups,
    // The trips where quads of lanes are not whole.
    loops: |shape, _| shape.forward_tile(repeat(7, NONE), repeat(8, NONE)),
};

fn lacks(caps: &DeviceCaps) -> Option<Error> {
    let quads = caps.min_subgroup_size.is_some_and(|lanes| lanes >= 4);
    (!quads).then(|| {
        Error::value(
            "device",
            "the feature SUBGROUP and subgroups of at least 4 lanes",
            match caps.min_subgroup_size {
                Some(size) => format!("subgroups of {size} lanes"),
                None => "no subgroups".to_owned(),
            },
        )
    })
}
