//! Every plan is recorded, finished and submitted on wgpu's `noop` backend at
//! WebGPU's default limits: bindings, usages, alignments and dispatch sizes are
//! validated, and no error may reach the device's handler.

mod noop;

use noop::{Buffers, Lists, Noop, SMALL, Sizes, bytes_of};
use wgpu_attention::shaders::all_pipelines;
use wgpu_attention::{
    Alignment, DType, DeviceCaps, Error, Kernel, List, MaskView, Norms, Operands, Options, Pairs,
    Plan, PlanOptions, Polarity, Problem, Projection, Quantity, Region, Rows, Stage, Stats,
    StatsView, TensorView, Window, Workspace, wgpu,
};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// With options that need a list of offsets, and without.
fn options(lists: bool) -> Options {
    let options = Options::default()
        .causal(true)
        .softcap(9.0)
        .window(Window::around(3, 1));
    match lists {
        true => options.alignment(Alignment::PerSequence),
        false => options,
    }
}

#[test]
fn the_handler_catches_what_is_wrong() {
    // The check that every other test here relies on.
    let noop = Noop::new();
    noop.buffer_with(4, wgpu::BufferUsages::empty());
    assert_eq!(noop.take_uncaptured().len(), 1);
    assert!(noop.take_uncaptured().is_empty());
    // And wgpu sees a buffer that is read and written in one dispatch.
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let plan = noop
        .attention
        .plan(&buffers.plain(), &Options::default())
        .unwrap();
    assert_eq!(plan.dispatches(), 1);
}

#[test]
fn every_combination_of_operands() {
    let noop = Noop::new();
    let mut recorded = 0;
    for dtype in DTYPES {
        let buffers = Buffers::new(&noop, SMALL, dtype);
        let lists = Lists::new(SMALL);
        for dense in [false, true] {
            let base = if dense {
                buffers.dense()
            } else {
                buffers.plain()
            };
            for (operands, with_lists) in [
                (base, false),
                (lists.on_host(base), true),
                (buffers.lists_on_device(base), true),
                // Lengths from a buffer, slopes from the host.
                (
                    buffers
                        .lists_on_device(base)
                        .alibi_slopes(List::Host(&lists.slopes)),
                    true,
                ),
            ] {
                for kernel in noop.attention.caps().kernels() {
                    for shared in [false, true] {
                        let chosen = PlanOptions::default().kernel(kernel).shared_buffers(shared);
                        noop.run(&operands, &options(with_lists), &chosen).unwrap();
                        recorded += 1;
                    }
                }
            }
        }
    }
    assert_eq!(recorded, 3 * 2 * 4 * 2 * 2);
    // Every width of a tile, with rows that can be loaded in chunks and not.
    for v_dim in [8, 38, 40, 70, 72] {
        for dtype in DTYPES {
            let buffers = Buffers::new(&noop, Sizes { v_dim, ..SMALL }, dtype);
            for shared in [false, true] {
                let chosen = PlanOptions::default().shared_buffers(shared);
                let chosen = chosen.kernel(Kernel::Tiled);
                noop.run(&buffers.plain(), &options(false), &chosen)
                    .unwrap();
            }
        }
    }
    // Projections of widths that can be loaded in chunks and not.
    for width in [7, 8] {
        for dtype in DTYPES {
            for shared in [false, true] {
                let [input, weight, output] = [(); 3].map(|()| noop.buffer(4096));
                let view = |buffer, shape| TensorView::bhsd(buffer, dtype, shape, 0).unwrap();
                let projection = Projection {
                    input: view(&input, [2, 1, 5, width]),
                    weight: view(&weight, [1, 1, 9, width]),
                    bias: None,
                    output: view(&output, [2, 1, 5, 9]),
                };
                let problem = Problem::projection(&projection).unwrap();
                let chosen = PlanOptions::default().shared_buffers(shared);
                let operands = projection.operands().unwrap();
                noop.run_problem(&problem, &operands, &chosen).unwrap();
            }
        }
    }
    // Inspections of the same, with lists that lie in the workspace and not.
    for qk_dim in [7, 8] {
        for dtype in DTYPES {
            let buffers = Buffers::new(
                &noop,
                Sizes {
                    qk_dim,
                    v_dim: qk_dim,
                    ..SMALL
                },
                dtype,
            );
            for shared in [false, true] {
                for on_device in [false, true] {
                    inspections(&noop, &buffers, shared, on_device);
                }
            }
        }
    }
    // Nothing is listed that no plan reaches.
    let all = all_pipelines();
    let able = all.iter().filter(|(shader, _)| !shader.needs_subgroups());
    assert_eq!(noop.attention.pipelines(), able.count());
}

