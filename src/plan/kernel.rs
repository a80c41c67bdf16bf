//! The names of the families of kernels.

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
