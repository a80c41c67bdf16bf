//! Where an attention call runs: the GPU, the CPU path or the float64 oracle.

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use half::{bf16, f16};
use wgpu_attention::reference;
use wgpu_attention::{
    AdapterOptions, Attention, DType, Error, Inputs, Kernel, MultiHeadInputs, Options, Outputs,
    Plan, PlanOptions, Region, Stage, Tensor, Uploaded, cpu,
};

use crate::{memory, multi_head, tune};

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
    /// What runs the calls.
    #[arg(long, value_enum, default_value_t = BackendKind::Gpu)]
    pub backend: BackendKind,
    /// Adapter whose name, driver or backend contains this, in any case
    /// [default: the fastest kind].
    #[arg(long, value_name = "NAME")]
    pub adapter: Option<String>,
    /// Kernel family [default: the planner's choice].
    #[arg(long, value_parser = kernel_names())]
    kernel: Option<Kernel>,
    /// Results of `tune` that decide instead of the table of device classes.
    #[arg(long, value_name = "FILE")]
    pub tuning: Option<PathBuf>,
    /// Asks the adapter for WebGPU's default limits and no features.
    #[arg(long)]
    default_limits: bool,
    /// Has wgpu check what a browser would check.
    #[arg(long)]
    strict_webgpu: bool,
}

/// Parses the name of a kernel family.
pub fn kernel_names() -> impl TypedValueParser<Value = Kernel> {
    let names = Kernel::ALL.iter().map(|kernel| kernel.name());
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Kernel>())
}

impl BackendArgs {
    /// Opens what the flags ask for.
    ///
    /// # Errors
    /// A flag that only the GPU heeds beside another backend; no such adapter.
    pub fn open(&self) -> Result<Backend, Error> {
        match self.backend {
            BackendKind::Cpu => self.without_adapter("--backend cpu", Backend::Cpu),
            BackendKind::Oracle => self.without_adapter("--backend oracle", Backend::Oracle),
            BackendKind::Gpu => {
                let mut options = AdapterOptions::default()
                    .strict_webgpu(self.strict_webgpu)
                    .default_limits(self.default_limits);
                options.name = self.adapter.clone();
                let mut plan = PlanOptions::default();
                plan.kernel = self.kernel;
                let mut attention = Attention::with_adapter(&options)?;
                if let Some(path) = &self.tuning {
                    attention = tune::with_file(&attention, path);
                }
                Ok(Backend::Gpu(attention, plan))
            }
        }
    }
}

impl BackendArgs {
    fn without_adapter(&self, actual: &str, backend: Backend) -> Result<Backend, Error> {
        let flags = [
            ("--adapter", self.adapter.is_some()),
            ("--kernel", self.kernel.is_some()),
            ("--tuning", self.tuning.is_some()),
            ("--default-limits", self.default_limits),
            ("--strict-webgpu", self.strict_webgpu),
        ];
        match flags.into_iter().find(|(_, given)| *given) {
            None => Ok(backend),
            Some((operand, _)) => Err(Error::Value {
                operand,
                expected: "--backend gpu".to_owned(),
                actual: actual.to_owned(),
            }),
        }
    }
}

/// An implementation that is ready to run.
pub enum Backend {
    Gpu(Attention, PlanOptions),
    Cpu,
    Oracle,
}

impl Backend {
    /// A short description for people.
    pub fn describe(&self) -> String {
        match self {
            Backend::Gpu(attention, _) => attention.adapter_line(),
            Backend::Cpu => "plain f32 path on the CPU, one thread, no adapter".to_owned(),
            Backend::Oracle => "float64 oracle on the CPU, no adapter".to_owned(),
        }
    }

    /// Whether kernels run on a driver that is itself a CPU program.
    pub fn is_software(&self) -> bool {
        matches!(self, Backend::Gpu(attention, _)
            if attention.adapter_info().device_type == wgpu_attention::wgpu::DeviceType::Cpu)
    }

