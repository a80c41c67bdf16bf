//! Attention's operands as slices in host memory: what the oracle, the CPU
//! path and the convenience layer take.

use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::options::{Alignment, Options};

/// Longest sequence (queries or keys) that is accepted: `2^30`, so that every
/// position fits the kernels' 32-bit arithmetic.
pub const MAX_SEQUENCE: usize = 1 << 30;

/// Element type of a tensor in storage. Arithmetic is always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision, two to a u32 word, least significant first.
    F16,
    /// bfloat16, two to a u32 word, least significant first.
    BF16,
}

impl DType {
    /// Bytes an element takes.
    pub fn size(self) -> u64 {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }

    /// Rounding unit of the storage: half the distance between 1 and the next
    /// number, `2^-24`, `2^-11` or `2^-8`.
    pub fn unit(self) -> f64 {
        match self {
            DType::F32 => 2f64.powi(-24),
            DType::F16 => 2f64.powi(-11),
            DType::BF16 => 2f64.powi(-8),
        }
    }
}

/// A borrowed slice of one of the storage types.
#[derive(Debug, Clone, Copy)]
pub enum Data<'a> {
    /// f32 values.
    F32(&'a [f32]),
    /// f16 values.
    F16(&'a [f16]),
    /// bf16 values.
    BF16(&'a [bf16]),
}

impl Data<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Data::F32(d) => d.len(),
            Data::F16(d) => d.len(),
            Data::BF16(d) => d.len(),
        }
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `index`, widened exactly.
    ///
    /// # Panics
    /// If `index` is out of range, like a slice.
    pub fn get(&self, index: usize) -> f32 {
        match self {
            Data::F32(d) => d[index],
            Data::F16(d) => d[index].to_f32(),
            Data::BF16(d) => d[index].to_f32(),
        }
    }

    /// Storage type.
    pub fn dtype(&self) -> DType {
        match self {
            Data::F32(_) => DType::F32,
            Data::F16(_) => DType::F16,
            Data::BF16(_) => DType::BF16,
        }
    }

    /// The bytes as the GPU sees them (little-endian).
    pub fn bytes(&self) -> &[u8] {
        match self {
            Data::F32(d) => bytemuck::cast_slice(d),
            Data::F16(d) => bytemuck::cast_slice(d),
            Data::BF16(d) => bytemuck::cast_slice(d),
        }
    }
}

/// A contiguous row-major tensor of four axes in host memory:
/// (batch, heads, sequence, head_dim), or for a bias any shape that broadcasts
/// to (batch, query heads, queries, keys).
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    data: Data<'a>,
    shape: [usize; 4],
}

impl<'a> Tensor<'a> {
    /// A tensor over `data`, which must have exactly the elements of `shape`.
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of elements differs.
    pub fn new(data: Data<'a>, shape: [usize; 4]) -> Result<Self> {
        let count = checked_product(&shape);
        if count != Some(data.len()) {
            return Err(Error::shape(
                "tensor",
                format!("{shape:?} ({} elements)", describe_count(count)),
                format_args!("{} elements", data.len()),
            ));
        }
        Ok(Tensor { data, shape })
    }

    /// A tensor of f32 values.
    ///
    /// # Errors
    /// As [`Tensor::new`].
    pub fn f32(data: &'a [f32], shape: [usize; 4]) -> Result<Self> {
        Tensor::new(Data::F32(data), shape)
    }

    /// A tensor of f16 values.
    ///
    /// # Errors
    /// As [`Tensor::new`].
    pub fn f16(data: &'a [f16], shape: [usize; 4]) -> Result<Self> {
        Tensor::new(Data::F16(data), shape)
    }

    /// A tensor of bf16 values.
    ///
    /// # Errors
    /// As [`Tensor::new`].
    pub fn bf16(data: &'a [bf16], shape: [usize; 4]) -> Result<Self> {
        Tensor::new(Data::BF16(data), shape)
    }

    /// The shape.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// The storage type.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// The elements.
    pub fn data(&self) -> Data<'a> {
        self.data
    }

    /// Element at `index`, an axis of 1 broadcasting.
    ///
    /// # Panics
    /// If an index is out of range on an axis that does not broadcast.
    pub fn at(&self, index: [usize; 4]) -> f32 {
        self.data.get(broadcast_index(self.shape, index))
    }
}

/// What a true element of a boolean mask means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Polarity {
    /// True pairs take part (PyTorch SDPA, ONNX).
    Keep,
    /// True pairs are excluded (Burn, PyTorch's `key_padding_mask`).
    Drop,
}

