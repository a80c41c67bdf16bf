//! What it costs to look at the rows of a case, beside their forward pass.

use std::time::Instant;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::reference::{self, StageExpected};
use wgpu_attention::{
    DType, Error, Norms, Operands, Pairs, Plan, PlanOptions, Prepared, Problem, Projection,
    Quantity, Region, Stage, Stats, StatsView, Tensor, TensorView, Workspace, gram_matrices, wgpu,
};

use super::case::Case;
use super::clock::processor_time;
use super::figures::{Figures, Outcome};
use super::measure::{Bench, Check};
use super::values::Values;
use crate::memory;
use crate::report::Stop;

/// What is looked at, of every pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Looked {
    /// W(i, j), from the statistics of a forward pass.
    Weights,
    /// W(i, j) |V_j|, the norms included.
    Contributions,
    /// W(i, j) |V_j W_O^(h)|, the products with the Gram matrices and the norms
    /// included; the matrices, which depend on the layer alone, not.
    ThroughOutput,
}

impl Looked {
    pub const ALL: [Looked; 3] = [
        Looked::Weights,
        Looked::Contributions,
        Looked::ThroughOutput,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Looked::Weights => "see weights",
            Looked::Contributions => "see |V|",
            Looked::ThroughOutput => "see |V W_O|",
        }
    }

    fn quantity(self) -> Quantity {
        match self {
            Looked::Weights => Quantity::Stage(Stage::Probabilities),
            _ => Quantity::Contribution,
        }
    }
}

/// A prepared plan, its operands and its workspace.
struct Step<'a> {
    prepared: Prepared,
    operands: Operands<'a>,
    workspace: Option<wgpu::Buffer>,
}

impl Step<'_> {
    fn record(&self, pass: &mut wgpu::ComputePass<'_>) -> Result<(), Error> {
        let workspace = self.workspace.as_ref().map(Workspace::new);
        self.prepared
            .record_in_pass(pass, &self.operands, workspace)
    }
}

/// The Gram matrices of some output projection, (1, H, Dv, Dv).
fn gram(case: &Case) -> Result<Vec<f32>, Error> {
    let width = case.heads * case.v_dim;
    let mut rng = StdRng::seed_from_u64(37);
    let weights = std::iter::repeat_with(|| rng.random_range(-1.0..1.0) / (width as f32).sqrt());
    let weight: Vec<f32> =
        memory::collected("the output weight", width.saturating_mul(width), weights)?;
    gram_matrices(
        &Tensor::f32(&weight, [1, 1, width, width])?,
        case.heads,
        case.v_dim,
    )
}

/// What the sampled rows have to be. Norms that the device makes are off by their own
/// bounds.
fn expected(
    case: &Case,
    values: &Values,
    looked: Looked,
    gram: &[f32],
    rows: &[usize],
) -> Result<StageExpected, Error> {
    let (inputs, options) = (values.inputs()?, case.options()?);
    let (norms, heads) = match looked {
        Looked::ThroughOutput => {
            let gram = Tensor::f32(gram, [1, case.heads, case.v_dim, case.v_dim])?;
            let norms = reference::value_norms_through(&inputs.value, &gram)?;
            (norms, case.heads)
        }
        _ => (reference::value_norms(&inputs.value)?, case.kv_heads),
    };
    let rounded: Vec<f32> = norms.values.iter().map(|&x| x as f32).collect();
    let tensor = Tensor::f32(&rounded, [case.batch, heads, case.kv_len, 1])?;
    let mut all = StageExpected {
        values: Vec::new(),
        bound: Vec::new(),
    };
    for row in rows {
        let [b, h, i] = [
            row / (case.heads * case.q_len),
            row / case.q_len % case.heads,
            row % case.q_len,
        ];
        let pairs = Pairs {
            quantity: looked.quantity(),
            region: Region {
                batches: b..b + 1,
                heads: h..h + 1,
                rows: i..i + 1,
            },
            keys: 0..case.kv_len,
        };
        let norms_tensor = Some(&tensor);
        let dtype = case.dtype.dtype();
        let found = reference::pairs(&inputs, &options, Stats::Lse, norms_tensor, &pairs, dtype)?;
        let first = (b * heads + h / (case.heads / heads)) * case.kv_len;
        let bounds = found.bound.iter().zip(&found.values).enumerate();
        all.bound.extend(bounds.map(|(j, (bound, value))| {
            let norm = norms.values[first + j];
            match looked {
                Looked::Weights => *bound,
                _ if norm == 0.0 => bound + norms.bound[first + j],
                // The rounding of the norm to f32 is within its bound as well.
                _ => bound + value * norms.bound[first + j] / norm,
            }
        }));
        all.values.extend(found.values);
    }
    Ok(all)
}

