//! `check`: case files against what they expect.

use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use wgpu_attention::reference::Comparison;
use wgpu_attention::{DType, Dims, Error, Outputs};

use crate::array::swap_middle;
use crate::backend::{Backend, BackendArgs};
use crate::case::File;
use crate::judge::{Verdict, judge, judge_exact};
use crate::multi_head::Layer;
use crate::report::{Reporter, Stop, number, one_line, shown};
use crate::suites::{self, Call, Unsupported, Want, What};
use crate::{input, memory};

/// Runs case files and compares every expected output with the case's tolerance.
///
/// A file given by name that cannot be read or is no case is a usage error (exit 2), found
/// before anything runs. Files found in folders are meant as cases: those are failures.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Case files, or folders that are searched for *.safetensors.
    #[arg(required = true, value_name = "FILE OR FOLDER")]
    paths: Vec<PathBuf>,
    /// Holds results to what f32 arithmetic gives (the cases' `atol`), not to
    /// the accuracy that WGSL permits (`atol_wgsl`).
    #[arg(long)]
    strict: bool,
    /// One JSON object a case, then one with the totals.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    backend: BackendArgs,
}

/// How a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Pass,
    Fail,
    Unsupported,
}

/// A result beside what the case expects of it.
#[derive(Debug)]
struct Output {
    name: String,
    verdict: Verdict,
    /// A hash of the result's bits, by which the results of two builds are compared.
    bits: Option<u64>,
}

/// What came of one case.
#[derive(Debug, Default)]
struct Report {
    outputs: Vec<Output>,
    unsupported: Vec<Unsupported>,
    errors: Vec<String>,
    note: Option<&'static str>,
}

pub fn check(args: &CheckArgs) -> Result<ExitCode, Stop> {
    let files = collect(&args.paths)?;
    no_strangers(&args.paths)?;
    let backend = args.backend.open()?;
    let reporter = Reporter::counting(files.len());
    if !args.json {
        let tolerance = if args.strict { "atol" } else { "atol_wgsl" };
        reporter.line(format!(
            "{}; tolerance {tolerance}; percentages are the worst error's share of it",
            backend.describe()
        ))?;
    }
    let mut counts = [0usize; 3];
    let mut left_out = 0;
    for path in &files {
        let name = shown(&path.display().to_string());
        reporter.doing(&name);
        let report = examine(&backend, path, args.strict);
        counts[report.outcome() as usize] += 1;
        left_out += report
            .unsupported
            .iter()
            .map(|u| u.names.len())
            .sum::<usize>();
        reporter.line(match args.json {
            true => report.json(&name).to_string(),
            false => report.text(&name),
        })?;
        reporter.step();
    }
    let [passed, failed, unsupported] = counts;
    reporter.line(match args.json {
        true => json!({
            "backend": backend.describe(),
            "strict": args.strict,
            "passed": passed,
            "failed": failed,
            "unsupported": unsupported,
            "unsupported_outputs": left_out,
        })
        .to_string(),
        false => {
            let outputs = match left_out {
                0 => String::new(),
                n => format!("; {n} outputs unsupported"),
            };
            format!("{passed} passed, {failed} failed, {unsupported} unsupported{outputs}")
        }
    })?;
    Ok(ExitCode::from(u8::from(failed > 0)))
}

/// The files themselves and every *.safetensors below the folders, sorted.
fn collect(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Stop> {
    let mut files = Vec::new();
    for path in paths {
        let unreadable = |e| format!("{}: {e}", path.display());
        if path.metadata().map_err(unreadable)?.is_dir() {
            let before = files.len();
            walk(path, &mut files).map_err(unreadable)?;
            if files.len() == before {
                return Err(format!("{}: no *.safetensors in it", path.display()).into());
            }
            files[before..].sort();
        } else {
            input::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
            files.push(path.clone());
        }
    }
    Ok(files)
}

/// Refuses files given by name that are no cases, all at once.
fn no_strangers(paths: &[PathBuf]) -> Result<(), Stop> {
    let why = |path: &PathBuf| match File::read(path) {
        Ok(file) if suites::is_case(&file) => None,
        Ok(file) => suites::job(&file, false).err(),
        Err(error) => Some(error),
    };
    let files = paths.iter().filter(|path| !path.is_dir());
    let told = |(path, why): (&PathBuf, String)| {
        format!("{}: {}", shown(&path.display().to_string()), one_line(why))
    };
    let strangers = files.filter_map(|path| Some(told((path, why(path)?))));
    let strangers: Vec<String> = strangers.collect();
    match strangers.is_empty() {
        true => Ok(()),
        false => Err(strangers.join("\n").into()),
    }
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in folder.read_dir()? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            walk(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "safetensors") {
            files.push(path);
        }
    }
    Ok(())
}

