//! `bench`: how fast the kernels are on this adapter.
//!
//! Each case is measured in processes of its own, with the drivers' shader
//! caches off: the first dispatch is cold, and the best of several processes
//! evens out what differs from one to the next (on software adapters a third).

pub mod case;
mod ceilings;
mod clock;
mod figures;
mod inspection;
mod measure;
mod plain;
pub mod rules;
mod shape;
pub mod values;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use serde_json::json;
use wgpu_attention::shaders::all_pipelines;
use wgpu_attention::{AdapterOptions, Attention, Kernel, testing};

use crate::backend::kernel_names;
use crate::report::{Reporter, Stop, tell};
use crate::{input, signals, tune};
use case::{Case, NAMES};
use figures::{Measured, ratios};
use inspection::Looked;
use measure::{Budget, Contender, Texts, measure};
use rules::Rule;
pub use shape::Shape;

/// Measures attention on an adapter: time, GFLOP/s, GB/s, and their share of
/// what the adapter itself reaches in registers and when copying.
///
/// A forward pass counts 4 B H Nq Nk D operations, half of it for a causal
/// square, only the visible pairs for windows; a projection 2 a row, input and
/// output; bytes are those of the tensors, of mask and bias,
/// each once. Every result is compared with float64 before its time is
/// printed. Without a case and a shape it measures prefill-64.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// A named case, or `all` of them (with --inspect and --rule, all but projections);
    /// may be given several times.
    #[arg(long, value_name = "NAME", value_parser = case_names(), conflicts_with = "shape")]
    case: Vec<String>,
    #[command(flatten)]
    shape: Shape,
    /// A rule on pairs or scores; may be given several times. Operations are counted as
    /// without it.
    #[arg(long, conflicts_with_all = ["inspect", "projection"])]
    rule: Vec<Rule>,
    /// Kernel family; may be given several times [default: the planner's choice].
    #[arg(long, value_parser = kernel_names())]
    kernel: Vec<Kernel>,
    /// Adds the staged path and a plain attention in three passes.
    #[arg(long)]
    compare: bool,
    /// Adds looking at all pairs after the forward pass: weights, contributions
    /// W |V| and W |V W_O|, each as a multiple of the forward pass.
    #[arg(long, conflicts_with = "projection")]
    inspect: bool,
    /// Measures kernels of one's own: a WGSL file of DIR runs in the place of the one
    /// of that name which `shaders --out DIR` writes for the same shape, rules and
    /// adapter, if a plan has it.
    /// Results are not compared, so that parts can be taken out to see what they cost.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["compare", "inspect"])]
    shaders: Option<PathBuf>,
    /// One JSON document.
    #[arg(long)]
    json: bool,
    /// Most runs of a kernel in one process after the first; 0 measures the first
    /// dispatch alone, without the adapter's ceilings.
    #[arg(long, value_name = "N", default_value_t = 100)]
    runs: u32,
    /// Seconds after which no further run of a kernel is begun.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Processes; the best of each figure counts.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    processes: u32,
    /// Adapter whose name, driver or backend contains this, in any case
    /// [default: the fastest kind].
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Results of `tune` that decide instead of the table of device classes.
    #[arg(long, value_name = "FILE")]
    tuning: Option<PathBuf>,
    /// Asks the adapter for WebGPU's default limits and no features.
    #[arg(long)]
    default_limits: bool,
    /// Measures in this process and prints what one process found.
    #[arg(long, hide = true)]
    one_process: bool,
    /// Ends when its standard input does, that is with the process that began it.
    #[arg(long, hide = true)]
    end_with_stdin: bool,
}

pub fn case_names() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(NAMES.into_iter().chain(["all"]))
}

pub fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    match seconds.is_finite() && seconds >= 0.0 {
        true => Ok(seconds),
        false => Err("expected a finite number of at least 0".to_owned()),
    }
}

impl BenchArgs {
    fn cases(&self) -> Result<Vec<Case>, Stop> {
        if self.case.is_empty() {
            let mut case = self.shape.case()?;
            let base = Case::named("prefill-64").ok_or("no base case")?;
            if case.flags() == base.flags() {
                case = base;
            }
            return Ok(vec![case]);
        }
        let all = self.case.iter().any(|name| name == "all");
        let names = NAMES.into_iter();
        let pairs_only = self.inspect || !self.rule.is_empty();
        let wanted = names.filter_map(|name| {
            let given = self.case.iter().any(|given| given == name);
            let case = Case::named(name)?;
            (given || all && !(pairs_only && case.projection)).then_some(case)
        });
        Ok(wanted.collect())
    }

