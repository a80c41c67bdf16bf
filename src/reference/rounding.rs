//! The error model: f64 values that know how far an f32 computation of the same
//! quantity may be away, to first order.

use crate::host::DType;

/// Factor on the first-order bound of the arithmetic (the rounding to the
/// output's storage type is added to it as it is).
///
/// With `u = 2^-24`, the model counts for one row with n visible keys
///
/// - a score: `u |scale| (acc + 3 sum|q||k|)`, where `acc`, the rounding of the
///   accumulation, is the larger of `sum_k |partial sum k|` (the worst case of
///   summing in order) and `sqrt(Dqk) sum|q||k|` (what independent roundings
///   come to in any other order), and the 3 are rounded products, a rounded
///   scale folded into q, and the product with the scale;
/// - softcap: the score's error times the slope of tanh, `8 u` relative for
///   tanh, 2.5 ulp for the division; bias and ALiBi: one rounding each;
/// - a weight `exp(s - m)`: the score's error, `3 + 2|x|` ulp for `exp2(x)` as
///   WGSL grants, the roundings of `(s - m) log2(e)`, and one more exp2 for each
///   time that a running maximum rises;
/// - O and lse: these errors to first order, `sum_j P(j) err(j) |v(j) - O|`, but
///   never more than the values span; sums over the keys counted like `acc`
///   above; 2.5 ulp for the division, 2^-21 or 3 ulp for the logarithm;
/// - 2^-126 wherever a subnormal number may be flushed.
///
/// Every one of these is a worst case by itself except `sqrt(n)`, the size of a
/// sum of n roundings of random sign; the factor 2 is for that one, and for
/// the second order. It is fixed by two kinds of test: single-precision
/// implementations that sum in different orders stay below 1 of the bound over
/// random cases of all options, and planted faults, among them accumulation in
/// half precision and one dropped key, exceed it.
pub const SAFETY: f64 = 2.0;

/// Rounding unit of f32.
pub(super) const U: f64 = 1.0 / (1u64 << 24) as f64;

/// The smallest normal f32, 2^-126: what flushing to zero may lose.
pub(super) const TINY: f64 = f32::MIN_POSITIVE as f64;

/// The largest finite f32.
pub(super) const MAX: f64 = f32::MAX as f64;

/// A value and the first-order bound of an f32 computation of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Approx {
    pub value: f64,
    pub error: f64,
}

impl Approx {
    /// What f32 arithmetic leaves open.
    pub const UNDETERMINED: Approx = Approx {
        value: f64::NAN,
        error: f64::INFINITY,
    };

    /// NaN that has to be met by NaN.
    pub const NAN: Approx = Approx::exact(f64::NAN);

    pub const fn exact(value: f64) -> Self {
        Approx { value, error: 0.0 }
    }

    pub fn is_undetermined(&self) -> bool {
        self.error == f64::INFINITY
    }

    /// NaN stays NaN, undetermined stays undetermined, the rest goes through `f`.
    pub fn map(self, f: impl FnOnce(f64, f64) -> Approx) -> Approx {
        if self.value.is_finite() {
            f(self.value, self.error)
        } else {
            self
        }
    }

    /// The sum, rounded once. Where one operand is so small that f32 returns
    /// the other unchanged, that is what is expected: to a bias of -3.4e38 no
    /// score makes a difference, neither in f32 nor in f64.
    pub fn plus(self, other: Approx) -> Approx {
        if !self.value.is_finite() || !other.value.is_finite() {
            let nan = |a: &Approx| a.value.is_nan() && !a.is_undetermined();
            return match nan(&self) || nan(&other) {
                true => Approx::NAN,
                false => Approx::UNDETERMINED,
            };
        }
        let value = self.value + other.value;
        let (small, large) = match self.value.abs() < other.value.abs() {
            true => (self, other),
            false => (other, self),
        };
        let most = small.value.abs() + small.error;
        let error = if most < large.value.abs() / (1u64 << 26) as f64 {
            large.error + (value - large.value).abs()
        } else {
            self.error + other.error + (U * value.abs()).min(most)
        };
        Approx { value, error }
    }
}

/// Rounding error, in units of `u`, of a sum of `terms` numbers: `in_order` is
/// the sum of the absolute values of its partial sums, `magnitude` the sum of
/// the absolute values of its terms.
pub(super) fn accumulation(terms: usize, in_order: f64, magnitude: f64) -> f64 {
    in_order.max((terms as f64).sqrt() * magnitude)
}

/// Expectation and bound once the value is stored as `out`.
pub(super) fn store(approx: Approx, out: DType) -> (f64, f64) {
    let Approx { value, error } = approx;
    if !value.is_finite() {
        return (value, error);
    }
    let error = SAFETY * error;
    // From here on the nearest number of the type is infinity.
    let (overflow, flushed) = match out {
        DType::F32 => (2f64.powi(128) - 2f64.powi(103), TINY),
        DType::F16 => (65520.0, 2f64.powi(-25)),
        DType::BF16 => (2f64.powi(128) - 2f64.powi(119), TINY),
    };
    if value.abs() - error >= overflow {
        return (f64::INFINITY.copysign(value), 0.0);
    }
    if value.abs() + error >= overflow {
        return (f64::NAN, f64::INFINITY);
    }
    let exact = error == 0.0 && value == 0.0;
    let rounding = out.unit() * (value.abs() + error) + flushed;
    (value, if exact { 0.0 } else { error + rounding })
}
