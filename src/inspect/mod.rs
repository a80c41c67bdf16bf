//! What attention looks at, on the device: scores, weights and contributions of
//! chosen pairs, summaries of rows, mass that keys receive, norms of values.

mod passes;
mod summary;
mod upload;

use std::ops::Range;

use crate::error::{Error, Result};
use crate::host::{DType, Dims};
use crate::operands::Operands;
use crate::options::Options;
use crate::problem::{Goal, Problem, Region};
use crate::stage::Stage;
use crate::tensor::TensorView;

pub(crate) use passes::inspection;
pub(crate) use summary::{DISTANCE_BINS, FIELDS};
pub use summary::{MAX_TOP, RowSummary, Rows, TopKey};
pub use upload::{Inspection, UploadedInspection, gram_matrices};

/// `params.stage` where weights are multiplied with norms.
pub(crate) const STAGE_CONTRIBUTIONS: u32 = 5;

/// What is shown of a pair of query i and key j.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Quantity {
    /// A stage. Probabilities, W(i, j) = exp(s(i, j) - lse(i)), are taken from the
    /// statistics of the row, so that no other key need be looked at.
    Stage(Stage),
    /// The size of what key j adds to output i: W(i, j) * |V_j|, or
    /// W(i, j) * |V_j W_O^(h)|, by the norms given (Kobayashi et al. 2020, "Attention
    /// is Not Only a Weight"); exactly 0 at excluded pairs.
    Contribution,
}

impl Quantity {
    pub(crate) fn code(self) -> u32 {
        match self {
            Quantity::Stage(stage) => stage as u32,
            Quantity::Contribution => STAGE_CONTRIBUTIONS,
        }
    }

    fn needs_stats(self) -> bool {
        matches!(
            self,
            Quantity::Stage(Stage::Probabilities) | Quantity::Contribution
        )
    }
}

/// Which pairs are shown: a region, and a range of its keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pairs {
    /// What is shown of them.
    pub quantity: Quantity,
    /// Batch entries, query heads and rows.
    pub region: Region,
    /// Keys.
    pub keys: Range<usize>,
}

impl Pairs {
    /// Checks that the selection lies within the problem.
    pub(crate) fn check(&self, dims: &Dims) -> Result<()> {
        self.region.check(dims)?;
        let Range { start, end } = self.keys;
        match start <= end && end <= dims.kv_len {
            true => Ok(()),
            false => {
                let expected = format!("a range within 0..{}", dims.kv_len);
                let actual = format!("{:?}", self.keys);
                Err(Error::value("region keys", expected, actual))
            }
        }
    }
}

impl Problem {
    /// Validates the computation of scores, weights or contributions of chosen
    /// pairs. `operands.output` receives them and has shape (batches, heads, rows,
    /// keys) of the selection, any storage type. Weights and contributions need the
    /// rows' statistics of a forward pass over the same operands in
    /// `operands.stats`, of either kind, which are read; contributions need norms
    /// in `operands.norms` too, (B, Hkv, Nk, 1) or (B, Hq, Nk, 1).
    ///
    /// Nothing else of the score matrix is held.
    ///
    /// # Errors
    /// As [`Problem::forward`]; [`Error::Value`] if a range does not fit or
    /// statistics or norms are missing.
    pub fn inspect(operands: &Operands<'_>, options: &Options, pairs: Pairs) -> Result<Problem> {
        Problem::new(operands, options, Goal::Pairs(pairs))
    }

    /// Validates the summaries of rows, over all their keys. `operands.output`
    /// receives them and has shape (batches, heads, rows, [`Rows::width`]), f32;
    /// [`RowSummary::decode`] reads them. Statistics are read as by
    /// [`Problem::inspect`], norms where given. `operands.received`, where given,
    /// receives the mass of each key, summed over the rows in their order:
    /// (batches, heads, Nk, 1), f32.
    ///
    /// A bounded part of the scores is held at a time, in the workspace.
    ///
    /// # Errors
    /// As [`Problem::inspect`].
    pub fn summarize(operands: &Operands<'_>, options: &Options, rows: Rows) -> Result<Problem> {
        Problem::new(operands, options, Goal::Rows(rows))
    }

