//! Projections, norms and inspections.

use std::collections::HashMap;

use wgpu_attention::shaders::Shader;
use wgpu_attention::{
    Attention, DType, Kernel, Norms, Operands, Pairs, Plan, PlanOptions, Problem, Projection,
    Quantity, Region, Rows, Stage, Stats, StatsView, TensorView, Workspace,
};

use crate::common;
use crate::counts::{Counts, counting, limit};
use crate::gpu::memory::{Images, Place, contiguous, create, read_back};
use crate::gpu::{gpu, kernels};

/// Runs a problem over its operands; `output` is what its plan writes.
fn run(attention: &Attention, problem: &Problem, kernel: Kernel, operands: &Operands<'_>) -> Plan {
    let options = PlanOptions::default().kernel(kernel);
    let plan = Plan::new(problem, attention.caps(), &options).unwrap();
    let workspace = attention.device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: plan.workspace_bytes().next_multiple_of(4).max(4),
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    });
    let mut encoder = attention
        .device()
        .create_command_encoder(&Default::default());
    let prepared = attention.prepare(&plan).unwrap();
    let workspace = Some(Workspace::new(&workspace));
    prepared.record(&mut encoder, operands, workspace).unwrap();
    attention.queue().submit([encoder.finish()]);
    plan
}

/// Operands of numbers that do not matter, by their shapes; the last two are written.
fn laid_out(dtype: DType, shapes: &[[usize; 4]]) -> (Images, Vec<Place>) {
    let mut images = Images::default();
    let mut places = Vec::new();
    for (n, shape) in shapes.iter().enumerate() {
        let is_written = n + 2 >= shapes.len();
        let dtype = if n < 2 { dtype } else { DType::F32 };
        let count: usize = shape.iter().product();
        let numbers: Vec<f32> = (0..count).map(|n| (n % 7) as f32 * 0.1).collect();
        let elements = common::Elements::new(&numbers, dtype);
        let place = match is_written {
            false => images.put(dtype.size() as usize, *shape, elements.data().bytes()),
            true => images.place(4, *shape, contiguous(*shape)),
        };
        if is_written {
            images.mark_written(place);
        }
        places.push(place);
    }
    (images, places)
}

#[test]
fn projections_and_norms_stay_below_the_bound() {
    let Some(limit) = limit() else { return };
    let mut counts = Counts::new(limit);
    let attention = counting(&[Shader::ProjectTiled, Shader::ProjectLanes, Shader::RowNorms]);
    for dtype in [DType::F32, DType::F16] {
        let mut before = HashMap::new();
        // The last is about the longest that a plan accepts.
        for depth in [1, 5, 48, 1024, 1999, 40_001] {
            let shapes = [
                [1, 1, 8, depth],
                [1, 1, 16, depth],
                [1, 1, 1, 1],
                [1, 1, 8, 16],
            ];
            let (images, places) = laid_out(dtype, &shapes);
            let buffers = create(attention.device(), &images.list);
            let view = |n: usize, dtype| {
                let Place {
                    buffer,
                    shape,
                    offset,
                    ..
                } = places[n];
                TensorView::bhsd(&buffers[buffer], dtype, shape, offset).unwrap()
            };
            let left = |n: usize| {
                let contents = read_back(&attention, &buffers, &images.list).unwrap();
                places[n].widened(&contents[places[n].buffer], DType::F32)
            };
            let projection = Projection {
                input: view(0, dtype),
                weight: view(1, dtype),
                bias: None,
                output: view(3, DType::F32),
            };
            let problem = Problem::projection(&projection).unwrap();
            for (kernel, shader) in [
                (Kernel::Tiled, Shader::ProjectTiled),
                (Kernel::LaneBroadcast, Shader::ProjectLanes),
            ] {
                if attention.caps().kernels().any(|k| k == kernel) {
                    let operands = projection.operands().unwrap();
                    let plan = run(&attention, &problem, kernel, &operands);
                    let what = format!("projection {kernel} {dtype:?} {depth}");
                    // Half of the outputs of a workgroup of lanes are none.
                    let count = counts.judge(&what, &plan, shader, &left(3), 0.4);
                    // Odd depths, which all are loaded in words.
                    if depth % 2 == 1 {
                        if let Some(short) = before.insert(kernel, count) {
                            counts.judge_growth(&what, short, count);
                        }
                    }
                }
            }
        }
        // One element more than the lanes of a workgroup would be a second workgroup.
        let shapes = [[1, 1, 64, 700], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 64, 1]];
        let (images, places) = laid_out(dtype, &shapes);
        let buffers = create(attention.device(), &images.list);
        let view = |place: Place, dtype| {
            TensorView::bhsd(&buffers[place.buffer], dtype, place.shape, place.offset).unwrap()
        };
        let norms = Norms {
            value: view(places[0], dtype),
            through: None,
            output: view(places[3], DType::F32),
        };
        let problem = Problem::norms(&norms).unwrap();
        let plan = run(&attention, &problem, Kernel::Tiled, &norms.operands());
        let contents = read_back(&attention, &buffers, &images.list).unwrap();
        let left = places[3].widened(&contents[places[3].buffer], DType::F32);
        counts.judge("norms", &plan, Shader::RowNorms, &left, 0.9);
    }
    counts.finish(12);
}

