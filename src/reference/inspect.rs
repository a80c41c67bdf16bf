//! What attention looks at, in f64.
//!
//! A weight is W(i, j) = exp(s(j) - lse), from statistics that the device's forward
//! pass left. To the errors of a score and of the statistics (see
//! [`SAFETY`](super::SAFETY)) come 4 roundings and `exp2` of the difference, and, for
//! an LSE in one f32, its rounding. All that is made of weights follows to first
//! order, sums counted as everywhere here; at each function is what is special.

use std::ops::Range;

use super::rounding::{Approx, SAFETY, TINY, U, store};
use super::row::Row;
use super::softmax::{Key, Softmax};
use super::total::times;
use super::{StageExpected, stage_of_row};
use crate::error::{Error, Result};
use crate::host::inputs::Inputs;
use crate::host::tensor::Tensor;
use crate::memory::{collected, filled};
use crate::rules::dims::Dims;
use crate::rules::options::Options;
use crate::rules::region::Region;
use crate::rules::score_stage::Stage;
use crate::rules::selection::{Pairs, Quantity};
use crate::view::dtype::DType;
use crate::view::tensor::Stats;

/// Norms of the values, (B, Hkv, Nk, 1) or (B, Hq, Nk, 1), exact as they are given.
pub type KeyNorms<'a> = Tensor<'a>;

/// A quantity of chosen pairs, (batches, heads, rows, keys), stored as `out`, from
/// statistics of the kind `stats`.
///
/// # Errors
/// As [`forward`](super::forward), and [`Error::Value`] if a range does not fit or norms
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
    let [batches, heads, rows] = pairs.region.lens();
    let shape = [batches, heads, rows, pairs.keys.len()];
    let mut expected = StageExpected::room("pairs", &shape)?;
    for [b, h, i] in of_region(&pairs.region) {
        let row = Row::new(inputs, options, b, h, i)?;
        let line = match pairs.quantity {
            Quantity::Stage(stage) if stage != Stage::Probabilities => {
                stage_of_row(&row, stage, dims.kv_len)?
            }
            quantity => {
                let zero = Approx::exact(0.0);
                let mut line = filled("weights of a row", &[dims.kv_len], zero)?;
                for Weight { j, p, .. } in weights(&row, &row.softmax()?, stats)? {
                    line[j] = match quantity {
                        Quantity::Contribution => times(p, norm(norms, &dims, [b, h, j])?),
                        Quantity::Stage(_) => p,
                    };
                }
                line
            }
        };
        for approx in &line[pairs.keys.clone()] {
            expected.push(store(*approx, out));
        }
    }
    Ok(expected)
}

/// A visible key of a row: ln p and p.
pub(super) struct Weight {
    pub j: usize,
    pub exponent: f64,
    pub p: Approx,
}

/// The weights of the visible keys, in order, from rounded statistics.
pub(super) fn weights(row: &Row, softmax: &Softmax, stats: Stats) -> Result<Vec<Weight>> {
    let of_key = |key: &Key| {
        let score = row.masked(key.j);
        let p = match softmax.open {
            Some(_) => key.probability,
            None => weight(score, softmax, stats),
        };
        let exponent = score.value - softmax.state[0].value - softmax.state[1].value;
        Weight {
            j: key.j,
            exponent,
            p,
        }
    };
    collected("weights of a row", softmax.keys.iter().map(of_key))
}

/// exp(score - lse). A score that is not known makes no difference to the row (or the
/// row would be open) and has weight 0.
///
/// The exponent is off by the errors of score and statistics, each with the safety
/// factor. Where those are large the weight is bounded otherwise: the log-sum-exp is
/// not below the score that entered it, so that a weight is at most exp of twice the
/// score's error.
pub(super) fn weight(score: Approx, softmax: &Softmax, stats: Stats) -> Approx {
    if !score.is_known() {
        return Approx {
            value: 0.0,
            error: TINY,
        };
    }
    let [maximum, log_sum] = softmax.state;
    let x = score.value - maximum.value;
    let rounding = match stats {
        Stats::RowState => 5.0 * U * log_sum.value.abs(),
        Stats::Lse => U * softmax.lse.value.abs(),
    };
    let inherited = match stats {
        Stats::RowState => maximum.error + log_sum.error,
        Stats::Lse => softmax.lse.error,
    };
    let exp2 = 6.0 + 4.0 * (x.abs() + log_sum.value.abs()) * std::f64::consts::LOG2_E;
    let own = score.error + maximum.error + rounding + U * (exp2 + 4.0 * x.abs());
    let e = SAFETY * (own - maximum.error + inherited);
    let log = x - log_sum.value;
    let p = log.exp();
    let error = match e < 0.5 {
        true => p * e.exp_m1(),
        false => (log + e).min(2.0 * SAFETY * own).min(700.0).exp(),
    };
    Approx {
        value: p,
        error: error / SAFETY + TINY,
    }
}

pub(super) fn norm(
    norms: Option<&KeyNorms<'_>>,
    dims: &Dims,
    [b, h, j]: [usize; 3],
) -> Result<f64> {
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
pub(super) fn of_region(region: &Region) -> impl Iterator<Item = [usize; 3]> {
    let (heads, rows) = (region.heads.clone(), region.rows.clone());
    region.batches.clone().flat_map(move |b| {
        let rows = rows.clone();
        let heads = heads.clone();
        heads.flat_map(move |h| rows.clone().map(move |i| [b, h, i]))
    })
}
