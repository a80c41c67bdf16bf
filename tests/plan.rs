//! Plans are pure functions of numbers: printed, swept and held to the limits
//! without a GPU. tests/recording.rs records them.

mod noop;

use noop::{Buffers, Lists, Noop, SMALL, Sizes, reasons};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::shaders::{Shader, Slot};
use wgpu_attention::testing::{Dispatch, dispatches, relaid};
use wgpu_attention::{
    Alignment, DType, DeviceCaps, Kernel, List, Operands, Options, Plan, PlanOptions, Problem,
    Region, Result, Stage, Stats, StatsView, TensorView, Window,
};

fn forward(operands: &Operands<'_>, options: &Options) -> Problem {
    Problem::forward(operands, options).unwrap()
}

fn plan(problem: &Problem, caps: &DeviceCaps, kernel: Kernel) -> Result<Plan> {
    Plan::new(problem, caps, &PlanOptions::default().kernel(kernel))
}

/// Checks what every plan promises: grids within the limits and covering all
/// tiles, bindings within the limits, every row covered exactly once by each
/// shader. Returns how many rows were counted.
fn check(plan: &Plan, caps: &DeviceCaps, whole: [usize; 3]) -> usize {
    let all = dispatches(plan);
    let most = caps.max_compute_workgroups_per_dimension;
    let align = u64::from(caps.min_storage_buffer_offset_alignment);
    let mut counted = 0;
    for dispatch in &all {
        let [x, y] = dispatch.grid;
        assert!(x >= 1 && y >= 1 && x <= most && y <= most, "{plan}");
        let launched = u64::from(x) * u64::from(y);
        assert!(launched >= dispatch.workgroups, "{plan}");
        assert!(launched - dispatch.workgroups < u64::from(x), "{plan}");
        assert!(u32::try_from(launched).is_ok());
        assert!(dispatch.binds.len() <= caps.max_storage_buffers_per_shader_stage as usize);
        assert_eq!(dispatch.binds.len(), dispatch.shader.slots().len());
        for (slot, range) in &dispatch.binds {
            if let Some((start, end)) = range {
                assert!(start < end, "{slot:?}");
                assert!(
                    end - start <= caps.max_storage_buffer_binding_size,
                    "{slot:?}"
                );
                assert_eq!((start % align, (end - start) % 4), (0, 0), "{slot:?}");
            }
        }
    }
    for shader in Shader::ALL {
        let boxes: Vec<_> = all.iter().filter(|d| d.shader == shader).collect();
        let Some(first) = boxes.first() else { continue };
        if first.covers.is_none() {
            continue;
        }
        let mut times = vec![0u8; whole.iter().product()];
        for [batches, heads, rows] in boxes.iter().map(|d| d.covers.clone().unwrap()) {
            for b in batches {
                for h in heads.clone() {
                    for r in rows.clone() {
                        times[(b * whole[1] + h) * whole[2] + r] += 1;
                    }
                }
            }
        }
        assert!(times.iter().all(|&n| n == 1), "{shader:?}\n{plan}");
        counted += times.len();
    }
    counted
}

fn printed(plan: &Plan) -> String {
    format!("\n{plan}\n")
}

