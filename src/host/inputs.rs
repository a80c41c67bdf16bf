//! The operands of one call, their sizes, and what is checked of them.

use super::tensor::{BoolMask, Tensor};
use crate::error::{Error, Result};
use crate::options::{Alignment, Options};

/// Longest sequence (queries or keys) that is accepted: `2^30`, so that every
/// position fits the kernels' 32-bit arithmetic.
pub const MAX_SEQUENCE: usize = 1 << 30;

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
    /// Query heads that share one kv head; 0 if there is no kv head, which
    /// [`Dims::new`] refuses.
    pub fn group(&self) -> usize {
        self.q_heads.checked_div(self.kv_heads).unwrap_or(0)
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
        let dims = Dims::new(self.query.shape(), self.key.shape(), self.value.shape())?;
        if self.key.dtype() != self.value.dtype() {
            let expected = format!("the key's storage type {:?}", self.key.dtype());
            let actual = format!("{:?}", self.value.dtype());
            return Err(Error::value("value", expected, actual));
        }
        if let Some(bias) = &self.bias {
            dims.check_pairs("bias", bias.shape())?;
        }
        if let Some(mask) = &self.mask {
            dims.check_pairs("mask", mask.shape())?;
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
