//! Laws of what is said about weights, and weights and outputs of the oracle.

mod common;

use common::{OwnedCase, Shape, generate, random_case};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::interpret::{
    Contributions, Histogram, RankBy, Row, SATURATED, ScoreStatistics, Weights, mean_over_heads,
    rollout,
};
use wgpu_attention::reference::{self, compare};
use wgpu_attention::{DType, HostLinear, MultiHeadInputs, Options, Stage, Tensor};

/// One stage of the oracle in f32, (B, Hq, Nq, Nk).
fn stage(case: &OwnedCase, stage: Stage) -> Vec<f32> {
    let dims = case.dims;
    let (b, h, n) = (0..dims.batch, 0..dims.q_heads, 0..dims.q_len);
    let found = reference::stage(&case.inputs(), &case.options, stage, b, h, n).unwrap();
    found.values.iter().map(|&w| w as f32).collect()
}

/// Vector contributions of every row sum to the oracle's output, whatever excluded
/// values hold, and a row's shares to 1.
#[test]
fn contributions_sum_to_the_output_of_the_oracle() {
    let (mut compared, mut sums, mut poisoned) = (0, 0, 0);
    for seed in 0..60 {
        let case = random_case(seed);
        let dims = case.dims;
        let weights = stage(&case, Stage::Probabilities);
        let values = case.value.to_f32();
        let expected = reference::forward(&case.inputs(), &case.options, DType::F32).unwrap();
        poisoned += case.poisoned;
        let slab = dims.kv_len * dims.v_dim;
        for row in 0..dims.rows() {
            let head = row / dims.q_len;
            let (b, h) = (head / dims.q_heads, head % dims.q_heads);
            let first = (b * dims.kv_heads + h / dims.group()) * slab;
            let weights = &weights[row * dims.kv_len..(row + 1) * dims.kv_len];
            let values = &values[first..first + slab];
            let found = Contributions::new(weights, values, dims.v_dim).unwrap();
            let columns = row * dims.v_dim..(row + 1) * dims.v_dim;
            let (sizes, output) = (found.sizes(), found.output());
            // Weights were rounded to f32.
            let bound = 2f64.powi(-24) * sizes.iter().sum::<f64>() + 1e-40;
            for (got, expected) in output.iter().zip(&expected.output[columns]) {
                let close = (got - expected).abs() <= bound;
                assert!(close, "seed {seed}, row {row}: {got} {expected}");
                compared += 1;
            }
            if let Some(shares) = found.shares() {
                // Where contributions cancel, so do digits.
                let cancelled = sizes.iter().sum::<f64>() / output_size(output);
                let sum: f64 = shares.iter().sum();
                let close = (sum - 1.0).abs() < 1e-13 * cancelled * cancelled;
                assert!(close, "seed {seed}, row {row}: {sum}");
                sums += 1;
            }
        }
    }
    assert!(compared > 100_000 && sums > 5_000 && poisoned > 1_000);
}

fn output_size(output: &[f64]) -> f64 {
    output.iter().map(|o| o * o).sum::<f64>().sqrt()
}

/// The check above rejects contributions of the wrong kv head.
#[test]
fn contributions_of_another_head_do_not_sum_to_the_output() {
    let case = generate(3, Shape::f32([1, 2, 4, 8], 2, 9, 6), &[]);
    let weights = stage(&case, Stage::Probabilities);
    let expected = reference::forward(&case.inputs(), &case.options, DType::F32).unwrap();
    let values = case.value.to_f32();
    for (slab, passes) in [(0, true), (1, false)] {
        let values = &values[slab * 54..(slab + 1) * 54];
        let output = Contributions::new(&weights[..9], values, 6).unwrap();
        let output: Vec<f32> = output.output().iter().map(|&o| o as f32).collect();
        let found = compare(&output, &expected.output[..6], &expected.output_bound[..6]);
        assert_eq!(found.unwrap().passed(), passes, "kv head {slab}");
    }
}