/// Storage of a boolean mask.
#[derive(Debug, Clone, Copy)]
pub enum MaskData<'a> {
    /// One byte a pair, nonzero is true.
    Bytes(&'a [u8]),
    /// 32 keys a word, least significant bit first. Each row of keys starts a
    /// new word; bits past the last key are ignored.
    Bits(&'a [u32]),
}

/// A boolean mask in host memory, broadcastable to
/// (batch, query heads, queries, keys).
#[derive(Debug, Clone, Copy)]
pub struct BoolMask<'a> {
    data: MaskData<'a>,
    shape: [usize; 4],
    polarity: Polarity,
}

impl<'a> BoolMask<'a> {
    /// A mask of `shape`; bits hold `ceil(shape[3] / 32)` words a row.
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of bytes or words differs.
    pub fn new(data: MaskData<'a>, shape: [usize; 4], polarity: Polarity) -> Result<Self> {
        let (unit, got, row) = match data {
            MaskData::Bytes(d) => ("bytes", d.len(), shape[3]),
            MaskData::Bits(d) => ("words", d.len(), shape[3].div_ceil(32)),
        };
        let count = checked_product(&[shape[0], shape[1], shape[2], row]);
        if count != Some(got) {
            return Err(Error::shape(
                "mask",
                format!("{shape:?} ({} {unit})", describe_count(count)),
                format_args!("{got} {unit}"),
            ));
        }
        Ok(BoolMask {
            data,
            shape,
            polarity,
        })
    }

    /// The shape, in pairs.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// The storage.
    pub fn data(&self) -> MaskData<'a> {
        self.data
    }

    /// What true means.
    pub fn polarity(&self) -> Polarity {
        self.polarity
    }

    /// Whether the mask lets the pair at (batch, query head, query, key) take part.
    ///
    /// # Panics
    /// If an index is out of range on an axis that does not broadcast.
    pub fn visible(&self, index: [usize; 4]) -> bool {
        let set = match self.data {
            MaskData::Bytes(d) => d[broadcast_index(self.shape, index)] != 0,
            MaskData::Bits(d) => {
                let words = [
                    self.shape[0],
                    self.shape[1],
                    self.shape[2],
                    self.shape[3].div_ceil(32),
                ];
                let key = if self.shape[3] == 1 { 0 } else { index[3] };
                let mut at = index;
                at[3] = key / 32;
                d[broadcast_index(words, at)] >> (key % 32) & 1 == 1
            }
        };
        set == (self.polarity == Polarity::Keep)
    }
}

/// All operands of one attention call in host memory.
///
/// Shapes: B batch entries, Hq query heads, Hkv key/value heads (Hq a multiple
/// of Hkv), Nq queries, Nk keys. Query head h reads kv head `h / (Hq / Hkv)`.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// (B, Hq, Nq, Dqk).
    pub query: Tensor<'a>,
    /// (B, Hkv, Nk, Dqk).
    pub key: Tensor<'a>,
    /// (B, Hkv, Nk, Dv), of the key's storage type.
    pub value: Tensor<'a>,
    /// Added to the scores after scale and softcap; broadcastable to
    /// (B, Hq, Nq, Nk). Pairs where it is -inf are excluded.
    pub bias: Option<Tensor<'a>>,
    /// Boolean mask, broadcastable to (B, Hq, Nq, Nk).
    pub mask: Option<BoolMask<'a>>,
    /// Valid keys of each sequence, (B), counts of at most Nk.
    pub kv_lengths: Option<&'a [u32]>,
    /// Valid queries of each sequence, (B), counts of at most Nq.
    pub q_lengths: Option<&'a [u32]>,
    /// Offsets for [`Alignment::PerSequence`], (B).
    pub offsets: Option<&'a [i32]>,
    /// Segment ids of queries (B, Nq) and keys (B, Nk): a pair is visible where they match.
    pub segments: Option<(&'a [u32], &'a [u32])>,
    /// ALiBi slopes, (Hq): `-slope * |i + offset - j|` is added to the score.
    pub alibi_slopes: Option<&'a [f32]>,
    /// Sink logits, (Hq): `exp(sink)` is added to the denominator once. -inf is no sink.
    pub sinks: Option<&'a [f32]>,
}

/// Sizes of a validated call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dims {
    /// B.
    pub batch: usize,
    /// Hq.
    pub q_heads: usize,
    /// Hkv.
    pub kv_heads: usize,
    /// Nq.
    pub q_len: usize,
    /// Nk.
    pub kv_len: usize,
    /// Dqk.
    pub qk_dim: usize,
    /// Dv.
    pub v_dim: usize,
}

impl Dims {
    /// Query heads that share one kv head.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }

