//! An axis of length 0 in every operation: planned, recorded and submitted, on buffers
//! that hold nothing. Where there is still something to write, that is dispatched.

mod noop;

use noop::{Buffers, Lists, Noop, SMALL, Sizes};
use wgpu_attention::*;

/// Every axis that may be empty, alone and with others.
fn all_sizes() -> Vec<Sizes> {
    let mut all = Vec::new();
    for bits in 1..16 {
        let or_0 = |bit: usize, n: usize| if bits >> bit & 1 == 1 { 0 } else { n };
        all.push(Sizes {
            batch: or_0(0, SMALL.batch),
            q_heads: or_0(1, SMALL.q_heads),
            q_len: or_0(2, SMALL.q_len),
            kv_len: or_0(3, SMALL.kv_len),
            ..SMALL
        });
    }
    all
}

#[test]
fn every_operation_on_nothing() {
    let noop = Noop::new();
    let options = Options::default();
    let mut recorded = 0;
    for sizes in all_sizes() {
        let buffers = Buffers::new(&noop, sizes, DType::F16);
        let lists = Lists::new(sizes);
        let [batch, heads, rows] = sizes.rows();
        let region = Region {
            batches: 0..batch,
            heads: 0..heads,
            rows: 0..rows,
        };
        let count = batch * heads * rows;
        let width = Rows {
            region: region.clone(),
            top: 2,
            first_keys: 0,
        };
        let numbers = count * sizes.kv_len.max(width.width());
        let out = noop.buffer((numbers as u64 * 4).max(4));
        let output = |shape| TensorView::bhsd(&out, DType::F32, shape, 0).unwrap();
        let received_out = noop.buffer((batch * heads * sizes.kv_len * 4).max(4) as u64);
        let masses = [batch, heads, sizes.kv_len, 1];
        let received = TensorView::bhsd(&received_out, DType::F32, masses, 0).unwrap();
        let norms_out = noop.buffer((batch * sizes.kv_heads * sizes.kv_len * 4).max(4) as u64);
        let key_norms = [batch, sizes.kv_heads, sizes.kv_len, 1];
        let key_norms = TensorView::bhsd(&norms_out, DType::F32, key_norms, 0).unwrap();
        for kernel in noop.attention.caps().kernels() {
            let chosen = PlanOptions::default().kernel(kernel);
            let any = PlanOptions::default();
            for operands in [buffers.dense(), lists.on_host(buffers.plain())] {
                let mut operands = operands;
                operands.offsets = None;
                let plan = noop.run(&operands, &options, &chosen).unwrap();
                assert_eq!(plan.dispatches() > 0, count > 0, "{plan}");
                recorded += 1;
                let mut of_stage = operands;
                of_stage.stats = None;
                of_stage.output = output(sizes.pairs());
                let stage = Problem::stage(&of_stage, &options, Stage::Masked, region.clone());
                let plan = noop.run_problem(&stage.unwrap(), &of_stage, &any).unwrap();
                assert_eq!(plan.dispatches() > 0, count * sizes.kv_len > 0, "{plan}");
                recorded += 1;
            }
            let stats = StatsView::new(&buffers.stats, Stats::Lse, sizes.rows(), 0).unwrap();
            let mut inspected = buffers.plain().stats(stats).norms(key_norms);
            for quantity in [
                Quantity::Stage(Stage::Probabilities),
                Quantity::Contribution,
            ] {
                inspected.output = output(sizes.pairs());
                let pairs = Pairs {
                    quantity,
                    region: region.clone(),
                    keys: 0..sizes.kv_len,
                };
                let problem = Problem::inspect(&inspected, &options, pairs).unwrap();
                let plan = noop.run_problem(&problem, &inspected, &chosen).unwrap();
                assert_eq!(plan.dispatches() > 0, count * sizes.kv_len > 0, "{plan}");
                recorded += 1;
            }
            inspected.output = output([batch, heads, rows, width.width()]);
            // A row without keys has a summary; a key without rows receives 0.
            for receives in [false, true] {
                inspected.received = receives.then_some(received);
                let problem = Problem::summarize(&inspected, &options, width.clone()).unwrap();
                let plan = noop.run_problem(&problem, &inspected, &chosen).unwrap();
                let masses = batch * heads * sizes.kv_len;
                let writes = count > 0 || receives && masses > 0;
                assert_eq!(plan.dispatches() > 0, writes, "{plan}");
                recorded += 1;
            }
            let norms = Norms {
                value: TensorView::bhsd(&buffers.value, DType::F16, sizes.value(), 0).unwrap(),
                through: None,
                output: TensorView::bhsd(
                    &norms_out,
                    DType::F32,
                    [batch, sizes.kv_heads, sizes.kv_len, 1],
                    0,
                )
                .unwrap(),
            };
            let problem = Problem::norms(&norms).unwrap();
            noop.run_problem(&problem, &norms.operands(), &chosen)
                .unwrap();
            recorded += 1;
        }
    }
    assert_eq!(recorded, 15 * 2 * 9);
}

