//! What each key adds to one row of the output.

use super::weights::{check_count, zeros};
use crate::error::{Error, Result};
use crate::rules::dims::MAX_SEQUENCE;

/// What each key adds to one row of a head's output: the vectors W(i, j) V_j, whose sum
/// is O_i (Kobayashi et al. 2020, *Attention is Not Only a Weight*).
///
/// f64, not rounded. Through an output projection they are W(i, j) V_j W_O^(h), whose sum
/// over keys and heads is the layer's output without its bias.
#[derive(Debug, Clone, PartialEq)]
pub struct Contributions {
    vectors: Vec<f64>,
    output: Vec<f64>,
    keys: usize,
    dim: usize,
}

impl Contributions {
    /// From the weights of row i, (keys), and the values of its head, (keys, `dim`). A
    /// key of weight exactly 0 adds exactly 0, whatever its value holds; any other NaN
    /// or infinity stays where it is.
    ///
    /// # Errors
    /// [`Error::Value`] for a `dim` of 0 or over [`MAX_SEQUENCE`], [`Error::Shape`] if the
    /// number of values does not fit, [`Error::HostMemory`] if there is none for the
    /// vectors or their sum.
    pub fn new(weights: &[f32], values: &[f32], dim: usize) -> Result<Contributions> {
        if !(1..=MAX_SEQUENCE).contains(&dim) {
            let expected = format!("1 to {MAX_SEQUENCE}");
            return Err(Error::value("dim", expected, dim));
        }
        let keys = weights.len();
        check_count("values", values.len(), &[keys, dim])?;
        let mut vectors = zeros("contributions", values.len())?;
        let rows = vectors.chunks_exact_mut(dim).zip(values.chunks_exact(dim));
        for ((vector, value), &weight) in rows.zip(weights) {
            if weight != 0.0 {
                for (sum, &v) in vector.iter_mut().zip(value) {
                    *sum = f64::from(weight) * f64::from(v);
                }
            }
        }
        Contributions::of(vectors, keys, dim)
    }

    /// The same through the part of an output projection that takes this head: W(i, j)
    /// V_j W_O^(h), (keys, out).
    ///
    /// `weight` is the whole W_O as layers hold it, (out, in), with the heads side by
    /// side in its columns: those of head `head` are `head * dim .. (head + 1) * dim`.
    /// Costs keys * dim * out multiply-adds.
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of weights differs or `in` is no multiple of dim,
    /// [`Error::Value`] for a head past the last, [`Error::HostMemory`] if there is none
    /// for the vectors.
    pub fn through(&self, weight: &[f32], shape: [usize; 2], head: usize) -> Result<Contributions> {
        check_count("output weight", weight.len(), &shape)?;
        let ([out, width], dim) = (shape, self.dim);
        if out == 0 || !width.is_multiple_of(dim) {
            let expected = format!("[out, heads * {dim}] with out > 0");
            return Err(Error::shape("output weight", expected, shape));
        }
        if head >= width / dim {
            let expected = format!("below {}, the heads of the output weight", width / dim);
            return Err(Error::value("head", expected, head));
        }
        let mut vectors = zeros("contributions", self.keys.saturating_mul(out))?;
        let keys = self.vectors.chunks_exact(dim);
        for (sums, vector) in vectors.chunks_exact_mut(out).zip(keys) {
            // What adds nothing adds nothing through a NaN of the weight either.
            if vector.iter().all(|&v| v == 0.0) {
                continue;
            }
            for (sum, line) in sums.iter_mut().zip(weight.chunks_exact(width)) {
                let columns = line[head * dim..(head + 1) * dim].iter();
                *sum = vector
                    .iter()
                    .zip(columns)
                    .map(|(v, &w)| v * f64::from(w))
                    .sum();
            }
        }
        Contributions::of(vectors, self.keys, out)
    }

    fn of(vectors: Vec<f64>, keys: usize, dim: usize) -> Result<Contributions> {
        let mut output = zeros("output", dim)?;
        for vector in vectors.chunks_exact(dim) {
            for (sum, v) in output.iter_mut().zip(vector) {
                *sum += v;
            }
        }
        Ok(Contributions {
            vectors,
            output,
            keys,
            dim,
        })
    }

    /// (keys, dim).
    pub fn shape(&self) -> [usize; 2] {
        [self.keys, self.dim]
    }

    /// All vectors, (keys, dim), key by key.
    pub fn vectors(&self) -> &[f64] {
        &self.vectors
    }

    /// What key `j` adds, (dim), if there is such a key.
    pub fn vector(&self, j: usize) -> Option<&[f64]> {
        self.vectors.chunks_exact(self.dim).nth(j)
    }

    /// Their sum, (dim): the row of the output, O_i.
    pub fn output(&self) -> &[f64] {
        &self.output
    }

    /// Their sizes |W(i, j) V_j|, (keys).
    pub fn sizes(&self) -> Vec<f64> {
        let vectors = self.vectors.chunks_exact(self.dim);
        vectors.map(|v| dot(v, v).sqrt()).collect()
    }

