//! Rows of many keys: right where a kernel is given them, refused where the driver
//! would end its loops too early.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use common::{Feature, OwnedCase, Shape, generate};
use gpu::guest::{Guest, Ran, Setup};
use gpu::{Report, gpu, kernels, oracle};
use wgpu_attention::{Alignment, DType, Kernel, PlanOptions, Polarity, Window, cpu};

/// More keys, or queries, than 16 bits with a sign count. A kernel whose loops
/// the driver would end early is refused, and another one chosen.
#[test]
fn sequences_past_32767() {
    let mut report = Report::new();
    let features: [&[Feature]; 6] = [
        &[],
        &[Feature::Causal, Feature::Alibi],
        &[Feature::MaskBits],
        &[Feature::MaskBytes],
        &[Feature::WindowBoth, Feature::Segments],
        &[Feature::Bias, Feature::KvLengths],
    ];
    for (n, features) in features.into_iter().enumerate() {
        let mut long = generate(n as u64, Shape::f32([1, 2, 3, 8], 1, 33_001, 4), features);
        if let Some(lengths) = &mut long.kv_lengths {
            lengths[0] = 32_999;
        }
        let expected = oracle(&long);
        let chosen = Setup::default();
        let setups = kernels().into_iter().map(forced).chain([chosen]);
        for setup in setups {
            let what = format!("{:?} {}", setup.plan, long.name);
            let limited = gpu().caps().max_loop_iterations.is_some();
            // Loops end too early for a trip a key and row, or a tile's steps.
            let is_long = match setup.plan.kernel {
                Some(Kernel::Tiled | Kernel::TiledSubgroup) => true,
                Some(Kernel::LaneBroadcast) => {
                    let by_pair = [Feature::MaskBytes, Feature::Bias];
                    features.iter().any(|feature| by_pair.contains(feature))
                }
                _ => false,
            };
            let refused = is_long && limited && long.options.window == Window::OPEN;
            match Guest::run(gpu(), &long, &setup) {
                Ok(ran) if !refused => report.judge(&what, &expected, &ran),
                Err(error) if refused => {
                    report.expect(error.contains("max_loop_iterations"), error)
                }
                other => report.expect(false, format!("{what}: {other:?}")),
            }
        }
        if n == 1 {
            report.case(&generate(
                n as u64,
                Shape::f32([1, 1, 70_001, 2], 1, 3, 2),
                features,
            ));
        }
    }
    report.finish(2 * 3 * 70_001);
}

/// The longest sequences that the planner still gives to each kernel are right:
/// llvmpipe ends an invocation's loops after 65,535 iterations.
#[test]
fn the_longest_rows_before_loops_end() {
    let mut report = Report::new();
    // A bias is looked at pair by pair, twice; bits of a mask beside it too.
    let all: &[Feature] = &[Feature::Bias, Feature::Segments, Feature::MaskBits];
    let every: &[Feature] = &[
        Feature::Bias,
        Feature::Segments,
        Feature::Softcap,
        Feature::Alibi,
        Feature::MaskBits,
    ];
    for (qk_dim, columns, features, kernel) in [
        (8, 4, all, Kernel::Tiled),
        // Loads of words, and every width of values with every kind of rule.
        (5, 65, &[Feature::Bias], Kernel::Tiled),
        (5, 65, every, Kernel::Tiled),
        (33, 127, every, Kernel::Tiled),
        (47, 33, every, Kernel::Tiled),
        (5, 65, every, Kernel::TiledSubgroup),
        (3, 19, every, Kernel::TiledSubgroup),
        (5, 65, every, Kernel::LaneBroadcast),
        (5, 65, every, Kernel::Staged),
        (130, 4, all, Kernel::Tiled),
        (8, 4, all, Kernel::LaneBroadcast),
        (128, 4, all, Kernel::LaneBroadcast),
        // Rules on pairs alone, on scores alone, none; there with values so wide
        // that theirs are most iterations.
        (
            8,
            4,
            &[Feature::Segments, Feature::MaskBytes],
            Kernel::LaneBroadcast,
        ),
        (8, 4, &[Feature::MaskBits], Kernel::LaneBroadcast),
        (8, 4, &[Feature::MaskBytes], Kernel::LaneBroadcast),
        (
            8,
            4,
            &[Feature::Softcap, Feature::Alibi],
            Kernel::LaneBroadcast,
        ),
        (8, 64, &[], Kernel::LaneBroadcast),
        (8, 4, all, Kernel::Staged),
    ] {
        if !kernels().contains(&kernel) {
            continue;
        }
        let case_of = |kv_len: usize| {
            let shape = Shape::f32([1, 1, 2, qk_dim], 1, kv_len, columns);
            let mut case = generate(1, shape, features);
            // What is not finite takes more iterations, seen or not: here the
            // last key of every 16, in the first column.
            let keys = kv_len;
            let mut value: Vec<f32> = (0..keys * columns).map(|n| (n % 7) as f32).collect();
            for j in (0..keys).filter(|j| j % 16 == 15) {
                value[j * columns] = f32::NAN;
            }
            case.value = common::Elements::new(&value, DType::F32);
            let data = match features {
                [Feature::MaskBytes] => Some((common::MaskBits::Bytes(vec![1; keys]), keys)),
                // A byte for all keys of a row takes a trip for each.
                [.., Feature::MaskBytes] => Some((common::MaskBits::Bytes(vec![1]), 1)),
                [.., Feature::MaskBits] => {
                    let bits = vec![0x7fff_7fff; keys.div_ceil(32)];
                    Some((common::MaskBits::Bits(bits), keys))
                }
                _ => None,
            };
            case.mask = data.map(|(data, keys)| common::OwnedMask {
                data,
                shape: [1, 1, 1, keys],
                polarity: Polarity::Keep,
            });
            case
        };
        let fits = |kv_len: usize| Guest::new(gpu(), &case_of(kv_len), &forced(kernel)).is_ok();
        // Bisection between what always fits and what never does.
        let (mut good, mut bad) = (1024, 65_536);
        if fits(bad) {
            good = bad;
        }
        while bad - good > 32 {
            let middle = (good + bad) / 2;
            if fits(middle) {
                good = middle
            } else {
                bad = middle
            }
        }
        println!("{kernel:?}, Dqk {qk_dim}, Dv {columns}, {features:?}: {good} keys");
        let case = case_of(good);
        let ran = Guest::run(gpu(), &case, &forced(kernel));
        if let Some(ran) = report.expect_ok(&case.name, ran) {
            judge_beside_cpu(
                &mut report,
                &format!("{kernel:?} {}", case.name),
                &case,
                &ran,
            );
        }
    }
    report.finish(2 * 3 * 18);
}

