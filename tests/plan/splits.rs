//! Problems cut into chunks; grids folded; addresses in 32 bits.

use allocation_counter::measure;

use super::check::{addresses, check, compare, forward, plan};
use crate::noop::{Buffers, Noop, SMALL, Sizes, reasons};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::shaders::Slot;
use wgpu_attention::testing::{dispatches, relaid};
use wgpu_attention::*;

#[test]
fn grids_fold_at_the_limit() {
    let noop = Noop::new();
    let query = noop.buffer(4 * 131_100);
    let mut caps = DeviceCaps::webgpu_default();
    let options = Options::default();
    let mut folded = 0;
    let mut judge = |heads: usize, caps: &DeviceCaps| {
        let view = |n| TensorView::bhsd(&query, DType::F32, [1, n, 1, 1], 0).unwrap();
        let output = noop.buffer(4 * heads as u64);
        let output = TensorView::bhsd(&output, DType::F32, [1, heads, 1, 1], 0).unwrap();
        let problem = forward(
            &Operands::new(view(heads), view(1), view(1), output),
            &options,
        );
        let plan = plan(&problem, caps, Kernel::Tiled).unwrap();
        check(&plan, caps, [1, heads, 1]);
        let all = dispatches(&plan);
        let total: u64 = all.iter().map(|d| d.workgroups).sum();
        assert_eq!(total, heads as u64);
        folded += usize::from(all[0].grid[1] > 1);
        all.len()
    };
    for heads in [65_534, 65_535, 65_536, 65_537, 131_070, 131_071] {
        assert_eq!(judge(heads, &caps), 1);
    }
    // Past the limit squared, several dispatches; at it, one.
    caps.max_compute_workgroups_per_dimension = 7;
    for heads in 1..200 {
        assert_eq!(judge(heads, &caps) > 1, heads > 49, "{heads}");
    }
    // A limit above what 32 bits can number.
    caps.max_compute_workgroups_per_dimension = u32::MAX;
    assert_eq!(judge(131_071, &caps), 1);
    assert!(folded > 190, "{folded}");
}

/// Problems larger than a device's bindings, cut by batch entry, kv head, query
/// head and rows.
#[test]
fn splits_cover_everything_once() {
    let noop = Noop::new();
    let sizes = Sizes {
        batch: 3,
        q_heads: 6,
        kv_heads: 2,
        q_len: 150,
        kv_len: 64,
        qk_dim: 4,
        v_dim: 4,
    };
    let buffers = Buffers::new(&noop, sizes, DType::F32);
    let problem = forward(&buffers.dense(), &Options::default());
    let mut caps = DeviceCaps::webgpu_default();
    caps.min_storage_buffer_offset_alignment = 32;
    let rows = sizes.rows().iter().product::<usize>();
    let mut seen = Vec::new();
    // A bias of 3 x 6 x 150 x 64 f32 is 691,200 bytes, a tile of its rows 16,384.
    for limit in [
        700_000, 691_200, 691_199, 230_400, 115_200, 115_199, 38_400, 38_399, 16_416,
    ] {
        caps.max_storage_buffer_binding_size = limit;
        for kernel in [Kernel::Tiled, Kernel::Staged] {
            let plan = plan(&problem, &caps, kernel).unwrap();
            let shaders = if kernel == Kernel::Tiled { 1 } else { 3 };
            assert_eq!(check(&plan, &caps, sizes.rows()), shaders * rows);
            if kernel == Kernel::Tiled {
                seen.push(plan.dispatches());
                assert!(addresses(&plan) > 1_000);
            }
        }
    }
    // Whole; whole; batches 1 + 2 with the 2 cut; entries; kv heads; ...
    assert_eq!(seen[..4], [1, 1, 2, 3]);
    assert!(seen.is_sorted(), "{seen:?}");
    assert!(*seen.last().unwrap() >= 18 * 3, "{seen:?}");

    // One tile of rows of the bias is 64 x 64 x 4 bytes: below that nothing fits.
    caps.max_storage_buffer_binding_size = 16_383;
    let refused = reasons(plan(&problem, &caps, Kernel::Tiled).unwrap_err());
    let expected = "bias: one (batch, kv head) slab in bytes: 16384 needed, the device's max_storage_buffer_binding_size is 16383";
    assert_eq!(refused, [expected]);
}

