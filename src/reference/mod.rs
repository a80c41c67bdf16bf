//! The oracle: attention in f64 by two plain loops, with a rounding bound for
//! each value.
//!
//! It follows the formula and nothing else: no tiles, no running maximum, no
//! code shared with the kernels but the definition of positional visibility
//! ([`Visibility`]). For the row `i` of query head `h` in batch entry `b`,
//! `p = i + offset` its position and `g = h / (Hq / Hkv)` its kv head:
//!
//! ```text
//! s(j)  = scale * sum_d q(b,h,i,d) k(b,g,j,d)
//! s(j)  = c tanh(s(j) / c)                           with a softcap c
//! s(j) += bias(b,h,i,j) - slope(h) |p - j|           with a bias, with ALiBi
//! P(j)  = exp(s(j)) / (sum over visible j' of exp(s(j')) + exp(sink(h)))
//! O(d)  = sum over visible j of P(j) v(b,g,j,d)
//! lse   = ln(sum over visible j of exp(s(j)) + exp(sink(h)))
//! ```
//!
//! A key is visible if causal mask, window, lengths, segments and boolean mask
//! all agree and the bias is not -inf there. What K, V and bias hold at excluded
//! pairs is never read. A row without a visible key has `O = 0` and `lse = -inf`,
//! or `lse = sink`.
//!
//! # How far a result may be away
//!
//! Every expected value comes with a bound; a result passes if
//! `|got - expected| <= bound` ([`compare`]). The bound follows the rounding
//! errors of an f32 implementation to first order: see [`SAFETY`]. Two kinds of
//! expectation are not finite:
//!
//! - bound 0: the result has to be that infinity, or NaN;
//! - NaN with bound infinity: f32 leaves the result undetermined (an
//!   intermediate may or may not overflow, an infinity meets a weight that may
//!   have vanished). Such elements are counted apart and prove nothing.

mod compare;
mod inspect;
mod multi_head;
mod norms;
mod project;
mod rounding;
mod row;
mod softmax;
mod summary;
mod total;

use std::ops::Range;

pub use compare::{Comparison, Worst, compare, compare_abs, compare_lse};
pub use inspect::{KeyNorms, pairs};
pub use multi_head::multi_head;
pub use norms::{value_norms, value_norms_through};
pub use project::project;
pub use rounding::SAFETY;
pub use summary::{RowExpected, received, rows};

use crate::error::{Error, Result};
use crate::host::inputs::Inputs;
use crate::memory::{filled, room};
use crate::rules::options::Options;
use crate::rules::positional::Visibility;
use crate::rules::score_stage::Stage;
use crate::view::dtype::DType;
use rounding::{Approx, store};
use row::Row;
use softmax::Softmax;

/// Expected results of forward attention, and how far an f32 result may be away.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// (B, Hq, Nq, Dv), or (rows, Dv) for chosen rows.
    pub output: Vec<f64>,
    /// Bounds of `output`, rounding to the storage type included.
    pub output_bound: Vec<f64>,
    /// Natural log-sum-exp, (B, Hq, Nq), or (rows).
    pub lse: Vec<f64>,
    /// Bounds of `lse`.
    pub lse_bound: Vec<f64>,
}

/// Expected values of one [`Stage`], or of a projection.
#[derive(Debug, Clone, PartialEq)]
pub struct StageExpected {
    /// (batch entries, heads, rows, Nk) of the ranges asked for, or (B, 1, N, out).
    pub values: Vec<f64>,
    /// Bounds of `values`, as f32.
    pub bound: Vec<f64>,
}

/// Attention of every row. `out` is the storage type of the output: its
/// rounding is part of the bound, and what it cannot hold is expected as
/// infinity. Costs about `B Hq Nq Nk (2 Dqk + 6 Dv)` f64 operations on one thread.
///
/// # Errors
/// As [`Inputs::validate`]; [`Error::HostMemory`] if there is none for the results.
pub fn forward(inputs: &Inputs, options: &Options, out: DType) -> Result<Expected> {
    let rows = 0..inputs.validate(options)?.rows();
    forward_of(inputs, options, out, rows)
}

/// Attention of the chosen rows only, for checking samples of a large result.
/// A row is numbered `(b * Hq + h) * Nq + i`.
///
/// # Errors
/// As [`forward`], and [`Error::Value`] if a row does not exist.
pub fn forward_rows(
    inputs: &Inputs,
    options: &Options,
    out: DType,
    rows: &[usize],
) -> Result<Expected> {
    let dims = inputs.validate(options)?;
    if let Some(bad) = rows.iter().find(|&&row| row >= dims.rows()) {
        let expected = format!("row numbers below {}", dims.rows());
        return Err(Error::value("rows", expected, bad));
    }
    forward_of(inputs, options, out, rows.iter().copied())
}

