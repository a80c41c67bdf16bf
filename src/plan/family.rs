//! Families of kernels.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::kernel::shader::Shader;

/// A family of kernels that computes the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// One kernel, memory linear in the sequence length: tiles in workgroup
    /// memory, a micro-tile of scores and outputs a lane.
    Tiled,
    /// The same with reductions in subgroups, of any size from 4 up.
    TiledSubgroup,
    /// One kernel, memory linear in the sequence length, for software adapters:
    /// keys and values are loaded once a subgroup and spread by broadcasts.
    /// Needs subgroups of one size: 4, or 8 and more (of which 8 lanes are used).
    LaneBroadcast,
    /// Three kernels over materialised scores: what the fused one is checked
    /// against, and what gives the stages of [`crate::Stage`].
    Staged,
}

impl Kernel {
    /// Every family.
    pub const ALL: &[Kernel] = &[
        Kernel::Tiled,
        Kernel::TiledSubgroup,
        Kernel::LaneBroadcast,
        Kernel::Staged,
    ];

    /// Its name, as the command line takes it.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Tiled => "tiled",
            Kernel::TiledSubgroup => "tiled-subgroup",
            Kernel::LaneBroadcast => "lane-broadcast",
            Kernel::Staged => "staged",
        }
    }

    /// The shader that computes a projection the way the family computes scores.
    pub(crate) fn projection(self) -> Shader {
        match self {
            Kernel::LaneBroadcast => Shader::ProjectLanes,
            Kernel::Tiled | Kernel::TiledSubgroup | Kernel::Staged => Shader::ProjectTiled,
        }
    }

    /// The shader that shows pairs, from scores as the family computes them.
    pub(crate) fn inspection(self) -> Shader {
        match self {
            Kernel::LaneBroadcast => Shader::InspectLanes,
            Kernel::Tiled | Kernel::TiledSubgroup | Kernel::Staged => Shader::InspectTiled,
        }
    }

    /// The shaders that its forward pass dispatches.
    pub(crate) fn shaders(self) -> &'static [Shader] {
        match self {
            Kernel::Tiled => &[Shader::ForwardTiled],
            Kernel::TiledSubgroup => &[Shader::ForwardTiledSubgroup],
            Kernel::LaneBroadcast => &[Shader::ForwardLanes],
            Kernel::Staged => &[
                Shader::StagedScores,
                Shader::StagedSoftmax,
                Shader::StagedValues,
            ],
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
