//! Comparing results with expectations, counting what was compared.

use std::fmt;

use crate::error::{Error, Result};

/// The element that is nearest to its bound, or furthest beyond it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Worst {
    /// Its flat index.
    pub index: usize,
    /// The result.
    pub got: f32,
    /// What was expected.
    pub expected: f64,
    /// How far the result may be away.
    pub bound: f64,
    /// `|got - expected| / bound`; infinite where a NaN or infinity is on one side only.
    pub ratio: f64,
}

/// What a comparison found.
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use]
pub struct Comparison {
    /// Elements that had to meet an expectation.
    pub compared: usize,
    /// Elements about which f32 arithmetic leaves the answer open (not compared).
    pub undetermined: usize,
    /// Elements that missed it.
    pub failed: usize,
    /// The worst element; none if nothing was compared.
    pub worst: Option<Worst>,
}

impl Comparison {
    const EMPTY: Comparison = Comparison {
        compared: 0,
        undetermined: 0,
        failed: 0,
        worst: None,
    };

    /// True if something was compared and nothing missed its expectation. An
    /// empty comparison proves nothing and has not passed; a caller who expects
    /// nothing to be there checks `compared == 0`.
    pub fn passed(&self) -> bool {
        self.compared > 0 && self.failed == 0
    }

    fn record(&mut self, index: usize, got: f32, expected: f64, bound: f64) {
        if expected.is_nan() && bound == f64::INFINITY {
            self.undetermined += 1;
            return;
        }
        self.compared += 1;
        let ratio = ratio(f64::from(got), expected, bound);
        // A ratio is never NaN, but a wrong comparison here would hide everything.
        let within = ratio <= 1.0;
        if !within {
            self.failed += 1;
        }
        if self.worst.is_none_or(|worst| ratio > worst.ratio) {
            self.worst = Some(Worst {
                index,
                got,
                expected,
                bound,
                ratio,
            });
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} compared, {} failed", self.compared, self.failed)?;
        if self.undetermined > 0 {
            write!(f, ", {} undetermined", self.undetermined)?;
        }
        if let Some(worst) = &self.worst {
            let Worst {
                index,
                got,
                expected,
                bound,
                ratio,
            } = worst;
            write!(
                f,
                "; worst at {index}: got {got:e}, expected {expected:e}, bound {bound:.1e}, ratio {ratio:.3}"
            )?;
        }
        Ok(())
    }
}

/// Error over bound. NaN is met by NaN only, an infinity by itself only, and a
/// bound that is negative, NaN or infinite lets nothing pass.
fn ratio(got: f64, expected: f64, bound: f64) -> f64 {
    if expected.is_nan() || expected.is_infinite() {
        let met = got == expected || (got.is_nan() && expected.is_nan());
        return if met { 0.0 } else { f64::INFINITY };
    }
    let error = (got - expected).abs();
    if error == 0.0 {
        return 0.0;
    }
    let usable = error.is_finite() && bound > 0.0 && bound.is_finite();
    if usable { error / bound } else { f64::INFINITY }
}

/// Compares f32 results with the oracle's expectations:
/// `|got - expected| <= bound` for each element. NaN has to be met by NaN, an
/// infinity by the same infinity; elements expected as NaN with an infinite
/// bound are undetermined and not compared.
///
/// # Errors
/// [`Error::Shape`] if the lengths differ.
pub fn compare(got: &[f32], expected: &[f64], bound: &[f64]) -> Result<Comparison> {
    same_length("result", got.len(), expected.len())?;
    same_length("bound", bound.len(), expected.len())?;
    let mut comparison = Comparison::EMPTY;
    for (index, (&got, (&expected, &bound))) in
        got.iter().zip(expected.iter().zip(bound)).enumerate()
    {
        comparison.record(index, got, expected, bound);
    }
    Ok(comparison)
}

/// Compares with expectations that bring their own tolerance:
/// `|got - expected| <= atol + rtol * |expected|`; NaN and infinities as in [`compare`].
///
/// # Errors
/// [`Error::Shape`] if the lengths differ.
pub fn compare_abs(got: &[f32], expected: &[f32], atol: f64, rtol: f64) -> Result<Comparison> {
    by_tolerance(got, expected, |expected| atol + rtol * expected.abs())
}

/// Like [`compare_abs`] for log-sum-exps: those beyond +-1000 are compared
/// relatively, to 1e-6, the others with `atol`; -inf has to be -inf.
///
/// # Errors
/// [`Error::Shape`] if the lengths differ.
pub fn compare_lse(got: &[f32], expected: &[f32], atol: f64) -> Result<Comparison> {
    by_tolerance(got, expected, |expected| match expected.abs() > 1000.0 {
        true => 1e-6 * expected.abs(),
        false => atol,
    })
}

fn by_tolerance(
    got: &[f32],
    expected: &[f32],
    tolerance: impl Fn(f64) -> f64,
) -> Result<Comparison> {
    same_length("result", got.len(), expected.len())?;
    let mut comparison = Comparison::EMPTY;
    for (index, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let expected = f64::from(expected);
        let bound = if expected.is_finite() {
            tolerance(expected)
        } else {
            0.0
        };
        comparison.record(index, got, expected, bound);
    }
    Ok(comparison)
}

fn same_length(operand: &'static str, got: usize, expected: usize) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(Error::shape(operand, format!("[{expected}]"), [got]))
}
