//! Where an attention call runs: the GPU, the CPU path or the float64 oracle.

use std::ops::Range;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use half::{bf16, f16};
use wgpu_attention::reference;
use wgpu_attention::{DType, Error, Inputs, Options, Outputs, Stage, cpu};

/// Which implementation runs the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendKind {
    /// The kernels, on an adapter.
    Gpu,
    /// The plain f32 path, one thread, no adapter needed.
    Cpu,
    /// The float64 oracle.
    Oracle,
}

/// Where to run, as flags.
#[derive(Debug, Args)]
pub struct BackendArgs {
    /// Adapter whose name contains this, in any case.
    #[arg(long, value_name = "NAME")]
    pub adapter: Option<String>,
    /// What runs the calls.
    #[arg(long, value_enum, default_value_t = BackendKind::Gpu)]
    pub backend: BackendKind,
}

impl BackendArgs {
    /// Opens what the flags ask for.
    pub fn open(&self) -> Result<Backend, Error> {
        Backend::open(self.backend)
    }
}

/// An implementation that is ready to run.
pub enum Backend {
    Cpu,
    Oracle,
}

impl Backend {
    /// Opens the backend.
    pub fn open(kind: BackendKind) -> Result<Backend, Error> {
        match kind {
            BackendKind::Gpu => Err(Error::NoAdapter {
                detail: "not built".to_owned(),
            }),
            BackendKind::Cpu => Ok(Backend::Cpu),
            BackendKind::Oracle => Ok(Backend::Oracle),
        }
    }

    /// A short description for people.
    pub fn describe(&self) -> String {
        match self {
            Backend::Cpu => "CPU path, f32, no adapter".to_owned(),
            Backend::Oracle => "float64 oracle on the CPU, no adapter".to_owned(),
        }
    }

    /// Output (rounded to `output`, widened again) and log-sum-exp.
    pub fn forward(
        &self,
        inputs: &Inputs<'_>,
        options: &Options,
        output: DType,
    ) -> Result<Outputs, Error> {
        let mut outputs = match self {
            Backend::Cpu => cpu::forward(inputs, options)?,
            Backend::Oracle => {
                let expected = reference::forward(inputs, options, output)?;
                Outputs {
                    output: narrow(&expected.output),
                    lse: narrow(&expected.lse),
                }
            }
        };
        round_to(output, &mut outputs.output);
        Ok(outputs)
    }

    /// Gets a call ready to be run several times.
    pub fn prepare<'a>(
        &'a self,
        inputs: &'a Inputs<'a>,
        options: &'a Options,
    ) -> Result<Prepared<'a>, Error> {
        Ok(Prepared {
            plan: format!("{}: no plan, no grid", self.describe()),
            clock: "wall clock",
            work: Work::Host(self, inputs, options, None),
        })
    }

    /// A stage of the scores for some batch entries, query heads and rows, in
    /// the order (batch, head, row, key).
    pub fn stage(
        &self,
        inputs: &Inputs<'_>,
        options: &Options,
        stage: Stage,
        [batches, heads, rows]: [Range<usize>; 3],
    ) -> Result<Vec<f32>, Error> {
        match self {
            Backend::Cpu => Err(unsupported("stages of the scores: the CPU path has none")),
            Backend::Oracle => {
                let values = reference::stage(inputs, options, stage, batches, heads, rows)?;
                Ok(narrow(&values.values))
            }
        }
    }
}

/// Which kernel would run for some usual problems.
pub fn kernels(backend: &Backend) -> Vec<(&'static str, String)> {
    match backend {
        Backend::Cpu | Backend::Oracle => vec![("everything", backend.describe())],
    }
}

/// A call that is ready to run.
pub struct Prepared<'a> {
    /// Kernel, the reason for it, grid and workspace.
    pub plan: String,
    /// What measures the time of a run.
    pub clock: &'static str,
    work: Work<'a>,
}

enum Work<'a> {
    Host(&'a Backend, &'a Inputs<'a>, &'a Options, Option<Outputs>),
}

impl Prepared<'_> {
    /// Runs once, to the end, and says how long it took.
    pub fn run(&mut self) -> Result<Duration, Error> {
        match &mut self.work {
            Work::Host(backend, inputs, options, outputs) => {
                let started = Instant::now();
                *outputs = Some(backend.forward(inputs, options, DType::F32)?);
                Ok(started.elapsed())
            }
        }
    }

    /// The results of the last run.
    pub fn read(self) -> Result<Outputs, Error> {
        match self.work {
            Work::Host(_, _, _, Some(outputs)) => Ok(outputs),
            Work::Host(backend, inputs, options, None) => {
                backend.forward(inputs, options, DType::F32)
            }
        }
    }
}

fn unsupported(what: &str) -> Error {
    Error::Unsupported {
        reasons: vec![Error::Value {
            operand: "backend",
            expected: "gpu or oracle".to_owned(),
            actual: what.to_owned(),
        }],
    }
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

/// Rounds to nearest even in the storage type.
fn round_to(dtype: DType, values: &mut [f32]) {
    for x in values {
        *x = match dtype {
            DType::F32 => *x,
            DType::F16 => f16::from_f32(*x).to_f32(),
            DType::BF16 => bf16::from_f32(*x).to_f32(),
        };
    }
}
