//! The oracle against cases worked out by hand.

use wgpu_attention::reference::{self, Expected, StageExpected};
use wgpu_attention::{
    Alignment, BoolMask, DType, Error, Inputs, MaskData, Options, Polarity, Stage, Tensor, Window,
};

const NEG_INF: f64 = f64::NEG_INFINITY;

#[track_caller]
fn near(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len(), "{got:?} vs {expected:?}");
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        let same = g == e || (g - e).abs() <= 1e-12 * e.abs().max(1.0);
        assert!(same, "element {i}: got {g}, expected {e}");
    }
}

fn forward(inputs: &Inputs, options: &Options) -> Expected {
    let expected = reference::forward(inputs, options, DType::F32).unwrap();
    for (value, bound) in expected.output.iter().zip(&expected.output_bound) {
        assert!(value.is_finite() && bound.is_finite(), "{value} {bound}");
    }
    expected
}

fn line(inputs: &Inputs, options: &Options, stage: Stage) -> StageExpected {
    let [b, h, n, _] = inputs.query.shape();
    reference::stage(inputs, options, stage, 0..b, 0..h, 0..n).unwrap()
}

/// One head whose scores are the given numbers: query 1, keys the scores, scale 1.
struct Scores {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
}

impl Scores {
    fn new(rows: usize, scores: &[f32], values: &[f32]) -> Self {
        Scores {
            query: vec![1.0; rows],
            key: scores.to_vec(),
            value: values.to_vec(),
        }
    }

    fn inputs(&self) -> Inputs<'_> {
        let n = self.key.len();
        Inputs::new(
            Tensor::f32(&self.query, [1, 1, self.query.len(), 1]).unwrap(),
            Tensor::f32(&self.key, [1, 1, n, 1]).unwrap(),
            Tensor::f32(&self.value, [1, 1, n, 1]).unwrap(),
        )
    }
}

fn top_left() -> Options {
    Options::default().scale(1.0).alignment(Alignment::TopLeft)
}

#[test]
fn two_by_two() {
    // Q = [1 0; 0 2], K = [1 1; 3 -1], scale 1/sqrt 2.
    let (q, k) = ([1.0, 0.0, 0.0, 2.0], [1.0, 1.0, 3.0, -1.0]);
    let v = [1.0, 10.0, 3.0, -10.0];
    let inputs = Inputs::new(
        Tensor::f32(&q, [1, 1, 2, 2]).unwrap(),
        Tensor::f32(&k, [1, 1, 2, 2]).unwrap(),
        Tensor::f32(&v, [1, 1, 2, 2]).unwrap(),
    );
    let r = f64::from(0.5f32.sqrt());
    let raw = line(&inputs, &Options::default(), Stage::Raw);
    near(&raw.values, &[r, 3.0 * r, 2.0 * r, -2.0 * r]);

    let w = [
        1.0 / (1.0 + (2.0 * r).exp()),
        1.0 / (1.0 + (-4.0 * r).exp()),
    ];
    let p = line(&inputs, &Options::default(), Stage::Probabilities);
    near(&p.values, &[w[0], 1.0 - w[0], w[1], 1.0 - w[1]]);

    let expected = forward(&inputs, &Options::default());
    let mix = |w: f64, a: f64, b: f64| w * a + (1.0 - w) * b;
    let o = w.map(|w| [mix(w, 1.0, 3.0), mix(w, 10.0, -10.0)]).concat();
    near(&expected.output, &o);
    let lse = [
        (r.exp() + (3.0 * r).exp()).ln(),
        ((2.0 * r).exp() + (-2.0 * r).exp()).ln(),
    ];
    near(&expected.lse, &lse);
    // An error of a few units in the last place of numbers of this size.
    for bound in expected.output_bound.iter().chain(&expected.lse_bound) {
        assert!((1e-7..6e-5).contains(bound), "{bound}");
    }
}

