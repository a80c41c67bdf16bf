//! `inspect`: what the heads of a case look at, as a picture and as numbers.

mod apart;
mod canvas;
mod colour;
#[cfg(test)]
mod faults;
mod legend;
mod picture;
mod request;
mod scale;
mod scores;
mod sheet;
mod source;
mod tables;
mod tips;
mod view;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use serde_json::json;

use crate::backend::{Backend, BackendArgs};
use crate::call::{self, Call};
use crate::case::File;
use crate::inspect::canvas::Canvas;
use crate::inspect::scale::Scale;
use crate::inspect::sheet::{About, Small};
use crate::layer::{SourceArgs, TensorPath, layers_of};
use crate::options::{self, OptionArgs};
use crate::report::{Reporter, Stop, tell};
use crate::run::range;
use crate::{metadata, output};

pub use request::{Request, Selection};

/// Shows what a head looks at: its weights, and what they contribute.
///
/// Side by side are the weights W(i,j) and the contributions W(i,j)*|V_j|, each
/// row of these as shares of its sum: a large weight on a short value vector adds
/// next to nothing to the output. Below are the rows where the two disagree most.
/// FILE is a case as `check` reads it, or holds Q, K, V and what else `run`
/// reads, by the same rule for options: flags, then the file's metadata. The metadata
/// `tokens` (JSON, a list of strings a batch entry) names the keys. With --input FILE is a
/// checkpoint as `layer` reads it, and the metadata that of the input's file.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true, group = ArgGroup::new("which").required(true))]
pub struct InspectArgs {
    /// Safetensors or .npz file.
    file: PathBuf,
    /// The query head; A..B: the heads from A to before B, small, on one sheet.
    #[arg(long, value_name = "H|A..B", group = "which", value_parser = heads)]
    head: Option<Range<usize>>,
    /// Every query head, small, on one sheet.
    #[arg(long, group = "which")]
    all_heads: bool,
    /// The batch entry.
    #[arg(long, value_name = "B", default_value_t = 0)]
    batch: usize,
    /// Query rows [default: those that have a token, all without tokens].
    #[arg(long, value_name = "A..B", value_parser = range)]
    rows: Option<Range<usize>>,
    /// Contributions to the output of the layer, W(i,j)*|V_j W_O|, for a file or a
    /// checkpoint that has W_O.
    #[arg(long)]
    through: bool,
    /// Picture to write, .png or .svg; it appears complete or not at all
    /// [default: FILE's name, the head's number and .png, in this folder].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The share at which the colours of a picture end, 0.000001 to 1; larger ones look
    /// like it [default: what fits the shares shown; on a sheet each head has its own].
    #[arg(long, value_name = "X", value_parser = scale_max)]
    scale_max: Option<Scale>,
    /// Prints scores of each row and of the head; a picture only if -o is given.
    #[arg(long)]
    stats: bool,
    /// The scores as one JSON document; implies --stats.
    #[arg(long)]
    json: bool,
    /// X of a layer of the checkpoint FILE, (B,Nq,width) or (Nq,width): a file of one
    /// tensor or with a tensor X, or FILE:TENSOR.
    #[arg(long, value_name = "FILE[:TENSOR]")]
    input: Option<TensorPath>,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    options: OptionArgs,
    /// Takes F64 elements, rounded to F32.
    #[arg(long, conflicts_with = "input")]
    f64_as_f32: bool,
    #[command(flatten)]
    backend: BackendArgs,
}

/// The formats of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Png,
    Svg,
}

