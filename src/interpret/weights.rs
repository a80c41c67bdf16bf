//! The weights of a head.

use super::row::Row;
use crate::error::{Error, Result, no_memory};
use crate::memory::collected;

/// The largest weight of a saturated row is above this, unless another threshold is
/// given to [`Weights::saturated`].
pub const SATURATED: f64 = 0.99;

/// The weights of one head of one batch entry, (rows, keys).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights<'a> {
    values: &'a [f32],
    shape: [usize; 2],
    offset: i64,
}

/// A mean over the rows that have a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The mean; NaN over no row.
    pub value: f64,
    /// How many rows it is over.
    pub rows: usize,
}

impl Mean {
    /// Over the numbers that there are.
    pub fn of(numbers: impl IntoIterator<Item = Option<f64>>) -> Mean {
        let (mut sum, mut rows) = (0.0, 0);
        for number in numbers.into_iter().flatten() {
            sum += number;
            rows += 1;
        }
        Mean {
            value: sum / rows as f64,
            rows,
        }
    }
}

impl<'a> Weights<'a> {
    /// Weights of shape (rows, keys), row by row. Row i stands at position i among the
    /// keys unless [`Weights::offset`] says otherwise.
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of values differs.
    pub fn new(values: &'a [f32], shape: [usize; 2]) -> Result<Weights<'a>> {
        check_count("weights", values.len(), &shape)?;
        Ok(Weights {
            values,
            shape,
            offset: 0,
        })
    }

    /// Sets where the rows stand: row i of these at position i + `offset` among the
    /// keys. It is the offset of the [alignment](crate::Alignment), plus the number of
    /// the first row where these are not all rows.
    pub fn offset(mut self, offset: i64) -> Weights<'a> {
        self.offset = offset;
        self
    }

    /// (rows, keys).
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Row `i`, if there is one.
    pub fn row(&self, i: usize) -> Option<Row<'a>> {
        let [rows, keys] = self.shape;
        let position = self.offset.saturating_add(i as i64);
        (i < rows).then(|| Row::new(&self.values[i * keys..(i + 1) * keys], position))
    }

    /// Every row.
    pub fn rows(&self) -> impl Iterator<Item = Row<'a>> {
        (0..self.shape[0]).filter_map(|i| self.row(i))
    }

    /// A row's score in the mean: `weights.mean(Row::entropy)`.
    pub fn mean(&self, score: impl Fn(Row<'a>) -> Option<f64>) -> Mean {
        Mean::of(self.rows_with_keys().map(score))
    }

    /// Every row, or none where they are without keys: there may be any number of those.
    fn rows_with_keys(&self) -> impl Iterator<Item = Row<'a>> {
        let rows = if self.shape[1] == 0 { 0 } else { self.shape[0] };
        (0..rows).filter_map(|i| self.row(i))
    }

    /// Mean of [`Row::induction`] over the rows whose token occurred before. Attention
    /// spread evenly over n keys has 1/n for each occurrence; an induction head, on a
    /// random sequence that is repeated, has nearly 1.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are more tokens than keys; keys without a token are
    /// padding.
    pub fn induction<T: PartialEq>(&self, tokens: &[T]) -> Result<Mean> {
        let [_, keys] = self.shape;
        if tokens.len() > keys {
            let expected = format!("at most [{keys}], one a key");
            return Err(Error::shape("tokens", expected, [tokens.len()]));
        }
        Ok(self.mean(|row| row.induction(tokens)))
    }

    /// Mean of [`Row::induction_of_period`] over the rows from position `period` on.
    ///
    /// # Errors
    /// [`Error::Value`] for a period of 0.
    pub fn induction_of_period(&self, period: usize) -> Result<Mean> {
        if period == 0 {
            return Err(Error::value("period", "at least 1", period));
        }
        Ok(self.mean(|row| row.induction_of_period(period)))
    }

    /// Share of rows whose largest weight is above `threshold`, for instance
    /// [`SATURATED`]: their softmax is all but one-hot, and its gradient all but 0.
    ///
    /// # Errors
    /// [`Error::Value`] if the threshold is not within 0 to 1.
    pub fn saturated(&self, threshold: f64) -> Result<Mean> {
        if !(0.0..=1.0).contains(&threshold) {
            return Err(Error::value("threshold", "within 0 to 1", threshold));
        }
        let above = |largest| f64::from(u8::from(largest > threshold));
        Ok(self.mean(|row| row.largest().map(above)))
    }

    /// Mean weight of a row by distance |i + offset - j|, (most + 1): at 0, 1, and so on
    /// up to `most - 1`, and in the end at `most` and more together. It sums to the mean
    /// of the rows' mass; all 0 over no row.
    ///
    /// # Errors
    /// [`Error::HostMemory`] if there is none for the result.
    pub fn by_distance(&self, most: usize) -> Result<Vec<f64>> {
        let mut by_distance = zeros("weights by distance", most.saturating_add(1))?;
        let mut rows = 0u32;
        for row in self.rows_with_keys().filter(|row| row.mass().is_some()) {
            rows += 1;
            for (j, &weight) in row.weights().iter().enumerate() {
                let distance = row.distance_to(j).min(most as u64);
                by_distance[distance as usize] += f64::from(weight);
            }
        }
        let divisor = f64::from(rows.max(1));
        by_distance.iter_mut().for_each(|mass| *mass /= divisor);
        Ok(by_distance)
    }

    /// Weight that each key receives from all rows together, (keys): by it caches
    /// evict keys (Zhang et al. 2023, *H2O: Heavy-Hitter Oracle*).
    ///
    /// # Errors
    /// [`Error::HostMemory`] if there is none for the result.
    pub fn received(&self) -> Result<Vec<f64>> {
        let mut received = zeros("weights received", self.shape[1])?;
        for row in self.rows_with_keys().filter(|row| row.mass().is_some()) {
            for (sum, &weight) in received.iter_mut().zip(row.weights()) {
                *sum += f64::from(weight);
            }
        }
        Ok(received)
    }
}

