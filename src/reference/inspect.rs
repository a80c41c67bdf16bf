//! What attention looks at, in f64.
//!
//! A weight is W(i, j) = exp(s(j) - lse), from statistics that the device's forward
//! pass left. To the errors of a score and of the statistics (see
//! [`SAFETY`](super::SAFETY)) come 4 roundings and `exp2` of the difference, and, for
//! an LSE in one f32, its rounding. All that is made of weights follows to first
//! order, sums counted as everywhere here; at each function is what is special.

use std::ops::Range;

use super::project::{Known, products, values};
use super::rounding::{Approx, MAX, TINY, U, accumulation, store};
use super::row::Row;
use super::softmax::Softmax;
use super::{StageExpected, stage_of_row};
use crate::error::{Error, Result};
use crate::host::{DType, Dims, Inputs, Tensor};
use crate::inspect::{DISTANCE_BINS, FIELDS, Pairs, Quantity, RowSummary, Rows, TopKey};
use crate::options::Options;
use crate::problem::Region;
use crate::stage::Stage;
use crate::tensor::Stats;

/// Norms of the values, (B, Hkv, Nk, 1) or (B, Hq, Nk, 1), exact as they are given.
pub type KeyNorms<'a> = Tensor<'a>;

/// A quantity of chosen pairs, (batches, heads, rows, keys), stored as `out`, from
/// statistics of the kind `stats`.
///
/// # Errors
/// As [`Inputs::validate`], and [`Error::Value`] if a range does not fit or norms
/// are missing.
pub fn pairs(
    inputs: &Inputs,
    options: &Options,
    stats: Stats,
    norms: Option<&KeyNorms<'_>>,
    pairs: &Pairs,
    out: DType,
) -> Result<StageExpected> {
    let dims = inputs.validate(options)?;
    pairs.region.check(&dims)?;
    check_keys(&pairs.keys, &dims)?;
    let mut expected = StageExpected {
        values: Vec::new(),
        bound: Vec::new(),
    };
    for [b, h, i] in of_region(&pairs.region) {
        let row = Row::new(inputs, options, b, h, i);
        let line = match pairs.quantity {
            Quantity::Stage(stage) if stage != Stage::Probabilities => {
                stage_of_row(&row, stage, dims.kv_len)
            }
            quantity => {
                let mut line = vec![Approx::exact(0.0); dims.kv_len];
                for Weight { j, p, .. } in weights(&row, &row.softmax(), stats) {
                    line[j] = match quantity {
                        Quantity::Contribution => times(p, norm(norms, &dims, [b, h, j])?),
                        Quantity::Stage(_) => p,
                    };
                }
                line
            }
        };
        for approx in &line[pairs.keys.clone()] {
            let (value, bound) = store(*approx, out);
            expected.values.push(value);
            expected.bound.push(bound);
        }
    }
    Ok(expected)
}

/// What is expected of a row's summary.
#[derive(Debug, Clone, PartialEq)]
pub struct RowExpected {
    /// The numbers of [`RowSummary`] before its largest weights, in its order.
    pub values: Vec<f64>,
    /// Their bounds.
    pub bound: Vec<f64>,
    /// Every visible key, its weight and contribution, each with its bound.
    keys: Vec<(usize, [(f64, f64); 2])>,
    top: usize,
}

impl RowExpected {
    /// Checks a row's largest weights: their number and order, each one's weight and
    /// contribution, and that no larger weight was left out. Returns how many numbers
    /// were compared.
    ///
    /// # Errors
    /// The first thing that is wrong, in words.
    pub fn check_top(&self, top: &[TopKey]) -> Result<usize, String> {
        if self.keys.iter().any(|(_, [w, _])| !w.1.is_finite()) {
            return Ok(0);
        }
        let wanted = self.top.min(self.keys.len());
        if top.len() != wanted {
            return Err(format!("{} of {wanted} largest weights", top.len()));
        }
        for (n, got) in top.iter().enumerate() {
            let found = self.keys.iter().find(|(j, _)| *j == got.key as usize);
            let Some((_, expected)) = found else {
                return Err(format!("key {} is not visible", got.key));
            };
            for (got, (value, bound)) in [got.weight, got.contribution].iter().zip(expected) {
                let within = (f64::from(*got) - value).abs() <= *bound;
                if !within {
                    return Err(format!("number {n} is {got}, not {value} within {bound}"));
                }
            }
            let is_after = |before: &TopKey| {
                before.weight > got.weight || (before.weight == got.weight && before.key < got.key)
            };
            if n > 0 && !is_after(&top[n - 1]) {
                return Err(format!("number {n}, {got:?}, after {:?}", top[n - 1]));
            }
        }
        let least = top.last().map_or(f64::INFINITY, |t| f64::from(t.weight));
        let is_listed = |j: usize| top.iter().any(|t| t.key as usize == j);
        let missed = self
            .keys
            .iter()
            .find(|(j, [w, _])| w.0 - w.1 > least && !is_listed(*j));
        match missed {
            Some((j, [w, _])) => Err(format!("key {j} of weight {} was left out", w.0)),
            None => Ok(2 * top.len()),
        }
    }

