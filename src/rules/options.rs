//! Options that are plain values. Tensors and lists (bias, mask, lengths,
//! segments, sinks, slopes) are operands, not options.

use crate::error::{Error, Result};

/// Where query row `i` stands among the keys: at position `p = i + offset`.
///
/// Causal masks, windows and ALiBi share this one position. Libraries differ in
/// their default; here it is always named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Alignment {
    /// `offset = 0`: row 0 stands at key 0 (PyTorch's `is_causal`, ONNX without a cache).
    TopLeft,
    /// `offset = kv_len - q_len`: the last row stands at the last key
    /// (FlashAttention since 2.1; what decoding with a cache needs). With
    /// per-sequence lengths, the sequence's own; without, `Nk - Nq`.
    #[default]
    BottomRight,
    /// A fixed offset, the same for every sequence; may be negative.
    Offset(i32),
    /// One offset a sequence, from the operand `offsets`.
    PerSequence,
}

/// Sliding window around position `p`: key `j` is visible if
/// `p - left <= j <= p + right`.
///
/// Bounds are inclusive, the row's own position is not counted, `None` leaves
/// that side open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Window {
    /// Keys before the own position.
    pub left: Option<u32>,
    /// Keys after the own position.
    pub right: Option<u32>,
}

impl Window {
    /// No window.
    pub const OPEN: Window = Window {
        left: None,
        right: None,
    };

    /// The last `n` keys, the own position included: `left = n - 1`, `right = 0`.
    ///
    /// # Errors
    /// `n = 0` would hide every key and is refused.
    pub fn last(n: u32) -> Result<Window> {
        match n.checked_sub(1) {
            Some(left) => Ok(Window {
                left: Some(left),
                right: Some(0),
            }),
            None => Err(Error::value("window", "at least 1 key", n)),
        }
    }

    /// `left` keys before and `right` keys after the own position.
    pub fn around(left: u32, right: u32) -> Window {
        Window {
            left: Some(left),
            right: Some(right),
        }
    }
}

/// What WGSL lets a shader divide by: its division is right to 2.5 ulp for divisors from
/// 2^-126 to 2^126. Past them 1/c overflows, or is subnormal and may be 0.
const MIN_SOFTCAP: f32 = f32::MIN_POSITIVE;
const MAX_SOFTCAP: f32 = 1.0 / f32::MIN_POSITIVE;

/// The scalar options of scaled dot-product attention.
///
/// ```
/// use wgpu_attention::{Alignment, Options, Window};
/// # fn main() -> Result<(), wgpu_attention::Error> {
/// let options = Options::default()
///     .causal(true)
///     .alignment(Alignment::BottomRight)
///     .window(Window::last(256)?)
///     .softcap(30.0);
/// assert!(options.causal);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct Options {
    /// Factor on `q . k`; `None` is `1 / sqrt(Dqk)`. Any finite value, 0 and
    /// negative included.
    pub scale: Option<f32>,
    /// `s = c * tanh(s / c)` after the scale and before bias and mask; `c` from 2^-126
    /// (1.1754944e-38, the smallest normal f32) to 2^126 (8.507059e37): WGSL says what a
    /// division by other numbers gives for no device.
    pub softcap: Option<f32>,
    /// Key `j` is visible only if `j <= p`; the diagonal is visible.
    pub causal: bool,
    /// Sliding window.
    pub window: Window,
    /// Where rows stand among the keys.
    pub alignment: Alignment,
}

impl Options {
    /// Sets the scale.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Sets the softcap.
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.softcap = Some(softcap);
        self
    }

    /// Turns the causal mask on or off.
    pub fn causal(mut self, causal: bool) -> Self {
        self.causal = causal;
        self
    }

    /// Sets the sliding window.
    pub fn window(mut self, window: Window) -> Self {
        self.window = window;
        self
    }

    /// Sets where rows stand among the keys.
    pub fn alignment(mut self, alignment: Alignment) -> Self {
        self.alignment = alignment;
        self
    }

    /// The scale in force: the given one, or `1 / sqrt(dqk)` rounded to f32.
    pub fn scale_for(&self, dqk: usize) -> f32 {
        self.scale
            .unwrap_or_else(|| (1.0 / (dqk as f64).sqrt()) as f32)
    }

    /// Checks the values alone.
    ///
    /// # Errors
    /// A scale that is not finite; a softcap that is not within 2^-126 to 2^126.
    pub fn validate(&self) -> Result<()> {
        if let Some(scale) = self.scale.filter(|scale| !scale.is_finite()) {
            return Err(Error::value("scale", "a finite number", scale));
        }
        let is_bad = |softcap: &f32| !(MIN_SOFTCAP..=MAX_SOFTCAP).contains(softcap);
        if let Some(softcap) = self.softcap.filter(is_bad) {
            let expected = format!("{MIN_SOFTCAP:e} (2^-126) to {MAX_SOFTCAP:e} (2^126)");
            return Err(Error::value("softcap", expected, format!("{softcap:e}")));
        }
        Ok(())
    }
}