    fn contenders(&self) -> Vec<Contender> {
        let mut contenders: Vec<Contender> = match self.kernel.is_empty() {
            true => vec![Contender::Chosen],
            false => self.kernel.iter().copied().map(Contender::Family).collect(),
        };
        let staged = Contender::Family(Kernel::Staged);
        if self.compare {
            if !contenders.contains(&staged) {
                contenders.push(staged);
            }
            contenders.push(Contender::Plain);
        }
        if self.inspect {
            contenders.extend(Looked::ALL.map(Contender::Inspection));
        }
        contenders
    }

    fn attention(&self, texts: Option<&Texts>) -> Result<Attention, Stop> {
        let mut options = AdapterOptions::default().default_limits(self.default_limits);
        options.name = self.adapter.clone();
        let mut attention = Attention::with_adapter(&options)?;
        if let Some(texts) = texts {
            attention = testing::with_texts(&attention, texts.clone())?;
        }
        Ok(match &self.tuning {
            Some(path) => tune::with_file(&attention, path),
            None => attention,
        })
    }

    fn budget(&self) -> Budget {
        Budget {
            runs: self.runs as usize,
            seconds: self.seconds,
        }
    }

    /// One process's measurement of a case.
    fn child(&self, case: &Case, warned: &mut HashSet<String>) -> Result<Measured, Stop> {
        let program = std::env::current_exe().map_err(|e| format!("this program: {e}"))?;
        let mut child = Command::new(program);
        child.args(["bench", "--one-process", "--end-with-stdin"]);
        child.args(case.flags());
        child.args(["--runs", &self.runs.to_string()]);
        child.args(["--seconds", &self.seconds.to_string()]);
        for kernel in &self.kernel {
            child.args(["--kernel", kernel.name()]);
        }
        if self.compare {
            child.arg("--compare");
        }
        if self.inspect {
            child.arg("--inspect");
        }
        if let Some(adapter) = &self.adapter {
            child.args(["--adapter", adapter]);
        }
        if let Some(tuning) = &self.tuning {
            child.arg("--tuning").arg(tuning);
        }
        if self.default_limits {
            child.arg("--default-limits");
        }
        if let Some(dir) = &self.shaders {
            child.arg("--shaders").arg(dir);
        }
        // So that a first dispatch compiles: Mesa's cache, and NVIDIA's.
        child.env("MESA_SHADER_CACHE_DISABLE", "1");
        child.env("__GL_SHADER_DISK_CACHE", "0");
        child.stdin(Stdio::piped());
        child.stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |e| format!("this program again: {e}");
        let mut child = child.spawn().map_err(failed)?;
        // Open until this process ends, and the child ends with it.
        let held = child.stdin.take();
        let output = child.wait_with_output().map_err(failed)?;
        drop(held);
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            let errors = errors.trim().trim_start_matches("error: ");
            return Err(format!("{}: {errors}", case.name).into());
        }
        // Warnings, once.
        let text = String::from_utf8_lossy(&output.stderr);
        for line in text.lines().filter(|line| line.starts_with("warning: ")) {
            if !warned.contains(line) {
                tell(line);
                warned.insert(line.to_owned());
            }
        }
        let mut measured: Measured = serde_json::from_slice(&output.stdout)
            .map_err(|e| format!("{}: a process wrote no figures: {e}", case.name))?;
        measured.case.name.clone_from(&case.name);
        Ok(measured)
    }
}

