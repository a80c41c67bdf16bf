//! A problem: validated numbers, no buffers.

use std::fmt;
use std::ops::Range;

use crate::call::Call;
use crate::error::{Error, Result};
use crate::host::{DType, Dims, Polarity};
use crate::inspect::{Pairs, Rows};
use crate::lists::{ListKind, ListSource};
use crate::operands::Operands;
use crate::options::{Alignment, Options};
use crate::stage::Stage;
use crate::tensor::{MaskView, Stats, TensorView};

/// Largest alignment of a binding offset that WebGPU allows a device to ask
/// for; what is left of an offset modulo this belongs to the problem.
pub(crate) const PHASE: u64 = 256;

/// Where one operand's elements lie within its buffer, without the buffer.
///
/// Strides of axes of length 1 are 0. `phase` is the byte offset modulo 256;
/// the aligned part may change from call to call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Geometry {
    pub shape: [usize; 4],
    pub strides: [usize; 4],
    pub element_size: u64,
    pub phase: u64,
}

impl Geometry {
    pub fn new(shape: [usize; 4], strides: [usize; 4], element_size: u64, start: u64) -> Self {
        let mut used = strides;
        for axis in 0..4 {
            if shape[axis] <= 1 {
                used[axis] = 0;
            }
        }
        Geometry {
            shape,
            strides: used,
            element_size,
            phase: start % PHASE,
        }
    }

    pub fn of(view: &TensorView<'_>) -> Self {
        let size = view.dtype.size();
        Geometry::new(view.shape, view.strides, size, view.span().bytes.start)
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "shape {:?}, strides {:?}, from byte {} modulo {PHASE}",
            self.shape, self.strides, self.phase
        )
    }
}

/// A box of the score matrix: batch entries, query heads and query rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Region {
    /// Batch entries.
    pub batches: Range<usize>,
    /// Query heads.
    pub heads: Range<usize>,
    /// Query rows.
    pub rows: Range<usize>,
}

impl Region {
    /// Sizes of the three axes.
    pub fn lens(&self) -> [usize; 3] {
        [self.batches.len(), self.heads.len(), self.rows.len()]
    }

    pub(crate) fn check(&self, dims: &Dims) -> Result<()> {
        let whole = [dims.batch, dims.q_heads, dims.q_len];
        let axes = [&self.batches, &self.heads, &self.rows];
        let names = ["region batches", "region heads", "region rows"];
        for ((range, most), name) in axes.into_iter().zip(whole).zip(names) {
            if range.start > range.end || range.end > most {
                let expected = format!("a range within 0..{most}");
                return Err(Error::value(name, expected, format!("{range:?}")));
            }
        }
        Ok(())
    }
}

/// What a problem asks for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Goal {
    /// O, and statistics where the operands name them.
    Forward,
    /// One stage of a region, into the operands' output.
    Stage(Stage, Region),
    /// The product of query and key plus the bias, into the operands' output.
    Projection,
    /// A quantity of chosen pairs, from the rows' statistics.
    Pairs(Pairs),
    /// Summaries of rows.
    Rows(Rows),
    /// Norms of the products of query and key, row by row.
    Norms,
}

impl Goal {
    /// Whether statistics are read and not written.
    pub fn inspects(&self) -> bool {
        matches!(self, Goal::Pairs(_) | Goal::Rows(_))
    }

    /// The region, where it is not the whole; the output begins at its corner.
    pub fn region(&self) -> Option<&Region> {
        match self {
            Goal::Stage(_, region) => Some(region),
            Goal::Pairs(pairs) => Some(&pairs.region),
            Goal::Rows(rows) => Some(&rows.region),
            Goal::Forward | Goal::Projection | Goal::Norms => None,
        }
    }

    /// An error about operands by the names that the caller knows.
    pub fn in_its_words(&self, error: Error) -> Error {
        match self {
            Goal::Forward | Goal::Stage(..) | Goal::Pairs(_) | Goal::Rows(_) => error,
            Goal::Norms => error.renamed(&[("query", "through"), ("key", "value")]),
            Goal::Projection => {
                error.renamed(&[("query", "input"), ("key", "weight"), ("value", "weight")])
            }
        }
    }
}

