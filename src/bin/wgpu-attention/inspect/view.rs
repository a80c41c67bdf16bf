//! What is looked at: one head's weights and contributions as plain numbers.
//!
//! The tables and pictures take a [`HeadView`] and nothing else. [`read`] is the
//! one place that says where its numbers come from.

use std::ops::Range;

use wgpu_attention::reference::{self, KeyNorms};
use wgpu_attention::{
    DType, Dims, Error, Inputs, Inspection, Options, Pairs, Quantity, Region, Stage, Stats, Tensor,
    Visibility, gram_matrices,
};

use crate::backend::Backend;
use crate::case::{File, Problem};
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
}

/// What one query head of one batch entry looks at, for some of its query rows.
/// Everything by pair is (rows, keys), row by row.
#[derive(Debug, Clone)]
pub struct HeadView {
    pub batch: usize,
    pub head: usize,
    /// The query rows, of all that there are.
    pub rows: Range<usize>,
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
}

impl HeadView {
    /// The part of a list by pair that is row `i`.
    pub fn row<'a, T>(&self, list: &'a [T], i: usize) -> &'a [T] {
        let at = (i - self.rows.start) * self.keys;
        &list[at..at + self.keys]
    }

    /// A query for people: its number, and its token where it has one.
    pub fn query_name(&self, i: usize) -> String {
        numbered(&self.tokens.queries, i)
    }

    /// A key for people.
    pub fn key_name(&self, j: usize) -> String {
        numbered(&self.tokens.keys, j)
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

/// Where probabilities come from: the CPU path never holds any, so that the oracle
/// stands in for it.
pub fn source(backend: &Backend) -> &Backend {
    match backend {
        Backend::Cpu => &Backend::Oracle,
        other => other,
    }
}

/// Reads heads `heads` of batch entry `batch`; contributions behind the output
/// projection of the problem's layer if `through`.
///
/// Weights and contributions come from the [`source`], in its own precision. What V
/// holds at excluded keys has no part in them.
pub fn read(
    backend: &Backend,
    problem: &Problem,
    tokens: &Tokens,
    batch: usize,
    heads: Range<usize>,
    rows: Range<usize>,
    through: bool,
) -> Result<Vec<HeadView>, Stop> {
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
    let Seen {
        masked,
        weights,
        contributions,
    } = match source(backend) {
        Backend::Gpu(attention, _) => {
            let inspection = Inspection {
                output_weight,
                ..Inspection::default()
            };
            let uploaded = attention.upload_inspection(&inputs, options, &inspection)?;
            Seen::of(&region, keys, |pairs| uploaded.pairs(pairs))?
        }
        Backend::Cpu | Backend::Oracle => {
            let norms = norms(&inputs, &dims, output_weight.as_ref())?;
            let heads = norms.len() / (dims.batch * keys);
            let norms = Tensor::f32(&norms, [dims.batch, heads, keys, 1])?;
            Seen::of(&region, keys, |pairs| {
                of_oracle(&inputs, options, &norms, pairs)
            })?
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
    let of_head = |all: &[f32], at: usize| all[at * size..(at + 1) * size].to_vec();
    let views = heads.clone().enumerate().map(|(at, head)| HeadView {
        batch,
        head,
        rows: rows.clone(),
        keys,
        offset: visibility.offset,
        sink: inputs.sinks.is_some(),
        tokens: tokens.clone(),
        weights: of_head(&weights, at),
        contributions: of_head(&contributions, at),
        through,
        visible: (masked[at * size..(at + 1) * size].iter())
            .map(|&score| score != f32::NEG_INFINITY)
            .collect(),
    });
    Ok(views.collect())
}

/// What is read of a region: (heads, rows, keys) each.
struct Seen {
    masked: Vec<f32>,
    weights: Vec<f32>,
    contributions: Vec<f32>,
}

impl Seen {
    fn of(
        region: &Region,
        keys: usize,
        read: impl Fn(&Pairs) -> Result<Vec<f32>, Error>,
    ) -> Result<Seen, Error> {
        let read = |quantity| {
            read(&Pairs {
                quantity,
                region: region.clone(),
                keys: 0..keys,
            })
        };
        Ok(Seen {
            masked: read(Quantity::Stage(Stage::Masked))?,
            weights: read(Quantity::Stage(Stage::Probabilities))?,
            contributions: read(Quantity::Contribution)?,
        })
    }
}

fn of_oracle(
    inputs: &Inputs<'_>,
    options: &Options,
    norms: &KeyNorms<'_>,
    pairs: &Pairs,
) -> Result<Vec<f32>, Error> {
    let found = reference::pairs(
        inputs,
        options,
        Stats::RowState,
        Some(norms),
        pairs,
        DType::F32,
    )?;
    Ok(found.values.iter().map(|&x| x as f32).collect())
}

/// |V_j| or |V_j W_O^(h)| of every key of every kv or query head.
fn norms(
    inputs: &Inputs<'_>,
    dims: &Dims,
    output_weight: Option<&Tensor<'_>>,
) -> Result<Vec<f32>, Error> {
    let (heads, width) = (dims.q_heads, dims.v_dim);
    let norms = match output_weight {
        None => reference::value_norms(&inputs.value),
        Some(weight) => {
            let gram = gram_matrices(weight, heads, width)?;
            let gram = Tensor::f32(&gram, [1, heads, width, width])?;
            reference::value_norms_through(&inputs.value, &gram)?
        }
    };
    Ok(norms.values.iter().map(|&x| x as f32).collect())
}

/// Heads that are read together: as many as stay within [`MAX_PAIRS`].
pub fn heads_at_once(rows: usize, keys: usize) -> usize {
    (MAX_PAIRS / rows.saturating_mul(keys).max(1)).max(1)
}
