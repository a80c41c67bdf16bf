//! What is looked at: one head's weights and contributions as plain numbers.
//!
//! The tables and pictures take a [`HeadView`] and nothing else.

use std::ops::Range;

use wgpu_attention::interpret::{SATURATED, ScoreStatistics, Weights};
use wgpu_attention::{Dims, Error, Options, Pairs, Quantity, Region, Stage, Visibility};

use crate::backend::Backend;
use crate::case::File;
use crate::inspect::request::Request;
use crate::inspect::source::Source;
use crate::memory;
use crate::report::Stop;

/// Pairs of query and key of a head that are held at once, at most.
const MAX_PAIRS: usize = 1 << 26;

/// Names of queries and keys of one batch entry, where the file gives them.
#[derive(Debug, Clone, Default)]
pub struct Tokens {
    pub queries: Option<Vec<String>>,
    pub keys: Option<Vec<String>>,
}

impl Tokens {
    /// From the metadata `tokens`, a JSON list of lists of strings, one a batch
    /// entry. They name the keys, and the queries too where there are as many.
    /// A list may be shorter than the sequence: what follows is padding.
    pub fn of(file: &File, dims: &Dims, batch: usize) -> Result<Tokens, String> {
        let Some(json) = file.json("tokens")? else {
            return Ok(Tokens::default());
        };
        let wrong = |actual: String| {
            let expected = "a list of lists of strings, one a batch entry";
            format!("metadata tokens: expected {expected}, got {actual}")
        };
        let lists: Vec<Vec<String>> =
            serde_json::from_value(json).map_err(|e| wrong(e.to_string()))?;
        if lists.len() != dims.batch {
            let (given, entries) = (lists.len(), dims.batch);
            return Err(wrong(format!("{given} lists for {entries} batch entries")));
        }
        let names = lists[batch].clone();
        if names.len() > dims.kv_len {
            let (given, keys) = (names.len(), dims.kv_len);
            return Err(format!(
                "metadata tokens, batch entry {batch}: expected at most {keys}, one a key, got {given}"
            ));
        }
        Ok(Tokens {
            queries: (dims.q_len == dims.kv_len).then(|| names.clone()),
            keys: Some(names),
        })
    }

    /// A query for people: its number, and its token where it has one.
    pub fn query(&self, i: usize) -> String {
        numbered(&self.queries, i)
    }

    /// A key for people.
    pub fn key(&self, j: usize) -> String {
        numbered(&self.keys, j)
    }
}

/// What one query head of one batch entry looks at, for some of its query rows.
/// Everything by pair is (rows, keys), row by row.
#[derive(Debug, Clone)]
pub struct HeadView {
    pub batch: usize,
    pub head: usize,
    /// The query rows, of all that there are.
    pub rows: Range<usize>,
    /// All queries, Nq.
    pub queries: usize,
    /// All keys, Nk.
    pub keys: usize,
    /// Row i stands at position `i + offset` among the keys.
    pub offset: i64,
    /// Whether a sink takes a part of each row's weight.
    pub sink: bool,
    pub tokens: Tokens,
    /// The probabilities W(i, j).
    pub weights: Vec<f32>,
    /// W(i, j) |V_j|, the size of what key j adds to output i, or W(i, j) |V_j W_O|,
    /// to the layer's output; 0 where excluded.
    pub contributions: Vec<f32>,
    /// Whether they are behind W_O.
    pub through: bool,
    /// Whether row i may see key j.
    pub visible: Vec<bool>,
    /// What the scale does, where it was asked for.
    pub scale: Option<ScaleEffect>,
}

/// The scores and weights of a head with the scale and without.
#[derive(Debug, Clone, Copy)]
pub struct ScaleEffect {
    pub scale: f64,
    /// D, where the scale is 1/sqrt(D) of the queries and keys.
    pub root_of: Option<usize>,
    /// Of the visible pairs' scores before the scale.
    pub unscaled: ScoreStatistics,
    /// Share of rows whose largest weight would be over 0.99 with a scale of 1, all
    /// other options as they are; NaN over no row.
    pub saturated_unscaled: f64,
}

impl HeadView {
    /// The part of a list by pair that is row `i`.
    pub fn row<'a, T>(&self, list: &'a [T], i: usize) -> &'a [T] {
        let at = (i - self.rows.start) * self.keys;
        &list[at..at + self.keys]
    }

    /// A query for people: its number, and its token where it has one.
    pub fn query_name(&self, i: usize) -> String {
        self.tokens.query(i)
    }

    /// A key for people.
    pub fn key_name(&self, j: usize) -> String {
        self.tokens.key(j)
    }

    /// Why there are no scores, where no row has any.
    pub fn why_no_scores(&self) -> &'static str {
        match self.visible.contains(&true) {
            true => "no row shown has weights other than 0 and NaN",
            false => "no row shown sees a key",
        }
    }

    /// From the first to the last key that any of the rows may see; all keys if
    /// they see none.
    pub fn seen(&self) -> Range<usize> {
        let is_seen = |j: &usize| self.rows.clone().any(|i| self.row(&self.visible, i)[*j]);
        match (0..self.keys).find(is_seen) {
            None => 0..self.keys,
            Some(first) => first..(0..self.keys).rfind(is_seen).unwrap_or(first) + 1,
        }
    }
}

