//! What is said of a row.

use crate::error::{Error, Result};
use crate::rules::selection::{DISTANCE_BINS, FIELDS};

/// A row in a few numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct RowSummary {
    /// Sum of the weights over the keys: 1, less what a sink takes; 0 where no key
    /// is visible.
    pub mass: f32,
    /// Weight of the sink, exp(sink - lse).
    pub sink_mass: f32,
    /// Entropy, in nats, of the weights normalised over the keys; 0 where no key
    /// is visible.
    pub entropy: f32,
    /// Sum of the contributions; 0 without norms.
    pub contributions: f32,
    /// Sum of the weights of the first keys.
    pub first_mass: f32,
    /// Number of visible keys.
    pub visible: f32,
    /// Mean of the visible scores, scaled (stage 0). Without the scale it is the
    /// scale's part of this.
    pub score_mean: f32,
    /// Sum of the squares of the visible scores around their mean.
    pub score_squares: f32,
    /// Sum of the weights at distances |i + offset - j| of 0, 1, 2 to 3, 4 to 7 and
    /// so on; the last bin has all from 16,384 on.
    pub distance_mass: [f32; DISTANCE_BINS],
    /// The largest weights, largest first, the lower key first among equals; fewer
    /// than asked for where fewer keys are visible.
    pub top: Vec<TopKey>,
}

/// One of a row's largest weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopKey {
    /// The key.
    pub key: u32,
    /// Its weight.
    pub weight: f32,
    /// Its contribution; 0 without norms.
    pub contribution: f32,
}

impl RowSummary {
    /// Decodes the numbers of one row, as [`crate::Problem::summarize`] stores them: f32,
    /// but for keys, which are u32.
    ///
    /// # Errors
    /// [`Error::Shape`] if their number is not that of any [`Rows::width`](crate::Rows::width).
    pub fn decode(words: &[u32]) -> Result<RowSummary> {
        let fixed = FIELDS + DISTANCE_BINS;
        if words.len() < fixed || !(words.len() - fixed).is_multiple_of(3) {
            let expected = format!("[{fixed} + 3 * top]");
            return Err(Error::shape("row summary", expected, [words.len()]));
        }
        let number = |at: usize| f32::from_bits(words[at]);
        let top = words[fixed..].chunks_exact(3).filter(|t| t[0] != u32::MAX);
        Ok(RowSummary {
            mass: number(0),
            sink_mass: number(1),
            entropy: number(2),
            contributions: number(3),
            first_mass: number(4),
            visible: number(5),
            score_mean: number(6),
            score_squares: number(7),
            distance_mass: std::array::from_fn(|bin| number(FIELDS + bin)),
            top: top
                .map(|t| TopKey {
                    key: t[0],
                    weight: f32::from_bits(t[1]),
                    contribution: f32::from_bits(t[2]),
                })
                .collect(),
        })
    }

    /// Standard deviation of the visible scaled scores, 0 where there are none.
    pub fn score_deviation(&self) -> f32 {
        match self.visible > 0.0 {
            true => (self.score_squares / self.visible).sqrt(),
            false => 0.0,
        }
    }

    /// The largest weight; 0 where no key is visible.
    pub fn largest(&self) -> f32 {
        self.top.first().map_or(0.0, |top| top.weight)
    }
}