    /// Shape of the output, (B, Hq, Nq, Dv).
    pub fn output_shape(&self) -> [usize; 4] {
        [self.batch, self.q_heads, self.q_len, self.v_dim]
    }

    /// Rows of the output, B * Hq * Nq; `usize::MAX` if there are more (views
    /// that broadcast may have any number).
    pub fn rows(&self) -> usize {
        let heads = self.batch.saturating_mul(self.q_heads);
        heads.saturating_mul(self.q_len)
    }

    /// Queries of the whole batch, B * Nq.
    pub(crate) fn queries(&self) -> usize {
        self.batch.saturating_mul(self.q_len)
    }

    /// Keys of the whole batch, B * Nk.
    pub(crate) fn keys(&self) -> usize {
        self.batch.saturating_mul(self.kv_len)
    }

    /// Sizes from the shapes of query, key and value.
    ///
    /// # Errors
    /// [`Error::Shape`] naming the operand that does not fit.
    pub fn new(query: [usize; 4], key: [usize; 4], value: [usize; 4]) -> Result<Dims> {
        let [batch, q_heads, q_len, qk_dim] = query;
        let [_, kv_heads, kv_len, _] = key;
        let v_dim = value[3];
        if qk_dim == 0 {
            return Err(Error::shape(
                "query",
                "(B, Hq, Nq, Dqk) with Dqk > 0",
                query,
            ));
        }
        if kv_heads == 0 {
            return Err(Error::shape("key", "(B, Hkv, Nk, Dqk) with Hkv > 0", key));
        }
        if key[0] != batch || key[3] != qk_dim {
            let expected = format!("[{batch}, Hkv, Nk, {qk_dim}] (from query)");
            return Err(Error::shape("key", expected, key));
        }
        if q_heads % kv_heads != 0 {
            let expected = format!("a multiple of the {kv_heads} kv heads as query heads");
            return Err(Error::shape("query", expected, query));
        }
        if value[..3] != key[..3] || v_dim == 0 {
            let expected = format!("[{batch}, {kv_heads}, {kv_len}, Dv] with Dv > 0 (from key)");
            return Err(Error::shape("value", expected, value));
        }
        for (operand, shape) in [("query", query), ("key", key), ("value", value)] {
            if shape.iter().any(|&n| n > MAX_SEQUENCE) {
                return Err(Error::shape(operand, "every axis at most 2^30", shape));
            }
        }
        Ok(Dims {
            batch,
            q_heads,
            kv_heads,
            q_len,
            kv_len,
            qk_dim,
            v_dim,
        })
    }

    /// Checks that `shape` broadcasts to (B, Hq, Nq, Nk).
    pub(crate) fn check_pairs(&self, operand: &'static str, shape: [usize; 4]) -> Result<()> {
        let full = [self.batch, self.q_heads, self.q_len, self.kv_len];
        let fits = shape.iter().zip(full).all(|(&n, m)| n == m || n == 1);
        if !fits {
            let expected = format!("broadcastable to {full:?} (each axis equal or 1)");
            return Err(Error::shape(operand, expected, shape));
        }
        Ok(())
    }
}

impl<'a> Inputs<'a> {
    /// Query, key and value; everything else absent.
    pub fn new(query: Tensor<'a>, key: Tensor<'a>, value: Tensor<'a>) -> Self {
        Inputs {
            query,
            key,
            value,
            bias: None,
            mask: None,
            kv_lengths: None,
            q_lengths: None,
            offsets: None,
            segments: None,
            alibi_slopes: None,
            sinks: None,
        }
    }

    /// Adds a bias.
    pub fn bias(mut self, bias: Tensor<'a>) -> Self {
        self.bias = Some(bias);
        self
    }

    /// Adds a boolean mask.
    pub fn mask(mut self, mask: BoolMask<'a>) -> Self {
        self.mask = Some(mask);
        self
    }

    /// Adds key counts.
    pub fn kv_lengths(mut self, lengths: &'a [u32]) -> Self {
        self.kv_lengths = Some(lengths);
        self
    }

    /// Adds query counts.
    pub fn q_lengths(mut self, lengths: &'a [u32]) -> Self {
        self.q_lengths = Some(lengths);
        self
    }

    /// Adds per-sequence offsets for [`Alignment::PerSequence`].
    pub fn offsets(mut self, offsets: &'a [i32]) -> Self {
        self.offsets = Some(offsets);
        self
    }

    /// Adds segment ids of queries (B, Nq) and keys (B, Nk).
    pub fn segments(mut self, queries: &'a [u32], keys: &'a [u32]) -> Self {
        self.segments = Some((queries, keys));
        self
    }

    /// Adds ALiBi slopes, one a query head.
    pub fn alibi_slopes(mut self, slopes: &'a [f32]) -> Self {
        self.alibi_slopes = Some(slopes);
        self
    }

