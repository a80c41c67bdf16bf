//! What attention looks at, on the device: scores, weights and contributions of
//! chosen pairs, summaries of rows, mass that keys receive, norms of values.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::host::{DType, Dims};
use crate::operands::Operands;
use crate::options::Options;
use crate::problem::{Goal, Problem, Region};
use crate::stage::Stage;
use crate::tensor::TensorView;

/// `params.stage` where weights are multiplied with norms.
pub(crate) const STAGE_CONTRIBUTIONS: u32 = 5;

/// Numbers of a row's summary before the bins.
pub(crate) const FIELDS: usize = 8;

/// Bins of distance of a row's summary.
pub(crate) const DISTANCE_BINS: usize = 16;

/// Most of a row's largest weights that a summary holds.
pub const MAX_TOP: usize = 16;

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

/// Which rows are summarised, and how.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Batch entries, query heads and rows.
    pub region: Region,
    /// How many of a row's largest weights: 1 to [`MAX_TOP`].
    pub top: usize,
    /// How many of the first keys count as such.
    pub first_keys: usize,
}

impl Rows {
    /// Numbers that a row's summary takes.
    pub fn width(&self) -> usize {
        FIELDS + DISTANCE_BINS + 3 * self.top
    }
}

/// A row in a few numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct RowSummary {
    /// Sum of the weights over the keys: 1, less what a sink takes; 0 where no key
    /// is visible.
    pub mass: f32,
    /// Weight of the sink, exp(sink - lse).
    pub sink_mass: f32,
    /// Entropy, in nats, of the weights normalised over the keys; 0 where no key
    /// is visible.
    pub entropy: f32,
    /// Sum of the contributions; 0 without norms.
    pub contributions: f32,
    /// Sum of the weights of the first keys.
    pub first_mass: f32,
    /// Number of visible keys.
    pub visible: f32,
    /// Mean of the visible scores, scaled (stage 0). Without the scale it is the
    /// scale's part of this.
    pub score_mean: f32,
    /// Sum of the squares of the visible scores around their mean.
    pub score_squares: f32,
    /// Sum of the weights at distances |i + offset - j| of 0, 1, 2 to 3, 4 to 7 and
    /// so on; the last bin has all from 16,384 on.
    pub distance_mass: [f32; DISTANCE_BINS],
    /// The largest weights, largest first, the lower key first among equals; fewer
    /// than asked for where fewer keys are visible.
    pub top: Vec<TopKey>,
}

/// One of a row's largest weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopKey {
    /// The key.
    pub key: u32,
    /// Its weight.
    pub weight: f32,
    /// Its contribution; 0 without norms.
    pub contribution: f32,
}

impl RowSummary {
    /// Decodes the numbers of one row, as [`Problem::summarize`] stores them: f32,
    /// but for keys, which are u32.
    ///
    /// # Errors
    /// [`Error::Shape`] if their number is not that of any [`Rows::width`].
    pub fn decode(words: &[u32]) -> Result<RowSummary> {
        let fixed = FIELDS + DISTANCE_BINS;
        if words.len() < fixed || !(words.len() - fixed).is_multiple_of(3) {
            let expected = format!("[{fixed} + 3 * top]");
            return Err(Error::shape("row summary", expected, [words.len()]));
        }
        let number = |at: usize| f32::from_bits(words[at]);
        let top = words[fixed..].chunks_exact(3).filter(|t| t[0] != u32::MAX);
        Ok(RowSummary {
            mass: number(0),
            sink_mass: number(1),
            entropy: number(2),
            contributions: number(3),
            first_mass: number(4),
            visible: number(5),
            score_mean: number(6),
            score_squares: number(7),
            distance_mass: std::array::from_fn(|bin| number(FIELDS + bin)),
            top: top
                .map(|t| TopKey {
                    key: t[0],
                    weight: f32::from_bits(t[1]),
                    contribution: f32::from_bits(t[2]),
                })
                .collect(),
        })
    }

    /// Standard deviation of the visible scaled scores, 0 where there are none.
    pub fn score_deviation(&self) -> f32 {
        match self.visible > 0.0 {
            true => (self.score_squares / self.visible).sqrt(),
            false => 0.0,
        }
    }

    /// The largest weight; 0 where no key is visible.
    pub fn largest(&self) -> f32 {
        self.top.first().map_or(0.0, |top| top.weight)
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
            if pairs.keys.start > pairs.keys.end || pairs.keys.end > dims.kv_len {
                let expected = format!("a range within 0..{}", dims.kv_len);
                let actual = format!("{:?}", pairs.keys);
                return Err(Error::value("region keys", expected, actual));
            }
            if pairs.quantity.needs_stats() && operands.stats.is_none() {
                return Err(missing("stats", "the statistics of a forward pass"));
            }
            if pairs.quantity == Quantity::Contribution && operands.norms.is_none() {
                return Err(missing("norms", "norms of the values"));
            }
            (&pairs.region, pairs.keys.len())
        }
        Goal::Rows(rows) => {
            if !(1..=MAX_TOP).contains(&rows.top) {
                let expected = format!("1 to {MAX_TOP} of the largest weights");
                return Err(Error::value("top", expected, rows.top));
            }
            if rows.first_keys > dims.kv_len {
                let expected = format!("at most {}", dims.kv_len);
                return Err(Error::value("first_keys", expected, rows.first_keys));
            }
            if operands.stats.is_none() {
                return Err(missing("stats", "the statistics of a forward pass"));
            }
            if dims.kv_len == 0 {
                return Err(Error::value("key", "at least one key", 0));
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
        Goal::Forward | Goal::Stage(..) | Goal::Projection => return Ok(None),
    };
    region.check(dims)?;
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

fn missing(operand: &'static str, expected: &str) -> Error {
    Error::value(operand, expected, "none")
}
