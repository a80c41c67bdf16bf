//! Inspection of slices: what has to hold of weights, contributions and summaries
//! whatever the numbers are, norms through an output projection, and whether an LSE
//! belongs to its queries and keys.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use common::{Feature, OwnedCase, Shape, generate, random_case};
use gpu::{Report, gpu, kernels};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::reference::{self, compare};
use wgpu_attention::{
    Attention, DType, Inputs, Inspection, Options, Pairs, PlanOptions, Quantity, Region, Rows,
    Stage, Stats, Tensor, UploadedInspection, gram_matrices,
};

fn whole(case: &OwnedCase) -> Region {
    Region {
        batches: 0..case.dims.batch,
        heads: 0..case.dims.q_heads,
        rows: 0..case.dims.q_len,
    }
}

fn all_pairs(case: &OwnedCase, quantity: Quantity) -> Pairs {
    Pairs {
        quantity,
        region: whole(case),
        keys: 0..case.dims.kv_len,
    }
}

fn upload(case: &OwnedCase, inspection: &Inspection<'_>) -> UploadedInspection {
    let uploaded = gpu().upload_inspection(&case.inputs(), &case.options, inspection);
    uploaded.unwrap()
}

const WEIGHTS: Quantity = Quantity::Stage(Stage::Probabilities);

/// Features that leave every number finite and some pairs of most rows excluded.
const TAME: [&[Feature]; 4] = [
    &[Feature::Causal],
    &[Feature::Sinks, Feature::MaskBits],
    &[Feature::WindowLeft, Feature::Softcap, Feature::Alibi],
    &[Feature::KvLengths, Feature::Segments, Feature::BiasNegInf],
];

/// Weights of a row and its sink's sum to 1 where a key is visible, excluded pairs are
/// exactly 0, and the vectors W(i, j) V_j add up to the output.
#[test]
fn weights_and_contributions_add_up() {
    let mut report = Report::new();
    for (seed, features) in TAME.into_iter().enumerate() {
        let case = generate(seed as u64, Shape::f32([2, 4, 40, 8], 2, 33, 12), features);
        let d = case.dims;
        let uploaded = upload(&case, &Inspection::default());
        let weights = uploaded.pairs(&all_pairs(&case, WEIGHTS)).unwrap();
        let sizes = uploaded
            .pairs(&all_pairs(&case, Quantity::Contribution))
            .unwrap();
        let rows = Rows {
            region: whole(&case),
            top: 3,
            first_keys: 1,
        };
        let rows = uploaded.rows(&rows).unwrap();
        let output = gpu().run(&case.inputs(), &case.options).unwrap().output;
        let value = case.value.to_f32();
        let mut hidden = 0;
        for (n, row) in rows.iter().enumerate() {
            let [b, h, i] = [n / 160, n / 40 % 4, n % 40];
            let w = &weights[n * 33..(n + 1) * 33];
            let what = format!("{} row {n}", case.name);
            let sum: f32 = w.iter().sum();
            let expected = if row.visible > 0.0 {
                1.0 - row.sink_mass
            } else {
                0.0
            };
            // 33 weights, each right to some 2^-20.
            report.expect((sum - expected).abs() < 1e-5, format!("{what}: sum {sum}"));
            report.expect((row.mass - sum).abs() < 1e-5, format!("{what}: mass"));
            let mut vector = [0f64; 12];
            for (j, &w) in w.iter().enumerate() {
                let size = sizes[n * 33 + j];
                if !case.visible([b, h, i, j]) {
                    hidden += 1;
                    report.expect(
                        w == 0.0 && size == 0.0,
                        format!("{what} key {j}: {w}, {size}"),
                    );
                }
                let v = &value[((b * 2 + h / 2) * 33 + j) * 12..][..12];
                let norm = v.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
                let expected = f64::from(w) * norm;
                report.expect(
                    (f64::from(size) - expected).abs() <= 1e-6 * expected,
                    format!("{what} key {j}: {size}, not {expected}"),
                );
                vector
                    .iter_mut()
                    .zip(v)
                    .for_each(|(sum, &v)| *sum += f64::from(w) * f64::from(v));
            }
            for (got, o) in vector.iter().zip(&output[n * 12..]) {
                report.expect(
                    (got - f64::from(*o)).abs() < 1e-4,
                    format!("{what}: {got}, {o}"),
                );
            }
        }
        report.expect(
            hidden > 100,
            format!("{}: only {hidden} excluded", case.name),
        );
        report.expect(rows.len() == d.rows(), "rows");
    }
    report.finish(0);
}