    /// Adds sink logits, one a query head.
    pub fn sinks(mut self, sinks: &'a [f32]) -> Self {
        self.sinks = Some(sinks);
        self
    }

    /// Checks every operand and returns the sizes.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Value`] naming the operand.
    pub fn validate(&self, options: &Options) -> Result<Dims> {
        options.validate()?;
        let dims = Dims::new(self.query.shape, self.key.shape, self.value.shape)?;
        if self.key.dtype() != self.value.dtype() {
            let expected = format!("the key's storage type {:?}", self.key.dtype());
            let actual = format!("{:?}", self.value.dtype());
            return Err(Error::value("value", expected, actual));
        }
        if let Some(bias) = &self.bias {
            dims.check_pairs("bias", bias.shape)?;
        }
        if let Some(mask) = &self.mask {
            dims.check_pairs("mask", mask.shape)?;
        }
        check_counts("kv_lengths", self.kv_lengths, dims.batch, dims.kv_len)?;
        check_counts("q_lengths", self.q_lengths, dims.batch, dims.q_len)?;
        check_alignment(options, self.offsets.map(<[i32]>::len), dims.batch)?;
        if let Some((queries, keys)) = self.segments {
            check_len("q_segments", queries.len(), dims.queries())?;
            check_len("kv_segments", keys.len(), dims.keys())?;
        }
        if let Some(slopes) = self.alibi_slopes {
            check_len("alibi_slopes", slopes.len(), dims.q_heads)?;
            check_slopes(slopes)?;
        }
        if let Some(sinks) = self.sinks {
            check_len("sinks", sinks.len(), dims.q_heads)?;
            check_sinks(sinks)?;
        }
        Ok(dims)
    }
}

/// Results in host memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Outputs {
    /// (B, Hq, Nq, Dv), widened to f32.
    pub output: Vec<f32>,
    /// Natural log-sum-exp of each row, (B, Hq, Nq); -inf for a row without a visible key.
    pub lse: Vec<f32>,
}

pub(crate) fn check_len(operand: &'static str, got: usize, expected: usize) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(Error::shape(operand, format!("[{expected}]"), [got]))
}

pub(crate) fn check_counts(
    operand: &'static str,
    counts: Option<&[u32]>,
    batch: usize,
    most: usize,
) -> Result<()> {
    let Some(counts) = counts else {
        return Ok(());
    };
    check_len(operand, counts.len(), batch)?;
    match counts.iter().position(|&n| n as usize > most) {
        Some(b) => {
            let expected = format!("counts of at most {most}");
            let actual = format!("{} at batch entry {b}", counts[b]);
            Err(Error::value(operand, expected, actual))
        }
        None => Ok(()),
    }
}

pub(crate) fn check_alignment(
    options: &Options,
    offsets: Option<usize>,
    batch: usize,
) -> Result<()> {
    match (options.alignment, offsets) {
        (Alignment::PerSequence, None) => Err(Error::value(
            "offsets",
            "one offset a sequence (alignment is PerSequence)",
            "none",
        )),
        (Alignment::PerSequence, Some(n)) => check_len("offsets", n, batch),
        (alignment, Some(_)) => {
            let actual = format!("alignment {alignment:?} with offsets");
            Err(Error::value(
                "offsets",
                "none unless alignment is PerSequence",
                actual,
            ))
        }
        (_, None) => Ok(()),
    }
}

pub(crate) fn check_slopes(slopes: &[f32]) -> Result<()> {
    match slopes.iter().find(|s| !s.is_finite()) {
        Some(bad) => Err(Error::value("alibi_slopes", "finite numbers", bad)),
        None => Ok(()),
    }
}

pub(crate) fn check_sinks(sinks: &[f32]) -> Result<()> {
    match sinks
        .iter()
        .find(|s| !s.is_finite() && **s != f32::NEG_INFINITY)
    {
        Some(bad) => Err(Error::value("sinks", "finite numbers or -inf", bad)),
        None => Ok(()),
    }
}

fn checked_product(shape: &[usize; 4]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |product, &n| product.checked_mul(n))
}

fn describe_count(count: Option<usize>) -> String {
    count.map_or_else(|| "too many".to_owned(), |n| n.to_string())
}

fn broadcast_index(shape: [usize; 4], index: [usize; 4]) -> usize {
    let mut flat = 0;
    for axis in 0..4 {
        let i = if shape[axis] == 1 { 0 } else { index[axis] };
        assert!(i < shape[axis], "axis {axis}: index {i} of {}", shape[axis]);
        flat = flat * shape[axis] + i;
    }
    flat
}
