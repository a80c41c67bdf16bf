//! `demo`: attention of a real language model on this machine, checked, timed and
//! drawn.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::index;
use rand_distr::{Distribution, StandardNormal};
use wgpu_attention::reference::{self, Comparison};
use wgpu_attention::{DType, Error, Inputs, Options, Outputs, Tensor};

use crate::backend::{Backend, BackendArgs, BackendKind};
use crate::case::File;
use crate::inspect::{self, Request, Selection};
use crate::judge::judge;
use crate::report::{Reporter, Stop};
use crate::suites;
use crate::{output, system};

/// Runs attention captured from a real language model, checks it against
/// float64 and times it; then the same for random data of a round size. Ends with
/// a picture of what one head looks at, in the system's temporary folder unless -o says
/// where.
///
/// Without an adapter it says what to install and runs the CPU path instead.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The picture, a PNG [default: wgpu-attention-demo.png in the temporary folder].
    #[arg(short, long, value_name = "FILE", value_parser = png)]
    output: Option<PathBuf>,
    #[command(flatten)]
    backend: BackendArgs,
}

/// all-MiniLM-L6-v2, encoder layer 4, one passage, re-run with a causal mask.
const CASE: &[u8] =
    include_bytes!("../../../tests/data/real/minilm_layer4_passage_causal.safetensors");

/// Its name, and a head of it that looks at the first token most of the time
/// and takes little from it; its first rows.
const NAME: &str = "minilm_layer4_passage_causal.safetensors";
const HEAD: usize = 5;
const LOOKED_AT: usize = 40;

/// The size that is timed on random data: (B, H, N, D).
const SHAPE: [usize; 4] = [1, 8, 512, 64];

/// Rows of it that are checked against the oracle.
const SAMPLED_ROWS: usize = 96;

pub fn demo(args: &DemoArgs) -> Result<ExitCode, Stop> {
    let reporter = Reporter::spinning();
    // Refused before anything is computed.
    let picture = match &args.output {
        Some(path) => Some(output::target(std::iter::empty(), path)?),
        None => None,
    };
    let backend = match args.backend.open() {
        // Asked for by name and not there: no substitute.
        Err(error @ Error::NoAdapter { .. })
            if args.backend.backend == BackendKind::Gpu && args.backend.adapter.is_none() =>
        {
            reporter.line(format!("{error}\n{}\n", system::how_to_get_an_adapter()))?;
            reporter.line("what follows runs on the CPU, without any GPU kernel")?;
            Backend::Cpu
        }
        other => other?,
    };
    reporter.line(format!("adapter   {}", backend.describe()))?;
    let mut passed = real(&backend, &reporter)?;
    for causal in [false, true] {
        passed &= random(&backend, &reporter, causal)?;
    }
    look(&backend, &reporter, picture)?;
    Ok(ExitCode::from(u8::from(!passed)))
}

fn png(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("png") => Ok(path),
        _ => Err("expected the extension .png".to_owned()),
    }
}

/// The captured case: every element against the oracle and the capture.
fn real(backend: &Backend, reporter: &Reporter) -> Result<bool, Stop> {
    let file = File::parse(CASE)?;
    let job = suites::job(&file, false)?;
    let call = job.calls.first().ok_or("the bundled case holds no call")?;
    let (inputs, options) = (call.problem.inputs()?, call.problem.options);
    let source = file
        .metadata
        .get("source")
        .map_or("unknown", String::as_str);
    let tokens = file.json("tokens")?.unwrap_or_default();
    let words = tokens[0].as_array().map(Vec::as_slice).unwrap_or_default();
    let words: Vec<&str> = words.iter().take(12).filter_map(|w| w.as_str()).collect();
    let title = format!("{source}\n          \"{} ...\"", words.join(" "));
    let outputs = measure(backend, reporter, &title, &inputs, &options)?;

    reporter.doing("float64 oracle");
    let expected = reference::forward(&inputs, &options, DType::F32)?;
    let output = reference::compare(&outputs.output, &expected.output, &expected.output_bound)?;
    let lse = reference::compare(&outputs.lse, &expected.lse, &expected.lse_bound)?;
    let mut passed = output.passed() && lse.passed();
    reporter.line(format!(
        "error     {}",
        against_oracle(&outputs, &output, &lse)
    ))?;
    for want in &call.wants {
        let got = match want.name.as_str() {
            "Y" => &outputs.output,
            _ => &outputs.lse,
        };
        let verdict = judge(got, &want.expected, &want.what, want.tolerance, SHAPE[3])?;
        passed &= verdict.passed();
        let share = verdict.comparison.worst.map_or(f64::INFINITY, |w| w.ratio);
        let name = &want.name;
        reporter.line(format!(
            "          {name} within {:.1}% of the captured case's tolerance",
            share * 100.0
        ))?;
    }
    verdict(reporter, passed)
}

