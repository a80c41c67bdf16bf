//! One case in this process: every contender is run, checked, then timed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::index;
use wgpu_attention::reference;
use wgpu_attention::shaders::emitted;
use wgpu_attention::{
    Attention, DType, Error, Kernel, Operands, Plan, PlanOptions, Problem, Projection, TensorView,
    Workspace, wgpu,
};

use super::case::Case;
use super::ceilings::Ceilings;
use super::clock::{Clock, processor, processor_time};
use super::figures::{Figures, Measured, Outcome, Row};
use super::inspection::Looked;
use super::plain::Plain;
use super::values::Values;
use crate::memory;
use crate::report::{Reporter, Stop};

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Contender {
    /// The family of the planner's choice.
    Chosen,
    Family(Kernel),
    Plain,
    /// Looking at the pairs, after a forward pass.
    Inspection(Looked),
}

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    pub runs: usize,
    pub seconds: f64,
}

/// Texts in the place of the library's, by their files' stems.
pub type Texts = HashMap<String, String>;

/// Rows that are compared with the float64 oracle, besides the first and the last.
const SAMPLED_ROWS: usize = 48;

pub fn measure(
    attention: &Attention,
    case: &Case,
    contenders: &[Contender],
    budget: Budget,
    texts: Option<&Texts>,
    reporter: &Reporter,
) -> Result<Measured, Stop> {
    let most = attention.device().limits().max_buffer_size;
    for (name, bytes) in case.buffers() {
        if bytes > most as f64 {
            return Err(format!("{name}: {bytes} bytes, the device's buffers take {most}").into());
        }
    }
    let clock = Clock::new(attention.device(), attention.queue());
    reporter.doing("the adapter's ceilings");
    let ceilings = (budget.runs > 0)
        .then(|| Ceilings::measure(&clock))
        .transpose()?;
    reporter.doing("float64 oracle");
    let values = Values::new(case)?;
    let check = Check::new(case, &values)?;
    let bench = Bench {
        attention,
        clock: &clock,
        case,
        budget,
        check: &check,
        texts,
    };
    let mut rows = Vec::new();
    for contender in contenders {
        let (name, outcome) = match contender {
            Contender::Plain => {
                reporter.doing("plain three-pass attention");
                ("plain three-pass".to_owned(), bench.plain(&values)?)
            }
            Contender::Chosen => {
                reporter.doing("the chosen kernel");
                bench.library(None, &values)?
            }
            Contender::Family(kernel) => {
                reporter.doing(kernel.name());
                bench.library(Some(*kernel), &values)?
            }
            Contender::Inspection(looked) => {
                reporter.doing(looked.name());
                bench.inspection(*looked, &values)?
            }
        };
        rows.push(Row {
            name,
            chosen: *contender == Contender::Chosen,
            inspection: matches!(contender, Contender::Inspection(_)),
            outcome,
        });
    }
    let software = attention.adapter_info().device_type == wgpu::DeviceType::Cpu;
    Ok(Measured {
        case: case.clone(),
        adapter: attention.adapter_line(),
        software,
        processor: processor(),
        clock: clock.name().to_owned(),
        ceilings,
        flops: case.flops()?,
        bytes: case.bytes(),
        rows,
    })
}

/// What some rows of the output have to be.
pub struct Check {
    pub rows: Vec<usize>,
    pub dim: usize,
    /// Values and bounds, stored as the case's type and as f32.
    pub expected: [[Vec<f64>; 2]; 2],
}

impl Check {
    fn new(case: &Case, values: &Values) -> Result<Check, Error> {
        let count = case.batch * case.heads * case.q_len;
        let mut rng = StdRng::seed_from_u64(31);
        let mut rows = index::sample(&mut rng, count, SAMPLED_ROWS.min(count)).into_vec();
        rows.extend([0, count - 1]);
        let stored = case.dtype.dtype();
        Ok(Check {
            expected: [
                values.expected(&rows, stored)?,
                values.expected(&rows, DType::F32)?,
            ],
            dim: case.output_shape()[3],
            rows,
        })
    }

    /// What is wrong with an output of that type, if anything is.
    fn fault(&self, bytes: &[u8], dtype: DType) -> Option<String> {
        let all = widen(bytes, dtype);
        let sampled = self.rows.iter().flat_map(|row| {
            let start = row * self.dim;
            all[start..start + self.dim].iter().copied()
        });
        let sampled: Vec<f32> = sampled.collect();
        let [expected, bound] = match dtype {
            DType::F32 => &self.expected[1],
            _ => &self.expected[0],
        };
        let compared = reference::compare(&sampled, expected, bound);
        match compared {
            Ok(comparison) if comparison.passed() => None,
            Ok(comparison) => Some(format!("against float64: {comparison}")),
            Err(error) => Some(error.to_string()),
        }
    }
}

