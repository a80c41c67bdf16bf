//! `run`: one attention call on tensors from a file.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use half::{bf16, f16};
use wgpu_attention::{Alignment, DType, Options, Polarity, Stage, Window};

use crate::array::{Array, Values};
use crate::backend::{BackendArgs, BackendKind};
use crate::case::{File, Problem};
use crate::output;
use crate::report::{Reporter, Stop};

/// Runs one attention call on the tensors of a safetensors file.
///
/// Read are Q (B,Hq,Nq,Dqk), K (B,Hkv,Nk,Dqk), V (B,Hkv,Nk,Dv) and, where
/// present, attn_bias (floats) and attn_mask (BOOL), both broadcastable to
/// (B,Hq,Nq,Nk); alibi_slopes (Hq), sinks (Hq), kv_lengths (B), q_lengths (B),
/// offsets (B), q_segments (B,Nq), kv_segments (B,Nk). Written are Y
/// (B,Hq,Nq,Dv) and, if asked for, lse (B,Hq,Nq) and stageN
/// (batches,heads,rows,Nk). Metadata of the input is not read: every option is
/// a flag.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct RunArgs {
    /// Safetensors file with the operands.
    input: PathBuf,
    /// File to write; it appears complete or not at all.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Factor on q.k [default: 1/sqrt(Dqk)].
    #[arg(long)]
    scale: Option<f32>,
    /// Scores become C*tanh(score/C).
    #[arg(long, value_name = "C")]
    softcap: Option<f32>,
    /// Query i sees keys up to its own position only.
    #[arg(long)]
    causal: bool,
    /// Keys before the own position that are visible, itself not counted.
    #[arg(long, value_name = "KEYS")]
    window_left: Option<u32>,
    /// Keys after the own position that are visible, itself not counted.
    #[arg(long, value_name = "KEYS")]
    window_right: Option<u32>,
    /// Where query 0 stands among the keys: top-left (0), bottom-right
    /// (Nk - Nq), per-sequence (tensor `offsets`) or a number
    /// [default: bottom-right, per-sequence if there are offsets].
    #[arg(long, value_parser = alignment)]
    alignment: Option<Alignment>,
    /// What true in attn_mask means.
    #[arg(long, value_enum, default_value_t = MaskPolarity::Keep)]
    mask_polarity: MaskPolarity,
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

/// What true means.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum MaskPolarity {
    /// The pair takes part.
    Keep,
    /// The pair is excluded.
    Drop,
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
    let problem = read(args).map_err(|e| format!("{}: {e}", args.input.display()))?;
    let inputs = problem.inputs()?;
    let dims = inputs.validate(&problem.options)?;
    let ranges = [
        within("batches", &args.batches, dims.batch)?,
        within("heads", &args.heads, dims.q_heads)?,
        within("rows", &args.rows, dims.q_len)?,
    ];
    let dtype = match args.output_dtype {
        Some(dtype) => dtype.into(),
        None => inputs.query.dtype(),
    };

    if !args.stage.is_empty() && args.backend.backend == BackendKind::Cpu {
        return Err("--stage needs --backend gpu or oracle".into());
    }
    let mut stages = args.stage.clone();
    stages.sort_by_key(|&stage| stage as u32);
    stages.dedup();
    let backend = args.backend.open()?;
    let reporter = Reporter::spinning();
    reporter.doing(format!("attention on {}", backend.describe()));
    let mut tensors: Vec<(String, Array)> = Vec::new();
    let outputs = backend.forward(&inputs, &problem.options, dtype)?;
    let shape = dims.output_shape();
    tensors.push(("Y".to_owned(), stored(&shape, outputs.output, dtype)));
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
    // One entry: several would come out in a different order each time.
    let about = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ran_on": backend.describe(),
        "options": format!("{:?}", problem.options),
        "stages_of": format!("batches, heads, rows {ranges:?}"),
    });
    let metadata = HashMap::from([("wgpu-attention".to_owned(), about.to_string())]);
    let named = tensors.iter().map(|(name, array)| (name, array));
    let failed = |e: String| format!("{}: {e}", args.output.display());
    let bytes = safetensors::serialize(named, Some(metadata)).map_err(|e| failed(e.to_string()))?;
    output::write(&target, &bytes).map_err(failed)?;
    let written: Vec<String> = tensors
        .iter()
        .map(|(name, a)| format!("{name} {} {:?}", a.type_name(), a.shape))
        .collect();
    reporter.line(format!("{}: {}", args.output.display(), written.join(", ")))?;
    Ok(ExitCode::SUCCESS)
}

