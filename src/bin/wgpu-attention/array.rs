//! Tensors that own their elements, and their way from and to safetensors.

use std::borrow::Cow;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView, View};
use wgpu_attention::{DType, Data, Error, Tensor};

use crate::memory;

/// The most axes that a tensor of a file may have: no operand has more than five.
pub const MAX_AXES: usize = 32;

/// What to say of a tensor with too many axes.
pub fn too_many_axes(got: impl std::fmt::Display) -> String {
    format!("expected at most {MAX_AXES} axes, got {got}")
}

/// Elements of a tensor, as stored in the file.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    /// One byte each, nonzero is true.
    Bool(Vec<u8>),
}

/// A contiguous row-major tensor of any rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    pub shape: Vec<usize>,
    pub values: Values,
}

impl Array {
    /// An f32 tensor.
    pub fn f32(shape: &[usize], values: Vec<f32>) -> Array {
        debug_assert_eq!(shape.iter().product::<usize>(), values.len());
        Array {
            shape: shape.to_vec(),
            values: Values::F32(values),
        }
    }

    /// Copies a tensor out of a safetensors buffer; the element type decides.
    pub fn from_view(view: &TensorView<'_>) -> Result<Array, String> {
        Array::from_view_with(view, false)
    }

    /// The same; with `round_f64`, elements of type F64 become F32.
    pub fn from_view_with(view: &TensorView<'_>, round_f64: bool) -> Result<Array, String> {
        if view.shape().len() > MAX_AXES {
            return Err(too_many_axes(view.shape().len()));
        }
        // An empty tensor can name any axis; products of axes must stay exact.
        let mut axes = view.shape().iter().filter(|&&n| n > 0);
        let volume = axes.try_fold(1usize, |v, &n| v.checked_mul(n));
        if volume.is_none_or(|v| v > 1 << 40) {
            return Err(format!("shape {:?} is too large", view.shape()));
        }
        let bytes = view.data();
        let values = match view.dtype() {
            Dtype::F32 => Values::F32(words(bytes, f32::from_le_bytes)?),
            Dtype::F16 => Values::F16(words(bytes, f16::from_le_bytes)?),
            Dtype::BF16 => Values::BF16(words(bytes, bf16::from_le_bytes)?),
            Dtype::F64 if round_f64 => Values::F32(words(bytes, |b| f64::from_le_bytes(b) as f32)?),
            Dtype::I32 => Values::I32(words(bytes, i32::from_le_bytes)?),
            // Segment ids and counts; ids keep their bits.
            Dtype::U32 => Values::I64(words(bytes, |b| i64::from(u32::from_le_bytes(b)))?),
            Dtype::I64 => Values::I64(words(bytes, i64::from_le_bytes)?),
            Dtype::BOOL => Values::Bool(words(bytes, |[b]| b)?),
            other => return Err(not_read(&other.to_string())),
        };
        Ok(Array {
            shape: view.shape().to_vec(),
            values,
        })
    }

    /// A copy; an error where there is no memory for it.
    pub fn copied(&self, name: &str) -> Result<Array, String> {
        let copied = match &self.values {
            Values::F32(v) => memory::copied(name, v).map(Values::F32),
            Values::F16(v) => memory::copied(name, v).map(Values::F16),
            Values::BF16(v) => memory::copied(name, v).map(Values::BF16),
            Values::I32(v) => memory::copied(name, v).map(Values::I32),
            Values::I64(v) => memory::copied(name, v).map(Values::I64),
            Values::Bool(v) => memory::copied(name, v).map(Values::Bool),
        };
        Ok(Array {
            shape: self.shape.clone(),
            values: copied.map_err(|e| e.to_string())?,
        })
    }

