//! From a validated problem to dispatches: pure numbers, no device.

pub mod aux_layout;
pub mod call;
pub mod caps;
pub mod choose;
pub mod chunk;
pub mod device_class;
pub mod dispatch;
pub mod families;
pub mod family;
pub mod kernel;
pub mod lists;
pub mod loop_count;
pub mod loops;
pub mod operands;
pub mod operation;
pub mod passes;
#[allow(clippy::module_inception)]
pub mod plan;
pub mod problem;
pub mod requirements;
pub mod rule_bits;
pub mod spans;
pub mod split;
pub mod task;
pub mod tiling;
pub mod tuned;
pub mod visited;