fn examine(backend: &Backend, path: &Path, strict: bool) -> Report {
    let mut report = Report::default();
    let job = match File::read(path).and_then(|file| suites::job(&file, strict)) {
        Ok(job) => job,
        Err(error) => {
            report.errors.push(error);
            return report;
        }
    };
    report.unsupported = job.unsupported;
    for call in &job.calls {
        if let Err(error) = report.call(backend, call) {
            report.errors.push(error);
        }
    }
    if let Some((layer, want)) = &job.layer {
        if let Err(error) = report.layer(backend, layer, want) {
            report.errors.push(error);
        }
    }
    for copy in &job.copies {
        match judge_exact(&copy.got, &copy.expected) {
            Ok(verdict) => report.outputs.push(Output {
                name: copy.name.to_owned(),
                verdict,
                bits: None,
            }),
            Err(error) => report.errors.push(format!("{}: {error}", copy.name)),
        }
    }
    report
}

impl Report {
    fn call(&mut self, backend: &Backend, call: &Call) -> Result<(), String> {
        let problem = &call.problem;
        let inputs = problem.inputs()?;
        let dims = inputs.validate(&problem.options).map_err(one_line)?;
        for want in &call.wants {
            has_shape(want, &shape_of(&want.what, &dims))?;
        }
        let (stages, results): (Vec<_>, Vec<_>) =
            (call.wants.iter()).partition(|want| matches!(want.what, What::Stage(..)));
        if !results.is_empty() {
            match backend.forward(&inputs, &problem.options, call.output) {
                Ok(outputs) => {
                    for want in &results {
                        let got = arrange(&want.what, &outputs, &dims).map_err(one_line)?;
                        self.compare(want, &got, dims.v_dim)?;
                    }
                }
                Err(error) => self.refused(&results, error)?,
            }
        }
        for want in stages {
            let What::Stage(stage, rows) = &want.what else {
                continue;
            };
            let rows = rows.clone().unwrap_or(0..dims.q_len);
            let ranges = [0..dims.batch, 0..dims.q_heads, rows];
            match backend.stage(&inputs, &problem.options, *stage, ranges) {
                Ok(got) => self.compare(want, &got, dims.kv_len)?,
                Err(error) => self.refused(&[want], error)?,
            }
        }
        Ok(())
    }

    fn layer(&mut self, backend: &Backend, layer: &Layer, want: &Want) -> Result<(), String> {
        let inputs = layer.inputs()?;
        let dims = inputs.dims().map_err(one_line)?;
        let width = dims.output_width;
        has_shape(want, &[dims.attention.batch, dims.attention.q_len, width])?;
        if matches!(backend, Backend::Cpu) {
            self.note = Some("projections on the host in f64");
        }
        match backend.multi_head(&inputs, &layer.options, DType::F32) {
            Ok(got) => self.compare(want, &got, width),
            Err(error) => self.refused(&[want], error),
        }
    }

    fn compare(&mut self, want: &Want, got: &[f32], row: usize) -> Result<(), String> {
        let verdict = judge(got, &want.expected, &want.what, want.tolerance, row);
        let verdict = verdict.map_err(|e| format!("{}: {e}", want.name))?;
        self.outputs.push(Output {
            name: want.name.clone(),
            verdict,
            bits: Some(hash(got)),
        });
        Ok(())
    }

    /// An error of the backend: a device that cannot do it is no failure.
    fn refused(&mut self, wants: &[&Want], error: Error) -> Result<(), String> {
        let reason = one_line(&error);
        if !error.is_unsupported() {
            return Err(reason);
        }
        let names = wants.iter().map(|w| w.name.clone()).collect();
        self.unsupported.push(Unsupported { names, reason });
        Ok(())
    }

    fn outcome(&self) -> Outcome {
        if !self.errors.is_empty() || self.outputs.iter().any(|o| !o.verdict.passed()) {
            Outcome::Fail
        } else if !self.outputs.is_empty() {
            Outcome::Pass
        } else if !self.unsupported.is_empty() {
            Outcome::Unsupported
        } else {
            Outcome::Fail
        }
    }