/// A picture of what a head of the captured case looks at. Where it cannot be
/// written, that is said, and the demo goes on: nothing that was computed is wrong.
fn look(backend: &Backend, reporter: &Reporter, chosen: Option<PathBuf>) -> Result<(), Stop> {
    reporter.doing("drawing");
    let selection = Selection {
        batch: 0,
        heads: Some(HEAD..HEAD + 1),
        rows: Some(0..LOOKED_AT),
        through: false,
        scale: false,
    };
    let request = Request::new(&File::parse(CASE)?, Path::new(NAME), &selection)?;
    let is_chosen = chosen.is_some();
    let path = chosen.unwrap_or_else(|| std::env::temp_dir().join("wgpu-attention-demo.png"));
    let told = match inspect::draw_head(&request, backend, &path) {
        Ok(()) => path.display().to_string(),
        Err(stop) if is_chosen => return Err(stop),
        Err(Stop::Error(why)) => format!("not written: {why}"),
        Err(stop) => return Err(stop),
    };
    reporter.line("")?;
    reporter.line(format!("picture   {told}"))?;
    reporter.line(format!(
        "          what head {HEAD} looks at in the first {LOOKED_AT} rows, and what reaches the output"
    ))
}

/// Random data, checked on sampled rows.
fn random(backend: &Backend, reporter: &Reporter, causal: bool) -> Result<bool, Stop> {
    let [batch, heads, n, _] = SHAPE;
    let mut rng = StdRng::seed_from_u64(17);
    let count = SHAPE.iter().product();
    let mut normal = || -> Vec<f32> { StandardNormal.sample_iter(&mut rng).take(count).collect() };
    let (q, k, v) = (normal(), normal(), normal());
    let inputs = Inputs::new(
        Tensor::f32(&q, SHAPE)?,
        Tensor::f32(&k, SHAPE)?,
        Tensor::f32(&v, SHAPE)?,
    );
    let options = Options::default().causal(causal);
    let outputs = measure(
        backend,
        reporter,
        "random normal numbers",
        &inputs,
        &options,
    )?;

    reporter.doing("float64 oracle");
    let mut rows = index::sample(&mut rng, batch * heads * n, SAMPLED_ROWS).into_vec();
    rows.extend([0, batch * heads * n - 1]);
    let expected = reference::forward_rows(&inputs, &options, DType::F32, &rows)?;
    let dim = SHAPE[3];
    let sampled = Outputs {
        output: rows
            .iter()
            .flat_map(|&r| outputs.output[r * dim..(r + 1) * dim].to_vec())
            .collect(),
        lse: rows.iter().map(|&r| outputs.lse[r]).collect(),
    };
    let output = reference::compare(&sampled.output, &expected.output, &expected.output_bound)?;
    let lse = reference::compare(&sampled.lse, &expected.lse, &expected.lse_bound)?;
    let rows = rows.len();
    reporter.line(format!(
        "error     {rows} sampled rows: {}",
        against_oracle(&sampled, &output, &lse)
    ))?;
    verdict(reporter, output.passed() && lse.passed())
}

/// Runs the call until times settle, and prints plan, time and throughput.
fn measure(
    backend: &Backend,
    reporter: &Reporter,
    title: &str,
    inputs: &Inputs<'_>,
    options: &Options,
) -> Result<Outputs, Stop> {
    let dims = inputs.validate(options)?;
    let causal = if options.causal { ", causal" } else { "" };
    reporter.line("")?;
    reporter.line(format!("input     {title}"))?;
    reporter.line(format!(
        "shape     batch {}, heads {}, queries {}, keys {}, head_dim {}{causal}",
        dims.batch, dims.q_heads, dims.q_len, dims.kv_len, dims.qk_dim,
    ))?;
    reporter.doing("first run, shaders are compiled");
    let mut prepared = backend.prepare(inputs, options)?;
    for (i, line) in prepared.plan.lines().enumerate() {
        reporter.line(format!("{:<10}{line}", if i == 0 { "plan" } else { "" }))?;
    }
    prepared.run()?;
    reporter.doing("timing");
    let started = Instant::now();
    let mut times = Vec::new();
    while times.len() < 20 && (times.len() < 3 || started.elapsed() < Duration::from_secs(2)) {
        times.push(prepared.run()?);
    }
    times.sort();
    let median = times[times.len() / 2].as_secs_f64();
    // Two products of 2 N^2 D each; a causal mask leaves half of it.
    let pairs = dims.batch * dims.q_heads * dims.q_len * dims.kv_len;
    let flop = 2.0 * pairs as f64 * (dims.qk_dim + dims.v_dim) as f64;
    let flop = if options.causal { flop / 2.0 } else { flop };
    reporter.line(format!(
        "time      {:.3} ms ({}, median of {}), {:.2} GFLOP/s",
        median * 1e3,
        prepared.clock,
        times.len(),
        flop / median / 1e9,
    ))?;
    if backend.is_software() {
        reporter.line("          (a driver that runs on the CPU: says nothing about a GPU)")?;
    }
    Ok(prepared.read()?)
}

fn against_oracle(outputs: &Outputs, output: &Comparison, lse: &Comparison) -> String {
    let largest = |c: &Comparison| c.worst.map_or(f64::NAN, |w| w.ratio * 100.0);
    format!(
        "{} outputs and {} row sums against float64, worst at {:.1}% and {:.1}% of the rounding bound",
        outputs.output.len(),
        outputs.lse.len(),
        largest(output),
        largest(lse),
    )
}

fn verdict(reporter: &Reporter, passed: bool) -> Result<bool, Stop> {
    reporter.line(format!(
        "result    {}",
        if passed { "PASS" } else { "FAIL" }
    ))?;
    Ok(passed)
}
