//! Both kernels against the oracle at sizes around every tile edge, at zero,
//! past 16-bit counts, and on devices with small limits.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use common::{Feature, OwnedCase, Shape, generate};
use gpu::guest::{Guest, Setup};
use gpu::{Report, gpu, kernels, limited, oracle};
use wgpu_attention::{Alignment, Attention, DType, Kernel, PlanOptions, Window};

/// Around multiples of 16, 32 and 64, the tiles' depth, keys, rows and columns.
const LENGTHS: [usize; 14] = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 0];

const HEAD_DIMS: [usize; 20] = [
    1, 2, 3, 16, 17, 32, 40, 59, 64, 65, 72, 80, 96, 111, 128, 129, 160, 192, 256, 512,
];

#[test]
fn lengths_around_every_tile_edge() {
    let mut report = Report::new();
    for (n, &q_len) in LENGTHS.iter().enumerate() {
        for (m, &kv_len) in LENGTHS.iter().enumerate() {
            let dim = [1, 8, 17][(n + m) % 3];
            let features: &[Feature] = match (n * 14 + m) % 4 {
                0 => &[],
                1 => &[Feature::Causal],
                2 => &[Feature::Causal, Feature::Bias],
                _ => &[Feature::WindowBoth, Feature::MaskBits],
            };
            let shape = Shape::f32([1, 2, q_len, dim], 1, kv_len, dim + 1);
            report.case(&generate((n * 14 + m) as u64, shape, features));
        }
    }
    report.finish(200_000);
}

#[test]
fn head_dims_around_every_tile_edge() {
    let mut report = Report::new();
    for (n, &qk_dim) in HEAD_DIMS.iter().enumerate() {
        let dtype = [DType::F32, DType::F16, DType::BF16][n % 3];
        for v_dim in [qk_dim, HEAD_DIMS[HEAD_DIMS.len() - 1 - n]] {
            let shape = Shape {
                query: dtype,
                key_value: dtype,
                out: dtype,
                ..Shape::f32([1, 2, 9, qk_dim], 1, 35, v_dim)
            };
            report.case(&generate(n as u64, shape, &[Feature::Causal]));
            let shape = Shape::f32([1, 2, 9, qk_dim], 1, 35, v_dim);
            report.case(&generate(n as u64, shape, &[]));
        }
    }
    report.finish(2 * 4 * 20 * 18);
}

/// No batch entry, head or query: nothing is written. No key: O = 0, and
/// LSE = -inf or the sink.
#[test]
fn zero_sizes() {
    let mut report = Report::new();
    for (q, kv_heads, kv_len) in [
        ([0, 2, 5, 4], 1, 6),
        ([2, 0, 5, 4], 1, 6),
        ([2, 2, 0, 4], 1, 6),
        ([2, 2, 5, 4], 1, 0),
        ([2, 2, 0, 4], 2, 0),
        ([0, 0, 0, 1], 1, 0),
    ] {
        for features in [
            &[][..],
            &[Feature::Causal, Feature::Sinks],
            &[Feature::Bias, Feature::Alibi, Feature::QLengths],
            &[Feature::MaskBytes, Feature::Segments, Feature::KvLengths],
            &[Feature::MaskBits, Feature::PerSequence, Feature::WindowBoth],
        ] {
            for device_lists in [false, true] {
                let setup = Setup {
                    device_lists,
                    ..Setup::default()
                };
                let mut case = generate(5, Shape::f32(q, kv_heads, kv_len, 3), features);
                if let Some(sinks) = &mut case.sinks {
                    sinks.fill(1.5);
                }
                let expected = oracle(&case);
                if kv_len == 0 {
                    let lse = if case.sinks.is_some() {
                        1.5
                    } else {
                        f64::NEG_INFINITY
                    };
                    report.expect(expected.lse.iter().all(|&l| l == lse), "the oracle's lse");
                    report.expect(
                        expected.output.iter().all(|&o| o == 0.0),
                        "the oracle's output",
                    );
                }
                report.case_with(&case, &setup);
            }
        }
    }
    report.finish(2 * 5 * 2 * 2 * 2 * 5 * 4);
}

/// Positions and windows at the ends of their types, where sums wrap.
#[test]
fn extreme_offsets_and_windows() {
    let mut report = Report::new();
    let offsets = [
        i32::MIN,
        i32::MIN + 1,
        -(1 << 30),
        -40,
        -1,
        0,
        1,
        36,
        1 << 30,
        i32::MAX,
    ];
    let sides = [
        None,
        Some(0),
        Some(1),
        Some(33),
        Some(u32::MAX - 1),
        Some(u32::MAX),
    ];
    for (n, offset) in offsets.into_iter().enumerate() {
        for (m, left) in sides.into_iter().enumerate() {
            for (o, right) in sides.into_iter().enumerate() {
                let features: &[Feature] = match (n + m + o) % 3 {
                    0 => &[Feature::Causal],
                    1 => &[],
                    _ => &[Feature::MaskBits],
                };
                let mut case = generate(o as u64, Shape::f32([2, 1, 66, 3], 1, 35, 3), features);
                case.options = case.options.window(Window { left, right });
                if m % 2 == 0 {
                    case.options = case.options.alignment(Alignment::Offset(offset));
                } else {
                    case.options = case.options.alignment(Alignment::PerSequence);
                    case.offsets = Some(vec![offset, offsets[(n + 3) % offsets.len()]]);
                }
                case.name = format!("{offset} {left:?} {right:?} {features:?}");
                report.case(&case);
            }
        }
    }
    // ALiBi's distance at these offsets is far beyond 2^24.
    for offset in offsets {
        let mut case = generate(3, Shape::f32([1, 2, 66, 3], 1, 35, 3), &[Feature::Alibi]);
        case.options = case.options.alignment(Alignment::Offset(offset));
        case.alibi_slopes = Some(vec![1e-7, -1e-9]);
        case.name = format!("alibi {offset}");
        report.case(&case);
    }
    report.finish(10 * 36 * 2 * 2 * 66 * 4);
}