#[test]
fn projections_of_nothing() {
    let noop = Noop::new();
    for [batch, rows, outputs] in [[0, 5, 3], [2, 0, 3], [2, 5, 0], [0, 0, 0]] {
        let [x, w, b, y] = [
            batch * rows * 4,
            outputs * 4,
            outputs,
            batch * rows * outputs,
        ]
        .map(|count| noop.buffer((count as u64 * 4).max(4)));
        let projection = Projection {
            input: TensorView::tokens(&x, DType::F32, [batch, rows, 4], 0).unwrap(),
            weight: TensorView::matrix(&w, DType::F32, [outputs, 4], 0).unwrap(),
            bias: Some(TensorView::bhsd(&b, DType::F32, [1, 1, 1, outputs], 0).unwrap()),
            output: TensorView::tokens(&y, DType::F32, [batch, rows, outputs], 0).unwrap(),
        };
        let problem = Problem::projection(&projection).unwrap();
        let operands = projection.operands().unwrap();
        let plan = noop.run_problem(&problem, &operands, &PlanOptions::default());
        assert_eq!(plan.unwrap().dispatches(), 0);
    }
}

/// Layers with packed and separate weights, over themselves and over a context.
#[test]
fn layers_of_nothing() {
    let noop = Noop::new();
    let (width, heads) = (8, 2);
    let weights = noop.buffer(3 * 8 * 8 * 4);
    let matrix = |outputs, first| {
        let at = first * width;
        let weight = TensorView::matrix(&weights, DType::F32, [outputs, width], at).unwrap();
        Linear::new(weight)
    };
    let separate = InProjections::Separate {
        query: matrix(8, 0),
        key: matrix(8, 8),
        value: matrix(8, 16),
    };
    let mut recorded = 0;
    for [batch, q_len, kv_len] in [[0, 5, 7], [2, 0, 7], [2, 5, 0], [2, 0, 0], [0, 0, 0]] {
        for projections in [InProjections::Packed(matrix(24, 0)), separate] {
            for context in [false, true] {
                let room = |rows: usize| noop.buffer((batch * rows * width * 4).max(4) as u64);
                let [x, c, y] = [q_len, kv_len, q_len].map(room);
                let tokens = |buffer, rows| {
                    TensorView::tokens(buffer, DType::F32, [batch, rows, width], 0).unwrap()
                };
                let (input, output) = (tokens(&x, q_len), tokens(&y, q_len));
                let mut operands =
                    MultiHeadOperands::new(input, heads, projections, matrix(8, 0), output);
                if context {
                    operands = operands.context(tokens(&c, kv_len));
                }
                let attention = &noop.attention;
                let plan = attention
                    .plan_multi_head(&operands, &Options::default())
                    .unwrap();
                let prepared = attention.prepare_multi_head(&plan).unwrap();
                // The smallest workspace that a buffer can be.
                let workspace = noop.buffer(plan.workspace_bytes().max(4));
                let workspace = Workspace::new(&workspace);
                let mut encoder = noop.device.create_command_encoder(&Default::default());
                prepared.record(&mut encoder, &operands, workspace).unwrap();
                attention.queue().submit([encoder.finish()]);
                assert_eq!(noop.take_uncaptured(), Vec::<String>::new());
                assert_eq!(
                    plan.dispatches() > 0,
                    batch * q_len > 0 || {
                        // Keys are projected though no query asks for them.
                        context && batch * kv_len > 0
                    }
                );
                recorded += 1;
            }
        }
    }
    assert_eq!(recorded, 5 * 2 * 2);
}

