//! What a row's scores become: weights, log-sum-exp, output.

use super::rounding::{Approx, MAX, TINY, U, accumulation};
use super::row::Row;

/// A visible key of a row.
pub(super) struct Key {
    pub j: usize,
    pub probability: Approx,
    /// Bound of the probability's error without that of the denominator, which
    /// all keys of the row share.
    weight_error: f64,
}

/// The softmax of a row.
pub(super) struct Softmax {
    /// The visible keys in order.
    pub keys: Vec<Key>,
    pub lse: Approx,
    /// The largest score, or the sink, and the log of the sum relative to it.
    pub state: [Approx; 2],
    /// Like [`Key::weight_error`], for the sink.
    sink_error: f64,
    /// Relative error of the accumulated denominator.
    sum_error: f64,
    has_sink: bool,
}

impl Row<'_> {
    /// Softmax over the visible keys and the sink.
    pub fn softmax(&self) -> Softmax {
        let sink = self.sink();
        let scores: Vec<(usize, Approx)> = (0..self.dims.kv_len)
            .filter(|&j| self.visible(j))
            .map(|j| (j, self.masked(j)))
            .collect();
        if scores.is_empty() {
            let lse = match sink {
                Some(value) => Approx {
                    value,
                    // Its own weight may come out as exp2(0) = 1 within 3 ulp.
                    error: U * (3.0 * value.abs() + 8.0),
                },
                None => Approx::exact(f64::NEG_INFINITY),
            };
            return Softmax::uniform_state(Vec::new(), lse, sink.is_some());
        }
        if let Some(lse) = not_finite(&scores) {
            return Softmax::uniform_state(scores, lse, sink.is_some());
        }

        let top = scores.iter().map(|(_, s)| s.value).fold(f64::MIN, f64::max);
        let shift = sink.map_or(top, |sink| sink.max(top));
        let folds = !self.has_bias();
        let rises = rises(&scores);
        let weight = |score: Approx| {
            let x = score.value - shift;
            let exp2 = 6.0 + 4.0 * (x * std::f64::consts::LOG2_E).abs();
            // Without a bias, log2(e) may be folded in before the subtraction.
            let base = if folds {
                2.0 * (score.value.abs() + shift.abs())
            } else {
                0.0
            };
            let exponent = score.error + U * (exp2 + 2.0 * x.abs() + base + 7.0 * rises);
            let w = x.exp();
            let error = if w == 0.0 {
                // An error of the score may be larger than the gap.
                (x + exponent).min(0.0).exp()
            } else {
                w * exponent.min(700.0).exp_m1()
            };
            (w, error.min(1.0) + TINY)
        };

        let (mut sum, mut in_order, mut errors) = (0f64, 0f64, 0f64);
        let mut keys = Vec::with_capacity(scores.len());
        for &(j, score) in &scores {
            let (w, error) = weight(score);
            sum += w;
            in_order += sum;
            errors += error;
            keys.push((j, w, error));
        }
        let (sink_weight, sink_error) = sink.map_or((0.0, 0.0), |s| weight(Approx::exact(s)));
        sum += sink_weight;
        errors += sink_error;
        let sum_error = U * accumulation(keys.len(), in_order / sum, 1.0);
        let errors = errors / sum;
        let log = sum.ln();
        // A weight's error is cut off at 1; the sum's logarithm moves as far as
        // the scores that can be the largest.
        let reach = scores
            .iter()
            .filter(|(_, s)| s.value + 2.0 * s.error >= top);
        let reach = reach.map(|(_, s)| s.error).fold(0.0, f64::max);
        let moved = if reach > 0.5 { 2.0 * reach } else { 0.0 };
        // The maximum is exact unless log2(e) is folded into it.
        let shift = Approx {
            value: shift,
            error: if folds { 3.0 * U * shift.abs() } else { 0.0 },
        };
        let log_sum = Approx {
            value: log,
            error: errors + moved + sum_error + U * (8.0 + 6.0 * log.abs()),
        };
        let lse = shift.plus(log_sum);
        Softmax {
            keys: keys
                .into_iter()
                .map(|(j, w, error)| Key {
                    j,
                    probability: Approx {
                        value: w / sum,
                        error: (error / sum + w / sum * (errors + sum_error + 6.0 * U)).min(1.0),
                    },
                    weight_error: error / sum,
                })
                .collect(),
            lse,
            state: [shift, log_sum],
            sink_error: sink_error / sum,
            sum_error,
            has_sink: sink.is_some(),
        }
    }

    /// The Dv values of the output.
    pub fn output(&self, softmax: &Softmax) -> Vec<Approx> {
        let columns = self.dims.v_dim;
        if softmax.keys.is_empty() {
            return vec![Approx::exact(0.0); columns];
        }
        if !softmax.lse.value.is_finite() {
            return vec![softmax.lse; columns];
        }
        let mut mean = vec![Sum::default(); columns];
        for key in &softmax.keys {
            for (sum, v) in mean.iter_mut().zip(self.value_of(key.j)) {
                sum.push(key.probability.value, v);
            }
        }
        let mut spread = vec![Spread::default(); columns];
        for key in &softmax.keys {
            let columns = spread.iter_mut().zip(&mean).zip(self.value_of(key.j));
            for ((spread, mean), v) in columns {
                spread.push(key.weight_error, v - mean.value);
            }
        }
        if softmax.has_sink {
            for (spread, mean) in spread.iter_mut().zip(&mean) {
                spread.push(softmax.sink_error, mean.value);
            }
        }
        let column = |d: usize| {
            let inherited = self.inherited_by_output(softmax, d);
            let column = self.column(softmax, d, mean[d], spread[d]);
            column.map(|value, error| Approx {
                value,
                error: error + inherited,
            })
        };
        (0..columns).map(column).collect()
    }

    /// What errors of the values do to a column.
    fn inherited_by_output(&self, softmax: &Softmax, d: usize) -> f64 {
        let of_key = |key: &Key| {
            let error = self.value_errors(key.j).map_or(0.0, |errors| errors[d]);
            (key.probability.value + key.weight_error) * error
        };
        softmax.keys.iter().map(of_key).sum()
    }

    fn column(&self, softmax: &Softmax, d: usize, mean: Sum, spread: Spread) -> Approx {
        let terms = softmax.keys.len();
        if !mean.value.is_finite() {
            return self.column_not_finite(softmax, d);
        }
        // Before the division the sum is up to n times larger.
        if mean.largest * terms as f64 > MAX && terms > 1 {
            return Approx::UNDETERMINED;
        }
        let Sum {
            value,
            in_order,
            magnitude,
            ..
        } = mean;
        let rounding = accumulation(terms, in_order, magnitude) + magnitude + 6.0 * value.abs();
        Approx {
            value,
            error: spread.weighted.min(spread.largest)
                + softmax.sum_error * value.abs()
                + U * rounding
                + TINY,
        }
    }

    /// Column `d` where a visible value is NaN or infinite.
    fn column_not_finite(&self, softmax: &Softmax, d: usize) -> Approx {
        // Weights below this may have vanished in f32, and 0 * inf is NaN.
        const VANISHING: f64 = 1e-30;
        let mut sum = 0.0;
        let mut largest = 0f64;
        let mut vanishing = false;
        for key in &softmax.keys {
            let v = self.value_of(key.j).nth(d).unwrap_or(0.0);
            if v.is_nan() {
                return Approx::NAN;
            }
            if v.is_infinite() {
                sum += v;
                vanishing |= key.probability.value < VANISHING;
            } else {
                largest = largest.max(v.abs());
            }
        }
        // Before the division the finite part may overflow the other way.
        match vanishing || largest * softmax.keys.len() as f64 > MAX {
            true => Approx::UNDETERMINED,
            false => Approx::exact(sum),
        }
    }
}

