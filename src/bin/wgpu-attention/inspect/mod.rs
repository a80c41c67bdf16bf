//! `inspect`: what the heads of a case look at, as a picture and as numbers.

mod canvas;
mod colour;
pub mod picture;
mod scores;
mod sheet;
mod tables;
pub mod view;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use serde_json::json;
use wgpu_attention::Dims;

use crate::backend::{Backend, BackendArgs};
use crate::case::{File, Problem};
use crate::inspect::canvas::Canvas;
use crate::inspect::picture::Title;
use crate::inspect::sheet::Small;
use crate::inspect::view::{HeadView, Tokens};
use crate::output;
use crate::report::{Reporter, Stop};
use crate::run::{range, within};
use crate::suites;

/// Shows what a head looks at: its weights, and what they contribute.
///
/// Side by side are the weights W(i,j) and the contributions W(i,j)*|V_j|, each
/// row of these as shares of its sum: a large weight on a short value vector adds
/// next to nothing to the output. Below are the rows where the two disagree most.
/// FILE is a case as `check` reads it, or holds Q, K, V and what else `run`
/// reads; its metadata gives the options and, as `tokens` (JSON, a list of
/// strings a batch entry), the names of the keys.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("heads").required(true))]
pub struct InspectArgs {
    /// Safetensors file.
    file: PathBuf,
    /// The query head.
    #[arg(long, value_name = "H", group = "heads")]
    head: Option<usize>,
    /// Every query head, small, on one sheet.
    #[arg(long, group = "heads")]
    all_heads: bool,
    /// The batch entry.
    #[arg(long, value_name = "B", default_value_t = 0)]
    batch: usize,
    /// Query rows [default: those that have a token, all without tokens].
    #[arg(long, value_name = "A..B", value_parser = range)]
    rows: Option<Range<usize>>,
    /// Picture to write, .png or .svg; it appears complete or not at all
    /// [default: FILE's name, the head's number and .png, in this folder].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Prints scores of each row and of the head; a picture only if -o is given.
    #[arg(long)]
    stats: bool,
    /// The scores as one JSON document.
    #[arg(long, requires = "stats")]
    json: bool,
    #[command(flatten)]
    backend: BackendArgs,
}

/// The formats of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Png,
    Svg,
}

/// What is to be looked at, checked against the file.
struct Request {
    problem: Problem,
    dims: Dims,
    tokens: Tokens,
    batch: usize,
    heads: Range<usize>,
    rows: Range<usize>,
    title: Title,
}