/// Pairs, summaries and norms, by the kernel of plain devices.
fn inspections(noop: &Noop, buffers: &Buffers, shared: bool, on_device: bool) {
    let [batch, heads, keys, v_dim] = buffers.sizes.value();
    let [_, q_heads, rows, _] = buffers.sizes.query();
    let region = Region {
        batches: 0..batch,
        heads: 0..q_heads,
        rows: 0..rows,
    };
    let pairs = Pairs {
        quantity: Quantity::Contribution,
        region: region.clone(),
        keys: 0..keys,
    };
    let summaries = Rows {
        region,
        top: 2,
        first_keys: 1,
    };
    let shapes = [
        [batch, heads, keys, 1],
        [batch, q_heads, rows, keys],
        [batch, q_heads, rows, summaries.width()],
        [batch, q_heads, keys, 1],
    ];
    let all = shapes.map(|shape| noop.buffer(shape.iter().product::<usize>() as u64 * 4));
    let views: Vec<_> = all.iter().zip(shapes).collect();
    let view = |n: usize| TensorView::bhsd(views[n].0, DType::F32, shapes[n], 0).unwrap();
    let mut operands = buffers.dense();
    if on_device {
        operands = buffers.lists_on_device(operands);
    }
    operands = operands.norms(view(0));
    let options = options(on_device);
    let chosen = PlanOptions::default().shared_buffers(shared);
    operands.output = view(1);
    let problem = Problem::inspect(&operands, &options, pairs).unwrap();
    noop.run_problem(&problem, &operands, &chosen).unwrap();
    operands.output = view(2);
    operands = operands.received(view(3));
    let problem = Problem::summarize(&operands, &options, summaries).unwrap();
    noop.run_problem(&problem, &operands, &chosen).unwrap();
    let value = TensorView::bhsd(
        &buffers.value,
        buffers.dtype,
        [batch, heads, keys, v_dim],
        0,
    );
    let norms = Norms {
        value: value.unwrap(),
        through: None,
        output: view(0),
    };
    let problem = Problem::norms(&norms).unwrap();
    noop.run_problem(&problem, &norms.operands(), &chosen)
        .unwrap();
}

#[test]
fn one_operand_at_a_time() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let lists = Lists::new(SMALL);
    let (plain, all) = (buffers.plain(), buffers.lists_on_device(buffers.dense()));
    let shape = SMALL.pairs();
    let bits = MaskView::bits(&buffers.mask, [1, 1, 5, 7], 0, Polarity::Drop).unwrap();
    let halves = TensorView::bhsd(&buffers.bias, DType::BF16, [1, 4, 1, shape[3]], 3).unwrap();
    let lse = StatsView::new(&buffers.stats, Stats::Lse, SMALL.rows(), 5).unwrap();
    let mut cases = vec![
        plain.stats(lse),
        plain.bias(halves),
        plain.mask(bits),
        plain.kv_lengths(List::Host(&lists.kv_lengths)),
        plain.q_lengths(List::Host(&lists.q_lengths)),
        plain.alibi_slopes(List::Host(&lists.slopes)),
        plain.sinks(List::Host(&lists.sinks)),
        plain.segments(
            List::Host(&lists.q_segments),
            List::Host(&lists.kv_segments),
        ),
    ];
    let mut on_device = [plain; 5];
    on_device[0].kv_lengths = all.kv_lengths;
    on_device[1].q_lengths = all.q_lengths;
    on_device[2].alibi_slopes = all.alibi_slopes;
    on_device[3].sinks = all.sinks;
    on_device[4].q_segments = all.q_segments;
    on_device[4].kv_segments = all.kv_segments;
    cases.extend(on_device);
    for operands in &cases {
        for kernel in noop.attention.caps().kernels() {
            let chosen = PlanOptions::default().kernel(kernel);
            noop.run(operands, &options(false), &chosen).unwrap();
        }
    }
    assert_eq!(cases.len(), 13);
}

