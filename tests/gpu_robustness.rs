//! What must not matter: memory that no row may see, layouts, neighbours of
//! outputs, company in a buffer or encoder. Every run checks guard bands.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use common::{Elements, Feature, MaskBits, OwnedCase, OwnedMask, Shape, generate};
use gpu::guest::{Guest, Ran, Setup};
use gpu::memory::Layout;
use gpu::{Report, gpu, kernels, oracle};
use wgpu_attention::reference::compare;
use wgpu_attention::testing::runs_unchecked;
use wgpu_attention::{Attention, DType, Kernel, PlanOptions, Polarity};

fn forced(kernel: Kernel) -> Setup {
    Setup {
        plan: PlanOptions::default().kernel(kernel),
        ..Setup::default()
    }
}

fn run(case: &OwnedCase, kernel: Kernel) -> Ran {
    run_as(case, &forced(kernel))
        .unwrap_or_else(|error| panic!("{kernel:?} {}: {error}", case.name))
}

/// Runs as planned; where that is without wgpu's runtime checks, with them too,
/// to the same bits.
fn run_as(case: &OwnedCase, setup: &Setup) -> Result<Ran, String> {
    let ran = Guest::run(gpu(), case, setup)?;
    if setup.plan.kernel.is_some_and(runs_unchecked) {
        let mut checked = setup.clone();
        checked.plan = checked.plan.force_checks(true);
        let checked = Guest::run(gpu(), case, &checked)?;
        let bits = |ran: &Ran| -> Vec<u32> {
            let values = ran.output.iter().chain(&ran.stats);
            values.map(|x| x.to_bits()).collect()
        };
        if bits(&ran) != bits(&checked) {
            return Err("runtime checks change the result".to_owned());
        }
    }
    Ok(ran)
}

/// The checks themselves: an output that was not written and a byte beside it
/// that was are both found.
#[test]
fn the_checks_reject() {
    let case = generate(1, Shape::f32([1, 2, 5, 4], 1, 7, 3), &[]);
    let guest = Guest::new(gpu(), &case, &Setup::default()).unwrap();
    let expected = oracle(&case);
    let ran = guest.read().unwrap();
    let found = compare(&ran.output, &expected.output, &expected.output_bound).unwrap();
    assert_eq!((found.compared, found.failed), (30, 30));
    let found = compare(&ran.stats, &expected.lse, &expected.lse_bound).unwrap();
    assert_eq!((found.compared, found.failed), (10, 10));
    for (n, buffer) in guest.buffers.iter().enumerate() {
        let guest = Guest::new(gpu(), &case, &Setup::default()).unwrap();
        gpu().queue().write_buffer(
            &guest.buffers[n],
            buffer.size() - 4,
            &[0xff, 0xff, 0xff, 0xfe],
        );
        assert!(
            guest.read().unwrap_err().contains("overwritten"),
            "buffer {n}"
        );
    }
}

/// NaN and infinities past the lengths, at masked keys, in the causal future,
/// under a -inf bias: bit for bit what ordinary numbers there give.
#[test]
fn what_no_row_sees_changes_no_bit() {
    let mut report = Report::new();
    let mut poisoned = 0;
    let features: [&[Feature]; 9] = [
        &[Feature::Causal, Feature::TopLeft],
        &[Feature::WindowBoth],
        &[Feature::KvLengths],
        &[Feature::QLengths, Feature::KvLengths],
        &[Feature::MaskBytes],
        &[Feature::MaskBits, Feature::Bias],
        &[Feature::BiasNegInf],
        &[Feature::Segments, Feature::Sinks],
        &[
            Feature::Causal,
            Feature::PerSequence,
            Feature::Bias,
            Feature::Softcap,
        ],
    ];
    for (seed, features) in features.into_iter().enumerate() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for (q_len, kv_len) in [(9, 40), (70, 131), (1, 70)] {
                let shape = Shape {
                    query: dtype,
                    key_value: dtype,
                    ..Shape::f32([3, 2, q_len, 17], 1, kv_len, 70)
                };
                let seed = (seed * 10 + q_len) as u64;
                let clean = generate(seed, shape, features);
                let mut bad = features.to_vec();
                bad.push(Feature::Poison);
                let bad = generate(seed, shape, &bad);
                poisoned += bad.poisoned;
                for kernel in kernels() {
                    let what = format!("{kernel:?}: {}", bad.name);
                    report.same_bits(&what, &run(&clean, kernel), &run(&bad, kernel));
                }
            }
        }
    }
    assert!(poisoned > 100_000, "{poisoned}");
    report.finish(500_000);
}