/// The token at `at`, with white space made visible.
pub fn token(names: &Option<Vec<String>>, at: usize) -> Option<String> {
    let name = names.as_ref()?.get(at)?;
    let shown = name.chars().map(|c| match c {
        ' ' => '␣',
        '\n' => '⏎',
        '\t' => '⇥',
        c if c.is_control() => '\u{fffd}',
        c => c,
    });
    Some(shown.collect())
}

fn numbered(names: &Option<Vec<String>>, at: usize) -> String {
    match token(names, at) {
        Some(token) => format!("{at} {token}"),
        None => at.to_string(),
    }
}

/// Reads `heads` of what was asked for.
///
/// Weights and contributions come from the [`Source`], in its own precision. What V
/// holds at excluded keys has no part in them.
pub fn read(
    backend: &Backend,
    request: &Request,
    heads: Range<usize>,
) -> Result<(Vec<HeadView>, Option<String>), Stop> {
    let Request {
        problem,
        batch,
        rows,
        through,
        ..
    } = request;
    let (batch, through) = (*batch, *through);
    let (inputs, options) = (problem.inputs()?, &problem.options);
    let dims = inputs.validate(options)?;
    let keys = dims.kv_len;
    if rows.len().saturating_mul(keys) > MAX_PAIRS {
        let (given, most) = (rows.len(), MAX_PAIRS / keys);
        return Err(
            format!("--rows: expected at most {most} rows of {keys} keys, got {given}").into(),
        );
    }
    let region = Region {
        batches: batch..batch + 1,
        heads: heads.clone(),
        rows: rows.clone(),
    };
    let output_weight = match (&problem.output_weight, through) {
        (Some(weight), true) => Some(weight.with_axes("W_o", |[out, into]| [1, 1, out, into])?),
        (None, true) => {
            return Err("--through: expected a layer with an output projection, got none".into());
        }
        (_, false) => None,
    };
    let source = Source::new(backend, &inputs, options, output_weight)?;
    let read = |source: &Source<'_>, quantity| {
        source.pairs(&Pairs {
            quantity,
            region: region.clone(),
            keys: 0..keys,
        })
    };
    let masked = read(&source, Quantity::Stage(Stage::Masked))?;
    let weights = read(&source, Quantity::Stage(Stage::Probabilities))?;
    let contributions = read(&source, Quantity::Contribution)?;
    let without_scale = match request.scale {
        false => None,
        true => {
            let source = Source::new(backend, &inputs, &options.scale(1.0), None)?;
            Some([
                read(&source, Quantity::Stage(Stage::Raw))?,
                read(&source, Quantity::Stage(Stage::Probabilities))?,
            ])
        }
    };
    let length = |list: Option<&[u32]>, all: usize| list.map_or(all as u32, |list| list[batch]);
    let visibility = Visibility::new(
        options,
        length(inputs.kv_lengths, keys),
        length(inputs.q_lengths, dims.q_len),
        inputs.offsets.map(|offsets| offsets[batch]),
    );
    let size = rows.len() * keys;
    let kernel = source.kernel()?;
    let scale = options.scale_for(dims.qk_dim);
    let of_head =
        |all: &[f32], at: usize| memory::copied("pairs", &all[at * size..(at + 1) * size]);
    let views = heads.clone().enumerate().map(|(at, head)| {
        let visible =
            (masked[at * size..(at + 1) * size].iter()).map(|&score| score != f32::NEG_INFINITY);
        let visible = memory::collected("pairs", size, visible)?;
        let effect = without_scale
            .as_ref()
            .map(|[scores, weights]| -> Result<_, Error> {
                let scores = of_head(scores, at)?;
                let seen = scores.iter().zip(&visible).filter(|(_, seen)| **seen);
                let scores: Vec<f32> = seen.map(|(&score, _)| score).collect();
                let weights = of_head(weights, at)?;
                let saturated = Weights::new(&weights, [rows.len(), keys])?.saturated(SATURATED)?;
                Ok(ScaleEffect {
                    scale: f64::from(scale),
                    root_of: (scale == Options::default().scale_for(dims.qk_dim))
                        .then_some(dims.qk_dim),
                    unscaled: ScoreStatistics::of(&scores),
                    saturated_unscaled: saturated.value,
                })
            });
        Ok(HeadView {
            batch,
            head,
            rows: rows.clone(),
            queries: dims.q_len,
            keys,
            offset: visibility.offset,
            sink: inputs.sinks.is_some(),
            tokens: request.tokens.clone(),
            weights: of_head(&weights, at)?,
            contributions: of_head(&contributions, at)?,
            through,
            visible,
            scale: effect.transpose()?,
        })
    });
    let views: Result<Vec<HeadView>, Stop> = views.collect();
    Ok((views?, kernel))
}

/// Heads that are read together: as many as stay within [`MAX_PAIRS`].
pub fn heads_at_once(rows: usize, keys: usize) -> usize {
    (MAX_PAIRS / rows.saturating_mul(keys).max(1)).max(1)
}
