//! Both kernels against the oracle: every option alone, in pairs and mixed,
//! storage types, masks, heads, and the five scenarios in which attention is used.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use common::{Feature, MaskBits, OwnedCase, Shape, cases, generate, random_case};
use gpu::guest::{Guest, Setup};
use gpu::memory::Layout;
use gpu::{Report, kernels};
use wgpu_attention::{Alignment, DType, Polarity, Window};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

#[test]
fn every_option_alone_and_every_pair_of_options() {
    let mut report = Report::new();
    for case in cases(0) {
        report.case(&case);
    }
    report.finish(400_000);
}

#[test]
fn random_mixtures_of_options() {
    let mut report = Report::new();
    for seed in 1000..1060 {
        report.case(&random_case(seed));
    }
    report.finish(400_000);
}

#[test]
fn random_mixtures_in_other_layouts_with_lists_in_buffers() {
    let mut report = Report::new();
    for seed in 2000..2040 {
        let setup = Setup {
            shift: seed as usize % 4,
            one_buffer: seed % 2 == 0,
            device_lists: true,
            ..Setup::default()
        };
        report.case_with(&random_case(seed), &setup);
    }
    report.finish(200_000);
}

/// Storage types of query, of key and value, and of the output, each on its own.
#[test]
fn storage_types() {
    let mut report = Report::new();
    let mut seed = 0;
    for query in DTYPES {
        for key_value in DTYPES {
            for out in DTYPES {
                for (qk_dim, v_dim) in [(16, 64), (7, 33), (40, 9)] {
                    let shape = Shape {
                        query,
                        key_value,
                        out,
                        ..Shape::f32([2, 4, 19, qk_dim], 2, 35, v_dim)
                    };
                    seed += 1;
                    report.case(&generate(seed, shape, &[Feature::Causal]));
                }
            }
        }
    }
    for dtype in DTYPES {
        for shape in [[2, 4, 19, 35], [1, 4, 1, 35], [2, 1, 19, 1], [1, 1, 1, 1]] {
            let mut case = generate(7, Shape::f32([2, 4, 19, 8], 2, 35, 8), &[]);
            let count = shape.iter().product();
            let values: Vec<f32> = (0..count).map(|n| (n % 13) as f32 * 0.3 - 2.0).collect();
            case.bias = Some((common::Elements::new(&values, dtype), shape));
            case.name = format!("bias {dtype:?} {shape:?}");
            report.case(&case);
        }
    }
    report.finish(27 * 3 * 2 * 2 * 4 * 19 * 10);
}

/// An f16 output beyond 65504 is an infinity, one just below is not.
#[test]
fn outputs_past_the_range_of_f16_are_infinite() {
    let mut report = Report::new();
    for (scale, infinite) in [(70000.0, true), (65000.0, false), (-70000.0, true)] {
        let shape = Shape {
            out: DType::F16,
            ..Shape::f32([1, 1, 5, 4], 1, 9, 6)
        };
        let mut case = generate(1, shape, &[]);
        case.value = common::Elements::new(&[scale; 54], DType::F32);
        report.case(&case);
        let expected = gpu::oracle(&case).output;
        let all = expected.iter().all(|o| o.is_infinite() == infinite);
        report.expect(all, format!("{scale}: {expected:?}"));
    }
    report.finish(3 * 2 * (30 + 5));
}

#[test]
fn boolean_masks_in_every_storage_polarity_and_broadcast() {
    let mut report = Report::new();
    for kv_len in [31, 32, 33, 65] {
        for broadcast in 0..16 {
            let full = [2, 4, 21, kv_len];
            let shape: [usize; 4] = std::array::from_fn(|axis| {
                if broadcast >> axis & 1 == 1 {
                    1
                } else {
                    full[axis]
                }
            });
            for polarity in [Polarity::Keep, Polarity::Drop] {
                for feature in [Feature::MaskBytes, Feature::MaskBits] {
                    let shape_of_case = Shape::f32([2, 4, 21, 4], 2, kv_len, 4);
                    let mut case = generate(broadcast, shape_of_case, &[feature]);
                    let mask = case.mask.as_mut().unwrap();
                    *mask = mask_of(feature, shape, polarity);
                    case.name = format!("{feature:?} {polarity:?} {shape:?}");
                    report.case(&case);
                }
            }
        }
    }
    report.finish(4 * 16 * 4 * 2 * 2 * 4 * 21 * 5);
}

