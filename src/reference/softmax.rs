//! What a row's scores become: weights, log-sum-exp, output.
//!
//! # What errors of scores do
//!
//! Let the exponent of key j be off by d(j), |d(j)| <= E(j), the sink among the keys,
//! with weights P(j) and values v(j) (0 for the sink). A computation in f32 then has
//!
//! ```text
//! Z    = sum P(k) exp(d(k))              lse' - lse = ln Z
//! P'(j) = P(j) exp(d(j)) / Z
//! O' - O = sum P'(j) (v(j) - O) = sum P(j) (exp(d(j)) - 1) (v(j) - O) / Z
//! ```
//!
//! the last as `sum P(j) (v(j) - O)` is 0. With `low = sum P(k) exp(-E(k))` and
//! `high = sum P(k) exp(E(k))`, which Z lies between, for errors of any size:
//!
//! - |lse' - lse| <= max(ln high, -ln low);
//! - |P'(j) - P(j)| <= P(j) (exp(E(j) + that) - 1), and P' stays within 0 to 1;
//! - |O' - O| <= sum P(j) (exp(E(j)) - 1) |v(j) - O| / low; and for any set S of keys,
//!   as the P' are at least 0 and sum to at most 1,
//!   |O' - O| <= max over S of |v(j) - O| + sum over the rest of `most(j)` |v(j) - O|
//!   where `most(j) = P(j) exp(E(j)) / low` is not less than P'(j). S are the keys that
//!   may have weight at all: where errors are large, O is anywhere between their values.
//!
//! Where E is small these are its first order. E holds the factor
//! [`SAFETY`](super::SAFETY); what is kept of the bounds is over it, as everywhere.

use super::rounding::{Approx, MAX, SAFETY, TINY, U, accumulation};
use super::row::Row;
use crate::error::Result;
use crate::memory::{collected, filled, room};

/// exp of less is 0 in f32, by far.
const VANISHED: f64 = -120.0;

/// A visible key of a row.
pub(super) struct Key {
    pub j: usize,
    pub probability: Approx,
    /// P(j) (exp(E(j)) - 1) / low, over the safety factor: what the key's own error
    /// does to the weights.
    weight_error: f64,
    /// Its weight is not larger than this.
    most: f64,
    /// And not less than this.
    least: f64,
}

/// The softmax of a row.
pub(super) struct Softmax {
    /// The visible keys in order.
    pub keys: Vec<Key>,
    pub lse: Approx,
    /// The largest score, or the sink, and the log of the sum relative to it.
    pub state: [Approx; 2],
    /// What the output is where it is no mean: NaN or undetermined.
    pub open: Option<Approx>,
    sink: Option<Key>,
    /// Relative error of the accumulated denominator.
    sum_error: f64,
    /// How much weight errors of the scores may move.
    moved: f64,
}