    /// Output (rounded to `output`, widened again) and log-sum-exp.
    pub fn forward(
        &self,
        inputs: &Inputs<'_>,
        options: &Options,
        output: DType,
    ) -> Result<Outputs, Error> {
        Ok(self.forward_and_kernel(inputs, options, output)?.0)
    }

    /// The same, and the kernel with the reason for it, where one ran.
    pub fn forward_and_kernel(
        &self,
        inputs: &Inputs<'_>,
        options: &Options,
        output: DType,
    ) -> Result<(Outputs, Option<String>), Error> {
        let mut outputs = match self {
            Backend::Gpu(attention, plan) => {
                let uploaded = attention.upload(inputs, options, output, plan)?;
                let kernel = kernel_of(uploaded.plan(), beside_tuning(attention, plan));
                uploaded.submit()?;
                return Ok((uploaded.read()?, Some(kernel)));
            }
            Backend::Cpu => cpu::forward(inputs, options)?,
            Backend::Oracle => {
                let expected = reference::forward(inputs, options, output)?;
                Outputs {
                    output: narrow("output", &expected.output)?,
                    lse: narrow("lse", &expected.lse)?,
                }
            }
        };
        round_to(output, &mut outputs.output);
        Ok((outputs, None))
    }

    /// Y of a multi-head layer, (B, Nq, width), rounded to `output` and widened
    /// again. The CPU path is attention alone: projections are f64 there.
    pub fn multi_head(
        &self,
        inputs: &MultiHeadInputs<'_>,
        options: &Options,
        output: DType,
    ) -> Result<Vec<f32>, Error> {
        Ok(self.multi_head_runs(inputs, options, output, 1)?.0)
    }

    /// The same, and how long it took: on a device the first time with uploads and
    /// compilation, then up to `runs` in all, each with reading Y.
    pub fn multi_head_runs(
        &self,
        inputs: &MultiHeadInputs<'_>,
        options: &Options,
        output: DType,
        runs: usize,
    ) -> Result<(Vec<f32>, Vec<Duration>), Error> {
        let mut started = Instant::now();
        let mut y = match self {
            Backend::Gpu(attention, plan) => {
                let uploaded = attention.upload_multi_head(inputs, options, output, plan)?;
                let mut times = Vec::with_capacity(runs);
                loop {
                    uploaded.submit()?;
                    let y = uploaded.read()?;
                    times.push(started.elapsed());
                    if times.len() >= runs {
                        return Ok((y, times));
                    }
                    started = Instant::now();
                }
            }
            Backend::Cpu => multi_head::on_cpu(inputs, options, output)?,
            Backend::Oracle => narrow(
                "output",
                &reference::multi_head(inputs, options, output)?.values,
            )?,
        };
        round_to(output, &mut y);
        Ok((y, vec![started.elapsed()]))
    }

    /// Gets a call ready to be run several times.
    pub fn prepare<'a>(
        &'a self,
        inputs: &'a Inputs<'a>,
        options: &'a Options,
    ) -> Result<Prepared<'a>, Error> {
        if let Backend::Gpu(attention, plan) = self {
            let uploaded = attention.upload(inputs, options, DType::F32, plan)?;
            return Ok(Prepared {
                plan: for_users(&uploaded.plan().to_string()),
                clock: match uploaded.has_timestamps() {
                    true => "GPU timestamps",
                    false => "submit to done",
                },
                work: Work::Device(Box::new(uploaded)),
            });
        }
        Ok(Prepared {
            plan: "none, no kernel".to_owned(),
            clock: "one thread",
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
            Backend::Gpu(attention, _) => {
                let region = Region {
                    batches,
                    heads,
                    rows,
                };
                attention.stage(inputs, options, stage, &region)
            }
            Backend::Cpu => Err(Error::Unsupported {
                reasons: vec![Error::Value {
                    operand: "stage",
                    expected: "the gpu or oracle backend".to_owned(),
                    actual: "cpu, which computes no stages".to_owned(),
                }],
            }),
            Backend::Oracle => {
                let values = reference::stage(inputs, options, stage, batches, heads, rows)?;
                narrow("stage", &values.values)
            }
        }
    }
}

