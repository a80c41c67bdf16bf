//! What can be looked at on the way: the four stages of a region, and row states.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use common::{Elements, Feature, OwnedCase, Shape, generate, random_case};
use gpu::guest::{Guest, Ran, Setup};
use gpu::{Report, gpu, kernels};
use wgpu_attention::reference::{self, compare};
use wgpu_attention::{Attention, DType, PlanOptions, Region, Stage, Stats};

fn whole(case: &OwnedCase) -> Region {
    Region {
        batches: 0..case.dims.batch,
        heads: 0..case.dims.q_heads,
        rows: 0..case.dims.q_len,
    }
}

/// Four stages of a region against the oracle.
fn stages(report: &mut Report, gpu: &Attention, case: &OwnedCase, region: &Region, setup: &Setup) {
    for stage in Stage::ALL {
        let setup = Setup {
            stage: Some((stage, region.clone())),
            ..setup.clone()
        };
        let what = format!("{} {setup:?}", case.name);
        let Region {
            batches,
            heads,
            rows,
        } = region.clone();
        let (inputs, options) = (case.inputs(), &case.options);
        let expected = reference::stage(&inputs, options, stage, batches, heads, rows).unwrap();
        let ran = Guest::run(gpu, case, &setup);
        let Some(ran) = report.expect_ok(&what, ran) else {
            continue;
        };
        let found = compare(&ran.output, &expected.values, &expected.bound);
        // The first two stages show excluded keys too, whatever these hold.
        let open = found.as_ref().map_or(0, |found| found.undetermined);
        let open = if case.poisoned > 0 { open } else { 0 };
        report.record(&what, "stage", expected.values.len() - open, found);
    }
}

#[test]
fn stages_of_random_cases() {
    let mut report = Report::new();
    for seed in 0..30 {
        let case = random_case(seed);
        let setup = Setup {
            device_lists: seed % 2 == 0,
            one_buffer: seed % 3 == 0,
            shift: seed as usize % 2,
            ..Setup::default()
        };
        stages(&mut report, gpu(), &case, &whole(&case), &setup);
    }
    report.finish(1_000_000);
}

#[test]
fn stages_of_regions() {
    let mut report = Report::new();
    let features: [&[Feature]; 4] = [
        &[Feature::Causal, Feature::Softcap, Feature::Bias],
        &[
            Feature::MaskBits,
            Feature::Alibi,
            Feature::QLengths,
            Feature::KvLengths,
        ],
        &[Feature::MaskBytes, Feature::Segments, Feature::Sinks],
        &[
            Feature::BiasNegInf,
            Feature::PerSequence,
            Feature::WindowBoth,
        ],
    ];
    for (seed, features) in features.into_iter().enumerate() {
        let case = generate(seed as u64, Shape::f32([3, 6, 130, 9], 2, 70, 4), features);
        for (batches, heads, rows) in [
            (1..2, 4..6, 3..130),
            (2..3, 1..2, 65..66),
            (0..3, 0..6, 129..130),
            (1..3, 2..5, 60..70),
            (0..0, 0..6, 0..130),
            (0..3, 2..2, 5..6),
            (0..3, 0..6, 7..7),
        ] {
            let region = Region {
                batches,
                heads,
                rows,
            };
            stages(&mut report, gpu(), &case, &region, &Setup::default());
        }
        let small = gpu::limited(|limits| {
            limits.max_storage_buffer_binding_size = 20_000;
            limits.min_storage_buffer_offset_alignment = 256;
        });
        let region = Region {
            batches: 1..3,
            heads: 1..6,
            rows: 5..130,
        };
        stages(&mut report, &small, &case, &region, &Setup::default());
    }
    report.finish(4 * 4 * 70 * (2 * 127 + 2 * 5 * 125));
}

/// No keys: a region's stage has no elements.
#[test]
fn stages_without_keys() {
    let mut report = Report::new();
    let case = generate(1, Shape::f32([1, 1, 3, 4], 1, 0, 4), &[]);
    stages(&mut report, gpu(), &case, &whole(&case), &Setup::default());
    report.finish(0);
}

/// Probabilities of a row sum to 1, with a sink to 1 - exp(sink - lse), to 0
/// where no key is visible. Excluded ones are 0, not -0.
#[test]
fn probabilities_sum_to_one() {
    let mut report = Report::new();
    for features in [&[Feature::Causal][..], &[Feature::Sinks, Feature::MaskBits]] {
        let case = generate(4, Shape::f32([2, 4, 40, 8], 2, 33, 8), features);
        let setup = Setup {
            stage: Some((Stage::Probabilities, whole(&case))),
            ..Setup::default()
        };
        let ran = Guest::run(gpu(), &case, &setup).unwrap();
        let lse = gpu::oracle(&case).lse;
        for (row, weights) in ran.output.chunks(33).enumerate() {
            let sum: f64 = weights.iter().map(|&w| f64::from(w)).sum();
            let sink = case
                .sinks
                .as_ref()
                .map(|sinks| f64::from(sinks[row / 40 % 4]));
            let sees = weights.iter().any(|&w| w > 0.0);
            let negative = weights.iter().any(|w| w.is_sign_negative());
            report.expect(!negative, format!("row {row}: {weights:?}"));
            let expected = match sink {
                _ if !sees => 0.0,
                Some(sink) => 1.0 - (sink - lse[row]).exp(),
                None => 1.0,
            };
            report.expect(
                (sum - expected).abs() < 1e-5,
                format!("row {row}: {sum} {expected}"),
            );
        }
    }
    report.finish(0);
}

