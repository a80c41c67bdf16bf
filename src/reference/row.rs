//! One row of attention in f64: what it sees, and its scores.

use super::rounding::{Approx, MAX, OVERFLOW, SAFETY, TINY, U, accumulation};
use super::visibility_of;
use crate::error::Result;
use crate::host::inputs::Inputs;
use crate::host::tensor::{Data, Tensor};
use crate::memory::room;
use crate::rules::dims::Dims;
use crate::rules::options::Options;
use crate::rules::positional::Visibility;

/// A query row and all that it needs to know.
pub(super) struct Row<'a> {
    inputs: &'a Inputs<'a>,
    softcap: Option<f64>,
    scale: f64,
    visibility: Visibility,
    pub dims: Dims,
    b: usize,
    h: usize,
    i: usize,
    query: Vec<f64>,
    inexact: Option<&'a Inexact<'a>>,
}

/// How far each element of query, key and value may be away, where an f32
/// computation made them.
#[derive(Debug)]
pub(super) struct Inexact<'a> {
    pub query: &'a [f64],
    pub key: &'a [f64],
    pub value: &'a [f64],
}

impl<'a> Row<'a> {
    pub fn new(
        inputs: &'a Inputs,
        options: &Options,
        b: usize,
        h: usize,
        i: usize,
    ) -> Result<Self> {
        let [batch, q_heads, q_len, qk_dim] = inputs.query.shape();
        let [_, kv_heads, kv_len, _] = inputs.key.shape();
        let mut query = room("query of a row", &[qk_dim])?;
        query.extend(vector(&inputs.query, [b, h, i]));
        Ok(Row {
            inputs,
            softcap: options.softcap.map(f64::from),
            scale: f64::from(options.scale_for(qk_dim)),
            visibility: visibility_of(inputs, options, b),
            dims: Dims {
                batch,
                q_heads,
                kv_heads,
                q_len,
                kv_len,
                qk_dim,
                v_dim: inputs.value.shape()[3],
            },
            b,
            h,
            i,
            query,
            inexact: None,
        })
    }

    /// The row where its operands are known to some accuracy only.
    pub fn inexact(mut self, inexact: &'a Inexact<'a>) -> Self {
        self.inexact = Some(inexact);
        self
    }

    /// What errors of query and key do to `q . k`.
    fn inherited(&self, j: usize) -> f64 {
        let Some(Inexact { query, key, .. }) = self.inexact else {
            return 0.0;
        };
        let (at, of_key) = ([self.b, self.h, self.i], [self.b, self.kv_head(), j]);
        let errors = query[elements(&self.inputs.query, at)].iter();
        let key_errors = key[elements(&self.inputs.key, of_key)].iter();
        let keys = vector(&self.inputs.key, of_key);
        let pairs = self.query.iter().zip(errors).zip(keys.zip(key_errors));
        pairs
            .map(|((q, of_q), (k, of_k))| q.abs() * of_k + k.abs() * of_q + of_q * of_k)
            .sum()
    }

    fn kv_head(&self) -> usize {
        self.h / self.dims.group()
    }

    /// Whether row and key are within the sequence's lengths.
    pub fn within_lengths(&self, j: usize) -> bool {
        self.i < self.visibility.q_len as usize && j < self.visibility.kv_len as usize
    }

    /// Whether the row sees key `j`, by every rule.
    pub fn visible(&self, j: usize) -> bool {
        let pair = [self.b, self.h, self.i, j];
        let Dims { q_len, kv_len, .. } = self.dims;
        self.visibility.allows(self.i as u32, j as u32)
            && self.inputs.mask.is_none_or(|mask| mask.visible(pair))
            && self
                .inputs
                .bias
                .is_none_or(|bias| bias.at(pair) != f32::NEG_INFINITY)
            && self.inputs.segments.is_none_or(|(queries, keys)| {
                queries[self.b * q_len + self.i] == keys[self.b * kv_len + j]
            })
    }

