//! What several test files share: owned cases and their generator.
#![allow(dead_code, unused_imports)]

mod case;
mod generate;
mod single;

pub use case::{Elements, MaskBits, OwnedCase, OwnedMask};
pub use generate::{Feature, SIZES, Shape, cases, generate, random_case};
pub use single::{Fault, Order, Style, attention, stored};