/// Memory pools: every operand, and the workspace, in one buffer.
#[test]
fn everything_in_one_buffer() {
    let noop = Noop::new();
    let pool = noop.buffer(1 << 16);
    for dtype in DTYPES {
        for gap in [0, 1, 5] {
            // Elements of 4 bytes after which the next operand starts.
            let mut next = 3 + gap;
            let mut take = |bytes: u64| {
                let start = next;
                next += bytes.div_ceil(4) as usize + gap;
                start
            };
            let scale = 4 / dtype.size() as usize;
            let mut input = |shape| {
                let start = take(bytes_of(shape, dtype)) * scale;
                TensorView::bhsd(&pool, dtype, shape, start).unwrap()
            };
            let (query, key, value) = (
                input(SMALL.query()),
                input(SMALL.key()),
                input(SMALL.value()),
            );
            let output = take(bytes_of(SMALL.output(), DType::F32));
            let output = TensorView::bhsd(&pool, DType::F32, SMALL.output(), output).unwrap();
            let stats = StatsView::new(&pool, Stats::RowState, SMALL.rows(), take(8 * 40)).unwrap();
            let bias = take(bytes_of(SMALL.pairs(), DType::F32));
            let bias = TensorView::bhsd(&pool, DType::F32, SMALL.pairs(), bias).unwrap();
            let mask = take(280) * 4;
            let mask = MaskView::bytes(&pool, SMALL.pairs(), mask, Polarity::Keep).unwrap();
            let offset = take(8);
            let lengths = List::Buffer {
                buffer: &pool,
                offset,
                len: 2,
            };
            let operands = Operands::new(query, key, value, output)
                .stats(stats)
                .bias(bias)
                .mask(mask)
                .kv_lengths(lengths);
            let problem = Problem::forward(&operands, &options(false)).unwrap();
            assert!(problem.shares_buffers());
            for kernel in noop.attention.caps().kernels() {
                let chosen = PlanOptions::default().kernel(kernel);
                let plan = Plan::new(&problem, noop.attention.caps(), &chosen).unwrap();
                let workspace = Workspace {
                    buffer: &pool,
                    offset: 1 << 15,
                };
                noop.record(&plan, &operands, Some(workspace)).unwrap();
            }
        }
    }
}

#[test]
fn packed_projections_and_strided_outputs() {
    let noop = Noop::new();
    for dtype in DTYPES {
        let packed = noop.buffer(4 * 2 * 5 * 8 * 9 + 28);
        let [query, key, value] =
            TensorView::packed_qkv(&packed, dtype, 2, 5, (4, 2), 9, 7).unwrap();
        let room = noop.buffer(4 * 2 * 5 * 4 * 9 + 12);
        let output = TensorView::bshd(&room, dtype, [2, 4, 5, 9], 3).unwrap();
        let operands = Operands::new(query, key, value, output);
        for kernel in noop.attention.caps().kernels() {
            let chosen = PlanOptions::default().kernel(kernel);
            noop.run(&operands, &options(false), &chosen).unwrap();
        }
    }
}

#[test]
fn every_stage() {
    let noop = Noop::new();
    let lists = Lists::new(SMALL);
    let region = Region {
        batches: 1..2,
        heads: 1..4,
        rows: 2..5,
    };
    let scores = noop.buffer(4 * 3 * 3 * 7 + 8);
    let mut recorded = 0;
    for dtype in DTYPES {
        let buffers = Buffers::new(&noop, SMALL, dtype);
        let mut base = buffers.dense();
        base.output = TensorView::bhsd(&scores, DType::F32, [1, 3, 3, 7], 2).unwrap();
        let mut bare = base;
        (bare.stats, bare.bias, bare.mask) = (None, None, None);
        for operands in [bare, lists.on_host(base), buffers.lists_on_device(base)] {
            for stage in Stage::ALL {
                let options = options(operands.offsets.is_some());
                let problem = Problem::stage(&operands, &options, stage, region.clone()).unwrap();
                noop.run_problem(&problem, &operands, &PlanOptions::default())
                    .unwrap();
                recorded += 1;
            }
        }
    }
    assert_eq!(recorded, 3 * 3 * 4);
}

