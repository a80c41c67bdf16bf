//! Attention over several layers.

use super::weights::{Weights, zeros};
use crate::error::{Error, Result};

/// Attention rollout: how much of each input token, by weights alone, is in each token
/// after all layers, (n, n), rows summing to 1. `layers` are the weights of each, first
/// layer first, of self-attention over the same n tokens; heads are averaged before
/// ([`mean_over_heads`](super::mean_over_heads)).
///
/// The product A_L .. A_2 A_1 of Abnar and Zuidema (2020, *Quantifying Attention Flow in
/// Transformers*), where A is (W + I) / 2, the I for the residual connection, each row
/// divided by its sum: A(i, j) = (W(i, j) + \[i = j\]) / (1 + sum of row i). So a row that
/// sees no key stays what it was; of a row with a sink, the sink's part goes to key and
/// residual alike, by their size.
///
/// Weights are not contributions, and rollout follows weights: it knows nothing of the
/// sizes and directions of values. Costs at most n^3 multiply-adds a layer.
///
/// # Errors
/// [`Error::Value`] if there is no layer, or a weight is NaN, infinite or below 0: a
/// product of matrices would spread it; [`Error::Shape`] if the layers are not all
/// (n, n); [`Error::HostMemory`] if there is none for the product.
pub fn rollout(layers: &[Weights<'_>]) -> Result<Vec<f64>> {
    let Some(first) = layers.first() else {
        return Err(Error::value("layers", "at least one", 0));
    };
    let [n, _] = first.shape();
    for (at, layer) in layers.iter().enumerate() {
        if layer.shape() != [n, n] {
            let expected = format!("[{n}, {n}]");
            let actual = format!("{:?} in layer {at}", layer.shape());
            return Err(Error::shape("layers", expected, format_args!("{actual}")));
        }
        for (i, row) in layer.rows().enumerate() {
            let wrong = |w: &f32| !(*w >= 0.0 && w.is_finite());
            if let Some(j) = row.weights().iter().position(wrong) {
                let (expected, w) = ("finite weights of at least 0", row.weights()[j]);
                let actual = format!("{w} in layer {at} for query {i}, key {j}");
                return Err(Error::value("layers", expected, actual));
            }
        }
    }
    // Starts as what the tokens are: themselves.
    let mut product = zeros("rollout", n.saturating_mul(n))?;
    (0..n).for_each(|i| product[i * n + i] = 1.0);
    for layer in layers {
        let mut next = zeros("rollout", n * n)?;
        for (i, row) in layer.rows().enumerate() {
            let mass: f64 = row.weights().iter().map(|&w| f64::from(w)).sum();
            for (j, &weight) in row.weights().iter().enumerate() {
                let own = if i == j { 1.0 } else { 0.0 };
                let part = (f64::from(weight) + own) / (1.0 + mass);
                if part > 0.0 {
                    let below = &product[j * n..(j + 1) * n];
                    for (sum, p) in next[i * n..(i + 1) * n].iter_mut().zip(below) {
                        *sum += part * p;
                    }
                }
            }
        }
        product = next;
    }
    Ok(product)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(layers: &[&[f32]], n: usize) -> Vec<f64> {
        let layers: Vec<Weights<'_>> = (layers.iter())
            .map(|values| Weights::new(values, [n, n]).unwrap())
            .collect();
        rollout(&layers).unwrap()
    }

    #[test]
    fn two_layers_by_hand() {
        // A_1 = (1, 0; 3/8, 5/8), A_2 = (1, 0; 1/2, 1/2).
        let first = [1.0, 0.0, 0.75, 0.25];
        let second = [1.0, 0.0, 1.0, 0.0];
        assert_eq!(of(&[&first], 2), [1.0, 0.0, 0.375, 0.625]);
        // Row 1: 1/2 (1, 0) + 1/2 (3/8, 5/8); the order of layers matters.
        assert_eq!(of(&[&first, &second], 2), [1.0, 0.0, 0.6875, 0.3125]);
        let mirrored = [0.0, 1.0, 0.0, 1.0];
        assert_eq!(of(&[&first, &mirrored], 2), [0.6875, 0.3125, 0.375, 0.625]);
        assert_eq!(of(&[&mirrored, &first], 2), [0.5, 0.5, 0.1875, 0.8125]);
    }

    #[test]
    fn rows_that_sum_to_less_are_divided_by_their_sum() {
        // Row 0 sees nothing and stays itself; row 1 leaves half of its weight to a sink.
        let found = of(&[&[0.0, 0.0, 0.5, 0.0]], 2);
        assert_eq!(found[..2], [1.0, 0.0]);
        assert!((found[2] - 1.0 / 3.0).abs() < 1e-15);
        assert!((found[3] - 2.0 / 3.0).abs() < 1e-15);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let square = Weights::new(&[0.5; 4], [2, 2]).unwrap();
        let nan = [0.5, 0.5, f32::NAN, 0.5];
        let below = [0.5, 0.5, 1.5, -0.5];
        let cases: [(&[Weights<'_>], &str); 5] = [
            (&[], "layers: expected at least one, got 0"),
            (
                &[square, Weights::new(&[0.5; 6], [2, 3]).unwrap()],
                "layers: expected shape [2, 2], got [2, 3] in layer 1",
            ),
            (
                &[Weights::new(&[0.5; 6], [3, 2]).unwrap()],
                "layers: expected shape [3, 3], got [3, 2] in layer 0",
            ),
            (
                &[square, Weights::new(&nan, [2, 2]).unwrap()],
                "layers: expected finite weights of at least 0, got NaN in layer 1 for query 1, key 0",
            ),
            (
                &[Weights::new(&below, [2, 2]).unwrap()],
                "layers: expected finite weights of at least 0, got -0.5 in layer 0 for query 1, key 1",
            ),
        ];
        for (layers, message) in cases {
            assert_eq!(rollout(layers).unwrap_err().to_string(), message);
        }
        let none = Weights::new(&[], [0, 0]).unwrap();
        assert_eq!(rollout(&[none]).unwrap(), Vec::<f64>::new());
    }
}
