//! Rows in a few numbers, and the mass that keys receive.

use super::StageExpected;
use super::inspect::{KeyNorms, Weight, norm, of_region, weight, weights};
use super::rounding::{Approx, SAFETY, TINY, U, accumulation, store};
use super::row::Row;
use super::softmax::Softmax;
use super::total::{Total, times};
use crate::error::Result;
use crate::host::inputs::Inputs;
use crate::host::row_summary::{RowSummary, TopKey};
use crate::memory::{filled, room};
use crate::rules::dims::Dims;
use crate::rules::options::Options;
use crate::rules::region::Region;
use crate::rules::selection::{DISTANCE_BINS, FIELDS, Rows};
use crate::view::dtype::DType;
use crate::view::tensor::Stats;

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
/// As [`pairs`](super::pairs).
pub fn rows(
    inputs: &Inputs,
    options: &Options,
    stats: Stats,
    norms: Option<&KeyNorms<'_>>,
    wanted: &Rows,
) -> Result<Vec<RowExpected>> {
    let dims = inputs.validate(options)?;
    wanted.region.check(&dims)?;
    let mut expected = room("rows", &wanted.region.lens())?;
    for at in of_region(&wanted.region) {
        expected.push(summary(inputs, options, stats, norms, wanted, &dims, at)?);
    }
    Ok(expected)
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
    let row = Row::new(inputs, options, b, h, i)?;
    let softmax = row.softmax()?;
    let all = weights(&row, &softmax, stats)?;
    let (mut mass, mut first, mut contributions) =
        (Total::default(), Total::default(), Total::default());
    let mut bins = [Total::default(); DISTANCE_BINS];
    let mut keys = room("keys of a row", &[all.len()])?;
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
/// As [`pairs`](super::pairs).
pub fn received(
    inputs: &Inputs,
    options: &Options,
    stats: Stats,
    region: &Region,
) -> Result<StageExpected> {
    let dims = inputs.validate(options)?;
    region.check(&dims)?;
    let [batches, heads, _] = region.lens();
    let mut expected = StageExpected::room("received", &[batches, heads, dims.kv_len])?;
    for b in region.batches.clone() {
        for h in region.heads.clone() {
            let mut of_head = filled("received by a head", &[dims.kv_len], Total::default())?;
            for i in region.rows.clone() {
                let row = Row::new(inputs, options, b, h, i)?;
                for Weight { j, p, .. } in weights(&row, &row.softmax()?, stats)? {
                    of_head[j].push(p);
                }
            }
            for total in &of_head {
                expected.push(store(total.approx(), DType::F32));
            }
        }
    }
    Ok(expected)
}

fn sink_mass(row: &Row, softmax: &Softmax, stats: Stats) -> Approx {
    match (row.sink(), softmax.open) {
        (None, _) => Approx::exact(0.0),
        (Some(_), Some(open)) => open,
        (Some(sink), None) => weight(Approx::exact(sink), softmax, stats),
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
    let most = (all.len() as f64).ln();
    let moved = moved.sum::<f64>().min(value.max(most - value) / SAFETY);
    let size = logs.magnitude / m + moved;
    let sums = accumulation(logs.terms, logs.in_order / m, size);
    Approx {
        value,
        error: moved + U * (sums + 8.0 * size + 4.0 * m.ln().abs() + 8.0),
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
    if scores.clone().any(|s| !s.is_known() && !s.value.is_nan()) {
        // Infinities may meet, in the mean or in a difference from it.
        return (Approx::UNDETERMINED, Approx::UNDETERMINED);
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
