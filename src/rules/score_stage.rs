//! The four stages of attention that can be looked at.

/// A stage of attention whose values can be asked for, one number for each pair
/// of query and key. The order and numbers are those of ONNX Attention's
/// `qk_matmul_output_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Stage {
    /// `scale * (q . k)`, for excluded pairs too; 0 past the lengths.
    Raw = 0,
    /// After the softcap, for excluded pairs too; 0 past the lengths. Equal to
    /// [`Stage::Raw`] where there is no softcap.
    Softcapped = 1,
    /// After bias, ALiBi and masks: -inf at every excluded pair.
    Masked = 2,
    /// Probabilities: exactly 0 at excluded pairs. A row sums to 1, to
    /// `1 - exp(sink - lse)` with a sink, to 0 where no key is visible.
    Probabilities = 3,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Stage; 4] = [
        Stage::Raw,
        Stage::Softcapped,
        Stage::Masked,
        Stage::Probabilities,
    ];
}
