//! Storage types.

/// Element type of a tensor in storage. Arithmetic is always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "tune", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "tune", serde(rename_all = "lowercase"))]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision, two to a u32 word, least significant first.
    F16,
    /// bfloat16, two to a u32 word, least significant first.
    BF16,
}

impl DType {
    /// Bytes an element takes.
    pub fn size(self) -> u64 {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
        }
    }

    /// Rounding unit of the storage: half the distance between 1 and the next
    /// number, `2^-24`, `2^-11` or `2^-8`.
    pub fn unit(self) -> f64 {
        match self {
            DType::F32 => 2f64.powi(-24),
            DType::F16 => 2f64.powi(-11),
            DType::BF16 => 2f64.powi(-8),
        }
    }
}

/// What a true element of a boolean mask means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Polarity {
    /// True pairs take part (PyTorch SDPA, ONNX).
    Keep,
    /// True pairs are excluded (Burn, PyTorch's `key_padding_mask`).
    Drop,
}
