//! Axes of length 0 whose results are not empty, computed.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use common::{Feature, Shape, generate};
use gpu::{Report, gpu, kernels};
use wgpu_attention::reference::{self, RowExpected, compare};
use wgpu_attention::*;

/// Rows that have no key at all: the summary of an empty row, as the oracle has it.
#[test]
fn summaries_without_keys() {
    let mut report = Report::new();
    let mut values = 0;
    for features in [
        &[][..],
        &[Feature::Sinks][..],
        &[Feature::Alibi, Feature::PerSequence],
        &[Feature::MaskBytes, Feature::Bias],
    ] {
        let case = generate(3, Shape::f32([2, 4, 5, 8], 2, 0, 6), features);
        let rows = Rows {
            region: Region {
                batches: 0..2,
                heads: 1..4,
                rows: 0..5,
            },
            top: 3,
            first_keys: 0,
        };
        let (inputs, options) = (case.inputs(), &case.options);
        let expected = reference::rows(&inputs, options, Stats::RowState, None, &rows).unwrap();
        let of = |part: fn(&RowExpected) -> &Vec<f64>| -> Vec<f64> {
            expected.iter().flat_map(part).copied().collect()
        };
        let (numbers, bounds) = (of(|row| &row.values), of(|row| &row.bound));
        for kernel in kernels() {
            let inspection = Inspection {
                plan: PlanOptions::default().kernel(kernel),
                ..Inspection::default()
            };
            let seen = gpu()
                .upload_inspection(&inputs, options, &inspection)
                .unwrap();
            let found = seen.rows(&rows).unwrap();
            report.expect(
                found.iter().all(|row| row.top.is_empty()),
                "largest weights",
            );
            let got: Vec<f32> = found.iter().flat_map(RowExpected::numbers).collect();
            let what = format!("{kernel}: {}", case.name);
            report.record(
                &what,
                "summaries",
                numbers.len(),
                compare(&got, &numbers, &bounds),
            );
            report.expect(seen.received(&rows.region).unwrap().is_empty(), "masses");
            seen.check_lse(&rows.region, 1e-3).unwrap();
            values = numbers.len();
        }
    }
    assert_eq!(values, 2 * 3 * 5 * 24);
    report.finish(4 * values);
}

/// A packed layer over a context without tokens: Y is W_O's bias. Without queries there
/// is nothing, and it is recorded all the same.
#[test]
fn packed_layers_over_nothing() {
    let mut report = Report::new();
    let device = gpu().device();
    let (width, outputs) = (8, 8);
    let filled = |numbers: &[f32]| {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: (numbers.len() as u64 * 4).max(4),
            usage,
            mapped_at_creation: true,
        });
        if !numbers.is_empty() {
            let mut mapped = buffer.get_mapped_range_mut(..).unwrap();
            mapped.copy_from_slice(bytemuck::cast_slice(numbers));
        }
        buffer.unmap();
        buffer
    };
    let (weights, biases) = (filled(&[0.5; 24 * 8]), filled(&[0.25; 24]));
    let linear = |rows: usize| {
        let weight = TensorView::matrix(&weights, DType::F32, [rows, width], 0).unwrap();
        let bias = TensorView::bhsd(&biases, DType::F32, [1, 1, 1, rows], 0).unwrap();
        Linear::new(weight).bias(bias)
    };
    for (batch, q_len, kv_len) in [(2, 5, Some(0)), (2, 0, Some(7)), (2, 0, None), (0, 5, None)] {
        let count = batch * q_len * outputs;
        let (x, y) = (filled(&vec![1.0; count]), filled(&vec![f32::NAN; count]));
        let c = filled(&vec![1.0; batch * kv_len.unwrap_or(0) * width]);
        let tokens =
            |buffer, rows| TensorView::tokens(buffer, DType::F32, [batch, rows, width], 0).unwrap();
        let packed = InProjections::Packed(linear(24));
        let (input, output) = (tokens(&x, q_len), tokens(&y, q_len));
        let mut operands = MultiHeadOperands::new(input, 2, packed, linear(outputs), output);
        if let Some(kv_len) = kv_len {
            operands = operands.context(tokens(&c, kv_len));
        }
        for kernel in kernels() {
            let chosen = PlanOptions::default().kernel(kernel);
            let caps = gpu().caps();
            let plan = MultiHeadPlan::new(&operands, &Options::default(), caps, &chosen).unwrap();
            let prepared = gpu().prepare_multi_head(&plan).unwrap();
            let workspace = filled(&vec![0.0; (plan.workspace_bytes() / 4) as usize]);
            let mut encoder = device.create_command_encoder(&Default::default());
            let recorded = prepared.record(&mut encoder, &operands, Workspace::new(&workspace));
            let what = format!("{kernel}: {batch} x {q_len} rows, {kv_len:?} keys");
            report.expect_ok(&what, recorded);
            gpu().queue().submit([encoder.finish()]);
            let image = gpu::memory::Image {
                bytes: vec![0; count.max(1) * 4],
                written: vec![true; count.max(1) * 4],
            };
            let bytes = gpu::memory::read_back(gpu(), std::slice::from_ref(&y), &[image]).unwrap();
            let got: &[f32] = bytemuck::cast_slice(&bytes[0][..count * 4]);
            report.expect(got == vec![0.25; count], format!("{what}: {got:?}"));
        }
    }
    report.finish(0);
}