    /// The numbers of a summary that are to be compared with `values`.
    pub fn numbers(summary: &RowSummary) -> Vec<f32> {
        let mut numbers = vec![
            summary.mass,
            summary.sink_mass,
            summary.entropy,
            summary.contributions,
            summary.first_mass,
            summary.visible,
            summary.score_mean,
            summary.score_squares,
        ];
        numbers.extend(summary.distance_mass);
        numbers
    }
}

/// Summaries of rows from statistics of the kind `stats`, in the order of the region.
///
/// # Errors
/// As [`pairs`].
pub fn rows(
    inputs: &Inputs,
    options: &Options,
    stats: Stats,
    norms: Option<&KeyNorms<'_>>,
    wanted: &Rows,
) -> Result<Vec<RowExpected>> {
    let dims = inputs.validate(options)?;
    wanted.region.check(&dims)?;
    let all = of_region(&wanted.region).into_iter();
    all.map(|at| summary(inputs, options, stats, norms, wanted, &dims, at))
        .collect()
}

fn summary(
    inputs: &Inputs,
    options: &Options,
    stats: Stats,
    norms: Option<&KeyNorms<'_>>,
    wanted: &Rows,
    dims: &Dims,
    [b, h, i]: [usize; 3],
) -> Result<RowExpected> {
    let row = Row::new(inputs, options, b, h, i);
    let softmax = row.softmax();
    let all = weights(&row, &softmax, stats);
    let (mut mass, mut first, mut contributions) =
        (Total::default(), Total::default(), Total::default());
    let mut bins = [Total::default(); DISTANCE_BINS];
    let mut keys = Vec::with_capacity(all.len());
    for &Weight { j, p, .. } in &all {
        let contribution = match norms {
            Some(_) => times(p, norm(norms, dims, [b, h, j])?),
            None => Approx::exact(0.0),
        };
        mass.push(p);
        contributions.push(contribution);
        if j < wanted.first_keys {
            first.push(p);
        }
        bins[bin_of(row.distance(j))].push(p);
        keys.push((j, [p, contribution].map(|x| store(x, DType::F32))));
    }
    let (mean, squares) = moments(all.iter().map(|w| row.raw(w.j)));
    let visible = Approx::exact(all.len() as f64);
    let mut numbers: Vec<(f64, f64)> = [
        mass.approx(),
        sink_mass(&row, &softmax, stats),
        entropy(&all),
        contributions.approx(),
        first.approx(),
        visible,
        mean,
        squares,
    ]
    .map(|x| store(x, DType::F32))
    .into();
    debug_assert_eq!(numbers.len(), FIELDS);
    numbers.extend(bins.map(|bin| store(bin.approx(), DType::F32)));
    let (values, bound) = numbers.into_iter().unzip();
    Ok(RowExpected {
        values,
        bound,
        keys,
        top: wanted.top,
    })
}

/// Mass that each key receives from the rows of a region: (batches, heads, Nk).
///
/// # Errors
/// As [`pairs`].
pub fn received(
    inputs: &Inputs,
    options: &Options,
    stats: Stats,
    region: &Region,
) -> Result<StageExpected> {
    let dims = inputs.validate(options)?;
    region.check(&dims)?;
    let mut totals = Vec::new();
    for b in region.batches.clone() {
        for h in region.heads.clone() {
            let mut of_head = vec![Total::default(); dims.kv_len];
            for i in region.rows.clone() {
                let row = Row::new(inputs, options, b, h, i);
                for Weight { j, p, .. } in weights(&row, &row.softmax(), stats) {
                    of_head[j].push(p);
                }
            }
            totals.extend(of_head);
        }
    }
    let stored = totals.iter().map(|total| store(total.approx(), DType::F32));
    let (values, bound) = stored.unzip();
    Ok(StageExpected { values, bound })
}

/// |V_j| of (B, H, N, D): (B, H, N).
pub fn value_norms(value: &Tensor<'_>) -> StageExpected {
    let width = value.shape()[3].max(1);
    let all = values(value);
    let norms = all.chunks_exact(width).map(|v| {
        let mut sum = Total::default();
        v.iter().for_each(|&x| sum.push(times(Approx::exact(x), x)));
        store(root(sum.approx()), DType::F32)
    });
    let (values, bound) = norms.unzip();
    StageExpected { values, bound }
}