pub fn inspect(args: &InspectArgs) -> Result<ExitCode, Stop> {
    // Whatever can be refused is refused before anything is computed.
    let target = args.target()?;
    let Asked {
        request,
        understood,
    } = args.request()?;
    let sheet = args.is_sheet();
    if sheet && target.is_some() {
        sheet::check(request.heads.len(), request.rows.len(), request.dims.kv_len)?;
    }
    let backend = args.backend.open()?;
    let ran_on = source::backend_of(&backend).describe();
    let reporter = Reporter::spinning();

    let mut smalls = Vec::new();
    let mut documents = Vec::new();
    let mut texts = Vec::new();
    let mut drawn = None;
    let mut kernel = None;
    for heads in request.heads_at_once() {
        reporter.doing(format!("heads {heads:?} on {ran_on}"));
        let (views, of) = request.read(&backend, heads)?;
        kernel = of;
        for view in views {
            let rows = scores::rows(&view);
            let scores = scores::head(&view, &rows);
            if args.json {
                documents.push(tables::json(&view, &scores, &rows));
            } else if args.stats {
                texts.extend(tables::head(&view, &scores));
                if !sheet {
                    texts.extend(tables::rows(&view, &rows));
                }
            }
            match (&target, sheet) {
                (None, _) => {}
                (Some(_), true) => smalls.push(Small::of(&view, scores)),
                (Some(_), false) => {
                    drawn = Some(picture::draw(&view, &request.title, args.scale_max)?)
                }
            }
        }
    }
    let mut written = None;
    if let Some((path, target, format)) = &target {
        reporter.doing("drawing");
        let canvas = match drawn {
            Some(canvas) => canvas,
            None => {
                let about = About {
                    title: &request.title,
                    which: match args.all_heads {
                        true => "all heads".to_owned(),
                        false => format!("heads {:?}", request.heads),
                    },
                    batch: request.batch,
                    rows: request.rows.clone(),
                    queries: request.dims.q_len,
                    tokens: &request.tokens,
                    scale: args.scale_max,
                };
                sheet::draw(&smalls, &about)?
            }
        };
        let bytes = encode(&canvas, *format)?;
        output::write(target, &bytes).map_err(|e| format!("{}: {e}", path.display()))?;
        written = Some(path.display().to_string());
    }
    if args.json {
        let document = json!({
            "file": args.file.display().to_string(),
            "ran_on": ran_on,
            "kernel": kernel,
            "understood": understood.json,
            "batch": request.batch,
            "rows": [request.rows.start, request.rows.end],
            "queries": request.dims.q_len,
            "keys": request.dims.kv_len,
            "through_output_projection": request.through,
            "picture": written,
            "heads": documents,
        });
        reporter.line(format!("{document:#}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in understood.lines.into_iter().chain(request.rows_left()) {
        reporter.line(line)?;
    }
    if let Some(kernel) = kernel {
        reporter.line(format!("kernel   {kernel}"))?;
    }
    reporter.line(format!("ran on   {ran_on}"))?;
    for line in texts {
        reporter.line(line)?;
    }
    if let Some(path) = written {
        reporter.line(format!("{path}: written"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Draws a head on `backend` and writes it to `target` as a PNG.
pub fn draw_head(request: &Request, backend: &Backend, target: &Path) -> Result<(), Stop> {
    for view in request.read(backend, request.heads.clone())?.0 {
        let canvas = picture::draw(&view, &request.title, None)?;
        output::write(target, &canvas.png()?).map_err(|e| format!("{}: {e}", target.display()))?;
    }
    Ok(())
}

/// What is to be looked at, and what was read of it.
struct Asked {
    request: Request,
    understood: Understood,
}

/// Sizes and options, for people and as JSON.
struct Understood {
    lines: Vec<String>,
    json: serde_json::Value,
}

impl InspectArgs {
    fn request(&self) -> Result<Asked, String> {
        let (path, selection) = (&self.file, self.selection());
        let named = |e: String| format!("{}: {e}", path.display());
        let Some(input) = &self.input else {
            let asked = File::read_with(path, self.f64_as_f32).and_then(|file| {
                let call = Call::of(&file, self.source.common(), &self.options)?;
                let dims = call.dims(&call.problem.inputs()?)?;
                if let Some(hint) = call.doubt(&dims) {
                    tell(hint);
                }
                let mut lines = vec![call::describe(&dims, &call.problem)];
                lines.extend(call.settled.describe(dims.qk_dim));
                let understood = Understood {
                    lines,
                    json: json!({
                        "sizes": call::sizes(&dims),
                        "options": call.settled.json(dims.qk_dim),
                    }),
                };
                let request = Request::of(call.problem, &file, path, &selection)?;
                Ok(Asked {
                    request,
                    understood,
                })
            });
            return asked.map_err(|e| match layers_of(path) {
                // A checkpoint; a case has its operands under names of their own.
                Some(layers) => named(format!(
                    "{e}; --input says what an attention layer of this checkpoint is given, \
                     and --prefix which of {layers}"
                )),
                None => named(e),
            });
        };
        if let Some(flag) = self.options.given() {
            return Err(format!(
                "{flag}: not with --input, whose model gives the options"
            ));
        }
        let loaded = self.source.load(path, input)?;
        let dims = loaded.dims.attention;
        let mut lines = loaded.describe();
        lines.push(format!("problem  {}", call::sizes(&dims)));
        let understood = Understood {
            lines,
            json: json!({
                "sizes": call::sizes(&dims),
                "options": options::json(&loaded.layer.options, dims.qk_dim),
            }),
        };
        let mut about = File::default();
        about.metadata.extend(input.metadata()?);
        warn(&input.file, metadata::doubts(&about));
        (about.metadata).insert("source".to_owned(), loaded.found.prefix);
        let request = Request::of(loaded.layer.attention()?, &about, path, &selection)?;
        Ok(Asked {
            request,
            understood,
        })
    }

    /// Whether several heads are shown together.
    fn is_sheet(&self) -> bool {
        self.all_heads || self.head.as_ref().is_some_and(|heads| heads.len() != 1)
    }

    fn has_stats(&self) -> bool {
        self.stats || self.json
    }

    fn selection(&self) -> Selection {
        Selection {
            batch: self.batch,
            heads: self.head.clone(),
            rows: self.rows.clone(),
            through: self.through,
            scale: self.has_stats(),
        }
    }

    /// The picture's name as given, where it really goes, and its format; none
    /// where only numbers are asked for.
    fn target(&self) -> Result<Option<(PathBuf, PathBuf, Format)>, String> {
        let path = match (&self.output, self.has_stats()) {
            (Some(path), _) => path.clone(),
            (None, true) if self.scale_max.is_some() => {
                return Err(
                    "--scale-max: expected -o beside --stats or --json, which draw nothing"
                        .to_owned(),
                );
            }
            (None, true) => return Ok(None),
            (None, false) => {
                let stem = self.file.file_stem().unwrap_or_default().to_string_lossy();
                let heads = match &self.head {
                    Some(heads) if heads.len() != 1 => format!("heads{heads:?}"),
                    Some(heads) => format!("head{}", heads.start),
                    None => "heads".to_owned(),
                };
                PathBuf::from(format!("{stem}.{heads}.png"))
            }
        };
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        let format = match extension.as_deref() {
            Some("png") => Format::Png,
            Some("svg") => Format::Svg,
            other => {
                let got = other.map_or("none".to_owned(), |e| format!(".{e}"));
                let path = path.display();
                return Err(format!(
                    "{path}: expected the extension .png or .svg, got {got}"
                ));
            }
        };
        let mut read = match &self.input {
            Some(input) => self.source.files(&self.file, input),
            None => vec![self.file.clone()],
        };
        read.extend(self.backend.tuning.clone());
        let target = output::target(read.iter().map(PathBuf::as_path), &path)?;
        Ok(Some((path, target, format)))
    }
}

/// One head, or several as A..B.
fn heads(text: &str) -> Result<Range<usize>, String> {
    if text.contains("..") {
        return range(text);
    }
    let head: usize = (text.parse()).map_err(|_| format!("expected H or A..B, got {text}"))?;
    Ok(head..head.saturating_add(1))
}

fn scale_max(text: &str) -> Result<Scale, String> {
    match text.parse() {
        Ok(top) if (scale::LOWEST..=1.0).contains(&top) => Ok(Scale::to(top)),
        _ => Err("expected a share from 0.000001 to 1".to_owned()),
    }
}

fn warn(path: &Path, doubts: Vec<String>) {
    for doubt in doubts {
        tell(format!("warning: {}: {doubt}", path.display()));
    }
}

fn encode(canvas: &Canvas, format: Format) -> Result<Vec<u8>, String> {
    match format {
        Format::Png => canvas.png(),
        Format::Svg => Ok(canvas.svg().into_bytes()),
    }
}