fn read(args: &RunArgs) -> Result<Problem, String> {
    let file = File::read(&args.input)?;
    // A misspelt operand would be ignored without a word; what the case files
    // hold besides operands is known.
    const OPERANDS: [&str; 12] = [
        "Q",
        "K",
        "V",
        "attn_bias",
        "attn_mask",
        "alibi_slopes",
        "sinks",
        "kv_lengths",
        "q_lengths",
        "offsets",
        "q_segments",
        "kv_segments",
    ];
    for name in file.tensors.keys() {
        let is_part = name.strip_prefix("part").is_some_and(|rest| {
            let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            digits.len() < rest.len() && digits.starts_with('.')
        });
        let beside = is_part || ["expected.", "jax."].iter().any(|p| name.starts_with(p));
        if !beside && !OPERANDS.contains(&&name[..]) && name != "dY" && name != "dLSE" {
            let known = OPERANDS.join(" ");
            return Err(format!(
                "tensor {name} is not an operand; known are {known}"
            ));
        }
    }
    check_lists(&file)?;
    let mut options = Options::default().causal(args.causal);
    options.scale = args.scale;
    options.softcap = args.softcap;
    options.window = Window {
        left: args.window_left,
        right: args.window_right,
    };
    options.alignment = args.alignment.unwrap_or(match file.get("offsets") {
        Some(_) => Alignment::PerSequence,
        None => Alignment::BottomRight,
    });
    let mut problem = Problem::from_file(&file, options)?;
    problem.polarity = match args.mask_polarity {
        MaskPolarity::Keep => Polarity::Keep,
        MaskPolarity::Drop => Polarity::Drop,
    };
    Ok(problem)
}

/// Lists are read in order, so a transposed one would be taken for another.
fn check_lists(file: &File) -> Result<(), String> {
    let axis = |name: &str, axis: usize| {
        let array = file.get(name);
        array.and_then(|array| array.shape.get(axis).copied())
    };
    let (batch, q_heads, q_len) = (axis("Q", 0), axis("Q", 1), axis("Q", 2));
    let kv_len = axis("K", 2);
    for (name, shape) in [
        ("kv_lengths", vec![batch]),
        ("q_lengths", vec![batch]),
        ("offsets", vec![batch]),
        ("q_segments", vec![batch, q_len]),
        ("kv_segments", vec![batch, kv_len]),
        ("alibi_slopes", vec![q_heads]),
        ("sinks", vec![q_heads]),
    ] {
        let Some(array) = file.get(name) else {
            continue;
        };
        let expected: Vec<usize> = shape.into_iter().flatten().collect();
        if array.shape != expected {
            let got = &array.shape;
            return Err(format!("{name}: expected shape {expected:?}, got {got:?}"));
        }
    }
    Ok(())
}

/// The output in its storage type; the values are of that type already.
pub fn stored(shape: &[usize], values: Vec<f32>, dtype: DType) -> Array {
    let values = match dtype {
        DType::F32 => Values::F32(values),
        DType::F16 => Values::F16(values.into_iter().map(f16::from_f32).collect()),
        DType::BF16 => Values::BF16(values.into_iter().map(bf16::from_f32).collect()),
    };
    Array {
        shape: shape.to_vec(),
        values,
    }
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

fn alignment(text: &str) -> Result<Alignment, String> {
    match text {
        "top-left" => Ok(Alignment::TopLeft),
        "bottom-right" => Ok(Alignment::BottomRight),
        "per-sequence" => Ok(Alignment::PerSequence),
        number => number.parse().map(Alignment::Offset).map_err(|_| {
            "expected top-left, bottom-right, per-sequence or a 32-bit number".to_owned()
        }),
    }
}

fn stage(text: &str) -> Result<Stage, String> {
    let stage = Stage::ALL
        .into_iter()
        .find(|&s| (s as u32).to_string() == text);
    stage.ok_or_else(|| "expected 0, 1, 2 or 3".to_owned())
}