impl Bench<'_> {
    fn step<'b>(&self, problem: &Problem, operands: Operands<'b>) -> Result<Step<'b>, Error> {
        let plan = Plan::new(problem, self.attention.caps(), &PlanOptions::default())?;
        let workspace = match plan.workspace_bytes() {
            0 => None,
            bytes => Some(self.clock.buffer("workspace", bytes)),
        };
        Ok(Step {
            prepared: self.attention.prepare(&plan)?,
            operands,
            workspace,
        })
    }

    /// One way to look at all rows of the case, after a forward pass.
    pub fn inspection(&self, looked: Looked, values: &Values) -> Result<(String, Outcome), Stop> {
        let (clock, case, attention) = (self.clock, self.case, self.attention);
        let gram = match looked {
            Looked::ThroughOutput => gram(case)?,
            _ => Vec::new(),
        };
        let expected = expected(case, values, looked, &gram, &self.check.rows)?;
        let expected = [expected.values, expected.bound];
        let check = Check {
            rows: self.check.rows.clone(),
            dim: case.kv_len,
            expected: [expected.clone(), expected],
        };
        let bench = Bench {
            check: &check,
            ..*self
        };

        let dtype = case.dtype.dtype();
        let [query, key, value] = values.data();
        let query_buffer = clock.filled("query", query.bytes());
        let key_buffer = clock.filled("key", key.bytes());
        let value_buffer = clock.filled("value", value.bytes());
        let rows = [case.batch, case.heads, case.q_len];
        let bytes = |shape: &[usize]| shape.iter().product::<usize>() as u64 * 4;
        let forward_buffer = clock.buffer("forward", bytes(&case.output_shape()));
        let stats_buffer = clock.buffer("lse", bytes(&rows));
        let shape = [case.batch, case.heads, case.q_len, case.kv_len];
        let pairs = shape
            .iter()
            .fold(1u64, |n, &axis| n.saturating_mul(axis as u64));
        let size = (pairs.saturating_mul(dtype.size()))
            .checked_next_multiple_of(4)
            .unwrap_or(u64::MAX);
        let output_buffer = clock.filled("output", &memory::filled("pairs", size)?);
        let by_query = looked == Looked::ThroughOutput;
        let heads = if by_query { case.heads } else { case.kv_heads };
        let norms_shape = [case.batch, heads, case.kv_len, 1];
        let norms_buffer = clock.buffer("norms", bytes(&norms_shape));
        let through_shape = [case.batch, 1, case.kv_len, case.v_dim];
        let through_buffer = clock.buffer("through", bytes(&through_shape));
        let gram_buffer = clock.filled("gram", bytemuck::cast_slice(&gram));

        let query = TensorView::bhsd(&query_buffer, query.dtype(), case.query_shape(), 0)?;
        let key = TensorView::bhsd(&key_buffer, key.dtype(), case.key_shape(), 0)?;
        let value = TensorView::bhsd(&value_buffer, value.dtype(), case.value_shape(), 0)?;
        let forward = TensorView::bhsd(&forward_buffer, DType::F32, case.output_shape(), 0)?;
        let norms = TensorView::bhsd(&norms_buffer, DType::F32, norms_shape, 0)?;
        let mut operands = Operands::new(query, key, value, forward);
        operands.stats = Some(StatsView::new(&stats_buffer, Stats::Lse, rows, 0)?);
        let options = case.options()?;
        let first = self.step(&Problem::forward(&operands, &options)?, operands)?;
        clock.time(|pass: &mut wgpu::ComputePass<'_>| first.record(pass))?;

        let before = attention.pipelines();
        let began = processor_time();
        let started = Instant::now();
        let mut steps = Vec::new();
        if looked == Looked::Contributions {
            let wanted = Norms {
                value,
                through: None,
                output: norms,
            };
            steps.push(self.step(&Problem::norms(&wanted)?, wanted.operands())?);
        }
        for head in 0..if by_query { case.heads } else { 0 } {
            let through = TensorView::bhsd(&through_buffer, DType::F32, through_shape, 0)?;
            let matrix = [case.v_dim, case.v_dim];
            let start = head * case.v_dim * case.v_dim;
            let one = |buffer, dtype, width: usize, heads: usize, head: usize| {
                let head_size = case.kv_len * width;
                let strides = [heads * head_size, head_size, width, 1];
                let shape = [case.batch, 1, case.kv_len, width];
                TensorView::strided(buffer, dtype, shape, strides, head * head_size)
            };
            let kv_head = head / (case.heads / case.kv_heads);
            let kv_dtype = case.kv_dtype.dtype();
            let value = one(&value_buffer, kv_dtype, case.v_dim, case.kv_heads, kv_head)?;
            let projection = Projection {
                input: value,
                weight: TensorView::matrix(&gram_buffer, DType::F32, matrix, start)?,
                bias: None,
                output: through,
            };
            let problem = Problem::projection(&projection)?;
            steps.push(self.step(&problem, projection.operands()?)?);
            let wanted = Norms {
                value,
                through: Some(through),
                output: one(&norms_buffer, DType::F32, 1, case.heads, head)?,
            };
            steps.push(self.step(&Problem::norms(&wanted)?, wanted.operands())?);
        }
        operands.output = TensorView::bhsd(&output_buffer, dtype, shape, 0)?;
        operands.norms = (looked != Looked::Weights).then_some(norms);
        let pairs = Pairs {
            quantity: looked.quantity(),
            region: Region {
                batches: 0..case.batch,
                heads: 0..case.heads,
                rows: 0..case.q_len,
            },
            keys: 0..case.kv_len,
        };
        let problem = Problem::inspect(&operands, &options, pairs)?;
        steps.push(self.step(&problem, operands)?);
        let prepare = started.elapsed();
        let timed = bench.timed(&output_buffer, size, dtype, began, |pass| {
            steps.iter().try_for_each(|step| step.record(pass))
        })?;
        let name = looked.name().to_owned();
        let times = match timed {
            Ok(times) => times,
            Err(fault) => return Ok((name, Outcome::Wrong(fault))),
        };
        let workspace = |step: &Step<'_>| step.prepared.plan().workspace_bytes();
        let figures = Figures {
            plan: steps
                .iter()
                .map(|step| step.prepared.plan().to_string())
                .collect(),
            pipelines: attention.pipelines() - before,
            workspace: steps.iter().map(workspace).sum(),
            ..times.figures(prepare)
        };
        Ok((name, Outcome::Measured(figures)))
    }
}
