//! Every family of kernels where scores are so large that f32 rounds away what they
//! differ by, and where they are infinite, against the oracle.

mod common;
#[path = "common/gpu.rs"]
mod gpu;
#[path = "common/large.rs"]
mod large;

use common::OwnedCase;
use gpu::guest::{Guest, Setup};
use gpu::{gpu, kernels, oracle};
use large::{Large, edges};
use wgpu_attention::reference::{self, compare};
use wgpu_attention::{PlanOptions, Region, Stage};

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
