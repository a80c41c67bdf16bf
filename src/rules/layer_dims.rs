//! The sizes of a multi-head layer, and what it costs.

use crate::error::{Error, Result};
use crate::rules::dims::{Dims, MAX_SEQUENCE};

/// Sizes of a validated multi-head layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MultiHeadDims {
    /// Width of the input X.
    pub width: usize,
    /// Width of what keys and values are projected from; that of X in self-attention.
    pub context_width: usize,
    /// Width of the output Y.
    pub output_width: usize,
    /// Sizes of the attention between the projections.
    pub attention: Dims,
}

/// The shapes of a layer's weights: (out, in) of each.
pub(crate) struct WeightShapes {
    pub input: [usize; 4],
    pub context: Option<[usize; 4]>,
    pub projections: Projections,
    pub output: [usize; 4],
}

/// (1, 1, out, in) of W_Q, W_K and W_V, or of all of them in one.
pub(crate) enum Projections {
    Separate([[usize; 4]; 3]),
    Packed([usize; 4]),
}

impl MultiHeadDims {
    /// Sizes from the shapes, which have to fit each other.
    pub(crate) fn new(shapes: &WeightShapes, q_heads: usize, kv_heads: usize) -> Result<Self> {
        if q_heads == 0 || kv_heads == 0 || !q_heads.is_multiple_of(kv_heads) {
            let expected = "at least one kv head, and query heads a multiple of them";
            let actual = format!("{q_heads} query heads over {kv_heads} kv heads");
            return Err(Error::value("heads", expected, actual));
        }
        // Neither heads, rows nor widths can be so many that a product of two overflows.
        if q_heads > MAX_SEQUENCE {
            let actual = format!("{q_heads} query heads");
            return Err(Error::value("heads", "at most 2^30", actual));
        }
        let given = [("input", shapes.input)].into_iter();
        for (operand, shape) in given.chain(shapes.context.map(|context| ("context", context))) {
            if shape[3] == 0 {
                let expected = "(B, 1, N, width) with width > 0";
                return Err(Error::shape(operand, expected, shape));
            }
            check_axes(operand, shape)?;
        }
        let [batch, _, q_len, width] = shapes.input;
        let [context_batch, _, kv_len, context_width] = shapes.context.unwrap_or(shapes.input);
        if context_batch != batch {
            let expected = format!("[{batch}, 1, Nk, width] (from the input)");
            let actual = shapes.context.unwrap_or_default();
            return Err(Error::shape("context", expected, actual));
        }
        let (qk_dim, v_dim) = match shapes.projections {
            Projections::Separate([query, key, value]) => {
                let qk_dim = head_dim("query weight", query, q_heads, width, "the input")?;
                let source = if shapes.context.is_some() {
                    "the context"
                } else {
                    "the input"
                };
                let of_key = head_dim("key weight", key, kv_heads, context_width, source)?;
                if of_key != qk_dim {
                    let outputs = kv_heads * qk_dim;
                    let expected = format!(
                        "{outputs} outputs: {kv_heads} heads of the query's head_dim {qk_dim}"
                    );
                    return Err(Error::shape("key weight", expected, key));
                }
                (
                    qk_dim,
                    head_dim("value weight", value, kv_heads, context_width, source)?,
                )
            }
            Projections::Packed(packed) => {
                let all = q_heads + 2 * kv_heads;
                let dim = head_dim("packed weight", packed, all, width, "the input")?;
                if context_width != width {
                    let expected = format!(
                        "a context of the input's width {width}, as one weight projects both"
                    );
                    let actual = shapes.context.unwrap_or_default();
                    return Err(Error::shape("context", expected, actual));
                }
                (dim, dim)
            }
        };
        let [_, _, output_width, concatenated] = shapes.output;
        let inputs = q_heads as u64 * v_dim as u64;
        if shapes.output[..2] != [1, 1] || concatenated as u64 != inputs || output_width == 0 {
            let expected = format!("(1, 1, out, {inputs}): {q_heads} heads of {v_dim} values");
            return Err(Error::shape("output weight", expected, shapes.output));
        }
        check_axes("output weight", shapes.output)?;
        let query = [batch, q_heads, q_len, qk_dim];
        let [key, value] = [qk_dim, v_dim].map(|dim| [batch, kv_heads, kv_len, dim]);
        Ok(MultiHeadDims {
            width,
            context_width,
            output_width,
            attention: Dims::new(query, key, value)?,
        })
    }

    /// Floating-point operations: 2 a row, input and output of each projection, and
    /// 2 (Dqk + Dv) a pair of query and key of each head, masks not considered.
    ///
    /// h heads of width d / h cost what one head of width d costs: the pairs are h
    /// times as many, each h times as cheap (Vaswani et al. 2017, section 3.2.2).
    pub fn flops(&self) -> f64 {
        let d = &self.attention;
        let rows = |n: usize| d.batch as f64 * n as f64;
        let product = |rows: f64, width: usize, heads: usize, dim: usize| {
            2.0 * rows * width as f64 * heads as f64 * dim as f64
        };
        let pairs = rows(d.q_len) * d.kv_len as f64 * d.q_heads as f64;
        product(rows(d.q_len), self.width, d.q_heads, d.qk_dim)
            + product(rows(d.kv_len), self.context_width, d.kv_heads, d.qk_dim)
            + product(rows(d.kv_len), self.context_width, d.kv_heads, d.v_dim)
            + 2.0 * pairs * (d.qk_dim as f64 + d.v_dim as f64)
            + product(rows(d.q_len), self.output_width, d.q_heads, d.v_dim)
    }
}

/// A bias has one number an output of its weight.
pub(crate) fn check_bias(
    operand: &'static str,
    weight: [usize; 4],
    bias: Option<[usize; 4]>,
) -> Result<()> {
    let expected = [1, 1, 1, weight[2]];
    match bias.filter(|bias| *bias != expected) {
        None => Ok(()),
        Some(bias) => Err(Error::shape(operand, format!("{expected:?}"), bias)),
    }
}

fn check_axes(operand: &'static str, shape: [usize; 4]) -> Result<()> {
    match shape.iter().all(|&n| n <= MAX_SEQUENCE) {
        true => Ok(()),
        false => Err(Error::shape(operand, "every axis at most 2^30", shape)),
    }
}

/// The width of a head whose weight is (1, 1, heads * width, inputs).
fn head_dim(
    operand: &'static str,
    shape: [usize; 4],
    heads: usize,
    inputs: usize,
    source: &str,
) -> Result<usize> {
    let [_, _, outputs, width] = shape;
    let fits =
        shape[..2] == [1, 1] && width == inputs && outputs > 0 && outputs.is_multiple_of(heads);
    if !fits {
        let expected =
            format!("(1, 1, out, {inputs}) by {source}'s width, out a multiple of {heads} heads");
        return Err(Error::shape(operand, expected, shape));
    }
    check_axes(operand, shape)?;
    Ok(outputs / heads)
}
