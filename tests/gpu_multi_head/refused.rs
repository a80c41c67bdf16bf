//! What a layer refuses, by the names and in the shapes that the caller gave.

use crate::gpu::gpu;
use crate::layer::{Layer, storage};
use wgpu_attention::{
    DType, DeviceCaps, Error, HostLinear, InProjections, Linear, MultiHeadInputs,
    MultiHeadOperands, MultiHeadPlan, Options, PlanOptions, Tensor, TensorView, Workspace,
};

#[test]
fn what_does_not_fit_is_named() {
    let layer = Layer::new(5);
    let right = layer.inputs();
    right.dims().unwrap();
    let wide = vec![0f32; 101 * 97];
    let odd = Tensor::f32(&wide, [1, 1, 101, 97]).unwrap();
    let linear = HostLinear {
        weight: odd,
        bias: None,
    };
    let cases: [(&str, MultiHeadInputs<'_>); 6] = [
        ("heads", right.kv_heads(0)),
        ("query weight", change(right, |l| l.query = linear)),
        ("key weight", change(right, |l| l.key = linear)),
        ("value weight", change(right, |l| l.value = linear)),
        ("output weight", change(right, |l| l.output = linear)),
        ("output bias", change(right, |l| l.output.bias = Some(odd))),
    ];
    for (name, inputs) in cases {
        match inputs.dims().unwrap_err() {
            Error::Shape { operand, .. } | Error::Value { operand, .. } => {
                assert_eq!(operand, name);
            }
            other => panic!("{name}: {other}"),
        }
        let plan = PlanOptions::default();
        let options = Options::default();
        assert!(
            gpu()
                .upload_multi_head(&inputs, &options, DType::F32, &plan)
                .is_err()
        );
    }
}

/// Biases of the wrong length, among them one that packed weights would read past.
#[test]
fn biases_of_the_callers_are_checked() {
    let buffer = storage(1 << 16);
    let tokens = |at| TensorView::tokens(&buffer, DType::F32, [1, 4, 8], at).unwrap();
    let linear = |rows: usize, bias: usize| {
        let weight = TensorView::matrix(&buffer, DType::F32, [rows, 8], 1024).unwrap();
        Linear::new(weight)
            .bias(TensorView::bhsd(&buffer, DType::F32, [1, 1, 1, bias], 2048).unwrap())
    };
    let separate = |bias| InProjections::Separate {
        query: linear(8, 8),
        key: linear(8, bias),
        value: linear(8, 8),
    };
    let output = tokens(4096);
    let plan = |projections, of_output, context: bool| {
        let layer = MultiHeadOperands::new(tokens(0), 2, projections, of_output, output);
        let layer = match context {
            true => layer.context(tokens(512)),
            false => layer,
        };
        gpu().plan_multi_head(&layer, &Options::default())
    };
    for context in [false, true] {
        let packed = InProjections::Packed;
        plan(packed(linear(24, 24)), linear(8, 8), context).unwrap();
        plan(separate(8), linear(8, 8), context).unwrap();
        for (name, projections, of_output) in [
            ("packed bias", packed(linear(24, 3)), linear(8, 8)),
            ("packed bias", packed(linear(24, 25)), linear(8, 8)),
            ("key bias", separate(9), linear(8, 8)),
            ("output bias", separate(8), linear(8, 7)),
        ] {
            match plan(projections, of_output, context) {
                Err(Error::Shape { operand, .. }) => assert_eq!(operand, name),
                other => panic!("{name}, context {context}: {other:?}"),
            }
        }
    }
}

/// A workspace that is too small, misplaced, or holds an operand.
#[test]
fn a_wrong_workspace_is_refused() {
    let device = gpu().device();
    let buffer = storage(1 << 16);
    let rows = |at: usize| TensorView::tokens(&buffer, DType::F32, [1, 4, 8], at).unwrap();
    let weight =
        |at: usize| Linear::new(TensorView::matrix(&buffer, DType::F32, [8, 8], at).unwrap());
    let projections = InProjections::Separate {
        query: weight(256),
        key: weight(512),
        value: weight(768),
    };
    let output = storage(4096);
    let view = TensorView::tokens(&output, DType::F32, [1, 4, 8], 0).unwrap();
    let operands = MultiHeadOperands::new(rows(0), 2, projections, weight(1024), view);
    let options = PlanOptions::default().shared_buffers(true);
    let plan = MultiHeadPlan::new(&operands, &Options::default(), gpu().caps(), &options).unwrap();
    let prepared = gpu().prepare_multi_head(&plan).unwrap();
    let small = storage(plan.workspace_bytes() - 4);
    let mut encoder = device.create_command_encoder(&Default::default());
    let mut refused = |buffer, offset, word: &str| {
        let workspace = Workspace { buffer, offset };
        let error = prepared
            .record(&mut encoder, &operands, workspace)
            .unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    };
    refused(&small, 0, "workspace: the view needs");
    refused(&buffer, 4, "a multiple of 256");
    refused(&buffer, 1024, "must not overlap query weight");
    // Beside the operands in their buffer it may lie.
    let workspace = Workspace {
        buffer: &buffer,
        offset: 32768,
    };
    prepared.record(&mut encoder, &operands, workspace).unwrap();
    gpu().queue().submit([encoder.finish()]);
}

fn change<'a>(
    mut inputs: MultiHeadInputs<'a>,
    how: impl FnOnce(&mut MultiHeadInputs<'a>),
) -> MultiHeadInputs<'a> {
    how(&mut inputs);
    inputs
}