/// sqrt(max(0, V_j G_h V_j)) for values (B, Hkv, N, D) and Gram matrices
/// (1, Hq, D, D), f32: (B, Hq, N). The product V_j G_h is rounded to f32.
///
/// # Errors
/// [`Error::Shape`] if the shapes do not fit each other.
pub fn value_norms_through(value: &Tensor<'_>, gram: &Tensor<'_>) -> Result<StageExpected> {
    let [batch, kv_heads, rows, width] = value.shape();
    let [_, heads, _, _] = gram.shape();
    let fits = gram.shape() == [1, heads, width, width] && width > 0;
    if !fits || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        let expected = format!("[1, a multiple of {kv_heads}, {width}, {width}]");
        return Err(Error::shape("gram", expected, gram.shape()));
    }
    let (v, g) = (values(value), gram.data());
    let mut expected = StageExpected {
        values: Vec::new(),
        bound: Vec::new(),
    };
    for b in 0..batch {
        for h in 0..heads {
            let start = (b * kv_heads + h / (heads / kv_heads)) * rows * width;
            let of_head = &v[start..start + rows * width];
            let matrix: Vec<f32> = (h * width * width..(h + 1) * width * width)
                .map(|n| g.get(n))
                .collect();
            let matrix = Tensor::f32(&matrix, [1, 1, width, width])?;
            let exact = Known {
                values: of_head.to_vec(),
                errors: None,
            };
            let through = products(&exact, [1, 1, rows, width], &matrix, None)?;
            for (v, y) in of_head.chunks_exact(width).zip(through.chunks_exact(width)) {
                let mut sum = Total::default();
                for (&v, y) in v.iter().zip(y) {
                    let y = y.map(|value, error| Approx {
                        value,
                        error: error + U * value.abs(),
                    });
                    sum.push(times(y, v));
                }
                let (value, bound) = store(root(sum.approx()), DType::F32);
                expected.values.push(value);
                expected.bound.push(bound);
            }
        }
    }
    Ok(expected)
}

/// A visible key of a row: ln p and p.
struct Weight {
    j: usize,
    exponent: f64,
    p: Approx,
}

/// The weights of the visible keys, in order, from rounded statistics.
fn weights(row: &Row, softmax: &Softmax, stats: Stats) -> Vec<Weight> {
    let keys = softmax.keys.iter();
    keys.map(|key| {
        let p = match softmax.lse.value.is_finite() {
            true => weight(row.masked(key.j), softmax, stats),
            false => softmax.lse,
        };
        let exponent = row.masked(key.j).value - softmax.state[0].value - softmax.state[1].value;
        Weight {
            j: key.j,
            exponent,
            p,
        }
    })
    .collect()
}

/// exp(score - lse).
fn weight(score: Approx, softmax: &Softmax, stats: Stats) -> Approx {
    let [maximum, log_sum] = softmax.state;
    let x = score.value - maximum.value;
    let inherited = match stats {
        Stats::RowState => maximum.error + log_sum.error + 5.0 * U * log_sum.value.abs(),
        Stats::Lse => softmax.lse.error + U * softmax.lse.value.abs(),
    };
    let exp2 = 6.0 + 4.0 * (x.abs() + log_sum.value.abs()) * std::f64::consts::LOG2_E;
    let exponent = score.error + inherited + U * (exp2 + 4.0 * x.abs());
    let p = (x - log_sum.value).exp();
    let error = match p == 0.0 {
        true => (x - log_sum.value + exponent).min(0.0).exp(),
        false => p * exponent.min(700.0).exp_m1(),
    };
    Approx {
        value: p,
        error: error + TINY,
    }
}

fn sink_mass(row: &Row, softmax: &Softmax, stats: Stats) -> Approx {
    match row.sink() {
        None => Approx::exact(0.0),
        Some(_) if !softmax.lse.value.is_finite() => softmax.lse,
        Some(sink) => weight(Approx::exact(sink), softmax, stats),
    }
}

/// ln m - sum p ln p / m for the sum m of the weights. An error d of a weight moves
/// it by (d / m) (ln w + H) to first order, w = p / m, because an error that all
/// weights share does not move it; where d is above w, ln d stands for ln w. The
/// logarithm is right to 2^-21 or 3 ulp, the division to 2.5.
fn entropy(all: &[Weight]) -> Approx {
    if all.is_empty() {
        return Approx::exact(0.0);
    }
    if let Some(open) = all.iter().find(|w| !w.p.value.is_finite()) {
        return open.p;
    }
    let m: f64 = all.iter().map(|w| w.p.value).sum();
    if m == 0.0 {
        return Approx::UNDETERMINED;
    }
    let mut logs = Total::default();
    for w in all.iter().filter(|w| w.p.value > 0.0) {
        logs.push(Approx::exact(w.p.value * w.exponent));
    }
    let value = m.ln() - logs.value / m;
    let moved = all.iter().map(|w| {
        let d = w.p.error / m;
        let log = (w.p.value / m).max(d).ln().abs();
        d * (log + value.abs() + 1.0)
    });
    let size = logs.magnitude / m;
    let sums = accumulation(logs.terms, logs.in_order / m, size);
    Approx {
        value,
        error: moved.sum::<f64>() + U * (sums + 8.0 * size + 4.0 * m.ln().abs() + 8.0),
    }
}

