//! The bound of loop iterations against the count of the driver that has a limit.
//!
//! Mesa's llvmpipe counts the iterations of an invocation down from its limit. Here
//! every kernel ends with a loop that goes on until the driver ends it: how often it
//! goes round is what the kernel has left over. On adapters without such a limit there
//! is nothing to compare.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use std::collections::HashMap;

use common::{Feature, OwnedCase, Shape, generate};
use gpu::gpu;
use gpu::guest::{Guest, Setup};
use gpu::memory::{Images, Place, contiguous, create, read_back};
use wgpu_attention::shaders::{Shader, all_pipelines, compose};
use wgpu_attention::{
    Attention, DType, Kernel, Norms, Operands, Pairs, Plan, PlanOptions, Problem, Projection,
    Quantity, Region, Rows, Stage, Stats, StatsView, TensorView, Workspace, testing,
};

/// The text of a shader whose every lane stores, over the first elements of what it
/// writes, how many iterations it has left over.
fn counting_text(shader: Shader, text: &str) -> String {
    let body = text.trim_end().strip_suffix('}').unwrap();
    let (target, is_atomic) = match shader {
        Shader::StagedScores | Shader::StagedSoftmax => ("scores", false),
        Shader::InspectKeys => ("received", false),
        _ => ("output", true),
    };
    // Where lanes may have returned, each has its own element already.
    let barrier = match shader {
        Shader::InspectKeys | Shader::RowNorms => "",
        _ => "workgroupBarrier();",
    };
    let spare = "bitcast<u32>(f32(spare))";
    let store = match is_atomic {
        true => format!("atomicStore(&{target}[params.{target}.base + lane], {spare});"),
        false => format!("{target}[params.{target}.base + lane] = {spare};"),
    };
    format!(
        "{body}
    var spare = 0u;
    loop {{
        if spare >= params.trips_depth * 4400u {{
            break;
        }}
        spare++;
    }}
    {barrier}
    {store}
}}
"
    )
}

/// The adapter's limit and kernels that count; none where it has no limit.
fn counting() -> Option<(f32, Attention)> {
    let limit = gpu().caps().max_loop_iterations? as f32;
    let has_loops = |(shader, _): &(Shader, _)| *shader != Shader::CopyWords;
    let texts = all_pipelines().into_iter().filter(has_loops);
    let texts: HashMap<_, _> = texts
        .map(|(shader, key)| {
            let text = compose(shader, key).text;
            (key.file_stem(shader), counting_text(shader, &text))
        })
        .collect();
    Some((limit, testing::with_texts(gpu(), texts).unwrap()))
}

/// Comparisons of counts with bounds.
struct Counts {
    limit: f32,
    compared: usize,
    /// Smallest and largest share of a bound that was counted.
    shares: [f64; 2],
    failures: Vec<String>,
}

impl Counts {
    fn new(limit: f32) -> Self {
        Counts {
            limit,
            compared: 0,
            shares: [1.0, 0.0],
            failures: Vec::new(),
        }
    }

    /// `left` is what each lane has left over; the bound has to hold and to be met up to
    /// `least` of it.
    fn judge(&mut self, what: &str, plan: &Plan, shader: Shader, left: &[f32], least: f64) {
        let lanes = plan_lanes(plan, shader);
        let Some(left) = left.get(..lanes) else {
            let text = format!("{what}: {} elements for {lanes} lanes", left.len());
            return self.failures.push(text);
        };
        let least_left = left.iter().copied().fold(f32::INFINITY, f32::min);
        let whole = left.iter().all(|x| x.fract() == 0.0 && *x > 1.0);
        let counted = f64::from(self.limit - least_left);
        let [bound, loops] = testing::loop_bound(plan, shader, gpu().caps());
        let share = counted / bound as f64;
        self.compared += 1;
        self.shares = [self.shares[0].min(share), self.shares[1].max(share)];
        let in_text = loops_of_text(plan, shader);
        if in_text != loops {
            let name = shader.name();
            let text =
                format!("{what}: {name} has {in_text} loops, src/plan/loops.rs says {loops}");
            self.failures.push(text);
        }
        if !whole || share > 1.0 || share < least || share.is_nan() {
            self.failures.push(format!(
                "{what}: {}: {counted} iterations counted, the bound is {bound}",
                shader.name()
            ));
        }
    }