fn widen(bytes: &[u8], dtype: DType) -> Vec<f32> {
    let halves = || {
        bytes
            .chunks_exact(2)
            .map(|b| u16::from_le_bytes([b[0], b[1]]))
    };
    match dtype {
        DType::F32 => bytemuck::pod_collect_to_vec(bytes),
        DType::F16 => halves().map(|b| half::f16::from_bits(b).to_f32()).collect(),
        DType::BF16 => halves()
            .map(|b| half::bf16::from_bits(b).to_f32())
            .collect(),
    }
}

/// What every contender of a case is measured with.
#[derive(Clone, Copy)]
pub struct Bench<'a> {
    pub attention: &'a Attention,
    pub clock: &'a Clock<'a>,
    pub case: &'a Case,
    pub budget: Budget,
    pub check: &'a Check,
    /// Whose results are not compared.
    pub texts: Option<&'a Texts>,
}

/// Times of a contender's runs.
pub struct Times {
    first: Duration,
    first_processor: Option<Duration>,
    runs: Vec<Duration>,
    processor: Option<Duration>,
}

impl Times {
    pub fn figures(&self, prepare: Duration) -> Figures {
        Figures {
            prepare: prepare.as_secs_f64(),
            first_processor: self.first_processor.map(|time| time.as_secs_f64()),
            ..Figures::of(&self.runs, self.processor, self.first + prepare)
        }
    }
}

