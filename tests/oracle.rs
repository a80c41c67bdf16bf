//! Tests of the checkers: what the comparators and the oracle's bounds let
//! pass, and what they reject.

mod common;

use common::{
    Elements, Fault, Feature, Order, OwnedCase, Shape, Style, attention, cases, generate, stored,
};
use wgpu_attention::reference::{self, Comparison, Expected, compare, compare_abs, compare_lse};
use wgpu_attention::{DType, Error, Outputs, Window};

const STYLES: [Style; 5] = [
    Style {
        order: Order::Forward,
        tile: usize::MAX,
        folded: false,
        fused: true,
        sloppy: false,
    },
    Style {
        order: Order::Forward,
        tile: 16,
        folded: true,
        fused: false,
        sloppy: true,
    },
    Style {
        order: Order::Backward,
        tile: 4,
        folded: false,
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
        tile: 32,
        folded: false,
        fused: true,
        sloppy: false,
    },
];

/// Output and lse against the oracle.
fn judge(case: &OwnedCase, expected: &Expected, got: &Outputs) -> [Comparison; 2] {
    let output = stored(&got.output, case.out);
    [
        compare(&output, &expected.output, &expected.output_bound).unwrap(),
        compare(&got.lse, &expected.lse, &expected.lse_bound).unwrap(),
    ]
}

fn oracle(case: &OwnedCase) -> Expected {
    reference::forward(&case.inputs(), &case.options, case.out).unwrap()
}

#[test]
fn bounds_let_every_legitimate_order_pass() {
    // Largest ratio of output in f32, output in halves, lse.
    let (mut compared, mut worst) = (0, [0f64; 3]);
    for case in cases(40) {
        let expected = oracle(&case);
        for style in STYLES {
            let found = judge(&case, &expected, &attention(&case, style, Fault::None));
            let kinds = [usize::from(case.out != DType::F32), 2];
            for (comparison, kind) in found.iter().zip(kinds) {
                assert!(
                    comparison.passed(),
                    "{}: {style:?}: {comparison}",
                    case.name
                );
                assert_eq!(comparison.undetermined, 0, "{}", case.name);
                compared += comparison.compared;
                worst[kind] = worst[kind].max(comparison.worst.unwrap().ratio);
            }
        }
    }
    println!("{compared} compared, largest ratios (f32, halves, lse): {worst:.3?}");
    assert!(compared > 1_000_000, "{compared}");
    // A bound that nothing comes near would hide mistakes.
    assert!(worst.iter().all(|&w| w > 0.1), "{worst:?}");
}

#[test]
fn bounds_let_structured_data_pass() {
    // Where roundings do not cancel: constants that f32 does not hold, values
    // that alternate, scores that rise from key to key.
    let n = 1500;
    let pattern = |f: &dyn Fn(usize) -> f32, dim: usize| -> Vec<f32> {
        (0..n).flat_map(|j| vec![f(j); dim]).collect()
    };
    let alternating = |j: usize| if j.is_multiple_of(2) { 0.1 } else { -0.1 };
    let wave = |j: usize| (j as f32 * 0.7).sin();
    let keys: [&dyn Fn(usize) -> f32; 4] = [&|_| 0.0, &|_| 0.1, &|j| j as f32 * 1e-3, &wave];
    let values: [&dyn Fn(usize) -> f32; 4] = [&|_| 0.1, &alternating, &|j| j as f32 * 0.1, &wave];
    let mut worst = 0f64;
    for key in keys {
        for value in values {
            let mut case = generate(1, Shape::f32([1, 1, 2, 3], 1, n, 2), &[]);
            case.query = Elements::new(&[0.7; 6], DType::F32);
            case.key = Elements::new(&pattern(key, 3), DType::F32);
            case.value = Elements::new(&pattern(value, 2), DType::F32);
            // One key stands out a little, so that the other weights are not 1.
            case.key.set(0, 0.3);
            let expected = oracle(&case);
            for style in STYLES {
                let found = judge(&case, &expected, &attention(&case, style, Fault::None));
                assert!(found.iter().all(Comparison::passed), "{style:?}: {found:?}");
                worst = found
                    .iter()
                    .fold(worst, |w, f| w.max(f.worst.unwrap().ratio));
            }
        }
    }
    println!("largest ratio: {worst:.3}");
}