#[test]
fn scale_may_be_given_zero_and_negative() {
    let case = Scores::new(1, &[1.0, 3.0], &[1.0, 5.0]);
    let at = |scale: f32| forward(&case.inputs(), &Options::default().scale(scale));
    near(&at(0.0).output, &[3.0]);
    near(&at(0.0).lse, &[2f64.ln()]);
    let (a, b) = ((-2f64).exp(), (-6f64).exp());
    near(&at(-2.0).output, &[(a + 5.0 * b) / (a + b)]);
    near(&at(-2.0).lse, &[(a + b).ln()]);
}

#[test]
fn softcap_comes_after_the_scale_and_before_the_bias() {
    let case = Scores::new(1, &[4.0, -8.0], &[1.0, 0.0]);
    let bias = [0.5, 100.0];
    let inputs = case
        .inputs()
        .bias(Tensor::f32(&bias, [1, 1, 1, 2]).unwrap());
    let options = Options::default().scale(0.5).softcap(3.0);
    near(&line(&inputs, &options, Stage::Raw).values, &[2.0, -4.0]);
    let capped = [3.0 * (2f64 / 3.0).tanh(), 3.0 * (-4f64 / 3.0).tanh()];
    near(&line(&inputs, &options, Stage::Softcapped).values, &capped);
    let masked = [capped[0] + 0.5, capped[1] + 100.0];
    near(&line(&inputs, &options, Stage::Masked).values, &masked);
    near(
        &forward(&inputs, &options).output,
        &[1.0 / (1.0 + (masked[1] - masked[0]).exp())],
    );
    let uncapped = |stage| line(&inputs, &Options::default(), stage);
    assert_eq!(uncapped(Stage::Raw), uncapped(Stage::Softcapped));
}

#[test]
fn causal_shows_the_diagonal_and_renormalises() {
    let case = Scores::new(3, &[0.0; 3], &[1.0, 2.0, 6.0]);
    let options = top_left().causal(true);
    let expected = forward(&case.inputs(), &options);
    near(&expected.output, &[1.0, 1.5, 3.0]);
    near(&expected.lse, &[0.0, 2f64.ln(), 3f64.ln()]);
    let third = 1.0 / 3.0;
    near(
        &line(&case.inputs(), &options, Stage::Probabilities).values,
        &[1.0, 0.0, 0.0, 0.5, 0.5, 0.0, third, third, third],
    );
    let masked = line(&case.inputs(), &options, Stage::Masked).values;
    assert_eq!(masked[1..3], [NEG_INF, NEG_INF]);
    assert_eq!(masked[5], NEG_INF);
}

#[test]
fn alignment_moves_the_rows() {
    let case = Scores::new(2, &[0.0; 4], &[1.0, 2.0, 4.0, 8.0]);
    let at = |alignment| {
        let options = Options::default().causal(true).alignment(alignment);
        forward(&case.inputs(), &options).output
    };
    near(&at(Alignment::TopLeft), &[1.0, 1.5]);
    near(&at(Alignment::BottomRight), &[7.0 / 3.0, 15.0 / 4.0]);
    near(&at(Alignment::Offset(1)), &[1.5, 7.0 / 3.0]);
    near(&at(Alignment::Offset(-1)), &[0.0, 1.0]);
    let options = Options::default()
        .causal(true)
        .alignment(Alignment::PerSequence);
    near(
        &forward(&case.inputs().offsets(&[1]), &options).output,
        &[1.5, 7.0 / 3.0],
    );
    // Bottom right follows the sequence's own lengths: 3 keys, 1 query.
    let lengths = case.inputs().kv_lengths(&[3]).q_lengths(&[1]);
    let options = Options::default().causal(true);
    near(&forward(&lengths, &options).output, &[7.0 / 3.0, 0.0]);
}

