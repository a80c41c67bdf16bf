//! Attention as WGSL compute kernels on wgpu.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod attention;
mod aux;
#[cfg(all(feature = "blocking", not(target_family = "wasm")))]
mod blocking;
mod caps;
pub mod cpu;
mod device;
mod encode;
mod error;
mod faults;
mod host;
mod kernel;
mod lists;
mod mask;
mod operands;
mod options;
mod params;
mod passes;
mod pipeline;
mod plan;
mod problem;
mod readback;
pub mod reference;
mod shader;
mod spans;
mod split;
mod stage;
mod tensor;
#[doc(hidden)]
pub mod testing;
mod timing;
mod upload;

pub use attention::{Attention, Prepared};
pub use caps::DeviceCaps;
pub use device::AdapterOptions;
pub use encode::Workspace;
pub use error::{Error, Result};
pub use host::{
    BoolMask, DType, Data, Dims, Inputs, MAX_SEQUENCE, MaskData, Outputs, Polarity, Tensor,
};
pub use kernel::Kernel;
pub use mask::Visibility;
pub use operands::Operands;
pub use options::{Alignment, Options, Window};
pub use plan::{Plan, PlanOptions};
pub use problem::{Problem, Region};
pub use stage::Stage;
pub use tensor::{List, MaskView, Stats, StatsView, TensorView};
pub use upload::Uploaded;

/// The shaders as text, for validation and inspection.
#[doc(hidden)]
pub mod shaders {
    pub use crate::kernel::{Access, Shader, Slot, Specialization, all_pipelines};
    pub use crate::shader::{Composed, compose};
}

/// The wgpu that this crate is built with.
pub use wgpu;