/// The features on which a fault shows.
fn features_for(fault: Fault) -> &'static [Feature] {
    use Feature::*;
    match fault {
        Fault::CausalHidesDiagonal | Fault::CausalLeaks => &[Causal],
        Fault::WindowNarrow | Fault::WindowWide => &[WindowBoth],
        Fault::OffsetIgnored => &[Causal, PerSequence],
        Fault::LengthIgnored => &[KvLengths],
        Fault::SegmentsIgnored => &[Segments],
        Fault::MaskFlipped => &[MaskBits],
        Fault::SoftcapMissing | Fault::SoftcapCoarse => &[Softcap],
        Fault::SoftcapAfterBias => &[Softcap, Bias],
        Fault::BiasScaled => &[Bias],
        Fault::AlibiSigned | Fault::AlibiScaled => &[Alibi],
        Fault::SinkMissing | Fault::SinkTwice | Fault::SinkScaled | Fault::LseWithoutSink => {
            &[Sinks]
        }
        Fault::EmptyRowAverages => &[QLengths],
        _ => &[],
    }
}

const FAULTS: [Fault; 30] = [
    Fault::CausalHidesDiagonal,
    Fault::CausalLeaks,
    Fault::WindowNarrow,
    Fault::WindowWide,
    Fault::OffsetIgnored,
    Fault::FirstKeyDropped,
    Fault::LastKeyDropped,
    Fault::LengthIgnored,
    Fault::SegmentsIgnored,
    Fault::MaskFlipped,
    Fault::HeadsSwapped,
    Fault::HeadsModulo,
    Fault::RowShifted,
    Fault::Unscaled,
    Fault::ScaledTwice,
    Fault::SoftcapMissing,
    Fault::SoftcapAfterBias,
    Fault::SoftcapCoarse,
    Fault::BiasScaled,
    Fault::AlibiSigned,
    Fault::AlibiScaled,
    Fault::SinkMissing,
    Fault::SinkTwice,
    Fault::SinkScaled,
    Fault::LseWithoutSink,
    Fault::LseBase2,
    Fault::EmptyRowAverages,
    Fault::HalfDot,
    Fault::HalfSum,
    Fault::HalfWeights,
];

#[test]
fn bounds_reject_every_planted_fault() {
    // The second style errs as much as WGSL permits: a fault may not hide in that.
    let style = STYLES[1];
    let mut undetected = Vec::new();
    for (seed, fault) in FAULTS.into_iter().enumerate() {
        // Storage in f32, and f16 inputs with an f32 output.
        for (qk_dim, kv_len, dtype) in [(32, 65, DType::F32), (128, 257, DType::F16)] {
            let shape = Shape {
                query: dtype,
                key_value: dtype,
                ..Shape::f32([2, 4, 13, qk_dim], 2, kv_len, 16)
            };
            let mut case = generate(300 + seed as u64, shape, features_for(fault));
            if features_for(fault) == [Feature::WindowBoth] {
                case.options.window = Window::around(3, 2);
            }
            if fault == Fault::SoftcapCoarse {
                case.options.softcap = Some(30.0);
            }
            let expected = oracle(&case);
            let honest = judge(&case, &expected, &attention(&case, style, Fault::None));
            assert!(honest.iter().all(Comparison::passed), "{}", case.name);
            let found = judge(&case, &expected, &attention(&case, style, fault));
            println!(
                "{fault:?} at {kv_len} keys: output {}; lse {}",
                found[0], found[1]
            );
            if found.iter().all(|f| f.failed == 0) {
                undetected.push((fault, kv_len));
            }
        }
    }
    assert!(undetected.is_empty(), "not rejected: {undetected:?}");
}

