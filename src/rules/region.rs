//! A box of the score matrix.

use std::fmt;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::rules::dims::Dims;

/// A box of the score matrix: batch entries, query heads and query rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Region {
    /// Batch entries.
    pub batches: Range<usize>,
    /// Query heads.
    pub heads: Range<usize>,
    /// Query rows.
    pub rows: Range<usize>,
}

impl Region {
    /// Sizes of the three axes.
    pub fn lens(&self) -> [usize; 3] {
        [self.batches.len(), self.heads.len(), self.rows.len()]
    }

    pub(crate) fn check(&self, dims: &Dims) -> Result<()> {
        let whole = [dims.batch, dims.q_heads, dims.q_len];
        let axes = [&self.batches, &self.heads, &self.rows];
        let names = ["region batches", "region heads", "region rows"];
        for ((range, most), name) in axes.into_iter().zip(whole).zip(names) {
            if range.start > range.end || range.end > most {
                let expected = format!("a range within 0..{most}");
                return Err(Error::value(name, expected, format!("{range:?}")));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Region {
            batches,
            heads,
            rows,
        } = self;
        write!(f, "batches {batches:?}, heads {heads:?}, rows {rows:?}")
    }
}
