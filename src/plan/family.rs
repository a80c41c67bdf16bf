//! What is known of a family of kernels.

use crate::error::Error;
use crate::kernel::shader::Shader;
use crate::plan::caps::DeviceCaps;
use crate::plan::dispatch::Pass;
use crate::plan::loop_count::{Loops, Shape};
use crate::plan::passes::Part;
use crate::plan::tiling::{Tiles, Tiling};

/// A row for each family, in a file of its own below `families`.
pub(crate) struct FamilyRow {
    /// Its name, as the command line takes it.
    pub name: &'static str,
    /// The shaders that its forward pass dispatches at most, in order.
    pub shaders: &'static [Shader],
    /// How it computes scores: what a projection and an inspection do alike.
    pub scores: ScoreTiles,
    /// Whether its forward pass holds scores of whole rows in the workspace.
    pub holds_scores: bool,
    /// What the device lacks for it, limits aside.
    pub lacks: fn(&DeviceCaps) -> Option<Error>,
    /// What a workgroup covers, by the width of the values.
    pub tiling: fn(usize, &DeviceCaps) -> Tiling,
    /// Runs of 32 value columns of a workgroup, by the width of the values.
    pub column_runs: fn(usize) -> u32,
    /// The dispatches of its forward pass.
    pub dispatches: fn(&Part<'_>) -> Vec<Pass>,
    /// Workgroups of the largest of them, of one head.
    pub workgroups: fn(&Tiles) -> u64,
    /// A bound of the loops of one invocation of one of its shaders.
    pub loops: fn(&Shape<'_>, Shader) -> Loops,
}

/// How scores are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScoreTiles {
    /// Tiles in workgroup memory.
    Workgroup,
    /// Broadcasts within a subgroup.
    Lanes,
}