fn forward_of(
    inputs: &Inputs,
    options: &Options,
    out: DType,
    rows: impl ExactSizeIterator<Item = usize>,
) -> Result<Expected> {
    let dims = inputs.validate(options)?;
    let shape = [rows.len(), dims.v_dim];
    let mut expected = Expected {
        output: room("output", &shape)?,
        output_bound: room("output", &shape)?,
        lse: room("lse", &shape[..1])?,
        lse_bound: room("lse", &shape[..1])?,
    };
    for flat in rows {
        let (head, i) = (flat / dims.q_len, flat % dims.q_len);
        let row = Row::new(inputs, options, head / dims.q_heads, head % dims.q_heads, i)?;
        let softmax = row.softmax()?;
        for column in row.output(&softmax)? {
            let (value, bound) = store(column, out);
            expected.output.push(value);
            expected.output_bound.push(bound);
        }
        let (value, bound) = store(softmax.lse, DType::F32);
        expected.lse.push(value);
        expected.lse_bound.push(bound);
    }
    Ok(expected)
}

/// The values of one stage for ranges of batch entries, query heads and query rows.
///
/// # Errors
/// As [`forward`], and [`Error::Value`] if a range reaches past its axis.
pub fn stage(
    inputs: &Inputs,
    options: &Options,
    stage: Stage,
    batches: Range<usize>,
    heads: Range<usize>,
    rows: Range<usize>,
) -> Result<StageExpected> {
    let dims = inputs.validate(options)?;
    for (operand, range, end) in [
        ("batches", &batches, dims.batch),
        ("heads", &heads, dims.q_heads),
        ("rows", &rows, dims.q_len),
    ] {
        if range.start > range.end || range.end > end {
            let expected = format!("a range within 0..{end}");
            return Err(Error::value(operand, expected, format_args!("{range:?}")));
        }
    }
    let shape = [batches.len(), heads.len(), rows.len(), dims.kv_len];
    let mut expected = StageExpected::room("stage", &shape)?;
    for b in batches {
        for h in heads.clone() {
            for i in rows.clone() {
                let row = Row::new(inputs, options, b, h, i)?;
                for approx in stage_of_row(&row, stage, dims.kv_len)? {
                    expected.push(store(approx, DType::F32));
                }
            }
        }
    }
    Ok(expected)
}

fn stage_of_row(row: &Row, stage: Stage, kv_len: usize) -> Result<Vec<Approx>> {
    let excluded = match stage {
        Stage::Masked => f64::NEG_INFINITY,
        Stage::Raw | Stage::Softcapped | Stage::Probabilities => 0.0,
    };
    let mut line = filled("stage of a row", &[kv_len], Approx::exact(excluded))?;
    if stage == Stage::Probabilities {
        let Softmax { keys, .. } = row.softmax()?;
        for key in keys {
            line[key.j] = key.probability;
        }
        return Ok(line);
    }
    for (j, score) in line.iter_mut().enumerate() {
        match stage {
            Stage::Raw if row.within_lengths(j) => *score = row.raw(j),
            Stage::Softcapped if row.within_lengths(j) => *score = row.softcapped(j),
            Stage::Masked if row.visible(j) => *score = row.masked(j),
            _ => {}
        }
    }
    Ok(line)
}

impl StageExpected {
    /// Of no value yet, with room for those of a shape.
    fn room(what: &str, shape: &[usize]) -> Result<Self> {
        Ok(StageExpected {
            values: room(what, shape)?,
            bound: room(what, shape)?,
        })
    }

    fn push(&mut self, (value, bound): (f64, f64)) {
        self.values.push(value);
        self.bound.push(bound);
    }
}

/// The positional rules of one batch entry.
fn visibility_of(inputs: &Inputs, options: &Options, b: usize) -> Visibility {
    let kv_len = inputs
        .kv_lengths
        .map_or(inputs.key.shape()[2] as u32, |lengths| lengths[b]);
    let q_len = inputs
        .q_lengths
        .map_or(inputs.query.shape()[2] as u32, |lengths| lengths[b]);
    let offset = inputs.offsets.map(|offsets| offsets[b]);
    Visibility::new(options, kv_len, q_len, offset)
}
