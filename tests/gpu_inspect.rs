//! Inspection by every family against the oracle: pairs, rows, keys, norms.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use common::{Elements, Feature, MaskBits, OwnedCase, Shape, generate, random_case};
use gpu::memory::{Images, Place, contiguous, create, read_back};
use gpu::{Report, gpu};
use wgpu_attention::reference::{self, Comparison, RowExpected, compare};
use wgpu_attention::{
    Attention, DType, Dims, Error, Kernel, List, MaskView, Norms, Operands, Pairs, Plan,
    PlanOptions, Problem, Quantity, Region, RowSummary, Rows, Stage, Stats, StatsView, Tensor,
    TensorView, Workspace,
};

/// What an inspection left.
struct Seen {
    output: Vec<u8>,
    received: Vec<f32>,
}

enum Wanted<'a> {
    Pairs(&'a Pairs, DType),
    Rows(&'a Rows),
}

/// Inputs and outputs of a case between guard bands.
struct Inspected<'a> {
    gpu: &'a Attention,
    case: &'a OwnedCase,
    kernel: Kernel,
    stats: Stats,
    norms: Option<(&'a [f32], usize)>,
    gap: usize,
    one_buffer: bool,
}

impl Inspected<'_> {
    /// A forward pass for the statistics, then the inspection.
    fn run(&self, wanted: &Wanted<'_>) -> Result<Seen, String> {
        let (case, gpu) = (self.case, self.gpu);
        let Dims {
            batch,
            q_heads,
            kv_heads,
            q_len,
            kv_len,
            qk_dim,
            v_dim,
        } = case.dims;
        let mut images = Images {
            one: self.one_buffer,
            ..Images::default()
        };
        let put = |images: &mut Images, elements: &Elements, shape: [usize; 4]| {
            let [_, heads, rows, dim] = shape;
            let row = dim + self.gap;
            let strides = [heads * rows * row, rows * row, row, 1];
            let place = images.place(elements.dtype().size() as usize, shape, strides);
            images.fill(place, elements.data().bytes());
            place
        };
        let query = put(&mut images, &case.query, [batch, q_heads, q_len, qk_dim]);
        let key = put(&mut images, &case.key, [batch, kv_heads, kv_len, qk_dim]);
        let value = put(&mut images, &case.value, [batch, kv_heads, kv_len, v_dim]);
        let bias = case.bias.as_ref().map(|(bias, shape)| {
            images.put(bias.dtype().size() as usize, *shape, bias.data().bytes())
        });
        let mask = case.mask.as_ref().map(|mask| match &mask.data {
            MaskBits::Bytes(bytes) => images.put(1, mask.shape, bytes),
            MaskBits::Bits(words) => {
                let [b, h, n, keys] = mask.shape;
                images.put(4, [b, h, n, keys.div_ceil(32)], bytemuck::cast_slice(words))
            }
        });
        let norms = self.norms.map(|(norms, heads)| {
            images.put(4, [batch, heads, kv_len, 1], bytemuck::cast_slice(norms))
        });
        let width = if self.stats == Stats::Lse { 1 } else { 2 };
        // The forward pass writes them, so that they have a buffer of their own.
        let one = std::mem::replace(&mut images.one, false);
        let stats = images.put(4, [batch, q_heads, q_len, width], &[]);
        images.mark_written(stats);
        let forward = images.put(4, [batch, q_heads, q_len, v_dim], &[]);
        images.mark_written(forward);
        images.one = one;
        let (region, columns, dtype) = match wanted {
            Wanted::Pairs(pairs, dtype) => (&pairs.region, pairs.keys.len(), *dtype),
            Wanted::Rows(rows) => (&rows.region, rows.width(), DType::F32),
        };
        let [b, h, n] = region.lens();
        let shape = [b, h, n, columns];
        let row = columns + self.gap;
        let strides = [h * n * row, n * row, row, 1];
        let output = images.place(dtype.size() as usize, shape, strides);
        images.mark_written(output);
        let received = images.put(4, [b, h, kv_len, 1], &[]);
        if matches!(wanted, Wanted::Rows(_)) {
            images.mark_written(received);
        }
        let images = images.list;
        let buffers = create(gpu.device(), &images);
        let view = |place: Place, dtype| {
            let buffer = &buffers[place.buffer];
            TensorView::strided(buffer, dtype, place.shape, place.strides, place.offset).unwrap()
        };
        let kv = case.key.dtype();
        let out = view(forward, DType::F32);
        let (q, k, v) = (
            view(query, case.query.dtype()),
            view(key, kv),
            view(value, kv),
        );
        let mut operands = Operands::new(q, k, v, out);
        let rows = [batch, q_heads, q_len];
        let stats = StatsView::new(&buffers[stats.buffer], self.stats, rows, stats.offset);
        operands.stats = Some(stats.unwrap());
        operands.bias = bias.map(|place| view(place, case.bias.as_ref().unwrap().0.dtype()));
        operands.mask = mask.map(|place| {
            let (mask, buffer) = (case.mask.as_ref().unwrap(), &buffers[place.buffer]);
            match &mask.data {
                MaskBits::Bytes(_) => {
                    MaskView::bytes(buffer, mask.shape, place.offset, mask.polarity)
                }
                MaskBits::Bits(_) => {
                    MaskView::bits(buffer, mask.shape, place.offset, mask.polarity)
                }
            }
            .unwrap()
        });
        operands.kv_lengths = case.kv_lengths.as_deref().map(List::Host);
        operands.q_lengths = case.q_lengths.as_deref().map(List::Host);
        operands.offsets = case.offsets.as_deref().map(List::Host);
        if let Some((queries, keys)) = &case.segments {
            operands = operands.segments(List::Host(queries), List::Host(keys));
        }
        operands.alibi_slopes = case.alibi_slopes.as_deref().map(List::Host);
        operands.sinks = case.sinks.as_deref().map(List::Host);
        let options = PlanOptions::default().kernel(self.kernel);
        let run = |problem: Problem, operands: &Operands<'_>| -> Result<(), Error> {
            let plan = Plan::new(&problem, gpu.caps(), &options)?;
            let workspace = gpu.device().create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: plan.workspace_bytes().next_multiple_of(4).max(4),
                usage: wgpu::BufferUsages::STORAGE,
                mapped_at_creation: false,
            });
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            let workspace = Some(Workspace::new(&workspace));
            gpu.prepare(&plan)?
                .record(&mut encoder, operands, workspace)?;
            gpu.queue().submit([encoder.finish()]);
            Ok(())
        };
        let asked = || -> Result<(), Error> {
            run(Problem::forward(&operands, &case.options)?, &operands)?;
            let mut operands = operands;
            operands.output = view(output, dtype);
            operands.norms = norms.map(|place| view(place, DType::F32));
            let problem = match wanted {
                Wanted::Pairs(pairs, _) => {
                    Problem::inspect(&operands, &case.options, (*pairs).clone())?
                }
                Wanted::Rows(rows) => {
                    operands.received = Some(view(received, DType::F32));
                    Problem::summarize(&operands, &case.options, (*rows).clone())?
                }
            };
            run(problem, &operands)
        };
        asked().map_err(|error| error.to_string())?;
        let contents = read_back(gpu, &buffers, &images)?;
        let bytes = &contents[output.buffer];
        Ok(Seen {
            output: output.elements().flat_map(|r| bytes[r].to_vec()).collect(),
            received: received.widened(&contents[received.buffer], DType::F32),
        })
    }
}