#[test]
fn inspections_stay_below_the_bound() {
    let Some(limit) = limit() else { return };
    let mut counts = Counts::new(limit);
    let counting_pairs = counting(&[Shader::InspectTiled, Shader::InspectLanes]);
    let counting_rows = counting(&[Shader::InspectRows]);
    let counting_keys = counting(&[Shader::InspectKeys]);
    for (kernel, shader) in [
        (Kernel::Tiled, Shader::InspectTiled),
        (Kernel::LaneBroadcast, Shader::InspectLanes),
    ] {
        if !kernels().contains(&kernel) {
            continue;
        }
        for (n, depth) in [48, 1999, 5].into_iter().enumerate() {
            let (rows, keys, top) = (8, [3000, 700, 180_001][n], 16);
            let pairs_shape = [1, 1, rows, 16];
            let summary = [1, 1, rows, 8 + 16 + 3 * top];
            for wants_rows in [false, true] {
                let output = if wants_rows { summary } else { pairs_shape };
                let shapes = [
                    [1, 1, rows, depth],
                    [1, 1, keys, depth],
                    [1, 1, 1, keys],
                    [1, 1, rows, 1],
                    [1, 1, keys, 1],
                    output,
                ];
                let (images, places) = laid_out(DType::F32, &shapes);
                let buffers = create(gpu().device(), &images.list);
                let view = |n: usize| {
                    let Place {
                        buffer,
                        shape,
                        offset,
                        ..
                    } = places[n];
                    TensorView::bhsd(&buffers[buffer], DType::F32, shape, offset).unwrap()
                };
                let left = |n: usize| {
                    let contents = read_back(gpu(), &buffers, &images.list).unwrap();
                    places[n].widened(&contents[places[n].buffer], DType::F32)
                };
                let stats = &buffers[places[3].buffer];
                let stats = StatsView::new(stats, Stats::Lse, [1, 1, rows], places[3].offset);
                let mut operands = Operands::new(view(0), view(1), view(1), view(5));
                operands.stats = Some(stats.unwrap());
                if n > 0 {
                    operands.bias = Some(view(2));
                }
                let region = |rows| Region {
                    batches: 0..1,
                    heads: 0..1,
                    rows,
                };
                let options = Default::default();
                if wants_rows {
                    operands.received = Some(view(4));
                    let rows = Rows {
                        region: region(0..rows),
                        top,
                        first_keys: keys,
                    };
                    let problem = Problem::summarize(&operands, &options, rows).unwrap();
                    let what = format!("rows {depth}");
                    let plan = run(&counting_rows, &problem, kernel, &operands);
                    counts.judge(&what, &plan, Shader::InspectRows, &left(5), 0.6);
                    if keys < 1000 {
                        let plan = run(&counting_keys, &problem, kernel, &operands);
                        counts.judge(&what, &plan, Shader::InspectKeys, &left(4), 0.9);
                    }
                } else {
                    let pairs = Pairs {
                        region: region(0..rows),
                        keys: 0..16,
                        quantity: Quantity::Stage(Stage::Probabilities),
                    };
                    let problem = Problem::inspect(&operands, &options, pairs).unwrap();
                    let plan = run(&counting_pairs, &problem, kernel, &operands);
                    let what = format!("pairs {depth}");
                    // Half of the keys of a workgroup of lanes are none.
                    counts.judge(&what, &plan, shader, &left(5), 0.4);
                }
            }
        }
    }
    counts.finish(14);
}
