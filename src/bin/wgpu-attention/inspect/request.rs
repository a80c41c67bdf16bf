//! What is to be looked at, checked against the file.

use std::ops::Range;
use std::path::Path;

use wgpu_attention::Dims;

use crate::backend::Backend;
use crate::case::{File, Problem};
use crate::inspect::picture::Title;
use crate::inspect::view::{self, HeadView, Tokens};
use crate::report::Stop;
use crate::run::within;
use crate::suites;

/// What was asked for.
#[derive(Debug, Clone)]
pub struct Selection {
    pub batch: usize,
    /// All query heads, if none are given.
    pub heads: Option<Range<usize>>,
    /// Those that have a token, if none are given; all, if none has one.
    pub rows: Option<Range<usize>>,
    /// Contributions to the output of the layer, behind W_O.
    pub through: bool,
    /// What the scale does, too.
    pub scale: bool,
}

/// The attention call of a file, and the part of it that exists and was asked for.
#[derive(Debug)]
pub struct Request {
    pub problem: Problem,
    pub dims: Dims,
    pub tokens: Tokens,
    pub batch: usize,
    pub heads: Range<usize>,
    pub rows: Range<usize>,
    /// The rows without a token are left out, and nobody asked for that.
    pub leaves_rows: bool,
    pub through: bool,
    pub scale: bool,
    pub title: Title,
}

impl Request {
    /// The call of the case `file`; checks `selection`. The name of `path` becomes the
    /// title.
    pub fn new(file: &File, path: &Path, selection: &Selection) -> Result<Request, String> {
        Request::of(suites::case_call(file)?, file, path, selection)
    }

    /// The same of `problem`; only the metadata of `file` is read.
    pub fn of(
        problem: Problem,
        file: &File,
        path: &Path,
        selection: &Selection,
    ) -> Result<Request, String> {
        let dims = problem.inputs()?.validate(&problem.options);
        let dims = dims.map_err(|e| e.to_string())?;
        for (name, axis) in [("Q", dims.q_len), ("K", dims.kv_len)] {
            if axis == 0 {
                return Err(format!("{name}: expected a sequence of at least 1, got 0"));
            }
        }
        let below = |name: &str, at: usize, end: usize| match at < end {
            true => Ok(()),
            false => Err(format!("--{name}: expected a number below {end}, got {at}")),
        };
        let Selection {
            batch, heads, rows, ..
        } = selection;
        if selection.through && problem.output_weight.is_none() {
            return Err("--through: expected a layer with W_O, got attention alone".to_owned());
        }
        below("batch", *batch, dims.batch)?;
        let heads = match heads {
            Some(heads) if heads.len() != 1 => within("head", &Some(heads.clone()), dims.q_heads)?,
            Some(heads) => {
                below("head", heads.start, dims.q_heads)?;
                heads.clone()
            }
            None => 0..dims.q_heads,
        };
        let tokens = Tokens::of(file, &dims, *batch)?;
        let named = tokens.queries.as_ref().map_or(0, Vec::len);
        let leaves_rows = rows.is_none() && (1..dims.q_len).contains(&named);
        let rows = match rows {
            None if named > 0 => 0..named,
            rows => within("rows", rows, dims.q_len)?,
        };
        Ok(Request {
            title: title(file, path),
            heads,
            batch: *batch,
            through: selection.through,
            scale: selection.scale,
            problem,
            dims,
            tokens,
            rows,
            leaves_rows,
        })
    }

    /// A line on the rows, where some are left out that nobody excluded.
    pub fn rows_left(&self) -> Option<String> {
        let (rows, all) = (&self.rows, self.dims.q_len);
        (self.leaves_rows).then(|| format!("rows     {rows:?} of {all}, those with a token"))
    }

    /// The heads in parts that can be read together.
    pub fn heads_at_once(&self) -> impl Iterator<Item = Range<usize>> {
        let most = view::heads_at_once(self.rows.len(), self.dims.kv_len);
        let end = self.heads.end;
        let firsts = self.heads.clone().step_by(most);
        firsts.map(move |first| first..(first + most).min(end))
    }

    /// Reads `heads`; also gives the kernel of the forward pass behind them, if any.
    pub fn read(
        &self,
        backend: &Backend,
        heads: Range<usize>,
    ) -> Result<(Vec<HeadView>, Option<String>), Stop> {
        view::read(backend, self, heads)
    }
}

/// What the file says about itself.
fn title(file: &File, path: &Path) -> Title {
    let layer = file.metadata.get("layer");
    let layer = layer.map(|layer| format!("layer {layer}"));
    let source = file.metadata.get("source").cloned();
    let about: Vec<String> = layer.into_iter().chain(source).collect();
    let name = path.file_name().unwrap_or_default();
    Title {
        file: name.to_string_lossy().into_owned(),
        about: about.join(" of "),
    }
}