#[test]
fn addresses_are_exact_for_any_strides() {
    let noop = Noop::new();
    let mut rng = StdRng::seed_from_u64(11);
    let mut compared = 0;
    let mut chunks = 0;
    for round in 0..300 {
        let kv_heads = rng.random_range(1..=3);
        let sizes = Sizes {
            batch: rng.random_range(1..=3),
            q_heads: kv_heads * rng.random_range(1..=3),
            kv_heads,
            q_len: rng.random_range(1..=140),
            kv_len: rng.random_range(1..=40),
            qk_dim: rng.random_range(1..=9),
            v_dim: rng.random_range(1..=9),
        };
        let dtype = [DType::F32, DType::F16, DType::BF16][round % 3];
        let buffers = Buffers::new(&noop, sizes, dtype);
        let mut problem = forward(&buffers.plain(), &Options::default());
        // Padded rows, padded heads, interleaved or not; then any offset.
        let mut laid = Vec::new();
        let shapes = [
            (Slot::Query, sizes.query(), dtype),
            (Slot::Key, sizes.key(), dtype),
            (Slot::Value, sizes.value(), dtype),
            (Slot::Output, sizes.output(), DType::F32),
        ];
        for (slot, [batch, heads, rows, dim], dtype) in shapes {
            let row = dim + rng.random_range(0..3);
            let strides = match rng.random_range(0..3) {
                0 => [heads * rows * row, rows * row, row, 1],
                1 => [rows * heads * row, row, heads * row, 1],
                _ => [row, batch * rows * row, batch * row, 1],
            };
            let size = dtype.size();
            let phase = rng.random_range(0..256 / size) * size;
            problem = relaid(&problem, slot, strides, phase);
            laid.push((slot, [strides[0], strides[1], strides[2]], phase, size));
        }
        let mut caps = DeviceCaps::webgpu_default();
        caps.min_storage_buffer_offset_alignment = [32, 64, 256][rng.random_range(0..3)];
        caps.max_storage_buffer_binding_size = rng.random_range(4_000..40_000);
        for kernel in [Kernel::Tiled, Kernel::Staged] {
            let Ok(plan) = plan(&problem, &caps, kernel) else {
                continue;
            };
            check(&plan, &caps, sizes.rows());
            for dispatch in dispatches(&plan) {
                chunks += 1;
                for &(slot, strides, phase, size) in &laid {
                    compared += compare(&dispatch, &plan, slot, strides, phase, size);
                }
            }
        }
    }
    assert!(chunks > 2_000 && compared > 100_000, "{chunks} {compared}");
}