/// Sizes whose products do not fit a number.
#[test]
fn sizes_beyond_all_bounds_are_named() {
    let buffer = storage(1 << 16);
    let view = |shape: [usize; 4]| TensorView::bhsd(&buffer, DType::F32, shape, 0).unwrap();
    // The same few numbers again and again.
    let wide = |shape| TensorView::strided(&buffer, DType::F32, shape, [0, 0, 0, 1], 0).unwrap();
    let of = |outputs| wide([1, 1, outputs, 8]);
    let refused = |input, [q_heads, kv_heads]: [usize; 2], projections, of_output| {
        let output = Linear::new(of_output);
        let y = wide([1 << 20, 1, 5, 8]);
        let layer = MultiHeadOperands::new(input, q_heads, projections, output, y);
        let layer = layer.kv_heads(kv_heads);
        let plan = gpu().plan_multi_head(&layer, &Options::default());
        plan.unwrap_err().to_string()
    };
    let x = view([2, 1, 5, 8]);
    const MAX: usize = usize::MAX;
    for heads in [[MAX, 1], [MAX - 1, 1], [MAX, MAX], [1 << 63, 1 << 63]] {
        let expected = format!("heads: expected at most 2^30, got {} query heads", heads[0]);
        let packed = InProjections::Packed(Linear::new(of(24)));
        assert_eq!(refused(x, heads, packed, of(8)), expected);
        let projections = separate([of(heads[0]), of(heads[1]), of(heads[1])]);
        assert_eq!(refused(x, heads, projections, of(8)), expected);
    }
    let many = 1 << 34;
    let too_many = |operand: &str, shape: [usize; 4]| {
        format!("{operand}: expected shape every axis at most 2^30, got {shape:?}")
    };
    assert_eq!(
        refused(x, [16, 1], separate([of(many), of(1 << 30), of(8)]), of(8)),
        too_many("query weight", [1, 1, many, 8])
    );
    assert_eq!(
        refused(x, [16, 1], separate([of(16), of(1), of(many)]), of(8)),
        too_many("value weight", [1, 1, many, 8])
    );
    let packed = InProjections::Packed(Linear::new(of(3 * many)));
    assert_eq!(
        refused(x, [16, 16], packed, of(8)),
        too_many("packed weight", [1, 1, 3 * many, 8])
    );
    assert_eq!(
        refused(wide([many, 1, 5, 8]), [2, 2], separate([of(8); 3]), of(8)),
        too_many("input", [many, 1, 5, 8])
    );
    // Heads of so many values that W_O could not have as many inputs.
    let values = separate([of(16), of(1), of(1 << 30)]);
    assert_eq!(
        refused(x, [16, 1], values, of(8)),
        format!(
            "output weight: expected shape (1, 1, out, {}): 16 heads of {} values, got [1, 1, 8, 8]",
            1usize << 34,
            1 << 30
        )
    );
}

/// What only an inspection reads or writes is refused, when planned and when recorded.
#[test]
fn norms_are_not_for_layers() {
    let buffer = storage(1 << 16);
    let tokens = |at| TensorView::tokens(&buffer, DType::F32, [2, 5, 8], at).unwrap();
    let weight = TensorView::matrix(&buffer, DType::F32, [8, 8], 1024).unwrap();
    let projections = separate([weight; 3]);
    let plain =
        MultiHeadOperands::new(tokens(0), 2, projections, Linear::new(weight), tokens(2048));
    let options = Options::default();
    let plan = gpu().plan_multi_head(&plain, &options).unwrap();
    let prepared = gpu().prepare_multi_head(&plan).unwrap();
    let workspace = storage(plan.workspace_bytes());
    let extra = TensorView::bhsd(&buffer, DType::F32, [2, 2, 5, 1], 4096).unwrap();
    for (name, layer) in [
        ("norms", plain.attention(|a| a.norms(extra))),
        ("received", plain.attention(|a| a.received(extra))),
    ] {
        let device = gpu().device();
        let mut encoder = device.create_command_encoder(&Default::default());
        let recorded = prepared.record(&mut encoder, &layer, Workspace::new(&workspace));
        let planned = gpu().plan_multi_head(&layer, &options).map(|_| ());
        for error in [planned.unwrap_err(), recorded.unwrap_err()] {
            let text = error.to_string();
            assert!(
                text.starts_with(&format!("{name}: expected none")),
                "{text}"
            );
        }
    }
}

