//! Laws of attention that hold whatever the numbers are, on both kernels.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use common::{Elements, Feature, MaskBits, OwnedCase, Shape, generate};
use gpu::guest::{Guest, Ran, Setup};
use gpu::{gpu, oracle};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::RngSeed;
use wgpu_attention::reference::compare;
use wgpu_attention::{Alignment, DType, Kernel, PlanOptions, Stats};

/// The same cases every time: a failure has to be the code's.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(20),
        failure_persistence: None,
        max_shrink_iters: 64,
        ..ProptestConfig::default()
    }
}

fn any_kernel() -> impl Strategy<Value = Kernel> {
    select(gpu::kernels())
}

/// Some of the features.
fn some(of: &'static [Feature]) -> impl Strategy<Value = Vec<Feature>> {
    subsequence(of, 0..=of.len())
}

/// Sizes that cross tile edges, and storage types.
fn shapes() -> impl Strategy<Value = Shape> {
    let dtypes = || select(&[DType::F32, DType::F16, DType::BF16][..]);
    let sizes = (1usize..=2, 1usize..=2, 1usize..=3, 1usize..=70, 1usize..=70);
    let dims = (1usize..=20, 1usize..=20);
    let shape =
        |((batch, kv_heads, group, q_len, kv_len), (qk_dim, v_dim), types): (_, _, [DType; 3])| {
            Shape {
                query: types[0],
                key_value: types[1],
                out: types[2],
                ..Shape::f32(
                    [batch, kv_heads * group, q_len, qk_dim],
                    kv_heads,
                    kv_len,
                    v_dim,
                )
            }
        };
    (sizes, dims, [dtypes(), dtypes(), dtypes()]).prop_map(shape)
}

fn run_as(case: &OwnedCase, kernel: Kernel, stats: Stats) -> Ran {
    let setup = Setup {
        plan: PlanOptions::default().kernel(kernel),
        stats: Some(stats),
        ..Setup::default()
    };
    let ran = Guest::run(gpu(), case, &setup);
    ran.unwrap_or_else(|error| panic!("{kernel:?} {}: {error}", case.name))
}

