//! The CPU path against the oracle, over every option alone and mixed.

mod common;

use std::num::NonZeroUsize;
use std::time::Instant;

use common::{Elements, Feature, OwnedCase, Shape, cases, generate};
use wgpu_attention::reference::{self, Comparison, compare};
use wgpu_attention::{DType, Outputs, cpu};

fn forward(case: &OwnedCase) -> Outputs {
    cpu::forward(&case.inputs(), &case.options).unwrap()
}

fn judge(case: &OwnedCase, got: &Outputs) -> [Comparison; 2] {
    let expected = reference::forward(&case.inputs(), &case.options, DType::F32).unwrap();
    [
        compare(&got.output, &expected.output, &expected.output_bound).unwrap(),
        compare(&got.lse, &expected.lse, &expected.lse_bound).unwrap(),
    ]
}

#[test]
fn agrees_with_the_oracle() {
    let (mut compared, mut poisoned, mut worst) = (0, 0, [0f64; 2]);
    for case in cases(200) {
        let found = judge(&case, &forward(&case));
        for (comparison, worst) in found.iter().zip(&mut worst) {
            assert!(comparison.passed(), "{}: {comparison}", case.name);
            assert_eq!(comparison.undetermined, 0, "{}", case.name);
            compared += comparison.compared;
            *worst = worst.max(comparison.worst.unwrap().ratio);
        }
        poisoned += case.poisoned;
    }
    println!("{compared} compared, {poisoned} poisoned, largest ratios: {worst:.3?}");
    assert!(compared > 1_000_000 && poisoned > 10_000);
}

#[test]
fn bits_depend_on_neither_threads_nor_runs() {
    let shape = Shape::f32([2, 6, 65, 40], 2, 129, 33);
    let case = generate(5, shape, &[Feature::Causal, Feature::Bias, Feature::Sinks]);
    let on = |threads| {
        let threads = NonZeroUsize::new(threads).unwrap();
        let outputs = cpu::forward_on(threads, &case.inputs(), &case.options).unwrap();
        let all = outputs.output.iter().chain(&outputs.lse);
        all.map(|v| v.to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(on(1), on(1));
    assert_eq!(on(1), on(3));
    assert_eq!(on(1), on(100));
}

#[test]
fn the_future_does_not_touch_the_past() {
    let n = 70;
    let mut case = generate(9, Shape::f32([1, 2, n, 16], 1, n, 16), &[Feature::Causal]);
    let before = forward(&case);
    let t = 37;
    for j in t + 1..n {
        for d in 0..16 {
            case.key.set(j * 16 + d, [f32::NAN, f32::INFINITY][d % 2]);
            case.value
                .set(j * 16 + d, [f32::NAN, f32::NEG_INFINITY][d % 2]);
        }
    }
    let after = forward(&case);
    for h in 0..2 {
        let row = h * n;
        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let past = row * 16..(row + t + 1) * 16;
        assert_eq!(
            bits(&before.output[past.clone()]),
            bits(&after.output[past])
        );
        assert_eq!(
            bits(&before.lse[row..row + t + 1]),
            bits(&after.lse[row..row + t + 1])
        );
        // Rows after t do see it.
        assert!(after.lse[row + t + 1..row + n].iter().all(|l| l.is_nan()));
    }
}

#[test]
fn zero_sizes_are_valid() {
    for (q, kv_heads, kv_len) in [
        ([0, 2, 3, 4], 1, 5),
        ([1, 0, 3, 4], 1, 5),
        ([1, 2, 0, 4], 1, 5),
        ([1, 2, 3, 4], 1, 0),
    ] {
        let case = generate(1, Shape::f32(q, kv_heads, kv_len, 6), &[]);
        let outputs = forward(&case);
        assert_eq!(outputs.output, vec![0.0; q[0] * q[1] * q[2] * 6]);
        assert_eq!(outputs.lse, vec![f32::NEG_INFINITY; q[0] * q[1] * q[2]]);
    }
}

#[test]
fn refuses_what_does_not_fit() {
    let mut case = generate(1, Shape::f32([1, 1, 2, 4], 1, 3, 4), &[]);
    case.kv_lengths = Some(vec![4]);
    assert!(cpu::forward(&case.inputs(), &case.options).is_err());
    case.kv_lengths = None;
    case.value = Elements::new(&[0.0; 12], DType::F16);
    assert!(cpu::forward(&case.inputs(), &case.options).is_err());
}

/// Prints the speed at (B 1, H 8, N 512, D 64) on one thread: run with
/// `cargo test --release --test cpu -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement, meaningful in release builds only"]
fn speed_on_one_thread() {
    let (h, n, d) = (8, 512, 64);
    for causal in [false, true] {
        let mut case = generate(1, Shape::f32([1, h, n, d], h, n, d), &[]);
        case.options.causal = causal;
        let mut best = f64::MAX;
        for _ in 0..10 {
            let start = Instant::now();
            let outputs = cpu::forward_on(NonZeroUsize::MIN, &case.inputs(), &case.options);
            best = best.min(start.elapsed().as_secs_f64());
            assert!(outputs.unwrap().lse[0].is_finite());
        }
        let pairs = if causal { n * (n + 1) / 2 } else { n * n };
        let gflops = (4 * h * pairs * d) as f64 / best / 1e9;
        println!("causal {causal}: {:.1} ms, {gflops:.2} GFLOP/s", best * 1e3);
        assert!(gflops >= 2.0, "{gflops}");
    }
}