/// A large bias on a whole row changes no weight: a forward pass's states, not an LSE in
/// one f32, say what weights are.
#[test]
fn a_bias_of_any_size_on_a_whole_row() {
    let zeros = [0.0; 8 * 4];
    let tensor = |rows| Tensor::f32(&zeros[..rows * 4], [1, 1, rows, 4]).unwrap();
    for number in [-1e4, -65504.0, -1e9, -1e30, -3.4e38, 1e9] {
        let bias = [number; 8];
        let inputs = Inputs::new(tensor(1), tensor(8), tensor(8))
            .bias(Tensor::f32(&bias, [1, 1, 1, 8]).unwrap());
        for kernel in kernels() {
            let inspection = Inspection {
                plan: PlanOptions::default().kernel(kernel),
                ..Inspection::default()
            };
            let uploaded = gpu().upload_inspection(&inputs, &Options::default(), &inspection);
            let uploaded = uploaded.unwrap();
            let region = Region {
                batches: 0..1,
                heads: 0..1,
                rows: 0..1,
            };
            let pairs = Pairs {
                quantity: WEIGHTS,
                region: region.clone(),
                keys: 0..8,
            };
            for w in uploaded.pairs(&pairs).unwrap() {
                assert!((w - 0.125).abs() < 1e-6, "{kernel} {number}: {w}");
            }
            uploaded.check_lse(&region, 1e-5).unwrap();
        }
    }
}

/// n equal keys: every weight is 1/n and the entropy ln n; a causal row i has n = i + 1.
#[test]
fn uniform_attention_has_entropy_ln_n() {
    let (query, key) = (vec![0.5; 40 * 8], vec![0.25; 40 * 8]);
    let value: Vec<f32> = (0..40 * 4).map(|n| n as f32).collect();
    let tensor = |values, dim| Tensor::f32(values, [1, 1, 40, dim]).unwrap();
    let inputs = Inputs::new(tensor(&query, 8), tensor(&key, 8), tensor(&value, 4));
    let options = Options::default().causal(true);
    let uploaded = gpu()
        .upload_inspection(&inputs, &options, &Inspection::default())
        .unwrap();
    let rows = Rows {
        region: Region {
            batches: 0..1,
            heads: 0..1,
            rows: 0..40,
        },
        top: 2,
        first_keys: 1,
    };
    for (i, row) in uploaded.rows(&rows).unwrap().iter().enumerate() {
        let n = (i + 1) as f32;
        // exp2 and log are right to a few ulp of numbers up to 4.
        assert!((row.entropy - n.ln()).abs() < 4e-6, "{i}: {row:?}");
        assert!((row.largest() - 1.0 / n).abs() < 1e-6, "{i}: {row:?}");
        assert_eq!(row.top[0].key, 0, "the first among equals");
        assert_eq!(row.visible, n);
        assert!(row.score_deviation() < 1e-6);
    }
}

/// The key with the largest weight adds the least: weights are not importance.
#[test]
fn largest_weight_can_be_the_smallest_contribution() {
    // Scores 2, 1, 0; values of size 0.01, 1 and 10.
    let query = [1.0];
    let key = [2.0, 1.0, 0.0];
    let value = [0.01, 0.0, 0.0, 1.0, 6.0, 8.0];
    let inputs = Inputs::new(
        Tensor::f32(&query, [1, 1, 1, 1]).unwrap(),
        Tensor::f32(&key, [1, 1, 3, 1]).unwrap(),
        Tensor::f32(&value, [1, 1, 3, 2]).unwrap(),
    );
    let uploaded = gpu()
        .upload_inspection(&inputs, &Options::default(), &Inspection::default())
        .unwrap();
    let rows = Rows {
        region: Region {
            batches: 0..1,
            heads: 0..1,
            rows: 0..1,
        },
        top: 3,
        first_keys: 1,
    };
    let row = &uploaded.rows(&rows).unwrap()[0];
    let total = 2f64.exp() + 1f64.exp() + 1.0;
    let expected = [(0, 2f64.exp(), 0.01), (1, 1f64.exp(), 1.0), (2, 1.0, 10.0)];
    for (top, (key, e, norm)) in row.top.iter().zip(expected) {
        assert_eq!(top.key, key);
        assert!((f64::from(top.weight) - e / total).abs() < 1e-6, "{top:?}");
        let contribution = e / total * norm;
        assert!(
            (f64::from(top.contribution) - contribution).abs() < 1e-5,
            "{top:?}"
        );
    }
    let of = |n: usize| row.top[n].contribution;
    assert!(of(0) < of(1) && of(1) < of(2), "{row:?}");
}

