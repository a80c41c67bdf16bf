//! `layer`: one attention layer of a checkpoint, on tokens from a file.

mod config;
mod judge;
mod load;
mod models;
mod scheme;
mod source;
mod tensors;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use wgpu_attention::DType;

use crate::backend::BackendArgs;
use crate::report::{Reporter, Stop};
use crate::run::{OutputDType, stored, write_safetensors};
use crate::{options, output};

pub use source::SourceArgs;
pub use tensors::TensorPath;

/// Runs one attention layer of a safetensors checkpoint:
/// Y = Concat(head_1 .. head_h) W_O.
///
/// The layer is found by the names of its tensors: torch's MultiheadAttention
/// (in_proj_weight, or q_proj_weight and so on), BERT (self.query), GPT-2 (c_attn,
/// whose weights are (in, out)), and q_proj, k_proj, v_proj, out_proj (BART, OPT,
/// Whisper, CLIP). Weights are F32, F16 or BF16. X is what the model gives to W_Q;
/// residual connection, norm and dropout are no part of it.
///
/// Names do not say all of a model's attention. The model_type of config.json or of the
/// file's metadata does: only types that are known to be plain attention under their
/// names are computed, and only with a config that keeps them so; the type also says
/// whether a token sees later ones. Every other layer, and one that needs rotary
/// embedding, is refused with what is not known or missing, unless --assume-plain says
/// to compute it all the same. Without a type only torch's MultiheadAttention is
/// computed, which is plain by its definition, and not causal unless --causal says so.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct LayerArgs {
    /// Safetensors checkpoint; only the layer's tensors are read.
    checkpoint: PathBuf,
    /// X, (B,Nq,width) or (Nq,width): a file of one tensor or with a tensor X, or FILE:TENSOR.
    #[arg(long, value_name = "FILE[:TENSOR]")]
    input: TensorPath,
    #[command(flatten)]
    source: SourceArgs,
    /// File to write Y to; it appears complete or not at all.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Element type of Y [default: that of X].
    #[arg(long, value_enum)]
    output_dtype: Option<OutputDType>,
    /// Print one JSON document instead.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    backend: BackendArgs,
}

/// Where the layers of a checkpoint are, for a message; none if it is no checkpoint.
pub fn layers_of(path: &Path) -> Option<String> {
    let layers = scheme::all(&tensors::Tensors::open(path).ok()?);
    (!layers.is_empty()).then(|| scheme::prefixes(&layers))
}

pub fn layer(args: &LayerArgs) -> Result<ExitCode, Stop> {
    let target = args.target()?;
    let loaded = args.source.load(&args.checkpoint, &args.input)?;
    let (layer, dims) = (&loaded.layer, &loaded.dims);
    let inputs = layer.inputs()?;
    let dtype = match args.output_dtype {
        Some(dtype) => dtype.into(),
        None => layer.input.dtype().unwrap_or(DType::F32),
    };
    let backend = args.backend.open()?;
    let reporter = Reporter::spinning();
    reporter.doing(format!("layer on {}", backend.describe()));
    let (y, times) = backend.multi_head_runs(&inputs, &layer.options, dtype, 2)?;
    let shape = [
        dims.attention.batch,
        dims.attention.q_len,
        dims.output_width,
    ];
    let y = stored(&shape, y, dtype)?;
    let kind = y.type_name();
    let milliseconds = |n: usize| times[n].as_secs_f64() * 1e3;
    if !args.json {
        for line in loaded.describe() {
            reporter.line(line)?;
        }
        reporter.line(format!("Y        {kind} {shape:?}"))?;
        reporter.line(format!("ran on   {}", backend.describe()))?;
        reporter.line(match times.len() {
            1 => format!("time     {:.1} ms", milliseconds(0)),
            _ => format!(
                "time     {:.1} ms; the first run, with uploads and compilation, {:.1} ms",
                milliseconds(1),
                milliseconds(0)
            ),
        })?;
    }
    let mut about = loaded.json();
    about["version"] = env!("CARGO_PKG_VERSION").into();
    about["ran_on"] = backend.describe().into();
    about["options"] = options::json(&layer.options, dims.attention.qk_dim);
    if let (Some(path), Some(target)) = (&args.output, target) {
        let written = write_safetensors(&target, &[("Y".to_owned(), y)], &about);
        written.map_err(|e| format!("{}: {e}", path.display()))?;
        match args.json {
            true => about["output"] = path.display().to_string().into(),
            false => reporter.line(format!("{}: written", path.display()))?,
        }
    }
    if args.json {
        about["Y"] = serde_json::json!({"type": kind, "shape": shape});
        about["milliseconds"] = (0..times.len()).map(milliseconds).collect();
        reporter.line(about.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

impl LayerArgs {
    /// Where Y goes.
    fn target(&self) -> Result<Option<PathBuf>, String> {
        let Some(output) = &self.output else {
            return Ok(None);
        };
        let mut read = self.source.files(&self.checkpoint, &self.input);
        read.extend(self.backend.tuning.clone());
        output::target(read.iter().map(PathBuf::as_path), output).map(Some)
    }
}