fn whole(case: &OwnedCase) -> Region {
    Region {
        batches: 0..case.dims.batch,
        heads: 0..case.dims.q_heads,
        rows: 0..case.dims.q_len,
    }
}

fn some_norms(case: &OwnedCase, heads: usize) -> Vec<f32> {
    let count = case.dims.batch * heads * case.dims.kv_len;
    (0..count).map(|n| 0.25 + (n * 7 % 11) as f32).collect()
}

/// A comparison of `count` numbers. Biases near the lowest float may leave a weight
/// open (f32 has lost the difference) or an entropy (no weight is left): a part
/// `open_part` of the numbers of such a case at most, and none of any other.
fn judge(
    report: &mut Report,
    case: &OwnedCase,
    what: &str,
    open_part: f64,
    count: usize,
    found: wgpu_attention::Result<Comparison>,
) {
    let open = found.as_ref().map_or(0, |found| found.undetermined);
    let most = match case.name.contains("BiasLowest") {
        true => (open_part * count as f64) as usize,
        false => 0,
    };
    report.expect(open <= most, format!("{what}: {open} of {count} are open"));
    report.record(what, "inspection", count - open, found);
}

/// All quantities of a region and a range of keys.
fn judge_pairs(
    report: &mut Report,
    gpu: &Attention,
    case: &OwnedCase,
    region: &Region,
    keys: std::ops::Range<usize>,
    seed: usize,
) {
    let heads = [case.dims.kv_heads, case.dims.q_heads][seed % 2];
    let norms = some_norms(case, heads);
    let shape = [case.dims.batch, heads, case.dims.kv_len, 1];
    let tensor = Tensor::f32(&norms, shape).unwrap();
    let stages = Stage::ALL.map(Quantity::Stage);
    for (n, quantity) in stages
        .into_iter()
        .chain([Quantity::Contribution])
        .enumerate()
    {
        let dtype = [DType::F32, DType::F16][(n + seed / 2) % 2];
        let stats = [Stats::RowState, Stats::Lse][(seed / 4) % 2];
        let pairs = Pairs {
            quantity,
            region: region.clone(),
            keys: keys.clone(),
        };
        let (inputs, options) = (case.inputs(), &case.options);
        let expected = reference::pairs(&inputs, options, stats, Some(&tensor), &pairs, dtype);
        let expected = expected.unwrap();
        for kernel in gpu.caps().kernels() {
            let what = format!("{kernel}: {} {pairs:?} {stats:?} {dtype:?}", case.name);
            let inspected = Inspected {
                gpu,
                case,
                kernel,
                stats,
                norms: Some((&norms, heads)),
                gap: seed % 3,
                one_buffer: seed % 4 == 3,
            };
            let ran = inspected.run(&Wanted::Pairs(&pairs, dtype));
            let Some(seen) = report.expect_ok(&what, ran) else {
                continue;
            };
            let got: Vec<f32> = match dtype {
                DType::F32 => bytemuck::pod_collect_to_vec(&seen.output),
                _ => seen
                    .output
                    .chunks_exact(2)
                    .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
                    .collect(),
            };
            let found = compare(&got, &expected.values, &expected.bound);
            judge(report, case, &what, 0.25, expected.values.len(), found);
        }
    }
}

