//! Plain single-precision attention in several orders of summation, with faults
//! to be planted: what the oracle's bounds have to let pass, and what they have
//! to reject. Written from the formula, apart from the crate.

use half::f16;
use wgpu_attention::{Alignment, Outputs};

use super::case::OwnedCase;

/// Order in which numbers are summed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Order {
    Forward,
    Backward,
    /// Partial sums over every n-th number.
    Lanes(usize),
    /// Halves, recursively.
    Pairs,
}

/// How the arithmetic goes; every style is legitimate.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    pub order: Order,
    /// Keys that are seen together before the running maximum moves.
    pub tile: usize,
    /// scale * log2(e) folded into the query (where there is no bias).
    pub folded: bool,
    pub fused: bool,
    /// Errors as large as WGSL permits in exp2, 8 * 2^-24 in tanh.
    pub sloppy: bool,
}

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    None,
    CausalHidesDiagonal,
    CausalLeaks,
    WindowNarrow,
    WindowWide,
    OffsetIgnored,
    FirstKeyDropped,
    LastKeyDropped,
    LengthIgnored,
    SegmentsIgnored,
    MaskFlipped,
    HeadsSwapped,
    HeadsModulo,
    RowShifted,
    Unscaled,
    ScaledTwice,
    SoftcapMissing,
    SoftcapAfterBias,
    SoftcapCoarse,
    BiasScaled,
    AlibiSigned,
    AlibiScaled,
    SinkMissing,
    SinkTwice,
    SinkScaled,
    LseWithoutSink,
    LseBase2,
    EmptyRowAverages,
    HalfDot,
    HalfSum,
    HalfWeights,
}

struct Arithmetic {
    style: Style,
    state: u32,
}

