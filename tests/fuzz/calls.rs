//! Random forward passes, stages, inspections and projections on wgpu's noop backend.

use rand::RngExt;
use rand::rngs::StdRng;
use wgpu_attention::{
    Alignment, DType, Dims, Error, Kernel, List, MaskView, Norms, Operands, Options, Pairs, Plan,
    PlanOptions, Polarity, Problem, Projection, Quantity, Region, Result, Rows, Stage, Stats,
    StatsView, TensorView, Window, Workspace, wgpu,
};

use crate::noop::Noop;
use crate::{fuzz, mostly, pick};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
/// What no axis can be.
const ABSURD: [usize; 5] = [0, 1 << 20, 1 << 31, u32::MAX as usize, usize::MAX];

/// Devices at default limits, at small ones, and with other alignments.
pub fn devices() -> Vec<Noop> {
    let limits = wgpu::Limits::default();
    vec![
        Noop::with_limits(limits.clone()),
        Noop::with_limits(wgpu::Limits {
            max_storage_buffer_binding_size: 4096,
            max_compute_workgroups_per_dimension: 16,
            ..limits.clone()
        }),
        Noop::with_limits(wgpu::Limits {
            min_storage_buffer_offset_alignment: 32,
            ..limits
        }),
    ]
}

/// Buffers that views are laid into: a pool, small ones, and one of the wrong usage.
pub struct Pool {
    pool: wgpu::Buffer,
    others: Vec<wgpu::Buffer>,
}

impl Pool {
    pub fn new(noop: &Noop) -> Pool {
        let sizes = [0, 4, 64, 1 << 10, 1 << 14, 1 << 18, 1 << 22];
        let mut others: Vec<_> = (0..24)
            .map(|n| noop.buffer(sizes[6 - (n % 3)]))
            .chain(sizes.map(|size| noop.buffer(size)))
            .collect();
        others.push(noop.buffer_with(1 << 20, wgpu::BufferUsages::UNIFORM));
        Pool {
            pool: noop.buffer(1 << 24),
            others,
        }
    }

    pub fn buffer(&self, rng: &mut StdRng, one: bool) -> &wgpu::Buffer {
        match one {
            true => &self.pool,
            // Mostly those that are large and have room for what is usual.
            false => {
                let (usual, last) = (rng.random_range(0..24), self.others.len());
                &self.others[mostly(rng, usual, 40, &[24, last - 5, last - 1])]
            }
        }
    }
}

/// A view somewhere, with strides of any kind.
pub fn view<'a>(
    rng: &mut StdRng,
    pool: &'a Pool,
    one: bool,
    dtype: DType,
    mut shape: [usize; 4],
) -> Result<TensorView<'a>> {
    if rng.random_ratio(1, 60) {
        let axis = rng.random_range(0..4);
        shape[axis] = pick(rng, &[0, 1, 2, 3, 1 << 31, usize::MAX]);
    }
    let buffer = pool.buffer(rng, one);
    let slot = if one {
        rng.random_range(0..64usize) << 16
    } else {
        0
    };
    let usual = rng.random_range(0..70);
    let offset = mostly(rng, usual, 80, &ABSURD).saturating_add(slot);
    let [_, heads, rows, dim] = shape;
    match rng.random_range(0..4) {
        0 => TensorView::bhsd(buffer, dtype, shape, offset),
        1 => TensorView::bshd(buffer, dtype, shape, offset),
        2 => {
            let row = dim.saturating_add(rng.random_range(0..9));
            let head = rows
                .saturating_mul(row)
                .saturating_add(rng.random_range(0..9));
            let batch = heads.saturating_mul(head).saturating_add(3);
            TensorView::strided(buffer, dtype, shape, [batch, head, row, 1], offset)
        }
        _ => {
            let mut stride = |usual| mostly(rng, usual, 12, &[0, 1, 2, 1 << 33, usize::MAX]);
            let row = stride(dim);
            let head = stride(rows.saturating_mul(dim));
            let batch = stride(heads.saturating_mul(rows).saturating_mul(dim));
            let element = stride(1);
            TensorView::strided(buffer, dtype, shape, [batch, head, row, element], offset)
        }
    }
}

