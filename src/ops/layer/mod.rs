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

pub mod operands;
pub mod plan;
pub mod prepared;
pub mod sizes;
pub mod steps;
