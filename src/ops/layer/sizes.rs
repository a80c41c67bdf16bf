//! The sizes of a layer's operands.

use crate::error::{Error, Result};
use crate::ops::layer::operands::{InProjections, MultiHeadOperands, check_tokens};
use crate::rules::layer_dims::{MultiHeadDims, Projections, WeightShapes, check_bias};
use crate::view::aliasing::check_writable;

impl MultiHeadDims {
    pub(super) fn of(operands: &MultiHeadOperands<'_>) -> Result<MultiHeadDims> {
        check_tokens("input", &operands.input)?;
        if let Some(context) = &operands.context {
            check_tokens("context", context)?;
        }
        let shapes = WeightShapes {
            input: operands.input.shape,
            context: operands.context.map(|context| context.shape),
            projections: match &operands.projections {
                InProjections::Separate { query, key, value } => {
                    Projections::Separate([query, key, value].map(|linear| linear.weight.shape))
                }
                InProjections::Packed(packed) => Projections::Packed(packed.weight.shape),
            },
            output: operands.output_projection.weight.shape,
        };
        for (_, name, linear) in operands.linears() {
            let bias = linear.bias.map(|bias| bias.shape);
            check_bias(name, linear.weight.shape, bias)?;
        }
        let dims = MultiHeadDims::new(&shapes, operands.q_heads, operands.kv_heads)?;
        let expected = [
            dims.attention.batch,
            1,
            dims.attention.q_len,
            dims.output_width,
        ];
        if operands.output.shape != expected {
            let expected = format!("{expected:?}");
            return Err(Error::shape("output", expected, operands.output.shape));
        }
        check_writable("output", &operands.output)?;
        Ok(dims)
    }
}