/// A validated attention call: sizes, options, strides, storage types; no
/// buffers. Made from [`Operands`], turned into a [`crate::Plan`].
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    pub(crate) goal: Goal,
    pub(crate) dims: Dims,
    pub(crate) options: Options,
    pub(crate) query: Geometry,
    pub(crate) query_dtype: DType,
    pub(crate) key: Geometry,
    pub(crate) value: Geometry,
    pub(crate) kv_dtype: DType,
    pub(crate) output: Geometry,
    pub(crate) output_dtype: DType,
    pub(crate) bias: Option<(Geometry, DType)>,
    pub(crate) mask: Option<MaskGeometry>,
    pub(crate) stats: Option<(Geometry, Stats)>,
    pub(crate) norms: Option<Geometry>,
    pub(crate) received: Option<Geometry>,
    pub(crate) lists: Vec<(ListKind, ListSource)>,
    /// An input lies in a buffer that is also written.
    pub(crate) shared: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MaskGeometry {
    pub geometry: Geometry,
    pub bits: bool,
    pub polarity: Polarity,
    /// Stride of the key axis in pairs: 0 if it broadcasts.
    pub key_stride: usize,
}

impl Problem {
    /// Validates a forward pass.
    ///
    /// # Errors
    /// An error that names the operand, what was expected and what came:
    /// shapes, storage types, strides, buffer sizes and usages, overlaps, list
    /// lengths and values, options.
    pub fn forward(operands: &Operands<'_>, options: &Options) -> Result<Problem> {
        Problem::new(operands, options, Goal::Forward)
    }

    /// A forward pass over contiguous tensors in memory order (batch, heads,
    /// sequence, head_dim), each from the start of a buffer of its own: for
    /// planning without buffers. Query, key and value are stored as `dtype`.
    ///
    /// # Errors
    /// [`Error::Shape`] as [`Dims::new`], for sizes without meaning;
    /// [`Error::Layout`] for a tensor beyond what can be addressed;
    /// [`Error::Value`] for an option without meaning, or one that needs a list.
    pub fn contiguous(
        dims: &Dims,
        dtype: DType,
        output: DType,
        options: &Options,
    ) -> Result<Problem> {
        options.validate()?;
        if options.alignment == Alignment::PerSequence {
            let expected = "an alignment that needs no list of offsets";
            return Err(Error::value("alignment", expected, "PerSequence"));
        }
        let kv = |dim| [dims.batch, dims.kv_heads, dims.kv_len, dim];
        let query = [dims.batch, dims.q_heads, dims.q_len, dims.qk_dim];
        let (key, value) = (kv(dims.qk_dim), kv(dims.v_dim));
        let dims = Dims::new(query, key, value)?;
        let geometry = |operand, shape, dtype: DType| {
            let strides = crate::place::contiguous(shape);
            crate::place::bytes_needed(operand, &shape, &strides, 0, dtype.size())?;
            Ok(Geometry::new(shape, strides, dtype.size(), 0))
        };
        Ok(Problem {
            goal: Goal::Forward,
            dims,
            options: *options,
            query: geometry("query", query, dtype)?,
            query_dtype: dtype,
            key: geometry("key", key, dtype)?,
            value: geometry("value", value, dtype)?,
            kv_dtype: dtype,
            output: geometry("output", dims.output_shape(), output)?,
            output_dtype: output,
            bias: None,
            mask: None,
            stats: None,
            norms: None,
            received: None,
            lists: Vec::new(),
            shared: false,
        })
    }

    /// Validates the computation of one stage (scores or probabilities) of a
    /// region; `operands.output` receives it and has shape (batches, heads,
    /// rows, Nk), f32.
    ///
    /// # Errors
    /// As [`Problem::forward`]; [`Error::Value`] if the region does not fit.
    pub fn stage(
        operands: &Operands<'_>,
        options: &Options,
        stage: Stage,
        region: Region,
    ) -> Result<Problem> {
        Problem::new(operands, options, Goal::Stage(stage, region))
    }

    pub(crate) fn new(operands: &Operands<'_>, options: &Options, goal: Goal) -> Result<Problem> {
        let call = Call::new(operands, options, &goal)?;
        let lists = ListKind::ALL.into_iter().zip(call.lists);
        Ok(Problem {
            goal,
            dims: call.dims,
            options: *options,
            query: call.query.0,
            query_dtype: call.query.1,
            key: call.key.0,
            value: call.value.0,
            kv_dtype: call.key.1,
            output: call.output.0,
            output_dtype: call.output.1,
            bias: call.bias,
            mask: call.mask,
            stats: call.stats,
            norms: call.norms,
            received: call.received,
            lists: lists
                .filter_map(|(kind, list)| Some((kind, list?.to_owned())))
                .collect(),
            shared: call.shared,
        })
    }

