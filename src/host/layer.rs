//! The operands of a multi-head layer in host memory.

use crate::error::{Error, Result};
use crate::host::inputs::Inputs;
use crate::host::tensor::Tensor;
use crate::rules::layer_dims::{MultiHeadDims, Projections, WeightShapes, check_bias};

/// The weight and bias of one projection in host memory.
#[derive(Debug, Clone, Copy)]
pub struct HostLinear<'a> {
    /// (1, 1, out, in).
    pub weight: Tensor<'a>,
    /// (1, 1, 1, out).
    pub bias: Option<Tensor<'a>>,
}

/// All operands of a multi-head layer in host memory; W_Q, W_K and W_V in one matrix
/// are given as three slices of it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct MultiHeadInputs<'a> {
    /// X, (B, 1, Nq, width).
    pub input: Tensor<'a>,
    /// C, (B, 1, Nk, width of its own), for cross-attention.
    pub context: Option<Tensor<'a>>,
    /// Hq.
    pub q_heads: usize,
    /// Hkv, a divisor of Hq.
    pub kv_heads: usize,
    /// W_Q: Hq Dqk outputs, those of a head side by side.
    pub query: HostLinear<'a>,
    /// W_K: Hkv Dqk outputs.
    pub key: HostLinear<'a>,
    /// W_V: Hkv Dv outputs.
    pub value: HostLinear<'a>,
    /// W_O: its inputs are the heads side by side, Hq Dv.
    pub output: HostLinear<'a>,
    /// What attention takes besides query, key and value, which are placeholders here.
    pub(crate) attention: Inputs<'a>,
}

impl<'a> MultiHeadInputs<'a> {
    /// Self-attention of `heads` heads with nothing optional; `projections` are W_Q,
    /// W_K, W_V and W_O.
    pub fn new(input: Tensor<'a>, heads: usize, projections: [HostLinear<'a>; 4]) -> Self {
        let [query, key, value, output] = projections;
        MultiHeadInputs {
            input,
            context: None,
            q_heads: heads,
            kv_heads: heads,
            query,
            key,
            value,
            output,
            attention: Inputs::new(input, input, input),
        }
    }

    /// Takes keys and values from another sequence.
    pub fn context(mut self, context: Tensor<'a>) -> Self {
        self.context = Some(context);
        self
    }

    /// Sets the number of key and value heads, for grouped heads.
    pub fn kv_heads(mut self, heads: usize) -> Self {
        self.kv_heads = heads;
        self
    }

    /// Adds what attention takes besides query, key and value; `add` gets inputs whose
    /// three tensors are placeholders.
    pub fn attention(mut self, add: impl FnOnce(Inputs<'a>) -> Inputs<'a>) -> Self {
        self.attention = add(self.attention);
        self
    }

    /// The inputs of attention with these queries, keys and values.
    pub fn attention_of<'b>(
        &self,
        query: Tensor<'b>,
        key: Tensor<'b>,
        value: Tensor<'b>,
    ) -> Inputs<'b>
    where
        'a: 'b,
    {
        Inputs {
            query,
            key,
            value,
            ..self.attention
        }
    }

    /// Checks the shapes of the projections and returns the sizes; what attention
    /// takes besides is checked with the queries and keys.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Value`] naming the operand.
    pub fn dims(&self) -> Result<MultiHeadDims> {
        for (operand, rows) in [("input", Some(self.input)), ("context", self.context)] {
            if let Some(rows) = rows.filter(|rows| rows.shape()[1] != 1) {
                return Err(Error::shape(operand, "(B, 1, N, width)", rows.shape()));
            }
        }
        let shapes = WeightShapes {
            input: self.input.shape(),
            context: self.context.map(|context| context.shape()),
            projections: Projections::Separate(
                [&self.query, &self.key, &self.value].map(|linear| linear.weight.shape()),
            ),
            output: self.output.weight.shape(),
        };
        let dims = MultiHeadDims::new(&shapes, self.q_heads, self.kv_heads)?;
        let biases = [
            ("query bias", &self.query),
            ("key bias", &self.key),
            ("value bias", &self.value),
            ("output bias", &self.output),
        ];
        for (operand, linear) in biases {
            let bias = linear.bias.map(|bias| bias.shape());
            check_bias(operand, linear.weight.shape(), bias)?;
        }
        Ok(dims)
    }
}
