//! `run`: one attention call on tensors from a file.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use half::{bf16, f16};
use safetensors::View;
use safetensors::tensor::{Metadata, TensorInfo};
use wgpu_attention::{DType, Stage};

use crate::array::{Array, Values};
use crate::backend::{BackendArgs, BackendKind};
use crate::call::{self, Call};
use crate::case::File;
use crate::options::{CommonFlags, Layout, OptionArgs, number};
use crate::report::{Reporter, Stop, tell};
use crate::{memory, numpy, output};

/// Runs one attention call on the tensors of a file.
///
/// The file is safetensors, .npz or, with all of Q, K and V in one array, .npy. Read are
/// Q (B,Hq,Nq,Dqk), K (B,Hkv,Nk,Dqk), V (B,Hkv,Nk,Dv), or what --layout says, and, where
/// present, attn_bias (floats) and attn_mask (BOOL), both broadcastable to
/// (B,Hq,Nq,Nk); alibi_slopes (Hq), sinks (Hq), kv_lengths (B), q_lengths (B),
/// offsets (B), q_segments (B,Nq), kv_segments (B,Nk). Floats are F32, F16 or BF16.
/// Written are Y, laid out as the inputs, and, if asked for, lse (B,Hq,Nq) and stageN
/// (batches,heads,rows,Nk).
///
/// Options come from flags; where there is none from the file's metadata: scale,
/// softcap, causal, window_left, window_right, alignment, mask_polarity and layout, or, in
/// a case that names a suite, what the suite has. A key that is nearly one of these or
/// an option under another name is refused; all other keys are free. What came of it
/// is printed.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct RunArgs {
    /// File with the operands.
    input: PathBuf,
    /// File to write, .safetensors, .npz or, for Y alone, .npy; it appears complete or
    /// not at all.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Factor on q.k [default: 1/sqrt(Dqk)].
    #[arg(long, value_parser = number)]
    scale: Option<f32>,
    /// Query i sees keys up to its own position only.
    #[arg(long)]
    causal: bool,
    /// Not causal, whatever the metadata says.
    #[arg(long, conflicts_with = "causal")]
    bidirectional: bool,
    #[command(flatten)]
    options: OptionArgs,
    /// Takes F64 elements, rounded to F32.
    #[arg(long)]
    f64_as_f32: bool,
    /// Element type of Y [default: that of Q].
    #[arg(long, value_enum)]
    output_dtype: Option<OutputDType>,
    /// Writes the log-sum-exp of each row too.
    #[arg(long)]
    lse: bool,
    /// Writes a stage of the scores too: 0 scaled, 1 after softcap, 2 after
    /// bias and masks, 3 probabilities. May be given several times.
    #[arg(long, value_name = "N", value_parser = stage)]
    stage: Vec<Stage>,
    /// Batch entries of the stages, from A up to but not including B.
    #[arg(long, value_name = "A..B", value_parser = range, requires = "stage")]
    batches: Option<Range<usize>>,
    /// Query heads of the stages.
    #[arg(long, value_name = "A..B", value_parser = range, requires = "stage")]
    heads: Option<Range<usize>>,
    /// Query rows of the stages.
    #[arg(long, value_name = "A..B", value_parser = range, requires = "stage")]
    rows: Option<Range<usize>>,
    #[command(flatten)]
    backend: BackendArgs,
}

/// The forms of an output file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Safetensors,
    Npy,
    Npz,
}

impl Form {
    /// By the file's name.
    fn of(path: &Path) -> Result<Form, String> {
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            Some("npy") => Ok(Form::Npy),
            Some("npz") => Ok(Form::Npz),
            Some("safetensors") | None => Ok(Form::Safetensors),
            Some(other) => Err(format!(
                "{}: expected the extension .safetensors, .npz or .npy, got .{other}",
                path.display()
            )),
        }
    }
}

/// Element type of the output.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum OutputDType {
    F32,
    F16,
    Bf16,
}