/// Through W_O, contributions of all heads and keys sum to the layer's output.
#[test]
fn contributions_through_the_output_projection_sum_to_the_layer() {
    let (tokens, width, heads, dim, out) = (7, 10, 3, 4, 5);
    let mut rng = StdRng::seed_from_u64(9);
    let mut some =
        |count: usize| -> Vec<f32> { (0..count).map(|_| rng.random_range(-1.0..1.0)).collect() };
    let x = some(tokens * width);
    let inner = heads * dim;
    let projections = [0, 1, 2].map(|_| some(inner * width));
    let (of_output, bias) = (some(out * inner), some(out));
    let input = Tensor::f32(&x, [1, 1, tokens, width]).unwrap();
    let linear = |numbers, rows, columns| HostLinear {
        weight: Tensor::f32(numbers, [1, 1, rows, columns]).unwrap(),
        bias: None,
    };
    let [q, k, v] = [0, 1, 2].map(|n| linear(&projections[n], inner, width));
    let mut o = linear(&of_output, out, inner);
    o.bias = Some(Tensor::f32(&bias, [1, 1, 1, out]).unwrap());
    let layer = MultiHeadInputs::new(input, heads, [q, k, v, o]);
    let options = Options::default().causal(true);
    let expected = reference::multi_head(&layer, &options, DType::F32).unwrap();

    // (tokens, heads dim) to (heads, tokens, dim).
    let by_head = |linear: &HostLinear<'_>| -> Vec<f32> {
        let projected = reference::project(&input, &linear.weight, None, DType::F32).unwrap();
        let at = |h, i, d| projected.values[i * inner + h * dim + d] as f32;
        let rows = (0..heads).flat_map(|h| (0..tokens).map(move |i| (h, i)));
        rows.flat_map(|(h, i)| (0..dim).map(move |d| (h, i, d)))
            .map(|(h, i, d)| at(h, i, d))
            .collect()
    };
    let [q, k, v] = [q, k, v].map(|linear| by_head(&linear));
    let tensor = |numbers| Tensor::f32(numbers, [1, heads, tokens, dim]).unwrap();
    let attention = layer.attention_of(tensor(&q), tensor(&k), tensor(&v));
    let weights = reference::stage(
        &attention,
        &options,
        Stage::Probabilities,
        0..1,
        0..heads,
        0..tokens,
    );
    let weights: Vec<f32> = weights.unwrap().values.iter().map(|&w| w as f32).collect();
    for i in 0..tokens {
        let mut sum: Vec<f64> = bias.iter().map(|&b| f64::from(b)).collect();
        for h in 0..heads {
            let row = &weights[(h * tokens + i) * tokens..][..tokens];
            let values = &v[h * tokens * dim..][..tokens * dim];
            let of_head = Contributions::new(row, values, dim).unwrap();
            let through = of_head.through(&of_output, [out, inner], h).unwrap();
            sum.iter_mut()
                .zip(through.output())
                .for_each(|(s, o)| *s += o);
        }
        let got: Vec<f32> = sum.iter().map(|&y| y as f32).collect();
        let columns = i * out..(i + 1) * out;
        let found = compare(
            &got,
            &expected.values[columns.clone()],
            &expected.bound[columns],
        );
        assert!(found.as_ref().unwrap().passed(), "row {i}: {found:?}");
    }
}

/// Dividing by sqrt(d) brings the scores' deviation back to 1 and rows out of saturation.
#[test]
fn the_scale_keeps_rows_from_saturating() {
    let d = 512;
    let look = |scale| {
        let mut case = generate(5, Shape::f32([1, 1, 128, d], 1, 128, 8), &[]);
        case.options.scale = scale;
        let raw = ScoreStatistics::of(&stage(&case, Stage::Raw));
        let weights = stage(&case, Stage::Probabilities);
        let weights = Weights::new(&weights, [128, 128]).unwrap();
        (raw.deviation, weights.saturated(SATURATED).unwrap().value)
    };
    let (before, saturated) = look(Some(1.0));
    let root = (d as f64).sqrt();
    assert!((0.97..1.03).contains(&(before / root)), "{before}");
    let (after, none) = look(None);
    assert!((after * root / before - 1.0).abs() < 1e-6, "{after}");
    assert!(saturated > 0.5 && none == 0.0, "{saturated} {none}");
}

