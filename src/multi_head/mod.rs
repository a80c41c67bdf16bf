//! The multi-head layer: Y = Concat(head_1 .. head_h) W_O + b_O, where head_i is
//! attention over the projections X W_Q, C W_K and C W_V of its own columns
//! (Vaswani et al. 2017, section 3.2.2). C is X itself, or another sequence.
//!
//! ```text
//! operands -> Sizes -> MultiHeadPlan (a plan a step, one workspace) -> PreparedMultiHead
//! ```
//!
//! Nothing is moved between the steps: heads are strided views of what the
//! projections wrote, and concatenation is where attention writes.

mod operands;
mod plan;
mod prepared;
mod sizes;
mod steps;
mod upload;

pub use operands::{InProjections, Linear, MultiHeadOperands};
pub use plan::MultiHeadPlan;
pub use prepared::PreparedMultiHead;
pub use sizes::MultiHeadDims;
pub use upload::{HostLinear, MultiHeadInputs, UploadedMultiHead};