/// Mean of the weights of several heads, (heads, rows, keys) to (rows, keys), summed in
/// f64. Not a number where a head has none there.
///
/// # Errors
/// [`Error::Shape`] if the number of values differs or there is no head;
/// [`Error::HostMemory`] if there is none for the result.
pub fn mean_over_heads(values: &[f32], shape: [usize; 3]) -> Result<Vec<f32>> {
    check_count("weights", values.len(), &shape)?;
    let [heads, ..] = shape;
    if heads == 0 {
        return Err(Error::shape("weights", "at least one head", shape));
    }
    let pairs = values.len() / heads;
    if values.is_empty() {
        return Ok(Vec::new());
    }
    let mut sums = zeros("mean over heads", pairs)?;
    for head in 0..heads {
        let values = &values[head * pairs..(head + 1) * pairs];
        for (sum, &weight) in sums.iter_mut().zip(values) {
            *sum += f64::from(weight);
        }
    }
    let heads = heads as f64;
    let means = sums.into_iter().map(|sum| (sum / heads) as f32);
    collected("mean over heads", means)
}

/// Whether `count` is what `shape` holds.
pub(super) fn check_count(operand: &'static str, count: usize, shape: &[usize]) -> Result<()> {
    let product = shape.iter().try_fold(1usize, |n, &m| n.checked_mul(m));
    if product == Some(count) {
        return Ok(());
    }
    let elements = product.map_or("too many".to_owned(), |n| n.to_string());
    let expected = format!("{shape:?} ({elements} elements)");
    Err(Error::shape(
        operand,
        expected,
        format_args!("{count} elements"),
    ))
}