#[test]
fn half_storage_does_not_excuse_faults() {
    for out in [DType::F16, DType::BF16] {
        for fault in [
            Fault::CausalLeaks,
            Fault::CausalHidesDiagonal,
            Fault::HeadsSwapped,
            Fault::LastKeyDropped,
            Fault::Unscaled,
        ] {
            let shape = Shape {
                query: out,
                key_value: out,
                out,
                ..Shape::f32([1, 4, 33, 64], 2, 65, 64)
            };
            let case = generate(7, shape, &[Feature::Causal]);
            let found = judge(&case, &oracle(&case), &attention(&case, STYLES[0], fault));
            assert!(found[0].failed > 0, "{fault:?} {out:?}: {}", found[0]);
        }
    }
}

#[test]
fn accumulation_over_many_keys_stays_accountable() {
    // 4096 keys: one tile of 32 left out has to show.
    let mut case = generate(3, Shape::f32([1, 1, 2, 64], 1, 4096, 64), &[]);
    let expected = oracle(&case);
    let style = Style {
        tile: 32,
        ..STYLES[1]
    };
    let found = judge(&case, &expected, &attention(&case, style, Fault::None));
    assert!(
        found.iter().all(Comparison::passed),
        "{} {}",
        found[0],
        found[1]
    );
    println!("4096 keys: output {}; lse {}", found[0], found[1]);
    case.kv_lengths = Some(vec![4096 - 32]);
    case.options.alignment = wgpu_attention::Alignment::TopLeft;
    let found = judge(&case, &expected, &attention(&case, style, Fault::None));
    println!("a tile less: output {}; lse {}", found[0], found[1]);
    assert!(found[0].failed > 100, "{}", found[0]);
    assert!(found[1].failed > 0, "{}", found[1]);
}

/// Expectations around 1 with bounds of 1e-6, and results that meet them.
fn sample() -> (Vec<f32>, Vec<f64>, Vec<f64>) {
    let expected: Vec<f64> = (0..24).map(|i| 1.0 + f64::from(i) / 8.0).collect();
    let got = expected.iter().map(|&e| e as f32).collect();
    (got, expected, vec![1e-6; 24])
}

#[test]
fn comparator_accepts_what_is_within_the_bound() {
    let (mut got, expected, bound) = sample();
    got[3] += 5e-7;
    let found = compare(&got, &expected, &bound).unwrap();
    assert!(found.passed());
    assert_eq!((found.compared, found.failed), (24, 0));
    let worst = found.worst.unwrap();
    assert_eq!(worst.index, 3);
    assert!((0.3..0.7).contains(&worst.ratio), "{}", worst.ratio);
}

#[test]
fn comparator_rejects_every_corruption() {
    let (good, expected, bound) = sample();
    let set = |index: usize, value: f32| {
        let mut got = good.clone();
        got[index] = value;
        got
    };
    let rotated = |by: usize| {
        let mut got = good.clone();
        got.rotate_left(by);
        got
    };
    let corruptions: [(&str, Vec<f32>); 10] = [
        ("NaN", set(5, f32::NAN)),
        ("inf", set(0, f32::INFINITY)),
        ("-inf", set(23, f32::NEG_INFINITY)),
        ("two heads swapped", rotated(12)),
        ("a row shifted", rotated(4)),
        ("an element shifted", rotated(1)),
        ("all zero", vec![0.0; 24]),
        ("all NaN", vec![f32::NAN; 24]),
        ("scaled", good.iter().map(|g| g * 1.0001).collect()),
        ("negated", good.iter().map(|g| -g).collect()),
    ];
    for (name, got) in corruptions {
        let found = compare(&got, &expected, &bound).unwrap();
        assert!(!found.passed() && found.failed > 0, "{name}: {found}");
        let expected: Vec<f32> = expected.iter().map(|&e| e as f32).collect();
        let found = compare_abs(&got, &expected, 1e-6, 1e-7).unwrap();
        assert!(!found.passed() && found.failed > 0, "{name}: {found}");
        let found = compare_lse(&got, &expected, 1e-6).unwrap();
        assert!(!found.passed() && found.failed > 0, "{name}: {found}");
    }
}