/// A query row of NaN gives NaN, and is its own affair.
#[test]
fn a_bad_query_row_stays_alone() {
    let mut report = Report::new();
    for features in [
        &[][..],
        &[Feature::Causal, Feature::Softcap],
        &[Feature::MaskBits],
    ] {
        let clean = generate(3, Shape::f32([1, 2, 70, 20], 1, 65, 9), features);
        let mut bad = clean.clone();
        for d in 0..20 {
            bad.query.set(33 * 20 + d, f32::NAN);
        }
        for kernel in kernels() {
            let (mut clean, mut bad) = (run(&clean, kernel), run(&bad, kernel));
            let row = &bad.output[33 * 9..34 * 9];
            let shows = row.iter().all(|o| o.is_nan()) && !bad.stats[33].is_finite();
            // exp2(NaN) is infinite on one adapter, and so is the LSE then.
            report.expect(shows, format!("{row:?} {}", bad.stats[33]));
            for ran in [&mut clean, &mut bad] {
                ran.output[33 * 9..34 * 9].fill(0.0);
                ran.stats[33] = 0.0;
            }
            report.same_bits(&format!("{kernel:?} {features:?}"), &clean, &bad);
        }
    }
    report.finish(3 * 2 * 140 * 10);
}

/// NaN and infinities in values reach the rows that see them, each in its column,
/// and no other: one among equal weights, and both infinities together.
#[test]
fn values_that_are_no_finite_numbers_reach_who_sees_them() {
    const PLANTS: [(usize, usize, f32); 6] = [
        (5, 0, f32::NAN),
        (40, 1, f32::INFINITY),
        (7, 2, f32::NEG_INFINITY),
        (3, 3, f32::INFINITY),
        (60, 3, f32::NEG_INFINITY),
        (64, 6, f32::NAN),
    ];
    let mut report = Report::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (dim, v_dim) in [(20, 12), (9, 7)] {
            let (q_len, kv_len) = (70, 65);
            let shape = Shape {
                query: dtype,
                key_value: dtype,
                ..Shape::f32([1, 1, q_len, dim], 1, kv_len, v_dim)
            };
            let mut open = generate(1, shape, &[]);
            open.query = Elements::new(&vec![0.0; q_len * dim], dtype);
            let mut value = vec![1.0; kv_len * v_dim];
            for (key, column, x) in PLANTS {
                value[key * v_dim + column] = x;
            }
            open.value = Elements::new(&value, dtype);
            // Every other row sees none of these keys.
            let mut masked = open.clone();
            let sees = |pair: usize| {
                let (row, key) = (pair / kv_len, pair % kv_len);
                row % 2 == 0 || PLANTS.iter().all(|plant| plant.0 != key)
            };
            masked.mask = Some(OwnedMask {
                data: MaskBits::Bytes((0..q_len * kv_len).map(|n| u8::from(sees(n))).collect()),
                shape: [1, 1, q_len, kv_len],
                polarity: Polarity::Keep,
            });
            for (case, all_see) in [(open, true), (masked, false)] {
                for kernel in kernels() {
                    let ran = run(&case, kernel);
                    for (n, &o) in ran.output.iter().enumerate() {
                        let (row, column) = (n / v_dim, n % v_dim);
                        let holds = match column {
                            _ if !all_see && row % 2 == 1 => (o - 1.0).abs() < 1e-5,
                            0 | 3 | 6 => o.is_nan(),
                            1 => o == f32::INFINITY,
                            2 => o == f32::NEG_INFINITY,
                            _ => (o - 1.0).abs() < 1e-5,
                        };
                        let what =
                            format!("{kernel:?} {dtype:?} {dim} {all_see} [{row}, {column}]");
                        report.expect(holds, format!("{what}: {o}"));
                    }
                }
            }
        }
    }
    report.finish(0);
}

/// 64 keys that row r does not see, and others do, among those that it sees:
/// the same bits as without them, wherever they stand.
#[test]
fn a_tile_of_excluded_keys_leaves_a_row_as_it_was() {
    let mut report = Report::new();
    const EXTRA: usize = 64;
    // Whole tiles, so that the keys that are left share tiles as before.
    for at in [0, 64, 128] {
        for softcap in [None, Some(3.0)] {
            let mut with = generate(
                at as u64,
                Shape::f32([1, 1, 7, 8], 1, 128 + EXTRA, 5),
                &[Feature::Peaked],
            );
            with.options.softcap = softcap;
            let sees = |row: usize, j: usize| row % 2 == 1 || !(at..at + EXTRA).contains(&j);
            let keys = 128 + EXTRA;
            let bytes = (0..7 * keys)
                .map(|n| u8::from(sees(n / keys, n % keys)))
                .collect();
            with.mask = Some(OwnedMask {
                data: MaskBits::Bytes(bytes),
                shape: [1, 1, 7, keys],
                polarity: Polarity::Keep,
            });
            let mut without = with.clone();
            without.mask = None;
            without.dims.kv_len = 128;
            let cut = |elements: &Elements, dim: usize| {
                let mut values = elements.to_f32();
                values.drain(at * dim..(at + EXTRA) * dim);
                Elements::new(&values, elements.dtype())
            };
            without.key = cut(&with.key, 8);
            without.value = cut(&with.value, 5);
            report.case(&with);
            for kernel in kernels() {
                let even = |ran: Ran| Ran {
                    output: ran.output.chunks(5).step_by(2).flatten().copied().collect(),
                    stats: ran.stats.iter().step_by(2).copied().collect(),
                };
                let (with, without) = (even(run(&with, kernel)), even(run(&without, kernel)));
                report.same_bits(&format!("{kernel:?} at {at} {softcap:?}"), &with, &without);
            }
        }
    }
    report.finish(3 * 2 * 2 * (42 + 24));
}