pub fn dims(rng: &mut StdRng) -> Dims {
    let lengths = [0, 1, 2, 7, 8, 31, 33, 64, 65, 130];
    let widths = [1, 2, 3, 8, 16, 33, 64, 65, 130];
    let kv_heads = rng.random_range(1..4);
    let group = pick(rng, &[1, 1, 2, 3]);
    let mut dims = Dims {
        batch: pick(rng, &[0, 1, 1, 2, 3]),
        q_heads: kv_heads * group,
        kv_heads,
        q_len: pick(rng, &lengths),
        kv_len: pick(rng, &lengths),
        qk_dim: pick(rng, &widths),
        v_dim: pick(rng, &widths),
    };
    if rng.random_ratio(1, 12) {
        let axis = match rng.random_range(0..7) {
            0 => &mut dims.batch,
            1 => &mut dims.q_heads,
            2 => &mut dims.kv_heads,
            3 => &mut dims.q_len,
            4 => &mut dims.kv_len,
            5 => &mut dims.qk_dim,
            _ => &mut dims.v_dim,
        };
        *axis = pick(rng, &ABSURD);
    }
    dims
}

pub fn options(rng: &mut StdRng) -> Options {
    let number = |rng: &mut StdRng| {
        let odd = [f32::NAN, f32::INFINITY, 0.0, -1.0, 1e-40, 1e-30, f32::MAX];
        mostly(rng, 0.5, 8, &odd)
    };
    let count = |rng: &mut StdRng| pick(rng, &[None, None, Some(0), Some(5), Some(u32::MAX)]);
    let mut options = Options::default().causal(rng.random());
    options.scale = rng.random_ratio(1, 3).then(|| number(rng));
    options.softcap = rng.random_ratio(1, 4).then(|| number(rng));
    options.window = Window {
        left: count(rng),
        right: count(rng),
    };
    options.alignment = pick(
        rng,
        &[
            Alignment::BottomRight,
            Alignment::TopLeft,
            Alignment::Offset(-7),
            Alignment::Offset(i32::MAX),
            Alignment::Offset(i32::MIN),
        ],
    );
    options
}

fn plan_options(rng: &mut StdRng) -> PlanOptions {
    let mut chosen = PlanOptions::default()
        .shared_buffers(rng.random_ratio(1, 3))
        .force_checks(rng.random_ratio(1, 4));
    chosen.kernel = rng.random_ratio(1, 2).then(|| pick(rng, Kernel::ALL));
    chosen
}

/// A list of the host or of a buffer, mostly of the right length.
fn list<'a, T>(rng: &mut StdRng, pool: &'a Pool, values: &'a [T], len: usize) -> List<'a, T> {
    let len = mostly(rng, len, 30, &[0, 1, usize::MAX]);
    match values.get(..len) {
        Some(values) if rng.random() => List::Host(values),
        _ => List::Buffer {
            buffer: pool.buffer(rng, false),
            offset: mostly(rng, 3, 40, &[0, 1 << 20, usize::MAX]),
            len,
        },
    }
}

/// What lists are cut from.
pub struct Values {
    counts: Vec<u32>,
    offsets: Vec<i32>,
    numbers: Vec<f32>,
}

impl Values {
    pub fn new() -> Values {
        let counts = (0..1000).map(|n| if n % 97 == 96 { u32::MAX } else { 0 });
        let numbers = (0..1000).map(|n| if n % 97 == 96 { f32::NAN } else { 0.5 });
        Values {
            counts: counts.collect(),
            offsets: vec![-3; 1000],
            numbers: numbers.collect(),
        }
    }
}