/// Mean of the scores and sum of the squares around it. An error e of a score and of
/// the mean moves a square by 2 |s - mean| e + e^2.
fn moments(scores: impl Iterator<Item = Approx> + Clone) -> (Approx, Approx) {
    let mut sum = Total::default();
    scores.clone().for_each(|s| sum.push(s));
    if sum.terms == 0 {
        return (Approx::exact(0.0), Approx::exact(0.0));
    }
    let n = sum.terms as f64;
    let mean = sum.approx().map(|value, error| Approx {
        value: value / n,
        error: error / n + 3.0 * U * (value / n).abs() + TINY,
    });
    if !mean.value.is_finite() {
        return (mean, mean);
    }
    let mut squares = Total::default();
    for s in scores {
        let d = (s.value - mean.value).abs();
        let error = s.error + mean.error + U * d;
        squares.push(Approx {
            value: d * d,
            error: 2.0 * d * error + error * error + U * d * d + TINY,
        });
    }
    (mean, squares.approx())
}

/// The bin of a distance: 0, 1, 2 to 3, 4 to 7, ...
fn bin_of(distance: u64) -> usize {
    ((u64::BITS - distance.leading_zeros()) as usize).min(DISTANCE_BINS - 1)
}

/// The root of a sum, 0 where it is negative: an error e moves it by e / root, and
/// never by more than the root of e. WGSL grants 1 / inverseSqrt(x), 4.5 ulp.
fn root(sum: Approx) -> Approx {
    sum.map(|value, error| {
        let root = value.max(0.0).sqrt();
        let moved = match root > 0.0 {
            true => error.sqrt().min(error / root),
            false => error.sqrt(),
        };
        Approx {
            value: root,
            error: moved + 10.0 * U * root + TINY,
        }
    })
}

/// The product with an exact factor.
fn times(x: Approx, factor: f64) -> Approx {
    if !factor.is_finite() {
        return Approx::UNDETERMINED;
    }
    x.map(|value, error| Approx {
        value: value * factor,
        error: error * factor.abs() + U * (value * factor).abs() + TINY,
    })
}

fn norm(norms: Option<&KeyNorms<'_>>, dims: &Dims, [b, h, j]: [usize; 3]) -> Result<f64> {
    let Some(norms) = norms else {
        return Err(Error::value("norms", "norms of the values", "none"));
    };
    let [batch, heads, keys, one] = norms.shape();
    let fits = heads == dims.kv_heads || heads == dims.q_heads;
    if [batch, keys, one] != [dims.batch, dims.kv_len, 1] || !fits {
        let expected = "(B, Hkv, Nk, 1) or (B, Hq, Nk, 1)";
        return Err(Error::shape("norms", expected, norms.shape()));
    }
    let head = h / (dims.q_heads / heads);
    Ok(f64::from(norms.at([b, head, j, 0])))
}

fn check_keys(keys: &Range<usize>, dims: &Dims) -> Result<()> {
    match keys.start <= keys.end && keys.end <= dims.kv_len {
        true => Ok(()),
        false => {
            let expected = format!("a range within 0..{}", dims.kv_len);
            Err(Error::value("keys", expected, format!("{keys:?}")))
        }
    }
}

/// Batch entry, head and row of every row of a region, in order.
fn of_region(region: &Region) -> Vec<[usize; 3]> {
    let mut all = Vec::new();
    for b in region.batches.clone() {
        for h in region.heads.clone() {
            all.extend(region.rows.clone().map(|i| [b, h, i]));
        }
    }
    all
}

/// A sum of numbers of known accuracy.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    value: f64,
    error: f64,
    /// Sum of the absolute values of the partial sums.
    in_order: f64,
    magnitude: f64,
    terms: usize,
    open: Option<Approx>,
}

impl Total {
    fn push(&mut self, x: Approx) {
        if !x.value.is_finite() {
            self.open = Some(x);
        }
        self.value += x.value;
        self.error += x.error;
        self.in_order += self.value.abs();
        self.magnitude += x.value.abs();
        self.terms += 1;
    }

    fn approx(&self) -> Approx {
        if let Some(open) = self.open {
            return open;
        }
        if self.magnitude > MAX {
            return Approx::UNDETERMINED;
        }
        let rounding = accumulation(self.terms, self.in_order, self.magnitude);
        Approx {
            value: self.value,
            error: self.error + U * rounding,
        }
    }
}
