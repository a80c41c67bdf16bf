//! Tests of what the inspections are compared with: the oracle's expectations let pass
//! what single precision gives, and reject faults planted in it.

mod common;

use common::{Feature, OwnedCase, Shape, generate};
use wgpu_attention::reference::{self, RowExpected, StageExpected, compare};
use wgpu_attention::{
    DType, Pairs, Quantity, Region, RowSummary, Rows, Stage, Stats, Tensor, TopKey,
};

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// 2^(s - lse).
    Base2,
    /// Relative to the largest score, not normalised.
    Unnormalised,
    LseOfNextRow,
    ExcludedHasWeight,
    NextNorm,
    NormSquared,
    NormOfOtherHead,
    EntropyBase2,
    EntropyNotNormalised,
    MassWithSink,
    SinkMissing,
    FirstKeysOneMore,
    DistanceOneMore,
    DistanceIgnoresOffset,
    BinsOneLower,
    MeanOfMasked,
    MeanOverAllKeys,
    SquaresAroundZero,
    TopOrder,
    TopLeavesOneOut,
    TopKeyOff,
    TopNormMissing,
    ReceivedShifted,
    ReceivedLeavesLastRowOut,
}

use Fault::*;

const ROWS: usize = 23;
const KEYS: usize = 37;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const TOP: usize = 4;
const FIRST: usize = 3;

fn case(features: &[Feature]) -> OwnedCase {
    generate(
        11,
        Shape::f32([2, HEADS, ROWS, 8], KV_HEADS, KEYS, 6),
        features,
    )
}

fn region() -> Region {
    Region {
        batches: 0..2,
        heads: 0..HEADS,
        rows: 0..ROWS,
    }
}

/// Different for every key and head.
fn norms() -> Vec<f32> {
    (0..2 * KV_HEADS * KEYS)
        .map(|n| 0.5 + (n * 29 % 83) as f32 / 16.0)
        .collect()
}

/// A stage's scores in single precision.
fn scores(case: &OwnedCase, stage: Stage) -> Vec<f32> {
    let (inputs, options) = (case.inputs(), &case.options);
    let found = reference::stage(&inputs, options, stage, 0..2, 0..HEADS, 0..ROWS).unwrap();
    found.values.iter().map(|&s| s as f32).collect()
}

/// What single precision makes of a case, from the formulas alone.
struct Single {
    weights: Vec<f32>,
    contributions: Vec<f32>,
    rows: Vec<RowSummary>,
    received: Vec<f32>,
}