/// A run and the CPU path in f32, both against the oracle.
fn judge_beside_cpu(report: &mut Report, what: &str, case: &OwnedCase, ran: &Ran) {
    let expected = oracle(case);
    report.judge(what, &expected, ran);
    let outputs = cpu::forward(&case.inputs(), &case.options).unwrap();
    let on_cpu = Ran {
        output: outputs.output,
        stats: outputs.lse,
    };
    report.judge(&format!("CPU path: {what}"), &expected, &on_cpu);
}

/// A long row at odd widths with a bias, a few tiles beyond what the tiled kernel can:
/// whatever kernel is chosen or accepts it has to be right.
#[test]
fn a_row_that_ends_the_loops_of_some_kernels() {
    let mut report = Report::new();
    let bias: &[Feature] = &[Feature::Bias];
    for (kv_len, qk_dim, v_dim, features) in [
        (19_500, 5, 65, bias),
        (21_100, 5, 65, bias),
        (40_000, 5, 65, bias),
        // Next to nothing a tile but the loops themselves.
        (240_000, 4, 4, &[]),
    ] {
        let shape = Shape::f32([1, 1, 1, qk_dim], 1, kv_len, v_dim);
        let mut case = generate(1, shape, features);
        if features.is_empty() {
            // What is not finite takes more iterations.
            for j in (0..kv_len).step_by(16) {
                case.value.set(j * v_dim, f32::INFINITY);
            }
        }
        let chosen = Setup::default();
        for setup in kernels().into_iter().map(forced).chain([chosen]) {
            let what = format!("{:?} {}", setup.plan.kernel, case.name);
            match Guest::run(gpu(), &case, &setup) {
                Ok(ran) => judge_beside_cpu(&mut report, &what, &case, &ran),
                Err(error) => {
                    let is_limit = error.contains("max_loop_iterations");
                    // The staged kernel takes the shorter two on every adapter.
                    let may = setup.plan.kernel.is_some() || kv_len > 21_100;
                    report.expect(is_limit && may, format!("{what}: {error}"));
                }
            }
        }
    }
    report.finish(2 * 66 * 4);
}

/// What a window hides takes no iterations: one query at the end of more keys than an
/// invocation has iterations, whatever the lengths in a buffer are.
#[test]
fn a_window_on_the_left_of_many_keys() {
    let mut report = Report::new();
    for q_len in [1, 70] {
        for features in [&[][..], &[Feature::KvLengths], &[Feature::Bias]] {
            let shape = Shape::f32([1, 1, q_len, 8], 1, 65_537, 5);
            let mut case = generate(1, shape, features);
            case.options = case.options.window(Window {
                left: Some(100),
                right: None,
            });
            assert_eq!(case.options.alignment, Alignment::BottomRight);
            if let Some(lengths) = &mut case.kv_lengths {
                lengths[0] = 65_500;
            }
            let setup = Setup {
                device_lists: true,
                ..Setup::default()
            };
            report.case_with(&case, &setup);
        }
    }
    report.finish(3 * 71 * 6 * 2);
}

fn forced(kernel: Kernel) -> Setup {
    Setup {
        plan: PlanOptions::default().kernel(kernel),
        ..Setup::default()
    }
}
