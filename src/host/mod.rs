//! Attention's operands as slices in host memory: what the oracle, the CPU
//! path and the convenience layer take.

pub mod inputs;
pub mod layer;
pub mod row_summary;
pub mod tensor;