#[test]
fn an_empty_comparison_has_not_passed() {
    let found = compare(&[], &[], &[]).unwrap();
    assert!(!found.passed());
    assert_eq!((found.compared, found.failed, found.worst), (0, 0, None));
    assert!(!compare_abs(&[], &[], 1.0, 1.0).unwrap().passed());
    assert!(!compare_lse(&[], &[], 1.0).unwrap().passed());
    // Nor has one in which every element is undetermined.
    let found = compare(&[1.0], &[f64::NAN], &[f64::INFINITY]).unwrap();
    assert!(!found.passed());
    assert_eq!((found.compared, found.undetermined), (0, 1));
}

#[test]
fn lengths_have_to_agree() {
    let (got, expected, bound) = sample();
    let shape = |result: Result<Comparison, Error>| {
        assert!(matches!(result, Err(Error::Shape { .. })), "{result:?}");
    };
    shape(compare(&got[1..], &expected, &bound));
    shape(compare(&got, &expected[1..], &bound[1..]));
    shape(compare(&got, &expected, &bound[1..]));
    shape(compare(&[], &expected, &bound));
    shape(compare_abs(&got, &got[1..], 1.0, 0.0));
    shape(compare_lse(&got, &[], 1.0));
}

#[test]
fn not_finite_is_met_by_the_same_only() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let met = |got: f32, expected: f64| compare(&[got], &[expected], &[0.0]).unwrap().passed();
    assert!(met(f32::NAN, nan) && met(f32::INFINITY, inf) && met(f32::NEG_INFINITY, -inf));
    assert!(!met(0.0, nan) && !met(f32::INFINITY, nan) && !met(f32::NAN, inf));
    assert!(!met(f32::MAX, inf) && !met(f32::NEG_INFINITY, inf) && !met(f32::MIN, -inf));
    // No sentinel passes for -inf, however large the tolerance.
    assert!(!compare(&[-1e30], &[-inf], &[inf]).unwrap().passed());
    assert!(
        !compare_lse(&[-1e30], &[f32::NEG_INFINITY], 1e30)
            .unwrap()
            .passed()
    );
    assert!(
        !compare_abs(&[f32::MIN], &[f32::NEG_INFINITY], 1e38, 1.0)
            .unwrap()
            .passed()
    );
    assert!(
        compare_lse(&[f32::NEG_INFINITY], &[f32::NEG_INFINITY], 0.0)
            .unwrap()
            .passed()
    );
}

#[test]
fn a_useless_bound_lets_nothing_pass() {
    for bound in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
        assert!(
            !compare(&[1.5], &[1.0], &[bound]).unwrap().passed(),
            "{bound}"
        );
    }
    // Exactness is always good enough: empty rows have bound 0.
    assert!(compare(&[0.0], &[0.0], &[0.0]).unwrap().passed());
    assert!(!compare(&[1e-30], &[0.0], &[0.0]).unwrap().passed());
}

#[test]
fn tolerances_of_files() {
    let at = |got, expected, atol, rtol| compare_abs(&[got], &[expected], atol, rtol).unwrap();
    assert!(at(1.5, 1.25, 0.25, 0.0).passed() && !at(1.5, 1.25, 0.24, 0.0).passed());
    assert!(at(5.0, 4.0, 0.0, 0.25).passed() && !at(5.0, 4.0, 0.0, 0.2).passed());
    let lse = |got, expected, atol| compare_lse(&[got], &[expected], atol).unwrap();
    assert!(lse(999.0, 999.5, 0.6).passed() && !lse(999.0, 999.5, 0.4).passed());
    // Beyond 1000 the tolerance is relative, whatever atol says.
    assert!(lse(100_000.0, 100_000.05, 0.0).passed());
    assert!(!lse(100_000.0, 100_001.0, 10.0).passed());
    assert!(lse(f32::MIN, f32::MIN, 0.0).passed() && !lse(f32::MIN, -3.3e38, 1.0).passed());
}
