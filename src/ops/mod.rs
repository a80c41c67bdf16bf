//! The operations, each with its own operands.

pub mod checks;
pub mod forward;
pub mod inspect;
pub mod layer;
pub mod norms;
pub mod project;