#[test]
fn empty_axes() {
    let noop = Noop::new();
    let empty = [
        Sizes { batch: 0, ..SMALL },
        Sizes {
            q_heads: 0,
            ..SMALL
        },
        Sizes { q_len: 0, ..SMALL },
        Sizes { kv_len: 0, ..SMALL },
        Sizes {
            q_len: 0,
            kv_len: 0,
            ..SMALL
        },
    ];
    for sizes in empty {
        let buffers = Buffers::new(&noop, sizes, DType::F16);
        let lists = Lists::new(sizes);
        for base in [buffers.plain(), buffers.dense()] {
            let all = [base, lists.on_host(base), buffers.lists_on_device(base)];
            for (index, operands) in all.iter().enumerate() {
                for kernel in noop.attention.caps().kernels() {
                    let chosen = PlanOptions::default().kernel(kernel);
                    let plan = noop.run(operands, &options(index > 0), &chosen).unwrap();
                    let rows: usize = sizes.rows().iter().product();
                    // Without keys there is still an output to write.
                    assert_eq!(plan.dispatches() == 0, rows == 0, "{plan}");
                    if rows == 0 {
                        // Nothing runs, so no limit of the device can be too small.
                        let mut none = DeviceCaps::webgpu_default();
                        none.max_loop_iterations = Some(0);
                        none.max_storage_buffer_binding_size = 0;
                        let plan = Plan::new(plan.problem(), &none, &chosen).unwrap();
                        assert_eq!((plan.dispatches(), plan.workspace_bytes()), (0, 0));
                    }
                }
            }
        }
        let region = Region {
            batches: 0..sizes.batch.min(1),
            heads: 0..sizes.q_heads.min(1),
            rows: 0..sizes.q_len.min(1),
        };
        let mut operands = buffers.plain();
        let [b, h, r] = region.lens();
        let shape = [b, h, r, sizes.kv_len];
        operands.output = TensorView::bhsd(&buffers.output, DType::F32, shape, 0).unwrap();
        let options = Options::default();
        let problem = Problem::stage(&operands, &options, Stage::Probabilities, region).unwrap();
        let plan = noop
            .run_problem(&problem, &operands, &PlanOptions::default())
            .unwrap();
        assert_eq!(plan.dispatches(), 0);
    }
}

/// Small limits on a real device object: many dispatches, all of them valid.
#[test]
fn split_problems_at_lowered_limits() {
    let noop = Noop::with_limits(wgpu::Limits {
        max_storage_buffer_binding_size: 2048,
        max_compute_workgroups_per_dimension: 16,
        ..Default::default()
    });
    let sizes = Sizes {
        batch: 3,
        q_heads: 6,
        kv_heads: 3,
        q_len: 70,
        kv_len: 7,
        qk_dim: 5,
        v_dim: 3,
    };
    let lists = Lists::new(sizes);
    for dtype in DTYPES {
        let buffers = Buffers::new(&noop, sizes, dtype);
        for kernel in noop.attention.caps().kernels() {
            let chosen = PlanOptions::default().kernel(kernel);
            for operands in [
                buffers.dense(),
                buffers.dense().sinks(List::Host(&lists.sinks)),
            ] {
                let plan = noop.run(&operands, &options(false), &chosen).unwrap();
                assert!(plan.dispatches() >= 9, "{plan}");
            }
        }
    }
}

