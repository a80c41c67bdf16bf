//! Numbers about lists of scores and weights.

use crate::error::{Error, Result};
use crate::memory::filled;

/// Mean and standard deviation of scores, those of excluded pairs left out.
///
/// Before the scale of 1/sqrt(Dqk) scores of independent components of variance 1 deviate
/// by sqrt(Dqk), after it by 1 (Vaswani et al. 2017, section 3.2.1). Scores of
/// [`crate::Stage::Raw`] are scaled: over the scale, mean and deviation are those before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreStatistics {
    /// Scores that the numbers are over: the finite ones.
    pub count: usize,
    /// Scores of -inf: excluded pairs, in [`crate::Stage::Masked`].
    pub excluded: usize,
    /// Scores that are NaN or +inf: left out, and a sign that something is wrong.
    pub undefined: usize,
    /// Mean; NaN over none.
    pub mean: f64,
    /// Root of the mean square around the mean; NaN over none.
    pub deviation: f64,
}

impl ScoreStatistics {
    /// Of any number of scores, in two passes in f64.
    pub fn of(scores: &[f32]) -> ScoreStatistics {
        let finite = || {
            scores
                .iter()
                .filter(|s| s.is_finite())
                .map(|&s| f64::from(s))
        };
        let count = finite().count();
        let excluded = scores.iter().filter(|s| **s == f32::NEG_INFINITY).count();
        let mean = finite().sum::<f64>() / count as f64;
        let squares = finite().map(|s| (s - mean) * (s - mean)).sum::<f64>();
        ScoreStatistics {
            count,
            excluded,
            undefined: scores.len() - count - excluded,
            mean,
            deviation: (squares / count as f64).sqrt(),
        }
    }
}

/// How many numbers are in which range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// Numbers between each edge and the next, (edges - 1): at least the lower and below
    /// the upper, which the last range alone includes.
    pub counts: Vec<u64>,
    /// Numbers below the first edge, -inf among them.
    pub below: u64,
    /// Numbers above the last edge.
    pub above: u64,
    /// NaN.
    pub undefined: u64,
}

impl Histogram {
    /// Of weights or scores. Excluded pairs have weights of exactly 0: a first edge above
    /// 0 has them counted `below`.
    ///
    /// # Errors
    /// [`Error::Value`] if there are fewer than two edges, or they are not finite and
    /// rising; [`Error::HostMemory`] if there is none for the counts.
    pub fn of(values: &[f32], edges: &[f64]) -> Result<Histogram> {
        let expected = "at least two finite edges, each above the one before";
        let [first, .., last] = edges else {
            let actual = format!("{} edges", edges.len());
            return Err(Error::value("edges", expected, actual));
        };
        let finite = edges.iter().all(|edge| edge.is_finite());
        if !finite || edges.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(Error::value("edges", expected, format_args!("{edges:?}")));
        }
        let mut found = Histogram {
            counts: filled("histogram", &[edges.len() - 1], 0)?,
            below: 0,
            above: 0,
            undefined: 0,
        };
        for value in values.iter().map(|&v| f64::from(v)) {
            let count = if value.is_nan() {
                &mut found.undefined
            } else if value < *first {
                &mut found.below
            } else if value > *last {
                &mut found.above
            } else {
                // The last edge belongs to the last range.
                let at = edges.partition_point(|edge| *edge <= value) - 1;
                let last = found.counts.len() - 1;
                &mut found.counts[at.min(last)]
            };
            *count += 1;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_by_hand() {
        let scores = [1.0, f32::NEG_INFINITY, 3.0, f32::NAN, 8.0, f32::INFINITY];
        let found = ScoreStatistics::of(&scores);
        assert_eq!((found.count, found.excluded, found.undefined), (3, 1, 2));
        // Around 4: 9 + 1 + 16 over 3.
        assert_eq!(found.mean, 4.0);
        assert!((found.deviation - (26f64 / 3.0).sqrt()).abs() < 1e-15);
        let none = ScoreStatistics::of(&[f32::NEG_INFINITY; 2]);
        assert_eq!((none.count, none.excluded), (0, 2));
        assert!(none.mean.is_nan() && none.deviation.is_nan());
    }

    #[test]
    fn statistics_keep_small_spreads_beside_large_means() {
        // Squares of 2^23 leave f64 few digits for what 0, 0 and 1 deviate by.
        let scores: Vec<f32> = (0..999).map(|n| 8_388_608.0 + (n % 3 / 2) as f32).collect();
        let found = ScoreStatistics::of(&scores);
        assert!((found.mean - (8_388_608.0 + 1.0 / 3.0)).abs() < 1e-8);
        assert!((found.deviation - 2f64.sqrt() / 3.0).abs() < 1e-8);
    }

    #[test]
    fn every_number_is_in_one_range() {
        let values = [
            -1.0,
            0.0,
            0.2,
            0.5,
            0.7,
            1.0,
            1.5,
            f32::NAN,
            f32::NEG_INFINITY,
        ];
        let found = Histogram::of(&values, &[0.0, 0.5, 1.0]).unwrap();
        assert_eq!(found.counts, [2, 3]);
        assert_eq!((found.below, found.above, found.undefined), (2, 1, 1));
    }

    #[test]
    fn edges_are_checked() {
        let expected = "edges: expected at least two finite edges, each above the one before";
        for (edges, actual) in [
            (&[][..], "0 edges"),
            (&[0.5], "1 edges"),
            (&[0.0, 0.0], "[0.0, 0.0]"),
            (&[0.0, 2.0, 1.0, 3.0], "[0.0, 2.0, 1.0, 3.0]"),
            (&[0.0, f64::NAN, 1.0], "[0.0, NaN, 1.0]"),
            (&[0.0, f64::INFINITY], "[0.0, inf]"),
        ] {
            let error = Histogram::of(&[0.5], edges).unwrap_err();
            assert_eq!(error.to_string(), format!("{expected}, got {actual}"));
        }
    }
}
