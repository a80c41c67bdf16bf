//! Every family of kernels where scores are so large that f32 rounds away what they
//! differ by, and where they are infinite, against the oracle.

mod common;
#[path = "common/gpu.rs"]
mod gpu;
#[path = "common/large.rs"]
mod large;

use common::{Elements, OwnedCase, Shape, generate};
use gpu::guest::{Guest, Setup};
use gpu::{gpu, kernels, oracle};
use large::{Large, edges};
use wgpu_attention::reference::{self, compare};
use wgpu_attention::{
    DType, HostLinear, Inspection, MultiHeadInputs, Options, Pairs, PlanOptions, Quantity, Region,
    Rows, Stage, Stats, Tensor, reference::RowExpected,
};

/// Bounds without those of NaN. WGSL lets an adapter assume that there is none, and
/// beside a NaN SwiftShader has weights of 0 and a log-sum-exp of +inf. The output has to
/// be NaN everywhere.
fn where_no_nan(values: &[f64], bound: &[f64]) -> Vec<f64> {
    let pairs = values.iter().zip(bound);
    let open = |(value, bound): (&f64, &f64)| {
        if value.is_nan() {
            f64::INFINITY
        } else {
            *bound
        }
    };
    pairs.map(open).collect()
}

/// What is wrong with output and lse of every family; counts what was compared.
fn families(case: &OwnedCase, wrong: &mut Vec<String>) -> usize {
    let expected = oracle(case);
    let mut compared = 0;
    for kernel in kernels() {
        let setup = Setup {
            plan: PlanOptions::default().kernel(kernel),
            ..Setup::default()
        };
        let ran = Guest::run(gpu(), case, &setup).unwrap();
        let lse_bound = where_no_nan(&expected.lse, &expected.lse_bound);
        let nan = |(lse, bound): (&f64, &f64)| lse.is_nan() && bound.is_finite();
        let expects_nan = expected.lse.iter().zip(&expected.lse_bound).map(nan);
        for (lse, _) in ran.stats.iter().zip(expects_nan).filter(|(_, nan)| *nan) {
            if lse.is_finite() {
                wrong.push(format!("{kernel:?} {}: lse: {lse}", case.name));
            }
        }
        for (name, got, values, bound) in [
            (
                "output",
                &ran.output,
                &expected.output,
                &expected.output_bound,
            ),
            ("lse", &ran.stats, &expected.lse, &lse_bound),
        ] {
            let found = compare(got, values, bound).unwrap();
            compared += found.compared;
            if found.failed > 0 {
                wrong.push(format!("{kernel:?} {}: {name}: {found}", case.name));
            }
        }
    }
    compared
}

#[track_caller]
fn finish(compared: usize, least: usize, wrong: &[String]) {
    println!("{compared} compared");
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(compared >= least, "{compared}");
}

#[test]
fn large_scores() {
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for seed in 0..3 * Large::ALL.len() as u64 {
        let large = Large::ALL[seed as usize % Large::ALL.len()];
        compared += families(&large.case(seed), &mut wrong);
    }
    finish(compared, 33 * 36 * 4 * 2, &wrong);
}

#[test]
fn infinite_scores() {
    let (mut wrong, mut compared) = (Vec::new(), 0);
    let mut least = 0;
    for edge in edges() {
        compared += families(&edge.case, &mut wrong);
        let [output, lse] = edge.determined.map(usize::from);
        let lse = if oracle(&edge.case).lse[0].is_nan() {
            0
        } else {
            lse
        };
        least += kernels().len() * (2 * output + lse);
    }
    finish(compared, least, &wrong);
}

