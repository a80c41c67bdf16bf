//! The error model: f64 values that know how far an f32 computation of the same
//! quantity may be away, to first order.

use crate::view::dtype::DType;

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
/// - a weight `exp(s - m)`: its exponent is off by `e`, the score's error, `3 + 2|x|`
///   ulp for `exp2(x)` as WGSL grants, the roundings of `(s - m) log2(e)`, and one
///   more exp2 for each time that a running maximum rises;
/// - O, lse and weights: what exponents off by up to `SAFETY e` do to a softmax. This
///   is no first-order estimate but holds for errors of any size (`softmax.rs`): to
///   first order O is off by `sum_j P(j) e(j) |v(j) - O|`, and it is never off by
///   more than the values span. Beside a bias of -1e9 scores are rounded to multiples
///   of 64, and softmax in f32 may give every key of a row the same weight;
/// - sums over the keys are counted like `acc` above; 2.5 ulp for the division,
///   2^-21 or 3 ulp for the logarithm;
/// - 2^-126 wherever a subnormal number may be flushed.
///
/// Every one of these is a worst case by itself except `sqrt(n)`, the size of a
/// sum of n roundings of random sign; the factor 2 is for that one, and for
/// products of two errors. It is fixed by two kinds of test: single-precision
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

/// From here on the nearest f32 is infinity.
pub(super) const OVERFLOW: f64 = MAX + (1u128 << 103) as f64;

/// A value and the bound, over [`SAFETY`], of an f32 computation of it.
///
/// Four kinds are not finite: NaN and the infinities, exact, where every order of
/// operations gives them; [`Approx::UNDETERMINED`]; and [`Approx::at_most`].
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

    /// -inf in one order of operations, and a number up to `value` in another.
    pub const fn at_most(value: f64) -> Self {
        Approx {
            value,
            error: f64::INFINITY,
        }
    }

    pub fn is_undetermined(&self) -> bool {
        self.error == f64::INFINITY && self.value.is_nan()
    }

    /// Whether it is a number of known accuracy.
    pub fn is_known(&self) -> bool {
        self.value.is_finite() && self.error.is_finite()
    }

    /// What f32 makes of a number between `low` and `high`, if it may overflow.
    pub fn overflow(low: f64, high: f64) -> Option<Approx> {
        if low > -OVERFLOW && high < OVERFLOW {
            return None;
        }
        Some(if high <= -OVERFLOW {
            Approx::exact(f64::NEG_INFINITY)
        } else if low >= OVERFLOW {
            Approx::exact(f64::INFINITY)
        } else if high < OVERFLOW {
            Approx::at_most(high)
        } else {
            Approx::UNDETERMINED
        })
    }

    /// What is not a number of known accuracy stays as it is, the rest goes through `f`.
    pub fn map(self, f: impl FnOnce(f64, f64) -> Approx) -> Approx {
        if self.is_known() {
            f(self.value, self.error)
        } else {
            self
        }
    }

    /// The sum, rounded once. Where one operand is so small that f32 returns
    /// the other unchanged, that is what is expected: to a bias of -3.4e38 no
    /// score makes a difference, neither in f32 nor in f64.
    pub fn plus(self, other: Approx) -> Approx {
        if !self.is_known() || !other.is_known() {
            return self.plus_open(other);
        }
        let value = self.value + other.value;
        let inherited = SAFETY * (self.error + other.error);
        if let Some(open) = Approx::overflow(value - inherited, value + inherited) {
            return open;
        }
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

    /// The sum where a side is not a number of known accuracy.
    fn plus_open(self, other: Approx) -> Approx {
        let nan = |a: &Approx| a.value.is_nan() && !a.is_undetermined();
        if nan(&self) || nan(&other) {
            return Approx::NAN;
        }
        if self.is_undetermined() || other.is_undetermined() {
            return Approx::UNDETERMINED;
        }
        let sum = self.value + other.value;
        if sum.is_nan() {
            // Infinities of both signs.
            return Approx::NAN;
        }
        let open = |a: &Approx| a.error == f64::INFINITY;
        match (open(&self) || open(&other), sum) {
            // -inf takes in a number and -inf alike; +inf and -inf are NaN.
            (true, f64::INFINITY) => Approx::UNDETERMINED,
            (true, f64::NEG_INFINITY) | (false, _) => Approx::exact(sum),
            (true, _) => {
                let known = [self, other].map(|a| if open(&a) { 0.0 } else { a.error });
                let slack = SAFETY * (known[0] + known[1] + U * sum.abs());
                Approx::at_most(sum + slack)
            }
        }
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
    if !error.is_finite() {
        return (f64::NAN, f64::INFINITY);
    }
    let error = SAFETY * error;
    // From here on the nearest number of the type is infinity.
    let (overflow, flushed) = match out {
        DType::F32 => (OVERFLOW, TINY),
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
