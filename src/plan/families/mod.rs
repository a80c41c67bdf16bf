//! The families of kernels, a file each.

pub mod lanes;
pub mod staged;
pub mod tiled;
pub mod tiled_subgroup;

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::kernel::shader::Shader;
use crate::kernel::specialization::{Lanes, Specialization};
use crate::plan::caps::DeviceCaps;
use crate::plan::family::{FamilyRow, ScoreTiles};
use crate::plan::kernel::Kernel;
use crate::plan::rule_bits::rule_set;
use crate::plan::task::{Scores, Task};
use crate::plan::tiling::{Tiling, loads};

impl Kernel {
    /// Every family.
    pub const ALL: &[Kernel] = &[
        Kernel::Tiled,
        Kernel::TiledSubgroup,
        Kernel::LaneBroadcast,
        Kernel::Staged,
    ];

    /// Its row.
    pub(crate) fn row(self) -> &'static FamilyRow {
        match self {
            Kernel::Tiled => &tiled::ROW,
            Kernel::TiledSubgroup => &tiled_subgroup::ROW,
            Kernel::LaneBroadcast => &lanes::ROW,
            Kernel::Staged => &staged::ROW,
        }
    }

    /// Its name, as the command line takes it.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The shader that computes a projection the way the family computes scores.
    pub(crate) fn projection(self) -> Shader {
        match self.row().scores {
            ScoreTiles::Lanes => Shader::ProjectLanes,
            ScoreTiles::Workgroup => Shader::ProjectTiled,
        }
    }

    /// The shader that shows pairs, from scores as the family computes them.
    pub(crate) fn inspection(self) -> Shader {
        match self.row().scores {
            ScoreTiles::Lanes => Shader::InspectLanes,
            ScoreTiles::Workgroup => Shader::InspectTiled,
        }
    }

    /// The shaders that its forward pass dispatches.
    pub(crate) fn shaders(self) -> &'static [Shader] {
        self.row().shaders
    }

    /// What a workgroup covers, by the width of the values.
    pub(crate) fn tiling(self, v_dim: usize, caps: &DeviceCaps) -> Tiling {
        (self.row().tiling)(v_dim, caps)
    }

    /// Whether scores of whole rows are held in the workspace.
    pub(crate) fn holds_scores(self, task: &Task) -> bool {
        match task.facts.scores {
            Scores::Workspace => true,
            Scores::OfFamily => self.row().holds_scores,
            Scores::Nowhere | Scores::Output => false,
        }
    }

    /// What its shaders are composed for, each forgetting what it does not need.
    pub(crate) fn specialization(self, task: &Task, caps: &DeviceCaps) -> Specialization {
        Specialization {
            kv_dtype: task.kv_dtype,
            query_dtype: task.query_dtype,
            shared: false,
            lanes: caps.lanes().unwrap_or(Lanes::Eight),
            loads: loads(task, caps),
            rules: rule_set(task),
            column_runs: (self.row().column_runs)(task.dims.v_dim),
            count_tiles: false,
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kernel {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Kernel::ALL.iter().find(|kernel| kernel.name() == name);
        found.copied().ok_or_else(|| {
            let names: Vec<_> = Kernel::ALL.iter().map(|kernel| kernel.name()).collect();
            Error::value("kernel", format!("one of {}", names.join(", ")), name)
        })
    }
}