/// `count` zeros. The system gives them page by page, as they are first used: a long list
/// of which little is used costs little.
pub(super) fn zeros(what: &str, count: usize) -> Result<Vec<f64>> {
    bytemuck::allocation::try_zeroed_vec(count).map_err(|()| no_memory(what, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 0 looks at key 0, row 1 at both evenly, row 2 sees nothing, row 3 is NaN.
    const MIXED: [f32; 8] = [1.0, 0.0, 0.5, 0.5, 0.0, 0.0, f32::NAN, 1.0];

    #[test]
    fn means_are_over_rows_that_have_numbers() {
        let weights = Weights::new(&MIXED, [4, 2]).unwrap();
        let entropy = weights.mean(Row::entropy);
        assert_eq!(entropy.rows, 2);
        assert!((entropy.value - 2f64.ln() / 2.0).abs() < 1e-15);
        // Row 0 has no key before it, rows 2 and 3 no numbers.
        let previous = weights.mean(Row::previous_token);
        assert_eq!((previous.value, previous.rows), (0.5, 1));
        // Two positions on, row 0 has key 1 before it and row 1 has none.
        let previous = weights.offset(2).mean(Row::previous_token);
        assert_eq!((previous.value, previous.rows), (0.0, 1));
        let none = Weights::new(&MIXED[4..], [2, 2])
            .unwrap()
            .mean(Row::entropy);
        assert!(none.value.is_nan() && none.rows == 0);
    }

    #[test]
    fn saturated_rows_are_those_above_the_threshold() {
        let weights = Weights::new(&MIXED, [4, 2]).unwrap();
        let share = |threshold| weights.saturated(threshold).unwrap().value;
        assert_eq!([SATURATED, 0.5, 0.4, 1.0].map(share), [0.5, 0.5, 1.0, 0.0]);
        for wrong in [f64::NAN, -0.1, 1.1] {
            let error = weights.saturated(wrong).unwrap_err();
            assert!(matches!(
                error,
                Error::Value {
                    operand: "threshold",
                    ..
                }
            ));
        }
    }

    #[test]
    fn induction_of_a_head_respects_the_offset() {
        // Two rows at positions 2 and 3 of a b a b.
        let values = [0.25, 0.75, 0.0, 0.0, 0.125, 0.25, 0.5, 0.125];
        let weights = Weights::new(&values, [2, 4]).unwrap().offset(2);
        let (tokens, both) = (["a", "b", "a", "b"], (0.75 + 0.5) / 2.0);
        let expected = Mean {
            value: both,
            rows: 2,
        };
        assert_eq!(weights.induction(&tokens).unwrap(), expected);
        assert_eq!(weights.induction_of_period(2).unwrap(), expected);
        // At positions 0 and 1 nothing has occurred before.
        assert_eq!(weights.offset(0).induction(&tokens).unwrap().rows, 0);
        // Without a token for its position row 1 is padding.
        assert_eq!(weights.induction(&tokens[..3]).unwrap().rows, 1);
        let error = weights.induction(&["a"; 5]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tokens: expected shape at most [4], one a key, got [5]"
        );
        let error = weights.induction_of_period(0).unwrap_err();
        assert_eq!(error.to_string(), "period: expected at least 1, got 0");
    }

    #[test]
    fn mass_by_distance_and_by_key() {
        let weights = Weights::new(&MIXED, [4, 2]).unwrap();
        assert_eq!(weights.by_distance(1).unwrap(), [0.75, 0.25]);
        assert_eq!(weights.by_distance(0).unwrap(), [1.0]);
        assert_eq!(weights.by_distance(3).unwrap(), [0.75, 0.25, 0.0, 0.0]);
        // Distances 1, 0 of row 0 and 2, 1 of row 1.
        let shifted = weights.offset(1).by_distance(2).unwrap();
        assert_eq!(shifted, [0.0, 0.75, 0.25]);
        let far = weights.offset(i64::MAX).by_distance(2).unwrap();
        assert_eq!(far, [0.0, 0.0, 1.0]);
        assert_eq!(weights.received().unwrap(), [1.5, 0.5]);
        let error = weights.by_distance(usize::MAX).unwrap_err();
        assert!(error.is_unsupported(), "{error}");
        // However many rows without keys there are.
        for rows in [3, usize::MAX] {
            let none = Weights::new(&[], [rows, 0]).unwrap();
            assert_eq!(none.by_distance(1).unwrap(), [0.0, 0.0]);
            assert!(none.received().unwrap().is_empty());
            assert_eq!(none.saturated(0.5).unwrap().rows, 0);
            assert_eq!(none.induction::<u8>(&[]).unwrap().rows, 0);
            assert_eq!(none.induction_of_period(1).unwrap().rows, 0);
        }
    }

    #[test]
    fn heads_in_the_mean() {
        let values = [1.0, 0.0, 0.25, f32::NAN];
        let mean = mean_over_heads(&values, [2, 1, 2]).unwrap();
        assert!(mean[0] == 0.625 && mean[1].is_nan());
        for (count, shape) in [(4, [0, 2, 2]), (0, [0, 2, 2]), (4, [3, 1, 1])] {
            let error = mean_over_heads(&values[..count], shape).unwrap_err();
            assert!(matches!(error, Error::Shape { .. }), "{shape:?}");
        }
    }

    #[test]
    fn shapes_are_checked() {
        for (shape, elements) in [([2, 2], "4"), ([usize::MAX, 2], "too many")] {
            let error = Weights::new(&[0.5; 3], shape).unwrap_err().to_string();
            let expected = format!("expected shape {shape:?} ({elements} elements)");
            assert_eq!(error, format!("weights: {expected}, got 3 elements"));
        }
        let weights = Weights::new(&[0.5; 6], [2, 3]).unwrap();
        assert_eq!(weights.shape(), [2, 3]);
        assert_eq!(weights.row(1).unwrap().position(), 1);
        assert!(weights.row(2).is_none());
    }
}