/// Norms through W_O against the oracle, and that against |V_j W_O^(h)| in f64.
#[test]
fn contributions_through_an_output_projection() {
    let mut report = Report::new();
    for (seed, dtype) in [DType::F32, DType::F16, DType::BF16]
        .into_iter()
        .enumerate()
    {
        let (heads, width) = (4, 7 + 9 * seed);
        let shape = Shape {
            key_value: dtype,
            ..Shape::f32([2, heads, 20, 8], 2, 21, width)
        };
        let case = generate(seed as u64, shape, &[Feature::Causal]);
        let mut rng = StdRng::seed_from_u64(seed as u64);
        let outputs = 50;
        let weight: Vec<f32> = (0..outputs * heads * width)
            .map(|_| rng.random_range(-1.0..1.0))
            .collect();
        let weight = Tensor::f32(&weight, [1, 1, outputs, heads * width]).unwrap();
        let gram = gram_matrices(&weight, heads, width).unwrap();
        let gram = Tensor::f32(&gram, [1, heads, width, width]).unwrap();
        let inputs = case.inputs();
        let norms = reference::value_norms_through(&inputs.value, &gram).unwrap();
        // From the formula: v(j) times the columns of W_O that are head h's.
        let value = case.value.to_f32();
        for (n, &got) in norms.values.iter().enumerate() {
            let [b, h, j] = [n / (heads * 21), n / 21 % heads, n % 21];
            let v = &value[((b * 2 + h / 2) * 21 + j) * width..][..width];
            let through = (0..outputs).map(|e| {
                let of = |d: usize| f64::from(weight.at([0, 0, e, h * width + d]));
                (0..width).map(|d| f64::from(v[d]) * of(d)).sum::<f64>()
            });
            let exact = through.map(|x| x * x).sum::<f64>().sqrt();
            report.expect(
                (got - exact).abs() <= 1e-6 * exact,
                format!("{dtype:?} {n}: {got}, not {exact}"),
            );
        }
        let norms_f32: Vec<f32> = norms.values.iter().map(|&x| x as f32).collect();
        let norms_tensor = Tensor::f32(&norms_f32, [2, heads, 21, 1]).unwrap();
        let pairs = all_pairs(&case, Quantity::Contribution);
        let expected = reference::pairs(
            &inputs,
            &case.options,
            Stats::RowState,
            Some(&norms_tensor),
            &pairs,
            DType::F32,
        )
        .unwrap();
        let inspection = Inspection {
            output_weight: Some(weight),
            ..Inspection::default()
        };
        let got = upload(&case, &inspection).pairs(&pairs).unwrap();
        // The device's norms are off by their own bound.
        let bounds: Vec<f64> = expected
            .bound
            .iter()
            .enumerate()
            .map(|(n, bound)| {
                let [b, h, j] = [n / (heads * 20 * 21), n / (20 * 21) % heads, n % 21];
                let at = (b * heads + h) * 21 + j;
                let share = norms.bound[at] / norms.values[at];
                bound + expected.values[n] * share
            })
            .collect();
        let found = compare(&got, &expected.values, &bounds);
        report.record(&case.name, "contributions", expected.values.len(), found);
    }
    report.finish(3 * 2 * 4 * 20 * 21);
}

