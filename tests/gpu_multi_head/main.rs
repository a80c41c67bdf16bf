//! The multi-head layer by every family: a real model's layer, random layers against
//! the oracle, what it costs, what it refuses.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/gpu.rs"]
mod gpu;

mod layer;
mod options;
mod overlaps;
mod refused;

use common::Elements;
use gpu::{Report, gpu, kernels};
use layer::{Layer, judge, run};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::reference::{self, compare, compare_abs};
use wgpu_attention::{
    BoolMask, DType, HostLinear, InProjections, Linear, MaskData, MultiHeadInputs,
    MultiHeadOperands, Options, PlanOptions, Polarity, Tensor, TensorView, Workspace,
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

#[test]
fn random_layers_are_what_the_oracle_says() {
    let mut report = Report::new();
    for seed in 0..24 {
        let layer = Layer::new(seed);
        let options = Options::default().causal(seed % 3 == 0);
        let out = [DType::F32, DType::F16, DType::BF16][seed as usize % 3];
        let what = format!("seed {seed}");
        judge(&mut report, &what, &layer.inputs(), &options, out);
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
    let mut numbers = swapped.numbers[6].to_f32();
    let head = numbers.len() / kv_heads;
    numbers.rotate_left(head);
    swapped.numbers[6] = Elements::F32(numbers);
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
        let expected = layer.numbers[9].to_f32().repeat(layer.batch * q_len);
        for kernel in kernels() {
            let what = format!("{kernel}: {q_len} rows, {kv_len} keys");
            let got = run(&layer.inputs(), kernel, &Options::default(), DType::F32).unwrap();
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
