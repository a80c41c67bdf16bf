//! The induction circuit of Elhage et al. (2021, *A Mathematical Framework for
//! Transformer Circuits*) and Olsson et al. (2022, *In-context Learning and Induction
//! Heads*), built by hand: two attention layers that, having seen [A][B], continue a later
//! [A] with [B].
//!
//! A token is a row of the residual stream, which has a part for each thing that is known
//! of it, one-hot:
//!
//! ```text
//! token | position | token before | next token | scratch
//! ```
//!
//! The embedding writes the first two. A previous-token head in layer 1 matches positions
//! and copies the token it finds to "token before"; an induction head in layer 2 matches
//! the current token with what others have as "token before", and copies their token to
//! "next token". The other heads do something else, and write to the scratch part.
// `tests/gpu_induction.rs` runs the same circuit, and others; each uses what it needs.
#![allow(dead_code)]

use wgpu_attention::interpret::{Row, Weights};
use wgpu_attention::{
    Alignment, Attention, DType, HostLinear, MultiHeadInputs, Options, Region, Result, Stage,
    Tensor, reference,
};

/// Score of a pair that matches, over the 0 of those that don't: e^12 is 160,000.
const SHARPNESS: f32 = 12.0;

/// A head is taken for what it scores highest in, if that is above this.
pub const FOUND: f64 = 0.5;

/// Where a head looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Looks {
    /// At the token so many before; at itself where there is none.
    Back(usize),
    /// At the first token.
    First,
    /// At everything before, evenly.
    Evenly,
    /// At occurrences of the same token, the current one among them.
    SameToken,
    /// At tokens whose "token before" is the current one.
    AfterSameToken,
}

/// Where a head writes the token that it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    TokenBefore,
    NextToken,
    Scratch,
}

/// A head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub looks: Looks,
    pub writes: Writes,
}

impl Head {
    fn control(looks: Looks) -> Head {
        let writes = Writes::Scratch;
        Head { looks, writes }
    }
}

/// The heads of both layers.
pub type Heads = [Vec<Head>; 2];

/// A previous-token head and an induction head among heads that do something else.
pub fn heads() -> Heads {
    let previous = Head {
        looks: Looks::Back(1),
        writes: Writes::TokenBefore,
    };
    let induction = Head {
        looks: Looks::AfterSameToken,
        writes: Writes::NextToken,
    };
    let [itself, two_back, first, evenly, same] = [
        Looks::Back(0),
        Looks::Back(2),
        Looks::First,
        Looks::Evenly,
        Looks::SameToken,
    ]
    .map(Head::control);
    [
        vec![first, itself, previous, evenly],
        vec![same, induction, evenly, two_back],
    ]
}

/// What a head scores.
#[derive(Debug, Clone, Copy)]
pub struct Scores {
    /// Mean weight on the token before.
    pub previous: f64,
    /// Mean weight on the token after an earlier occurrence of the current one.
    pub induction: f64,
    /// Mean entropy in nats.
    pub entropy: f64,
}

/// A run of the circuit.
pub struct Run {
    /// Of each layer and head.
    pub scores: Vec<Vec<Scores>>,
    /// Of each layer, (heads, length, length).
    pub weights: Vec<Vec<f32>>,
    /// Of each layer, (length, width): what it adds to the residual stream.
    pub outputs: Vec<Vec<f32>>,
    /// What comes next after each token.
    pub predictions: Vec<usize>,
}

/// Two layers for sequences of one length over so many tokens.
pub struct Circuit {
    heads: Heads,
    tokens: usize,
    length: usize,
}

impl Circuit {
    /// Tokens are numbers below `tokens`, sequences have `length` of them.
    pub fn new(heads: Heads, tokens: usize, length: usize) -> Circuit {
        Circuit {
            heads,
            tokens,
            length,
        }
    }