#[test]
fn stages_of_large_and_infinite_scores() {
    let (mut wrong, mut compared) = (Vec::new(), 0);
    let large = (0..11).map(|n| Large::ALL[n].case(n as u64));
    for case in large.chain(edges().into_iter().map(|edge| edge.case)) {
        let rows = case.dims.q_len;
        let (batches, heads) = (0..1, 0..case.dims.q_heads);
        for stage in Stage::ALL {
            let (inputs, options) = (case.inputs(), &case.options);
            let region = Region {
                batches: batches.clone(),
                heads: heads.clone(),
                rows: 0..rows,
            };
            let expected =
                reference::stage(&inputs, options, stage, 0..1, heads.clone(), 0..rows).unwrap();
            let setup = Setup {
                stage: Some((stage, region)),
                ..Setup::default()
            };
            let ran = Guest::run(gpu(), &case, &setup).unwrap();
            let bound = match stage {
                Stage::Probabilities => where_no_nan(&expected.values, &expected.bound),
                _ => expected.bound,
            };
            let found = compare(&ran.output, &expected.values, &bound).unwrap();
            compared += found.compared;
            if found.failed > 0 {
                wrong.push(format!("{stage:?} {}: {found}", case.name));
            }
        }
    }
    finish(compared, 11 * 36 * 4 * 2, &wrong);
}

/// Weights, row summaries and mass of keys. The sum of the contributions is left out: it
/// needs the norms as the device rounds them.
#[test]
fn inspection_of_large_and_infinite_scores() {
    const CONTRIBUTIONS: usize = 3;
    let (mut wrong, mut compared) = (Vec::new(), 0);
    let large = (0..22).map(|n| Large::ALL[n % 11].case(n as u64));
    for case in large.chain(edges().into_iter().map(|edge| edge.case)) {
        let (inputs, options) = (case.inputs(), &case.options);
        let region = Region {
            batches: 0..1,
            heads: 0..case.dims.q_heads,
            rows: 0..case.dims.q_len,
        };
        let pairs = Pairs {
            quantity: Quantity::Stage(Stage::Probabilities),
            region: region.clone(),
            keys: 0..case.dims.kv_len,
        };
        let rows = Rows {
            region: region.clone(),
            top: 3,
            first_keys: 1,
        };
        let stats = Stats::RowState;
        let weights = reference::pairs(&inputs, options, stats, None, &pairs, DType::F32).unwrap();
        let received = reference::received(&inputs, options, stats, &region).unwrap();
        let summaries = reference::rows(&inputs, options, stats, None, &rows).unwrap();
        for kernel in kernels() {
            let inspection = Inspection {
                plan: PlanOptions::default().kernel(kernel),
                ..Inspection::default()
            };
            // Not every family inspects.
            let Ok(seen) = gpu().upload_inspection(&inputs, options, &inspection) else {
                continue;
            };
            let Ok(got) = seen.pairs(&pairs) else {
                continue;
            };
            let mut judge = |name: &str, got: &[f32], values: &[f64], bound: &[f64]| {
                let bound = where_no_nan(values, bound);
                let found = compare(got, values, &bound).unwrap();
                compared += found.compared;
                if found.failed > 0 {
                    wrong.push(format!("{kernel:?} {}: {name}: {found}", case.name));
                }
            };
            judge("weights", &got, &weights.values, &weights.bound);
            let got = seen.received(&region).unwrap();
            judge("received", &got, &received.values, &received.bound);
            for (got, expected) in seen.rows(&rows).unwrap().iter().zip(&summaries) {
                let mut numbers = RowExpected::numbers(got);
                numbers[CONTRIBUTIONS] = 0.0;
                judge("row", &numbers, &expected.values, &expected.bound);
            }
        }
    }
    finish(compared, 22 * 36 * 24, &wrong);
}