pub fn bench(args: &BenchArgs) -> Result<ExitCode, Stop> {
    let mut cases = args.cases()?;
    Rule::operands(&args.rule)?;
    for case in &mut cases {
        // Each once.
        for rule in &args.rule {
            if !case.rules.contains(rule) {
                case.rules.push(*rule);
            }
        }
        case.check_size()?;
    }
    if let Some(case) = cases.iter().find(|case| case.projection) {
        let name = &case.name;
        if args.inspect {
            return Err(format!("--inspect: {name} is a projection and has no weights").into());
        }
        if !args.rule.is_empty() {
            return Err(format!("--rule: {name} is a projection and has no pairs").into());
        }
    }
    let texts = args.shaders.as_deref().map(texts).transpose()?;
    if args.end_with_stdin {
        signals::end_with_stdin().map_err(|e| format!("a thread: {e}"))?;
    }
    if args.one_process {
        let reporter = Reporter::spinning();
        let attention = args.attention(texts.as_ref())?;
        for case in &cases {
            let contenders = args.contenders();
            let measured = measure(
                &attention,
                case,
                &contenders,
                args.budget(),
                texts.as_ref(),
                &reporter,
            )?;
            let text = serde_json::to_string(&measured).map_err(|e| e.to_string())?;
            reporter.line(text)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let reporter = Reporter::counting(cases.len() * args.processes as usize);
    let mut all: Vec<Measured> = Vec::new();
    let mut warned = HashSet::new();
    for case in &cases {
        let mut best: Option<Measured> = None;
        for process in 1..=args.processes {
            reporter.doing(format!("{}, process {process}", case.name));
            let measured = args.child(case, &mut warned)?;
            match &mut best {
                None => best = Some(measured),
                Some(best) => best.merge(&measured),
            }
            reporter.step();
        }
        let Some(best) = best else { continue };
        if !args.json {
            if all.is_empty() {
                for line in head(&best, args) {
                    reporter.line(line)?;
                }
            }
            for line in best.lines() {
                reporter.line(line)?;
            }
        }
        all.push(best);
    }
    let ratios = ratios(&all);
    match args.json {
        true => reporter.line(format!("{:#}", document(&all, &ratios, args)))?,
        false => {
            if !ratios.is_empty() {
                reporter.line("")?;
            }
            for (what, ratio) in &ratios {
                reporter.line(format!("{what}: {ratio:.2}"))?;
            }
        }
    }
    Ok(ExitCode::from(u8::from(all.iter().any(Measured::is_wrong))))
}

/// The WGSL files of a directory by their stems, each named like one of the
/// library's.
fn texts(dir: &Path) -> Result<Texts, Stop> {
    let failed = |e: std::io::Error| format!("--shaders {}: {e}", dir.display());
    let all = all_pipelines().into_iter();
    let known: HashSet<String> = all.map(|(shader, key)| key.file_stem(shader)).collect();
    let mut texts = HashMap::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|extension| extension != "wgsl") {
            continue;
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        if !known.contains(stem.as_ref()) {
            let reason = "`shaders --out` writes no file of that name";
            return Err(format!("--shaders: {}: {reason}", path.display()).into());
        }
        let text = input::text(&path);
        let text = text.map_err(|e| format!("--shaders: {}: {e}", path.display()))?;
        texts.insert(stem.into_owned(), text);
    }
    match texts.is_empty() {
        true => Err(format!("--shaders {}: no WGSL file", dir.display()).into()),
        false => Ok(texts),
    }
}

fn head(measured: &Measured, args: &BenchArgs) -> Vec<String> {
    let mut lines = vec![
        format!("adapter    {}", measured.adapter),
        format!("processor  {}", measured.processor),
        format!(
            "clock      {}; best of {} process{}, shader caches off",
            measured.clock,
            args.processes,
            if args.processes == 1 { "" } else { "es" }
        ),
    ];
    if let Some(dir) = &args.shaders {
        let dir = dir.display();
        lines.push(format!("shaders    of {dir}, their results not compared"));
    }
    if measured.software {
        lines.push(
            "           (a driver that runs on the CPU: says nothing about a GPU)".to_owned(),
        );
    }
    lines
}

fn document(all: &[Measured], ratios: &[(String, f64)], args: &BenchArgs) -> serde_json::Value {
    let first = all.first();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "adapter": first.map(|measured| &measured.adapter),
        "software_adapter": first.map(|measured| measured.software),
        "processor": first.map(|measured| &measured.processor),
        "clock": first.map(|measured| &measured.clock),
        "processes": args.processes,
        "shaders": args.shaders,
        "cases": all.iter().map(Measured::json).collect::<Vec<_>>(),
        "ratios": ratios.iter().map(|(what, ratio)| json!({"of": what, "ratio": ratio})).collect::<Vec<_>>(),
    })
}