    fn finish(self, least: usize) {
        let Counts {
            compared, shares, ..
        } = self;
        println!(
            "{compared} counts, from {:.3} to {:.3} of their bounds",
            shares[0], shares[1]
        );
        let count = self.failures.len();
        let first = &self.failures[..count.min(30)];
        assert!(count == 0, "{count} failed:\n{}", first.join("\n"));
        assert!(compared >= least, "only {compared} compared");
    }
}

fn plan_lanes(plan: &Plan, shader: Shader) -> usize {
    let all = wgpu_attention::shaders::emitted(plan);
    let found = all.iter().find(|(s, _)| *s == shader);
    found.map_or(0, |(shader, key)| shader.lanes(*key) as usize)
}

/// The loops of a shader's text, with those of the functions that it calls.
fn loops_of_text(plan: &Plan, shader: Shader) -> u64 {
    let all = wgpu_attention::shaders::emitted(plan);
    let (_, key) = all.iter().find(|(s, _)| *s == shader).unwrap();
    let module = naga::front::wgsl::parse_str(&compose(shader, *key).text).unwrap();
    loops_in(&module, &module.entry_points[0].function.body)
}

fn loops_in(module: &naga::Module, block: &naga::Block) -> u64 {
    use naga::Statement;
    let count = |statement: &Statement| match statement {
        Statement::Block(block) => loops_in(module, block),
        Statement::If { accept, reject, .. } => loops_in(module, accept) + loops_in(module, reject),
        Statement::Switch { cases, .. } => {
            cases.iter().map(|case| loops_in(module, &case.body)).sum()
        }
        Statement::Loop {
            body, continuing, ..
        } => 1 + loops_in(module, body) + loops_in(module, continuing),
        Statement::Call { function, .. } => loops_in(module, &module.functions[*function].body),
        _ => 0,
    };
    block.iter().map(count).sum()
}

const RULES: [&[Feature]; 5] = [
    &[],
    &[Feature::Segments, Feature::MaskBytes],
    &[Feature::Softcap, Feature::Alibi],
    &[Feature::MaskBits, Feature::KvLengths],
    &[
        Feature::Bias,
        Feature::Segments,
        Feature::MaskBits,
        Feature::Softcap,
        Feature::Alibi,
    ],
];

/// A case of 8 rows in which every tile is visited and partly hidden, and some value is
/// not finite in each.
fn case(shape: Shape, features: &[Feature]) -> OwnedCase {
    let mut case = generate(7, shape, features);
    let keys = shape.dims.kv_len;
    if let Some((_, segments)) = &mut case.segments {
        for (j, segment) in segments.iter_mut().enumerate() {
            *segment = (j % 3) as u32;
        }
    }
    if let Some(lengths) = &mut case.kv_lengths {
        lengths.fill(keys as u32);
    }
    if let Some(mask) = &mut case.mask {
        mask.shape = [1, 1, 1, keys];
        mask.data = match &mask.data {
            common::MaskBits::Bytes(_) => {
                common::MaskBits::Bytes((0..keys).map(|j| (j % 2) as u8).collect())
            }
            common::MaskBits::Bits(_) => {
                common::MaskBits::Bits(vec![0x5555_5555; keys.div_ceil(32)])
            }
        };
    }
    let columns = shape.dims.v_dim;
    let values: Vec<f32> = (0..keys * columns)
        .map(|n| {
            if n % (8 * columns) == 0 {
                f32::NAN
            } else {
                0.5
            }
        })
        .collect();
    case.value = common::Elements::new(&values, shape.key_value);
    case
}

/// Every family, load, width of values, set of rules and storage type.
#[test]
fn forward_passes_stay_below_the_bound() {
    let Some((limit, attention)) = counting() else {
        return println!("the adapter ends no loops");
    };
    let mut counts = Counts::new(limit);
    for kernel in attention.caps().kernels() {
        for (n, (qk_dim, v_dim)) in [(5, 65), (33, 33), (49, 20), (8, 20), (48, 64), (64, 128)]
            .into_iter()
            .enumerate()
        {
            for (m, features) in RULES.into_iter().enumerate() {
                for (o, dtype) in [DType::F32, DType::F16, DType::BF16]
                    .into_iter()
                    .enumerate()
                {
                    // One workgroup alone writes counts.
                    if kernel == Kernel::Staged && v_dim > 64 {
                        continue;
                    }
                    // All types for one shape, else one.
                    if (n + m) % 3 != o && n > 0 {
                        continue;
                    }
                    let shape = Shape {
                        query: dtype,
                        key_value: dtype,
                        ..Shape::f32([1, 1, 8, qk_dim], 1, 1999, v_dim)
                    };
                    let case = case(shape, features);
                    let setup = Setup {
                        plan: PlanOptions::default().kernel(kernel),
                        ..Setup::default()
                    };
                    let what = format!("{kernel}: {qk_dim} {v_dim} {dtype:?} {features:?}");
                    forward(&mut counts, &attention, &case, &setup, &what);
                }
            }
        }
    }
    counts.finish(80);
}

