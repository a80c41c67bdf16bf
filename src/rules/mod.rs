//! What attention means: sizes, options, which pairs are visible, which of them are
//! looked at.

pub mod dims;
pub mod layer_dims;
pub mod options;
pub mod positional;
pub mod region;
pub mod score_stage;
pub mod selection;