#[test]
fn window_bounds_are_inclusive_and_do_not_count_the_row_itself() {
    let case = Scores::new(4, &[0.0; 4], &[1.0, 2.0, 4.0, 8.0]);
    let at = |window| forward(&case.inputs(), &top_left().window(window)).output;
    near(&at(Window::around(1, 0)), &[1.0, 1.5, 3.0, 6.0]);
    near(&at(Window::around(0, 1)), &[1.5, 3.0, 6.0, 8.0]);
    near(&at(Window::last(2).unwrap()), &[1.0, 1.5, 3.0, 6.0]);
    let mut open_left = Window::OPEN;
    open_left.right = Some(0);
    near(&at(open_left), &[1.0, 1.5, 7.0 / 3.0, 15.0 / 4.0]);
}

#[test]
fn alibi_is_minus_slope_times_distance() {
    let case = Scores::new(2, &[0.0; 3], &[1.0; 3]);
    let inputs = case.inputs().alibi_slopes(&[0.5]);
    let masked = |options: &Options| line(&inputs, options, Stage::Masked).values;
    near(&masked(&top_left()), &[0.0, -0.5, -1.0, -0.5, 0.0, -0.5]);
    // Bottom right: row 0 stands at key 1. The scale does not touch ALiBi.
    let bottom_right = Options::default().scale(7.0);
    near(&masked(&bottom_right), &[-0.5, 0.0, -0.5, -1.0, -0.5, 0.0]);
}

#[test]
fn sinks_take_weight_and_carry_nothing() {
    let case = Scores::new(1, &[1.0, 1.0], &[2.0, 4.0]);
    let options = top_left();
    let expected = forward(&case.inputs().sinks(&[1.0]), &options);
    near(&expected.output, &[2.0]);
    near(&expected.lse, &[1.0 + 3f64.ln()]);
    let p = line(&case.inputs().sinks(&[1.0]), &options, Stage::Probabilities);
    near(&p.values, &[1.0 / 3.0, 1.0 / 3.0]);
    let sum: f64 = p.values.iter().sum();
    near(&[sum], &[1.0 - (1.0 - expected.lse[0]).exp()]);
    // A sink far above every score leaves almost nothing, exactly counted.
    let expected = forward(&case.inputs().sinks(&[101.0]), &options);
    near(&expected.output, &[6.0 * (-100f64).exp()]);
    near(&expected.lse, &[101.0]);
    // -inf is no sink.
    let none = forward(&case.inputs().sinks(&[f32::NEG_INFINITY]), &options);
    assert_eq!(none, forward(&case.inputs(), &options));
    // Neither scale nor softcap touch it.
    let capped = options.softcap(1.0).scale(0.0);
    let expected = forward(&case.inputs().sinks(&[3.0]), &capped);
    near(&expected.lse, &[(2.0 + 3f64.exp()).ln()]);
}

#[test]
fn empty_rows_are_zero_with_minus_infinity_or_the_sink() {
    let case = Scores::new(2, &[1.0, 2.0], &[f32::NAN, f32::INFINITY]);
    let hidden = [0u8; 4];
    let mask = BoolMask::new(MaskData::Bytes(&hidden), [1, 1, 2, 2], Polarity::Keep).unwrap();
    let inputs = case.inputs().mask(mask);
    let expected = forward(&inputs, &top_left());
    assert_eq!(expected.output, [0.0, 0.0]);
    assert_eq!(expected.output_bound, [0.0, 0.0]);
    assert_eq!(expected.lse, [NEG_INF, NEG_INF]);
    assert_eq!(expected.lse_bound, [0.0, 0.0]);
    let p = line(&inputs, &top_left(), Stage::Probabilities);
    assert_eq!((p.values, p.bound), (vec![0.0; 4], vec![0.0; 4]));
    let masked = line(&inputs, &top_left(), Stage::Masked);
    assert_eq!(masked.values, [NEG_INF; 4]);

    let expected = forward(&inputs.sinks(&[-2.5]), &top_left());
    assert_eq!(expected.output, [0.0, 0.0]);
    assert_eq!(expected.lse, [-2.5, -2.5]);
}

