//! The named views of one attention call.

use crate::view::tensor::{List, MaskView, StatsView, TensorView};

/// Everything a forward pass reads and writes, as views of the caller's
/// buffers. Shapes as in [`crate::Inputs`].
///
/// Every buffer needs usage `STORAGE`. Inputs may overlap each other; the
/// output and the statistics overlap nothing.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Operands<'a> {
    /// (B, Hq, Nq, Dqk), last axis contiguous.
    pub query: TensorView<'a>,
    /// (B, Hkv, Nk, Dqk), last axis contiguous.
    pub key: TensorView<'a>,
    /// (B, Hkv, Nk, Dv), last axis contiguous, of the key's storage type.
    pub value: TensorView<'a>,
    /// (B, Hq, Nq, Dv), last axis contiguous; its storage type is its own.
    pub output: TensorView<'a>,
    /// Log-sum-exp or row states, (B, Hq, Nq): written by a forward pass, read by
    /// an inspection.
    pub stats: Option<StatsView<'a>>,
    /// Added to the scores, broadcastable to (B, Hq, Nq, Nk).
    pub bias: Option<TensorView<'a>>,
    /// Boolean mask, broadcastable to (B, Hq, Nq, Nk).
    pub mask: Option<MaskView<'a>>,
    /// Key counts, (B). From a buffer they are clamped to Nk.
    pub kv_lengths: Option<List<'a, u32>>,
    /// Query counts, (B). From a buffer they are clamped to Nq.
    pub q_lengths: Option<List<'a, u32>>,
    /// Offsets for [`crate::Alignment::PerSequence`], (B).
    pub offsets: Option<List<'a, i32>>,
    /// Segment ids of the queries, (B, Nq); always together with the keys'.
    pub q_segments: Option<List<'a, u32>>,
    /// Segment ids of the keys, (B, Nk).
    pub kv_segments: Option<List<'a, u32>>,
    /// ALiBi slopes, (Hq).
    pub alibi_slopes: Option<List<'a, f32>>,
    /// Sink logits, (Hq).
    pub sinks: Option<List<'a, f32>>,
    /// For an inspection: norms of the values, (B, Hkv, Nk, 1) or (B, Hq, Nk, 1), f32.
    pub norms: Option<TensorView<'a>>,
    /// For an inspection: where the mass that each key receives goes.
    pub received: Option<TensorView<'a>>,
}

impl<'a> Operands<'a> {
    /// The four tensors that every call has; everything else absent.
    pub fn new(
        query: TensorView<'a>,
        key: TensorView<'a>,
        value: TensorView<'a>,
        output: TensorView<'a>,
    ) -> Self {
        Operands {
            query,
            key,
            value,
            output,
            stats: None,
            bias: None,
            mask: None,
            kv_lengths: None,
            q_lengths: None,
            offsets: None,
            q_segments: None,
            kv_segments: None,
            alibi_slopes: None,
            sinks: None,
            norms: None,
            received: None,
        }
    }

    /// Asks for LSE or row states.
    pub fn stats(mut self, stats: StatsView<'a>) -> Self {
        self.stats = Some(stats);
        self
    }

    /// Adds a bias.
    pub fn bias(mut self, bias: TensorView<'a>) -> Self {
        self.bias = Some(bias);
        self
    }

    /// Adds a boolean mask.
    pub fn mask(mut self, mask: MaskView<'a>) -> Self {
        self.mask = Some(mask);
        self
    }

    /// Adds key counts.
    pub fn kv_lengths(mut self, lengths: List<'a, u32>) -> Self {
        self.kv_lengths = Some(lengths);
        self
    }

    /// Adds query counts.
    pub fn q_lengths(mut self, lengths: List<'a, u32>) -> Self {
        self.q_lengths = Some(lengths);
        self
    }

    /// Adds per-sequence offsets.
    pub fn offsets(mut self, offsets: List<'a, i32>) -> Self {
        self.offsets = Some(offsets);
        self
    }

    /// Adds segment ids of queries and keys.
    pub fn segments(mut self, queries: List<'a, u32>, keys: List<'a, u32>) -> Self {
        self.q_segments = Some(queries);
        self.kv_segments = Some(keys);
        self
    }

    /// Adds ALiBi slopes.
    pub fn alibi_slopes(mut self, slopes: List<'a, f32>) -> Self {
        self.alibi_slopes = Some(slopes);
        self
    }

    /// Adds norms of the values.
    pub fn norms(mut self, norms: TensorView<'a>) -> Self {
        self.norms = Some(norms);
        self
    }

    /// Asks for the mass that each key receives.
    pub fn received(mut self, received: TensorView<'a>) -> Self {
        self.received = Some(received);
        self
    }

    /// Adds sink logits.
    pub fn sinks(mut self, sinks: List<'a, f32>) -> Self {
        self.sinks = Some(sinks);
        self
    }
}
