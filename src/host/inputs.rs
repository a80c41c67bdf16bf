//! The operands of one call, their sizes, and what is checked of them.

use super::tensor::{BoolMask, Tensor};
use crate::error::{Error, Result};
use crate::rules::dims::{
    Dims, check_alignment, check_counts, check_len, check_sinks, check_slopes,
};
use crate::rules::options::Options;

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
    /// Offsets for [`Alignment::PerSequence`](crate::Alignment::PerSequence), (B).
    pub offsets: Option<&'a [i32]>,
    /// Segment ids of queries (B, Nq) and keys (B, Nk): a pair is visible where they match.
    pub segments: Option<(&'a [u32], &'a [u32])>,
    /// ALiBi slopes, (Hq): `-slope * |i + offset - j|` is added to the score.
    pub alibi_slopes: Option<&'a [f32]>,
    /// Sink logits, (Hq): `exp(sink)` is added to the denominator once. -inf is no sink.
    pub sinks: Option<&'a [f32]>,
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

    /// Adds per-sequence offsets for [`Alignment::PerSequence`](crate::Alignment::PerSequence).
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