fn judge_rows(
    report: &mut Report,
    gpu: &Attention,
    case: &OwnedCase,
    region: &Region,
    seed: usize,
) -> usize {
    // Numbers of largest weights: a row with an open weight has none.
    let mut listed = 0;
    let heads = [case.dims.kv_heads, case.dims.q_heads][seed % 2];
    let norms = some_norms(case, heads);
    let shape = [case.dims.batch, heads, case.dims.kv_len, 1];
    let tensor = Tensor::f32(&norms, shape).unwrap();
    let stats = [Stats::RowState, Stats::Lse][(seed / 2) % 2];
    let rows = Rows {
        region: region.clone(),
        top: 1 + seed % 16,
        first_keys: (seed % 5).min(case.dims.kv_len),
    };
    let (inputs, options) = (case.inputs(), &case.options);
    let expected = reference::rows(&inputs, options, stats, Some(&tensor), &rows).unwrap();
    let received = reference::received(&inputs, options, stats, region).unwrap();
    let values: Vec<f64> = expected.iter().flat_map(|row| row.values.clone()).collect();
    let bounds: Vec<f64> = expected.iter().flat_map(|row| row.bound.clone()).collect();
    for kernel in gpu.caps().kernels() {
        let what = format!("{kernel}: {} {rows:?} {stats:?}", case.name);
        let inspected = Inspected {
            gpu,
            case,
            kernel,
            stats,
            norms: Some((&norms, heads)),
            gap: seed % 3,
            one_buffer: seed % 4 == 3,
        };
        let ran = inspected.run(&Wanted::Rows(&rows));
        let Some(seen) = report.expect_ok(&what, ran) else {
            continue;
        };
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&seen.output);
        let rows_seen = words.chunks(rows.width()).map(RowSummary::decode);
        let seen_rows: Vec<RowSummary> = rows_seen.collect::<Result<_, _>>().unwrap();
        report.expect(seen_rows.len() == expected.len(), format!("{what}: rows"));
        let numbers: Vec<f32> = seen_rows.iter().flat_map(RowExpected::numbers).collect();
        let found = compare(&numbers, &values, &bounds);
        judge(report, case, &what, 0.25, values.len(), found);
        for (n, (row, expected)) in seen_rows.iter().zip(&expected).enumerate() {
            let top = expected.check_top(&row.top);
            listed += report
                .expect_ok(&format!("{what} row {n}"), top)
                .unwrap_or(0);
        }
        let found = compare(&seen.received, &received.values, &received.bound);
        // One such row leaves the mass of all of its keys open.
        judge(report, case, &what, 1.0, received.values.len(), found);
    }
    listed
}

