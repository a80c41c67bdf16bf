//! The oracle where scores are so large that f32 rounds away what they differ by, and
//! where they are infinite: it lets every way of computing in f32 pass, and still
//! rejects faults that show.

mod common;
#[path = "common/large.rs"]
mod large;

use common::{Fault, Order, OwnedCase, Style, attention};
use large::{Large, edges};
use wgpu_attention::reference::{self, Comparison, Expected, compare};
use wgpu_attention::{Alignment, DType, Inputs, Options, Outputs, Tensor, cpu};

const STYLES: [Style; 4] = [
    Style {
        order: Order::Forward,
        tile: usize::MAX,
        folded: false,
        fused: true,
        sloppy: false,
    },
    Style {
        order: Order::Backward,
        tile: 4,
        folded: true,
        fused: false,
        sloppy: true,
    },
    Style {
        order: Order::Lanes(4),
        tile: 64,
        folded: true,
        fused: true,
        sloppy: true,
    },
    Style {
        order: Order::Pairs,
        tile: 8,
        folded: false,
        fused: false,
        sloppy: false,
    },
];

fn oracle(case: &OwnedCase) -> Expected {
    reference::forward(&case.inputs(), &case.options, DType::F32).unwrap()
}

fn judge(expected: &Expected, got: &Outputs) -> [Comparison; 2] {
    [
        compare(&got.output, &expected.output, &expected.output_bound).unwrap(),
        compare(&got.lse, &expected.lse, &expected.lse_bound).unwrap(),
    ]
}

fn on_cpu(case: &OwnedCase) -> Outputs {
    cpu::forward(&case.inputs(), &case.options).unwrap()
}

#[test]
fn two_keys_that_tie_beside_a_large_bias() {
    let (q, k, v) = ([1.0], [2.0, -0.7], [1.0, 0.0]);
    let bias = [-1e9; 2];
    let inputs = Inputs::new(
        Tensor::f32(&q, [1, 1, 1, 1]).unwrap(),
        Tensor::f32(&k, [1, 1, 2, 1]).unwrap(),
        Tensor::f32(&v, [1, 1, 2, 1]).unwrap(),
    )
    .bias(Tensor::f32(&bias, [1, 1, 1, 2]).unwrap());
    let options = Options::default().scale(1.0);
    let expected = reference::forward(&inputs, &options, DType::F32).unwrap();
    let at = |x: f32| {
        compare(&[x], &expected.output, &expected.output_bound)
            .unwrap()
            .passed()
    };
    // What f32 gives, and what the formula gives; nothing outside of the values.
    assert!(at(0.5) && at(0.937_026_6));
    assert!(!at(1.95) && !at(-0.01), "{expected:?}");
    let got = cpu::forward(&inputs, &options).unwrap();
    assert_eq!(got.output, [0.5]);
    assert!(judge(&expected, &got).iter().all(Comparison::passed));
}

#[test]
fn every_way_of_rounding_passes() {
    let (mut rows, mut compared) = (0, 0);
    for seed in 0..600 {
        let large = Large::ALL[seed as usize % Large::ALL.len()];
        let case = large.case(seed);
        let expected = oracle(&case);
        rows += expected.lse.len();
        let styles = STYLES.map(|style| attention(&case, style, Fault::None));
        for (n, got) in styles.iter().chain([&on_cpu(&case)]).enumerate() {
            for found in judge(&expected, got) {
                assert_eq!(found.failed, 0, "{} way {n}: {found}", case.name);
                assert_eq!(found.undetermined, 0, "{} way {n}", case.name);
                compared += found.compared;
            }
        }
    }
    println!("{rows} rows, {compared} compared");
    assert!(rows >= 18_000, "{rows}");
}

/// Of 20 cases, those in which a fault is rejected.
fn rejected(large: Large, fault: impl Fn(&OwnedCase) -> Outputs) -> usize {
    let count = |seed: u64| {
        let case = large.case(seed);
        let found = judge(&oracle(&case), &fault(&case));
        usize::from(found.iter().any(|f| f.failed > 0))
    };
    (1000..1020).map(count).sum()
}