    /// Runs `sequence` through both layers and scores every head.
    pub fn run(&self, attention: &Attention, sequence: &[usize]) -> Result<Run> {
        let mut stream = self.embed(sequence);
        let (mut scores, mut weights, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
        for heads in &self.heads {
            let layer = Layer::new(self, heads);
            let input = self.rows(&stream)?;
            let inputs = layer.inputs(input)?;
            // The layer on the device, and its weights, which it does not keep.
            let output = attention.multi_head(&inputs, &causal())?;
            let of_layer = layer.weights(attention, &inputs)?;
            let pairs = self.length * self.length;
            let of_head = |weights: &[f32]| -> Result<Scores> {
                let weights = Weights::new(weights, [self.length, self.length])?;
                Ok(Scores {
                    previous: weights.mean(Row::previous_token).value,
                    induction: weights.induction(sequence)?.value,
                    entropy: weights.mean(Row::entropy).value,
                })
            };
            let of_heads = of_layer.chunks(pairs).map(of_head);
            scores.push(of_heads.collect::<Result<Vec<Scores>>>()?);
            weights.push(of_layer);
            // The residual connection.
            stream.iter_mut().zip(&output).for_each(|(x, y)| *x += y);
            outputs.push(output);
        }
        let predictions = stream.chunks(self.width()).map(|row| self.unembed(row));
        Ok(Run {
            scores,
            weights,
            outputs,
            predictions: predictions.collect(),
        })
    }

    /// Where a part of the residual stream begins.
    pub fn part(&self, part: Part) -> usize {
        let (tokens, length) = (self.tokens, self.length);
        match part {
            Part::Token => 0,
            Part::Position => tokens,
            Part::Written(Writes::TokenBefore) => tokens + length,
            Part::Written(Writes::NextToken) => 2 * tokens + length,
            Part::Written(Writes::Scratch) => 3 * tokens + length,
        }
    }

    /// Width of the residual stream.
    pub fn width(&self) -> usize {
        4 * self.tokens + self.length
    }

    /// Queries and keys hold a token or a position.
    fn qk_dim(&self) -> usize {
        self.tokens.max(self.length)
    }

    /// One-hot tokens and positions, (length, width).
    fn embed(&self, sequence: &[usize]) -> Vec<f32> {
        let width = self.width();
        let mut stream = vec![0.0; self.length * width];
        for (at, (row, &token)) in stream.chunks_mut(width).zip(sequence).enumerate() {
            row[self.part(Part::Token) + token] = 1.0;
            row[self.part(Part::Position) + at] = 1.0;
        }
        stream
    }

    /// The token that a row of the residual stream has most of as its next one.
    fn unembed(&self, row: &[f32]) -> usize {
        let first = self.part(Part::Written(Writes::NextToken));
        let logits = &row[first..first + self.tokens];
        let best = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
        (0..self.tokens).reduce(best).unwrap_or(0)
    }

    fn rows<'a>(&self, stream: &'a [f32]) -> Result<Tensor<'a>> {
        Tensor::f32(stream, [1, 1, self.length, self.width()])
    }
}

/// A part of the residual stream.
#[derive(Debug, Clone, Copy)]
pub enum Part {
    Token,
    Position,
    Written(Writes),
}

/// W_Q, W_K, W_V and W_O of a layer, (out, in), heads side by side.
struct Layer {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    output: Vec<f32>,
    heads: usize,
    length: usize,
    /// Of queries and keys, of values, of the residual stream.
    widths: [usize; 3],
}

impl Layer {
    fn new(circuit: &Circuit, heads: &[Head]) -> Layer {
        let (qk_dim, width, tokens) = (circuit.qk_dim(), circuit.width(), circuit.tokens);
        let count = heads.len();
        let mut layer = Layer {
            query: vec![0.0; count * qk_dim * width],
            key: vec![0.0; count * qk_dim * width],
            value: vec![0.0; count * tokens * width],
            output: vec![0.0; width * count * tokens],
            heads: count,
            length: circuit.length,
            widths: [qk_dim, tokens, width],
        };
        // The scores are divided by this.
        let sharp = SHARPNESS * (qk_dim as f32).sqrt();
        let token = circuit.part(Part::Token);
        let position = circuit.part(Part::Position);
        let before = circuit.part(Part::Written(Writes::TokenBefore));
        for (h, head) in heads.iter().enumerate() {
            // Column d of queries and keys asks for, and has, the same one-hot number.
            let mut ask = |d: usize, of: usize| layer.query[(h * qk_dim + d) * width + of] = sharp;
            let mut have = |d: usize, of: usize| layer.key[(h * qk_dim + d) * width + of] = 1.0;
            match head.looks {
                Looks::Back(back) => {
                    (back..circuit.length).for_each(|i| ask(i - back, position + i));
                    (0..circuit.length).for_each(|j| have(j, position + j));
                }
                Looks::First => {
                    (0..circuit.length).for_each(|i| ask(0, position + i));
                    have(0, position);
                }
                Looks::Evenly => {}
                Looks::SameToken => (0..tokens).for_each(|t| {
                    ask(t, token + t);
                    have(t, token + t);
                }),
                Looks::AfterSameToken => (0..tokens).for_each(|t| {
                    ask(t, token + t);
                    have(t, before + t);
                }),
            }
            let written = circuit.part(Part::Written(head.writes));
            for t in 0..tokens {
                layer.value[(h * tokens + t) * width + token + t] = 1.0;
                layer.output[(written + t) * count * tokens + h * tokens + t] = 1.0;
            }
        }
        layer
    }