/// Keys that are allowed, and whose projections no buffer holds.
#[test]
fn a_workspace_beyond_the_device_is_a_limit() {
    let buffer = storage(1 << 16);
    let wide = |shape| TensorView::strided(&buffer, DType::F32, shape, [0, 0, 0, 1], 0).unwrap();
    let weight = wide([1, 1, 1 << 30, 8]);
    let of_output = Linear::new(wide([1, 1, 3, 1 << 14]));
    let written = storage(1 << 16);
    let y = TensorView::tokens(&written, DType::F32, [4, 5, 3], 0).unwrap();
    let limit = |keys: usize, outputs: usize, caps: &DeviceCaps| {
        let projections = separate([weight, weight, wide([1, 1, outputs, 8])]);
        let layer = MultiHeadOperands::new(wide([4, 1, 5, 8]), 2, projections, of_output, y)
            .context(wide([4, 1, keys, 8]));
        let options = PlanOptions::default();
        match MultiHeadPlan::new(&layer, &Options::default(), caps, &options).unwrap_err() {
            Error::Unsupported { reasons } => reasons,
            other => panic!("{other}"),
        }
    };
    let caps = gpu().caps();
    let what = |needed: u64, limit: u64| Error::Limit {
        what: "workspace in bytes".to_owned(),
        needed,
        limit_name: "max_buffer_size",
        limit,
    };
    // 4 batch entries of 2^30 keys of 2^30 numbers of 4 bytes.
    assert_eq!(
        limit(1 << 30, 1 << 14, caps),
        [what(u64::MAX, caps.max_buffer_size)]
    );
    // 20 queries and 28 keys of 2^30 numbers, 28 values and 20 rows of heads of 2^14.
    let needed = 4 * (48 * (1 << 30) + 48 * (1 << 14));
    let mut small = caps.clone();
    small.max_buffer_size = small.max_buffer_size.min(needed - 1);
    let expected = [what(needed, small.max_buffer_size)];
    assert_eq!(limit(7, 1 << 14, &small), expected);
}

#[test]
fn slices_beyond_all_bounds_are_named() {
    let none: [f32; 0] = [];
    let of = |outputs: usize| HostLinear {
        weight: Tensor::f32(&none, [1, 1, outputs, 0]).unwrap(),
        bias: None,
    };
    let input = Tensor::f32(&none, [1, 1, 3, 0]).unwrap();
    let refused = |heads: usize, linears| {
        let inputs = MultiHeadInputs::new(input, heads, linears).kv_heads(1);
        inputs.dims().unwrap_err().to_string()
    };
    let many = 1 << 40;
    assert_eq!(
        refused(many, [of(many), of(1), of(many), of(1)]),
        format!("heads: expected at most 2^30, got {many} query heads")
    );
    assert_eq!(
        refused(2, [of(2), of(1), of(1), of(1)]),
        "input: expected shape (B, 1, N, width) with width > 0, got [1, 1, 3, 0]"
    );
}

/// Batch entries are joined where they follow each other; errors show them as given.
#[test]
fn errors_show_the_callers_shapes() {
    let buffer = storage(1 << 16);
    let tokens = |shape, at| TensorView::tokens(&buffer, DType::F32, shape, at).unwrap();
    let weight = Linear::new(TensorView::matrix(&buffer, DType::F32, [8, 8], 1024).unwrap());
    let projections = InProjections::Separate {
        query: weight,
        key: weight,
        value: weight,
    };
    let refused = |output| {
        let layer = MultiHeadOperands::new(tokens([2, 5, 8], 0), 2, projections, weight, output);
        let plan = gpu().plan_multi_head(&layer, &Options::default());
        plan.unwrap_err().to_string()
    };
    for wrong in [[2, 4, 8], [2, 5, 7], [1, 10, 8]] {
        let [batch, rows, width] = wrong;
        assert_eq!(
            refused(tokens(wrong, 2048)),
            format!("output: expected shape [2, 1, 5, 8], got [{batch}, 1, {rows}, {width}]")
        );
    }
    let strides = [15, 15, 3, 1];
    let folded = TensorView::strided(&buffer, DType::F32, [2, 1, 5, 8], strides, 2048).unwrap();
    let error = refused(folded);
    assert!(error.contains("got shape [2, 1, 5, 8]"), "{error}");
}

fn separate(views: [TensorView<'_>; 3]) -> InProjections<'_> {
    let [query, key, value] = views.map(Linear::new);
    InProjections::Separate { query, key, value }
}
