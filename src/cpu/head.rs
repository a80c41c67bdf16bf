//! One (batch, query head): keys and values widened once, rows in tiles.

use crate::error::Result;
use crate::host::inputs::Inputs;
use crate::host::tensor::Data;
use crate::memory::filled;
use crate::rules::dims::Dims;
use crate::rules::options::Options;
use crate::rules::positional::Visibility;

/// Keys in a block. 32 running dot products fill half of the vector registers
/// of the narrowest target (SSE2, NEON) and leave the rest for the keys.
pub(super) const KEYS: usize = 32;

/// What the rows of one (batch, query head) share.
pub(super) struct Head<'a> {
    pub inputs: &'a Inputs<'a>,
    pub dims: Dims,
    pub b: usize,
    pub h: usize,
    pub visibility: Visibility,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub slope: Option<f32>,
    pub sink: Option<f32>,
    /// Nothing but scale and position decides about a score.
    pub plain: bool,
    /// (blocks, Dqk, KEYS): keys transposed block by block, the last one padded
    /// with zeros.
    keys: Vec<f32>,
    /// (Nk, Dv).
    values: Vec<f32>,
}

/// A block of keys and their values.
pub(super) struct Block<'a> {
    /// The first key.
    pub first: usize,
    /// (Dqk, KEYS).
    pub keys: &'a [f32],
    /// (keys from `first` on, Dv).
    pub values: &'a [f32],
}

impl<'a> Head<'a> {
    pub fn new(
        inputs: &'a Inputs,
        options: &Options,
        dims: Dims,
        b: usize,
        h: usize,
    ) -> Result<Self> {
        let kv_len = inputs.kv_lengths.map_or(dims.kv_len as u32, |n| n[b]);
        let q_len = inputs.q_lengths.map_or(dims.q_len as u32, |n| n[b]);
        let offset = inputs.offsets.map(|offsets| offsets[b]);
        let slab = (b * dims.kv_heads + h / dims.group()) * dims.kv_len;
        let blocks = [dims.kv_len.div_ceil(KEYS), dims.qk_dim, KEYS];
        let mut keys = filled("keys of a head", &blocks, 0.0)?;
        let mut line = filled("a key", &[dims.qk_dim], 0.0)?;
        for j in 0..kv_len as usize {
            widen(inputs.key.data(), (slab + j) * dims.qk_dim, &mut line);
            let block = &mut keys[j / KEYS * dims.qk_dim * KEYS..];
            for (d, &k) in line.iter().enumerate() {
                block[d * KEYS + j % KEYS] = k;
            }
        }
        let mut values = filled("values of a head", &[kv_len as usize, dims.v_dim], 0.0)?;
        widen(inputs.value.data(), slab * dims.v_dim, &mut values);
        let softcap = options.softcap;
        Ok(Head {
            inputs,
            dims,
            b,
            h,
            visibility: Visibility::new(options, kv_len, q_len, offset),
            scale: options.scale_for(dims.qk_dim),
            softcap,
            slope: inputs.alibi_slopes.map(|slopes| slopes[h]),
            sink: inputs.sinks.map(|sinks| sinks[h]).filter(|s| s.is_finite()),
            plain: softcap.is_none()
                && inputs.bias.is_none()
                && inputs.alibi_slopes.is_none()
                && inputs.mask.is_none()
                && inputs.segments.is_none(),
            keys,
            values,
        })
    }

    /// The query of row `i`, in f32.
    pub fn query(&self, i: usize) -> Result<Vec<f32>> {
        let Dims {
            q_heads,
            q_len,
            qk_dim,
            ..
        } = self.dims;
        let mut line = filled("a query", &[qk_dim], 0.0)?;
        let row = (self.b * q_heads + self.h) * q_len + i;
        widen(self.inputs.query.data(), row * qk_dim, &mut line);
        Ok(line)
    }

    pub fn block(&self, index: usize) -> Block<'_> {
        let size = self.dims.qk_dim * KEYS;
        Block {
            first: index * KEYS,
            keys: &self.keys[index * size..(index + 1) * size],
            values: &self.values[index * KEYS * self.dims.v_dim..],
        }
    }
}

/// Elements `start..` of a tensor's storage, widened exactly.
fn widen(data: Data, start: usize, into: &mut [f32]) {
    let end = start + into.len();
    match data {
        Data::F32(d) => into.copy_from_slice(&d[start..end]),
        Data::F16(d) => {
            for (to, from) in into.iter_mut().zip(&d[start..end]) {
                *to = from.to_f32();
            }
        }
        Data::BF16(d) => {
            for (to, from) in into.iter_mut().zip(&d[start..end]) {
                *to = from.to_f32();
            }
        }
    }
}