fn forward(
    counts: &mut Counts,
    attention: &Attention,
    case: &OwnedCase,
    setup: &Setup,
    what: &str,
) {
    let guest = Guest::new(attention, case, setup).unwrap();
    let plan = guest.prepared.plan();
    let shader = match (plan.kernel(), &setup.stage) {
        (_, Some((Stage::Raw, _))) => Shader::StagedScores,
        (_, Some(_)) => Shader::StagedSoftmax,
        (Kernel::Staged, None) => Shader::StagedValues,
        (Kernel::Tiled, None) => Shader::ForwardTiled,
        (Kernel::TiledSubgroup, None) => Shader::ForwardTiledSubgroup,
        (_, None) => Shader::ForwardLanes,
    };
    let ran = Guest::run(attention, case, setup).unwrap();
    // A mask of bytes may be found at an odd place; segments skip tiles.
    counts.judge(what, plan, shader, &ran.output, 0.6);
}

/// The three passes of the staged family, and all rows of a stage.
#[test]
fn stages_stay_below_the_bound() {
    let Some((limit, attention)) = counting() else {
        return println!("the adapter ends no loops");
    };
    let mut counts = Counts::new(limit);
    for stage in [Stage::Raw, Stage::Probabilities] {
        for features in RULES {
            for qk_dim in [5, 48, 1000] {
                // Scores of 64 keys are one workgroup's.
                let keys = if stage == Stage::Raw { 64 } else { 999 };
                let case = case(Shape::f32([1, 1, 8, qk_dim], 1, keys, 4), features);
                let region = Region {
                    batches: 0..1,
                    heads: 0..1,
                    rows: 0..8,
                };
                let setup = Setup {
                    stage: Some((stage, region)),
                    ..Setup::default()
                };
                let what = format!("{stage:?} {qk_dim} {features:?}");
                forward(&mut counts, &attention, &case, &setup, &what);
            }
        }
    }
    counts.finish(30);
}

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
    let Some((limit, attention)) = counting() else {
        return println!("the adapter ends no loops");
    };
    let mut counts = Counts::new(limit);
    for dtype in [DType::F32, DType::F16] {
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
                    counts.judge(&what, &plan, shader, &left(3), 0.4);
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
    let Some((limit, attention)) = counting() else {
        return println!("the adapter ends no loops");
    };
    let mut counts = Counts::new(limit);
    for (kernel, shader) in [
        (Kernel::Tiled, Shader::InspectTiled),
        (Kernel::LaneBroadcast, Shader::InspectLanes),
    ] {
        if !attention.caps().kernels().any(|k| k == kernel) {
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
                let buffers = create(attention.device(), &images.list);
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
                    let contents = read_back(&attention, &buffers, &images.list).unwrap();
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
                    let plan = run(&attention, &problem, kernel, &operands);
                    let what = format!("rows {depth}");
                    counts.judge(&what, &plan, Shader::InspectRows, &left(5), 0.6);
                    counts.judge(&what, &plan, Shader::InspectKeys, &left(4), 0.9);
                } else {
                    let pairs = Pairs {
                        region: region(0..rows),
                        keys: 0..16,
                        quantity: Quantity::Stage(Stage::Probabilities),
                    };
                    let problem = Problem::inspect(&operands, &options, pairs).unwrap();
                    let plan = run(&attention, &problem, kernel, &operands);
                    let what = format!("pairs {depth}");
                    // Half of the keys of a workgroup of lanes are none.
                    counts.judge(&what, &plan, shader, &left(5), 0.4);
                }
            }
        }
    }
    counts.finish(9);
}
