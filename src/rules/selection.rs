//! Which pairs or rows an inspection is about, and which of their quantities.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::rules::dims::Dims;
use crate::rules::region::Region;
use crate::rules::score_stage::Stage;

/// `params.stage` where weights are multiplied with norms.
pub(crate) const STAGE_CONTRIBUTIONS: u32 = 5;

/// What is shown of a pair of query i and key j.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Quantity {
    /// A stage. Probabilities, W(i, j) = exp(s(i, j) - lse(i)), are taken from the
    /// statistics of the row, so that no other key need be looked at.
    Stage(Stage),
    /// The size of what key j adds to output i: W(i, j) * |V_j|, or
    /// W(i, j) * |V_j W_O^(h)|, by the norms given (Kobayashi et al. 2020, "Attention
    /// is Not Only a Weight"); exactly 0 at excluded pairs.
    Contribution,
}

impl Quantity {
    pub(crate) fn code(self) -> u32 {
        match self {
            Quantity::Stage(stage) => stage as u32,
            Quantity::Contribution => STAGE_CONTRIBUTIONS,
        }
    }

    pub(crate) fn needs_stats(self) -> bool {
        matches!(
            self,
            Quantity::Stage(Stage::Probabilities) | Quantity::Contribution
        )
    }
}

/// Which pairs are shown: a region, and a range of its keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pairs {
    /// What is shown of them.
    pub quantity: Quantity,
    /// Batch entries, query heads and rows.
    pub region: Region,
    /// Keys.
    pub keys: Range<usize>,
}

impl Pairs {
    /// Checks that the selection lies within the problem.
    pub(crate) fn check(&self, dims: &Dims) -> Result<()> {
        self.region.check(dims)?;
        let Range { start, end } = self.keys;
        match start <= end && end <= dims.kv_len {
            true => Ok(()),
            false => {
                let expected = format!("a range within 0..{}", dims.kv_len);
                let actual = format!("{:?}", self.keys);
                Err(Error::value("region keys", expected, actual))
            }
        }
    }
}

/// Numbers of a row's summary before the bins.
pub(crate) const FIELDS: usize = 8;

/// Bins of distance of a row's summary.
pub(crate) const DISTANCE_BINS: usize = 16;

/// Most of a row's largest weights that a summary holds.
pub const MAX_TOP: usize = 16;

/// Which rows are summarised, and how.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Batch entries, query heads and rows.
    pub region: Region,
    /// How many of a row's largest weights: 1 to [`MAX_TOP`].
    pub top: usize,
    /// How many of the first keys count as such.
    pub first_keys: usize,
}

impl Rows {
    /// Numbers that a row's summary takes.
    pub fn width(&self) -> usize {
        self.top
            .saturating_mul(3)
            .saturating_add(FIELDS + DISTANCE_BINS)
    }

    /// Checks that the selection lies within the problem.
    pub(crate) fn check(&self, dims: &Dims) -> Result<()> {
        self.region.check(dims)?;
        if !(1..=MAX_TOP).contains(&self.top) {
            let expected = format!("1 to {MAX_TOP} of the largest weights");
            return Err(Error::value("top", expected, self.top));
        }
        if self.first_keys > dims.kv_len {
            let expected = format!("at most {}", dims.kv_len);
            return Err(Error::value("first_keys", expected, self.first_keys));
        }
        Ok(())
    }
}