impl Softmax {
    /// Of a row without a visible key, or with scores that are not finite.
    fn uniform_state(scores: Vec<(usize, Approx)>, lse: Approx, has_sink: bool) -> Softmax {
        let key = |(j, _)| Key {
            j,
            probability: lse,
            weight_error: 0.0,
        };
        Softmax {
            keys: scores.into_iter().map(key).collect(),
            lse,
            state: [lse, Approx::exact(0.0)],
            sink_error: 0.0,
            sum_error: 0.0,
            has_sink,
        }
    }
}

/// Mean of the values in one column.
#[derive(Clone, Copy, Default)]
struct Sum {
    value: f64,
    /// Sum of the absolute values of the partial sums.
    in_order: f64,
    magnitude: f64,
    largest: f64,
}

impl Sum {
    fn push(&mut self, p: f64, v: f64) {
        self.value += p * v;
        self.in_order += self.value.abs();
        self.magnitude += p * v.abs();
        self.largest = self.largest.max(v.abs());
    }
}

/// How far wrong weights may move a mean: `sum_j err(j) |v(j) - O|`, and never
/// past the values themselves.
#[derive(Clone, Copy, Default)]
struct Spread {
    weighted: f64,
    largest: f64,
}

impl Spread {
    fn push(&mut self, error: f64, deviation: f64) {
        self.weighted += error * deviation.abs();
        self.largest = self.largest.max(deviation.abs());
    }
}

/// What becomes of a row with a score that is not finite: NaN if one is NaN.
fn not_finite(scores: &[(usize, Approx)]) -> Option<Approx> {
    let of = |s: &Approx| s.value.is_nan() && !s.is_undetermined();
    if scores.iter().any(|(_, s)| of(s)) {
        return Some(Approx::NAN);
    }
    scores
        .iter()
        .any(|(_, s)| !s.value.is_finite())
        .then_some(Approx::UNDETERMINED)
}

/// How often a running maximum over tiles of at least four keys may rise, and
/// twice more for merging partial results.
fn rises(scores: &[(usize, Approx)]) -> f64 {
    let mut top = f64::NEG_INFINITY;
    let mut count = 0;
    for (_, score) in scores {
        if score.value > top {
            top = score.value;
            count += 1;
        }
    }
    (count.min(scores.len().div_ceil(4)) + 2) as f64
}