/// Every memory order, offset and storage type, in buffers of their own and in
/// one: the bits of the plain layout, holes and neighbours untouched.
#[test]
fn layouts_and_offsets_change_no_bit() {
    let mut report = Report::new();
    let dtypes = [DType::F32, DType::F16, DType::BF16];
    let mut number = 0;
    for layout in [
        Layout::HeadMajor,
        Layout::TokenMajor,
        Layout::Packed,
        Layout::Padded,
    ] {
        for dtype in dtypes {
            for shift in [0, 1, 3] {
                for one_buffer in [false, true] {
                    number += 1;
                    let out = dtypes[number % 3];
                    let shape = Shape {
                        query: dtype,
                        key_value: dtype,
                        out,
                        ..Shape::f32([2, 4, 35, 13], 2, 35, 13)
                    };
                    let features: &[Feature] = match number % 3 {
                        0 => &[Feature::Causal, Feature::Bias, Feature::Sinks],
                        1 => &[Feature::MaskBytes, Feature::KvLengths, Feature::Alibi],
                        _ => &[Feature::MaskBits, Feature::Segments, Feature::PerSequence],
                    };
                    let case = generate(number as u64, shape, features);
                    let setup = Setup {
                        layout,
                        shift,
                        one_buffer,
                        device_lists: number % 2 == 0,
                        ..Setup::default()
                    };
                    compare_layouts(&mut report, &case, &setup);
                }
            }
        }
    }
    report.finish(4 * 3 * 3 * 2 * 2 * 2 * 8 * 35 * 14);
}

fn compare_layouts(report: &mut Report, case: &OwnedCase, setup: &Setup) {
    report.case_with(case, setup);
    for kernel in kernels() {
        let setup = Setup {
            plan: PlanOptions::default().kernel(kernel),
            ..setup.clone()
        };
        let what = format!("{kernel:?} {setup:?} {}", case.name);
        let ran = run_as(case, &setup);
        if let Some(ran) = report.expect_ok(&what, ran) {
            report.same_bits(&what, &run(case, kernel), &ran);
        }
    }
}

/// Halves of odd rows share words with their neighbours; every column count,
/// with more than one workgroup a row.
#[test]
fn odd_rows_of_halves_spare_their_neighbours() {
    let mut report = Report::new();
    for out in [DType::F16, DType::BF16] {
        for v_dim in [1, 2, 3, 5, 31, 33, 63, 65, 67, 129] {
            for (layout, shift) in [
                (Layout::HeadMajor, 1),
                (Layout::TokenMajor, 0),
                (Layout::Padded, 1),
            ] {
                let shape = Shape {
                    out,
                    ..Shape::f32([2, 3, 66, 3], 1, 5, v_dim)
                };
                let setup = Setup {
                    layout,
                    shift,
                    ..Setup::default()
                };
                report.case_with(&generate(v_dim as u64, shape, &[Feature::QLengths]), &setup);
            }
        }
    }
    report.finish(2 * 10 * 3 * 2 * 6 * 66 * 2);
}

/// Key and value with strides of 0: one copy for all heads, or one key for all.
#[test]
fn expanded_keys_and_values() {
    let mut report = Report::new();
    for kv_len in [31, 32, 33, 65] {
        for layout in [Layout::Expanded, Layout::Repeated] {
            let mut case = generate(
                kv_len as u64,
                Shape::f32([2, 4, 9, 8], 2, kv_len, 6),
                &[Feature::Causal],
            );
            let first_row = |elements: &Elements, dim: usize| -> Elements {
                let period = if layout == Layout::Expanded {
                    kv_len * dim
                } else {
                    dim
                };
                let values = elements.to_f32();
                let repeated: Vec<f32> = (0..values.len()).map(|n| values[n % period]).collect();
                Elements::new(&repeated, elements.dtype())
            };
            case.key = first_row(&case.key, 8);
            case.value = first_row(&case.value, 6);
            let setup = Setup {
                layout,
                ..Setup::default()
            };
            compare_layouts(&mut report, &case, &setup);
        }
    }
    report.finish(4 * 2 * 2 * 2 * 8 * 9 * 7);
}

/// The switch is no decoration: with it the proven shaders are compiled anew.
#[test]
fn forced_checks_are_other_pipelines() {
    let case = generate(1, Shape::f32([1, 2, 5, 4], 1, 7, 3), &[]);
    for kernel in kernels() {
        let attention = Attention::new(gpu().device(), gpu().queue()).unwrap();
        let mut made = Vec::new();
        for force in [false, true] {
            let mut setup = forced(kernel);
            setup.plan = setup.plan.force_checks(force);
            Guest::new(&attention, &case, &setup).unwrap();
            made.push(attention.pipelines());
        }
        assert_eq!(made[1] > made[0], runs_unchecked(kernel), "{made:?}");
    }
    assert!(runs_unchecked(Kernel::Staged));
}
