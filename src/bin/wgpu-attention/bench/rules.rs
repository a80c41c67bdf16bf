//! Rules on pairs and scores that a case can have, and what they hold.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};
use wgpu_attention::testing::Ruled;
use wgpu_attention::{
    BoolMask, DType, Error, Inputs, List, MaskData, MaskView, Operands, Polarity, Tensor,
    TensorView, wgpu,
};

use super::case::Case;
use super::clock::Clock;
use crate::memory;
use crate::report::Stop;

/// A rule, as the command line takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Scores become 50 tanh(score / 50).
    Softcap,
    /// Slopes 2^(-8 h / heads) for heads h from 1 on.
    Alibi,
    /// A byte a pair hides one pair in 8 at random, the same in all heads.
    MaskBytes,
    /// The same, a bit a pair.
    MaskBits,
    /// An f32 for each pair, the same in all heads.
    Bias,
    /// Four sequences of equal length behind each other.
    Segments,
}

/// Gemma 2's for attention.
pub const SOFTCAP: f32 = 50.0;
const SEQUENCES: usize = 4;

impl Rule {
    pub fn name(self) -> &'static str {
        match self {
            Rule::Softcap => "softcap",
            Rule::Alibi => "alibi",
            Rule::MaskBytes => "mask-bytes",
            Rule::MaskBits => "mask-bits",
            Rule::Bias => "bias",
            Rule::Segments => "segments",
        }
    }

    /// Mask or bias, and its bytes for a row of that many keys.
    pub fn bytes_of_row(self, kv_len: usize) -> Option<(&'static str, usize)> {
        match self {
            Rule::MaskBytes => Some(("mask", kv_len)),
            Rule::MaskBits => Some(("mask", kv_len.div_ceil(32) * 4)),
            Rule::Bias => Some(("bias", kv_len * 4)),
            Rule::Softcap | Rule::Alibi | Rule::Segments => None,
        }
    }

    /// The operands that rules take; an error if two are masks.
    pub fn operands(rules: &[Rule]) -> Result<Ruled, Stop> {
        let ruled = Ruled {
            bias: rules.contains(&Rule::Bias),
            mask_bytes: rules.contains(&Rule::MaskBytes),
            mask_bits: rules.contains(&Rule::MaskBits),
            segments: rules.contains(&Rule::Segments),
            alibi: rules.contains(&Rule::Alibi),
        };
        if ruled.mask_bytes && ruled.mask_bits {
            return Err("--rule: expected one mask, got mask-bytes and mask-bits".into());
        }
        Ok(ruled)
    }
}

/// What the rules of a case hold; the softcap is among its options.
#[derive(Debug, Default)]
pub struct Lists {
    slopes: Vec<f32>,
    mask: Vec<u8>,
    mask_bits: Vec<u32>,
    bias: Vec<f32>,
    /// Of queries and keys.
    segments: [Vec<u32>; 2],
    /// (1, 1, queries, keys).
    pairs: [usize; 4],
}

/// Mask and bias on the device.
pub struct Buffers {
    mask: Option<wgpu::Buffer>,
    bias: Option<wgpu::Buffer>,
}

/// A bit a pair; each row of keys starts a new word.
fn packed(kept: &[u8], kv_len: usize) -> Vec<u32> {
    let words = kept.chunks(kv_len).flat_map(|row| row.chunks(32));
    let word = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0, |word, &byte| word << 1 | u32::from(byte))
    };
    words.map(word).collect()
}

impl Lists {
    /// # Errors
    /// [`Error::HostMemory`].
    pub fn new(case: &Case) -> Result<Lists, Error> {
        let mut lists = Lists {
            pairs: [1, 1, case.q_len, case.kv_len],
            ..Lists::default()
        };
        let mut rng = StdRng::seed_from_u64(37);
        let count = case.q_len * case.kv_len;
        for rule in &case.rules {
            match rule {
                Rule::Softcap => {}
                Rule::Alibi => {
                    let slope = |h: usize| (-8.0 * h as f32 / case.heads as f32).exp2();
                    let slopes = (1..=case.heads).map(slope);
                    lists.slopes = memory::collected("slopes", case.heads, slopes)?;
                }
                Rule::MaskBytes | Rule::MaskBits => {
                    let kept = std::iter::repeat_with(|| u8::from(rng.random_range(0..8) > 0));
                    let kept: Vec<u8> = memory::collected("mask", count, kept)?;
                    match rule {
                        Rule::MaskBits => lists.mask_bits = packed(&kept, case.kv_len),
                        _ => lists.mask = kept,
                    }
                }
                Rule::Bias => {
                    let normal = StandardNormal.sample_iter(&mut rng);
                    lists.bias = memory::collected("bias", count, normal)?;
                }
                Rule::Segments => {
                    let ids = |len: usize, batch: usize| -> Result<Vec<u32>, Error> {
                        let id = |n: usize| (n % len * SEQUENCES / len) as u32;
                        memory::collected("segments", batch * len, (0..batch * len).map(id))
                    };
                    lists.segments = [ids(case.q_len, case.batch)?, ids(case.kv_len, case.batch)?];
                }
            }
        }
        Ok(lists)
    }

    /// Adds them to what the oracle takes.
    pub fn inputs<'a>(&'a self, mut inputs: Inputs<'a>) -> Result<Inputs<'a>, Error> {
        if !self.slopes.is_empty() {
            inputs = inputs.alibi_slopes(&self.slopes);
        }
        for data in [MaskData::Bytes(&self.mask), MaskData::Bits(&self.mask_bits)] {
            let is_empty = match data {
                MaskData::Bytes(bytes) => bytes.is_empty(),
                MaskData::Bits(words) => words.is_empty(),
            };
            if !is_empty {
                inputs = inputs.mask(BoolMask::new(data, self.pairs, Polarity::Keep)?);
            }
        }
        if !self.bias.is_empty() {
            inputs = inputs.bias(Tensor::f32(&self.bias, self.pairs)?);
        }
        let [queries, keys] = &self.segments;
        if !queries.is_empty() {
            inputs = inputs.segments(queries, keys);
        }
        Ok(inputs)
    }

    pub fn upload(&self, clock: &Clock<'_>) -> Buffers {
        let filled = |label, bytes: &[u8]| (!bytes.is_empty()).then(|| clock.filled(label, bytes));
        let mask = filled("mask", &self.mask);
        Buffers {
            mask: mask.or_else(|| filled("mask", bytemuck::cast_slice(&self.mask_bits))),
            bias: filled("bias", bytemuck::cast_slice(&self.bias)),
        }
    }

    /// Adds them to what a plan reads.
    pub fn operands<'a>(
        &'a self,
        buffers: &'a Buffers,
        mut operands: Operands<'a>,
    ) -> Result<Operands<'a>, Error> {
        if !self.slopes.is_empty() {
            operands = operands.alibi_slopes(List::Host(&self.slopes));
        }
        if let Some(buffer) = &buffers.mask {
            operands = operands.mask(match self.mask.is_empty() {
                true => MaskView::bits(buffer, self.pairs, 0, Polarity::Keep)?,
                false => MaskView::bytes(buffer, self.pairs, 0, Polarity::Keep)?,
            });
        }
        if let Some(buffer) = &buffers.bias {
            operands = operands.bias(TensorView::bhsd(buffer, DType::F32, self.pairs, 0)?);
        }
        let [queries, keys] = &self.segments;
        if !queries.is_empty() {
            operands = operands.segments(List::Host(queries), List::Host(keys));
        }
        Ok(operands)
    }
}
