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
    DType, Inspection, Pairs, PlanOptions, Quantity, Region, Rows, Stage, Stats,
    reference::RowExpected,
};

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
        for (name, got, values, bound) in [
            (
                "output",
                &ran.output,
                &expected.output,
                &expected.output_bound,
            ),
            ("lse", &ran.stats, &expected.lse, &expected.lse_bound),
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
            let found = compare(&ran.output, &expected.values, &expected.bound).unwrap();
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
                let found = compare(got, values, bound).unwrap();
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
        let changes: [(&str, &dyn Fn(&mut OwnedCase)); 6] = [
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