/// Operands of attention besides query, key, value and output.
pub fn optional<'a>(
    rng: &mut StdRng,
    mut operands: Operands<'a>,
    options: &mut Options,
    pool: &'a Pool,
    values: &'a Values,
    dims: Dims,
) -> Result<Operands<'a>> {
    let rows = [dims.batch, dims.q_heads, dims.q_len];
    let pairs = |rng: &mut StdRng| {
        let full = [dims.batch, dims.q_heads, dims.q_len, dims.kv_len];
        full.map(|n| if rng.random() { n } else { 1 })
    };
    let have = |rng: &mut StdRng| rng.random_ratio(1, 4);
    if rng.random() {
        let kind = pick(rng, &[Stats::Lse, Stats::RowState]);
        let buffer = pool.buffer(rng, false);
        operands = operands.stats(StatsView::new(buffer, kind, rows, 0)?);
    }
    if have(rng) {
        let (shape, dtype) = (pairs(rng), pick(rng, &DTYPES));
        operands = operands.bias(view(rng, pool, false, dtype, shape)?);
    }
    if have(rng) {
        let (shape, buffer) = (pairs(rng), pool.buffer(rng, false));
        let polarity = pick(rng, &[Polarity::Keep, Polarity::Drop]);
        operands = operands.mask(match rng.random() {
            true => MaskView::bytes(buffer, shape, 3, polarity)?,
            false => MaskView::bits(buffer, shape, 1, polarity)?,
        });
    }
    if have(rng) {
        operands = operands.kv_lengths(list(rng, pool, &values.counts, dims.batch));
    }
    if have(rng) {
        operands = operands.q_lengths(list(rng, pool, &values.counts, dims.batch));
    }
    if have(rng) {
        operands = operands.offsets(list(rng, pool, &values.offsets, dims.batch));
        options.alignment = mostly(rng, Alignment::PerSequence, 9, &[Alignment::TopLeft]);
    }
    if have(rng) {
        let queries = dims.batch.saturating_mul(dims.q_len);
        let keys = dims.batch.saturating_mul(dims.kv_len);
        let queries = list(rng, pool, &values.counts, queries);
        operands = operands.segments(queries, list(rng, pool, &values.counts, keys));
    }
    if have(rng) {
        operands = operands.alibi_slopes(list(rng, pool, &values.numbers, dims.q_heads));
    }
    if have(rng) {
        operands = operands.sinks(list(rng, pool, &values.numbers, dims.q_heads));
    }
    Ok(operands)
}

fn region(rng: &mut StdRng, dims: Dims) -> Region {
    let mut part = |n: usize| {
        let end = mostly(rng, n, 30, &[n.saturating_add(1), usize::MAX, 0]);
        mostly(rng, 0, 4, &[end / 2, end, end.saturating_add(1)])..end
    };
    Region {
        batches: part(dims.batch),
        heads: part(dims.q_heads),
        rows: part(dims.q_len),
    }
}