#[test]
fn rows_of_the_lowest_bias_average() {
    let case = Scores::new(1, &[5.0, -5.0, 0.0], &[1.0, 2.0, 6.0]);
    let bias = [f32::MIN; 3];
    let inputs = case
        .inputs()
        .bias(Tensor::f32(&bias, [1, 1, 1, 3]).unwrap());
    let expected = forward(&inputs, &top_left());
    near(&expected.output, &[3.0]);
    near(&expected.lse, &[f64::from(f32::MIN)]);
    // No score makes a difference here, so nothing excuses another answer.
    assert!(expected.output_bound[0] < 2e-5, "{:?}", expected);
    // Beside an ordinary key the same bias is a mask in all but name.
    let bias = [f32::MIN, 0.0, f32::MIN];
    let inputs = case
        .inputs()
        .bias(Tensor::f32(&bias, [1, 1, 1, 3]).unwrap());
    near(&forward(&inputs, &top_left()).output, &[2.0]);
}

#[test]
fn minus_infinity_in_the_bias_excludes() {
    let case = Scores::new(2, &[0.0; 2], &[1.0, f32::NAN]);
    let bias = Tensor::f32(&[0.0, f32::NEG_INFINITY], [1, 1, 1, 2]).unwrap();
    let expected = forward(&case.inputs().bias(bias), &top_left());
    assert_eq!(expected.output, [1.0, 1.0]);
    near(&expected.lse, &[0.0, 0.0]);
}

#[test]
fn masks_in_bytes_and_bits_and_both_polarities_agree() {
    let n = 40;
    let values: Vec<f32> = (0..n).map(|j| j as f32).collect();
    let case = Scores::new(1, &vec![0.0; n], &values);
    let keep: Vec<u8> = (0..n).map(|j| u8::from(j % 3 == 0) * 7).collect();
    let drop: Vec<u8> = keep.iter().map(|&k| u8::from(k == 0)).collect();
    let bits = |bytes: &[u8]| -> Vec<u32> {
        // Bits past the last key are set: they are ignored.
        let mut words = vec![0xffff_ff00u32 << 8; 2];
        words[0] = 0;
        for (j, &byte) in bytes.iter().enumerate() {
            words[j / 32] |= u32::from(byte != 0) << (j % 32);
        }
        words
    };
    let (keep_bits, drop_bits) = (bits(&keep), bits(&drop));
    let kept: Vec<f64> = (0..n).filter(|j| j % 3 == 0).map(|j| j as f64).collect();
    let mean = kept.iter().sum::<f64>() / kept.len() as f64;
    for (data, polarity) in [
        (MaskData::Bytes(&keep), Polarity::Keep),
        (MaskData::Bytes(&drop), Polarity::Drop),
        (MaskData::Bits(&keep_bits), Polarity::Keep),
        (MaskData::Bits(&drop_bits), Polarity::Drop),
    ] {
        let mask = BoolMask::new(data, [1, 1, 1, n], polarity).unwrap();
        let expected = forward(&case.inputs().mask(mask), &top_left());
        near(&expected.output, &[mean]);
    }
}

#[test]
fn lengths_cut_and_what_lies_behind_is_never_read() {
    let case = Scores::new(2, &[0.0, 0.0, f32::NAN], &[1.0, 3.0, f32::INFINITY]);
    let inputs = case.inputs().kv_lengths(&[2]).q_lengths(&[1]);
    let expected = forward(&inputs, &top_left());
    near(&expected.output, &[2.0, 0.0]);
    near(&expected.lse, &[2f64.ln(), NEG_INF]);
    let raw = line(&case.inputs().kv_lengths(&[2]), &top_left(), Stage::Raw);
    near(&raw.values, &[0.0; 6]);
    let raw = line(&inputs, &top_left(), Stage::Raw);
    assert_eq!(
        raw.bound[3..],
        [0.0; 3],
        "a row past its length is exactly 0"
    );
}

