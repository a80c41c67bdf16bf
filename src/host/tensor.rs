//! Tensors and boolean masks as slices in host memory.

use crate::view::dtype::{DType, Polarity};
use half::{bf16, f16};

use crate::error::{Error, Result};

/// A borrowed slice of one of the storage types.
#[derive(Debug, Clone, Copy)]
pub enum Data<'a> {
    /// f32 values.
    F32(&'a [f32]),
    /// f16 values.
    F16(&'a [f16]),
    /// bf16 values.
    BF16(&'a [bf16]),
}

impl Data<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Data::F32(d) => d.len(),
            Data::F16(d) => d.len(),
            Data::BF16(d) => d.len(),
        }
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `index`, widened exactly.
    ///
    /// # Panics
    /// If `index` is out of range, like a slice.
    pub fn get(&self, index: usize) -> f32 {
        match self {
            Data::F32(d) => d[index],
            Data::F16(d) => d[index].to_f32(),
            Data::BF16(d) => d[index].to_f32(),
        }
    }

    /// Storage type.
    pub fn dtype(&self) -> DType {
        match self {
            Data::F32(_) => DType::F32,
            Data::F16(_) => DType::F16,
            Data::BF16(_) => DType::BF16,
        }
    }

    /// The bytes as the GPU sees them (little-endian).
    pub fn bytes(&self) -> &[u8] {
        match self {
            Data::F32(d) => bytemuck::cast_slice(d),
            Data::F16(d) => bytemuck::cast_slice(d),
            Data::BF16(d) => bytemuck::cast_slice(d),
        }
    }
}

/// A contiguous row-major tensor of four axes in host memory:
/// (batch, heads, sequence, head_dim), or for a bias any shape that broadcasts
/// to (batch, query heads, queries, keys).
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    data: Data<'a>,
    shape: [usize; 4],
}

impl<'a> Tensor<'a> {
    /// A tensor over `data`, which must have exactly the elements of `shape`.
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of elements differs.
    pub fn new(data: Data<'a>, shape: [usize; 4]) -> Result<Self> {
        let count = checked_product(&shape);
        if count != Some(data.len()) {
            return Err(Error::shape(
                "tensor",
                format!("{shape:?} ({} elements)", describe_count(count)),
                format_args!("{} elements", data.len()),
            ));
        }
        Ok(Tensor { data, shape })
    }

    /// A tensor of f32 values.
    ///
    /// # Errors
    /// As [`Tensor::new`].
    pub fn f32(data: &'a [f32], shape: [usize; 4]) -> Result<Self> {
        Tensor::new(Data::F32(data), shape)
    }

    /// A tensor of f16 values.
    ///
    /// # Errors
    /// As [`Tensor::new`].
    pub fn f16(data: &'a [f16], shape: [usize; 4]) -> Result<Self> {
        Tensor::new(Data::F16(data), shape)
    }

    /// A tensor of bf16 values.
    ///
    /// # Errors
    /// As [`Tensor::new`].
    pub fn bf16(data: &'a [bf16], shape: [usize; 4]) -> Result<Self> {
        Tensor::new(Data::BF16(data), shape)
    }

    /// The shape.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// The storage type.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// The elements.
    pub fn data(&self) -> Data<'a> {
        self.data
    }

    /// Element at `index`, an axis of 1 broadcasting.
    ///
    /// # Panics
    /// If an index is out of range on an axis that does not broadcast.
    pub fn at(&self, index: [usize; 4]) -> f32 {
        self.data.get(broadcast_index(self.shape, index))
    }
}

/// Storage of a boolean mask.
#[derive(Debug, Clone, Copy)]
pub enum MaskData<'a> {
    /// One byte a pair, nonzero is true.
    Bytes(&'a [u8]),
    /// 32 keys a word, least significant bit first. Each row of keys starts a
    /// new word; bits past the last key are ignored.
    Bits(&'a [u32]),
}

/// A boolean mask in host memory, broadcastable to
/// (batch, query heads, queries, keys).
#[derive(Debug, Clone, Copy)]
pub struct BoolMask<'a> {
    data: MaskData<'a>,
    shape: [usize; 4],
    polarity: Polarity,
}

impl<'a> BoolMask<'a> {
    /// A mask of `shape`; bits hold `ceil(shape[3] / 32)` words a row.
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of bytes or words differs.
    pub fn new(data: MaskData<'a>, shape: [usize; 4], polarity: Polarity) -> Result<Self> {
        let (unit, got, row) = match data {
            MaskData::Bytes(d) => ("bytes", d.len(), shape[3]),
            MaskData::Bits(d) => ("words", d.len(), shape[3].div_ceil(32)),
        };
        let count = checked_product(&[shape[0], shape[1], shape[2], row]);
        if count != Some(got) {
            return Err(Error::shape(
                "mask",
                format!("{shape:?} ({} {unit})", describe_count(count)),
                format_args!("{got} {unit}"),
            ));
        }
        Ok(BoolMask {
            data,
            shape,
            polarity,
        })
    }

    /// The shape, in pairs.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// The storage.
    pub fn data(&self) -> MaskData<'a> {
        self.data
    }

    /// What true means.
    pub fn polarity(&self) -> Polarity {
        self.polarity
    }

    /// Whether the mask lets the pair at (batch, query head, query, key) take part.
    ///
    /// # Panics
    /// If an index is out of range on an axis that does not broadcast.
    pub fn visible(&self, index: [usize; 4]) -> bool {
        let set = match self.data {
            MaskData::Bytes(d) => d[broadcast_index(self.shape, index)] != 0,
            MaskData::Bits(d) => {
                let words = [
                    self.shape[0],
                    self.shape[1],
                    self.shape[2],
                    self.shape[3].div_ceil(32),
                ];
                let key = if self.shape[3] == 1 { 0 } else { index[3] };
                let mut at = index;
                at[3] = key / 32;
                d[broadcast_index(words, at)] >> (key % 32) & 1 == 1
            }
        };
        set == (self.polarity == Polarity::Keep)
    }
}

fn checked_product(shape: &[usize; 4]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |product, &n| product.checked_mul(n))
}

fn describe_count(count: Option<usize>) -> String {
    count.map_or_else(|| "too many".to_owned(), |n| n.to_string())
}

fn broadcast_index(shape: [usize; 4], index: [usize; 4]) -> usize {
    let mut flat = 0;
    for axis in 0..4 {
        let i = if shape[axis] == 1 { 0 } else { index[axis] };
        assert!(i < shape[axis], "axis {axis}: index {i} of {}", shape[axis]);
        flat = flat * shape[axis] + i;
    }
    flat
}
