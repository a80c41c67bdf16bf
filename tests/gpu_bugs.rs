//! Inputs on which attention elsewhere has failed (tests/BUGS.md), where no
//! other test here has just that.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use common::{Elements, Feature, MaskBits, OwnedCase, OwnedMask, Shape, generate};
use gpu::Report;
use wgpu_attention::{DType, Polarity, Window};

/// A whole number of either sign that depends on everything.
fn sign(n: usize) -> f32 {
    if n.wrapping_mul(2_654_435_761) >> 9 & 1 == 0 {
        -1.0
    } else {
        1.0
    }
}

/// Dot products of 262,144 before the scale, which f16 does not hold.
#[test]
fn scores_beyond_the_range_of_f16() {
    let mut report = Report::new();
    let mut largest = 0.0f64;
    for (dtype, scale) in [(DType::F16, 64.0), (DType::BF16, 64.0), (DType::F16, 256.0)] {
        let shape = Shape {
            query: dtype,
            key_value: dtype,
            out: dtype,
            ..Shape::f32([1, 2, 9, 64], 1, 70, 5)
        };
        let mut case = generate(1, shape, &[Feature::Causal]);
        // Query and key agree more or less: products of all sizes, all of them exact.
        let query: Vec<f32> = (0..2 * 9 * 64)
            .map(|n| scale * sign(n / 64 * 7 + n % 64 / 9))
            .collect();
        let key: Vec<f32> = (0..70 * 64)
            .map(|n| scale * sign(n / 64 + n % 64 / 5))
            .collect();
        for row in query.chunks(64) {
            for column in key.chunks(64) {
                let dot: f64 = row
                    .iter()
                    .zip(column)
                    .map(|(&a, &b)| f64::from(a * b))
                    .sum();
                largest = largest.max(dot.abs());
            }
        }
        case.query = Elements::new(&query, dtype);
        case.key = Elements::new(&key, dtype);
        case.options = case.options.scale(1.0 / (scale * scale * 4.0));
        report.case(&case);
    }
    assert!(largest > 65_504.0 * 4.0, "{largest}");
    report.finish(3 * 2 * 18 * 6);
}

#[test]
fn large_values_with_many_equal_weights() {
    let mut report = Report::new();
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let shape = Shape {
            key_value: dtype,
            out: dtype,
            ..Shape::f32([1, 1, 5, 4], 1, 1000, 33)
        };
        let mut case = generate(2, shape, &[Feature::ZeroScale]);
        let values: Vec<f32> = (0..33_000).map(|n| 1000.0 + (n % 64) as f32).collect();
        case.value = Elements::new(&values, dtype);
        report.case(&case);
    }
    report.finish(3 * 2 * 5 * 34);
}

/// A row whose scores are all far below what others take for "masked".
#[test]
fn scores_far_below_any_sentinel() {
    let mut report = Report::new();
    for base in [-5e4f32, -1e9, -1e30, -3e38] {
        for features in [&[][..], &[Feature::Causal], &[Feature::MaskBits]] {
            let mut case = generate(3, Shape::f32([1, 2, 37, 4], 1, 70, 3), features);
            case.options.scale = Some(0.0);
            // Steps that are exact at that size, so that the weights differ.
            let step = (base.abs() * 2f32.powi(-22)).max(0.25);
            let bias: Vec<f32> = (0..70).map(|j| base + (j % 3) as f32 * step).collect();
            case.bias = Some((Elements::new(&bias, DType::F32), [1, 1, 1, 70]));
            case.name = format!("{base} {features:?}");
            report.case(&case);
        }
    }
    report.finish(4 * 3 * 2 * 74 * 4);
}

/// -3.402823e38 as people type it is not the lowest float, and neither excludes.
#[test]
fn a_mask_of_almost_the_lowest_number() {
    let mut report = Report::new();
    for (hidden, shown) in [
        (-3.402_823e38f32, 0.0f32),
        (-3.402_823e38, -3.402_823e38),
        (f32::MIN, -3.402_823e38),
        (f32::MIN, f32::MIN),
        (f32::NEG_INFINITY, f32::MIN),
        (f32::NEG_INFINITY, f32::NEG_INFINITY),
    ] {
        let mut case = generate(4, Shape::f32([1, 1, 9, 8], 1, 65, 4), &[]);
        let bias: Vec<f32> = (0..9 * 65)
            .map(|n| {
                if (n / 65 + n % 65) % 3 == 0 {
                    shown
                } else {
                    hidden
                }
            })
            .collect();
        case.bias = Some((Elements::new(&bias, DType::F32), [1, 1, 9, 65]));
        case.name = format!("{hidden} {shown}");
        report.case(&case);
    }
    report.finish(6 * 2 * 9 * 5);
}

/// The first tiles hide every key, by a mask, by -inf in the bias, by both; the
/// sink is alone until a key comes.
#[test]
fn leading_tiles_without_a_visible_key() {
    let mut report = Report::new();
    for hidden in [31, 32, 64, 96, 127, 128] {
        for sinks in [false, true] {
            for (by_mask, by_bias) in [(true, false), (false, true), (true, true)] {
                let features = if sinks { &[Feature::Sinks][..] } else { &[] };
                let mut case = generate(5, Shape::f32([1, 2, 66, 4], 1, 128, 3), features);
                // A staircase: some rows see their first key in a later tile.
                let sees = |n: usize| n % 128 >= (hidden + n / 128 / 8).min(128);
                if by_mask {
                    case.mask = Some(OwnedMask {
                        data: MaskBits::Bytes((0..66 * 128).map(|n| u8::from(sees(n))).collect()),
                        shape: [1, 1, 66, 128],
                        polarity: Polarity::Keep,
                    });
                }
                if by_bias {
                    let bias = |n| if sees(n) { sign(n) } else { f32::NEG_INFINITY };
                    let bias: Vec<f32> = (0..66 * 128).map(bias).collect();
                    case.bias = Some((Elements::new(&bias, DType::F32), [1, 1, 66, 128]));
                }
                case.name = format!("{hidden} hidden, sinks {sinks}, {by_mask} {by_bias}");
                report.case(&case);
            }
        }
    }
    report.finish(6 * 2 * 3 * 2 * 132 * 4);
}

/// Decoding with a small window far into the keys: most tiles lie outside of
/// it, and hold NaN.
#[test]
fn tiles_wholly_outside_a_window() {
    let mut report = Report::new();
    let mut outside = 0;
    for q_len in [1, 4, 65] {
        for left in [0, 1, 31, 32, 33, 63] {
            for right in [None, Some(0), Some(5)] {
                for sinks in [&[][..], &[Feature::Sinks]] {
                    let shape = Shape::f32([2, 2, q_len, 4], 1, 301, 3);
                    let mut case: OwnedCase = generate(6, shape, sinks);
                    case.options = case.options.causal(right.is_none());
                    case.options = case.options.window(Window {
                        left: Some(left),
                        right,
                    });
                    for j in 0..301 {
                        if (0..q_len).any(|i| case.visible([0, 0, i, j])) {
                            continue;
                        }
                        outside += 1;
                        for row in [j, 301 + j] {
                            (0..4).for_each(|d| case.key.set(row * 4 + d, f32::NAN));
                            (0..3).for_each(|d| case.value.set(row * 3 + d, f32::NAN));
                        }
                    }
                    case.name = format!("{q_len} queries, {left} {right:?} {sinks:?}");
                    report.case(&case);
                }
            }
        }
    }
    assert!(outside > 20_000, "{outside}");
    report.finish(3 * 6 * 3 * 2 * 2 * 4 * 4);
}