    /// The sizes.
    pub fn dims(&self) -> Dims {
        self.dims
    }

    /// The options.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Whether an input lies in a buffer that is also written, so that every
    /// buffer has to be bound read_write.
    pub fn shares_buffers(&self) -> bool {
        self.shared
    }

    /// Floating-point operations by the usual count, 4 B Hq Nq Nk D with
    /// (Dqk + Dv) / 2 for D, masks not considered; of a projection 2 B N in out; of chosen pairs their
    /// scores alone.
    pub fn flops(&self) -> f64 {
        let d = &self.dims;
        let keys = match &self.goal {
            Goal::Pairs(pairs) => pairs.keys.len(),
            _ => d.kv_len,
        };
        let rows = match self.goal.region() {
            Some(region) => region.lens().iter().map(|&n| n as f64).product(),
            None => d.rows() as f64,
        };
        let pairs = rows * keys as f64;
        let depth = match self.goal {
            Goal::Forward | Goal::Stage(..) => d.qk_dim + d.v_dim,
            Goal::Projection | Goal::Pairs(_) | Goal::Rows(_) => d.qk_dim,
            Goal::Norms => return 2.0 * rows * d.qk_dim as f64,
        };
        2.0 * pairs * depth as f64
    }

    /// Whether there is a norm for every query head and not for every kv head.
    pub(crate) fn norms_by_query(&self) -> bool {
        let by = |norms: &Geometry| norms.shape[1] == self.dims.q_heads;
        self.norms.as_ref().is_some_and(by)
    }

    pub(crate) fn list(&self, kind: ListKind) -> Option<&ListSource> {
        let found = self.lists.iter().find(|(k, _)| *k == kind);
        found.map(|(_, source)| source)
    }

    pub(crate) fn has_device_lists(&self) -> bool {
        let is_buffer = |(_, source): &(_, ListSource)| matches!(source, ListSource::Buffer { .. });
        self.lists.iter().any(is_buffer)
    }
}

impl MaskGeometry {
    pub fn of(mask: &MaskView<'_>) -> Self {
        let (shape, start) = (mask.storage_shape(), mask.span().bytes.start);
        MaskGeometry {
            geometry: Geometry::new(shape, mask.strides, mask.element_size(), start),
            bits: mask.bits,
            polarity: mask.polarity,
            key_stride: if mask.shape[3] <= 1 {
                0
            } else {
                mask.strides[3]
            },
        }
    }

    /// Whether every row of a mask of bytes begins with a word.
    pub fn rows_begin_words(&self) -> bool {
        let Geometry { strides, phase, .. } = &self.geometry;
        phase % 4 == 0 && strides[..3].iter().all(|stride| stride % 4 == 0)
    }
}

impl fmt::Display for MaskGeometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.bits { "words of bits" } else { "bytes" };
        write!(f, "{unit}, true is {:?}, {}", self.polarity, self.geometry)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = &self.dims;
        if self.goal == Goal::Projection {
            let (input, weight) = (self.query_dtype, self.kv_dtype);
            return write!(
                f,
                "B {} N {} in {} out {}, input {input:?}, weight {weight:?}, output {:?}",
                d.batch, d.q_len, d.qk_dim, d.kv_len, self.output_dtype
            );
        }
        write!(
            f,
            "B {} Hq {} Hkv {} Nq {} Nk {} Dqk {} Dv {}, query {:?}, key and value {:?}, output {:?}",
            d.batch,
            d.q_heads,
            d.kv_heads,
            d.q_len,
            d.kv_len,
            d.qk_dim,
            d.v_dim,
            self.query_dtype,
            self.kv_dtype,
            self.output_dtype
        )?;
        match &self.goal {
            Goal::Forward | Goal::Projection => Ok(()),
            Goal::Stage(stage, region) => write!(f, "; {stage:?} of {region}"),
            Goal::Pairs(pairs) => {
                let (quantity, region) = (&pairs.quantity, &pairs.region);
                write!(f, "; {quantity:?} of {region}, keys {:?}", pairs.keys)
            }
            Goal::Rows(rows) => write!(
                f,
                "; summaries of {}, {} largest weights, {} first keys",
                rows.region, rows.top, rows.first_keys
            ),
            Goal::Norms => write!(f, "; norms of values"),
        }
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Region {
            batches,
            heads,
            rows,
        } = self;
        write!(f, "batches {batches:?}, heads {heads:?}, rows {rows:?}")
    }
}