#[test]
fn faults_that_show_are_rejected() {
    let planted = |fault| move |case: &OwnedCase| attention(case, STYLES[1], fault);
    let without_bias = |case: &OwnedCase| {
        let mut case = case.clone();
        case.bias = None;
        on_cpu(&case)
    };
    let keys_swapped = |case: &OwnedCase| {
        let (mut case, dim) = (case.clone(), case.dims.qk_dim);
        let keys = case.key.to_f32();
        for d in 0..dim {
            case.key.set(d, keys[dim + d]);
            case.key.set(dim + d, keys[d]);
        }
        on_cpu(&case)
    };
    let bias_shifted = |case: &OwnedCase| {
        let mut case = case.clone();
        let (bias, _) = case.bias.as_mut().unwrap();
        let mut values = bias.to_f32();
        values.rotate_left(1);
        for (n, b) in values.into_iter().enumerate() {
            bias.set(n, b);
        }
        on_cpu(&case)
    };
    let billion = Large::PartOfRows(-1_000_000_000);
    let myriad = Large::PartOfRows(-10_000);
    let rows_of_myriads = Large::WholeRows(-10_000);
    for large in [billion, myriad, Large::Huge(0), Large::Huge(1)] {
        // Where all pairs of all rows have the bias, its shift changes nothing.
        let least = if matches!(large, Large::PartOfRows(_)) {
            19
        } else {
            3
        };
        let found = rejected(large, bias_shifted);
        assert!(found >= least, "{large:?}: {found} bias shifted");
        assert_eq!(rejected(large, without_bias), 20, "{large:?} without bias");
    }
    assert_eq!(rejected(Large::WholeRows(-1_000_000_000), without_bias), 20);
    for large in [billion, myriad, rows_of_myriads] {
        for fault in [
            Fault::FirstKeyDropped,
            Fault::LastKeyDropped,
            Fault::RowShifted,
            Fault::ScaledTwice,
            Fault::BiasScaled,
        ] {
            let found = rejected(large, planted(fault));
            assert!(found >= 17, "{large:?} {fault:?}: {found}");
        }
        let found = rejected(large, keys_swapped);
        assert!(found >= 17, "{large:?} keys swapped: {found}");
    }
    // Near position 2^30 only what is far beyond the rounding of a score shows.
    let found = rejected(Large::Alibi, planted(Fault::AlibiScaled));
    assert!(found >= 19, "ALiBi: {found}");
    let found = rejected(Large::Alibi, |case| {
        let mut case = case.clone();
        case.options.alignment = Alignment::TopLeft;
        on_cpu(&case)
    });
    assert_eq!(found, 20, "ALiBi at other positions");
}

#[test]
fn infinite_scores_have_the_answer_of_ieee_754() {
    for edge in edges() {
        let (case, expected) = (&edge.case, oracle(&edge.case));
        let styles = STYLES.map(|style| attention(case, style, Fault::None));
        for (n, got) in styles.iter().chain([&on_cpu(case)]).enumerate() {
            for (found, determined) in judge(&expected, got).iter().zip(edge.determined) {
                assert_eq!(found.failed, 0, "{} way {n}: {found}", case.name);
                let undetermined = if determined {
                    0
                } else {
                    found.undetermined.max(1)
                };
                assert_eq!(found.undetermined, undetermined, "{}", case.name);
            }
        }
    }
}

#[test]
fn an_infinite_score_is_no_excuse_for_the_others() {
    // exp(-inf) = 0: what is left are keys 1 and 2 of scores 0 and ln 3.
    let (q, v) = ([1.0], [9.0, 4.0, 8.0]);
    let k = [f32::NEG_INFINITY, 0.0, 3f32.ln()];
    let inputs = Inputs::new(
        Tensor::f32(&q, [1, 1, 1, 1]).unwrap(),
        Tensor::f32(&k, [1, 1, 3, 1]).unwrap(),
        Tensor::f32(&v, [1, 1, 3, 1]).unwrap(),
    );
    let expected = reference::forward(&inputs, &Options::default(), DType::F32).unwrap();
    assert!(
        (expected.output[0] - 7.0).abs() < 1e-6 && expected.output_bound[0] < 1e-4,
        "{expected:?}"
    );
    assert!(
        (expected.lse[0] - 4f64.ln()).abs() < 1e-6 && expected.lse_bound[0] < 1e-5,
        "{expected:?}"
    );
    let stage = |stage| reference::stage(&inputs, &Options::default(), stage, 0..1, 0..1, 0..1);
    for found in [wgpu_attention::Stage::Raw, wgpu_attention::Stage::Masked] {
        let found = stage(found).unwrap();
        assert_eq!((found.values[0], found.bound[0]), (f64::NEG_INFINITY, 0.0));
    }
    let found = stage(wgpu_attention::Stage::Probabilities).unwrap();
    assert!(
        found.values[0] == 0.0 && found.bound[0] < 1e-30,
        "{found:?}"
    );
}
