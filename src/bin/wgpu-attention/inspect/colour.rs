//! From numbers to cells.

use std::ops::Range;

use wgpu_attention::interpret::shares;

use crate::inspect::canvas::{Cells, Rgb};
use crate::inspect::scale::Scale;
use crate::inspect::view::HeadView;

/// Excluded pairs: lighter than every colour of the scale but its top end, and grey.
pub const MASKED: Rgb = [0xe4, 0xe4, 0xe4];

/// Where there is no number: the row's weights or contributions are not finite, or all 0.
pub const MISSING: Rgb = [0xf4, 0xc7, 0xb8];

/// Vermilion of the palette of Okabe and Ito, safe for colour-blind readers
/// beside all colours of the scale.
pub const MARK: Rgb = [0xd5, 0x5e, 0x00];

/// What is drawn for a pair, or for the pairs that share a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    Masked,
    Missing,
    /// 0 to 1.
    Share(f64),
}

/// Which of the two sides of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The weights W(i, j): a sink's part of the row's weight is not shown.
    Weights,
    /// The contributions W(i, j) |V_j|.
    Contributions,
}

/// Shares of a head in cells of `block` rows by keys each.
#[derive(Debug, Clone)]
pub struct Grid {
    pub columns: usize,
    pub values: Vec<Value>,
    /// Rows and keys of a cell.
    pub block: [usize; 2],
}

impl Grid {
    /// One side of `view` over `keys`, as shares of each row's sum: where all values are
    /// of one size, the two sides are alike. A cell shows the largest of its pairs.
    pub fn of(view: &HeadView, side: Side, keys: &Range<usize>, block: [usize; 2]) -> Grid {
        let columns = keys.len().div_ceil(block[1]);
        let mut values = vec![Value::Masked; columns * view.rows.len().div_ceil(block[0])];
        for (at, i) in view.rows.clone().enumerate() {
            let row = shares(match side {
                Side::Weights => view.row(&view.weights, i),
                Side::Contributions => view.row(&view.contributions, i),
            });
            let visible = view.row(&view.visible, i);
            for j in keys.clone().filter(|&j| visible[j]) {
                let value = match &row {
                    Some(row) if row[j].is_finite() => Value::Share(row[j]),
                    _ => Value::Missing,
                };
                let cell = at / block[0] * columns + (j - keys.start) / block[1];
                values[cell] = values[cell].or(value);
            }
        }
        Grid {
            columns,
            values,
            block,
        }
    }

    pub fn rows(&self) -> usize {
        self.values.len() / self.columns.max(1)
    }

    pub fn has(&self, value: Value) -> bool {
        self.values.contains(&value)
    }

    /// The colours on `scale`.
    pub fn cells(&self, scale: Scale) -> Cells {
        let colours = self.values.iter().map(|value| match value {
            Value::Masked => MASKED,
            Value::Missing => MISSING,
            Value::Share(share) => scale.colour(*share),
        });
        Cells {
            columns: self.columns,
            colours: colours.collect(),
        }
    }
}

impl Value {
    /// What a cell shows of two pairs: the larger number, before what has none.
    fn or(self, other: Value) -> Value {
        match (self, other) {
            (Value::Share(a), Value::Share(b)) => Value::Share(a.max(b)),
            (share @ Value::Share(_), _) | (_, share @ Value::Share(_)) => share,
            (Value::Missing, _) | (_, Value::Missing) => Value::Missing,
            (Value::Masked, Value::Masked) => Value::Masked,
        }
    }
}