/// The mass of keys and summaries agree with the weights.
#[test]
fn summaries_agree_with_weights() {
    let mut report = Report::new();
    let mut seen = 0;
    for seed in 20..26 {
        let case = random_case(seed);
        if case.dims.kv_len == 0 || case.dims.q_len == 0 || case.name.contains("Poison") {
            continue;
        }
        seen += 1;
        let uploaded = upload(&case, &Inspection::default());
        let (inputs, region) = (case.inputs(), whole(&case));
        let expected =
            reference::received(&inputs, &case.options, Stats::RowState, &region).unwrap();
        let got = uploaded.received(&region).unwrap();
        let weights = uploaded.pairs(&all_pairs(&case, WEIGHTS)).unwrap();
        let (rows, keys) = (case.dims.q_len, case.dims.kv_len);
        for (n, &got) in got.iter().enumerate() {
            let head = &weights[n / keys * rows * keys..];
            let sum: f32 = (0..rows).map(|i| head[i * keys + n % keys]).sum();
            let near = (sum - got).abs() <= 1e-5 * sum.max(1.0) || sum.is_nan() && got.is_nan();
            report.expect(near, format!("{}: key {n}: {got}, {sum}", case.name));
        }
        let found = compare(&got, &expected.values, &expected.bound);
        let open = found.as_ref().map_or(0, |found| found.undetermined);
        report.expect(open * 4 <= got.len(), format!("{}: {open} open", case.name));
        report.record(&case.name, "received", got.len() - open, found);
    }
    report.expect(seen >= 2, format!("{seen} cases"));
    report.finish(10);
}

#[test]
fn an_lse_that_belongs_elsewhere_is_refused() {
    let features = [Feature::Causal, Feature::KvLengths];
    let case = generate(2, Shape::f32([2, 2, 24, 8], 1, 24, 8), &features);
    let lse = gpu().run(&case.inputs(), &case.options).unwrap().lse;
    let check = |lse: &[f32], region: &Region| {
        let inspection = Inspection {
            lse: Some(lse),
            ..Inspection::default()
        };
        upload(&case, &inspection).check_lse(region, 1e-3)
    };
    let all = whole(&case);
    check(&lse, &all).unwrap();
    upload(&case, &Inspection::default())
        .check_lse(&all, 1e-3)
        .unwrap();

    // In base 2, of the row before, off by a little, of no keys.
    let base2: Vec<f32> = lse.iter().map(|x| x * std::f32::consts::LOG2_E).collect();
    let mut shifted = lse.clone();
    shifted.rotate_right(1);
    let mut off = lse.clone();
    off[2 * 24 + 7] += 0.01;
    let mut nan = lse.clone();
    nan[2 * 24 + 7] = f32::NAN;
    let mut infinite = lse.clone();
    infinite[2 * 24 + 7] = f32::NEG_INFINITY;
    for wrong in [&base2, &shifted] {
        let error = check(wrong, &all).unwrap_err().to_string();
        assert!(error.starts_with("lse: expected "), "{error}");
    }
    for wrong in [&off, &nan, &infinite] {
        let error = check(wrong, &all).unwrap_err().to_string();
        assert!(error.contains("row [1, 0, 7]"), "{error}");
        // Elsewhere nothing is wrong.
        let first = Region {
            batches: 0..1,
            ..all.clone()
        };
        check(wrong, &first).unwrap();
    }
    let short = gpu().upload_inspection(
        &case.inputs(),
        &case.options,
        &Inspection {
            lse: Some(&lse[1..]),
            ..Inspection::default()
        },
    );
    let error = short.unwrap_err().to_string();
    assert!(error.starts_with("lse"), "{error}");
}

/// A row without visible keys has an LSE of -inf, or of its sink.
#[test]
fn the_lse_of_an_empty_row() {
    let mut case = generate(2, Shape::f32([1, 2, 4, 8], 1, 6, 8), &[]);
    case.kv_lengths = Some(vec![0]);
    let inputs = case.inputs();
    let check = |inputs: &Inputs<'_>, lse: &[f32]| {
        let inspection = Inspection {
            lse: Some(lse),
            ..Inspection::default()
        };
        let uploaded = gpu().upload_inspection(inputs, &case.options, &inspection);
        uploaded.unwrap().check_lse(&whole(&case), 1e-3)
    };
    check(&inputs, &[f32::NEG_INFINITY; 8]).unwrap();
    let error = check(&inputs, &[0.0; 8]).unwrap_err().to_string();
    assert!(error.contains("-inf for row [0, 0, 0]"), "{error}");

    let sinks = [0.5, f32::NEG_INFINITY];
    let inputs = inputs.sinks(&sinks);
    let mut lse = [0.5; 8];
    lse[4..].fill(f32::NEG_INFINITY);
    check(&inputs, &lse).unwrap();
    lse[1] = 0.0;
    let error = check(&inputs, &lse).unwrap_err().to_string();
    assert!(error.contains("row [0, 0, 1]"), "{error}");
}

