//! Projections, Y = X W^T + b, by every family against the oracle: sizes around the
//! tiles, storage types, strides, guard bands, shared buffers.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use common::Elements;
use gpu::memory::{Images, Place, create, read_back};
use gpu::{Report, gpu, kernels};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::reference::{self, StageExpected, compare};
use wgpu_attention::{
    Attention, DType, Error, Plan, PlanOptions, Problem, Projection, Tensor, TensorView,
};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Sizes and storage types.
#[derive(Debug, Clone, Copy)]
struct Shape {
    batch: usize,
    rows: usize,
    inputs: usize,
    outputs: usize,
    input: DType,
    weight: DType,
    output: DType,
    /// The bias and its type.
    bias: Option<DType>,
    /// Elements between rows, and before the first of each tensor.
    gap: usize,
    one_buffer: bool,
}

impl Shape {
    fn f32(batch: usize, rows: usize, inputs: usize, outputs: usize) -> Self {
        Shape {
            batch,
            rows,
            inputs,
            outputs,
            input: DType::F32,
            weight: DType::F32,
            output: DType::F32,
            bias: Some(DType::F32),
            gap: 0,
            one_buffer: false,
        }
    }
}

/// The numbers of a projection.
struct Case {
    shape: Shape,
    input: Elements,
    weight: Elements,
    bias: Option<Elements>,
}

impl Case {
    fn new(shape: Shape, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut some = |count: usize, dtype: DType| {
            let values: Vec<f32> = (0..count).map(|_| rng.random_range(-2.0..2.0)).collect();
            Elements::new(&values, dtype)
        };
        Case {
            input: some(shape.batch * shape.rows * shape.inputs, shape.input),
            weight: some(shape.outputs * shape.inputs, shape.weight),
            bias: shape.bias.map(|dtype| some(shape.outputs, dtype)),
            shape,
        }
    }

    fn shapes(&self) -> [[usize; 4]; 4] {
        let s = &self.shape;
        [
            [s.batch, 1, s.rows, s.inputs],
            [1, 1, s.outputs, s.inputs],
            [1, 1, 1, s.outputs],
            [s.batch, 1, s.rows, s.outputs],
        ]
    }

    fn expected(&self) -> StageExpected {
        let [input, weight, bias, _] = self.shapes();
        let bias = self
            .bias
            .as_ref()
            .map(|elements| Tensor::new(elements.data(), bias).unwrap());
        let input = Tensor::new(self.input.data(), input).unwrap();
        let weight = Tensor::new(self.weight.data(), weight).unwrap();
        reference::project(&input, &weight, bias.as_ref(), self.shape.output).unwrap()
    }

    /// Runs it in buffers with guard bands.
    fn run(&self, gpu: &Attention, options: &PlanOptions) -> Result<Vec<f32>, String> {
        let s = &self.shape;
        let mut images = Images {
            one: s.one_buffer,
            shift: s.gap,
            ..Images::default()
        };
        let [input, weight, bias, output] = self.shapes();
        let spaced = |shape: [usize; 4]| {
            let [_, _, rows, width] = shape;
            let row = width + s.gap;
            [rows * row + s.gap, rows * row + s.gap, row, 1]
        };
        let mut put = |elements: &Elements, shape: [usize; 4]| {
            let place = images.place(elements.dtype().size() as usize, shape, spaced(shape));
            images.fill(place, elements.data().bytes());
            place
        };
        let input = put(&self.input, input);
        let weight = put(&self.weight, weight);
        let bias = self.bias.as_ref().map(|elements| put(elements, bias));
        let output = images.place(s.output.size() as usize, output, spaced(output));
        images.mark_written(output);
        let images = images.list;
        let buffers = create(gpu.device(), &images);
        let view = |place: Place, dtype| {
            let buffer = &buffers[place.buffer];
            TensorView::strided(buffer, dtype, place.shape, place.strides, place.offset).unwrap()
        };
        let projection = Projection {
            input: view(input, s.input),
            weight: view(weight, s.weight),
            bias: bias.map(|place| view(place, s.bias.unwrap())),
            output: view(output, s.output),
        };
        let problem = Problem::projection(&projection).map_err(|e| e.to_string())?;
        assert_eq!(problem.shares_buffers(), s.one_buffer);
        let plan = Plan::new(&problem, gpu.caps(), options).map_err(|e| e.to_string())?;
        assert_eq!(plan.workspace_bytes(), 0);
        let prepared = gpu.prepare(&plan).map_err(|e| e.to_string())?;
        let mut encoder = gpu.device().create_command_encoder(&Default::default());
        let operands = projection.operands().unwrap();
        let recorded = prepared.record(&mut encoder, &operands, None);
        recorded.map_err(|e| e.to_string())?;
        gpu.queue().submit([encoder.finish()]);
        let contents = read_back(gpu, &buffers, &images)?;
        Ok(output.widened(&contents[output.buffer], s.output))
    }
}

/// A projection by every family that the adapter can run.
fn judge(report: &mut Report, shape: Shape, seed: u64) {
    let case = Case::new(shape, seed);
    let expected = case.expected();
    for kernel in kernels() {
        let what = format!("{kernel}: {shape:?}");
        let options = PlanOptions::default().kernel(kernel);
        if let Some(got) = report.expect_ok(&what, case.run(gpu(), &options)) {
            let found = compare(&got, &expected.values, &expected.bound);
            report.record(&what, "output", expected.values.len(), found);
        }
    }
}