/// One random call up to its submission; an error is what refuses it.
fn call(rng: &mut StdRng, noop: &Noop, pool: &Pool, values: &Values) -> Result<Plan> {
    let dims = dims(rng);
    let Dims {
        batch,
        q_heads,
        kv_heads,
        q_len,
        kv_len,
        qk_dim,
        v_dim,
    } = dims;
    let one = rng.random_ratio(1, 3);
    let (query, key, out) = (pick(rng, &DTYPES), pick(rng, &DTYPES), pick(rng, &DTYPES));
    let mut options = options(rng);
    let plan_options = plan_options(rng);
    let mut part = |dtype, shape| view(rng, pool, one, dtype, shape);
    let q = part(query, [batch, q_heads, q_len, qk_dim])?;
    let k = part(key, [batch, kv_heads, kv_len, qk_dim])?;
    let v = part(key, [batch, kv_heads, kv_len, v_dim])?;
    let o = part(out, dims.output_shape())?;
    let (operands, problem) = match rng.random_range(0..8) {
        0 => {
            let tokens = [batch, 1, q_len, qk_dim];
            let [weight, bias] = [[1, 1, v_dim, qk_dim], [1, 1, 1, v_dim]];
            let output = [batch, 1, q_len, v_dim];
            let mut part = |dtype, shape| view(rng, pool, one, dtype, shape);
            let projection = Projection {
                input: part(query, tokens)?,
                weight: part(key, weight)?,
                bias: Some(part(key, bias)?),
                output: part(out, output)?,
            };
            let problem = Problem::projection(&projection)?;
            (projection.operands()?, problem)
        }
        1 => {
            let through = [1, q_heads, v_dim, v_dim];
            let through = match rng.random() {
                true => Some(view(rng, pool, false, DType::F32, through)?),
                false => None,
            };
            let heads = if through.is_some() { q_heads } else { kv_heads };
            let output = view(rng, pool, false, DType::F32, [batch, heads, kv_len, 1])?;
            let norms = Norms {
                value: v,
                through,
                output,
            };
            (norms.operands(), Problem::norms(&norms)?)
        }
        goal => {
            let operands = Operands::new(q, k, v, o);
            let mut operands = optional(rng, operands, &mut options, pool, values, dims)?;
            let region = region(rng, dims);
            let [b, h, n] = region.lens();
            let problem = match goal {
                2 => {
                    operands.output = view(rng, pool, false, DType::F32, [b, h, n, kv_len])?;
                    let stages = [Stage::Raw, Stage::Softcapped, Stage::Masked];
                    Problem::stage(&operands, &options, pick(rng, &stages), region)?
                }
                3 => {
                    operands.output = view(rng, pool, false, out, [b, h, n, kv_len])?;
                    let pairs = Pairs {
                        quantity: pick(
                            rng,
                            &[Quantity::Contribution, Quantity::Stage(Stage::Masked)],
                        ),
                        region,
                        keys: 0..kv_len,
                    };
                    Problem::inspect(&operands, &options, pairs)?
                }
                4 => {
                    let rows = Rows {
                        region,
                        top: mostly(rng, 3, 9, &[0, 1000, usize::MAX]),
                        first_keys: mostly(rng, 1, 9, &[0, 1 << 20, usize::MAX]),
                    };
                    let width = rows.width();
                    operands.output = view(rng, pool, false, DType::F32, [b, h, n, width])?;
                    Problem::summarize(&operands, &options, rows)?
                }
                _ => Problem::forward(&operands, &options)?,
            };
            (operands, problem)
        }
    };
    let plan = Plan::new(&problem, noop.attention.caps(), &plan_options)?;
    assert!(!plan.to_string().is_empty());
    if plan.dispatches() > 64 {
        // Fine, and slow to record.
        return Ok(plan);
    }
    let bytes = mostly(rng, plan.workspace_bytes(), 20, &[0, 4]);
    let workspace = (bytes > 0).then(|| noop.buffer(bytes));
    noop.record(&plan, &operands, workspace.as_ref().map(Workspace::new))?;
    Ok(plan)
}

#[test]
fn random_calls_are_recorded_or_refused() {
    let devices = devices();
    let pools: Vec<Pool> = devices.iter().map(Pool::new).collect();
    let values = Values::new();
    fuzz(3000, |rng| {
        let n = rng.random_range(0..devices.len());
        let (noop, pool) = (&devices[n], &pools[n]);
        let result = call(rng, noop, pool, &values);
        let uncaptured = noop.take_uncaptured();
        assert!(uncaptured.is_empty(), "{result:?}: {uncaptured:#?}");
        match result {
            Ok(_) => true,
            Err(error) => {
                // What wgpu itself has to refuse was not checked by us.
                assert!(!matches!(error, Error::Device { .. }), "{error}");
                assert!(!error.to_string().is_empty());
                false
            }
        }
    });
}
