//! One query row: scores of a block of keys, online softmax, weighted values.

use std::ops::Range;

use super::head::{Block, Head, KEYS};
use crate::error::Result;
use crate::rules::dims::Dims;

/// A row and its softmax state: the largest score so far, the sum of
/// `exp(score - maximum)`, and the weighted values relative to the same maximum.
pub(super) struct Row<'a> {
    i: usize,
    /// The interval of keys that position and lengths allow.
    pub keys: Range<usize>,
    query: Vec<f32>,
    maximum: f32,
    sum: f32,
    output: &'a mut [f32],
    /// Something is in `sum`. Never guessed from a float that looks like a sentinel.
    begun: bool,
}

impl<'a> Row<'a> {
    /// A row that has seen nothing but the sink, which has weight and no value.
    /// `output` is zero.
    pub fn new(head: &Head, i: usize, output: &'a mut [f32]) -> Result<Self> {
        let keys = head.visibility.keys_of_row(i as u32);
        Ok(Row {
            i,
            keys: keys.start as usize..keys.end as usize,
            query: head.query(i)?,
            maximum: head.sink.unwrap_or(f32::MIN),
            sum: if head.sink.is_some() { 1.0 } else { 0.0 },
            output,
            begun: head.sink.is_some(),
        })
    }

    /// Takes a block of keys in. If the row sees none of them, nothing changes.
    pub fn visit(&mut self, head: &Head, block: &Block) {
        let first = self.keys.start.max(block.first);
        let end = self.keys.end.min(block.first + KEYS);
        if first >= end {
            return;
        }
        let dots = dots(&self.query, block.keys);
        // The visible keys, closed up: position in the block and score.
        let mut visible = [0usize; KEYS];
        let mut weights = [0f32; KEYS];
        let mut count = 0;
        let dots = dots.iter().enumerate().take(end - block.first);
        for (at, &dot) in dots.skip(first - block.first) {
            let score = if head.plain {
                Some(head.scale * dot)
            } else {
                self.score(head, block.first + at, dot)
            };
            if let Some(score) = score {
                visible[count] = at;
                weights[count] = score;
                count += 1;
            }
        }
        if count == 0 {
            return;
        }
        let (visible, weights) = (&visible[..count], &mut weights[..count]);
        let maximum = weights.iter().copied().fold(self.maximum, f32::max);
        if maximum > self.maximum {
            let rescale = (self.maximum - maximum).exp();
            self.sum *= rescale;
            self.output.iter_mut().for_each(|o| *o *= rescale);
            self.maximum = maximum;
        }
        for weight in &mut *weights {
            *weight = (*weight - maximum).exp();
        }
        self.sum += weights.iter().sum::<f32>();
        accumulate(self.output, weights, visible, block.values);
        self.begun = true;
    }

    /// The score of a key within the interval; none if another rule excludes it.
    fn score(&self, head: &Head, j: usize, dot: f32) -> Option<f32> {
        let inputs = head.inputs;
        let pair = [head.b, head.h, self.i, j];
        if inputs.mask.is_some_and(|mask| !mask.visible(pair)) {
            return None;
        }
        if let Some((queries, keys)) = inputs.segments {
            let query = queries[head.b * head.dims.q_len + self.i];
            if query != keys[head.b * head.dims.kv_len + j] {
                return None;
            }
        }
        let mut score = head.scale * dot;
        if let Some(cap) = head.softcap {
            score = cap * (score / cap).tanh();
        }
        if let Some(bias) = inputs.bias {
            let bias = bias.at(pair);
            if bias == f32::NEG_INFINITY {
                return None;
            }
            score += bias;
        }
        if let Some(slope) = head.slope {
            score -= slope * head.visibility.distance(self.i as u32, j as u32) as f32;
        }
        Some(score)
    }

    /// Divides, and returns the log-sum-exp.
    pub fn finish(self) -> f32 {
        if !self.begun {
            return f32::NEG_INFINITY;
        }
        self.output.iter_mut().for_each(|o| *o /= self.sum);
        self.maximum + self.sum.ln()
    }
}

/// Rows that visit a block of keys one after another while it is in the cache.
const ROWS: usize = 16;

impl Head<'_> {
    /// Writes the head's output (Nq, Dv) and lse (Nq).
    pub fn forward(&self, output: &mut [f32], lse: &mut [f32]) -> Result<()> {
        let Dims { q_len, v_dim, .. } = self.dims;
        for first in (0..q_len).step_by(ROWS) {
            let end = (first + ROWS).min(q_len);
            let lines = output[first * v_dim..end * v_dim].chunks_mut(v_dim);
            let rows = lines.zip(first..end);
            let mut rows: Vec<Row> = rows
                .map(|(output, i)| Row::new(self, i, output))
                .collect::<Result<_>>()?;
            let seen = rows.iter().map(|row| row.keys.clone());
            // An empty row begins nowhere and ends nowhere.
            let seen = seen.filter(|keys| !keys.is_empty());
            let (begin, stop) = seen.fold((usize::MAX, 0), |(begin, stop), keys| {
                (begin.min(keys.start), stop.max(keys.end))
            });
            for index in begin / KEYS..stop.div_ceil(KEYS) {
                let block = self.block(index);
                for row in &mut rows {
                    row.visit(self, &block);
                }
            }
            for (row, lse) in rows.into_iter().zip(&mut lse[first..end]) {
                *lse = row.finish();
            }
        }
        Ok(())
    }
}

/// Dot products of a query with the keys of a block, all at once.
fn dots(query: &[f32], keys: &[f32]) -> [f32; KEYS] {
    let mut dots = [0f32; KEYS];
    for (&q, line) in query.iter().zip(keys.chunks_exact(KEYS)) {
        for (dot, &k) in dots.iter_mut().zip(line) {
            *dot += q * k;
        }
    }
    dots
}

/// Adds `weight * value` of the visible keys, four keys for each pass over the output.
fn accumulate(output: &mut [f32], weights: &[f32], visible: &[usize], values: &[f32]) {
    let dim = output.len();
    let line = |at: usize| &values[at * dim..(at + 1) * dim];
    let (quads, rest) = (weights.chunks_exact(4), visible.chunks_exact(4));
    let (last_weights, last_keys) = (quads.remainder(), rest.remainder());
    for (w, at) in quads.zip(rest) {
        let (v0, v1) = (line(at[0]), line(at[1]));
        let (v2, v3) = (line(at[2]), line(at[3]));
        for d in 0..dim {
            output[d] += (w[0] * v0[d] + w[1] * v1[d]) + (w[2] * v2[d] + w[3] * v3[d]);
        }
    }
    for (&w, &at) in last_weights.iter().zip(last_keys) {
        for (o, &v) in output.iter_mut().zip(line(at)) {
            *o += w * v;
        }
    }
}