#[test]
fn bad_input_is_named() {
    let case = generate(2, Shape::f32([1, 2, 4, 8], 1, 6, 8), &[]);
    let uploaded = upload(&case, &Inspection::default());
    let region = |rows| Region {
        rows,
        ..whole(&case)
    };
    let said = |result: wgpu_attention::Result<Vec<f32>>| result.unwrap_err().to_string();
    let mut pairs = all_pairs(&case, WEIGHTS);
    pairs.keys = 2..7;
    let error = said(uploaded.pairs(&pairs));
    assert!(
        error.starts_with("region keys: expected a range within 0..6"),
        "{error}"
    );
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = 3..2;
    pairs.keys = backwards.clone();
    assert!(said(uploaded.pairs(&pairs)).starts_with("region keys"));
    pairs.keys = 0..6;
    pairs.region = region(backwards);
    assert!(said(uploaded.pairs(&pairs)).starts_with("region rows"));
    let error = said(uploaded.received(&region(0..5)));
    assert!(error.starts_with("region rows"), "{error}");
    let none = uploaded.received(&region(2..2)).unwrap();
    assert_eq!(none, [0.0; 2 * 6]);

    for top in [0, 17, 1 << 40, usize::MAX] {
        let rows = Rows {
            region: region(0..4),
            top,
            first_keys: 0,
        };
        let error = uploaded.rows(&rows).unwrap_err().to_string();
        assert!(error.starts_with("top: expected 1 to 16"), "{error}");
        assert!(rows.width() >= 24);
    }
    for tolerance in [f32::NAN, -1.0, f32::INFINITY] {
        let error = uploaded.check_lse(&whole(&case), tolerance).unwrap_err();
        assert!(error.to_string().starts_with("tolerance"), "{error}");
    }

    // Nothing was asked for, and nothing comes.
    pairs.region = region(1..1);
    assert!(uploaded.pairs(&pairs).unwrap().is_empty());
    pairs.region = region(0..4);
    pairs.keys = 6..6;
    assert!(uploaded.pairs(&pairs).unwrap().is_empty());

    for shape in [[1, 1, 5, 17], [1, 2, 5, 8]] {
        let numbers = vec![0.0; shape.iter().product()];
        let inspection = Inspection {
            output_weight: Some(Tensor::f32(&numbers, shape).unwrap()),
            ..Inspection::default()
        };
        let wrong = Attention::upload_inspection(gpu(), &case.inputs(), &case.options, &inspection);
        let error = wrong.unwrap_err().to_string();
        assert!(error.starts_with("output weight"), "{error}");
    }
}

/// Without keys there is nothing to look at, and nothing that fails.
#[test]
fn no_keys() {
    let case = generate(1, Shape::f32([2, 4, 5, 8], 2, 0, 6), &[]);
    let weight = vec![0.5; 3 * 24];
    for output_weight in [None, Some(Tensor::f32(&weight, [1, 1, 3, 24]).unwrap())] {
        let inspection = Inspection {
            output_weight,
            ..Inspection::default()
        };
        let uploaded = upload(&case, &inspection);
        for quantity in [WEIGHTS, Quantity::Contribution] {
            let pairs = uploaded.pairs(&all_pairs(&case, quantity)).unwrap();
            assert!(pairs.is_empty());
        }
    }
}

#[test]
fn a_weight_whose_gram_matrices_fit_nowhere() {
    let wide = Tensor::f32(&[], [1, 1, 0, 1 << 40]).unwrap();
    assert!(gram_matrices(&wide, 1, 1 << 40).is_err());
    let (query, key) = ([0.0; 1], [0.0; 1]);
    let value = vec![0.0; 1 << 17];
    let tensor = |values| Tensor::f32(values, [1, 1, 1, 1]).unwrap();
    let of_value = Tensor::f32(&value, [1, 1, 1, 1 << 17]).unwrap();
    let inputs = Inputs::new(tensor(&query), tensor(&key), of_value);
    let inspection = Inspection {
        output_weight: Some(of_value),
        ..Inspection::default()
    };
    let error = gpu().upload_inspection(&inputs, &Options::default(), &inspection);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("gram matrices"), "{error}");
}