#[test]
fn the_workspace_is_exact() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let on_device = buffers.lists_on_device(buffers.dense());
    let mut sizes = Vec::new();
    for (operands, lists) in [(buffers.dense(), false), (on_device, true)] {
        for kernel in noop.attention.caps().kernels() {
            let problem = Problem::forward(&operands, &options(lists)).unwrap();
            let chosen = PlanOptions::default().kernel(kernel);
            let plan = Plan::new(&problem, noop.attention.caps(), &chosen).unwrap();
            let needed = plan.workspace_bytes();
            sizes.push(needed);
            if needed == 0 {
                noop.record(&plan, &operands, None).unwrap();
                continue;
            }
            for offset in [0, 256, 1024] {
                let exact = noop.buffer(offset + needed);
                let short = noop.buffer(offset + needed - 1);
                let at = |buffer| Some(Workspace { buffer, offset });
                noop.record(&plan, &operands, at(&exact)).unwrap();
                let expected = Error::BufferTooSmall {
                    operand: "workspace",
                    needed: offset + needed,
                    size: offset + needed - 1,
                };
                assert_eq!(noop.record(&plan, &operands, at(&short)), Err(expected));
            }
            let missing = noop.record(&plan, &operands, None).unwrap_err();
            let text = format!("workspace: expected {needed} bytes, got no workspace");
            assert_eq!(missing.to_string(), text);
        }
    }
    // Scores of 2 x 4 x 5 x 7 f32; 38 words of lists; the lists, aligned, then the scores.
    assert_eq!(sizes, [0, 1120, 152, 256 + 1120]);
}

const FOR: &str = "device: the plan was made for ";

#[test]
fn a_plan_for_a_greater_device_is_refused() {
    let noop = Noop::with_limits(wgpu::Limits {
        max_storage_buffer_binding_size: 512,
        max_compute_workgroups_per_dimension: 4,
        ..Default::default()
    });
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let refused = |operands: &Operands<'_>, caps: &DeviceCaps, kernel| {
        let problem = Problem::forward(operands, &Options::default()).unwrap();
        let plan = Plan::new(&problem, caps, &PlanOptions::default().kernel(kernel)).unwrap();
        noop.attention.prepare(&plan).unwrap_err().to_string()
    };
    let mut caps = DeviceCaps::webgpu_default();
    let plain = buffers.plain();
    let text = refused(&plain, &caps, Kernel::Tiled);
    let expected = "workgroups in one dimension: 8; query: a binding in bytes: 1280; \
        key: a binding in bytes: 896; value: a binding in bytes: 672; \
        output: a binding in bytes: 960, got max_compute_workgroups_per_dimension 4; \
        max_storage_buffer_binding_size 512";
    assert_eq!(text, format!("{FOR}{expected}"));
    caps.max_compute_workgroups_per_dimension = 4;
    let text = refused(&plain, &caps, Kernel::Tiled);
    assert!(text.starts_with(FOR), "{text}");
    assert!(
        text.ends_with(" got max_storage_buffer_binding_size 512"),
        "{text}"
    );
    caps.max_storage_buffer_binding_size = 512;
    caps.min_storage_buffer_offset_alignment = 32;
    let text = refused(&plain, &caps, Kernel::Tiled);
    assert!(
        text.starts_with(FOR) && text.contains("a binding at byte "),
        "{text}"
    );
    assert!(text.ends_with(", got an alignment of 256"), "{text}");
    // The other way round: a plan for less runs on more.
    let plan = Problem::forward(&plain, &Options::default()).unwrap();
    let plan = Plan::new(&plan, noop.attention.caps(), &PlanOptions::default()).unwrap();
    noop.record(&plan, &plain, None).unwrap();
    let other = Noop::new();
    let buffers = Buffers::new(&other, SMALL, DType::F32);
    other.record(&plan, &buffers.plain(), None).unwrap();
}

/// What wgpu refuses at a binding becomes an error, not the caller's panic.
#[test]
fn foreign_and_destroyed_buffers_are_errors() {
    let [noop, other] = Noop::pair();
    let own = Buffers::new(&noop, SMALL, DType::F32);
    let foreign = Buffers::new(&other, SMALL, DType::F32);
    let plan = noop
        .attention
        .plan(&own.plain(), &Options::default())
        .unwrap();
    let error = noop.record(&plan, &foreign.plain(), None).unwrap_err();
    assert!(error.is_device(), "{error}");
    assert!(
        error.to_string().starts_with("binding the operands: "),
        "{error}"
    );
    own.key.destroy();
    let error = noop.record(&plan, &own.plain(), None).unwrap_err();
    assert!(error.is_device(), "{error}");
}
