//! Attention's operands as slices in host memory: what the oracle, the CPU
//! path and the convenience layer take.

mod inputs;
mod tensor;

pub use inputs::{Dims, Inputs, MAX_SEQUENCE, Outputs};
pub(crate) use inputs::{check_alignment, check_counts, check_len, check_sinks, check_slopes};
pub use tensor::{BoolMask, DType, Data, MaskData, Polarity, Tensor};
