//! Attention as WGSL compute kernels on wgpu.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod error;
mod host;
mod mask;
mod options;
pub mod reference;
mod stage;

pub use error::{Error, Result};
pub use host::{
    BoolMask, DType, Data, Dims, Inputs, MAX_SEQUENCE, MaskData, Outputs, Polarity, Tensor,
};
pub use mask::Visibility;
pub use options::{Alignment, Options, Window};
pub use stage::Stage;

/// The wgpu that this crate is built with.
pub use wgpu;