    fn inputs<'a>(&'a self, input: Tensor<'a>) -> Result<MultiHeadInputs<'a>> {
        let [qk_dim, v_dim, width] = self.widths;
        let (qk_dim, v_dim) = (self.heads * qk_dim, self.heads * v_dim);
        let linear = |weight: &'a [f32], rows, columns| -> Result<HostLinear<'a>> {
            let weight = Tensor::f32(weight, [1, 1, rows, columns])?;
            Ok(HostLinear { weight, bias: None })
        };
        let projections = [
            linear(&self.query, qk_dim, width)?,
            linear(&self.key, qk_dim, width)?,
            linear(&self.value, v_dim, width)?,
            linear(&self.output, width, v_dim)?,
        ];
        Ok(MultiHeadInputs::new(input, self.heads, projections))
    }

    /// The probabilities of every head, (heads, tokens, tokens), from the device; queries
    /// and keys are projected here.
    fn weights(&self, attention: &Attention, inputs: &MultiHeadInputs<'_>) -> Result<Vec<f32>> {
        let (heads, length) = (self.heads, self.length);
        let [qk_dim, v_dim, _] = self.widths;
        // (tokens, heads dim) to (heads, tokens, dim).
        let by_head = |linear: &HostLinear<'_>, dim: usize| -> Result<Vec<f32>> {
            let found = reference::project(&inputs.input, &linear.weight, None, DType::F32)?;
            let mut list = Vec::with_capacity(found.values.len());
            for h in 0..heads {
                for row in found.values.chunks(heads * dim) {
                    list.extend(row[h * dim..(h + 1) * dim].iter().map(|&x| x as f32));
                }
            }
            Ok(list)
        };
        let query = by_head(&inputs.query, qk_dim)?;
        let key = by_head(&inputs.key, qk_dim)?;
        let value = by_head(&inputs.value, v_dim)?;
        let tensor = |list, dim| Tensor::f32(list, [1, heads, length, dim]);
        let (query, key) = (tensor(&query, qk_dim)?, tensor(&key, qk_dim)?);
        let inputs = inputs.attention_of(query, key, tensor(&value, v_dim)?);
        let all = Region {
            batches: 0..1,
            heads: 0..heads,
            rows: 0..length,
        };
        attention.stage(&inputs, &causal(), Stage::Probabilities, &all)
    }
}

fn causal() -> Options {
    Options::default()
        .causal(true)
        .alignment(Alignment::TopLeft)
}

impl Run {
    /// The weights of a head.
    pub fn weights(&self, (layer, head): (usize, usize)) -> Result<Weights<'_>> {
        let pairs = self.weights[layer].len() / self.scores[layer].len();
        let length = pairs.isqrt();
        let weights = &self.weights[layer][head * pairs..(head + 1) * pairs];
        Weights::new(weights, [length, length])
    }

    /// Layer and head of the highest score, if it is above [`FOUND`].
    pub fn find(&self, score: impl Fn(&Scores) -> f64) -> Option<(usize, usize)> {
        let layers = self.scores.iter().enumerate();
        let heads = layers.flat_map(|(layer, heads)| {
            let of = |(head, scores)| ((layer, head), score(scores));
            heads.iter().enumerate().map(of).collect::<Vec<_>>()
        });
        let best = heads.max_by(|a, b| a.1.total_cmp(&b.1))?;
        (best.1 > FOUND).then_some(best.0)
    }

    /// How many tokens of `range` are followed by what was predicted, and how many are
    /// followed by any.
    pub fn right(&self, sequence: &[usize], range: std::ops::Range<usize>) -> [usize; 2] {
        let end = range.end.min(sequence.len() - 1);
        let is_right = |at: &usize| self.predictions[*at] == sequence[at + 1];
        let range = range.start..end;
        [range.clone().filter(is_right).count(), range.len()]
    }
}