impl Row<'_> {
    /// Softmax over the visible keys and the sink.
    pub fn softmax(&self) -> Result<Softmax> {
        let sink = self.sink();
        let visible = || (0..self.dims.kv_len).filter(|&j| self.visible(j));
        let mut scores: Vec<(usize, Approx)> = room("scores of a row", &[visible().count()])?;
        scores.extend(visible().map(|j| (j, self.masked(j))));
        if scores.is_empty() {
            let lse = match sink {
                Some(value) => Approx {
                    value,
                    // Its own weight may come out as exp2(0) = 1 within 3 ulp.
                    error: U * (3.0 * value.abs() + 8.0),
                },
                None => Approx::exact(f64::NEG_INFINITY),
            };
            return Softmax::without_scores(Vec::new(), lse, None);
        }
        if let Some((lse, output)) = not_finite(&scores, sink) {
            return Softmax::without_scores(scores, lse, Some(output));
        }

        let known = scores.iter().filter(|(_, s)| s.is_known());
        let top = known.map(|(_, s)| s.value).chain(sink);
        let shift = top.fold(f64::NEG_INFINITY, f64::max);
        let folds = !self.has_bias();
        let rises = rises(&scores);
        // ln of the weight relative to the largest, and E.
        let exponent = |score: Approx| {
            if !score.is_known() {
                // -inf, or a score that makes no difference.
                return (f64::NEG_INFINITY, 0.0);
            }
            let x = score.value - shift;
            let exp2 = 6.0 + 4.0 * (x * std::f64::consts::LOG2_E).abs();
            // Without a bias, log2(e) may be folded in before the subtraction.
            let base = if folds {
                2.0 * (score.value.abs() + shift.abs())
            } else {
                0.0
            };
            let error = score.error + U * (exp2 + 2.0 * x.abs() + base + 7.0 * rises);
            (x, SAFETY * error)
        };
        let exponents: Vec<(f64, f64)> =
            collected("scores of a row", scores.iter().map(|(_, s)| exponent(*s)))?;
        let of_sink = sink.map(|sink| exponent(Approx::exact(sink)));
        let all = || exponents.iter().copied().chain(of_sink);

        let log = log_sum(all().map(|(x, _)| x));
        let low = log_sum(all().map(|(x, e)| x - e)) - log;
        let high = log_sum(all().map(|(x, e)| x + e)) - log;
        let normalisation = high.max(-low).max(0.0);
        let sum = log.exp();
        let (mut partial, mut in_order) = (0f64, 0f64);
        for (x, _) in &exponents {
            partial += (x - log).exp();
            in_order += partial;
        }
        let n = exponents.len();
        let flushed = n as f64 * TINY / sum;
        let key = |j: usize, (x, e): (f64, f64)| {
            let p = (x - log).exp();
            let grown = match e < 0.5 {
                true => p * e.exp_m1(),
                false => (x - log + e).min(700.0).exp(),
            };
            let error = grown * (-low).min(700.0).exp() / SAFETY;
            Key {
                j,
                probability: Approx::exact(p),
                weight_error: error.min(f64::MAX) + TINY / sum,
                most: (x - log + e - low).min(0.0).exp() + SAFETY * TINY / sum,
                least: (x - log - e - high).exp(),
            }
        };
        let pairs = scores.iter().zip(&exponents);
        let weights = pairs.map(|(&(j, _), &at)| key(j, at));
        let mut keys: Vec<Key> = collected("weights of a row", weights)?;
        let sink = of_sink.map(|at| key(usize::MAX, at));
        let errors = keys.iter().chain(&sink).map(|key| key.weight_error);
        let moved = (SAFETY * errors.sum::<f64>()).min(1.0);
        let in_order = (in_order + n as f64 * moved).min(n as f64);
        let sum_error = U * accumulation(n, in_order, 1.0);
        let shared = SAFETY * (sum_error + flushed + 6.0 * U) + normalisation;
        for (key, (x, e)) in keys.iter_mut().zip(exponents) {
            let p = key.probability.value;
            let error = match e + shared < 0.5 {
                true => p * (e + shared).exp_m1(),
                false => (x - log + e + shared).min(700.0).exp(),
            };
            key.probability.error = (error / SAFETY + TINY / sum).min(1.0);
        }

        // The maximum is exact unless log2(e) is folded into it: an error of the largest
        // score is one of the sum relative to it.
        let shift = Approx {
            value: shift,
            error: if folds { 3.0 * U * shift.abs() } else { 0.0 },
        };
        let log_sum = Approx {
            value: log,
            error: normalisation / SAFETY + flushed + sum_error + U * (8.0 + 6.0 * log.abs()),
        };
        let lse = shift.value + log;
        let rounding = (U * lse.abs()).min(log.abs() + log_sum.error);
        Ok(Softmax {
            keys,
            lse: Approx {
                value: lse,
                error: shift.error + log_sum.error + rounding,
            },
            state: [shift, log_sum],
            open: None,
            sink,
            sum_error,
            moved,
        })
    }

    /// The Dv values of the output.
    pub fn output(&self, softmax: &Softmax) -> Result<Vec<Approx>> {
        let columns = self.dims.v_dim;
        let (what, shape) = ("output of a row", &[columns]);
        if softmax.keys.is_empty() {
            return filled(what, shape, Approx::exact(0.0));
        }
        if let Some(open) = softmax.open {
            return filled(what, shape, open);
        }
        let mut mean = filled(what, shape, Sum::default())?;
        for key in &softmax.keys {
            for (sum, v) in mean.iter_mut().zip(self.value_of(key.j)) {
                sum.push(key.probability.value, v);
            }
        }
        let mut spread = filled(what, shape, Spread::default())?;
        for key in &softmax.keys {
            let columns = spread.iter_mut().zip(&mean).zip(self.value_of(key.j));
            for ((spread, mean), v) in columns {
                spread.push(key, v - mean.value, v);
            }
        }
        if let Some(sink) = &softmax.sink {
            for (spread, mean) in spread.iter_mut().zip(&mean) {
                spread.push(sink, mean.value, 0.0);
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
        collected(what, (0..columns).map(column))
    }

    /// What errors of the values do to a column.
    fn inherited_by_output(&self, softmax: &Softmax, d: usize) -> f64 {
        let (mut sum, mut largest) = (0f64, 0f64);
        for key in &softmax.keys {
            let error = self.value_errors(key.j).map_or(0.0, |errors| errors[d]);
            sum += key.most * error;
            largest = largest.max(error);
        }
        sum.min(largest)
    }

    fn column(&self, softmax: &Softmax, d: usize, mean: Sum, spread: Spread) -> Approx {
        let terms = softmax.keys.len();
        if !mean.value.is_finite() {
            return self.column_not_finite(softmax, d);
        }
        // Before the division the sum is up to n times larger.
        let largest = mean.largest;
        if largest * terms as f64 > MAX && terms > 1 {
            return Approx::UNDETERMINED;
        }
        // What is summed may be larger by what errors of the scores move.
        let moved = SAFETY * spread.reached + softmax.moved * mean.magnitude;
        let up_to = |x: f64, most: f64| (x + moved * most).min(largest * most);
        let n = terms as f64;
        let (in_order, magnitude) = (up_to(mean.in_order, n), up_to(mean.magnitude, 1.0));
        let value = up_to(mean.value.abs(), 1.0);
        let rounding = accumulation(terms, in_order, magnitude) + magnitude + 6.0 * value;
        Approx {
            value: mean.value,
            error: spread.error() + softmax.sum_error * value + U * rounding + TINY,
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
            let errors = self.value_errors(key.j);
            if errors.is_some_and(|errors| !errors[d].is_finite()) {
                return Approx::UNDETERMINED;
            }
            if v.is_nan() {
                return Approx::NAN;
            }
            if v.is_infinite() {
                sum += v;
                vanishing |= key.least < VANISHING;
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
    /// Of a row without a visible key, or with scores that decide about all by themselves.
    fn without_scores(
        scores: Vec<(usize, Approx)>,
        lse: Approx,
        open: Option<Approx>,
    ) -> Result<Softmax> {
        // Beside a NaN a key whose score is -inf may be treated like an excluded one.
        let of_score = |score: Approx| match score.value == f64::NEG_INFINITY {
            true => Approx::UNDETERMINED,
            false => open.unwrap_or(lse),
        };
        let key = |(j, score)| Key {
            j,
            probability: of_score(score),
            weight_error: 0.0,
            most: 1.0,
            least: 0.0,
        };
        Ok(Softmax {
            keys: collected("weights of a row", scores.into_iter().map(key))?,
            lse,
            state: [lse, Approx::exact(0.0)],
            open,
            sink: None,
            sum_error: 0.0,
            moved: 0.0,
        })
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

/// How far wrong weights may move a mean: see the top of the file.
#[derive(Clone, Copy, Default)]
struct Spread {
    /// Sum of `weight_error` |v - O|.
    weighted: f64,
    /// The largest |v - O| of the keys that may have weight.
    largest: f64,
    /// Sum of `most` |v - O| over the others.
    rest: f64,
    /// Sum of `weight_error` |v|.
    reached: f64,
}

impl Spread {
    fn push(&mut self, key: &Key, deviation: f64, v: f64) {
        self.weighted += key.weight_error * deviation.abs();
        self.reached += key.weight_error * v.abs();
        match key.most > U {
            true => self.largest = self.largest.max(deviation.abs()),
            false => self.rest += key.most * deviation.abs(),
        }
    }

    fn error(&self) -> f64 {
        let most = (self.largest + self.rest) / SAFETY;
        self.weighted.min(most)
    }
}

/// ln of the sum of exp.
fn log_sum(exponents: impl Iterator<Item = f64> + Clone) -> f64 {
    let top = exponents.clone().fold(f64::NEG_INFINITY, f64::max);
    top + exponents.map(|x| (x - top).exp()).sum::<f64>().ln()
}

/// What becomes of log-sum-exp and output of a row, if a score that is not finite decides:
///
/// - a NaN makes both NaN;
/// - beside +inf the output is NaN, as exp(inf - inf) is. The log-sum-exp is +inf by the
///   formula and NaN by most implementations: undetermined;
/// - a score of -inf has weight 0, and so has one that may overflow to -inf and is far
///   below the largest: they decide nothing. Where there is no other score and no sink,
///   the output is 0/0: undetermined, as is a row with a score that may be anything.
fn not_finite(scores: &[(usize, Approx)], sink: Option<f64>) -> Option<(Approx, Approx)> {
    let any = |is: &dyn Fn(&Approx) -> bool| scores.iter().any(|(_, s)| is(s));
    if any(&|s| s.value.is_nan() && !s.is_undetermined()) {
        return Some((Approx::NAN, Approx::NAN));
    }
    let undetermined = Some((Approx::UNDETERMINED, Approx::UNDETERMINED));
    if any(&Approx::is_undetermined) {
        return undetermined;
    }
    if any(&|s| s.value == f64::INFINITY) {
        return Some((Approx::UNDETERMINED, Approx::NAN));
    }
    let known = scores.iter().filter(|(_, s)| s.is_known());
    let least = known.map(|(_, s)| s.value - SAFETY * s.error).chain(sink);
    let top = least.fold(f64::NEG_INFINITY, f64::max);
    let decides = |s: &Approx| !s.is_known() && s.value > top + VANISHED;
    match top == f64::NEG_INFINITY || any(&decides) {
        true => undetermined,
        false => None,
    }
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
