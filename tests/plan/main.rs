//! Plans are pure functions of numbers: printed, swept and held to the limits
//! without a GPU. tests/recording.rs records them.

#[path = "../noop/mod.rs"]
mod noop;

mod check;
mod classes;
mod elsewhere;
mod limits;
mod rules;
mod snapshots;
mod splits;
