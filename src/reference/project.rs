//! A projection in f64.

use super::StageExpected;
use super::rounding::{Approx, MAX, TINY, U, accumulation, store};
use crate::error::{Error, Result};
use crate::host::tensor::Tensor;
use crate::memory::{collected, room};
use crate::view::dtype::DType;

/// Y = X W^T + b for an input (B, 1, N, in), a weight (1, 1, out, in) and a bias
/// (1, 1, 1, out), with bounds for an f32 computation stored as `out`: values are
/// (B, 1, N, out). Costs B N in out f64 operations.
///
/// # Errors
/// [`Error::Shape`] if the shapes do not fit each other, [`Error::HostMemory`] if there is
/// none for the results.
pub fn project(
    input: &Tensor<'_>,
    weight: &Tensor<'_>,
    bias: Option<&Tensor<'_>>,
    out: DType,
) -> Result<StageExpected> {
    let exact = Known {
        values: values("input", input)?,
        errors: None,
    };
    let approx = products(&exact, input.shape(), weight, bias)?;
    let mut expected = StageExpected::room("projection", &[approx.len()])?;
    approx
        .into_iter()
        .for_each(|y| expected.push(store(y, out)));
    Ok(expected)
}

/// Rows of numbers, and how far each may be away.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub values: Vec<f64>,
    /// `None`: they are exact.
    pub errors: Option<Vec<f64>>,
}

/// Every element, widened.
pub(super) fn values(what: &str, tensor: &Tensor<'_>) -> Result<Vec<f64>> {
    let data = tensor.data();
    collected(what, (0..data.len()).map(|n| f64::from(data.get(n))))
}

/// The projection of rows of known accuracy, of shape (B, 1, N, in).
pub(super) fn products(
    input: &Known,
    shape: [usize; 4],
    weight: &Tensor<'_>,
    bias: Option<&Tensor<'_>>,
) -> Result<Vec<Approx>> {
    let [_, heads, _, width] = shape;
    let [_, _, outputs, inputs] = weight.shape();
    if heads != 1 {
        return Err(Error::shape("input", "(B, 1, N, in)", shape));
    }
    if weight.shape() != [1, 1, outputs, width] || inputs == 0 {
        let expected = format!("(1, 1, out, {width}), as the input has width {width}");
        return Err(Error::shape("weight", expected, weight.shape()));
    }
    if let Some(bias) = bias.filter(|bias| bias.shape() != [1, 1, 1, outputs]) {
        let expected = format!("[1, 1, 1, {outputs}]");
        return Err(Error::shape("bias", expected, bias.shape()));
    }
    let weight = values("weight", weight)?;
    let bias = bias.map(|bias| values("bias", bias)).transpose()?;
    let mut all = room("projection", &[input.values.len() / width, outputs])?;
    for (n, x) in input.values.chunks_exact(width).enumerate() {
        let errors = input
            .errors
            .as_ref()
            .map(|e| &e[n * width..(n + 1) * width]);
        for (j, w) in weight.chunks_exact(width).enumerate() {
            let y = dot(x, errors, w);
            all.push(match &bias {
                Some(bias) => y.plus(Approx::exact(bias[j])),
                None => y,
            });
        }
    }
    Ok(all)
}

fn dot(x: &[f64], errors: Option<&[f64]>, w: &[f64]) -> Approx {
    let (mut sum, mut in_order, mut magnitude, mut inputs) = (0f64, 0f64, 0f64, 0f64);
    let mut inherited = 0f64;
    for (k, (&x, &w)) in x.iter().zip(w).enumerate() {
        sum += x * w;
        in_order += sum.abs();
        magnitude += (x * w).abs();
        inputs += x.abs() + w.abs();
        inherited += errors.map_or(0.0, |errors| errors[k] * w.abs());
    }
    // An unknown input makes it infinite, or NaN where its weight is 0.
    if !inherited.is_finite() {
        return Approx::UNDETERMINED;
    }
    if inputs.is_nan() {
        return Approx::NAN;
    }
    if magnitude.max(inputs) > MAX {
        return Approx::UNDETERMINED;
    }
    let rounding = accumulation(x.len(), in_order, magnitude) + magnitude;
    Approx {
        value: sum,
        error: inherited + U * rounding + TINY * (x.len() as f64 + inputs),
    }
}