#[test]
fn plans_print() {
    let noop = Noop::new();
    let caps = DeviceCaps::webgpu_default();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let problem = forward(&buffers.plain(), &Options::default());
    let by_default = Plan::new(&problem, &caps, &PlanOptions::default()).unwrap();
    let expected = "
problem: B 2 Hq 4 Hkv 2 Nq 5 Nk 7 Dqk 8 Dv 6, query F32, key and value F32, output F32
kernel: Fused (one pass, memory linear in the sequence length)
workspace: 0 bytes
  forward_fused: 8 x 1 workgroups of 64
";
    assert_eq!(printed(&by_default), expected);

    let staged = plan(&problem, &caps, Kernel::Staged).unwrap();
    let expected = "
problem: B 2 Hq 4 Hkv 2 Nq 5 Nk 7 Dqk 8 Dv 6, query F32, key and value F32, output F32
kernel: Staged (forced by the caller)
workspace: 1120 bytes
  staged_scores: 8 x 1 workgroups of 64
  staged_softmax: 40 x 1 workgroups of 64
  staged_values: 8 x 1 workgroups of 64
";
    assert_eq!(printed(&staged), expected);

    let options = Options::default().alignment(Alignment::PerSequence);
    let operands = buffers.lists_on_device(buffers.plain());
    let gathered = plan(&forward(&operands, &options), &caps, Kernel::Staged).unwrap();
    // 2 lengths, 2 lengths, 2 offsets, 10 and 14 segments, 4 slopes, 4 sinks: 38 words.
    let expected = "
problem: B 2 Hq 4 Hkv 2 Nq 5 Nk 7 Dqk 8 Dv 6, query F32, key and value F32, output F32
kernel: Staged (forced by the caller)
buffers: all bound read_write, as one is both read and written
workspace: 1376 bytes
  copy_words: 1 x 1 workgroups of 64
  copy_words: 1 x 1 workgroups of 64
  copy_words: 1 x 1 workgroups of 64
  copy_words: 1 x 1 workgroups of 64
  copy_words: 1 x 1 workgroups of 64
  copy_words: 1 x 1 workgroups of 64
  copy_words: 1 x 1 workgroups of 64
  staged_scores: 8 x 1 workgroups of 64
  staged_softmax: 40 x 1 workgroups of 64
  staged_values: 8 x 1 workgroups of 64
";
    assert_eq!(printed(&gathered), expected);

    let lists = Lists::new(SMALL);
    let on_host = forward(&lists.on_host(buffers.plain()), &options);
    let on_host = Plan::new(&on_host, &caps, &PlanOptions::default()).unwrap();
    assert_eq!((on_host.workspace_bytes(), on_host.dispatches()), (0, 1));
    assert_eq!(on_host.kernel(), Kernel::Fused);
    assert_eq!(
        on_host.why(),
        "one pass, memory linear in the sequence length"
    );

    let halves = Sizes { q_len: 0, ..SMALL };
    let buffers = Buffers::new(&noop, halves, DType::BF16);
    let nothing = forward(&buffers.plain(), &Options::default());
    let nothing = Plan::new(
        &nothing,
        &caps,
        &PlanOptions::default().shared_buffers(true),
    );
    let expected = "
problem: B 2 Hq 4 Hkv 2 Nq 0 Nk 7 Dqk 8 Dv 6, query BF16, key and value BF16, output F32
kernel: Fused (one pass, memory linear in the sequence length)
buffers: all bound read_write, as one is both read and written
workspace: 0 bytes
nothing to do: an axis is empty
";
    assert_eq!(printed(&nothing.unwrap()), expected);
}

#[test]
fn a_stage_is_staged_and_says_why() {
    let noop = Noop::new();
    let caps = DeviceCaps::webgpu_default();
    let buffers = Buffers::new(&noop, SMALL, DType::F16);
    let scores = noop.buffer(4 * 2 * 3 * 7);
    let mut operands = buffers.plain();
    operands.output = TensorView::bhsd(&scores, DType::F32, [1, 2, 3, 7], 0).unwrap();
    let region = Region {
        batches: 1..2,
        heads: 1..3,
        rows: 2..5,
    };
    let options = Options::default();
    let problem = Problem::stage(&operands, &options, Stage::Masked, region.clone()).unwrap();
    let staged = Plan::new(&problem, &caps, &PlanOptions::default()).unwrap();
    let expected = "
problem: B 2 Hq 4 Hkv 2 Nq 5 Nk 7 Dqk 8 Dv 6, query F16, key and value F16, output F32
kernel: Staged (scores are asked for)
workspace: 0 bytes
  staged_scores: 2 x 1 workgroups of 64
  staged_softmax: 6 x 1 workgroups of 64
";
    assert_eq!(printed(&staged), expected);
    for dispatch in dispatches(&staged) {
        assert_eq!(dispatch.covers, Some([1..2, 1..3, 2..5]));
    }
    let raw = Problem::stage(&operands, &options, Stage::Raw, region).unwrap();
    let raw = Plan::new(&raw, &caps, &PlanOptions::default()).unwrap();
    assert_eq!(raw.dispatches(), 1);
    let fused = plan(&problem, &caps, Kernel::Fused).unwrap_err();
    let text = "kernel: expected Staged, the only one that writes scores, got Fused";
    assert_eq!(fused.to_string(), text);
}