#[test]
fn sizes_around_every_tile() {
    let mut report = Report::new();
    let mut seed = 0;
    for rows in [1, 15, 16, 17, 31, 33, 65] {
        for outputs in [1, 3, 31, 32, 33, 63, 65, 130] {
            for inputs in [1, 16, 17, 36] {
                seed += 1;
                judge(&mut report, Shape::f32(2, rows, inputs, outputs), seed);
            }
        }
    }
    report.finish(2 * 2 * 7 * 32);
}

#[test]
fn storage_types_strides_and_shared_buffers() {
    let mut report = Report::new();
    let mut seed = 1000u64;
    for input in DTYPES {
        for weight in DTYPES {
            for output in DTYPES {
                for (gap, inputs) in [(0, 24), (3, 24), (1, 7), (4, 12)] {
                    seed += 1;
                    let shape = Shape {
                        input,
                        weight,
                        output,
                        bias: [None, Some(input), Some(weight)][seed as usize % 3],
                        gap,
                        one_buffer: seed.is_multiple_of(2),
                        ..Shape::f32(3, 19, inputs, 37)
                    };
                    judge(&mut report, shape, seed);
                }
            }
        }
    }
    report.finish(2 * 27 * 4 * 3 * 19 * 37);
}

/// The layer of a small model, and a product that is deep enough for rounding to show.
#[test]
fn larger_products() {
    let mut report = Report::new();
    judge(&mut report, Shape::f32(3, 24, 384, 384), 7);
    judge(&mut report, Shape::f32(1, 64, 4096, 48), 8);
    report.finish(2 * 3 * 24 * 384);
}

/// Shaders without runtime checks, as they are proven to need none, give the bits of
/// those with them.
#[test]
fn runtime_checks_change_no_bit() {
    let mut report = Report::new();
    for (gap, weight) in [(0, DType::F32), (1, DType::F16)] {
        let shape = Shape {
            weight,
            gap,
            ..Shape::f32(2, 37, 20, 70)
        };
        let case = Case::new(shape, 9);
        for kernel in kernels() {
            let options = PlanOptions::default().kernel(kernel);
            let free = case.run(gpu(), &options).unwrap();
            let checked = case.run(gpu(), &options.force_checks(true)).unwrap();
            let bits = |all: &[f32]| all.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
            report.expect(
                bits(&free) == bits(&checked),
                format!("{kernel}: {shape:?}"),
            );
        }
    }
    report.finish(0);
}

/// A binding limit below the input makes several dispatches, not an error.
#[test]
fn batches_beyond_the_binding_limit_are_split() {
    let small = gpu::limited(|limits| limits.max_storage_buffer_binding_size = 16 << 10);
    let case = Case::new(Shape::f32(4, 40, 64, 48), 5);
    let expected = case.expected();
    let mut report = Report::new();
    for kernel in small.caps().kernels() {
        let options = PlanOptions::default().kernel(kernel);
        let got = case.run(&small, &options).unwrap();
        let found = compare(&got, &expected.values, &expected.bound);
        report.record(kernel.name(), "output", expected.values.len(), found);
    }
    report.finish(4 * 40 * 48);
}

/// An infinity and a NaN reach the outputs of their row and no other.
#[test]
fn what_is_not_finite_stays_in_its_row() {
    let mut report = Report::new();
    for kernel in kernels() {
        let mut case = Case::new(Shape::f32(1, 40, 20, 50), 3);
        let mut values: Vec<f32> = (0..40 * 20).map(|n| (n % 7) as f32 - 3.0).collect();
        values[5 * 20 + 3] = f32::NAN;
        values[39 * 20] = f32::INFINITY;
        case.input = Elements::new(&values, DType::F32);
        let got = case
            .run(gpu(), &PlanOptions::default().kernel(kernel))
            .unwrap();
        for (row, outputs) in got.chunks_exact(50).enumerate() {
            let finite = outputs.iter().all(|y| y.is_finite());
            let none = outputs.iter().all(|y| !y.is_finite());
            let wanted = if row == 5 || row == 39 { none } else { finite };
            report.expect(wanted, format!("{kernel}: row {row}: {outputs:?}"));
        }
    }
    report.finish(0);
}

#[test]
fn wrong_shapes_are_named() {
    let device = gpu().device();
    let buffer = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 4096,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    });
    let view = |shape| TensorView::bhsd(&buffer, DType::F32, shape, 0).unwrap();
    let right = Projection {
        input: view([1, 1, 2, 4]),
        weight: view([1, 1, 3, 4]),
        bias: Some(view([1, 1, 1, 3])),
        output: TensorView::bhsd(&buffer, DType::F32, [1, 1, 2, 3], 512).unwrap(),
    };
    Problem::projection(&right).unwrap();
    let wrong = [
        (
            "input",
            Projection {
                input: view([1, 2, 2, 4]),
                ..right
            },
        ),
        (
            "weight",
            Projection {
                weight: view([1, 1, 3, 5]),
                ..right
            },
        ),
        (
            "weight",
            Projection {
                weight: view([2, 1, 3, 4]),
                ..right
            },
        ),
        (
            "bias",
            Projection {
                bias: Some(view([1, 1, 1, 4])),
                ..right
            },
        ),
        (
            "output",
            Projection {
                output: view([1, 1, 3, 3]),
                ..right
            },
        ),
    ];
    for (name, projection) in wrong {
        match Problem::projection(&projection).unwrap_err() {
            Error::Shape { operand, .. } => assert_eq!(operand, name),
            other => panic!("{name}: {other}"),
        }
    }
    // Output and weight overlap: by the names that the caller knows.
    let overlap = Projection {
        output: view([1, 1, 2, 3]),
        ..right
    };
    let text = Problem::projection(&overlap).unwrap_err().to_string();
    assert!(
        text.starts_with("output: is written and must not overlap input"),
        "{text}"
    );
}