fn single(case: &OwnedCase, fault: Fault) -> Single {
    let expected = reference::forward(&case.inputs(), &case.options, DType::F32).unwrap();
    let lse: Vec<f32> = expected.lse.iter().map(|&x| x as f32).collect();
    let (raw, masked) = (scores(case, Stage::Raw), scores(case, Stage::Masked));
    let norms = norms();
    let mut single = Single {
        weights: Vec::new(),
        contributions: Vec::new(),
        rows: Vec::new(),
        received: vec![0.0; 2 * HEADS * KEYS],
    };
    for n in 0..2 * HEADS * ROWS {
        let [b, h, i] = [n / (HEADS * ROWS), n / ROWS % HEADS, n % ROWS];
        let line = |all: &[f32]| all[n * KEYS..(n + 1) * KEYS].to_vec();
        let (raw, masked) = (line(&raw), line(&masked));
        let seen = |j: usize| masked[j] > f32::NEG_INFINITY;
        let lse = match fault {
            LseOfNextRow => lse[(n + 1) % lse.len()],
            Unnormalised => masked.iter().copied().fold(f32::MIN, f32::max),
            _ => lse[n],
        };
        let exp = |x: f32| if fault == Base2 { x.exp2() } else { x.exp() };
        let norm = |j: usize| {
            let head = match fault {
                NormOfOtherHead => h % KV_HEADS,
                _ => h / (HEADS / KV_HEADS),
            };
            let j = if fault == NextNorm { (j + 1) % KEYS } else { j };
            let norm = norms[(b * KV_HEADS + head) * KEYS + j];
            if fault == NormSquared {
                norm * norm
            } else {
                norm
            }
        };
        let weight = |j: usize| match (seen(j), fault) {
            (true, _) => exp(masked[j] - lse),
            (false, ExcludedHasWeight) => 1e-9,
            (false, _) => 0.0,
        };
        let p: Vec<f32> = (0..KEYS).map(weight).collect();
        let visible: Vec<usize> = (0..KEYS).filter(|&j| seen(j)).collect();
        let sum = |of: &dyn Fn(usize) -> f32| visible.iter().map(|&j| of(j)).sum::<f32>();
        let mass = sum(&|j| p[j]);
        let sink = match (&case.sinks, fault) {
            (Some(sinks), f) if f != SinkMissing => exp(sinks[h] - lse),
            _ => 0.0,
        };
        let entropy = match fault {
            EntropyNotNormalised => -sum(&|j| p[j] * (masked[j] - lse)),
            _ => mass.ln() - sum(&|j| p[j] * (masked[j] - lse)) / mass,
        };
        let entropy = match fault {
            EntropyBase2 => entropy / std::f32::consts::LN_2,
            _ => entropy,
        };
        let first = FIRST + usize::from(fault == FirstKeysOneMore);
        let of_mean = if fault == MeanOfMasked { &masked } else { &raw };
        let count = match fault {
            MeanOverAllKeys => KEYS,
            _ => visible.len(),
        };
        let mean = sum(&|j| of_mean[j]) / (count as f32).max(1.0);
        let centre = if fault == SquaresAroundZero {
            0.0
        } else {
            mean
        };
        let offset = match fault {
            DistanceIgnoresOffset => 0,
            _ => case.visibility(b).offset,
        };
        let mut bins = [0.0; 16];
        for &j in &visible {
            let mut distance = (i as i64 + offset - j as i64).unsigned_abs();
            distance += u64::from(fault == DistanceOneMore);
            let bin = match distance {
                0 => 0,
                d => 1 + d.ilog2() as usize,
            };
            let bin = bin.saturating_sub(usize::from(fault == BinsOneLower));
            bins[bin] += p[j];
        }
        let mut order = visible.clone();
        order.sort_by(|&a, &b| p[b].total_cmp(&p[a]).then(a.cmp(&b)));
        if fault == TopLeavesOneOut && order.len() > TOP {
            order.remove(1);
        }
        order.truncate(TOP);
        if fault == TopOrder {
            order.reverse();
        }
        let top = order.iter().map(|&j| TopKey {
            key: j as u32 + u32::from(fault == TopKeyOff),
            weight: p[j],
            contribution: p[j]
                * if fault == TopNormMissing {
                    1.0
                } else {
                    norm(j)
                },
        });
        single.rows.push(RowSummary {
            mass: mass + if fault == MassWithSink { sink } else { 0.0 },
            sink_mass: sink,
            entropy: if visible.is_empty() { 0.0 } else { entropy },
            contributions: sum(&|j| p[j] * norm(j)),
            first_mass: (0..first).map(|j| p[j]).sum(),
            visible: visible.len() as f32,
            score_mean: mean,
            score_squares: sum(&|j| (of_mean[j] - centre).powi(2)),
            distance_mass: bins,
            top: top.collect(),
        });
        for (j, &p) in p.iter().enumerate() {
            let to = if fault == ReceivedShifted {
                (j + 1) % KEYS
            } else {
                j
            };
            if fault != ReceivedLeavesLastRowOut || i + 1 < ROWS {
                single.received[(b * HEADS + h) * KEYS + to] += p;
            }
            single.contributions.push(p * norm(j));
        }
        single.weights.extend(p);
    }
    single
}

/// What is wrong with it by the oracle; the number of comparisons.
fn judge(case: &OwnedCase, single: &Single) -> (Vec<String>, usize) {
    let (inputs, options, stats) = (case.inputs(), &case.options, Stats::Lse);
    let norms = norms();
    let norms = Tensor::f32(&norms, [2, KV_HEADS, KEYS, 1]).unwrap();
    let mut wrong = Vec::new();
    let mut compared = 0;
    let mut judge = |name: &str, got: &[f32], values: &[f64], bounds: &[f64]| {
        let found = compare(got, values, bounds).unwrap();
        compared += found.compared;
        if !found.passed() || found.undetermined > 0 {
            wrong.push(format!("{name}: {found}"));
        }
    };
    let weights = Quantity::Stage(Stage::Probabilities);
    for (quantity, got) in [
        (weights, &single.weights),
        (Quantity::Contribution, &single.contributions),
    ] {
        let pairs = Pairs {
            quantity,
            region: region(),
            keys: 0..KEYS,
        };
        let StageExpected { values, bound } =
            reference::pairs(&inputs, options, stats, Some(&norms), &pairs, DType::F32).unwrap();
        judge(&format!("{quantity:?}"), got, &values, &bound);
    }
    let rows = Rows {
        region: region(),
        top: TOP,
        first_keys: FIRST,
    };
    let expected = reference::rows(&inputs, options, stats, Some(&norms), &rows).unwrap();
    for (n, (got, expected)) in single.rows.iter().zip(&expected).enumerate() {
        let name = format!("row {n}");
        judge(
            &name,
            &RowExpected::numbers(got),
            &expected.values,
            &expected.bound,
        );
    }
    let StageExpected { values, bound } =
        reference::received(&inputs, options, stats, &region()).unwrap();
    judge("received", &single.received, &values, &bound);
    for (n, (got, expected)) in single.rows.iter().zip(&expected).enumerate() {
        match expected.check_top(&got.top) {
            Ok(numbers) => compared += numbers,
            Err(what) => wrong.push(format!("row {n} top: {what}")),
        }
    }
    (wrong, compared)
}

