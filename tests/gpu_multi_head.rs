//! The multi-head layer by every family: a real model's layer, random layers against
//! the oracle, what it costs, what it refuses.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use gpu::{Report, gpu, kernels};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::reference::{self, compare, compare_abs};
use wgpu_attention::{
    BoolMask, DType, Error, HostLinear, InProjections, Kernel, Linear, MaskData, MultiHeadInputs,
    MultiHeadOperands, MultiHeadPlan, Options, PlanOptions, Polarity, Tensor, TensorView,
    Workspace,
};

/// Encoder layer 0 of all-MiniLM-L6-v2 with a padding mask, against float64.
#[test]
fn a_real_layer_is_what_was_captured() {
    let bytes = std::fs::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/real/minilm_layer0_multihead.safetensors"
    ))
    .unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().clone().unwrap();
    let atol: serde_json::Value = serde_json::from_str(&metadata["atol"]).unwrap();
    let atol = atol["Y"].as_f64().unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |name: &str| -> Vec<f32> {
        bytemuck::pod_collect_to_vec(file.tensor(name).unwrap().data())
    };
    let (x, expected) = (numbers("X"), numbers("expected.Y"));
    let weights = ["q", "k", "v", "o"].map(|n| numbers(&format!("W_{n}")));
    let biases = ["q", "k", "v", "o"].map(|n| numbers(&format!("b_{n}")));
    let linears = [0, 1, 2, 3].map(|n| HostLinear {
        weight: Tensor::f32(&weights[n], [1, 1, 384, 384]).unwrap(),
        bias: Some(Tensor::f32(&biases[n], [1, 1, 1, 384]).unwrap()),
    });
    let mask = file.tensor("attn_mask").unwrap().data().to_vec();
    let mask = BoolMask::new(MaskData::Bytes(&mask), [3, 1, 1, 24], Polarity::Keep).unwrap();
    let input = Tensor::f32(&x, [3, 1, 24, 384]).unwrap();
    let inputs = MultiHeadInputs::new(input, 12, linears).attention(|a| a.mask(mask));
    let options = Options::default();
    let oracle = reference::multi_head(&inputs, &options, DType::F32).unwrap();
    let mut report = Report::new();
    for kernel in kernels() {
        let plan = PlanOptions::default().kernel(kernel);
        let uploaded = gpu()
            .upload_multi_head(&inputs, &options, DType::F32, &plan)
            .unwrap();
        uploaded.submit().unwrap();
        let got = uploaded.read().unwrap();
        let found = compare_abs(&got, &expected, atol, 0.0);
        report.record(kernel.name(), "captured", expected.len(), found);
        let found = compare(&got, &oracle.values, &oracle.bound);
        report.record(kernel.name(), "oracle", expected.len(), found);
    }
    report.finish(2 * 3 * 24 * 384);
}

/// A layer of random numbers.
struct Layer {
    batch: usize,
    q_len: usize,
    /// Keys and width of the context, if there is one.
    context: Option<[usize; 2]>,
    width: usize,
    heads: [usize; 2],
    dims: [usize; 2],
    output: usize,
    numbers: [Vec<f32>; 10],
}

impl Layer {
    fn new(seed: u64) -> Layer {
        Layer::of(seed, |_| ())
    }

    /// The same with other sizes.
    fn of(seed: u64, change: impl FnOnce(&mut Layer)) -> Layer {
        let mut rng = StdRng::seed_from_u64(seed);
        let kv_heads = [1, 2, 3, 8][rng.random_range(0..4)];
        let group = [1, 1, 2, 4][rng.random_range(0..4)];
        let dims = [0, 1].map(|_| rng.random_range(1..20));
        let mut layer = Layer {
            batch: rng.random_range(1..4),
            q_len: rng.random_range(1..40),
            context: rng
                .random_bool(0.5)
                .then(|| [rng.random_range(1..50), rng.random_range(1..30)]),
            width: rng.random_range(1..50),
            heads: [kv_heads * group, kv_heads],
            dims,
            output: rng.random_range(1..60),
            numbers: Default::default(),
        };
        change(&mut layer);
        let shapes = layer.shapes();
        for (numbers, shape) in layer.numbers.iter_mut().zip(shapes) {
            let count: usize = shape.iter().product();
            *numbers = (0..count).map(|_| rng.random_range(-1.0..1.0)).collect();
        }
        layer
    }

    /// Input, context, then weight and bias of W_Q, W_K, W_V, W_O.
    fn shapes(&self) -> [[usize; 4]; 10] {
        let [q_heads, kv_heads] = self.heads;
        let [qk_dim, v_dim] = self.dims;
        let [kv_len, source] = self.context.unwrap_or([self.q_len, self.width]);
        let outputs = [
            q_heads * qk_dim,
            kv_heads * qk_dim,
            kv_heads * v_dim,
            self.output,
        ];
        let inputs = [self.width, source, source, q_heads * v_dim];
        let mut shapes = [[0; 4]; 10];
        shapes[0] = [self.batch, 1, self.q_len, self.width];
        shapes[1] = [self.batch, 1, kv_len, source];
        for n in 0..4 {
            shapes[2 + 2 * n] = [1, 1, outputs[n], inputs[n]];
            shapes[3 + 2 * n] = [1, 1, 1, outputs[n]];
        }
        shapes
    }

