//! `tune`: measures the kernels that suit this adapter, and keeps what it found.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use wgpu_attention::{
    AdapterOptions, Attention, Outcome, TuneOptions, TuneReport, TuneStep, Tuning,
};

use crate::bench::case::Case;
use crate::bench::values::Values;
use crate::bench::{Shape, seconds};
use crate::report::{Reporter, Stop, tell};
use crate::{input, output};

/// Measures the kernels that suit the adapter, checks each against float64, and
/// chooses the fastest for each kind of problem.
///
/// Without a shape it measures the usual ones of `bench`: prefill-64,
/// prefill-128, f16-kv, causal.
///
/// A result counts for all problems of a class: head_dim up to the next power of 2,
/// heads (of all batch entries), queries and keys up to the next power of 4. 128 queries
/// are measured as they are, and the result counts for 65 to 256.
#[derive(Debug, Args)]
pub struct TuneArgs {
    #[command(flatten)]
    shape: Shape,
    /// Keeps the results here, beside those of other problems and adapters;
    /// other commands read them with `--tuning`.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Seconds for a problem after which nothing more is begun, compilation included.
    #[arg(long, value_name = "N", default_value_t = 20.0, value_parser = seconds)]
    seconds: f64,
    /// Adapter whose name, driver or backend contains this, in any case
    /// [default: the fastest kind].
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Asks the adapter for WebGPU's default limits and no features.
    #[arg(long)]
    default_limits: bool,
    /// One JSON document.
    #[arg(long)]
    json: bool,
}

/// What is tuned where no shape is given.
const USUAL: [&str; 4] = ["prefill-64", "prefill-128", "f16-kv", "causal"];

pub fn tune(args: &TuneArgs) -> Result<ExitCode, Stop> {
    let mut tuning = match &args.out {
        None => Tuning::default(),
        Some(path) if path.exists() && input::open(path).is_err() => {
            return Err(format!("{}: exists and is not a regular file", path.display()).into());
        }
        // What is no tuning file may be dear to somebody.
        Some(path) => match Tuning::load(path) {
            (tuning, None) => tuning,
            (_, Some(error)) => {
                let path = path.display();
                return Err(format!("{error}\n{path} is kept as it is: remove it first").into());
            }
        },
    };
    let target = (args.out.as_deref())
        .map(|path| output::target(std::iter::empty(), path))
        .transpose()?;
    let cases = match args.shape.is_given() {
        true => vec![args.shape.case()?],
        false => USUAL.into_iter().filter_map(Case::named).collect(),
    };
    let reporter = Reporter::spinning();
    let mut options = AdapterOptions::default().default_limits(args.default_limits);
    options.name = args.adapter.clone();
    let attention = Attention::with_adapter(&options)?;
    let class = attention.caps().class;
    if !args.json {
        reporter.line(format!(
            "adapter {}\nclass   {class}",
            attention.adapter_line()
        ))?;
    }
    let mut reports = Vec::new();
    for case in &cases {
        let values = Values::new(case)?;
        let progress = |step: &TuneStep| {
            let what = match step.round {
                0 => "compiling and checking".to_owned(),
                n => format!("run {n}"),
            };
            reporter.doing(format!("{}: {}, {what}", case.name, step.kernel));
        };
        let budget = Duration::try_from_secs_f64(args.seconds).unwrap_or(Duration::MAX);
        let options = TuneOptions::default().budget(budget).progress(&progress);
        let report = attention.tune_on(
            &values.inputs()?,
            &case.options()?,
            case.dtype.dtype(),
            &options,
        )?;
        tuning.record(&report);
        if let (Some(path), Some(target)) = (&args.out, &target) {
            let named = |error: String| format!("{}: {error}", path.display());
            let text = serde_json::to_string_pretty(&tuning).map_err(|e| named(e.to_string()))?;
            output::write(target, format!("{text}\n").as_bytes()).map_err(named)?;
        }
        if !args.json {
            reporter.line(format!("\n{}: {}", case.name, case.describe()))?;
            reporter.line(format!("counts for {report}"))?;
        }
        reports.push((case, report));
    }
    if args.json {
        let document = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "adapter": attention.adapter_line(),
            "class": class.name(),
            "results": reports.iter().map(|(case, report)| result(case, report)).collect::<Vec<_>>(),
        });
        reporter.line(format!("{document:#}"))?;
    } else if let Some(path) = &args.out {
        let plural = if tuning.len() == 1 { "" } else { "s" };
        let (count, path) = (tuning.len(), path.display());
        reporter.line(format!(
            "\n{path}: {count} result{plural}; use with --tuning {path}"
        ))?;
    }
    let mut trials = reports.iter().flat_map(|(_, report)| &report.trials);
    let is_wrong = trials.any(|trial| matches!(trial.outcome, Outcome::Wrong(_)));
    Ok(ExitCode::from(u8::from(is_wrong)))
}

/// The attention with the choices of a file. What is not believed is said on
/// stderr, and nothing comes of it.
pub fn with_file(attention: &Attention, path: &Path) -> Attention {
    let warn = |what: &dyn Display| {
        tell(format!(
            "warning: {}: {what}; it is not used",
            path.display()
        ))
    };
    if !path.exists() {
        warn(&"no such file");
    } else if let Err(error) = input::open(path) {
        warn(&error);
        return attention.clone();
    }
    let (tuning, unreadable) = Tuning::load(path);
    let (attention, foreign) = attention.with_tuning(&tuning);
    for warning in [unreadable, foreign].into_iter().flatten() {
        warn(&warning);
    }
    attention
}

fn result(case: &Case, report: &TuneReport) -> Value {
    let trials = report.trials.iter().map(|trial| {
        json!({
            "kernel": trial.kernel.name(),
            "outcome": match &trial.outcome {
                Outcome::Right => "right".to_owned(),
                Outcome::Wrong(what) => format!("wrong: {what}"),
                Outcome::Failed(error) => format!("failed: {error}"),
                Outcome::OutOfTime => "out of time".to_owned(),
            },
            "compile_seconds": trial.compile.as_secs_f64(),
            "best_seconds": trial.best().map(|time| time.as_secs_f64()),
            "runs": trial.times.len(),
        })
    });
    json!({
        "case": case.name,
        "shape": case.describe(),
        "class": report.problem.to_string(),
        "trials": trials.collect::<Vec<_>>(),
        "chosen": report.chosen.map(|kernel| kernel.name()),
        "elapsed_seconds": report.elapsed.as_secs_f64(),
    })
}