    /// A tensor (a, b, c, d) whose row (i, j, k) is row `from(i, j, k)` of this one,
    /// counted in rows of d elements.
    pub fn rows_from(
        &self,
        name: &str,
        shape: [usize; 4],
        from: impl Fn(usize, usize, usize) -> usize,
    ) -> Result<Array, String> {
        fn pick<T: Copy>(
            name: &str,
            all: &[T],
            [a, b, c, d]: [usize; 4],
            from: impl Fn(usize, usize, usize) -> usize,
        ) -> Result<Vec<T>, String> {
            let picked = memory::reserved(name, all.len());
            let mut picked = picked.map_err(|e| e.to_string())?;
            // Other axes of an empty tensor may be of any size.
            if all.is_empty() {
                return Ok(picked);
            }
            for row in 0..a * b * c {
                let (i, j, k) = (row / c / b, row / c % b, row % c);
                picked.extend_from_slice(&all[from(i, j, k) * d..][..d]);
            }
            Ok(picked)
        }
        let values = match &self.values {
            Values::F32(v) => Values::F32(pick(name, v, shape, from)?),
            Values::F16(v) => Values::F16(pick(name, v, shape, from)?),
            Values::BF16(v) => Values::BF16(pick(name, v, shape, from)?),
            Values::I32(v) => Values::I32(pick(name, v, shape, from)?),
            Values::I64(v) => Values::I64(pick(name, v, shape, from)?),
            Values::Bool(v) => Values::Bool(pick(name, v, shape, from)?),
        };
        Ok(Array {
            shape: shape.to_vec(),
            values,
        })
    }

    /// (a, b, c, d) as (a, c, b, d): between (B,S,H,D) and (B,H,S,D).
    pub fn middle_swapped(&self, name: &str) -> Result<Array, String> {
        let &[a, b, c, d] = self.shape.as_slice() else {
            let shape = &self.shape;
            return Err(format!("{name}: expected four axes, got shape {shape:?}"));
        };
        self.rows_from(name, [a, c, b, d], |i, k, j| (i * b + j) * c + k)
    }

    /// Name of the element type, as safetensors writes it.
    pub fn type_name(&self) -> &'static str {
        match self.values {
            Values::F32(_) => "F32",
            Values::F16(_) => "F16",
            Values::BF16(_) => "BF16",
            Values::I32(_) => "I32",
            Values::I64(_) => "I64",
            Values::Bool(_) => "BOOL",
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match &self.values {
            Values::F32(v) => v.len(),
            Values::F16(v) => v.len(),
            Values::BF16(v) => v.len(),
            Values::I32(v) => v.len(),
            Values::I64(v) => v.len(),
            Values::Bool(v) => v.len(),
        }
    }

    /// The storage type, if the elements are floats.
    pub fn dtype(&self) -> Option<DType> {
        match self.values {
            Values::F32(_) => Some(DType::F32),
            Values::F16(_) => Some(DType::F16),
            Values::BF16(_) => Some(DType::BF16),
            _ => None,
        }
    }