#[test]
fn slices_of_nothing() {
    let noop = Noop::new();
    let attention = &noop.attention;
    let options = Options::default();
    for sizes in all_sizes() {
        let numbers = vec![0.0f32; 512];
        let tensor = |shape: [usize; 4]| {
            let count = shape.iter().product();
            Tensor::f32(&numbers[..count], shape).unwrap()
        };
        let inputs = Inputs::new(
            tensor(sizes.query()),
            tensor(sizes.key()),
            tensor(sizes.value()),
        );
        let count: usize = sizes.rows().iter().product();
        let out = attention.run(&inputs, &options).unwrap();
        assert_eq!(out.output.len(), count * sizes.v_dim);
        assert_eq!(out.lse.len(), count);
        let [batch, heads, rows] = sizes.rows();
        let region = Region {
            batches: 0..batch,
            heads: 0..heads,
            rows: 0..rows,
        };
        let stage = attention.stage(&inputs, &options, Stage::Masked, &region);
        assert_eq!(stage.unwrap().len(), count * sizes.kv_len);
        let weight = tensor([1, 1, 3, heads * sizes.v_dim]);
        for output_weight in [None, Some(weight)] {
            let inspection = Inspection {
                output_weight,
                ..Inspection::default()
            };
            let seen = attention
                .upload_inspection(&inputs, &options, &inspection)
                .unwrap();
            let pairs = Pairs {
                quantity: Quantity::Contribution,
                region: region.clone(),
                keys: 0..sizes.kv_len,
            };
            assert_eq!(seen.pairs(&pairs).unwrap().len(), count * sizes.kv_len);
            let wanted = Rows {
                region: region.clone(),
                top: 1,
                first_keys: 0,
            };
            assert_eq!(seen.rows(&wanted).unwrap().len(), count);
            let received = seen.received(&region).unwrap();
            assert_eq!(received.len(), batch * heads * sizes.kv_len);
        }
        let linear = HostLinear {
            weight: tensor([1, 1, 8, 8]),
            bias: None,
        };
        let input = tensor([batch, 1, rows, 8]);
        let layer = MultiHeadInputs::new(input, 2, [linear; 4]);
        let layer = layer.context(tensor([batch, 1, sizes.kv_len, 8]));
        let y = attention.multi_head(&layer, &options).unwrap();
        assert_eq!(y.len(), batch * rows * 8);
        assert_eq!(noop.take_uncaptured(), Vec::<String>::new());
    }
}

/// An empty view begins anywhere, past its buffer's end too, as a part of a larger tensor
/// may; one that holds an element does not.
#[test]
fn empty_views_begin_anywhere() {
    let noop = Noop::new();
    let buffer = noop.buffer(4);
    let packed = TensorView::packed_qkv(&buffer, DType::F32, 2, 0, (4, 2), 8, 0).unwrap();
    assert_eq!(
        packed.map(|view| view.shape()),
        [[2, 4, 0, 8], [2, 2, 0, 8], [2, 2, 0, 8]]
    );
    let far = usize::MAX;
    TensorView::bhsd(&buffer, DType::F32, [1, 1, 0, 8], far).unwrap();
    MaskView::bytes(&buffer, [1, 1, 3, 0], far, Polarity::Keep).unwrap();
    MaskView::bits(&buffer, [1, 0, 3, 8], far, Polarity::Keep).unwrap();
    StatsView::new(&buffer, Stats::Lse, [0, 1, 1], far).unwrap();
    let output = TensorView::bhsd(&buffer, DType::F32, [2, 4, 0, 8], 1 << 20).unwrap();
    let [query, key, value] = packed;
    let operands = Operands::new(query, key, value, output).kv_lengths(List::Buffer {
        buffer: &buffer,
        offset: 0,
        len: 0,
    });
    let lengths = noop.run(&operands, &Options::default(), &PlanOptions::default());
    assert!(lengths.unwrap_err().to_string().starts_with("kv_lengths"));
    let operands = Operands::new(query, key, value, output);
    let plan = noop.run(&operands, &Options::default(), &PlanOptions::default());
    assert_eq!(plan.unwrap().dispatches(), 0);
    let error = TensorView::bhsd(&buffer, DType::F32, [1, 1, 1, 1], 1).unwrap_err();
    assert!(
        matches!(error, Error::BufferTooSmall { needed: 8, .. }),
        "{error}"
    );
}