#[test]
fn segments_have_to_match() {
    let case = Scores::new(3, &[0.0; 3], &[1.0, 2.0, 4.0]);
    let inputs = case.inputs().segments(&[0, 7, 9], &[7, 0, 7]);
    near(&forward(&inputs, &top_left()).output, &[2.0, 2.5, 0.0]);
}

#[test]
fn query_heads_share_kv_heads_in_contiguous_groups() {
    // 6 query heads on 2 kv heads: 0 1 2 read head 0, 3 4 5 read head 1.
    let (q, k, v) = ([1.0; 6], [0.0; 2], [10.0, 20.0]);
    let inputs = Inputs::new(
        Tensor::f32(&q, [1, 6, 1, 1]).unwrap(),
        Tensor::f32(&k, [1, 2, 1, 1]).unwrap(),
        Tensor::f32(&v, [1, 2, 1, 1]).unwrap(),
    );
    let expected = forward(&inputs, &Options::default());
    near(&expected.output, &[10.0, 10.0, 10.0, 20.0, 20.0, 20.0]);
}

#[test]
fn without_keys_there_is_nothing_but_the_sink() {
    let q = [1.0; 2];
    let inputs = Inputs::new(
        Tensor::f32(&q, [1, 1, 2, 1]).unwrap(),
        Tensor::f32(&[], [1, 1, 0, 1]).unwrap(),
        Tensor::f32(&[], [1, 1, 0, 3]).unwrap(),
    );
    let expected = forward(&inputs, &Options::default());
    assert_eq!(expected.output, [0.0; 6]);
    assert_eq!(expected.lse, [NEG_INF; 2]);
    let expected = forward(&inputs.sinks(&[0.25]), &Options::default());
    assert_eq!(expected.lse, [0.25; 2]);
}

#[test]
fn zero_batch_heads_and_queries_give_empty_results() {
    for (b, h, n) in [(0, 2, 3), (1, 0, 3), (1, 2, 0)] {
        let kv = vec![0.0; b * 4];
        let q = vec![0.0; b * h * n];
        let inputs = Inputs::new(
            Tensor::f32(&q, [b, h, n, 1]).unwrap(),
            Tensor::f32(&kv, [b, 2, 2, 1]).unwrap(),
            Tensor::f32(&kv, [b, 2, 2, 1]).unwrap(),
        );
        let expected = forward(&inputs, &Options::default());
        assert!(expected.output.is_empty() && expected.lse.is_empty());
    }
}

#[test]
fn visible_nan_reaches_its_rows_only() {
    let case = Scores::new(3, &[0.0, f32::NAN, 0.0], &[1.0, 1.0, 1.0]);
    let options = top_left().causal(true);
    let expected = reference::forward(&case.inputs(), &options, DType::F32).unwrap();
    assert_eq!(expected.output[0], 1.0);
    for i in 1..3 {
        assert!(expected.output[i].is_nan() && expected.output_bound[i] == 0.0);
        assert!(expected.lse[i].is_nan() && expected.lse_bound[i] == 0.0);
    }
    let case = Scores::new(3, &[0.0; 3], &[1.0, f32::INFINITY, f32::NEG_INFINITY]);
    let expected = reference::forward(&case.inputs(), &options, DType::F32).unwrap();
    assert_eq!(expected.output[..2], [1.0, f64::INFINITY]);
    assert!(expected.output[2].is_nan());
    assert_eq!(expected.output_bound[1..], [0.0, 0.0]);
    near(&expected.lse, &[0.0, 2f64.ln(), 3f64.ln()]);
}