    /// Float elements, widened exactly.
    pub fn to_f32(&self) -> Result<Cow<'_, [f32]>, String> {
        match &self.values {
            Values::F32(v) => Ok(Cow::Borrowed(v)),
            Values::F16(v) => wide(v, |x| x.to_f32()).map(Cow::Owned),
            Values::BF16(v) => wide(v, |x| x.to_f32()).map(Cow::Owned),
            _ => Err(format!("expected floats, got {}", self.type_name())),
        }
    }

    /// Integer elements.
    pub fn to_i64(&self) -> Result<Vec<i64>, String> {
        match &self.values {
            Values::I32(v) => wide(v, i64::from),
            Values::I64(v) => wide(v, |x| x),
            _ => Err(format!("expected integers, got {}", self.type_name())),
        }
    }

    /// A borrowed four-axis tensor; `name` is for the message.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, String> {
        self.with_axes(name, |shape: [usize; 4]| shape)
    }

    /// A borrowed tensor of the four axes that `place` makes of the `N` there are.
    pub fn with_axes<const N: usize>(
        &self,
        name: &str,
        place: impl FnOnce([usize; N]) -> [usize; 4],
    ) -> Result<Tensor<'_>, String> {
        let shape: [usize; N] = self.shape.as_slice().try_into().map_err(|_| {
            let (axes, shape) = (count_of_axes(N), &self.shape);
            format!("{name}: expected {axes}, got shape {shape:?}")
        })?;
        let data = match &self.values {
            Values::F32(v) => Data::F32(v),
            Values::F16(v) => Data::F16(v),
            Values::BF16(v) => Data::BF16(v),
            _ => return Err(format!("{name}: expected floats, got {}", self.type_name())),
        };
        Tensor::new(data, place(shape)).map_err(|e| format!("{name}: {e}"))
    }

    /// The elements `range` of axis `axis`.
    pub fn slice(&self, axis: usize, range: std::ops::Range<usize>) -> Array {
        let inner: usize = self.shape[axis + 1..].iter().product();
        let outer: usize = self.shape[..axis].iter().product();
        let extent = self.shape[axis];
        let pick = (0..outer).flat_map(|o| {
            let base = o * extent * inner;
            base + range.start * inner..base + range.end * inner
        });
        let mut shape = self.shape.clone();
        shape[axis] = range.len();
        self.gather(shape, pick.map(Some))
    }

    /// A tensor of `shape` whose elements are picked from this one by flat
    /// index; `None` gives "excluded": -inf for floats, 0 (false) otherwise.
    pub fn gather(&self, shape: Vec<usize>, indices: impl Iterator<Item = Option<usize>>) -> Array {
        fn pick<T: Copy>(v: &[T], empty: T, at: impl Iterator<Item = Option<usize>>) -> Vec<T> {
            at.map(|i| i.map_or(empty, |i| v[i])).collect()
        }
        let values = match &self.values {
            Values::F32(v) => Values::F32(pick(v, f32::NEG_INFINITY, indices)),
            Values::F16(v) => Values::F16(pick(v, f16::NEG_INFINITY, indices)),
            Values::BF16(v) => Values::BF16(pick(v, bf16::NEG_INFINITY, indices)),
            Values::I32(v) => Values::I32(pick(v, 0, indices)),
            Values::I64(v) => Values::I64(pick(v, 0, indices)),
            Values::Bool(v) => Values::Bool(pick(v, 0, indices)),
        };
        Array { shape, values }
    }

    /// This tensor followed by `other` along `axis`; all other axes must agree.
    pub fn concat(&self, other: &Array, axis: usize) -> Result<Array, String> {
        let mut shape = self.shape.clone();
        let rest = |s: &[usize]| [&s[..axis], &s[axis + 1..]].concat();
        if self.shape.len() != other.shape.len() || rest(&self.shape) != rest(&other.shape) {
            return Err(format!(
                "cannot be joined along axis {axis}: shapes {:?} and {:?}",
                self.shape, other.shape
            ));
        }
        shape[axis] += other.shape[axis];
        let inner: usize = shape[axis + 1..].iter().product();
        let outer: usize = shape[..axis].iter().product();
        fn join<T: Copy>(a: &[T], b: &[T], outer: usize, na: usize, nb: usize) -> Vec<T> {
            let mut all = Vec::with_capacity(a.len() + b.len());
            for o in 0..outer {
                all.extend_from_slice(&a[o * na..(o + 1) * na]);
                all.extend_from_slice(&b[o * nb..(o + 1) * nb]);
            }
            all
        }
        let (na, nb) = (self.shape[axis] * inner, other.shape[axis] * inner);
        let values = match (&self.values, &other.values) {
            (Values::F32(a), Values::F32(b)) => Values::F32(join(a, b, outer, na, nb)),
            (Values::F16(a), Values::F16(b)) => Values::F16(join(a, b, outer, na, nb)),
            (Values::BF16(a), Values::BF16(b)) => Values::BF16(join(a, b, outer, na, nb)),
            _ => {
                return Err(format!(
                    "cannot be joined: element types {} and {}",
                    self.type_name(),
                    other.type_name()
                ));
            }
        };
        Ok(Array { shape, values })
    }

    /// (B, S, H*D), head-major inside the last axis, to (B, H, S, D).
    pub fn split_heads(&self, heads: usize) -> Result<Array, String> {
        let &[batch, sequence, width] = self.shape.as_slice() else {
            return Err(format!("expected three axes, got shape {:?}", self.shape));
        };
        if heads == 0 || width % heads != 0 {
            return Err(format!("width {width} is not {heads} heads of equal size"));
        }
        let dim = width / heads;
        let order = (0..batch * heads * sequence * dim).map(|flat| {
            let (d, s) = (flat % dim, flat / dim % sequence);
            let (h, b) = (flat / dim / sequence % heads, flat / dim / sequence / heads);
            Some((b * sequence + s) * width + h * dim + d)
        });
        Ok(self.gather(vec![batch, heads, sequence, dim], order))
    }
}

