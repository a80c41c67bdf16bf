//! Every way of giving bad input: the error's variant and its whole text.

#[path = "../noop/mod.rs"]
mod noop;

mod bench;
mod calls;
mod devices;
mod operands;
mod sizes;
mod values;
