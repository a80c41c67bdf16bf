//! Sums and products of numbers of known accuracy.

use super::rounding::{Approx, MAX, TINY, U, accumulation};

/// A sum of numbers of known accuracy.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Total {
    pub value: f64,
    pub error: f64,
    /// Sum of the absolute values of the partial sums.
    pub in_order: f64,
    pub magnitude: f64,
    pub terms: usize,
    open: Option<Approx>,
}

impl Total {
    pub fn push(&mut self, x: Approx) {
        if !x.is_known() {
            self.open = Some(match x.value.is_nan() {
                true => x,
                // Infinities may meet.
                false => Approx::UNDETERMINED,
            });
        }
        self.value += x.value;
        self.error += x.error;
        self.in_order += self.value.abs();
        self.magnitude += x.value.abs();
        self.terms += 1;
    }

    pub fn approx(&self) -> Approx {
        if let Some(open) = self.open {
            return open;
        }
        if self.magnitude > MAX {
            return Approx::UNDETERMINED;
        }
        // The numbers that are summed may be larger by their errors.
        let in_order = self.in_order + self.terms as f64 * self.error;
        let rounding = accumulation(self.terms, in_order, self.magnitude + self.error);
        Approx {
            value: self.value,
            error: self.error + U * rounding,
        }
    }
}

/// The product with an exact factor.
pub(super) fn times(x: Approx, factor: f64) -> Approx {
    if !factor.is_finite() {
        return Approx::UNDETERMINED;
    }
    x.map(|value, error| Approx {
        value: value * factor,
        error: error * factor.abs() + U * (value * factor).abs() + TINY,
    })
}