/// Swaps the two axes in the middle: (B, H, S, D) becomes (B, S, H*D), head-major
/// inside the last axis, and (B, S, H, D) becomes (B, H, S, D).
pub fn swap_middle(values: &[f32], shape: [usize; 4]) -> Result<Vec<f32>, Error> {
    let [batch, first, second, dim] = shape;
    let count = batch * second * first * dim;
    let swapped = (0..count).map(|flat| {
        let (d, h) = (flat % dim, flat / dim % first);
        let (s, b) = (flat / dim / first % second, flat / dim / first / second);
        values[((b * first + h) * second + s) * dim + d]
    });
    memory::collected("output", count, swapped)
}

fn count_of_axes(n: usize) -> &'static str {
    ["no axis", "one axis", "two axes", "three axes", "four axes"][n]
}

fn words<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Result<Vec<T>, String> {
    let chunks = bytes.chunks_exact(N);
    let words = chunks.map(|chunk| read(chunk.try_into().expect("chunks of N bytes")));
    memory::collected("its elements", bytes.len() / N, words).map_err(|e| e.to_string())
}

fn wide<T: Copy, W>(values: &[T], widen: impl Fn(T) -> W) -> Result<Vec<W>, String> {
    let widened = values.iter().map(|&x| widen(x));
    memory::collected("wider elements", values.len(), widened).map_err(|e| e.to_string())
}

/// What to say of an element type that is not read.
pub fn not_read(dtype: &str) -> String {
    let read = "F32, F16, BF16, I32, U32, I64 and BOOL";
    match dtype {
        "F64" => format!(
            "element type F64 is not read; {read} are. `run` and `inspect` take it with \
             --f64-as-f32, rounded to F32"
        ),
        other => format!("element type {other} is not read; {read} are"),
    }
}

impl View for &Array {
    fn dtype(&self) -> Dtype {
        match self.values {
            Values::F32(_) => Dtype::F32,
            Values::F16(_) => Dtype::F16,
            Values::BF16(_) => Dtype::BF16,
            Values::I32(_) => Dtype::I32,
            Values::I64(_) => Dtype::I64,
            Values::Bool(_) => Dtype::BOOL,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        // Elements in the order of this machine's bytes, turned over where that is not
        // the file's.
        fn bytes<T: bytemuck::Pod>(values: &[T]) -> Cow<'_, [u8]> {
            let bytes: &[u8] = bytemuck::cast_slice(values);
            match cfg!(target_endian = "little") {
                true => Cow::Borrowed(bytes),
                false => {
                    let mut turned = bytes.to_vec();
                    turned.chunks_mut(size_of::<T>()).for_each(<[u8]>::reverse);
                    Cow::Owned(turned)
                }
            }
        }
        match &self.values {
            Values::F32(v) => bytes(v),
            Values::F16(v) => bytes(v),
            Values::BF16(v) => bytes(v),
            Values::I32(v) => bytes(v),
            Values::I64(v) => bytes(v),
            Values::Bool(v) => Cow::Borrowed(v),
        }
    }

    fn data_len(&self) -> usize {
        self.len() * View::dtype(self).bitsize() / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(shape: &[usize]) -> Array {
        let count = shape.iter().product::<usize>();
        Array::f32(shape, (0..count).map(|x| x as f32).collect())
    }

    #[test]
    fn heads_split_and_merge() {
        let packed = counting(&[2, 3, 8]);
        let split = packed.split_heads(4).unwrap();
        assert_eq!(split.shape, [2, 4, 3, 2]);
        let values = split.to_f32().unwrap();
        // Batch 0, head 1, row 2 stands at row 2, columns 2 and 3.
        assert_eq!(values[(3 + 2) * 2..(3 + 2) * 2 + 2], [18.0, 19.0]);
        assert_eq!(
            swap_middle(&values, [2, 4, 3, 2]).unwrap(),
            *packed.to_f32().unwrap()
        );
        let rows = packed.to_f32().unwrap();
        assert_eq!(swap_middle(&rows, [2, 3, 4, 2]).unwrap(), *values);
        assert!(packed.split_heads(3).is_err());
        assert!(packed.split_heads(0).is_err());
    }

    #[test]
    fn concat_undoes_slice() {
        let whole = counting(&[2, 3, 5, 2]);
        for cut in 0..=5 {
            let (left, right) = (whole.slice(2, 0..cut), whole.slice(2, cut..5));
            assert_eq!(left.shape[2] + right.shape[2], 5);
            assert_eq!(left.concat(&right, 2).unwrap(), whole);
        }
        assert!(whole.concat(&counting(&[2, 2, 5, 2]), 2).is_err());
    }
}
