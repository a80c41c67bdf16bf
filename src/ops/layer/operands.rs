//! What a multi-head layer reads and writes, as views of the caller's buffers.

use crate::error::{Error, Result};
use crate::plan::operands::Operands;
use crate::plan::spans::NamedSpans;
use crate::view::aliasing::NamedSpan;
use crate::view::tensor::TensorView;

/// The weight and bias of one projection.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    /// (1, 1, out, in), last axis contiguous: see [`TensorView::matrix`].
    pub weight: TensorView<'a>,
    /// (1, 1, 1, out).
    pub bias: Option<TensorView<'a>>,
}

impl<'a> Linear<'a> {
    /// A weight without a bias.
    pub fn new(weight: TensorView<'a>) -> Self {
        Linear { weight, bias: None }
    }

    /// Adds a bias.
    pub fn bias(mut self, bias: TensorView<'a>) -> Self {
        self.bias = Some(bias);
        self
    }

    /// Outputs `first` to `first + count` alone.
    pub(super) fn rows(&self, first: usize, count: usize) -> Self {
        let part = |view: &TensorView<'a>, axis: usize| {
            let mut part = *view;
            part.offset += first as u64 * view.strides[axis] as u64;
            part.shape[axis] = count;
            part
        };
        Linear {
            weight: part(&self.weight, 2),
            bias: self.bias.as_ref().map(|bias| part(bias, 3)),
        }
    }
}

/// The projections W_Q, W_K and W_V.
// Views of a call, copied a few times at most.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, Copy)]
pub enum InProjections<'a> {
    /// One matrix each.
    Separate {
        /// W_Q: Hq Dqk outputs, those of a head side by side.
        query: Linear<'a>,
        /// W_K: Hkv Dqk outputs.
        key: Linear<'a>,
        /// W_V: Hkv Dv outputs.
        value: Linear<'a>,
    },
    /// One matrix whose outputs are those of W_Q, then of W_K, then of W_V, with
    /// Dqk = Dv: torch's `in_proj`. For self-attention it is one product.
    Packed(Linear<'a>),
}

/// Everything that a multi-head layer reads and writes.
///
/// Every buffer needs usage `STORAGE`. What is read may overlap; the output and the
/// statistics overlap nothing, not even what is read before they are written.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct MultiHeadOperands<'a> {
    /// X, (B, 1, Nq, width): see [`TensorView::tokens`].
    pub input: TensorView<'a>,
    /// C, (B, 1, Nk, width of its own), where keys and values come from another
    /// sequence: cross-attention. Without it they come from X.
    pub context: Option<TensorView<'a>>,
    /// Hq.
    pub q_heads: usize,
    /// Hkv, a divisor of Hq.
    pub kv_heads: usize,
    /// W_Q, W_K, W_V.
    pub projections: InProjections<'a>,
    /// W_O: its inputs are the heads side by side, Hq Dv.
    pub output_projection: Linear<'a>,
    /// Y, (B, 1, Nq, outputs of W_O).
    pub output: TensorView<'a>,
    /// What attention takes besides query, key, value and output; those four are
    /// placeholders here.
    pub(super) attention: Operands<'a>,
}

impl<'a> MultiHeadOperands<'a> {
    /// Self-attention of `heads` heads with nothing optional.
    pub fn new(
        input: TensorView<'a>,
        heads: usize,
        projections: InProjections<'a>,
        output_projection: Linear<'a>,
        output: TensorView<'a>,
    ) -> Self {
        MultiHeadOperands {
            input,
            context: None,
            q_heads: heads,
            kv_heads: heads,
            projections,
            output_projection,
            output,
            attention: Operands::new(input, input, input, output),
        }
    }

    /// Takes keys and values from another sequence.
    pub fn context(mut self, context: TensorView<'a>) -> Self {
        self.context = Some(context);
        self
    }

    /// Sets the number of key and value heads, for grouped heads.
    pub fn kv_heads(mut self, heads: usize) -> Self {
        self.kv_heads = heads;
        self
    }

    /// Adds what attention takes besides query, key, value and output: a mask, a
    /// bias, lengths, segments, statistics. `add` gets operands whose four tensors
    /// are placeholders; what it does to those is ignored.
    ///
    /// ```no_run
    /// # use wgpu_attention::{List, MultiHeadOperands};
    /// # fn example<'a>(operands: MultiHeadOperands<'a>, lengths: &'a [u32]) {
    /// let padded = operands.attention(|a| a.kv_lengths(List::Host(lengths)));
    /// # }
    /// ```
    pub fn attention(mut self, add: impl FnOnce(Operands<'a>) -> Operands<'a>) -> Self {
        self.attention = add(self.attention);
        self
    }

    /// Where keys and values come from.
    pub(super) fn source(&self) -> TensorView<'a> {
        self.context.unwrap_or(self.input)
    }

    /// Every projection, after the names of its weight and bias.
    pub(super) fn linears(&self) -> impl Iterator<Item = NamedLinear<'a>> + use<'a> {
        let into = match self.projections {
            InProjections::Packed(packed) => {
                [Some(("packed weight", "packed bias", packed)), None, None]
            }
            InProjections::Separate { query, key, value } => [
                Some(("query weight", "query bias", query)),
                Some(("key weight", "key bias", key)),
                Some(("value weight", "value bias", value)),
            ],
        };
        let out_of = Some(("output weight", "output bias", self.output_projection));
        into.into_iter().chain([out_of]).flatten()
    }

    /// The views of every projection, by name.
    pub(super) fn weights(&self) -> impl Iterator<Item = (&'static str, TensorView<'a>)> + use<'a> {
        let views = |(weight, bias, linear): NamedLinear<'a>| {
            let bias = linear.bias.map(|view| (bias, view));
            [Some((weight, linear.weight)), bias].into_iter().flatten()
        };
        self.linears().flat_map(views)
    }

    /// The buffer ranges of a call. The four placeholders of attention are not among
    /// them.
    pub(super) fn spans(&self) -> Vec<NamedSpan<'a>> {
        let rows = [
            ("output", Some(self.output), true),
            ("input", Some(self.input), false),
            ("context", self.context, false),
        ];
        let rows = rows
            .into_iter()
            .filter_map(|(name, view, written)| Some((name, view?.span(), written)));
        let weights = self
            .weights()
            .map(|(name, view)| (name, view.span(), false));
        let attention = NamedSpans::of(&self.attention, true);
        let attention = attention.besides_tensors().cloned();
        rows.chain(weights).chain(attention).collect()
    }
}

/// The names of a weight and its bias, and both.
type NamedLinear<'a> = (&'static str, &'static str, Linear<'a>);

/// What the caller calls the weight, bias, input and output of a projection.
pub(super) type Names = [(&'static str, &'static str); 4];

/// Names for [`Error::renamed`].
pub(super) fn names([weight, bias, input, output]: [&'static str; 4]) -> Names {
    [
        ("weight", weight),
        ("bias", bias),
        ("input", input),
        ("output", output),
    ]
}

/// A projection's rows have to be (B, 1, N, width).
pub(super) fn check_tokens(operand: &'static str, view: &TensorView<'_>) -> Result<()> {
    match view.shape[1] {
        1 => Ok(()),
        _ => Err(Error::shape(operand, "(B, 1, N, width)", view.shape)),
    }
}
