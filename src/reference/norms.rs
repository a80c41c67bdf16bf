//! Norms of values, and through an output projection.

use super::StageExpected;
use super::project::{Known, products, values};
use super::rounding::{Approx, TINY, U, store};
use super::total::{Total, times};
use crate::error::{Error, Result};
use crate::host::tensor::Tensor;
use crate::memory::collected;
use crate::view::dtype::DType;

/// |V_j| of (B, H, N, D): (B, H, N).
///
/// # Errors
/// [`Error::HostMemory`] if there is none for the norms.
pub fn value_norms(value: &Tensor<'_>) -> Result<StageExpected> {
    let width = value.shape()[3].max(1);
    let all = values("value", value)?;
    let mut expected = StageExpected::room("norms", &[all.len() / width])?;
    for v in all.chunks_exact(width) {
        let mut sum = Total::default();
        v.iter().for_each(|&x| sum.push(times(Approx::exact(x), x)));
        expected.push(store(root(sum.approx()), DType::F32));
    }
    Ok(expected)
}

/// sqrt(max(0, V_j G_h V_j)) for values (B, Hkv, N, D) and Gram matrices
/// (1, Hq, D, D), f32: (B, Hq, N). The product V_j G_h is rounded to f32.
///
/// # Errors
/// [`Error::Shape`] if the shapes do not fit each other, [`Error::HostMemory`] if there is
/// none for the norms.
pub fn value_norms_through(value: &Tensor<'_>, gram: &Tensor<'_>) -> Result<StageExpected> {
    let [batch, kv_heads, rows, width] = value.shape();
    let [_, heads, _, _] = gram.shape();
    let fits = gram.shape() == [1, heads, width, width] && width > 0;
    if !fits || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        let expected = format!("[1, a multiple of {kv_heads}, {width}, {width}]");
        return Err(Error::shape("gram", expected, gram.shape()));
    }
    let (v, g) = (values("value", value)?, gram.data());
    let mut expected = StageExpected::room("norms", &[batch, heads, rows])?;
    for b in 0..batch {
        for h in 0..heads {
            let start = (b * kv_heads + h / (heads / kv_heads)) * rows * width;
            let of_head = &v[start..start + rows * width];
            let of_matrix = h * width * width..(h + 1) * width * width;
            let matrix: Vec<f32> = collected("gram", of_matrix.map(|n| g.get(n)))?;
            let matrix = Tensor::f32(&matrix, [1, 1, width, width])?;
            let exact = Known {
                values: collected("value", of_head.iter().copied())?,
                errors: None,
            };
            let through = products(&exact, [1, 1, rows, width], &matrix, None)?;
            for (v, y) in of_head.chunks_exact(width).zip(through.chunks_exact(width)) {
                let mut sum = Total::default();
                for (&v, y) in v.iter().zip(y) {
                    let y = y.map(|value, error| Approx {
                        value,
                        error: error + U * value.abs(),
                    });
                    sum.push(times(y, v));
                }
                expected.push(store(root(sum.approx()), DType::F32));
            }
        }
    }
    Ok(expected)
}

/// The root of a sum, 0 where it is negative: an error e moves it by e / root, and
/// never by more than the root of e. WGSL grants 1 / inverseSqrt(x), 4.5 ulp.
fn root(sum: Approx) -> Approx {
    sum.map(|value, error| {
        let root = value.max(0.0).sqrt();
        let moved = match root > 0.0 {
            true => error.sqrt().min(error / root),
            false => error.sqrt(),
        };
        Approx {
            value: root,
            error: moved + 10.0 * U * root + TINY,
        }
    })
}