impl From<OutputDType> for DType {
    fn from(dtype: OutputDType) -> DType {
        match dtype {
            OutputDType::F32 => DType::F32,
            OutputDType::F16 => DType::F16,
            OutputDType::Bf16 => DType::BF16,
        }
    }
}

pub fn run(args: &RunArgs) -> Result<ExitCode, Stop> {
    let reads = [Some(&args.input), args.backend.tuning.as_ref()];
    let target = output::target(
        reads.into_iter().flatten().map(PathBuf::as_path),
        &args.output,
    )?;
    let form = Form::of(&args.output)?;
    if form == Form::Npy && (args.lse || !args.stage.is_empty()) {
        let path = args.output.display();
        return Err(format!("{path}: an .npy file holds Y alone; an .npz file holds all").into());
    }
    let named = |e: String| format!("{}: {e}", args.input.display());
    let call = read(args).map_err(named)?;
    let problem = &call.problem;
    let inputs = problem.inputs().map_err(named)?;
    let dims = call.dims(&inputs).map_err(named)?;
    let ranges = [
        within("batches", &args.batches, dims.batch)?,
        within("heads", &args.heads, dims.q_heads)?,
        within("rows", &args.rows, dims.q_len)?,
    ];
    let dtype = match args.output_dtype {
        Some(dtype) => dtype.into(),
        None => inputs.query.dtype(),
    };
    if form != Form::Safetensors {
        // Before anything is computed.
        let like = stored(&[0], Vec::new(), dtype)?;
        numpy::check("Y", &like).map_err(|e| format!("{}: {e}", args.output.display()))?;
    }
    if !args.stage.is_empty() && args.backend.backend == BackendKind::Cpu {
        return Err("--stage needs --backend gpu or oracle".into());
    }
    let mut stages = args.stage.clone();
    stages.sort_by_key(|&stage| stage as u32);
    stages.dedup();
    let backend = args.backend.open()?;
    let ran_on = backend.describe();
    let reporter = Reporter::spinning();
    reporter.line(call::describe(&dims, problem))?;
    for line in call.settled.describe(dims.qk_dim) {
        reporter.line(line)?;
    }
    if let Some(hint) = call.doubt(&dims) {
        tell(hint);
    }
    reporter.doing(format!("attention on {ran_on}"));
    let (outputs, kernel) = backend.forward_and_kernel(&inputs, &problem.options, dtype)?;
    if let Some(kernel) = &kernel {
        reporter.line(format!("kernel   {kernel}"))?;
    }
    reporter.line(format!("ran on   {ran_on}"))?;
    let shape = dims.output_shape();
    let mut y = stored(&shape, outputs.output, dtype)?;
    if call.settled.layout != Layout::Bhsd {
        y = y.middle_swapped("Y")?;
    }
    let mut tensors: Vec<(String, Array)> = vec![("Y".to_owned(), y)];
    if args.lse {
        tensors.push(("lse".to_owned(), Array::f32(&shape[..3], outputs.lse)));
    }
    for stage in stages {
        reporter.doing(format!("stage {stage:?}"));
        let values = backend.stage(&inputs, &problem.options, stage, ranges.clone())?;
        let [batches, heads, rows] = ranges.each_ref().map(Range::len);
        let shape = [batches, heads, rows, dims.kv_len];
        tensors.push((format!("stage{}", stage as u32), Array::f32(&shape, values)));
    }
    let [batches, heads, rows] = ranges.each_ref().map(|range| [range.start, range.end]);
    // One entry: several would come out in a different order each time.
    let about = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ran_on": ran_on,
        "kernel": kernel,
        "options": call.settled.json(dims.qk_dim),
        "stages_of": {"batches": batches, "heads": heads, "rows": rows},
    });
    let failed = |e: String| format!("{}: {e}", args.output.display());
    let written = match form {
        Form::Safetensors => write_safetensors(&target, &tensors, &about),
        Form::Npy => output::write_with(&target, |file| numpy::write_npy(&tensors[0].1, file)),
        Form::Npz => output::write_with(&target, |file| numpy::write_npz(&tensors, file)),
    };
    written.map_err(failed)?;
    let written: Vec<String> = tensors
        .iter()
        .map(|(name, a)| format!("{name} {} {:?}", a.type_name(), a.shape))
        .collect();
    reporter.line(format!("{}: {}", args.output.display(), written.join(", ")))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a safetensors file; `about` becomes the metadata `wgpu-attention`. The crate