/// Which kernel would run for some usual problems, and why.
pub fn kernels(backend: &Backend) -> Vec<(String, String)> {
    let Backend::Gpu(attention, plan) = backend else {
        return vec![("everything".to_owned(), backend.describe())];
    };
    let mut lines = Vec::new();
    for dim in [64, 128, 256] {
        let (f32s, f16s) = (vec![0f32; dim], vec![f16::ZERO; dim]);
        for (name, tensor) in [
            ("f32", Tensor::f32(&f32s, [1, 1, 1, dim])),
            ("f16", Tensor::f16(&f16s, [1, 1, 1, dim])),
        ] {
            let kernel = tensor.and_then(|t| {
                let inputs = Inputs::new(t, t, t);
                let uploaded = attention.upload(&inputs, &Options::default(), DType::F32, plan)?;
                let plan = uploaded.plan();
                Ok(format!("{:?} ({})", plan.kernel(), for_users(plan.why())))
            });
            let kernel = kernel.unwrap_or_else(|error| error.to_string());
            lines.push((format!("forward, {name}, head_dim {dim}"), kernel));
        }
    }
    lines
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
    Device(Box<Uploaded>),
    Host(&'a Backend, &'a Inputs<'a>, &'a Options, Option<Outputs>),
}

impl Prepared<'_> {
    /// Runs once, to the end, and says how long it took.
    pub fn run(&mut self) -> Result<Duration, Error> {
        match &mut self.work {
            Work::Device(uploaded) => uploaded.run(),
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
            Work::Device(uploaded) => uploaded.read(),
            Work::Host(_, _, _, Some(outputs)) => Ok(outputs),
            Work::Host(backend, inputs, options, None) => {
                backend.forward(inputs, options, DType::F32)
            }
        }
    }
}

/// A plan's kernel and the reason for it; `beside` is [`beside_tuning`].
pub fn kernel_of(plan: &Plan, beside: &str) -> String {
    let beside = match plan.why().contains("measured on this device for") {
        true => "",
        false => beside,
    };
    let why = for_users(plan.why());
    format!("{} ({why}{beside})", plan.kernel())
}

/// What is said of a kernel that no result of --tuning chose, where there are some.
pub fn beside_tuning(attention: &Attention, options: &PlanOptions) -> &'static str {
    match (attention.caps().tuned.is_empty(), options.kernel) {
        (true, _) => "",
        (false, Some(_)) => "; --kernel decides, not --tuning",
        (false, None) => "; --tuning has no result for problems of this class",
    }
}

/// What a plan says, where it tells the author of a program what to request of a device:
/// the same for who has the flags of this one. Every device here has all that its adapter
/// has, but those of --default-limits.
pub fn for_users(text: &str) -> String {
    const REQUEST: &str = ": for it request the device with ";
    const IF_THERE: &str = ", if the adapter has that (see Attention::features)";
    let parts = text.split_once(REQUEST).and_then(|(before, rest)| {
        let (wishes, after) = rest.split_once(IF_THERE)?;
        Some(format!(
            "{before}: without --default-limits it runs, if the adapter has {wishes}{after}"
        ))
    });
    let text = parts.unwrap_or_else(|| text.to_owned());
    text.replace("requested with wgpu::", "with wgpu::")
        .replace("wgpu::Features::", "the feature ")
}

/// Rounded to f32; `what` they are is for the message.
pub fn narrow(what: &str, values: &[f64]) -> Result<Vec<f32>, Error> {
    let rounded = values.iter().map(|&x| x as f32);
    memory::collected(what, values.len(), rounded)
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
