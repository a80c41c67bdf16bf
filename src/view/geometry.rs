//! Where an operand's elements lie, without its buffer.

use std::fmt;

use crate::view::dtype::Polarity;
use crate::view::tensor::{MaskView, TensorView};

/// Largest alignment of a binding offset that WebGPU allows a device to ask
/// for; what is left of an offset modulo this belongs to the problem.
pub(crate) const PHASE: u64 = 256;

/// Where one operand's elements lie within its buffer, without the buffer.
///
/// Strides of axes of length 1 are 0. `phase` is the byte offset modulo 256;
/// the aligned part may change from call to call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Geometry {
    pub shape: [usize; 4],
    pub strides: [usize; 4],
    pub element_size: u64,
    pub phase: u64,
}

impl Geometry {
    pub fn new(shape: [usize; 4], strides: [usize; 4], element_size: u64, start: u64) -> Self {
        let mut used = strides;
        for axis in 0..4 {
            if shape[axis] <= 1 {
                used[axis] = 0;
            }
        }
        Geometry {
            shape,
            strides: used,
            element_size,
            phase: start % PHASE,
        }
    }

    pub fn of(view: &TensorView<'_>) -> Self {
        let size = view.dtype.size();
        Geometry::new(view.shape, view.strides, size, view.span().bytes.start)
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "shape {:?}, strides {:?}, from byte {} modulo {PHASE}",
            self.shape, self.strides, self.phase
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MaskGeometry {
    pub geometry: Geometry,
    pub bits: bool,
    pub polarity: Polarity,
    /// Stride of the key axis in pairs: 0 if it broadcasts.
    pub key_stride: usize,
}

impl MaskGeometry {
    pub fn of(mask: &MaskView<'_>) -> Self {
        let (shape, start) = (mask.storage_shape(), mask.span().bytes.start);
        MaskGeometry {
            geometry: Geometry::new(shape, mask.strides, mask.element_size(), start),
            bits: mask.bits,
            polarity: mask.polarity,
            key_stride: if mask.shape[3] <= 1 {
                0
            } else {
                mask.strides[3]
            },
        }
    }

    /// Whether every row of a mask of bytes begins with a word.
    pub fn rows_begin_words(&self) -> bool {
        let Geometry { strides, phase, .. } = &self.geometry;
        phase % 4 == 0 && strides[..3].iter().all(|stride| stride % 4 == 0)
    }
}

impl fmt::Display for MaskGeometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.bits { "words of bits" } else { "bytes" };
        write!(f, "{unit}, true is {:?}, {}", self.polarity, self.geometry)
    }
}