impl Bench<'_> {
    /// The library's kernels, as a guest would run them.
    fn library(&self, kernel: Option<Kernel>, values: &Values) -> Result<(String, Outcome), Stop> {
        let (clock, case) = (self.clock, self.case);
        let [query, key, value] = values.data();
        let dtype = case.dtype.dtype();
        let count: usize = case.output_shape().iter().product();
        let query_buffer = clock.filled("query", query.bytes());
        let key_buffer = clock.filled("key", key.bytes());
        let value_buffer = clock.filled("value", value.bytes());
        let size = (count as u64 * dtype.size()).next_multiple_of(4);
        let output_buffer = clock.filled("output", &memory::filled("output", size)?);
        let query = TensorView::bhsd(&query_buffer, query.dtype(), case.query_shape(), 0)?;
        let key = TensorView::bhsd(&key_buffer, key.dtype(), case.key_shape(), 0)?;
        let value = TensorView::bhsd(&value_buffer, value.dtype(), case.value_shape(), 0)?;
        let output = TensorView::bhsd(&output_buffer, dtype, case.output_shape(), 0)?;
        let buffers = values.lists.upload(clock);
        let (operands, problem) = if case.projection {
            let projection = Projection {
                input: query,
                weight: key,
                bias: None,
                output,
            };
            (projection.operands()?, Problem::projection(&projection)?)
        } else {
            let operands = Operands::new(query, key, value, output);
            let operands = values.lists.operands(&buffers, operands)?;
            (operands, Problem::forward(&operands, &case.options()?)?)
        };
        let mut options = PlanOptions::default();
        options.kernel = kernel;
        let plan = match Plan::new(&problem, self.attention.caps(), &options) {
            Ok(plan) => plan,
            Err(error) if error.is_unsupported() => {
                let name = kernel.map_or("chosen", Kernel::name);
                return Ok((name.to_owned(), Outcome::Unsupported(error.to_string())));
            }
            Err(error) => return Err(error.into()),
        };
        let name = plan.kernel().name().to_owned();
        let own = self.own_files(&plan)?;
        let before = self.attention.pipelines();
        let began = processor_time();
        let started = Instant::now();
        let prepared = self.attention.prepare(&plan);
        let prepared = prepared.map_err(|error| match own.as_str() {
            "" => Stop::from(error),
            files => format!("--shaders: {files}: {error}").into(),
        })?;
        let prepare = started.elapsed();
        let workspace = match plan.workspace_bytes() {
            0 => None,
            bytes => Some(clock.buffer("workspace", bytes)),
        };
        let workspace = workspace.as_ref().map(Workspace::new);
        let timed = self.timed(&output_buffer, size, dtype, began, |pass| {
            prepared.record_in_pass(pass, &operands, workspace)
        })?;
        let times = match timed {
            Ok(times) => times,
            Err(fault) => return Ok((name, Outcome::Wrong(fault))),
        };
        let plan_text = match own.as_str() {
            "" => plan.to_string(),
            files => format!("{plan}\nown shaders: {files}"),
        };
        let figures = Figures {
            plan: plan_text,
            pipelines: self.attention.pipelines() - before,
            workspace: plan.workspace_bytes(),
            ..times.figures(prepare)
        };
        Ok((name, Outcome::Measured(figures)))
    }

    /// The files of one's own that a plan runs, if there are any at all.
    fn own_files(&self, plan: &Plan) -> Result<String, Stop> {
        let Some(texts) = self.texts else {
            return Ok(String::new());
        };
        let stems = emitted(plan).into_iter();
        let (own, other): (Vec<_>, Vec<_>) = stems
            .map(|(shader, key)| key.file_stem(shader) + ".wgsl")
            .partition(|file| texts.contains_key(file.trim_end_matches(".wgsl")));
        match own.is_empty() {
            true => {
                let (name, files) = (plan.kernel().name(), other.join(", "));
                let flags = self.case.flags().join(" ");
                let hint = format!(
                    "`shaders --out DIR {flags} --kernel {name}`, with the same --adapter and \
                     --default-limits, writes what a plan runs"
                );
                Err(format!("--shaders: {name} runs {files}, none of the folder's; {hint}").into())
            }
            false => Ok(own.join(", ")),
        }
    }

    fn plain(&self, values: &Values) -> Result<Outcome, Stop> {
        let (clock, case) = (self.clock, self.case);
        if let Some(reason) = Plain::misfit(case, &clock.device.limits()) {
            return Ok(Outcome::Unsupported(reason));
        }
        let inputs = values.widened()?;
        let began = processor_time();
        let started = Instant::now();
        let plain = Plain::new(clock, case, &inputs)?;
        let prepare = started.elapsed();
        let count: usize = case.output_shape().iter().product();
        let timed = self.timed(&plain.output, count as u64 * 4, DType::F32, began, |pass| {
            plain.record(pass);
            Ok(())
        })?;
        Ok(match timed {
            Err(fault) => Outcome::Wrong(fault),
            Ok(times) => Outcome::Measured(Figures {
                plan: "f32, one invocation a score, a row, an element".to_owned(),
                pipelines: plain.dispatches(),
                workspace: plain.scores,
                ..times.figures(prepare)
            }),
        })
    }

    /// Runs once, compares the result, then runs until the budget is spent; or
    /// what is wrong with the result. `began` is the processor's time before the
    /// pipelines were made.
    pub fn timed(
        &self,
        output: &wgpu::Buffer,
        size: u64,
        dtype: DType,
        began: Option<Duration>,
        record: impl Fn(&mut wgpu::ComputePass<'_>) -> Result<(), Error>,
    ) -> Result<Result<Times, String>, Stop> {
        // What was written to buffers is not part of the first run.
        self.clock.queue.submit([]);
        self.clock.read(output, 4)?;
        let started = Instant::now();
        self.clock.time(&record)?;
        let first = started.elapsed();
        let first_processor = began.zip(processor_time()).map(|(from, to)| to - from);
        let result = self.clock.read(output, size)?;
        let fault = self.check.fault(&result, dtype);
        if let Some(fault) = fault.filter(|_| self.texts.is_none()) {
            return Ok(Err(fault));
        }
        let (started, busy) = (Instant::now(), processor_time());
        let mut runs = Vec::new();
        while runs.len() < self.budget.runs {
            runs.push(self.clock.time(&record)?);
            if started.elapsed().as_secs_f64() >= self.budget.seconds {
                break;
            }
        }
        let processor = busy.zip(processor_time()).map(|(from, to)| to - from);
        if self.clock.read(output, size)? != result {
            return Ok(Err("the last run gave other bits than the first".to_owned()));
        }
        Ok(Ok(Times {
            first,
            first_processor,
            runs,
            processor,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_row_is_found() {
        let case = Case {
            q_len: 5,
            kv_len: 7,
            v_dim: 3,
            ..Case::named("causal").unwrap()
        };
        let values = Values::new(&case).unwrap();
        let check = Check::new(&case, &values).unwrap();
        let inputs = values.inputs().unwrap();
        let options = case.options().unwrap();
        let mut right = wgpu_attention::cpu::forward(&inputs, &options)
            .unwrap()
            .output;
        let fault = |output: &[f32]| check.fault(bytemuck::cast_slice(output), DType::F32);
        assert_eq!(fault(&right), None);
        for wrong in [0.0, f32::NAN] {
            let last = right.len() - 1;
            let kept = std::mem::replace(&mut right[last], wrong);
            assert!(fault(&right).is_some());
            right[last] = kept;
        }
    }
}