/// More than 65,535 workgroups of one dispatch: the staged softmax has one a
/// row. Every kernel's grid is folded where a dimension holds eight, below.
#[test]
fn more_workgroups_than_one_dimension_holds() {
    let mut report = Report::new();
    let features = &[Feature::Causal, Feature::Sinks];
    let case = generate(1, Shape::f32([3, 2, 11_001, 1], 1, 2, 1), features);
    let setup = forced(Kernel::Staged);
    let guest = Guest::new(gpu(), &case, &setup).unwrap();
    let mut grids = guest.prepared.plan().describe_dispatches();
    let (_, [x, y]) = grids.find(|(name, _)| *name == "staged_softmax").unwrap();
    let limit = gpu().caps().max_compute_workgroups_per_dimension;
    let folded = x * y >= 66_006 && x <= limit && y <= limit;
    report.expect(folded, format!("{x} x {y}"));
    if let Some(ran) = report.expect_ok(&case.name, Guest::run(gpu(), &case, &setup)) {
        report.judge(&case.name, &oracle(&case), &ran);
    }
    report.finish(66_006 * 2);
}

fn forced(kernel: Kernel) -> Setup {
    Setup {
        plan: PlanOptions::default().kernel(kernel),
        ..Setup::default()
    }
}

/// A case whose operands, and a setup whose lists, exercise every base that a
/// dispatch over a part of the problem has to shift.
fn everything(seed: u64) -> OwnedCase {
    let shape = Shape {
        out: DType::F16,
        ..Shape::f32([3, 6, 200, 40], 2, 70, 39)
    };
    let features: &[Feature] = match seed % 4 {
        0 => &[
            Feature::Causal,
            Feature::Bias,
            Feature::KvLengths,
            Feature::QLengths,
        ],
        1 => &[Feature::MaskBytes, Feature::Segments, Feature::Sinks],
        2 => &[
            Feature::MaskBits,
            Feature::Alibi,
            Feature::PerSequence,
            Feature::WindowBoth,
        ],
        _ => &[],
    };
    let mut case = generate(seed, shape, features);
    // Nothing broadcast: every axis has a stride.
    if let Some((bias, dims)) = &mut case.bias {
        *dims = [3, 6, 200, 70];
        let values: Vec<f32> = (0..dims.iter().product())
            .map(|n| (n % 31) as f32 * 0.1)
            .collect();
        *bias = common::Elements::new(&values, DType::BF16);
    }
    case
}

/// The results, and the bits, on a device with small limits are those on the
/// default one, although the plan has many more dispatches.
fn same_on(small: &Attention, least_dispatches: usize) {
    let mut report = Report::new();
    for seed in 0..4 {
        let case = everything(seed);
        let setup = Setup {
            device_lists: seed % 2 == 0,
            shift: 1,
            ..Setup::default()
        };
        report.case_on(small, &case, &setup);
        for kernel in kernels() {
            let setup = Setup {
                plan: PlanOptions::default().kernel(kernel),
                ..setup.clone()
            };
            let run = |gpu| Guest::run(gpu, &case, &setup);
            if let (Ok(one), Ok(many)) = (run(gpu()), run(small)) {
                report.same_bits(&format!("{kernel:?}: {}", case.name), &one, &many);
            }
            let guest = Guest::new(small, &case, &setup);
            if let Some(guest) = report.expect_ok(&case.name, guest) {
                let plan = guest.prepared.plan();
                report.expect(plan.dispatches() >= least_dispatches, format!("{plan}"));
            }
        }
    }
    report.finish(4 * 2 * 2 * 3 * 6 * 200 * 40);
}

#[test]
fn eight_workgroups_a_dimension() {
    // 64 a dispatch; the softmax kernel has 3600, one a row.
    same_on(
        &limited(|limits| limits.max_compute_workgroups_per_dimension = 8),
        2,
    );
}

#[test]
fn bindings_of_a_few_kilobytes() {
    // A head's rows (32,000 bytes) and a batch entry's keys (22,400) don't fit;
    // a tile of rows' scores (17,920) do.
    let small = limited(|limits| {
        limits.max_storage_buffer_binding_size = 20_000;
        limits.min_storage_buffer_offset_alignment = 256;
    });
    same_on(&small, 3 * 6 * 2);
}