#[test]
fn pairs_of_random_cases() {
    let mut report = Report::new();
    for seed in 0..8 {
        let case = random_case(seed);
        let keys = case.dims.kv_len;
        let range = if seed % 2 == 0 {
            0..keys
        } else {
            keys / 3..keys
        };
        judge_pairs(
            &mut report,
            gpu(),
            &case,
            &whole(&case),
            range,
            seed as usize,
        );
    }
    report.finish(100_000);
}

#[test]
fn rows_of_random_cases() {
    let mut listed = 0;
    let mut report = Report::new();
    for seed in 0..8 {
        let case = random_case(seed);
        listed += judge_rows(&mut report, gpu(), &case, &whole(&case), seed as usize);
    }
    assert!(listed > 1000, "only {listed} numbers of largest weights");
    report.finish(10_000);
}

#[test]
fn regions() {
    let mut report = Report::new();
    let features = [
        Feature::Causal,
        Feature::Softcap,
        Feature::Sinks,
        Feature::MaskBits,
    ];
    let case = generate(3, Shape::f32([3, 6, 70, 9], 2, 70, 4), &features);
    let region = Region {
        batches: 1..3,
        heads: 2..5,
        rows: 3..68,
    };
    judge_pairs(&mut report, gpu(), &case, &region, 5..66, 1);
    let listed = judge_rows(&mut report, gpu(), &case, &region, 2);
    assert!(listed > 1000, "only {listed} numbers of largest weights");
    report.finish(10_000);
}

/// Neither a head's rows nor a batch entry's keys fit a binding, nor the scores of
/// more than a tile of rows: a key's mass is carried from chunk to chunk.
#[test]
fn bindings_of_a_few_kilobytes() {
    let small = gpu::limited(|limits| {
        limits.max_storage_buffer_binding_size = 20_000;
        limits.min_storage_buffer_offset_alignment = 256;
    });
    let features = [Feature::Bias, Feature::WindowLeft, Feature::Sinks];
    let case = generate(5, Shape::f32([2, 4, 200, 40], 2, 70, 40), &features);
    let region = Region {
        batches: 0..2,
        heads: 1..4,
        rows: 10..190,
    };
    let mut report = Report::new();
    judge_pairs(&mut report, &small, &case, &region, 3..66, 4);
    let listed = judge_rows(&mut report, &small, &case, &region, 1);
    assert!(listed > 1000, "only {listed} numbers of largest weights");
    report.finish(3 * 5 * 2 * 3 * 180 * 63);
}