/// A row as a softmax gives it, part of it perhaps lost to a sink.
fn row(keys: usize) -> impl Strategy<Value = Vec<f32>> {
    (vec(0f32..1.0, keys), 0.1f32..=1.0).prop_map(|(row, mass)| {
        let sum: f32 = row.iter().sum();
        let scale = if sum > 0.0 { mass / sum } else { 0.0 };
        row.iter().map(|w| w * scale).collect()
    })
}

/// Rows and keys, weights of that shape, and where they stand.
fn head() -> impl Strategy<Value = ([usize; 2], Vec<f32>, i64)> {
    (1usize..8, 1usize..12, -12i64..12).prop_flat_map(|(rows, keys, offset)| {
        let weights = vec(row(keys), rows).prop_map(|rows| rows.concat());
        (Just([rows, keys]), weights, Just(offset))
    })
}

/// The same cases every time: a failure has to be the code's.
fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 200,
        rng_seed: RngSeed::Fixed(4),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    /// n keys looked at evenly have entropy ln n, whatever a sink takes, and no row of n
    /// keys has more.
    #[test]
    fn uniform_rows_have_the_entropy_ln_n(n in 1usize..600, mass in 0.01f32..1.0, other in row(9)) {
        let even = vec![mass / n as f32; n];
        let entropy = Row::new(&even, 0).entropy().unwrap();
        prop_assert!((entropy - (n as f64).ln()).abs() < 1e-12);
        let entropy = Row::new(&other, 0).entropy().unwrap();
        prop_assert!((0.0..9f64.ln() + 1e-12).contains(&entropy));
    }

    /// However weights are sorted into distances, keys and ranges, none is lost.
    #[test]
    fn mass_is_kept(([rows, keys], values, offset) in head(), most in 0usize..30) {
        let weights = Weights::new(&values, [rows, keys]).unwrap().offset(offset);
        let mass = weights.mean(Row::mass);
        let total = mass.value * mass.rows as f64;
        let by_distance = weights.by_distance(most).unwrap();
        prop_assert_eq!(by_distance.len(), most + 1);
        prop_assert!((by_distance.iter().sum::<f64>() - mass.value).abs() < 1e-12);
        let received = weights.received().unwrap();
        prop_assert!((received.iter().sum::<f64>() - total).abs() < 1e-12);
        let found = Histogram::of(&values, &[0.1, 0.3, 0.7]).unwrap();
        let counted = found.counts.iter().sum::<u64>() + found.below + found.above;
        prop_assert_eq!(counted, values.len() as u64);
        // The mean distance agrees with the mass by distance where no row has a sink's part.
        let alone = Weights::new(&values[..keys], [1, keys]).unwrap().offset(offset);
        let far = alone.by_distance(64).unwrap();
        let mean = far.iter().enumerate().map(|(d, m)| d as f64 * m).sum::<f64>();
        let row = alone.row(0).unwrap();
        if let (Some(distance), Some(mass)) = (row.distance(), row.mass()) {
            prop_assert!((distance - mean / mass).abs() < 1e-9);
        }
    }

    /// Where the tokens of a period all differ, tokens and period say the same.
    #[test]
    fn a_period_is_a_sequence_of_tokens(
        ([rows, keys], values, offset) in head(),
        period in 1usize..9,
    ) {
        let weights = Weights::new(&values, [rows, keys]).unwrap().offset(offset);
        let tokens: Vec<usize> = (0..keys).map(|j| j % period).collect();
        let by_tokens = weights.induction(&tokens).unwrap();
        let by_period = weights.induction_of_period(period).unwrap();
        prop_assert_eq!(by_tokens.rows, by_period.rows);
        prop_assert_eq!(by_tokens.value.to_bits(), by_period.value.to_bits());
    }

    /// All rows together or a part of them at its offset: the same rows.
    #[test]
    fn a_part_of_the_rows_keeps_its_place(([rows, keys], values, offset) in head(), at in 0usize..8) {
        let at = at % rows;
        let whole = Weights::new(&values, [rows, keys]).unwrap().offset(offset);
        let part = Weights::new(&values[at * keys..], [rows - at, keys]).unwrap();
        let part = part.offset(offset + at as i64);
        prop_assert!(whole.rows().skip(at).eq(part.rows()));
    }

    /// Rows of a rollout sum to 1, and causal layers stay causal.
    #[test]
    fn rollouts_sum_to_1(
        layers in (1usize..7).prop_flat_map(|n| vec(vec(row(n), n), 1..4)),
        causal: bool,
    ) {
        let n = layers[0].len();
        let layers: Vec<Vec<f32>> = layers
            .into_iter()
            .map(|mut rows| {
                for (i, row) in rows.iter_mut().enumerate().filter(|_| causal) {
                    row[i + 1..].fill(0.0);
                }
                rows.concat()
            })
            .collect();
        let weights: Vec<_> = layers.iter().map(|l| Weights::new(l, [n, n]).unwrap()).collect();
        let found = rollout(&weights).unwrap();
        for (i, row) in found.chunks(n).enumerate() {
            prop_assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            prop_assert!(row[i] > 0.0, "the residual keeps a part of every token");
            prop_assert!(!causal || row[i + 1..].iter().all(|&share| share == 0.0));
        }
    }

    /// Ranked keys are the largest ones, in order, each once.
    #[test]
    fn top_keys_are_the_largest(values in row(11), sizes in vec(0f32..4.0, 11), count in 0usize..12) {
        for by in [RankBy::Weight, RankBy::Contribution] {
            let top = Row::new(&values, 0).top(&sizes, by, count).unwrap();
            let rank = |j: usize| if by == RankBy::Weight { values[j] } else { sizes[j] };
            let keys: Vec<usize> = top.iter().map(|key| key.key).collect();
            prop_assert!(keys.windows(2).all(|pair| rank(pair[0]) >= rank(pair[1])));
            let left = (0..11).filter(|j| !keys.contains(j)).map(rank).fold(0.0, f32::max);
            prop_assert!(keys.iter().all(|&j| rank(j) >= left));
            let ranked = (0..11).filter(|&j| rank(j) > 0.0).count();
            prop_assert_eq!(keys.len(), count.min(ranked));
        }
    }

    /// The mean of heads that are alike is each of them, and of rows that sum to 1 one.
    #[test]
    fn means_over_heads((shape, values, _) in head(), heads in 1usize..5) {
        let [rows, keys] = shape;
        let mean = mean_over_heads(&values.repeat(heads), [heads, rows, keys]).unwrap();
        prop_assert_eq!(mean, values);
    }
}

/// Axes of any length over nothing end at once and panic nowhere.
#[test]
fn empty_lists_of_huge_shapes() {
    use wgpu_attention::interpret::{Contributions, Row, Weights, mean_over_heads};
    let weights = Weights::new(&[], [usize::MAX, 0]).unwrap();
    assert_eq!(weights.mean(Row::entropy).rows, 0);
    assert!(mean_over_heads(&[], [usize::MAX, 0, 5]).unwrap().is_empty());
    let error = Contributions::new(&[], &[], usize::MAX).unwrap_err();
    assert!(
        error.to_string().starts_with("dim: expected 1 to"),
        "{error}"
    );
}
