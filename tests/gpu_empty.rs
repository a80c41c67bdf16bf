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

/// A buffer that holds these numbers.
fn filled(numbers: &[f32]) -> wgpu::Buffer {
    let buffer = gpu().device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: (numbers.len() as u64 * 4).max(4),
        usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
        mapped_at_creation: true,
    });
    if !numbers.is_empty() {
        let mut mapped = buffer.get_mapped_range_mut(..).unwrap();
        mapped.copy_from_slice(bytemuck::cast_slice(numbers));
    }
    buffer.unmap();
    buffer
}

/// The first `count` numbers of a buffer.
fn numbers_of(buffer: &wgpu::Buffer, count: usize) -> Vec<f32> {
    let image = gpu::memory::Image {
        bytes: vec![0; count.max(1) * 4],
        written: vec![true; count.max(1) * 4],
    };
    let bytes = gpu::memory::read_back(gpu(), std::slice::from_ref(buffer), &[image]).unwrap();
    bytemuck::pod_collect_to_vec(&bytes[0][..count * 4])
}

/// Keys that no row looks at, in a call without queries or a region without rows: a mass
/// of 0, whatever the buffer held.
#[test]
fn keys_without_rows_receive_nothing() {
    let mut report = Report::new();
    // More keys than a workgroup has lanes.
    let (heads, keys, dim) = (4, 150, 8);
    for (q_len, region_rows) in [(0, 0..0), (5, 2..2), (5, 5..5), (5, 1..4)] {
        for kernel in kernels() {
            let some = |count: usize| filled(&vec![0.5; count]);
            let [q, k, v] = [heads * q_len, heads * keys, heads * keys].map(|n| some(n * dim));
            let lse = some(heads * q_len);
            let rows = Rows {
                region: Region {
                    batches: 0..1,
                    heads: 1..4,
                    rows: region_rows.clone(),
                },
                top: 1,
                first_keys: 0,
            };
            let [_, _, count] = rows.region.lens();
            let (summaries, received) = (some(3 * count * rows.width()), filled(&[f32::NAN; 450]));
            let view = |buffer, shape| TensorView::bhsd(buffer, DType::F32, shape, 0).unwrap();
            let of_keys = [1, heads, keys, dim];
            let mut operands = Operands::new(
                view(&q, [1, heads, q_len, dim]),
                view(&k, of_keys),
                view(&v, of_keys),
                view(&summaries, [1, 3, count, rows.width()]),
            );
            operands.stats = Some(StatsView::new(&lse, Stats::Lse, [1, heads, q_len], 0).unwrap());
            operands.received = Some(view(&received, [1, 3, keys, 1]));
            let problem = Problem::summarize(&operands, &Options::default(), rows).unwrap();
            let chosen = PlanOptions::default().kernel(kernel);
            let plan = Plan::new(&problem, gpu().caps(), &chosen).unwrap();
            let workspace = filled(&vec![0.0; (plan.workspace_bytes() / 4) as usize]);
            let prepared = gpu().prepare(&plan).unwrap();
            let mut encoder = gpu().device().create_command_encoder(&Default::default());
            let recorded =
                prepared.record(&mut encoder, &operands, Some(Workspace::new(&workspace)));
            let what = format!("{kernel}: rows {region_rows:?} of {q_len}");
            report.expect_ok(&what, recorded);
            gpu().queue().submit([encoder.finish()]);
            let got = numbers_of(&received, 450);
            let fits = |&mass: &f32| if count == 0 { mass == 0.0 } else { mass > 0.0 };
            report.expect(got.iter().all(fits), format!("{what}: {got:?}"));
        }
    }
    report.finish(0);
}

/// A packed layer over a context without tokens: Y is W_O's bias. Without queries there
/// is nothing, and it is recorded all the same.
#[test]
fn packed_layers_over_nothing() {
    let mut report = Report::new();
    let device = gpu().device();
    let (width, outputs) = (8, 8);
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
            let got = numbers_of(&y, count);
            report.expect(got == vec![0.25; count], format!("{what}: {got:?}"));
        }
    }
    report.finish(0);
}
