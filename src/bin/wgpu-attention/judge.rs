//! Whether a result is within its tolerance, and where it is worst.

use wgpu_attention::reference::{self, Comparison, Worst};

use crate::array::Array;
use crate::memory;
use crate::suites::{Tolerance, What};

/// The outcome of comparing one output.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub comparison: Comparison,
    /// The place of the worst element, by the axes of the expected tensor.
    pub at: Vec<usize>,
}

impl Verdict {
    fn new(comparison: Comparison, shape: &[usize]) -> Verdict {
        let at = comparison.worst.map(|worst| unravel(worst.index, shape));
        Verdict {
            comparison,
            at: at.unwrap_or_default(),
        }
    }

    /// True if something was compared and all of it is within its tolerance.
    pub fn passed(&self) -> bool {
        self.comparison.passed() && self.comparison.undetermined == 0
    }
}

/// Compares `got` with `expected` by the rules of [`tolerances`]; `row` is the
/// length of a row. Infinities have to be met exactly.
pub fn judge(
    got: &[f32],
    expected: &Array,
    what: &What,
    tolerance: Tolerance,
    row: usize,
) -> Result<Verdict, String> {
    let values = expected.to_f32()?;
    let allowed = tolerances(what, tolerance, &values, row);
    let wide = values.iter().map(|&x| f64::from(x));
    let values = memory::collected("expected", values.len(), wide).map_err(|e| e.to_string())?;
    let comparison = reference::compare(got, &values, &allowed).map_err(|e| e.to_string())?;
    Ok(Verdict::new(comparison, &expected.shape))
}

/// What is allowed for each element.
///
/// A row of the output that is expected to be all zeros belongs to a query that
/// sees no key, and is exactly zero. A log-sum-exp beyond 1000 is compared
/// relatively, to 1e-6: one f32 there holds no more.
fn tolerances(what: &What, tolerance: Tolerance, expected: &[f32], row: usize) -> Vec<f64> {
    let usual = |&x: &f32| tolerance.atol + tolerance.rtol * f64::from(x).abs();
    match what {
        What::Output => expected
            .chunks(row.max(1))
            .flat_map(|row| {
                let empty = row.iter().all(|&x| x == 0.0);
                row.iter().map(move |x| if empty { 0.0 } else { usual(x) })
            })
            .collect(),
        What::Lse => expected
            .iter()
            .map(|x| match f64::from(x.abs()) {
                huge if huge > 1000.0 => 1e-6 * huge,
                _ => usual(x),
            })
            .collect(),
        _ => expected.iter().map(usual).collect(),
    }
}

/// Compares bit for bit, element types and shapes included.
pub fn judge_exact(got: &Array, expected: &Array) -> Result<Verdict, String> {
    let kind = |a: &Array| format!("{} {:?}", a.type_name(), a.shape);
    if kind(got) != kind(expected) {
        return Err(format!("got {}, expected {}", kind(got), kind(expected)));
    }
    let (got, shape, expected) = (got.to_f32()?, &got.shape, expected.to_f32()?);
    let pairs = || got.iter().zip(expected.iter()).enumerate();
    let differ = |(_, (a, b)): &(usize, (&f32, &f32))| a.to_bits() != b.to_bits();
    let worst = pairs().find(differ).or_else(|| pairs().next());
    let failed = pairs().filter(differ).count();
    let comparison = Comparison {
        compared: got.len(),
        undetermined: 0,
        failed,
        worst: worst.map(|(index, (&got, &expected))| Worst {
            index,
            got,
            expected: f64::from(expected),
            bound: 0.0,
            ratio: if failed > 0 { f64::INFINITY } else { 0.0 },
        }),
    };
    Ok(Verdict::new(comparison, shape))
}

fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut at = vec![0; shape.len()];
    for (axis, &n) in shape.iter().enumerate().rev() {
        at[axis] = flat % n.max(1);
        flat /= n.max(1);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIGHT: Tolerance = Tolerance {
        atol: 1e-3,
        rtol: 0.0,
    };

    fn check(got: &[f32], expected: &[f32], what: &What) -> Verdict {
        let expected = Array::f32(&[2, expected.len() / 2], expected.to_vec());
        judge(got, &expected, what, TIGHT, 2).unwrap()
    }

    #[test]
    fn rejects_and_says_where() {
        let expected = [1.0, 2.0, 3.0, 4.0];
        assert!(check(&[1.0, 2.0005, 3.0, 4.0], &expected, &What::Output).passed());
        let verdict = check(&[1.0, 2.0, 3.1, 4.01], &expected, &What::Output);
        assert!(!verdict.passed());
        assert_eq!(
            (verdict.comparison.failed, &verdict.at[..]),
            (2, &[1, 0][..])
        );
    }

    #[test]
    fn nan_and_infinity_never_pass_by_chance() {
        let inf = f32::NEG_INFINITY;
        assert!(check(&[inf, 1.0], &[inf, 1.0], &What::Lse).passed());
        for bad in [f32::NAN, f32::INFINITY, f32::MIN, 0.0] {
            assert!(
                !check(&[bad, 1.0], &[inf, 1.0], &What::Lse).passed(),
                "{bad}"
            );
        }
        assert!(!check(&[f32::NAN, 1.0], &[0.0, 1.0], &What::Merged).passed());
        assert!(!check(&[inf, 1.0], &[0.0, 1.0], &What::Merged).passed());
    }

    #[test]
    fn nothing_compared_does_not_pass() {
        let none = Array::f32(&[0, 4], Vec::new());
        let verdict = judge(&[], &none, &What::Output, TIGHT, 4).unwrap();
        assert!(!verdict.passed());
        assert!(judge(&[1.0], &none, &What::Output, TIGHT, 4).is_err());
    }

    #[test]
    fn empty_rows_are_exact_and_huge_lse_relative() {
        let rows = [0.0, 0.0, 0.0, 0.1];
        let near = [0.0, 0.0, 1e-4, 0.1];
        assert!(check(&near, &rows, &What::Output).passed());
        assert!(!check(&[1e-4, 0.0, 0.0, 0.1], &rows, &What::Output).passed());
        let lse = [2.0, -3e38];
        assert!(check(&[2.0005, -3.000001e38], &lse, &What::Lse).passed());
        assert!(!check(&[2.0, -3.00001e38], &lse, &What::Lse).passed());
        assert!(!check(&[2.002, -3e38], &lse, &What::Lse).passed());
    }

    #[test]
    fn copies_are_equal_to_the_bit() {
        let array = |values: [f32; 2]| Array::f32(&[1, 2], values.to_vec());
        let one = array([1.0, 0.0]);
        assert!(judge_exact(&one, &one).unwrap().passed());
        let other = judge_exact(&array([1.0, -0.0]), &one).unwrap();
        assert_eq!((other.passed(), &other.at[..]), (false, &[0, 1][..]));
        assert!(judge_exact(&one, &Array::f32(&[2, 1], vec![1.0, 0.0])).is_err());
    }
}
