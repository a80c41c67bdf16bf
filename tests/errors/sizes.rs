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
