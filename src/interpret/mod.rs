//! What weights say, for weights that the caller holds: scores of heads, what each key
//! adds to an output, attention over layers. On the CPU, summed in f64.
//!
//! Weights are a list of f32 by query row and key, (rows, keys), of one head of one
//! batch entry: what [`crate::Attention::stage_async`] gives for
//! [`crate::Stage::Probabilities`], one head at a time.
//!
//! ```
//! use wgpu_attention::interpret::{Row, Weights};
//!
//! # fn main() -> Result<(), wgpu_attention::Error> {
//! // Three causal rows: each looks at the key before its own.
//! let weights = [1.0, 0.0, 0.0, /**/ 0.9, 0.1, 0.0, /**/ 0.0, 0.7, 0.3];
//! let weights = Weights::new(&weights, [3, 3])?;
//! let previous = weights.mean(Row::previous_token);
//! assert!((previous.value - 0.8).abs() < 1e-6); // row 0 has no key before it
//! assert_eq!(previous.rows, 2);
//! # Ok(())
//! # }
//! ```
//!
//! | | of a row | of a head | of layers |
//! | --- | --- | --- | --- |
//! | how wide it looks | [`Row::entropy`], [`Row::largest`] | [`Weights::mean`], [`Weights::saturated`] | |
//! | where it looks | [`Row::previous_token`], [`Row::first_keys`], [`Row::distance`] | [`Weights::by_distance`], [`Weights::received`] | [`rollout`] |
//! | whether it continues what was seen | [`Row::induction`] | [`Weights::induction`], [`Weights::induction_of_period`] | |
//! | what it takes from there | [`Row::top`], [`Contributions`] | | |
//! | scores before the softmax, any numbers | | [`ScoreStatistics`], [`Histogram`] | |
//!
//! # Rows that have no numbers
//!
//! A row counts if all its weights are finite and at least 0, and their sum is over 0.
//! Two kinds of rows don't: those that see no key, and those that a NaN or an infinity of
//! an input has reached. Their scores are `None` and they enter no mean; [`Mean::rows`]
//! says how many rows did. Where a NaN can't be kept apart ([`rollout`]) it is an error.
//!
//! With a sink the weights of a row sum to less than 1. Scores that ask how weights are
//! spread (entropy, distance) divide by the sum first; those that ask how much there is
//! on some key don't.

mod contributions;
mod rollout;
mod row;
mod statistics;
mod weights;

pub use contributions::Contributions;
pub use rollout::rollout;
pub use row::{RankBy, Ranked, Row, shares};
pub use statistics::{Histogram, ScoreStatistics};
pub use weights::{Mean, SATURATED, Weights, mean_over_heads};
