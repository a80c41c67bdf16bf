//! What attention is, on the oracle: the shape of each step, why the scores are
//! divided by sqrt(d_k), what the causal mask hides, and why a weight is not an
//! importance.

mod common;

use common::{Fault, Feature, Order, OwnedCase, Shape, Style, attention, generate};
use wgpu_attention::reference::{self, StageExpected, compare};
use wgpu_attention::{Alignment, DType, Inputs, Options, Stage, Tensor};

fn stage(case: &OwnedCase, stage: Stage) -> StageExpected {
    let dims = case.dims;
    let (inputs, options) = (case.inputs(), &case.options);
    let (b, h, n) = (0..dims.batch, 0..dims.q_heads, 0..dims.q_len);
    reference::stage(&inputs, options, stage, b, h, n).unwrap()
}

/// Standard deviation around 0.
fn deviation(values: &[f64]) -> f64 {
    (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt()
}

/// One head of n queries and keys, unit normal, with the given scale.
fn normal(n: usize, d: usize, scale: Option<f32>) -> OwnedCase {
    let mut case = generate(d as u64, Shape::f32([1, 1, n, d], 1, n, d), &[]);
    case.options.scale = scale;
    case
}

#[test]
fn each_step_has_its_shape() {
    // Cross-attention: 5 queries ask 7 keys; what is carried has its own width.
    let (b, h, n_q, n_k, d_k, d_v) = (2, 3, 5, 7, 4, 6);
    let case = generate(1, Shape::f32([b, h, n_q, d_k], h, n_k, d_v), &[]);
    for s in Stage::ALL {
        // (n_q, d_k)(d_k, n_k) -> (n_q, n_k), and it stays that.
        assert_eq!(stage(&case, s).values.len(), b * h * n_q * n_k);
    }
    let expected = reference::forward(&case.inputs(), &case.options, DType::F32).unwrap();
    // (n_q, n_k)(n_k, d_v) -> (n_q, d_v).
    assert_eq!(expected.output.len(), b * h * n_q * d_v);
    assert_eq!(expected.lse.len(), b * h * n_q);
}

#[test]
fn weights_are_a_distribution_and_outputs_their_mean() {
    let case = generate(2, Shape::f32([2, 3, 5, 4], 3, 7, 6), &[]);
    let weights = stage(&case, Stage::Probabilities).values;
    assert!(weights.iter().all(|w| (0.0..=1.0).contains(w)));
    let expected = reference::forward(&case.inputs(), &case.options, DType::F32).unwrap();
    let mut compared = 0;
    for (row, w) in weights.chunks(7).enumerate() {
        assert!((w.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        let head = row / 5;
        for d in 0..6 {
            let value = |j| f64::from(case.value.data().get((head * 7 + j) * 6 + d));
            let mean: f64 = w.iter().enumerate().map(|(j, w)| w * value(j)).sum();
            assert!((mean - expected.output[row * 6 + d]).abs() < 1e-12);
            compared += 1;
        }
    }
    assert_eq!(compared, expected.output.len());
}

#[test]
fn dot_products_spread_like_sqrt_d() {
    for d in [64, 512] {
        let scores = stage(&normal(200, d, Some(1.0)), Stage::Raw).values;
        let root = (d as f64).sqrt();
        assert_eq!(scores.len(), 40_000);
        // 40,000 dot products of 200 independent vectors on each side.
        let ratio = deviation(&scores) / root;
        assert!((0.97..1.03).contains(&ratio), "d {d}: {ratio}");
        // Dividing by sqrt(d), the default, brings the deviation back to 1.
        let scaled = stage(&normal(200, d, None), Stage::Raw).values;
        let ratio = deviation(&scaled);
        assert!((0.97..1.03).contains(&ratio), "d {d}: {ratio}");
    }
}

#[test]
fn without_the_scale_softmax_is_nearly_one_hot() {
    let share = |scale| {
        let weights = stage(&normal(64, 512, scale), Stage::Probabilities).values;
        let largest = weights
            .chunks(64)
            .map(|row| row.iter().copied().fold(0.0, f64::max));
        // The gradient of softmax: W(i, j) (1 - W(i, j)), summed over the row.
        let slope = weights
            .chunks(64)
            .map(|row| row.iter().map(|w| w * (1.0 - w)).sum::<f64>());
        (largest.sum::<f64>() / 64.0, slope.sum::<f64>() / 64.0)
    };
    let (unscaled, flat) = share(Some(1.0));
    let (scaled, steep) = share(None);
    println!("largest weight {unscaled:.3} and {scaled:.3}, slope {flat:.3} and {steep:.3}");
    assert!(unscaled > 0.9 && scaled < 0.25, "{unscaled} {scaled}");
    assert!(flat < 0.15 && steep > 0.9, "{flat} {steep}");
}

#[test]
fn the_causal_mask_hides_the_future_and_renormalises() {
    let n = 9;
    let mut case = generate(4, Shape::f32([1, 1, n, 8], 1, n, 8), &[Feature::Causal]);
    let weights = stage(&case, Stage::Probabilities).values;
    let masked = stage(&case, Stage::Masked).values;
    for i in 0..n {
        let row = &weights[i * n..(i + 1) * n];
        // The diagonal is visible, everything after it has weight exactly 0.
        assert!(row[..=i].iter().all(|&w| w > 0.0));
        assert!(row[i + 1..].iter().all(|&w| w == 0.0));
        assert!(
            masked[i * n + i + 1..(i + 1) * n]
                .iter()
                .all(|&s| s == f64::NEG_INFINITY)
        );
        assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }
    // The rest renormalises: as if the future had never been there.
    case.options.causal = false;
    let open = stage(&case, Stage::Probabilities).values;
    for i in 0..n {
        let seen: f64 = open[i * n..=i * n + i].iter().sum();
        for j in 0..=i {
            let expected = open[i * n + j] / seen;
            assert!((weights[i * n + j] - expected).abs() < 1e-12);
        }
    }
}

/// Whether row `t` stays as it is when everything after position `t` changes:
/// the check that catches a leak, given anything that computes attention.
fn is_causal(case: &OwnedCase, t: usize, run: impl Fn(&OwnedCase) -> Vec<f32>) -> bool {
    let dims = case.dims;
    let mut changed = case.clone();
    for (elements, dim) in [
        (&mut changed.key, dims.qk_dim),
        (&mut changed.value, dims.v_dim),
    ] {
        for index in (t + 1) * dim..elements.len() {
            let value = elements.data().get(index);
            elements.set(index, -2.0 * value + 1.0);
        }
    }
    let rows = ..(t + 1) * dims.v_dim;
    let bits = |v: Vec<f32>| v[rows].iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    bits(run(case)) == bits(run(&changed))
}

#[test]
fn off_by_one_leaks_are_caught() {
    let n = 12;
    let case = generate(6, Shape::f32([1, 1, n, 8], 1, n, 8), &[Feature::Causal]);
    let style = Style {
        order: Order::Forward,
        tile: usize::MAX,
        folded: false,
        fused: false,
        sloppy: false,
    };
    let run = |fault| move |case: &OwnedCase| attention(case, style, fault).output;
    let expected = reference::forward(&case.inputs(), &case.options, DType::F32).unwrap();
    let right = |fault| {
        let got = run(fault)(&case);
        compare(&got, &expected.output, &expected.output_bound)
            .unwrap()
            .passed()
    };
    for t in 0..n - 1 {
        assert!(is_causal(&case, t, run(Fault::None)), "row {t}");
        // Hiding j > i + 1 only leaks the next token.
        assert!(!is_causal(&case, t, run(Fault::CausalLeaks)), "row {t}");
        // Hiding j >= i leaks nothing: a position is blind to itself.
        assert!(
            is_causal(&case, t, run(Fault::CausalHidesDiagonal)),
            "row {t}"
        );
    }
    // The oracle tells that one, too.
    assert!(right(Fault::None));
    assert!(!right(Fault::CausalLeaks) && !right(Fault::CausalHidesDiagonal));
}

#[test]
fn an_induction_head_looks_behind_the_earlier_token() {
    // [A][B] x x [A]: keys hold the token before, the query the token itself,
    // so the second A attends to B, which followed the first.
    let (a, b, x, y) = (0, 1, 2, 3);
    let tokens = [a, b, x, y, a];
    let one_hot = |token: Option<usize>, size: f32| {
        let mut line = [0f32; 4];
        if let Some(token) = token {
            line[token] = size;
        }
        line
    };
    let query: Vec<f32> = tokens
        .iter()
        .flat_map(|&t| one_hot(Some(t), 40.0))
        .collect();
    let before = (0..5).map(|i| (i > 0).then(|| tokens[i - 1]));
    let key: Vec<f32> = before.flat_map(|t| one_hot(t, 1.0)).collect();
    let value: Vec<f32> = tokens.iter().flat_map(|&t| one_hot(Some(t), 1.0)).collect();
    let shape = [1, 1, 5, 4];
    let inputs = Inputs::new(
        Tensor::f32(&query, shape).unwrap(),
        Tensor::f32(&key, shape).unwrap(),
        Tensor::f32(&value, shape).unwrap(),
    );
    let options = Options::default()
        .causal(true)
        .alignment(Alignment::TopLeft);
    let weights = reference::stage(&inputs, &options, Stage::Probabilities, 0..1, 0..1, 4..5);
    assert!(weights.unwrap().values[1] > 0.99);
    let expected = reference::forward(&inputs, &options, DType::F32).unwrap();
    // What it predicts is B.
    assert!(expected.output[4 * 4 + b] > 0.99);
}

#[test]
fn weights_are_not_importance() {
    // Key 0 has most of the weight and a value of almost no size.
    let (query, key) = ([1f32], [2f32.ln(), 0.0]);
    let value = [0.01f32, 0.0, 3.0, 4.0];
    let inputs = Inputs::new(
        Tensor::f32(&query, [1, 1, 1, 1]).unwrap(),
        Tensor::f32(&key, [1, 1, 2, 1]).unwrap(),
        Tensor::f32(&value, [1, 1, 2, 2]).unwrap(),
    );
    let options = Options::default();
    let weights = reference::stage(&inputs, &options, Stage::Probabilities, 0..1, 0..1, 0..1);
    let weights = weights.unwrap().values;
    assert!(weights[0] > 0.66 && weights[1] < 0.34);
    let size = |j: usize| f64::from(value[2 * j]).hypot(f64::from(value[2 * j + 1]));
    assert!(weights[0] * size(0) < 0.01 && weights[1] * size(1) > 1.6);
}