#[test]
fn scores_beyond_f32_are_infinite() {
    let case = Scores::new(2, &[0.0, 3e38], &[1.0, 2.0]);
    let options = top_left().scale(4.0).causal(true);
    let expected = reference::forward(&case.inputs(), &options, DType::F32).unwrap();
    assert_eq!(expected.output[0], 1.0);
    // exp(inf - inf) is NaN; what its logarithm is depends on the implementation.
    assert!(expected.output[1].is_nan() && expected.lse[1].is_nan());
    assert_eq!(expected.output_bound[1], 0.0);
    assert_eq!(expected.lse_bound[1], f64::INFINITY);
    // -inf has weight 0.
    let options = options.scale(-4.0);
    let expected = reference::forward(&case.inputs(), &options, DType::F32).unwrap();
    near(&expected.output, &[1.0, 1.0]);
    near(&expected.lse, &[0.0, 0.0]);
}

#[test]
fn the_output_type_adds_its_rounding_and_its_overflow() {
    let case = Scores::new(1, &[0.0, 0.0], &[60000.0, 80000.0]);
    let of = |out| reference::forward(&case.inputs(), &top_left(), out).unwrap();
    let (f32, f16, bf16) = (of(DType::F32), of(DType::F16), of(DType::BF16));
    assert_eq!(f32.output, [70000.0]);
    assert_eq!((f16.output[0], f16.output_bound[0]), (f64::INFINITY, 0.0));
    let half_spacing = 70000.0 / 256.0;
    assert!((half_spacing..1.01 * half_spacing).contains(&bf16.output_bound[0]));
    assert!(f32.output_bound[0] < 0.2);
    // The log-sum-exp is f32 whatever the output is.
    assert_eq!(f32.lse_bound, f16.lse_bound);
}

#[test]
fn chosen_rows_are_the_rows_of_the_whole() {
    let q: Vec<f32> = (0..24).map(|i| (i as f32 * 0.7).sin()).collect();
    let k: Vec<f32> = (0..20).map(|i| (i as f32 * 0.3).cos()).collect();
    let inputs = Inputs::new(
        Tensor::f32(&q, [2, 2, 3, 2]).unwrap(),
        Tensor::f32(&k, [2, 1, 5, 2]).unwrap(),
        Tensor::f32(&k, [2, 1, 5, 2]).unwrap(),
    );
    let options = Options::default().causal(true);
    let all = forward(&inputs, &options);
    let some = reference::forward_rows(&inputs, &options, DType::F32, &[11, 0, 7]).unwrap();
    let pick = |v: &[f64], n: usize| [11, 0, 7].map(|r| v[r * n..(r + 1) * n].to_vec()).concat();
    assert_eq!(some.output, pick(&all.output, 2));
    assert_eq!(some.output_bound, pick(&all.output_bound, 2));
    assert_eq!(some.lse, pick(&all.lse, 1));
    // Stages of a range are those of the whole, too.
    let whole = reference::stage(&inputs, &options, Stage::Masked, 0..2, 0..2, 0..3).unwrap();
    let part = reference::stage(&inputs, &options, Stage::Masked, 1..2, 1..2, 1..3).unwrap();
    assert_eq!(part.values, whole.values[10 * 5..12 * 5]);
}

#[test]
fn what_does_not_exist_is_refused() {
    let case = Scores::new(2, &[0.0; 2], &[1.0; 2]);
    let inputs = case.inputs();
    let options = Options::default();
    let refused = |error: Error, operand: &str| {
        assert!(
            matches!(&error, Error::Value { operand: o, .. } if *o == operand),
            "{error}"
        );
    };
    let rows = reference::forward_rows(&inputs, &options, DType::F32, &[1, 2]);
    refused(rows.unwrap_err(), "rows");
    let stage = |b, h, i| reference::stage(&inputs, &options, Stage::Raw, b, h, i).unwrap_err();
    refused(stage(0..2, 0..1, 0..2), "batches");
    refused(stage(0..1, 1..2, 0..2), "heads");
    #[allow(clippy::reversed_empty_ranges)]
    refused(stage(0..1, 0..1, 2..1), "rows");
    let bad = reference::forward(&inputs.kv_lengths(&[3]), &options, DType::F32);
    refused(bad.unwrap_err(), "kv_lengths");
}