/// Strides and slabs beyond 32 bits, as if buffers of any size existed: planned
/// so that no sum wraps, or refused.
#[test]
fn nothing_wraps_at_32_bits() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let small = forward(&buffers.plain(), &Options::default());
    let mut caps = DeviceCaps::webgpu_default();
    caps.max_storage_buffer_binding_size = u64::MAX;
    let mut planned = 0;
    let mut refused = 0;
    for bits in [20, 28, 29, 30, 31, 32, 33, 40] {
        for off in [-1i64, 0, 1] {
            let far = ((1i64 << bits) + off) as usize;
            for axis in 0..3 {
                for slot in [Slot::Query, Slot::Key, Slot::Value, Slot::Output] {
                    let mut strides = [1000, 100, 10, 1];
                    strides[axis] = far;
                    let problem = relaid(&small, slot, strides, 0);
                    match plan(&problem, &caps, Kernel::Tiled) {
                        Ok(plan) => {
                            check(&plan, &caps, SMALL.rows());
                            let used = [strides[0], strides[1], strides[2]];
                            for dispatch in dispatches(&plan) {
                                planned += compare(&dispatch, &plan, slot, used, 0, 4);
                            }
                        }
                        Err(error) => {
                            // Batch entries and heads can be bound alone; rows cannot.
                            assert_eq!(axis, 2, "2^{bits}: {error}");
                            assert!(reasons(error)[0].contains("32-bit addresses"));
                            refused += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(planned > 1_000 && refused > 40, "{planned} {refused}");
}

/// A tensor of 160 MiB, whose slabs fit the 128 MiB that a default binding has.
#[test]
fn tensors_over_the_binding_limit() {
    let noop = Noop::new();
    let caps = DeviceCaps::webgpu_default();
    let buffer = noop.buffer(160 << 20);
    let output = noop.buffer(5 * 4);
    let view = |buffer, shape| TensorView::bhsd(buffer, DType::F32, shape, 0).unwrap();
    let keys = view(&buffer, [5, 1, 65_536, 128]);
    let values = view(&buffer, [5, 1, 65_536, 1]);
    let query = view(&buffer, [5, 1, 1, 128]);
    let operands = Operands::new(query, keys, values, view(&output, [5, 1, 1, 1]));
    let problem = forward(&operands, &Options::default());
    let split = plan(&problem, &caps, Kernel::Tiled).unwrap();
    assert_eq!(split.dispatches(), 2);
    check(&split, &caps, [5, 1, 1]);
    noop.run(&operands, &Options::default(), &PlanOptions::default())
        .unwrap();

    let one = view(&buffer, [1, 1, 5 * 65_536, 128]);
    let values = view(&buffer, [1, 1, 5 * 65_536, 128]);
    let query = view(&buffer, [1, 1, 1, 128]);
    let output = noop.buffer(4 * 128);
    let operands = Operands::new(query, one, values, view(&output, [1, 1, 1, 128]));
    let problem = forward(&operands, &Options::default());
    let error = plan(&problem, &caps, Kernel::Tiled).unwrap_err();
    let expected = "not supported on this device:\
        \n  - key: one (batch, kv head) slab in bytes: 167772160 needed, the device's max_storage_buffer_binding_size is 134217728\
        \n  - value: one (batch, kv head) slab in bytes: 167772160 needed, the device's max_storage_buffer_binding_size is 134217728";
    assert_eq!(error.to_string(), expected);
    assert!(error.is_unsupported() && !error.is_input() && !error.is_device());
}

#[test]
fn statistics_are_split_too() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let stats = StatsView::new(&buffers.stats, Stats::Lse, SMALL.rows(), 3).unwrap();
    let problem = forward(&buffers.plain().stats(stats), &Options::default());
    let mut caps = DeviceCaps::webgpu_default();
    caps.min_storage_buffer_offset_alignment = 32;
    caps.max_storage_buffer_binding_size = 300;
    let plan = plan(&problem, &caps, Kernel::Tiled).unwrap();
    check(&plan, &caps, SMALL.rows());
    assert!(plan.dispatches() > 2);
    for dispatch in dispatches(&plan) {
        let [batches, heads, _] = dispatch.covers.unwrap();
        let (_, range) = dispatch.binds.iter().find(|b| b.0 == Slot::Stats).unwrap();
        let [_, _, _, base] = dispatch
            .views
            .iter()
            .find(|v| v.0 == Slot::Stats)
            .unwrap()
            .1;
        let element = 3 + (batches.start * 4 + heads.start) * 5;
        assert_eq!(range.unwrap().0 + u64::from(base) * 4, element as u64 * 4);
    }
}

fn of_sizes(batch: usize, heads: usize, len: usize, dim: usize) -> Problem {
    let dims = Dims {
        batch,
        q_heads: heads,
        kv_heads: heads,
        q_len: len,
        kv_len: len,
        qk_dim: dim,
        v_dim: dim,
    };
    Problem::contiguous(&dims, DType::F32, DType::F32, &Options::default()).unwrap()
}

/// A plan has at most [`MAX_DISPATCHES`], and one that would have more is refused before
/// they take memory, however many they would be.
#[test]
fn a_plan_has_a_largest_number_of_dispatches() {
    let caps = DeviceCaps::webgpu_default();
    for kernel in [Kernel::Tiled, Kernel::Staged] {
        for (batch, heads) in [(1 << 30, 8), (1 << 30, 1024), (1 << 20, 1 << 10)] {
            let problem = of_sizes(batch, heads, 1024, 64);
            let start = std::time::Instant::now();
            let mut error = None;
            let used = measure(|| error = plan(&problem, &caps, kernel).err());
            let memory = used.bytes_max;
            let found = reasons(error.unwrap());
            assert_eq!(found.len(), 1, "{found:?}");
            let text = "plan: expected at most 65536 dispatches (MAX_DISPATCHES), got more";
            assert!(found[0].starts_with(text), "{found:?}");
            println!(
                "{kernel} {batch} {heads}: {memory} bytes, {:?}",
                start.elapsed()
            );
            assert!(memory < 16 << 20, "{memory}");
        }
    }

    // Exactly as many are planned, one more is not; the lists that are gathered count.
    let noop = Noop::new();
    let (list, x, y) = (noop.buffer(4), noop.buffer(4), noop.buffer(1 << 20));
    // A binding holds the output of one head.
    let mut small = caps.clone();
    small.max_storage_buffer_binding_size = 4;
    small.min_storage_buffer_offset_alignment = 4;
    let plan_of = |heads: usize, lengths: bool| {
        let shape = [1, heads, 1, 1];
        let input = TensorView::strided(&x, DType::F32, shape, [0, 0, 0, 1], 0).unwrap();
        let output = TensorView::bhsd(&y, DType::F32, shape, 0).unwrap();
        let mut operands = Operands::new(input, input, input, output);
        if lengths {
            operands.kv_lengths = Some(List::Buffer {
                buffer: &list,
                offset: 0,
                len: 1,
            });
        }
        let problem = forward(&operands, &Options::default());
        plan(&problem, &small, Kernel::Tiled)
    };
    let most = MAX_DISPATCHES;
    for (heads, lengths) in [(most, false), (most - 1, true)] {
        let plan = plan_of(heads, lengths).unwrap();
        assert_eq!(plan.dispatches(), most);
        // Not all of them are printed.
        let text = plan.to_string();
        assert!(
            text.ends_with(&format!("\n  and {} more", most - 64)),
            "{}",
            text.len()
        );
        let refused = reasons(plan_of(heads + 1, lengths).unwrap_err());
        assert!(
            refused[0].contains("parts of 1 batch entries, 1 heads, 1 rows"),
            "{refused:?}"
        );
    }
}