    fn inputs(&self) -> MultiHeadInputs<'_> {
        let shapes = self.shapes();
        let tensor = |n: usize| Tensor::f32(&self.numbers[n], shapes[n]).unwrap();
        let linears = [0, 1, 2, 3].map(|n| HostLinear {
            weight: tensor(2 + 2 * n),
            // Some have no bias.
            bias: (n != 1).then(|| tensor(3 + 2 * n)),
        });
        let inputs = MultiHeadInputs::new(tensor(0), self.heads[0], linears);
        let inputs = inputs.kv_heads(self.heads[1]);
        match self.context {
            Some(_) => inputs.context(tensor(1)),
            None => inputs,
        }
    }

    fn run(&self, kernel: Kernel, options: &Options, out: DType) -> Vec<f32> {
        let plan = PlanOptions::default().kernel(kernel);
        let uploaded = gpu().upload_multi_head(&self.inputs(), options, out, &plan);
        let uploaded = uploaded.unwrap();
        uploaded.submit().unwrap();
        uploaded.read().unwrap()
    }
}

#[test]
fn random_layers_are_what_the_oracle_says() {
    let mut report = Report::new();
    for seed in 0..24 {
        let layer = Layer::new(seed);
        let inputs = layer.inputs();
        let options = Options::default().causal(seed % 3 == 0);
        let out = [DType::F32, DType::F16, DType::BF16][seed as usize % 3];
        let expected = reference::multi_head(&inputs, &options, out).unwrap();
        for kernel in kernels() {
            let got = layer.run(kernel, &options, out);
            let what = format!("{kernel}, seed {seed}");
            let found = compare(&got, &expected.values, &expected.bound);
            report.record(&what, "output", expected.values.len(), found);
        }
    }
    report.finish(2 * 24 * 20);
}

/// The oracle's bounds are narrow enough to tell a layer from one with two heads
/// swapped, a bias left out, or keys that are hidden.
#[test]
fn the_oracle_of_layers_rejects() {
    let layer = Layer::new(3);
    let inputs = layer.inputs();
    let options = Options::default();
    let right = reference::multi_head(&inputs, &options, DType::F32).unwrap();
    let got: Vec<f32> = right.values.iter().map(|&y| y as f32).collect();
    assert!(compare(&got, &right.values, &right.bound).unwrap().passed());
    let [_, kv_heads] = layer.heads;
    assert!(kv_heads > 1, "heads to swap");
    let mut swapped = Layer::new(3);
    let head = swapped.numbers[6].len() / kv_heads;
    swapped.numbers[6].rotate_left(head);
    let mut no_bias = inputs;
    no_bias.output.bias = None;
    let mut other_value = inputs;
    other_value.value.bias = None;
    let causal = options.causal(true);
    for (what, inputs, options) in [
        ("swapped heads", swapped.inputs(), options),
        ("no output bias", no_bias, options),
        ("no value bias", other_value, options),
        ("causal", inputs, causal),
    ] {
        let wrong = reference::multi_head(&inputs, &options, DType::F32).unwrap();
        let found = compare(&got, &wrong.values, &wrong.bound).unwrap();
        assert!(!found.passed(), "{what}: {found}");
    }
}