    /// Each key's share in the output's size, (keys): <W(i, j) V_j, O_i> / |O_i|^2, the
    /// length of the key's vector along the output, over the output's. They sum to 1. A
    /// share is negative where a key pulls the other way, and others are then over 1.
    ///
    /// `None` if the output is 0 or not finite.
    pub fn shares(&self) -> Option<Vec<f64>> {
        let output = self.output();
        let square = dot(output, output);
        if !(square > 0.0 && square.is_finite()) {
            return None;
        }
        let vectors = self.vectors.chunks_exact(self.dim);
        Some(vectors.map(|v| dot(v, output) / square).collect())
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHTS: [f32; 3] = [0.5, 0.25, 0.25];

    #[test]
    fn vectors_sum_to_the_output() {
        let values = [2.0, 0.0, 0.0, 4.0, -4.0, 0.0];
        let found = Contributions::new(&WEIGHTS, &values, 2).unwrap();
        assert_eq!(found.vectors(), [1.0, 0.0, 0.0, 1.0, -1.0, 0.0]);
        assert_eq!(found.vector(1), Some(&[0.0, 1.0][..]));
        assert_eq!((found.shape(), found.vector(3)), ([3, 2], None));
        assert_eq!(found.output(), [0.0, 1.0]);
        assert_eq!(found.sizes(), [1.0, 1.0, 1.0]);
        // Keys 0 and 2 cancel: as large as key 1, they are no part of the output.
        assert_eq!(found.shares(), Some(vec![0.0, 1.0, 0.0]));
    }

    #[test]
    fn shares_sum_to_1_and_may_be_negative() {
        // 2, 1 and -1 of an output of 2.
        let found = Contributions::new(&WEIGHTS, &[4.0, 4.0, -4.0], 1).unwrap();
        assert_eq!(found.shares(), Some(vec![1.0, 0.5, -0.5]));
        // An output of 0 has no shares, nor has one that is not finite.
        let none = Contributions::new(&WEIGHTS, &[1.0, -1.0, -1.0], 1).unwrap();
        assert_eq!((none.output(), none.shares()), (&[0.0][..], None));
        let infinite = [1.0, f32::INFINITY, 1.0];
        let none = Contributions::new(&WEIGHTS, &infinite, 1).unwrap();
        assert_eq!((none.output(), none.shares()), (&[f64::INFINITY][..], None));
    }

    #[test]
    fn the_largest_weight_may_be_the_smallest_contribution() {
        // Weights fall, sizes rise; directions differ.
        let values = [0.125, 0.0, 0.0, 4.0, 8.0, 0.0];
        let found = Contributions::new(&[0.5, 0.375, 0.125], &values, 2).unwrap();
        assert_eq!(found.sizes(), [0.0625, 1.5, 1.0]);
        let shares = found.shares().unwrap();
        let square = 1.0625 * 1.0625 + 1.5 * 1.5;
        assert!((shares[0] - 0.0625 * 1.0625 / square).abs() < 1e-15);
        assert!(shares[0] < 0.02 && shares[1] > 0.6, "{shares:?}");
    }

    #[test]
    fn a_key_of_weight_0_adds_nothing_whatever_it_holds() {
        let values = [1.0, f32::NAN, f32::INFINITY];
        let found = Contributions::new(&[1.0, 0.0, -0.0], &values, 1).unwrap();
        assert_eq!(found.vectors(), [1.0, 0.0, 0.0]);
        let through = found.through(&[2.0, f32::NAN], [1, 2], 0).unwrap();
        assert_eq!(through.vectors(), [2.0, 0.0, 0.0]);
        let through = found.through(&[f32::NAN], [1, 1], 0).unwrap();
        assert!(through.vectors()[0].is_nan() && through.vectors()[1..] == [0.0; 2]);
        // A visible one shows.
        let found = Contributions::new(&[0.5, 0.5, 0.0], &values, 1).unwrap();
        assert!(found.output()[0].is_nan() && found.shares().is_none());
    }

    #[test]
    fn through_the_columns_of_a_head() {
        // Two heads of 2 into 3: head 1 has columns 2 and 3.
        let weight = [9.0, 9.0, 1.0, 2.0, 9.0, 9.0, 0.0, 3.0, 9.0, 9.0, 4.0, 0.0];
        let found = Contributions::new(&[0.5, 0.5], &[2.0, 0.0, 0.0, 2.0], 2).unwrap();
        let through = found.through(&weight, [3, 4], 1).unwrap();
        assert_eq!(through.shape(), [2, 3]);
        assert_eq!(through.vectors(), [1.0, 0.0, 4.0, 2.0, 3.0, 0.0]);
        assert_eq!(through.output(), [3.0, 3.0, 4.0]);
    }

    #[test]
    fn no_keys_of_any_width_cost_nothing() {
        let started = std::time::Instant::now();
        // Where so much may not be reserved at all it is an error.
        if let Ok(none) = Contributions::new(&[], &[], MAX_SEQUENCE) {
            assert_eq!((none.shape(), none.output()[7]), ([0, MAX_SEQUENCE], 0.0));
        }
        assert!(started.elapsed().as_secs_f32() < 1.0);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let found = Contributions::new(&[0.5, 0.5], &[1.0; 4], 2).unwrap();
        let weight = [1.0; 12];
        let cases = [
            (
                Contributions::new(&[0.5, 0.5], &[1.0; 3], 2),
                "values: expected shape [2, 2] (4 elements), got 3 elements",
            ),
            (
                Contributions::new(&[0.5, 0.5], &[], 0),
                "dim: expected 1 to 1073741824, got 0",
            ),
            (
                found.through(&weight, [3, 3], 0),
                "output weight: expected shape [3, 3] (9 elements), got 12 elements",
            ),
            (
                found.through(&weight, [4, 3], 0),
                "output weight: expected shape [out, heads * 2] with out > 0, got [4, 3]",
            ),
            (
                found.through(&[], [0, 4], 0),
                "output weight: expected shape [out, heads * 2] with out > 0, got [0, 4]",
            ),
            (
                found.through(&weight, [3, 4], 2),
                "head: expected below 2, the heads of the output weight, got 2",
            ),
        ];
        for (result, message) in cases {
            assert_eq!(result.unwrap_err().to_string(), message);
        }
        // No keys is a row that sees nothing.
        let none = Contributions::new(&[], &[], 2).unwrap();
        assert_eq!((none.output(), none.shares()), (&[0.0; 2][..], None));
    }
}