/// Every scalar option at the ends of f32: subnormal, the smallest and the largest.
#[test]
fn scalars_at_the_ends_of_f32() {
    const ENDS: [f32; 9] = [
        1e-45,
        1e-40,
        f32::MIN_POSITIVE,
        1e-30,
        1e30,
        8e37,
        2e38,
        3e38,
        f32::MAX,
    ];
    let (mut wrong, mut compared, mut least) = (Vec::new(), 0, 0);
    for (seed, end) in ENDS.into_iter().flat_map(|end| [end, -end]).enumerate() {
        let shape = Shape::f32([1, 2, 5, 8], 1, 9, 3);
        let plain = generate(seed as u64, shape, &[]);
        type Change<'a> = (&'a str, &'a dyn Fn(&mut OwnedCase));
        let changes: [Change; 6] = [
            ("scale", &|case| case.options.scale = Some(end)),
            ("softcap", &|case| case.options.softcap = Some(end)),
            ("slope", &|case| case.alibi_slopes = Some(vec![end, 0.5])),
            ("sink", &|case| case.sinks = Some(vec![end, 0.5])),
            ("bias", &|case| {
                let bias: Vec<f32> = (0..45)
                    .map(|n| if n % 2 == 0 { end } else { 0.5 })
                    .collect();
                case.bias = Some((Elements::new(&bias, DType::F32), [1, 1, 5, 9]));
            }),
            ("query", &|case| {
                for n in 0..case.query.len() {
                    let q = case.query.data().get(n);
                    case.query.set(n, q.signum() * end);
                }
            }),
        ];
        for (name, change) in changes {
            let mut case = plain.clone();
            change(&mut case);
            case.name = format!("{name} {end:e}");
            let in_range = (f32::MIN_POSITIVE..=1.0 / f32::MIN_POSITIVE).contains(&end);
            if name == "softcap" && !in_range {
                assert!(
                    case.inputs().validate(&case.options).is_err(),
                    "{}",
                    case.name
                );
                continue;
            }
            compared += families(&case, &mut wrong);
            // Where nothing overflows everything is determined.
            least += if end.abs() < 1.0 {
                kernels().len() * 40
            } else {
                0
            };
        }
    }
    finish(compared, least, &wrong);
}

/// A layer whose scores a bias makes large, or a query infinite.
#[test]
fn layers_of_large_scores() {
    let (mut wrong, mut compared) = (Vec::new(), 0);
    let (rows, width) = (12, 8);
    let numbers = |seed: u64, count: usize| -> Vec<f32> {
        let shape = Shape::f32([1, 1, 1, count], 1, 1, 1);
        generate(seed, shape, &[]).query.to_f32()
    };
    for (seed, amount) in [-1e4f32, -1e6, -1e9, -3e38].into_iter().enumerate() {
        let input = numbers(seed as u64, rows * width);
        let weights = [1, 2, 3, 4].map(|n| numbers(10 * n + seed as u64, width * width));
        let bias: Vec<f32> = (0..rows * rows)
            .map(|n| if n % 3 == 0 && n < 60 { 0.5 } else { amount })
            .collect();
        let projections = std::array::from_fn(|n| HostLinear {
            weight: Tensor::f32(&weights[n], [1, 1, width, width]).unwrap(),
            bias: None,
        });
        let input = Tensor::f32(&input, [1, 1, rows, width]).unwrap();
        let bias = Tensor::f32(&bias, [1, 1, rows, rows]).unwrap();
        let layer =
            MultiHeadInputs::new(input, 2, projections).attention(|inputs| inputs.bias(bias));
        let options = Options::default();
        let expected = reference::multi_head(&layer, &options, DType::F32).unwrap();
        let got = gpu().multi_head(&layer, &options).unwrap();
        let found = compare(&got, &expected.values, &expected.bound).unwrap();
        compared += found.compared;
        if found.failed > 0 {
            wrong.push(format!("{amount}: {found}"));
        }
        // What the values span bounds the result: a bound beyond says nothing.
        let largest = expected.bound.iter().fold(0f64, |most, b| most.max(*b));
        assert!(largest < 300.0, "{amount}: {largest}");
    }
    finish(compared, 4 * rows * width, &wrong);
}
