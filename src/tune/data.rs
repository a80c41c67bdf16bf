//! Inputs made up for a problem.

use half::{bf16, f16};

use crate::error::{Result, no_memory};
use crate::host::inputs::Inputs;
use crate::host::tensor::{BoolMask, Data, MaskData, Tensor};
use crate::plan::problem::Problem;
use crate::view::dtype::{DType, Polarity};
use crate::view::lists::{ListKind, ListSource};

/// Operands of a problem's shapes and storage types, in host memory.
pub(crate) struct Generated {
    query: Stored,
    key: Stored,
    value: Stored,
    bias: Option<Stored>,
    mask: Option<(Mask, [usize; 4], Polarity)>,
    lists: Vec<(ListKind, Vec<u32>)>,
}

struct Stored {
    values: Values,
    shape: [usize; 4],
}

enum Values {
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

/// Every pair is visible; how the mask says it costs the same.
enum Mask {
    Bytes(Vec<u8>),
    Bits(Vec<u32>),
}

impl Generated {
    pub fn new(problem: &Problem) -> Result<Self> {
        let dims = &problem.task.dims;
        let tensor = |name: &str, seed: u64, dtype, shape| stored(name, seed, dtype, shape);
        let mask = match &problem.task.mask {
            None => None,
            Some(m) => {
                let mut shape = m.geometry.shape;
                let count = count(shape);
                let keep = m.polarity == Polarity::Keep;
                let mask = match m.bits {
                    true => Mask::Bits(filled("mask", count, if keep { u32::MAX } else { 0 })?),
                    false => Mask::Bytes(filled("mask", count, u8::from(keep))?),
                };
                // Of pairs, not of words.
                shape[3] = if m.key_stride == 0 { 1 } else { dims.kv_len };
                Some((mask, shape, m.polarity))
            }
        };
        let list = |(kind, source): &(ListKind, ListSource)| {
            let words = match source {
                ListSource::Host(words) => words.clone(),
                ListSource::Buffer { len, .. } => {
                    let word = match kind {
                        ListKind::KvLengths => dims.kv_len as u32,
                        ListKind::QLengths => dims.q_len as u32,
                        ListKind::Slopes => 0.125f32.to_bits(),
                        _ => 0,
                    };
                    filled(kind.name(), *len, word)?
                }
            };
            Ok((*kind, words))
        };
        let bias = problem
            .task
            .bias
            .map(|(g, dtype)| tensor("bias", 4, dtype, g.shape));
        Ok(Generated {
            query: tensor(
                "query",
                1,
                problem.task.query_dtype,
                problem.task.query.shape,
            )?,
            key: tensor("key", 2, problem.task.kv_dtype, problem.task.key.shape)?,
            value: tensor("value", 3, problem.task.kv_dtype, problem.task.value.shape)?,
            bias: bias.transpose()?,
            mask,
            lists: problem.task.lists.iter().map(list).collect::<Result<_>>()?,
        })
    }

    pub fn inputs(&self) -> Result<Inputs<'_>> {
        let mut inputs = Inputs::new(
            self.query.tensor()?,
            self.key.tensor()?,
            self.value.tensor()?,
        );
        inputs.bias = self.bias.as_ref().map(Stored::tensor).transpose()?;
        if let Some((mask, shape, polarity)) = &self.mask {
            let data = match mask {
                Mask::Bytes(bytes) => MaskData::Bytes(bytes),
                Mask::Bits(words) => MaskData::Bits(words),
            };
            inputs.mask = Some(BoolMask::new(data, *shape, *polarity)?);
        }
        let words = |kind| {
            let found = self.lists.iter().find(|(k, _)| *k == kind);
            found.map(|(_, words)| &words[..])
        };
        let floats = |kind| words(kind).map(bytemuck::cast_slice);
        inputs.kv_lengths = words(ListKind::KvLengths);
        inputs.q_lengths = words(ListKind::QLengths);
        inputs.offsets = words(ListKind::Offsets).map(bytemuck::cast_slice);
        inputs.segments = words(ListKind::QSegments).zip(words(ListKind::KvSegments));
        inputs.alibi_slopes = floats(ListKind::Slopes);
        inputs.sinks = floats(ListKind::Sinks);
        Ok(inputs)
    }
}

impl Stored {
    fn tensor(&self) -> Result<Tensor<'_>> {
        let data = match &self.values {
            Values::F32(values) => Data::F32(values),
            Values::F16(values) => Data::F16(values),
            Values::BF16(values) => Data::BF16(values),
        };
        Tensor::new(data, self.shape)
    }
}

fn count(shape: [usize; 4]) -> usize {
    shape.iter().fold(1, |n, &m| n.saturating_mul(m))
}

fn filled<T: Clone>(name: &str, count: usize, value: T) -> Result<Vec<T>> {
    let mut values = Vec::new();
    let reserved = values.try_reserve_exact(count);
    reserved.map_err(|_| no_memory(name, count))?;
    values.resize(count, value);
    Ok(values)
}

fn stored(name: &str, seed: u64, dtype: DType, shape: [usize; 4]) -> Result<Stored> {
    let count = count(shape);
    let mut values = filled(name, count, 0f32)?;
    for (n, value) in values.iter_mut().enumerate() {
        *value = uniform(seed << 40 | n as u64);
    }
    let values = values.into_iter();
    Ok(Stored {
        values: match dtype {
            DType::F32 => Values::F32(values.collect()),
            DType::F16 => Values::F16(values.map(f16::from_f32).collect()),
            DType::BF16 => Values::BF16(values.map(bf16::from_f32).collect()),
        },
        shape,
    })
}

/// The n-th of numbers that look random in [-1, 1): splitmix64 of Steele, Lea
/// and Flood 2014.
fn uniform(n: u64) -> f32 {
    let mut z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}