fn row_states(case: &OwnedCase, plan: PlanOptions) -> Result<Ran, String> {
    let setup = Setup {
        plan,
        stats: Some(Stats::RowState),
        ..Setup::default()
    };
    Guest::run(gpu(), case, &setup)
}

/// The pair is (maximum, log of the sum relative to it): their sum, taken in
/// f64, is LSE; the log of the sum alone is -ln of the largest probability.
#[test]
fn row_states_of_random_cases() {
    let mut report = Report::new();
    let mut cases: Vec<OwnedCase> = (500..530).map(random_case).collect();
    // Beside such a maximum one f32 has no room for ln n.
    for dtype in [DType::F32, DType::BF16] {
        let mut case = generate(1, Shape::f32([1, 2, 9, 8], 1, 65, 4), &[]);
        let lowest = if dtype == DType::F32 {
            f32::MIN
        } else {
            half::bf16::MIN.to_f32()
        };
        case.bias = Some((Elements::new(&[lowest], dtype), [1, 1, 1, 1]));
        case.name = format!("lowest {dtype:?} bias");
        cases.push(case);
    }
    for case in &cases {
        let expected = gpu::oracle(case);
        let dims = case.dims;
        let probabilities = reference::stage(
            &case.inputs(),
            &case.options,
            Stage::Probabilities,
            0..dims.batch,
            0..dims.q_heads,
            0..dims.q_len,
        )
        .unwrap();
        for kernel in kernels() {
            let what = format!("{kernel:?}: {}", case.name);
            let ran = row_states(case, PlanOptions::default().kernel(kernel));
            let Some(ran) = report.expect_ok(&what, ran) else {
                continue;
            };
            let rows = expected.lse.iter().zip(&expected.lse_bound);
            for (row, (state, (&lse, &bound))) in ran.stats.chunks(2).zip(rows).enumerate() {
                let (maximum, log_sum) = (f64::from(state[0]), f64::from(state[1]));
                if lse == f64::NEG_INFINITY {
                    let empty = maximum == lse && log_sum == 0.0;
                    report.expect(empty, format!("{what}: row {row}: {state:?}"));
                    continue;
                }
                let error = (maximum + log_sum - lse).abs();
                let text = format!("{what}: row {row}: {state:?}, {lse}, {bound}");
                report.expect(error <= bound, text);
                // The sink may be the maximum.
                let keys = row * dims.kv_len..(row + 1) * dims.kv_len;
                let sink = case
                    .sinks
                    .as_ref()
                    .map(|s| f64::from(s[row / dims.q_len % dims.q_heads]));
                let sink = sink.map_or(0.0, |sink| (sink - lse).exp());
                let largest = keys
                    .map(|key| (probabilities.values[key], probabilities.bound[key]))
                    .fold((sink, 1e-6), |a, b| if b.0 > a.0 { b } else { a });
                let allowed = largest.1 / largest.0 + bound.min(1e-4) + 1e-6;
                let error = (log_sum + largest.0.ln()).abs();
                let text = format!("{what}: row {row}: {state:?}, {largest:?}, {error:e}");
                report.expect(error <= allowed, text);
            }
        }
    }
    report.finish(0);
}

/// Rows whose bias is the lowest finite number are ordinary rows: they average V.
#[test]
fn rows_of_the_lowest_bias_average_the_values() {
    let mut report = Report::new();
    let mut case = generate(1, Shape::f32([1, 1, 70, 8], 1, 33, 4), &[]);
    case.bias = Some((Elements::new(&[-3.402_823_5e38], DType::F32), [1, 1, 1, 1]));
    report.case(&case);
    let values = case.value.to_f32();
    for kernel in kernels() {
        let ran = row_states(&case, PlanOptions::default().kernel(kernel)).unwrap();
        for row in ran.output.chunks(4) {
            for (column, &got) in row.iter().enumerate() {
                let of_column = values.iter().skip(column).step_by(4);
                let mean = of_column.map(|&v| f64::from(v)).sum::<f64>() / 33.0;
                report.expect(
                    (f64::from(got) - mean).abs() < 1e-6,
                    format!("{got} {mean}"),
                );
            }
        }
        for state in ran.stats.chunks(2) {
            let right = state[0] == f32::MIN && (state[1] - 33f32.ln()).abs() < 1e-6;
            report.expect(right, format!("{state:?}"));
        }
    }
    report.finish(2 * 70 * 5);
}