/// A NaN in a query reaches the weights of its row, and no excluded pair or other row.
#[test]
fn nan_stays_in_its_row() {
    let mut case = generate(3, Shape::f32([1, 2, 12, 8], 1, 12, 8), &[Feature::Causal]);
    // Head 1, row 5.
    case.query.set((12 + 5) * 8 + 2, f32::NAN);
    let uploaded = upload(&case, &Inspection::default());
    for quantity in [WEIGHTS, Quantity::Contribution] {
        let all = uploaded.pairs(&all_pairs(&case, quantity)).unwrap();
        for (n, w) in all.iter().enumerate() {
            let [h, i, j] = [n / 144, n / 12 % 12, n % 12];
            match (j <= i, (h, i) == (1, 5)) {
                (false, _) => assert_eq!(*w, 0.0, "{h} {i} {j}"),
                (true, is_its_row) => assert_eq!(w.is_nan(), is_its_row, "{h} {i} {j}: {w}"),
            }
        }
    }
    let rows = Rows {
        region: whole(&case),
        top: 1,
        first_keys: 1,
    };
    for (n, row) in uploaded.rows(&rows).unwrap().iter().enumerate() {
        assert_eq!(row.mass.is_nan(), n == 12 + 5, "{n}: {row:?}");
    }
    for (n, mass) in uploaded.received(&whole(&case)).unwrap().iter().enumerate() {
        assert_eq!(mass.is_nan(), n >= 12 && n - 12 <= 5, "{n}: {mass}");
    }
}

/// Weights that a wrong LSE makes infinite are the largest.
#[test]
fn infinite_weights_are_listed() {
    let case = generate(3, Shape::f32([1, 1, 2, 8], 1, 7, 8), &[]);
    let inspection = Inspection {
        lse: Some(&[-1000.0, 0.0]),
        ..Inspection::default()
    };
    let rows = Rows {
        region: whole(&case),
        top: 3,
        first_keys: 0,
    };
    let rows = upload(&case, &inspection).rows(&rows).unwrap();
    assert_eq!(rows[0].largest(), f32::INFINITY);
    let keys: Vec<u32> = rows[0].top.iter().map(|top| top.key).collect();
    assert_eq!(keys, [0, 1, 2]);
}

/// Long rows are right, or refused: some drivers end long loops silently.
#[test]
fn long_rows_are_right_or_refused() {
    for keys in [50_000, 262_144] {
        let (query, key) = ([0.5f32; 2], vec![0.25f32; keys]);
        let tensor = |list, n| Tensor::f32(list, [1, 1, n, 1]).unwrap();
        let inputs = Inputs::new(tensor(&query, 2), tensor(&key, keys), tensor(&key, keys));
        let options = Options::default();
        let lse = 0.5 * 0.25 + (keys as f32).ln();
        let inspection = Inspection {
            lse: Some(&[lse; 2]),
            ..Inspection::default()
        };
        let uploaded = gpu()
            .upload_inspection(&inputs, &options, &inspection)
            .unwrap();
        let region = Region {
            batches: 0..1,
            heads: 0..1,
            rows: 0..2,
        };
        for top in [1, 16] {
            let rows = Rows {
                region: region.clone(),
                top,
                first_keys: 1,
            };
            match uploaded.rows(&rows) {
                Err(error) => assert!(error.is_unsupported(), "{keys}, {top}: {error}"),
                Ok(rows) => {
                    for row in rows {
                        let n = keys as f32;
                        assert_eq!(row.visible, n, "{keys}, {top}");
                        assert!((row.mass - 1.0).abs() < 1e-4, "{keys}, {top}: {row:?}");
                        assert!(
                            (row.entropy - n.ln()).abs() < 1e-3,
                            "{keys}, {top}: {row:?}"
                        );
                        let listed: Vec<u32> = row.top.iter().map(|top| top.key).collect();
                        let first: Vec<u32> = (0..top as u32).collect();
                        assert_eq!(listed, first, "{keys}, {top}");
                        let sum: f32 = row.distance_mass.iter().sum();
                        assert!((sum - 1.0).abs() < 1e-4, "{keys}, {top}: {row:?}");
                    }
                }
            }
        }
        let pairs = Pairs {
            quantity: WEIGHTS,
            region: region.clone(),
            keys: keys - 3..keys,
        };
        for w in uploaded.pairs(&pairs).unwrap() {
            assert!((w * keys as f32 - 1.0).abs() < 1e-5, "{keys}: {w}");
        }
    }
}