fn run(case: &OwnedCase, kernel: Kernel) -> Ran {
    run_as(case, kernel, Stats::Lse)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Bits of output and LSE.
fn all_bits(ran: &Ran) -> (Vec<u32>, Vec<u32>) {
    (bits(&ran.output), bits(&ran.stats))
}

/// Everything that was expected is there, and within its bound.
fn met(got: &[f32], expected: &[f64], bound: &[f64]) -> Result<(), TestCaseError> {
    let found = compare(got, expected, bound).unwrap();
    prop_assert_eq!(found.compared, got.len());
    prop_assert!(found.passed(), "{}", found);
    Ok(())
}

fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// The elements whose rows of `width` are named by `rows`, in that order.
fn take(elements: &Elements, width: usize, rows: impl Iterator<Item = usize>) -> Elements {
    let values = elements.to_f32();
    let taken: Vec<f32> = rows
        .flat_map(|row| values[row * width..(row + 1) * width].iter().copied())
        .collect();
    Elements::new(&taken, elements.dtype())
}

/// The case with the keys `of` each head, in that order.
fn with_keys(case: &OwnedCase, of: &[usize]) -> OwnedCase {
    let mut out = case.clone();
    let dims = case.dims;
    let len = dims.kv_len;
    let heads = dims.batch * dims.kv_heads;
    let rows = || (0..heads).flat_map(|head| of.iter().map(move |j| head * len + j));
    out.dims.kv_len = of.len();
    out.key = take(&case.key, dims.qk_dim, rows());
    out.value = take(&case.value, dims.v_dim, rows());
    let lines = |shape: [usize; 4]| shape[0] * shape[1] * shape[2];
    let picks = |count: usize| (0..count).flat_map(|line| of.iter().map(move |j| line * len + j));
    if let Some((bias, shape)) = &mut out.bias
        && shape[3] == len
    {
        *bias = take(bias, 1, picks(lines(*shape)));
        shape[3] = of.len();
    }
    if let Some(mask) = &mut out.mask
        && mask.shape[3] == len
    {
        let MaskBits::Bytes(bytes) = &mask.data else {
            panic!("a mask of bytes");
        };
        let taken = picks(lines(mask.shape)).map(|at| bytes[at]).collect();
        mask.data = MaskBits::Bytes(taken);
        mask.shape[3] = of.len();
    }
    if let Some((_, keys)) = &mut out.segments {
        *keys = picks(dims.batch).map(|at| keys[at]).collect();
    }
    out
}

const UNPOSITIONED: &[Feature] = &[
    Feature::Scale,
    Feature::Softcap,
    Feature::Bias,
    Feature::BiasNegInf,
    Feature::MaskBytes,
    Feature::Segments,
    Feature::Sinks,
    Feature::Peaked,
];

const MOST: &[Feature] = &[
    Feature::Softcap,
    Feature::Bias,
    Feature::BiasNegInf,
    Feature::Alibi,
    Feature::MaskBytes,
    Feature::MaskBits,
    Feature::Causal,
    Feature::WindowBoth,
    Feature::KvLengths,
    Feature::QLengths,
    Feature::Segments,
    Feature::Sinks,
    Feature::PerSequence,
];

proptest! {
    #![proptest_config(config(24))]

    /// The order of keys doesn't matter where nothing depends on positions.
    #[test]
    fn keys_may_be_permuted(
        seed: u64,
        shape in shapes(),
        features in some(UNPOSITIONED),
        kernel in any_kernel(),
        step in 1usize..70,
    ) {
        let case = generate(seed, shape, &features);
        let len = case.dims.kv_len;
        // A rotation after a reversal.
        let order: Vec<usize> = (0..len).rev().map(|j| (j + step) % len).collect();
        let expected = oracle(&case);
        let ran = run(&with_keys(&case, &order), kernel);
        met(&ran.output, &expected.output, &expected.output_bound)?;
        met(&ran.stats, &expected.lse, &expected.lse_bound)?;
    }

    /// A constant added to all scores moves LSE by itself and O not at all.
    #[test]
    fn scores_may_be_shifted(
        seed: u64,
        shape in shapes(),
        features in some(&[Feature::Causal, Feature::Alibi, Feature::Softcap, Feature::MaskBits]),
        kernel in any_kernel(),
        shift in select(&[-100f32, -7.5, 0.25, 32.0, 1000.0][..]),
    ) {
        let case = generate(seed, shape, &features);
        let mut shifted = case.clone();
        shifted.bias = Some((Elements::new(&[shift], DType::F32), [1; 4]));
        let (plain, moved) = (oracle(&case), oracle(&shifted));
        let ran = run(&shifted, kernel);
        met(&ran.output, &plain.output, &sum(&plain.output_bound, &moved.output_bound))?;
        let lse: Vec<f64> = plain.lse.iter().map(|lse| lse + f64::from(shift)).collect();
        met(&ran.stats, &lse, &sum(&plain.lse_bound, &moved.lse_bound))?;
    }

    /// Query heads that share a kv head give the bits of heads that each have
    /// a copy of it.
    #[test]
    fn grouped_heads_are_repeated_heads(
        seed: u64,
        shape in shapes(),
        features in some(MOST),
        kernel in any_kernel(),
    ) {
        let case = generate(seed, shape, &features);
        let dims = case.dims;
        let mut repeated = case.clone();
        repeated.dims.kv_heads = dims.q_heads;
        let rows = || {
            (0..dims.batch * dims.q_heads)
                .map(|head| head / dims.q_heads * dims.kv_heads + head % dims.q_heads / dims.group())
                .flat_map(|head| head * dims.kv_len..(head + 1) * dims.kv_len)
        };
        repeated.key = take(&case.key, dims.qk_dim, rows());
        repeated.value = take(&case.value, dims.v_dim, rows());
        prop_assert_eq!(all_bits(&run(&case, kernel)), all_bits(&run(&repeated, kernel)));
    }

    /// With values of 1, O is the sum of the weights: 1, or what the sink leaves.
    #[test]
    fn weights_sum_to_one(
        seed: u64,
        shape in shapes(),
        features in some(MOST),
        kernel in any_kernel(),
    ) {
        let mut case = generate(seed, Shape { out: DType::F32, ..shape }, &features);
        case.value = Elements::new(&vec![1.0; case.value.len()], case.value.dtype());
        let lse = oracle(&case).lse;
        let ran = run(&case, kernel);
        let dims = case.dims;
        for (row, o) in ran.output.chunks(dims.v_dim).enumerate() {
            let sink = case.sinks.as_ref().map(|sinks| f64::from(sinks[row / dims.q_len % dims.q_heads]));
            let sum = match sink.filter(|sink| sink.is_finite()) {
                Some(sink) => -(sink - lse[row]).exp_m1(),
                None if lse[row] == f64::NEG_INFINITY => 0.0,
                None => 1.0,
            };
            for &o in o {
                // 71 roundings of numbers of at most 1, and exp's own.
                prop_assert!((f64::from(o) - sum).abs() < 1e-5, "row {}: {} {}", row, o, sum);
            }
        }
    }

    /// What comes later, be it NaN, doesn't change a bit of a causal prefix.
    #[test]
    fn a_causal_prefix_ignores_the_future(
        seed: u64,
        shape in shapes(),
        features in some(&[
            Feature::Softcap,
            Feature::Bias,
            Feature::Alibi,
            Feature::MaskBits,
            Feature::WindowLeft,
            Feature::Sinks,
        ]),
        kernel in any_kernel(),
        cut in 0usize..70,
        bad in select(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, 0.0][..]),
    ) {
        let mut features = features;
        features.extend([Feature::Causal, Feature::TopLeft]);
        let case = generate(seed, shape, &features);
        let dims = case.dims;
        let mut changed = case.clone();
        let cut = cut % dims.kv_len;
        for row in 0..dims.batch * dims.kv_heads * dims.kv_len {
            if row % dims.kv_len > cut {
                (0..dims.qk_dim).for_each(|d| changed.key.set(row * dims.qk_dim + d, bad));
                (0..dims.v_dim).for_each(|d| changed.value.set(row * dims.v_dim + d, bad));
            }
        }
        for row in 0..dims.rows() {
            if row % dims.q_len > cut {
                (0..dims.qk_dim).for_each(|d| changed.query.set(row * dims.qk_dim + d, bad));
            }
        }
        let (before, after) = (run(&case, kernel), run(&changed, kernel));
        for row in (0..dims.rows()).filter(|row| row % dims.q_len <= cut) {
            let columns = row * dims.v_dim..(row + 1) * dims.v_dim;
            prop_assert_eq!(bits(&before.output[columns.clone()]), bits(&after.output[columns]));
            prop_assert_eq!(before.stats[row].to_bits(), after.stats[row].to_bits());
        }
    }

    /// Attention over two halves of the keys, merged by their row states, is
    /// attention over all of them.
    #[test]
    fn halves_of_the_keys_merge(
        seed: u64,
        shape in shapes(),
        features in some(&[
            Feature::Softcap,
            Feature::Bias,
            Feature::BiasLowest,
            Feature::Alibi,
            Feature::MaskBytes,
            Feature::Causal,
            Feature::WindowBoth,
        ]),
        kernel in any_kernel(),
        at in 0usize..=70,
    ) {
        let mut case = generate(seed, Shape { out: DType::F32, ..shape }, &features);
        let dims = case.dims;
        let at = at % (dims.kv_len + 1);
        let offset = dims.kv_len as i32 - dims.q_len as i32;
        case.options = case.options.alignment(Alignment::Offset(offset));
        let whole = oracle(&case);
        let first = with_keys(&case, &(0..at).collect::<Vec<_>>());
        let mut second = with_keys(&case, &(at..dims.kv_len).collect::<Vec<_>>());
        second.options = second.options.alignment(Alignment::Offset(offset - at as i32));
        let parts = [&first, &second].map(|part| (run_as(part, kernel, Stats::RowState), oracle(part)));
        let (mut output, mut output_bound, mut lse, mut lse_bound) = (vec![], vec![], vec![], vec![]);
        for row in 0..dims.rows() {
            let states = parts.each_ref().map(|(ran, _)| [ran.stats[row * 2], ran.stats[row * 2 + 1]].map(f64::from));
            let top = states[0][0].max(states[1][0]);
            let weights = states.map(|[m, log]| if m == f64::NEG_INFINITY { 0.0 } else { (m - top + log).exp() });
            let total = weights[0] + weights[1];
            let part_lse = parts[0].1.lse_bound[row] + parts[1].1.lse_bound[row];
            // Near the lowest number the maximum itself is all that counts.
            let relative = part_lse.min(1e-4);
            lse.push(if total == 0.0 { f32::NEG_INFINITY } else { (top + total.ln()) as f32 });
            lse_bound.push(whole.lse_bound[row] + part_lse);
            for column in row * dims.v_dim..(row + 1) * dims.v_dim {
                let o = parts.each_ref().map(|(ran, _)| f64::from(ran.output[column]));
                let merged = if total == 0.0 { 0.0 } else { (weights[0] * o[0] + weights[1] * o[1]) / total };
                output.push(merged as f32);
                let bounds = parts[0].1.output_bound[column].max(parts[1].1.output_bound[column]);
                output_bound.push(whole.output_bound[column] + bounds + relative * (o[0] - o[1]).abs());
            }
        }
        met(&output, &whole.output, &output_bound)?;
        met(&lse, &whole.lse, &lse_bound)?;
    }

    /// The same inputs give the same bits.
    #[test]
    fn runs_repeat(seed: u64, shape in shapes(), features in some(MOST), kernel in any_kernel()) {
        let case = generate(seed, shape, &features);
        prop_assert_eq!(all_bits(&run(&case, kernel)), all_bits(&run(&case, kernel)));
    }

    /// A batch entry alone, and a row of it alone, give the bits that they give
    /// in company.
    #[test]
    fn rows_do_not_depend_on_company(
        seed: u64,
        shape in shapes(),
        features in some(&[Feature::Softcap, Feature::Causal, Feature::WindowBoth, Feature::Alibi]),
        kernel in any_kernel(),
        i in 0usize..70,
    ) {
        let mut case = generate(seed, shape, &features);
        let dims = case.dims;
        let offset = dims.kv_len as i32 - dims.q_len as i32;
        case.options = case.options.alignment(Alignment::Offset(offset));
        let all = run(&case, kernel);

        let b = dims.batch - 1;
        let mut entry = case.clone();
        entry.dims.batch = 1;
        let queries = dims.q_heads * dims.q_len;
        let keys = dims.kv_heads * dims.kv_len;
        entry.query = take(&case.query, dims.qk_dim, b * queries..(b + 1) * queries);
        entry.key = take(&case.key, dims.qk_dim, b * keys..(b + 1) * keys);
        entry.value = take(&case.value, dims.v_dim, b * keys..(b + 1) * keys);
        let alone = run(&entry, kernel);
        prop_assert_eq!(bits(&alone.output), bits(&all.output[b * queries * dims.v_dim..]));
        prop_assert_eq!(bits(&alone.stats), bits(&all.stats[b * queries..]));

        let i = i % dims.q_len;
        let mut row = entry.clone();
        row.dims.q_len = 1;
        row.query = take(&entry.query, dims.qk_dim, (0..dims.q_heads).map(|h| h * dims.q_len + i));
        row.options = row.options.alignment(Alignment::Offset(offset + i as i32));
        let single = run(&row, kernel);
        for h in 0..dims.q_heads {
            let at = h * dims.q_len + i;
            let columns = at * dims.v_dim..(at + 1) * dims.v_dim;
            prop_assert_eq!(bits(&single.output[h * dims.v_dim..(h + 1) * dims.v_dim]), bits(&alone.output[columns]));
            prop_assert_eq!(single.stats[h].to_bits(), alone.stats[at].to_bits());
        }
    }

    /// The two kernels are no further apart than each may be from the oracle.
    #[test]
    fn kernels_agree(seed: u64, shape in shapes(), features in some(MOST)) {
        let case = generate(seed, shape, &features);
        let expected = oracle(&case);
        let (fused, staged) = (run(&case, Kernel::Tiled), run(&case, Kernel::Staged));
        let widen = |values: &[f32]| -> Vec<f64> { values.iter().map(|&v| f64::from(v)).collect() };
        let twice = |bound: &[f64]| -> Vec<f64> { sum(bound, bound) };
        met(&staged.output, &widen(&fused.output), &twice(&expected.output_bound))?;
        met(&staged.stats, &widen(&fused.stats), &twice(&expected.lse_bound))?;
    }
}
