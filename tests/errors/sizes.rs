//! Sizes at which products overflow.

use super::bench::Bench;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::*;

/// Sizes at which products overflow: whatever comes of them, it is no panic.
#[test]
fn no_size_panics() {
    let bench = Bench::new();
    let mut rng = StdRng::seed_from_u64(5);
    let extremes = [
        0,
        1,
        2,
        3,
        31,
        33,
        1 << 30,
        (1 << 30) + 1,
        1 << 32,
        1 << 62,
        1 << 63,
        usize::MAX - 1,
        usize::MAX,
    ];
    let mut some = |small: bool| {
        let most = if small { 6 } else { extremes.len() };
        extremes[rng.random_range(0..most)]
    };
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..30_000 {
        let small = round % 2 == 0;
        let shape = [some(small), some(small), some(small), some(small)];
        let strides = [some(small), some(small), some(small), some(small)];
        let offset = some(true);
        let far = some(false);
        let b = &bench.big;
        let views = [
            TensorView::strided(b, DType::F32, shape, strides, offset),
            TensorView::strided(b, DType::F16, shape, [0, 0, 0, 1], offset),
            TensorView::bhsd(b, DType::BF16, shape, far),
            TensorView::bshd(b, DType::F32, shape, offset),
        ];
        let [batch, heads, rows, dim] = shape;
        let packed =
            TensorView::packed_qkv(b, DType::F16, batch, rows, (heads, strides[0]), dim, offset);
        let masks = [
            MaskView::bytes(b, shape, offset, Polarity::Keep),
            MaskView::bytes_strided(b, shape, strides, far, Polarity::Keep),
            MaskView::bits(b, shape, offset, Polarity::Drop),
            MaskView::bits_strided(b, shape, [far, 1, far], offset, Polarity::Drop),
        ];
        let stats = StatsView::new(b, Stats::RowState, [batch, heads, rows], far);
        let _ = Dims::new(shape, strides, shape);
        let _ = Tensor::f32(&[], shape);
        let _ = BoolMask::new(MaskData::Bits(&[]), shape, Polarity::Keep);
        let key = TensorView::strided(b, DType::F32, [batch, 1, rows, dim], [0, 0, 0, 1], 0);
        let lists = List::Buffer {
            buffer: b,
            offset: far,
            len: batch,
        };
        for query in views
            .into_iter()
            .chain(packed.into_iter().flatten().map(Ok))
            .flatten()
        {
            let Ok(key) = key else { continue };
            let (good, options) = (&bench.good, Options::default());
            let mut operands = Operands::new(query, key, key, good.plain().output);
            operands.mask = masks[round % 4].as_ref().ok().copied();
            operands.stats = stats.as_ref().ok().copied();
            if round % 3 == 0 {
                operands.kv_lengths = Some(lists);
            }
            let region = Region {
                batches: 0..batch.min(2),
                heads: 0..heads.min(4),
                rows: 0..rows.min(5),
            };
            let [x, y, z] = region.lens();
            let output = TensorView::bhsd(&good.stats, DType::F32, [x, y, z, rows], 0);
            let mut of_stage = operands;
            of_stage.stats = None;
            if let Ok(output) = output {
                of_stage.output = output;
            }
            let problems = [
                Problem::forward(&operands, &options),
                Problem::stage(&of_stage, &options, Stage::Masked, region),
            ];
            for problem in problems {
                match problem {
                    Ok(problem) => {
                        let _ = (problem.flops(), problem.to_string());
                        for kernel in [Kernel::Tiled, Kernel::Staged] {
                            let chosen = PlanOptions::default().kernel(kernel);
                            let caps = DeviceCaps::webgpu_default();
                            let _ = Plan::new(&problem, &caps, &chosen).map(|p| p.to_string());
                        }
                        accepted += 1;
                    }
                    Err(error) => {
                        assert!(error.is_input() && !error.to_string().is_empty());
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(accepted > 100 && refused > 1_000, "{accepted} {refused}");
}

/// Sizes of a problem without buffers: those that no tensors have are refused by the
/// operand whose axis is at fault; those that some have are planned or refused.
#[test]
fn sizes_of_a_problem_without_buffers() {
    let good = Dims {
        batch: 2,
        q_heads: 4,
        kv_heads: 2,
        q_len: 5,
        kv_len: 7,
        qk_dim: 8,
        v_dim: 6,
    };
    let make = |dims: &Dims| Problem::contiguous(dims, DType::F32, DType::F16, &Options::default());
    make(&good).unwrap();
    type Change = fn(&mut Dims);
    let nonsense: [(Change, &str); 12] = [
        (
            |d| d.kv_heads = 0,
            "key: expected shape (B, Hkv, Nk, Dqk) with Hkv > 0",
        ),
        (
            |d| d.q_heads = 1,
            "query: expected shape a multiple of the 2 kv heads",
        ),
        (
            |d| d.kv_heads = 8,
            "query: expected shape a multiple of the 8 kv heads",
        ),
        (
            |d| d.qk_dim = 0,
            "query: expected shape (B, Hq, Nq, Dqk) with Dqk > 0",
        ),
        (
            |d| d.v_dim = 0,
            "value: expected shape [2, 2, 7, Dv] with Dv > 0",
        ),
        (
            |d| d.batch = usize::MAX,
            "query: expected shape every axis at most 2^30",
        ),
        (
            |d| d.q_heads = 1 << 31,
            "query: expected shape every axis at most 2^30",
        ),
        (
            |d| d.q_len = 1 << 40,
            "query: expected shape every axis at most 2^30",
        ),
        (
            |d| d.kv_len = (1 << 30) + 1,
            "key: expected shape every axis at most 2^30",
        ),
        (
            |d| d.v_dim = usize::MAX,
            "value: expected shape every axis at most 2^30",
        ),
        (
            |d| (d.batch, d.q_heads, d.q_len) = (1 << 30, 1 << 30, 1 << 30),
            "query: expected layout with a last element below 2^64 bytes",
        ),
        (
            |d| (d.batch, d.kv_len, d.v_dim) = (1 << 20, 1 << 30, 1 << 30),
            "value: expected layout with a last element below 2^64 bytes",
        ),
    ];
    for (change, text) in nonsense {
        let mut dims = good;
        change(&mut dims);
        let error = make(&dims).unwrap_err();
        assert!(error.is_input(), "{error}");
        assert!(error.to_string().starts_with(text), "{error}\n{text}");
        // The rest of what takes sizes answers too.
        let _ = (dims.group(), dims.rows(), dims.output_shape());
    }

    let mut rng = StdRng::seed_from_u64(19);
    let extremes = [
        0,
        1,
        2,
        3,
        64,
        1000,
        1 << 20,
        1 << 30,
        (1 << 30) + 1,
        usize::MAX,
    ];
    let (mut planned, mut refused) = (0, 0);
    for _ in 0..4_000 {
        let mut some = || extremes[rng.random_range(0..extremes.len())];
        let dims = Dims {
            batch: some(),
            q_heads: some(),
            kv_heads: some(),
            q_len: some(),
            kv_len: some(),
            qk_dim: some(),
            v_dim: some(),
        };
        let Ok(problem) = make(&dims) else {
            refused += 1;
            continue;
        };
        let _ = (
            problem.flops(),
            problem.to_string(),
            ProblemClass::of(&problem),
        );
        // The many parts of the largest are counted by a test of plans.
        if dims.rows() > 1 << 24 {
            continue;
        }
        for kernel in [Kernel::Tiled, Kernel::Staged] {
            let chosen = PlanOptions::default().kernel(kernel);
            match Plan::new(&problem, &DeviceCaps::default(), &chosen) {
                Ok(plan) => assert!(plan.dispatches() <= MAX_DISPATCHES),
                Err(error) => assert!(error.is_unsupported(), "{error}"),
            }
        }
        planned += 1;
    }
    assert!(planned > 100 && refused > 1_000, "{planned} {refused}");
}