    /// `scale * (q . k)`.
    pub fn raw(&self, j: usize) -> Approx {
        let (mut dot, mut in_order, mut magnitude, mut inputs) = (0f64, 0f64, 0f64, 0f64);
        let key = vector(&self.inputs.key, [self.b, self.kv_head(), j]);
        for (&q, k) in self.query.iter().zip(key) {
            dot += q * k;
            in_order += dot.abs();
            magnitude += (q * k).abs();
            inputs += q.abs() + k.abs();
        }
        let inherited = self.inherited(j);
        if !inherited.is_finite() {
            return Approx::UNDETERMINED;
        }
        if inputs.is_nan() {
            return Approx::NAN;
        }
        if inputs == f64::INFINITY {
            return self.raw_of_infinities(j);
        }
        let scale = self.scale.abs();
        let terms = self.query.len();
        let rounding = scale * (accumulation(terms, in_order, magnitude) + 3.0 * magnitude);
        let flushed = (1.0 + scale) * (terms as f64 + inputs);
        // A subnormal scale may be flushed as a whole.
        let lost = if scale < TINY { scale * magnitude } else { 0.0 };
        let raw = Approx {
            value: self.scale * dot,
            error: U * rounding + TINY * flushed + lost + scale * inherited,
        };
        match magnitude.max(inputs) * self.largest_factor() > MAX {
            true => self.raw_beyond_range(raw, magnitude),
            false => raw,
        }
    }

    /// What may stand before a product while products are summed: nothing, the scale,
    /// or the scale times log2(e), folded into q.
    fn largest_factor(&self) -> f64 {
        (self.scale.abs() * std::f64::consts::LOG2_E).max(1.0)
    }

    /// A score some of whose intermediate results may overflow, `magnitude` the sum of
    /// the absolute products. It is the infinity of its sign where the score itself is
    /// beyond f32 and no sum of products of the other sign can overflow: no order of
    /// operations leads elsewhere, as an infinity takes in whatever finite is added.
    fn raw_beyond_range(&self, raw: Approx, magnitude: f64) -> Approx {
        let largest = self.query.iter().fold(0f64, |most, q| most.max(q.abs()));
        let factor = self.largest_factor();
        if largest * factor > MAX || !raw.value.is_finite() {
            return Approx::UNDETERMINED;
        }
        if self.scale == 0.0 {
            return Approx::UNDETERMINED;
        }
        // The sums of the products whose share in the score is positive, and negative.
        let dot = raw.value / self.scale.abs();
        let (above, below) = ((magnitude + dot) / 2.0, (magnitude - dot) / 2.0);
        let slack = SAFETY * raw.error;
        let (low, high) = (raw.value - slack, raw.value + slack);
        match (above * factor > MAX, below * factor > MAX) {
            (false, false) => raw,
            (false, true) if high <= -OVERFLOW => Approx::exact(f64::NEG_INFINITY),
            (false, true) => Approx::at_most(high),
            (true, false) if low >= OVERFLOW => Approx::exact(f64::INFINITY),
            (true, _) => Approx::UNDETERMINED,
        }
    }

    /// A score with an infinity among query and key: by the rules of IEEE 754 an
    /// infinity of the sign that all infinite products have, NaN where they have both
    /// or where an infinity meets 0. It is open where the infinity meets a number that
    /// may be flushed to 0, or where finite products may overflow the other way.
    fn raw_of_infinities(&self, j: usize) -> Approx {
        let scale = self.scale.abs();
        let key = vector(&self.inputs.key, [self.b, self.kv_head(), j]);
        let (mut sum, mut finite, mut flushes) = (0f64, 0f64, scale < TINY && scale > 0.0);
        for (&q, k) in self.query.iter().zip(key) {
            let product = q * k * self.scale;
            if product.is_finite() {
                finite += (q * k).abs();
                continue;
            }
            if product.is_nan() {
                return Approx::NAN;
            }
            let other = if q.is_infinite() { k } else { q };
            flushes |= other.abs() * scale.min(1.0) < 2.0 * TINY;
            sum += product;
        }
        if sum.is_nan() {
            return Approx::NAN;
        }
        match flushes || finite * self.largest_factor() > MAX {
            true => Approx::UNDETERMINED,
            false => Approx::exact(sum),
        }
    }