impl Arithmetic {
    /// A number in -1..1 that differs from call to call.
    fn noise(&mut self) -> f32 {
        self.state = self
            .state
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        (self.state >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    fn exp2(&mut self, x: f32) -> f32 {
        // Not max(), which loses a NaN.
        let x = if x < -200.0 { -200.0 } else { x };
        let exact = x.exp2();
        if !self.style.sloppy {
            return exact;
        }
        let ulps = (3.0 + 2.0 * x.abs()) * self.noise();
        exact * (1.0 + ulps * f32::EPSILON)
    }

    fn tanh(&mut self, x: f32, coarse: bool) -> f32 {
        let exact = f64::from(x).tanh() as f32;
        match (coarse, self.style.sloppy) {
            // What tanh of some adapters is off by.
            (true, _) => exact + 5e-5 * self.noise(),
            (_, true) => exact * (1.0 + 4.0 * f32::EPSILON * self.noise()),
            _ => exact,
        }
    }

    fn sum(&self, a: &[f32], b: &[f32], half: bool) -> f32 {
        let step = |sum: f32, (&a, &b): (&f32, &f32)| {
            let sum = if self.style.fused {
                a.mul_add(b, sum)
            } else {
                sum + a * b
            };
            if half {
                f16::from_f32(sum).to_f32()
            } else {
                sum
            }
        };
        let pairs = a.iter().zip(b);
        match self.style.order {
            Order::Forward => pairs.fold(0.0, step),
            Order::Backward => pairs.rev().fold(0.0, step),
            Order::Lanes(n) => (0..n)
                .map(|lane| pairs.clone().skip(lane).step_by(n).fold(0.0, step))
                .sum(),
            Order::Pairs if a.len() > 4 => {
                let (a, b) = (a.split_at(a.len() / 2), b.split_at(a.len() / 2));
                self.sum(a.0, b.0, half) + self.sum(a.1, b.1, half)
            }
            Order::Pairs => pairs.fold(0.0, step),
        }
    }
}

/// Attention of a case in single precision, with `fault`.
pub fn attention(case: &OwnedCase, style: Style, fault: Fault) -> Outputs {
    let mut case = case.clone();
    let window = &mut case.options.window;
    match fault {
        Fault::OffsetIgnored => {
            case.options.alignment = Alignment::TopLeft;
            case.offsets = None;
        }
        Fault::WindowNarrow => window.left = window.left.map(|n| n - 1),
        Fault::WindowWide => window.left = window.left.map(|n| n + 1),
        Fault::SinkMissing => case.sinks = None,
        Fault::SoftcapMissing => case.options.softcap = None,
        Fault::SegmentsIgnored => case.segments = None,
        Fault::LengthIgnored => case.kv_lengths = None,
        _ => {}
    }
    let dims = case.dims;
    let mut arithmetic = Arithmetic { style, state: 1 };
    let mut outputs = Outputs {
        output: Vec::new(),
        lse: Vec::new(),
    };
    for b in 0..dims.batch {
        for h in 0..dims.q_heads {
            let h = if fault == Fault::HeadsSwapped {
                h ^ 1
            } else {
                h
            };
            for i in 0..dims.q_len {
                let shifted = if i + 1 == dims.q_len { 0 } else { i + 1 };
                let i = if fault == Fault::RowShifted {
                    shifted
                } else {
                    i
                };
                let (output, lse) = row(&case, &mut arithmetic, fault, [b, h, i]);
                outputs.output.extend(output);
                outputs.lse.push(lse);
            }
        }
    }
    outputs
}

fn sees(case: &OwnedCase, fault: Fault, pair: [usize; 4]) -> bool {
    let [b, _, i, j] = pair;
    let position = i as i64 + case.visibility(b).offset;
    match fault {
        Fault::CausalHidesDiagonal if j as i64 == position => false,
        Fault::CausalLeaks if j as i64 == position + 1 => j < case.dims.kv_len,
        Fault::MaskFlipped => !case.visible(pair),
        _ => case.visible(pair),
    }
}

fn row(
    case: &OwnedCase,
    arithmetic: &mut Arithmetic,
    fault: Fault,
    [b, h, i]: [usize; 3],
) -> (Vec<f32>, f32) {
    let dims = case.dims;
    let inputs = case.inputs();
    let style = arithmetic.style;
    let is = |f| fault == f;
    let kv_head = if is(Fault::HeadsModulo) {
        h % dims.kv_heads
    } else {
        h / dims.group()
    };
    let line = |tensor: &wgpu_attention::Tensor, head, n| -> Vec<f32> {
        (0..tensor.shape()[3])
            .map(|d| tensor.at([b, head, n, d]))
            .collect()
    };

    let mut keys: Vec<usize> = (0..dims.kv_len)
        .filter(|&j| sees(case, fault, [b, h, i, j]))
        .collect();
    match fault {
        Fault::FirstKeyDropped if !keys.is_empty() => drop(keys.remove(0)),
        Fault::LastKeyDropped => drop(keys.pop()),
        Fault::EmptyRowAverages if keys.is_empty() => keys = (0..dims.kv_len).collect(),
        _ => {}
    }
    let sink = case.sinks.as_ref().map(|s| s[h]).filter(|s| s.is_finite());
    let sink = sink.map(|s| if is(Fault::SinkScaled) { s * 0.5 } else { s });

    let mut scale = case.options.scale_for(dims.qk_dim);
    let given = scale;
    match fault {
        Fault::Unscaled => scale = 1.0,
        Fault::ScaledTwice => scale *= scale,
        _ => {}
    }
    let log2e = std::f32::consts::LOG2_E;
    // A score is kept in base 2 from the start where that is allowed.
    let folded = style.folded && case.bias.is_none() && case.options.softcap.is_none();
    let unit = if folded { log2e } else { 1.0 };
    let query: Vec<f32> = line(&inputs.query, h, i)
        .iter()
        .map(|&q| if folded { q * (scale * log2e) } else { q })
        .collect();
    let mut scores = Vec::new();
    for &j in &keys {
        let dot = arithmetic.sum(&query, &line(&inputs.key, kv_head, j), is(Fault::HalfDot));
        let mut s = if folded { dot } else { scale * dot };
        let cap = |arithmetic: &mut Arithmetic, s: f32| match case.options.softcap {
            Some(c) => c * arithmetic.tanh(s / c, is(Fault::SoftcapCoarse)),
            None => s,
        };
        if !is(Fault::SoftcapAfterBias) {
            s = cap(arithmetic, s);
        }
        if let Some(bias) = &inputs.bias {
            let bias = bias.at([b, h, i, j]);
            s += if is(Fault::BiasScaled) {
                bias * given
            } else {
                bias
            };
        }
        if is(Fault::SoftcapAfterBias) {
            s = cap(arithmetic, s);
        }
        if let Some(slopes) = &case.alibi_slopes {
            let signed = i as i64 + case.visibility(b).offset - j as i64;
            let distance = if is(Fault::AlibiSigned) {
                signed
            } else {
                signed.abs()
            } as f32;
            let slope = if is(Fault::AlibiScaled) {
                slopes[h] * given
            } else {
                slopes[h]
            };
            s += -(slope * unit) * distance;
        }
        scores.push(s);
    }

    let exp = |arithmetic: &mut Arithmetic, difference: f32| {
        arithmetic.exp2(if folded {
            difference
        } else {
            difference * log2e
        })
    };
    let mut top = f32::MIN;
    let mut total = 0f32;
    let mut output = vec![0f32; dims.v_dim];
    let tiles = keys.chunks(style.tile).zip(scores.chunks(style.tile));
    for (keys, scores) in tiles {
        let new = scores.iter().copied().fold(top, f32::max);
        let rescale = if new > top {
            exp(arithmetic, top - new)
        } else {
            1.0
        };
        top = new;
        let weights: Vec<f32> = scores
            .iter()
            .map(|s| exp(arithmetic, s - top))
            .map(|w| {
                if is(Fault::HalfWeights) {
                    f16::from_f32(w).to_f32()
                } else {
                    w
                }
            })
            .collect();
        let ones = vec![1.0; weights.len()];
        total = total * rescale + arithmetic.sum(&weights, &ones, is(Fault::HalfSum));
        let values: Vec<Vec<f32>> = keys
            .iter()
            .map(|&j| line(&inputs.value, kv_head, j))
            .collect();
        for (d, out) in output.iter_mut().enumerate() {
            let column: Vec<f32> = values.iter().map(|v| v[d]).collect();
            *out = *out * rescale + arithmetic.sum(&weights, &column, is(Fault::HalfSum));
        }
    }
    let without_sink = if keys.is_empty() {
        f32::NEG_INFINITY
    } else {
        top / unit + total.ln()
    };
    if let Some(sink) = sink {
        let new = top.max(sink * unit);
        let rescale = if total > 0.0 {
            exp(arithmetic, top - new)
        } else {
            0.0
        };
        let count = if is(Fault::SinkTwice) { 2.0 } else { 1.0 };
        total = total * rescale + count * exp(arithmetic, sink * unit - new);
        output.iter_mut().for_each(|o| *o *= rescale);
        top = new;
    }
    if total == 0.0 {
        return (output, f32::NEG_INFINITY);
    }
    output.iter_mut().for_each(|o| *o /= total);
    let lse = match fault {
        Fault::LseWithoutSink => without_sink,
        Fault::LseBase2 => (top / unit + total.ln()) * log2e,
        _ => top / unit + total.ln(),
    };
    (output, lse)
}

/// Rounds to the output's storage type.
pub fn stored(values: &[f32], out: wgpu_attention::DType) -> Vec<f32> {
    super::case::Elements::new(values, out).to_f32()
}