/// A pattern in which rows, heads, entries and keys all differ; the first row
/// sees nothing, tail bits are set.
fn mask_of(feature: Feature, shape: [usize; 4], polarity: Polarity) -> common::OwnedMask {
    let [b, h, n, keys] = shape;
    let is_set = |row: usize, j: usize| {
        let hidden = row == 0 && b * h * n > 1;
        let visible = !hidden && !(row * 7 + j * 5 + row * j).is_multiple_of(3);
        visible == (polarity == Polarity::Keep)
    };
    let rows = 0..b * h * n;
    let data = match feature {
        Feature::MaskBytes => MaskBits::Bytes(
            rows.flat_map(|row| (0..keys).map(move |j| (row, j)))
                .map(|(row, j)| if is_set(row, j) { 1 << (j % 8) } else { 0 })
                .collect(),
        ),
        _ => MaskBits::Bits(
            rows.flat_map(|row| (0..keys.div_ceil(32)).map(move |word| (row, word)))
                .map(|(row, word)| {
                    (0..32).fold(0, |bits, k| {
                        let j = word * 32 + k;
                        bits | u32::from(j >= keys || is_set(row, j)) << k
                    })
                })
                .collect(),
        ),
    };
    common::OwnedMask {
        data,
        shape,
        polarity,
    }
}

#[test]
fn groups_of_heads_and_batches() {
    let mut report = Report::new();
    for group in [1, 2, 3, 4, 6, 8] {
        for kv_heads in [1, 2, 3] {
            for batch in [1, 3] {
                let q = [batch, kv_heads * group, 33, 5];
                let shape = Shape::f32(q, kv_heads, 17, 3);
                report.case(&generate(group as u64, shape, &[Feature::Causal]));
            }
        }
    }
    report.finish(2 * 24 * 3 * 6 * 33 * 4);
}

/// Cold prefill, early decode, deep decode, speculative decode, batch: each
/// with alignment, bias, lengths and grouped heads as they occur together.
#[test]
fn five_scenarios() {
    let mut report = Report::new();
    // (queries, keys, lengths of keys and of queries per entry).
    type Scenario = (usize, usize, Option<[u32; 2]>, Option<[u32; 2]>);
    let scenarios: [Scenario; 6] = [
        (37, 37, None, None),
        (1, 5, None, None),
        (1, 161, None, None),
        (4, 133, None, None),
        (9, 70, Some([70, 33]), None),
        (4, 70, Some([70, 5]), Some([1, 4])),
    ];
    for (n, (q_len, kv_len, kv_lengths, q_lengths)) in scenarios.into_iter().enumerate() {
        for features in [
            &[Feature::Causal][..],
            &[Feature::Causal, Feature::Bias],
            &[Feature::Causal, Feature::WindowLeft, Feature::Alibi],
            &[Feature::Causal, Feature::Sinks, Feature::Softcap],
        ] {
            for layout in [Layout::HeadMajor, Layout::TokenMajor] {
                let shape = Shape::f32([2, 6, q_len, 20], 2, kv_len, 20);
                let mut case = generate(n as u64, shape, features);
                case.kv_lengths = kv_lengths.map(Vec::from);
                case.q_lengths = q_lengths.map(Vec::from);
                let setup = Setup {
                    layout,
                    ..Setup::default()
                };
                report.case_with(&case, &setup);
            }
        }
    }
    report.finish(6 * 4 * 2 * 2 * 2 * 6 * 21);
}

/// What a mask that leaks one key, or hides one, would get wrong: values are
/// one-hot in the key's number, so that the output shows the weights.
#[test]
fn the_diagonal_is_visible_and_the_next_key_is_not() {
    let mut report = Report::new();
    for (q_len, kv_len) in [(33, 33), (2, 5), (40, 70), (70, 40), (1, 64), (65, 65)] {
        for alignment in [
            Alignment::TopLeft,
            Alignment::BottomRight,
            Alignment::Offset(3),
            Alignment::Offset(-3),
        ] {
            for window in [Window::OPEN, Window::last(1).unwrap(), Window::around(2, 1)] {
                let mut case = one_hot(q_len, kv_len);
                case.options = case.options.causal(window.right != Some(1));
                case.options = case.options.window(window).alignment(alignment);
                case.name = format!("{q_len} x {kv_len} {alignment:?} {window:?}");
                report.case(&case);
                for kernel in kernels() {
                    let plan = wgpu_attention::PlanOptions::default().kernel(kernel);
                    let setup = Setup {
                        plan,
                        ..Setup::default()
                    };
                    let ran = Guest::run(gpu::gpu(), &case, &setup);
                    let Some(ran) = report.expect_ok(&case.name, ran) else {
                        continue;
                    };
                    for (i, weights) in ran.output.chunks(kv_len).enumerate() {
                        for (j, &w) in weights.iter().enumerate() {
                            let visible = case.visibility(0).allows(i as u32, j as u32);
                            let what = format!("{kernel:?} {}: ({i}, {j}) {w}", case.name);
                            report.expect((w > 0.0) == visible, what);
                        }
                    }
                }
            }
        }
    }
    report.finish(100_000);
}

/// Scores of 0 and values that are one-hot in the key's number.
fn one_hot(q_len: usize, kv_len: usize) -> OwnedCase {
    let shape = Shape::f32([1, 1, q_len, 2], 1, kv_len, kv_len);
    let mut case = generate(0, shape, &[Feature::ZeroScale]);
    let hot = |n: usize| f32::from(u8::from(n / kv_len == n % kv_len));
    let values: Vec<f32> = (0..kv_len * kv_len).map(hot).collect();
    case.value = common::Elements::new(&values, DType::F32);
    case
}