    fn text(&self, name: &str) -> String {
        let outcome = match self.outcome() {
            Outcome::Pass => "PASS",
            Outcome::Fail => "FAIL",
            Outcome::Unsupported => "UNSUPPORTED",
        };
        let mut parts: Vec<String> = self.outputs.iter().map(describe).collect();
        parts.extend(
            self.errors
                .iter()
                .map(|e| format!("error: {}", one_line(e))),
        );
        if self.outputs.is_empty() && self.errors.is_empty() && self.unsupported.is_empty() {
            parts.push("error: nothing to compare in it".to_owned());
        }
        parts.extend(
            self.unsupported
                .iter()
                .map(|u| format!("unsupported outputs: {}: {}", u.names.join(" "), u.reason)),
        );
        parts.extend(self.note.map(|n| format!("note: {n}")));
        format!("{outcome} {name}: {}", parts.join("; "))
    }

    fn json(&self, name: &str) -> serde_json::Value {
        let outputs = self.outputs.iter().map(|output| {
            let verdict = &output.verdict;
            let Comparison {
                compared,
                failed,
                worst,
                ..
            } = verdict.comparison;
            let worst = worst.map(|worst| {
                json!({
                    "at": verdict.at,
                    "got": number(f64::from(worst.got)),
                    "expected": number(worst.expected),
                    "tolerance": number(worst.bound),
                    "share": number(worst.ratio),
                })
            });
            json!({
                "name": output.name,
                "bits": output.bits.map(|bits| format!("{bits:016x}")),
                "passed": verdict.passed(),
                "compared": compared,
                "outside": failed,
                "worst": worst,
            })
        });
        let unsupported = self.unsupported.iter();
        let unsupported = unsupported.map(|u| json!({"outputs": u.names, "reason": u.reason}));
        json!({
            "case": name,
            "outcome": match self.outcome() {
                Outcome::Pass => "pass",
                Outcome::Fail => "fail",
                Outcome::Unsupported => "unsupported",
            },
            "outputs": outputs.collect::<Vec<_>>(),
            "unsupported": unsupported.collect::<Vec<_>>(),
            "errors": self.errors,
            "note": self.note,
        })
    }
}

fn hash(values: &[f32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for value in values {
        hasher.write_u32(value.to_bits());
    }
    hasher.finish()
}

fn describe(Output { name, verdict, .. }: &Output) -> String {
    let Comparison {
        compared,
        failed,
        worst,
        ..
    } = verdict.comparison;
    match worst {
        None => format!("{name} holds nothing to compare"),
        Some(worst) if verdict.passed() => format!("{name} {:.1}%", worst.ratio * 100.0),
        Some(worst) => format!(
            "{name} {failed} of {compared} outside, worst at {:?}: got {:e}, expected {:e}, tolerance {:e}",
            verdict.at, worst.got, worst.expected, worst.bound,
        ),
    }
}

fn shape_of(what: &What, dims: &Dims) -> Vec<usize> {
    let &Dims {
        batch,
        q_heads,
        q_len,
        kv_len,
        v_dim,
        ..
    } = dims;
    match what {
        What::Output => dims.output_shape().to_vec(),
        What::Merged => vec![batch, q_len, q_heads * v_dim],
        What::Lse => vec![batch, q_heads, q_len],
        What::Stage(_, None) => vec![batch, q_heads, q_len, kv_len],
        // One row a head is stored without the axis.
        What::Stage(_, Some(rows)) if rows.len() == 1 => vec![batch, q_heads, kv_len],
        What::Stage(_, Some(rows)) => vec![batch, q_heads, rows.len(), kv_len],
    }
}

/// A result of the call as the expected tensor has it.
fn arrange(what: &What, outputs: &Outputs, dims: &Dims) -> Result<Vec<f32>, Error> {
    match what {
        What::Merged => swap_middle(&outputs.output, dims.output_shape()),
        What::Lse => memory::copied("lse", &outputs.lse),
        What::Output | What::Stage(..) => memory::copied("output", &outputs.output),
    }
}

fn has_shape(want: &Want, shape: &[usize]) -> Result<(), String> {
    let (name, given) = (&want.name, &want.expected.shape);
    match given == shape {
        true => Ok(()),
        false => Err(format!(
            "expected {name} has shape {given:?}, the call gives {shape:?}"
        )),
    }
}