/// would hold the whole file in memory, or write it under a temporary name of its own.
pub fn write_safetensors(
    target: &Path,
    tensors: &[(String, Array)],
    about: &serde_json::Value,
) -> Result<(), String> {
    let metadata = HashMap::from([("wgpu-attention".to_owned(), about.to_string())]);
    // Wider elements first, so that each tensor stands at a multiple of its elements.
    let mut ordered: Vec<(&String, &Array)> = tensors.iter().map(|(n, a)| (n, a)).collect();
    ordered.sort_by_key(|(_, array)| Reverse(View::dtype(array)));
    let mut infos = Vec::with_capacity(ordered.len());
    let mut end = 0;
    for (name, array) in &ordered {
        let start = end;
        end += View::data_len(array);
        let info = TensorInfo {
            dtype: View::dtype(array),
            shape: array.shape.clone(),
            data_offsets: (start, end),
        };
        infos.push(((*name).clone(), info));
    }
    let header = Metadata::new(Some(metadata), infos).map_err(|e| e.to_string())?;
    let mut header = serde_json::to_vec(&header).map_err(|e| e.to_string())?;
    header.resize(header.len().next_multiple_of(8), b' ');
    output::write_with(target, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        let mut elements = ordered.iter().map(|(_, array)| View::data(array));
        elements.try_for_each(|bytes| file.write_all(&bytes))
    })
}

fn read(args: &RunArgs) -> Result<Call, String> {
    let file = File::read_with(&args.input, args.f64_as_f32)?;
    if file.get("X").is_some() {
        return Err(
            "holds a whole multi-head layer: `check` compares it, `inspect` shows it".to_owned(),
        );
    }
    let common = CommonFlags {
        scale: args.scale,
        causal: CommonFlags::causal(args.causal, args.bidirectional),
    };
    Call::of(&file, common, &args.options)
}

/// The output in its storage type; the values are of that type already.
pub fn stored(shape: &[usize], values: Vec<f32>, dtype: DType) -> Result<Array, String> {
    let count = values.len();
    let values = match dtype {
        DType::F32 => Ok(Values::F32(values)),
        DType::F16 => memory::collected("output", count, values.into_iter().map(f16::from_f32))
            .map(Values::F16),
        DType::BF16 => memory::collected("output", count, values.into_iter().map(bf16::from_f32))
            .map(Values::BF16),
    };
    Ok(Array {
        shape: shape.to_vec(),
        values: values.map_err(|e| e.to_string())?,
    })
}

/// The range given, all of an axis if none is; the message names the flag.
pub fn within(
    name: &str,
    range: &Option<Range<usize>>,
    axis: usize,
) -> Result<Range<usize>, String> {
    let range = range.clone().unwrap_or(0..axis);
    if range.end > axis {
        return Err(format!(
            "--{name} {range:?}: expected a range within 0..{axis}"
        ));
    }
    Ok(range)
}

/// Parses A..B, which is not empty.
pub fn range(text: &str) -> Result<Range<usize>, String> {
    let parsed = text.split_once("..").and_then(|(a, b)| {
        let range: Range<usize> = a.parse().ok()?..b.parse().ok()?;
        (range.start < range.end).then_some(range)
    });
    parsed.ok_or_else(|| "expected A..B with A below B, for instance 0..4".to_owned())
}

fn stage(text: &str) -> Result<Stage, String> {
    let stage = Stage::ALL
        .into_iter()
        .find(|&s| (s as u32).to_string() == text);
    stage.ok_or_else(|| "expected 0, 1, 2 or 3".to_owned())
}