/// Every number of single precision is within its bound.
#[test]
fn single_precision_passes() {
    for features in [
        &[][..],
        &[Feature::Causal],
        &[Feature::Sinks, Feature::MaskBits],
        &[Feature::Softcap, Feature::Alibi, Feature::WindowBoth],
        &[Feature::Bias, Feature::KvLengths, Feature::Segments],
        &[Feature::PerSequence, Feature::Causal, Feature::Sinks],
    ] {
        let case = case(features);
        let (wrong, compared) = judge(&case, &single(&case, None));
        assert!(wrong.is_empty(), "{features:?}: {wrong:?}");
        // Weights, contributions, 24 numbers a row, mass of keys.
        let least = 2 * HEADS * (2 * ROWS * KEYS + 24 * ROWS + KEYS);
        assert!(compared >= least, "{features:?}: {compared}");
    }
}

#[test]
fn faults_are_rejected() {
    let case = case(&[
        Feature::Causal,
        Feature::PerSequence,
        Feature::Sinks,
        Feature::MaskBits,
        Feature::Bias,
    ]);
    assert!(judge(&case, &single(&case, None)).0.is_empty());
    for fault in [
        Base2,
        Unnormalised,
        LseOfNextRow,
        ExcludedHasWeight,
        NextNorm,
        NormSquared,
        NormOfOtherHead,
        EntropyBase2,
        EntropyNotNormalised,
        MassWithSink,
        SinkMissing,
        FirstKeysOneMore,
        DistanceOneMore,
        DistanceIgnoresOffset,
        BinsOneLower,
        MeanOfMasked,
        MeanOverAllKeys,
        SquaresAroundZero,
        TopOrder,
        TopLeavesOneOut,
        TopKeyOff,
        TopNormMissing,
        ReceivedShifted,
        ReceivedLeavesLastRowOut,
    ] {
        let (wrong, _) = judge(&case, &single(&case, fault));
        assert!(!wrong.is_empty(), "{fault:?} passed");
    }
}

/// Norms through an output projection: the sums of squares of V_j W_O^(h), and
/// nothing like it.
#[test]
fn norms_through_a_projection_are_judged() {
    let (heads, width, outputs) = (HEADS, 6, 9);
    let case = case(&[]);
    let value = case.value.to_f32();
    let weight: Vec<f32> = (0..outputs * heads * width)
        .map(|n| ((n * 37 % 101) as f32 - 50.0) / 40.0)
        .collect();
    let tensor = Tensor::f32(&weight, [1, 1, outputs, heads * width]).unwrap();
    let gram = wgpu_attention::gram_matrices(&tensor, heads, width).unwrap();
    let gram = Tensor::f32(&gram, [1, heads, width, width]).unwrap();
    let expected = reference::value_norms_through(&case.inputs().value, &gram).unwrap();
    let of = |shift: usize, root: bool| -> Vec<f32> {
        let all = (0..2 * heads * KEYS).map(|n| {
            let [b, h, j] = [n / (heads * KEYS), n / KEYS % heads, n % KEYS];
            let v = &value[((b * KV_HEADS + h / 2) * KEYS + j) * width..][..width];
            let column = |e: usize| {
                let row = &weight[e * heads * width + (h + shift) % heads * width..][..width];
                v.iter().zip(row).map(|(v, w)| v * w).sum::<f32>()
            };
            let square = (0..outputs).map(|e| column(e).powi(2)).sum::<f32>();
            if root { square.sqrt() } else { square }
        });
        all.collect()
    };
    let judge = |got: &[f32]| compare(got, &expected.values, &expected.bound).unwrap();
    let right = judge(&of(0, true));
    assert!(
        right.passed() && right.compared == 2 * heads * KEYS,
        "{right}"
    );
    assert!(!judge(&of(1, true)).passed(), "weights of the next head");
    assert!(!judge(&of(0, false)).passed(), "squares");
}