#[test]
fn tile_edges() {
    let noop = Noop::new();
    let caps = DeviceCaps::webgpu_default();
    let mut compared = 0;
    let edges = |tile: usize| [tile - 1, tile, tile + 1, 2 * tile, 2 * tile + 1];
    for q_len in [1].into_iter().chain(edges(64)) {
        for v_dim in [1].into_iter().chain(edges(64)) {
            for kv_len in [0, 1].into_iter().chain(edges(32)) {
                let sizes = Sizes {
                    batch: 1,
                    q_heads: 2,
                    kv_heads: 1,
                    q_len,
                    kv_len,
                    qk_dim: 1,
                    v_dim,
                };
                let buffers = Buffers::new(&noop, sizes, DType::F16);
                let problem = forward(&buffers.plain(), &Options::default());
                let up = |n: usize, tile: usize| n.div_ceil(tile) as u64;
                let heads = 2;
                let fused = plan(&problem, &caps, Kernel::Fused).unwrap();
                let tiles = heads * up(q_len, 64) * up(v_dim, 64);
                assert_eq!(dispatches(&fused)[0].workgroups, tiles);
                check(&fused, &caps, sizes.rows());
                let staged = plan(&problem, &caps, Kernel::Staged).unwrap();
                check(&staged, &caps, sizes.rows());
                let mut workgroups = dispatches(&staged).into_iter().map(|d| d.workgroups);
                if kv_len > 0 {
                    let tiles = heads * up(q_len, 64) * up(kv_len, 32);
                    assert_eq!(workgroups.next(), Some(tiles));
                }
                assert_eq!(workgroups.next(), Some(heads * q_len as u64));
                assert_eq!(workgroups.next(), Some(tiles));
                assert_eq!(workgroups.next(), None);
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 6 * 6 * 7);
}

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
        let plan = plan(&problem, caps, Kernel::Fused).unwrap();
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
        for kernel in [Kernel::Fused, Kernel::Staged] {
            let plan = plan(&problem, &caps, kernel).unwrap();
            let shaders = if kernel == Kernel::Fused { 1 } else { 3 };
            assert_eq!(check(&plan, &caps, sizes.rows()), shaders * rows);
            if kernel == Kernel::Fused {
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
    let refused = reasons(plan(&problem, &caps, Kernel::Fused).unwrap_err());
    let expected = "bias: one (batch, kv head) slab in bytes: 16384 needed, the device's max_storage_buffer_binding_size is 16383";
    assert_eq!(refused, [expected]);
}

/// Whatever a kernel adds up, in 32 bits and without wrapping, is the element
/// that the view means.
fn addresses(plan: &Plan) -> usize {
    let all = dispatches(plan);
    all.iter().map(|d| compare_contiguous(d, plan)).sum()
}

fn compare_contiguous(dispatch: &Dispatch, plan: &Plan) -> usize {
    let d = plan.problem().dims();
    let strides = |heads: usize, rows: usize, row: usize| [heads * rows * row, rows * row, row];
    let known = [
        (Slot::Query, strides(d.q_heads, d.q_len, d.qk_dim)),
        (Slot::Key, strides(d.kv_heads, d.kv_len, d.qk_dim)),
        (Slot::Value, strides(d.kv_heads, d.kv_len, d.v_dim)),
        (Slot::Output, strides(d.q_heads, d.q_len, d.v_dim)),
    ];
    known
        .into_iter()
        .map(|(slot, strides)| compare(dispatch, plan, slot, strides, 0, 4))
        .sum()
}

/// Compares the address of every row of one operand.
fn compare(
    dispatch: &Dispatch,
    plan: &Plan,
    slot: Slot,
    strides: [usize; 3],
    phase: u64,
    size: u64,
) -> usize {
    let Some([batches, heads, rows]) = dispatch.covers.clone() else {
        return 0;
    };
    let bound = dispatch.binds.iter().find(|(s, _)| *s == slot);
    let Some((start, end)) = bound.and_then(|(_, range)| *range) else {
        return 0;
    };
    let view = dispatch.views.iter().find(|(s, _)| *s == slot).unwrap().1;
    let dims = plan.problem().dims();
    let is_key = matches!(slot, Slot::Key | Slot::Value);
    let width = if matches!(slot, Slot::Query | Slot::Key) {
        dims.qk_dim
    } else {
        dims.v_dim
    };
    let group = dims.group();
    let (first_b, first_h, first_r) = (batches.start, heads.start, rows.start);
    let mut compared = 0;
    for b in batches {
        for h in heads.clone() {
            let (head, step) = match is_key {
                true => (h / group, h / group - first_h / group),
                false => (h, h - first_h),
            };
            let rows = if is_key { 0..dims.kv_len } else { rows.clone() };
            let last = rows.end.saturating_sub(1);
            // The ends and a stride of the middle: all of 2^30 would take hours.
            let some = rows.clone().step_by(1 + rows.len() / 50).chain([last]);
            for r in some {
                let first = if is_key { 0 } else { first_r };
                let steps = [b - first_b, step, r - first].map(|n| n as u64);
                let [batch, head_stride, row, base] = view.map(u64::from);
                let in_kernel = base + steps[0] * batch + steps[1] * head_stride + steps[2] * row;
                let at = [b, head, r];
                let element: u64 = at
                    .iter()
                    .zip(strides)
                    .map(|(&i, s)| i as u64 * s as u64)
                    .sum();
                assert!(in_kernel + width as u64 <= u64::from(u32::MAX), "{slot:?}");
                assert_eq!(
                    start + in_kernel * size,
                    phase + element * size,
                    "{slot:?} {at:?}"
                );
                assert!(
                    start + (in_kernel + width as u64) * size <= end,
                    "{slot:?} {at:?}"
                );
                compared += 1;
            }
        }
    }
    compared
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
        for kernel in [Kernel::Fused, Kernel::Staged] {
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
                    match plan(&problem, &caps, Kernel::Fused) {
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

#[test]
fn huge_counts_are_planned_or_refused() {
    let noop = Noop::new();
    let caps = DeviceCaps::webgpu_default();
    let options = Options::default();
    let buffer = noop.buffer(4 * 65_536);
    let output = noop.buffer(4 * 65_536);
    // 65,536 x 65,536 pairs, 2^32 of them.
    let view = |buffer| TensorView::bhsd(buffer, DType::F32, [1, 1, 65_536, 1], 0).unwrap();
    let square = Operands::new(view(&buffer), view(&buffer), view(&buffer), view(&output));
    let problem = forward(&square, &options);
    let fused = plan(&problem, &caps, Kernel::Fused).unwrap();
    assert_eq!(check(&fused, &caps, [1, 1, 65_536]), 65_536);
    let staged = plan(&problem, &caps, Kernel::Staged).unwrap();
    assert_eq!(check(&staged, &caps, [1, 1, 65_536]), 3 * 65_536);
    assert_eq!(staged.workspace_bytes(), 64 << 20);
    for dispatch in dispatches(&staged) {
        let rows = dispatch.covers.unwrap()[2].len() as u64;
        let [_, _, row, base] = dispatch
            .views
            .iter()
            .find(|v| v.0 == Slot::Scores)
            .unwrap()
            .1;
        assert_eq!((base, row), (0, 65_536));
        assert!(rows * 65_536 * 4 <= staged.workspace_bytes());
    }

    // 2^30 keys by a broadcast row: no memory, but every number is at its largest.
    let keys = TensorView::strided(&buffer, DType::F32, [1, 1, 1 << 30, 1], [0, 0, 0, 1], 0);
    let keys = keys.unwrap();
    let long = Operands::new(view(&buffer), keys, keys, view(&output));
    let problem = forward(&long, &options);
    let fused = plan(&problem, &caps, Kernel::Fused).unwrap();
    check(&fused, &caps, [1, 1, 65_536]);
    let refused = reasons(plan(&problem, &caps, Kernel::Staged).unwrap_err());
    let scores = "scores: one (batch, kv head) slab in bytes: 274877906944 needed, the device's max_storage_buffer_binding_size is 134217728";
    assert!(refused.contains(&scores.to_owned()), "{refused:?}");
    assert!(problem.flops().is_finite());

    // 2^90 rows of a broadcast query, of which a stage takes one.
    let many = [1 << 30, 1 << 30, 1 << 30, 1];
    let query = TensorView::strided(&buffer, DType::F32, many, [0, 0, 0, 1], 0).unwrap();
    let key = [1 << 30, 1, 4, 1];
    let key = TensorView::strided(&buffer, DType::F32, key, [0, 0, 1, 1], 0).unwrap();
    let scores = TensorView::bhsd(&output, DType::F32, [1, 1, 1, 4], 0).unwrap();
    let last = (1 << 30) - 1;
    let region = Region {
        batches: last..last + 1,
        heads: last..last + 1,
        rows: last..last + 1,
    };
    let broadcast = Operands::new(query, key, key, scores);
    let problem = Problem::stage(&broadcast, &options, Stage::Masked, region).unwrap();
    assert!(problem.flops() > 0.0);
    assert_eq!(problem.dims().rows(), usize::MAX);
    let plan = Plan::new(&problem, &caps, &PlanOptions::default()).unwrap();
    assert_eq!(plan.dispatches(), 2);
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
    let split = plan(&problem, &caps, Kernel::Fused).unwrap();
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
    let error = plan(&problem, &caps, Kernel::Fused).unwrap_err();
    let expected = "not supported on this device:\
        \n  - key: one (batch, kv head) slab in bytes: 167772160 needed, the device's max_storage_buffer_binding_size is 134217728\
        \n  - value: one (batch, kv head) slab in bytes: 167772160 needed, the device's max_storage_buffer_binding_size is 134217728";
    assert_eq!(error.to_string(), expected);
    assert!(error.is_unsupported() && !error.is_input() && !error.is_device());
}

#[test]
fn every_reason_is_given() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let options = Options::default().alignment(Alignment::PerSequence);
    let problem = forward(&buffers.lists_on_device(buffers.dense()), &options);
    let good = DeviceCaps::webgpu_default();
    assert!(plan(&problem, &good, Kernel::Fused).is_ok());

    let mut caps = good.clone();
    caps.max_storage_buffers_per_shader_stage = 7;
    caps.max_compute_invocations_per_workgroup = 63;
    caps.max_compute_workgroup_storage_size = wgpu_attention::testing::WORKGROUP_MEMORY as u32 - 1;
    caps.min_storage_buffer_offset_alignment = 48;
    caps.max_storage_buffer_binding_size = 100;
    caps.max_buffer_size = 100;
    let found = reasons(plan(&problem, &caps, Kernel::Fused).unwrap_err());
    let expected = [
        "alignment of bindings, a divisor of: 256 needed, the device's min_storage_buffer_offset_alignment is 48",
        "storage buffers of one dispatch: 8 needed, the device's max_storage_buffers_per_shader_stage is 7",
        "invocations of one workgroup: 64 needed, the device's max_compute_invocations_per_workgroup is 63",
        "workgroup memory in bytes: 15664 needed, the device's max_compute_workgroup_storage_size is 15663",
        "query: one (batch, kv head) slab in bytes: 160 needed, the device's max_storage_buffer_binding_size is 100",
        "key: one (batch, kv head) slab in bytes: 224 needed, the device's max_storage_buffer_binding_size is 100",
        "value: one (batch, kv head) slab in bytes: 168 needed, the device's max_storage_buffer_binding_size is 100",
        "output: one (batch, kv head) slab in bytes: 120 needed, the device's max_storage_buffer_binding_size is 100",
        "bias: one (batch, kv head) slab in bytes: 140 needed, the device's max_storage_buffer_binding_size is 100",
        "lengths, segments, sinks and slopes together, in bytes: 152 needed, the device's max_storage_buffer_binding_size is 100",
        "workspace in bytes: 152 needed, the device's max_buffer_size is 100",
    ];
    for text in expected {
        assert!(found.iter().any(|f| f == text), "{text}\nnot in {found:#?}");
    }

    // One limit at a time: exactly what is needed is enough, one less is not.
    let spoil: [fn(&mut DeviceCaps, i64); 3] = [
        |c, less| c.max_storage_buffers_per_shader_stage = (8 - less) as u32,
        |c, less| c.max_compute_invocations_per_workgroup = (64 - less) as u32,
        |c, less| {
            let memory = wgpu_attention::testing::WORKGROUP_MEMORY as i64;
            c.max_compute_workgroup_storage_size = (memory - less) as u32;
        },
    ];
    for spoil in spoil {
        let mut caps = good.clone();
        spoil(&mut caps, 0);
        assert!(plan(&problem, &caps, Kernel::Fused).is_ok());
        spoil(&mut caps, 1);
        let found = reasons(plan(&problem, &caps, Kernel::Fused).unwrap_err());
        assert_eq!(found.len(), 1, "{found:?}");
    }
}

#[test]
fn lists_over_the_limits_are_refused() {
    let noop = Noop::new();
    let mut caps = DeviceCaps::webgpu_default();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let list = noop.buffer(4 * 600);
    let segments = |offset, len| List::Buffer {
        buffer: &list,
        offset,
        len,
    };
    let operands = buffers
        .plain()
        .segments(segments(63, 10), segments(126, 14));
    let problem = forward(&operands, &Options::default());
    // The aligned-down starts add 252 bytes to the 40 and 248 to the 56 of the lists.
    caps.max_storage_buffer_binding_size = 303;
    caps.min_storage_buffer_offset_alignment = 32;
    assert!(plan(&problem, &caps, Kernel::Fused).is_ok());
    caps.min_storage_buffer_offset_alignment = 256;
    let found = reasons(plan(&problem, &caps, Kernel::Fused).unwrap_err());
    let text =
        "kv_segments in bytes: 304 needed, the device's max_storage_buffer_binding_size is 303";
    assert!(found.contains(&text.to_owned()), "{found:?}");
    caps.max_storage_buffer_binding_size = 576;
    assert!(plan(&problem, &caps, Kernel::Fused).is_ok());
}

/// Hand-written capabilities with nonsense in them give errors or plans.
#[test]
fn no_capability_panics() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F16);
    let options = Options::default()
        .alignment(Alignment::PerSequence)
        .window(Window::around(0, u32::MAX));
    let problem = forward(&buffers.lists_on_device(buffers.dense()), &options);
    let mut judged = 0;
    for kernel in [Kernel::Fused, Kernel::Staged] {
        for value in [0, 1, 2, 3, 255, 257, 1 << 16, u32::MAX - 1, u32::MAX] {
            for field in 0..7 {
                let mut caps = DeviceCaps::webgpu_default();
                match field {
                    0 => caps.max_storage_buffer_binding_size = u64::from(value),
                    1 => caps.max_buffer_size = u64::from(value),
                    2 => caps.min_storage_buffer_offset_alignment = value,
                    3 => caps.max_storage_buffers_per_shader_stage = value,
                    4 => caps.max_compute_workgroups_per_dimension = value,
                    5 => caps.max_compute_invocations_per_workgroup = value,
                    _ => caps.max_compute_workgroup_storage_size = value,
                }
                match plan(&problem, &caps, kernel) {
                    Ok(plan) => assert!(plan.dispatches() > 0),
                    Err(error) => assert!(!reasons(error).is_empty()),
                }
                judged += 1;
            }
        }
    }
    assert_eq!(judged, 2 * 9 * 7);
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
    let plan = plan(&problem, &caps, Kernel::Fused).unwrap();
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
