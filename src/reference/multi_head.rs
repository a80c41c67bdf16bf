//! A multi-head layer in f64: projections, attention, output projection, each with
//! what the errors of the step before do to it.

use super::StageExpected;
use super::project::{Known, products, values};
use super::rounding::{Approx, store};
use super::row::{Inexact, Row};
use crate::error::Result;
use crate::host::layer::{HostLinear, MultiHeadInputs};
use crate::host::tensor::Tensor;
use crate::memory::{filled, room};
use crate::rules::options::Options;
use crate::view::dtype::DType;

/// Y of a layer, (B, 1, Nq, width of the output), with bounds for an f32 computation
/// whose projections, heads and Y are stored as f32, f32 and `out`.
///
/// The error of a step enters the next to first order: that of q and k the scores
/// (`|q| dk + |k| dq`), that of v the output (`sum P dv`), that of the heads Y
/// (`sum |w| dheads`).
///
/// # Errors
/// As [`MultiHeadInputs::dims`] and [`crate::Inputs::validate`];
/// [`crate::Error::HostMemory`] if there is none for a step.
pub fn multi_head(
    inputs: &MultiHeadInputs<'_>,
    options: &Options,
    out: DType,
) -> Result<StageExpected> {
    let dims = inputs.dims()?;
    let d = &dims.attention;
    let source = inputs.context.unwrap_or(inputs.input);
    let query = Heads::project(&inputs.input, &inputs.query, d.q_heads)?;
    let key = Heads::project(&source, &inputs.key, d.kv_heads)?;
    let value = Heads::project(&source, &inputs.value, d.kv_heads)?;
    let attention = inputs.attention_of(query.tensor()?, key.tensor()?, value.tensor()?);
    attention.validate(options)?;
    let inexact = Inexact {
        query: &query.errors,
        key: &key.errors,
        value: &value.errors,
    };
    let width = d.q_heads.saturating_mul(d.v_dim);
    let shape = [d.queries(), width];
    let (mut values, mut errors) = (filled("heads", &shape, 0.0)?, filled("heads", &shape, 0.0)?);
    for flat in 0..d.rows() {
        let (head, i) = (flat / d.q_len, flat % d.q_len);
        let (b, h) = (head / d.q_heads, head % d.q_heads);
        let row = Row::new(&attention, options, b, h, i)?.inexact(&inexact);
        let first = (b * d.q_len + i) * width + h * d.v_dim;
        for (column, approx) in row.output(&row.softmax()?)?.into_iter().enumerate() {
            (values[first + column], errors[first + column]) = store(approx, DType::F32);
        }
    }
    let heads = Known {
        values,
        errors: Some(errors),
    };
    let shape = [d.batch, 1, d.q_len, width];
    let bias = inputs.output.bias.as_ref();
    let output = products(&heads, shape, &inputs.output.weight, bias)?;
    let mut expected = StageExpected::room("output", &[output.len()])?;
    output
        .into_iter()
        .for_each(|y| expected.push(store(y, out)));
    Ok(expected)
}

/// A projection in f32 as heads, (B, H, N, D), and how far a computed one may be away.
struct Heads {
    values: Vec<f32>,
    errors: Vec<f64>,
    shape: [usize; 4],
}

impl Heads {
    fn project(input: &Tensor<'_>, linear: &HostLinear<'_>, heads: usize) -> Result<Heads> {
        let [batch, _, rows, _] = input.shape();
        let exact = Known {
            values: values("input", input)?,
            errors: None,
        };
        let bias = linear.bias.as_ref();
        let projected = products(&exact, input.shape(), &linear.weight, bias)?;
        let width = linear.weight.shape()[2];
        let dim = width / heads;
        let mut made = Heads {
            values: room("projection", &[projected.len()])?,
            errors: room("projection", &[projected.len()])?,
            shape: [batch, heads, rows, dim],
        };
        for b in 0..batch {
            for h in 0..heads {
                for i in 0..rows {
                    let first = (b * rows + i) * width + h * dim;
                    for approx in &projected[first..first + dim] {
                        made.push(*approx);
                    }
                }
            }
        }
        Ok(made)
    }

    /// The oracle of attention takes f32: what rounding to it loses is an error too.
    fn push(&mut self, approx: Approx) {
        let (value, bound) = store(approx, DType::F32);
        let rounded = value as f32;
        let lost = if value.is_finite() {
            (value - f64::from(rounded)).abs()
        } else {
            0.0
        };
        self.values.push(rounded);
        self.errors.push(bound + lost);
    }

    fn tensor(&self) -> Result<Tensor<'_>> {
        Tensor::f32(&self.values, self.shape)
    }
}