#[test]
fn norms_of_values() {
    let mut report = Report::new();
    for (seed, dtype) in [DType::F32, DType::F16, DType::BF16]
        .into_iter()
        .enumerate()
    {
        let shape = [2, 3, 70, 5 + seed];
        let count: usize = shape.iter().product();
        let numbers: Vec<f32> = (0..count)
            .map(|n| ((n * 37 % 101) as f32 - 50.0) / 9.0)
            .collect();
        let value = Elements::new(&numbers, dtype);
        let expected = reference::value_norms(&Tensor::new(value.data(), shape).unwrap()).unwrap();
        let mut images = Images::default();
        let place = images.put(dtype.size() as usize, shape, value.data().bytes());
        let out_shape = [2, 3, 70, 1];
        let output = images.place(4, out_shape, contiguous(out_shape));
        images.mark_written(output);
        let buffers = create(gpu().device(), &images.list);
        let norms = Norms {
            value: TensorView::bhsd(&buffers[place.buffer], dtype, shape, place.offset).unwrap(),
            through: None,
            output: TensorView::bhsd(
                &buffers[output.buffer],
                DType::F32,
                out_shape,
                output.offset,
            )
            .unwrap(),
        };
        let problem = Problem::norms(&norms).unwrap();
        let plan = Plan::new(&problem, gpu().caps(), &PlanOptions::default()).unwrap();
        let mut encoder = gpu().device().create_command_encoder(&Default::default());
        let prepared = gpu().prepare(&plan).unwrap();
        prepared
            .record(&mut encoder, &norms.operands(), None)
            .unwrap();
        gpu().queue().submit([encoder.finish()]);
        let contents = read_back(gpu(), &buffers, &images.list).unwrap();
        let got = output.widened(&contents[output.buffer], DType::F32);
        let found = compare(&got, &expected.values, &expected.bound);
        report.record("norms", "norms", 2 * 3 * 70, found);
    }
    report.finish(3 * 2 * 3 * 70);
}

#[test]
fn bad_selections_are_named() {
    let case = generate(1, Shape::f32([1, 2, 4, 8], 1, 6, 4), &[]);
    let region = |rows| Region {
        batches: 0..1,
        heads: 0..2,
        rows,
    };
    let inspected = Inspected {
        gpu: gpu(),
        case: &case,
        kernel: Kernel::Tiled,
        stats: Stats::Lse,
        norms: None,
        gap: 0,
        one_buffer: false,
    };
    let pairs = |quantity, rows, keys| Pairs {
        quantity,
        region: region(rows),
        keys,
    };
    let weights = Quantity::Stage(Stage::Probabilities);
    for (wrong, name) in [
        (pairs(weights, 0..5, 0..6), "region rows"),
        (pairs(weights, 0..4, 0..7), "region keys"),
        (pairs(Quantity::Contribution, 0..4, 0..6), "norms"),
    ] {
        let error = inspected
            .run(&Wanted::Pairs(&wrong, DType::F32))
            .err()
            .unwrap();
        assert!(error.starts_with(name), "{error}");
    }
    let rows = Rows {
        region: region(0..4),
        top: 17,
        first_keys: 1,
    };
    let error = inspected.run(&Wanted::Rows(&rows)).err().unwrap();
    assert!(error.starts_with("top: expected 1 to 16"), "{error}");
}

/// A pass that does not inspect refuses what it would not read.
#[test]
fn norms_are_for_inspections_alone() {
    let buffer = gpu().device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 4096,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    });
    let view = |offset| TensorView::bhsd(&buffer, DType::F32, [1, 1, 4, 4], offset).unwrap();
    let output = gpu().device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 4096,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    });
    let other = TensorView::bhsd(&output, DType::F32, [1, 1, 4, 4], 0).unwrap();
    let norms = TensorView::bhsd(&output, DType::F32, [1, 1, 4, 1], 64).unwrap();
    let operands = Operands::new(view(0), view(64), view(128), other);
    let options = wgpu_attention::Options::default();
    for (wrong, name) in [
        (operands.norms(norms), "norms: expected none"),
        (operands.received(norms), "received: expected none"),
    ] {
        let error = Problem::forward(&wrong, &options).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
    }
}