    /// `c * tanh(raw / c)`.
    pub fn softcapped(&self, j: usize) -> Approx {
        let raw = self.raw(j);
        let Some(cap) = self.softcap else {
            return raw;
        };
        if raw.value.is_nan() {
            return raw;
        }
        let value = cap * (raw.value / cap).tanh();
        if raw.value.is_infinite() {
            return Approx {
                value,
                error: 9.0 * U * cap,
            };
        }
        if !raw.error.is_finite() {
            // Between -cap, the softcap of -inf, and the value.
            return Approx {
                value,
                error: (value + cap) / SAFETY + 9.0 * U * cap,
            };
        }
        raw.map(|s, error| {
            // tanh is steepest where its argument is nearest to 0.
            let nearest = ((s.abs() - SAFETY * error).max(0.0) / cap).tanh();
            let argument = error + 5.0 * U * s.abs();
            let moved = argument * (1.0 - nearest * nearest);
            // tanh stays within -1 to 1.
            let most = (cap + value.abs()) / SAFETY;
            Approx {
                value,
                error: moved.min(most) + 9.0 * U * value.abs() + cap * TINY,
            }
        })
    }

    /// After bias and ALiBi. Only for visible keys.
    pub fn masked(&self, j: usize) -> Approx {
        let mut score = self.softcapped(j);
        if let Some(bias) = &self.inputs.bias {
            let bias = f64::from(bias.at([self.b, self.h, self.i, j]));
            score = score.plus(Approx::exact(bias));
        }
        if let Some(slopes) = self.inputs.alibi_slopes {
            score = score.plus(self.alibi(f64::from(slopes[self.h]), j));
        }
        // Without bias and softcap scores may be kept times log2(e).
        let may_fold = self.inputs.bias.is_none() && self.softcap.is_none();
        score.map(|value, error| {
            let slack = SAFETY * error;
            let folded = [value - slack, value + slack].map(|s| s * std::f64::consts::LOG2_E);
            match Approx::overflow(folded[0], folded[1]) {
                Some(_) if may_fold && value < 0.0 => Approx::at_most(value + slack),
                Some(_) if may_fold => Approx::UNDETERMINED,
                _ => Approx { value, error },
            }
        })
    }

    /// `-slope * distance`. It may be one operation with the sum that it enters, or be
    /// rounded before, and overflow where the sum would not.
    fn alibi(&self, slope: f64, j: usize) -> Approx {
        let distance = self.visibility.distance(self.i as u32, j as u32) as f64;
        let value = -slope * distance;
        // Distances above 2^24 are rounded too; a subnormal slope may be flushed.
        let lost = if slope.abs() < TINY { value.abs() } else { 0.0 };
        let error = 2.0 * U * value.abs() + lost + TINY;
        let slack = SAFETY * error;
        match Approx::overflow(value - slack, value + slack) {
            None => Approx { value, error },
            Some(_) if value < 0.0 => Approx::at_most(value + slack),
            Some(_) => Approx::UNDETERMINED,
        }
    }

    /// The row's sink, if it has one.
    pub fn sink(&self) -> Option<f64> {
        let sink = self.inputs.sinks.map(|sinks| f64::from(sinks[self.h]));
        sink.filter(|sink| sink.is_finite())
    }

    /// Distance of key `j` from the row's position.
    pub fn distance(&self, j: usize) -> u64 {
        self.visibility.distance(self.i as u32, j as u32)
    }

    /// Whether a bias is added to the scores.
    pub fn has_bias(&self) -> bool {
        self.inputs.bias.is_some()
    }

    /// How far each number of the value of key `j` may be away; `None`: they are exact.
    pub fn value_errors(&self, j: usize) -> Option<&'a [f64]> {
        let row = elements(&self.inputs.value, [self.b, self.kv_head(), j]);
        self.inexact.map(|inexact| &inexact.value[row])
    }

    /// The value of key `j`.
    pub fn value_of(&self, j: usize) -> impl Iterator<Item = f64> + use<'a> {
        vector(&self.inputs.value, [self.b, self.kv_head(), j])
    }
}

/// The last axis of a tensor at `[b, h, i]`, exactly.
fn vector<'a>(tensor: &Tensor<'a>, at: [usize; 3]) -> impl Iterator<Item = f64> + use<'a> {
    let data: Data<'a> = tensor.data();
    elements(tensor, at).map(move |index| f64::from(data.get(index)))
}

/// The flat indices of the last axis of a tensor at `[b, h, i]`.
fn elements(tensor: &Tensor<'_>, at: [usize; 3]) -> std::ops::Range<usize> {
    let [_, heads, len, dim] = tensor.shape();
    let start = ((at[0] * heads + at[1]) * len + at[2]) * dim;
    start..start + dim
}