pub fn inspect(args: &InspectArgs) -> Result<ExitCode, Stop> {
    // Whatever can be refused is refused before anything is computed.
    let target = args.target()?;
    let named = |e: String| format!("{}: {e}", args.file.display());
    let file = File::read(&args.file).map_err(named)?;
    let request = args.request(&file).map_err(named)?;
    let backend = args.backend.open()?;
    let reporter = Reporter::spinning();

    let mut smalls = Vec::new();
    let mut documents = Vec::new();
    let mut texts = Vec::new();
    let mut drawn = None;
    let at_once = view::heads_at_once(request.rows.len(), request.dims.kv_len);
    for first in request.heads.clone().step_by(at_once) {
        let heads = first..(first + at_once).min(request.heads.end);
        reporter.doing(format!("heads {heads:?} on {}", backend.describe()));
        for view in request.read(&backend, heads)? {
            let rows = scores::rows(&view);
            let scores = scores::head(&view, &rows);
            if args.json {
                documents.push(tables::json(&view, &scores, &rows));
            } else if args.stats {
                texts.extend(tables::head(&view, &scores));
                if !args.all_heads {
                    texts.extend(tables::rows(&view, &rows));
                }
            }
            match (&target, args.all_heads) {
                (None, _) => {}
                (Some(_), true) => smalls.push(Small::of(&view, scores)),
                (Some(_), false) => drawn = Some(picture::draw(&view, &request.title)?),
            }
        }
    }
    let mut written = None;
    if let Some((path, target, format)) = &target {
        reporter.doing("drawing");
        let canvas = match drawn {
            Some(canvas) => canvas,
            None => {
                let (rows, keys) = (&request.rows, request.dims.kv_len);
                let shown = format!("queries {rows:?}, {keys} keys");
                sheet::draw(&smalls, &request.title, request.batch, &shown)?
            }
        };
        let bytes = encode(&canvas, *format)?;
        output::write(target, &bytes).map_err(|e| format!("{}: {e}", path.display()))?;
        written = Some(path.display().to_string());
    }
    if args.json {
        let document = json!({
            "file": args.file.display().to_string(),
            "ran_on": backend.describe(),
            "batch": request.batch,
            "rows": [request.rows.start, request.rows.end],
            "keys": request.dims.kv_len,
            "picture": written,
            "heads": documents,
        });
        reporter.line(format!("{document:#}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in texts {
        reporter.line(line)?;
    }
    if let Some(path) = written {
        reporter.line(format!("{path}: written"))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl InspectArgs {
    /// The picture's name as given, where it really goes, and its format; none
    /// where only numbers are asked for.
    fn target(&self) -> Result<Option<(PathBuf, PathBuf, Format)>, String> {
        let path = match (&self.output, self.stats) {
            (Some(path), _) => path.clone(),
            (None, true) => return Ok(None),
            (None, false) => {
                let stem = self.file.file_stem().unwrap_or_default().to_string_lossy();
                let heads = self.head.map_or("heads".to_owned(), |h| format!("head{h}"));
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
        let target = output::target(&self.file, &path)?;
        Ok(Some((path, target, format)))
    }

    fn request(&self, file: &File) -> Result<Request, String> {
        let problem = suites::to_look_at(file)?;
        let inputs = problem.inputs()?;
        let dims = inputs
            .validate(&problem.options)
            .map_err(|e| e.to_string())?;
        let below = |name: &str, at: usize, end: usize| match at < end {
            true => Ok(()),
            false => Err(format!("--{name}: expected a number below {end}, got {at}")),
        };
        below("batch", self.batch, dims.batch)?;
        if let Some(head) = self.head {
            below("head", head, dims.q_heads)?;
        }
        for (name, axis) in [("Q", dims.q_len), ("K", dims.kv_len)] {
            if axis == 0 {
                return Err(format!(
                    "{name}: expected at least one row to look at, got none"
                ));
            }
        }
        let tokens = Tokens::of(file, &dims, self.batch)?;
        let named = tokens.queries.as_ref().map_or(0, Vec::len);
        let rows = match &self.rows {
            None if named > 0 => 0..named,
            rows => within("rows", rows, dims.q_len)?,
        };
        Ok(Request {
            title: title(file, &self.file),
            heads: self.head.map_or(0..dims.q_heads, |h| h..h + 1),
            batch: self.batch,
            problem,
            dims,
            tokens,
            rows,
        })
    }
}

impl Request {
    fn read(&self, backend: &Backend, heads: Range<usize>) -> Result<Vec<HeadView>, Stop> {
        let Request {
            problem,
            tokens,
            batch,
            rows,
            ..
        } = self;
        view::read(backend, problem, tokens, *batch, heads, rows.clone())
    }
}

/// What the file says about itself.
fn title(file: &File, path: &Path) -> Title {
    let layer = file
        .metadata
        .get("layer")
        .map(|layer| format!("layer {layer}"));
    let source = file.metadata.get("source").cloned();
    let about: Vec<String> = layer.into_iter().chain(source).collect();
    let name = path.file_name().unwrap_or_default();
    Title {
        file: name.to_string_lossy().into_owned(),
        about: (!about.is_empty()).then(|| about.join(" of ")),
    }
}

fn encode(canvas: &Canvas, format: Format) -> Result<Vec<u8>, String> {
    match format {
        Format::Png => canvas.png(),
        Format::Svg => Ok(canvas.svg().into_bytes()),
    }
}