    /// Validates the norms of rows of values, |V_j|: from `value`, (B, H, N, D),
    /// into `output`, (B, H, N, 1), f32.
    ///
    /// With `through`, (B, Hq, N, D) where Hq is a multiple of H, the norms are
    /// sqrt(max(0, through_j . V_j)), (B, Hq, N, 1): through an output projection,
    /// |V_j W_O^(h)|, where `through` is V_j G_h with the Gram matrix
    /// G_h = W_O^(h) W_O^(h)^T, a [projection](crate::Projection) whose cost does
    /// not grow with the width of the model.
    ///
    /// # Errors
    /// As [`Problem::forward`].
    pub fn norms(norms: &Norms<'_>) -> Result<Problem> {
        let options = Options::default().scale(1.0);
        let problem = Problem::new(&norms.operands(), &options, Goal::Norms);
        problem.map_err(|error| Goal::Norms.in_its_words(error))
    }
}

/// Norms of rows of values, as views of the caller's buffers: [`Problem::norms`].
#[derive(Debug, Clone, Copy)]
pub struct Norms<'a> {
    /// (B, H, N, D), last axis contiguous.
    pub value: TensorView<'a>,
    /// (B, Hq, N, D), last axis contiguous, or none: the value itself.
    pub through: Option<TensorView<'a>>,
    /// (B, Hq, N, 1), f32.
    pub output: TensorView<'a>,
}

impl<'a> Norms<'a> {
    /// As the operands of [`crate::Prepared::record`].
    pub fn operands(&self) -> Operands<'a> {
        let through = self.through.unwrap_or(self.value);
        Operands::new(through, self.value, self.value, self.output)
    }
}

/// Shape of the output, once the selection and what it needs have been checked.
pub(crate) fn output_shape(
    goal: &Goal,
    operands: &Operands<'_>,
    dims: &Dims,
) -> Result<Option<[usize; 4]>> {
    let (region, width) = match goal {
        Goal::Pairs(pairs) => {
            pairs.check(dims)?;
            refuse("received", &operands.received, ONLY_ROWS)?;
            if pairs.quantity.needs_stats() && operands.stats.is_none() {
                return Err(missing("stats", "the statistics of a forward pass"));
            }
            if pairs.quantity == Quantity::Contribution && operands.norms.is_none() {
                return Err(missing("norms", "norms of the values"));
            }
            (&pairs.region, pairs.keys.len())
        }
        Goal::Rows(rows) => {
            rows.check(dims)?;
            if operands.stats.is_none() {
                return Err(missing("stats", "the statistics of a forward pass"));
            }
            check_f32("output", &operands.output)?;
            (&rows.region, rows.width())
        }
        Goal::Norms => {
            if dims.q_len != dims.kv_len {
                let expected = format!("{} rows, as the value has", dims.kv_len);
                return Err(Error::shape("query", expected, operands.query.shape));
            }
            check_f32("output", &operands.output)?;
            return Ok(Some([dims.batch, dims.q_heads, dims.q_len, 1]));
        }
        Goal::Forward | Goal::Stage(..) | Goal::Projection => {
            let only = "none: only an inspection reads them";
            refuse("norms", &operands.norms, only)?;
            refuse("received", &operands.received, ONLY_ROWS)?;
            return Ok(None);
        }
    };
    if let Some(norms) = &operands.norms {
        check_f32("norms", norms)?;
        let of = |heads| [dims.batch, heads, dims.kv_len, 1];
        if norms.shape != of(dims.kv_heads) && norms.shape != of(dims.q_heads) {
            let expected = format!("{:?} or {:?}", of(dims.kv_heads), of(dims.q_heads));
            return Err(Error::shape("norms", expected, norms.shape));
        }
    }
    let [batches, heads, rows] = region.lens();
    if let Some(received) = &operands.received {
        check_f32("received", received)?;
        let expected = [batches, heads, dims.kv_len, 1];
        if received.shape != expected {
            let expected = format!("{expected:?}");
            return Err(Error::shape("received", expected, received.shape));
        }
        if dims.kv_len > 1 && received.strides[2] != 1 {
            return Err(Error::Layout {
                operand: "received",
                expected: "contiguous keys (stride 1)".to_owned(),
                actual: format!("strides {:?}", received.strides),
            });
        }
    }
    Ok(Some([batches, heads, rows, width]))
}

fn check_f32(operand: &'static str, view: &TensorView<'_>) -> Result<()> {
    match view.dtype {
        DType::F32 => Ok(()),
        other => Err(Error::value(operand, "F32", format!("{other:?}"))),
    }
}

const ONLY_ROWS: &str = "none: only summaries of rows write it";

fn refuse(operand: &'static str, view: &Option<TensorView<'_>>, expected: &str) -> Result<()> {
    match view {
        None => Ok(()),
        Some(view) => Err(Error::value(
            operand,
            expected,
            format!("a tensor of shape {:?}", view.shape),
        )),
    }
}

fn missing(operand: &'static str, expected: &str) -> Error {
    Error::value(operand, expected, "none")
}