/// Packed and separate weights, on the caller's buffers and encoder, give the same
/// bits; so do a workspace at an offset and two recordings in one encoder.
#[test]
fn packed_weights_are_the_same_layer() {
    let (batch, tokens, width, heads) = (2, 21, 24, 4);
    let mut rng = StdRng::seed_from_u64(11);
    let mut some =
        |count: usize| -> Vec<f32> { (0..count).map(|_| rng.random_range(-1.0..1.0)).collect() };
    let x = some(batch * tokens * width);
    let (packed, packed_bias) = (some(3 * width * width), some(3 * width));
    let (of_output, output_bias) = (some(width * width), some(width));
    let device = gpu().device();
    let buffer = |contents: &[f32]| {
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: contents.len() as u64 * 4,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: true,
        });
        let mut mapped = buffer.get_mapped_range_mut(..).unwrap();
        mapped.copy_from_slice(bytemuck::cast_slice(contents));
        drop(mapped);
        buffer.unmap();
        buffer
    };
    let [x, packed, packed_bias, of_output, output_bias] =
        [&x, &packed, &packed_bias, &of_output, &output_bias].map(|numbers| buffer(numbers));
    let input = TensorView::tokens(&x, DType::F32, [batch, tokens, width], 0).unwrap();
    let linear = |weight, bias, rows: usize, first: usize| {
        let weight = TensorView::matrix(weight, DType::F32, [rows, width], first * width).unwrap();
        let bias = TensorView::bhsd(bias, DType::F32, [1, 1, 1, rows], first).unwrap();
        Linear::new(weight).bias(bias)
    };
    let in_one = InProjections::Packed(linear(&packed, &packed_bias, 3 * width, 0));
    let separate = InProjections::Separate {
        query: linear(&packed, &packed_bias, width, 0),
        key: linear(&packed, &packed_bias, width, width),
        value: linear(&packed, &packed_bias, width, 2 * width),
    };
    let output_projection = linear(&of_output, &output_bias, width, 0);
    let mut all = Vec::new();
    for (projections, context, dispatches) in
        [(in_one, false, 3), (separate, false, 5), (in_one, true, 5)]
    {
        let output = buffer(&vec![f32::NAN; batch * tokens * width]);
        let view = TensorView::tokens(&output, DType::F32, [batch, tokens, width], 0).unwrap();
        let mut operands =
            MultiHeadOperands::new(input, heads, projections, output_projection, view);
        if context {
            operands = operands.context(input);
        }
        let plan = gpu()
            .plan_multi_head(&operands, &Options::default())
            .unwrap();
        assert_eq!(plan.dispatches(), dispatches, "{plan}");
        let prepared = gpu().prepare_multi_head(&plan).unwrap();
        let workspace = device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 512 + plan.workspace_bytes(),
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        });
        let workspace = Workspace {
            buffer: &workspace,
            offset: 512,
        };
        let mut encoder = device.create_command_encoder(&Default::default());
        prepared.record(&mut encoder, &operands, workspace).unwrap();
        prepared.record(&mut encoder, &operands, workspace).unwrap();
        gpu().queue().submit([encoder.finish()]);
        let image = gpu::memory::Image {
            bytes: vec![0; batch * tokens * width * 4],
            written: vec![true; batch * tokens * width * 4],
        };
        all.push(gpu::memory::read_back(gpu(), &[output], &[image]).unwrap());
    }
    assert!(all[0][0].iter().any(|&byte| byte != 0 && byte != 0xff));
    assert_eq!(all[0], all[1]);
    assert_eq!(all[0], all[2]);
}

/// Without keys the heads are 0 and Y is W_O's bias; without rows there is nothing.
#[test]
fn empty_sequences_are_layers_too() {
    let mut report = Report::new();
    for (q_len, kv_len) in [(5, 0), (0, 4), (0, 0)] {
        let layer = Layer::of(3, |layer| {
            layer.q_len = q_len;
            layer.context = Some([kv_len, 3]);
        });
        let expected = layer.numbers[9].repeat(layer.batch * q_len);
        for kernel in kernels() {
            let what = format!("{kernel}: {q_len} rows, {kv_len} keys");
            let got = layer.run(kernel, &Options::default(), DType::F32);
            report.expect(got == expected, format!("{what}: {got:?}"));
        }
    }
    report.finish(0);
}

/// h heads of width d / h cost what one head of width d costs.
#[test]
fn many_narrow_heads_cost_what_one_wide_head_costs() {
    let numbers = vec![0.5f32; 64 * 64];
    let flops = |heads: usize| {
        let weight = Tensor::f32(&numbers, [1, 1, 64, 64]).unwrap();
        let linear = HostLinear { weight, bias: None };
        let input = Tensor::f32(&numbers[..10 * 64], [1, 1, 10, 64]).unwrap();
        let inputs = MultiHeadInputs::new(input, heads, [linear; 4]);
        inputs.dims().unwrap().flops()
    };
    // Four products of 10 x 64 x 64, and 10 x 10 pairs of 64 + 64.
    let expected = 2.0 * (4.0 * 10.0 * 64.0 * 64.0 + 10.0 * 10.0 * 128.0);
    for heads in [1, 2, 8, 64] {
        assert_eq!(flops(heads), expected);
    }
}

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
    let buffer = gpu().device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 1 << 16,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    });
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

fn change<'a>(
    mut inputs: MultiHeadInputs<'a>,
    how: impl FnOnce(&mut MultiHeadInputs<'a>),
) -> MultiHeadInputs<'a> {
    how(&mut inputs);
    inputs
}

/// A workspace that is too small, misplaced, or holds an operand.
#[test]
fn a_wrong_workspace_is_refused() {
    let device = gpu().device();
    let make = |size: u64| {
        device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        })
    };
    let buffer = make(1 << 16);
    let rows = |at: usize| TensorView::tokens(&buffer, DType::F32, [1, 4, 8], at).unwrap();
    let weight =
        |at: usize| Linear::new(TensorView::matrix(&buffer, DType::F32, [8, 8], at).unwrap());
    let projections = InProjections::Separate {
        query: weight(256),
        key: weight(512),
        value: weight(768),
    };
    let output = make(4096);
    let view = TensorView::tokens(&output, DType::F32, [1, 4, 8], 0).unwrap();
    let operands = MultiHeadOperands::new(rows(0), 2, projections, weight(1024), view);
    let options = PlanOptions::default().shared_buffers(true);
    let plan = MultiHeadPlan::new(&operands, &Options::default(), gpu().caps(), &options).unwrap();
    let prepared = gpu().prepare_multi_head(&plan).unwrap();
    let small = make(plan.workspace_bytes() - 4);
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
