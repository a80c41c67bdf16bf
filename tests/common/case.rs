//! A call of attention that owns its operands.

use half::{bf16, f16};
use wgpu_attention::{
    BoolMask, DType, Data, Dims, Inputs, MaskData, Options, Polarity, Tensor, Visibility,
};

/// Elements of one tensor in their storage type.
#[derive(Debug, Clone)]
pub enum Elements {
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

impl Elements {
    /// `values` rounded to `dtype`.
    pub fn new(values: &[f32], dtype: DType) -> Self {
        match dtype {
            DType::F32 => Elements::F32(values.to_vec()),
            DType::F16 => Elements::F16(values.iter().map(|&v| f16::from_f32(v)).collect()),
            DType::BF16 => Elements::BF16(values.iter().map(|&v| bf16::from_f32(v)).collect()),
        }
    }

    pub fn data(&self) -> Data<'_> {
        match self {
            Elements::F32(d) => Data::F32(d),
            Elements::F16(d) => Data::F16(d),
            Elements::BF16(d) => Data::BF16(d),
        }
    }

    pub fn dtype(&self) -> DType {
        self.data().dtype()
    }

    pub fn len(&self) -> usize {
        self.data().len()
    }

    pub fn set(&mut self, index: usize, value: f32) {
        match self {
            Elements::F32(d) => d[index] = value,
            Elements::F16(d) => d[index] = f16::from_f32(value),
            Elements::BF16(d) => d[index] = bf16::from_f32(value),
        }
    }

    /// Widened to f32.
    pub fn to_f32(&self) -> Vec<f32> {
        (0..self.len()).map(|i| self.data().get(i)).collect()
    }
}

/// Storage of a boolean mask.
#[derive(Debug, Clone)]
pub enum MaskBits {
    Bytes(Vec<u8>),
    Bits(Vec<u32>),
}

/// A boolean mask, broadcastable to (B, Hq, Nq, Nk).
#[derive(Debug, Clone)]
pub struct OwnedMask {
    pub data: MaskBits,
    pub shape: [usize; 4],
    pub polarity: Polarity,
}

/// Everything that one call needs.
#[derive(Debug, Clone)]
pub struct OwnedCase {
    /// Shape and features, for messages.
    pub name: String,
    pub dims: Dims,
    pub query: Elements,
    pub key: Elements,
    pub value: Elements,
    pub bias: Option<(Elements, [usize; 4])>,
    pub mask: Option<OwnedMask>,
    pub kv_lengths: Option<Vec<u32>>,
    pub q_lengths: Option<Vec<u32>>,
    pub offsets: Option<Vec<i32>>,
    pub segments: Option<(Vec<u32>, Vec<u32>)>,
    pub alibi_slopes: Option<Vec<f32>>,
    pub sinks: Option<Vec<f32>>,
    pub options: Options,
    /// Storage type of the output.
    pub out: DType,
    /// Elements that hold NaN or an infinity that no row may see.
    pub poisoned: usize,
}

impl OwnedCase {
    pub fn inputs(&self) -> Inputs<'_> {
        let Dims {
            batch,
            q_heads,
            kv_heads,
            q_len,
            kv_len,
            qk_dim,
            v_dim,
        } = self.dims;
        let mut inputs = Inputs::new(
            Tensor::new(self.query.data(), [batch, q_heads, q_len, qk_dim]).unwrap(),
            Tensor::new(self.key.data(), [batch, kv_heads, kv_len, qk_dim]).unwrap(),
            Tensor::new(self.value.data(), [batch, kv_heads, kv_len, v_dim]).unwrap(),
        );
        if let Some((bias, shape)) = &self.bias {
            inputs = inputs.bias(Tensor::new(bias.data(), *shape).unwrap());
        }
        if let Some(mask) = &self.mask {
            let data = match &mask.data {
                MaskBits::Bytes(d) => MaskData::Bytes(d),
                MaskBits::Bits(d) => MaskData::Bits(d),
            };
            inputs = inputs.mask(BoolMask::new(data, mask.shape, mask.polarity).unwrap());
        }
        inputs.kv_lengths = self.kv_lengths.as_deref();
        inputs.q_lengths = self.q_lengths.as_deref();
        inputs.offsets = self.offsets.as_deref();
        inputs.segments = self.segments.as_ref().map(|(q, k)| (&q[..], &k[..]));
        inputs.alibi_slopes = self.alibi_slopes.as_deref();
        inputs.sinks = self.sinks.as_deref();
        inputs
    }

    /// Positional visibility of a batch entry.
    pub fn visibility(&self, b: usize) -> Visibility {
        let kv_len = self.kv_lengths.as_ref().map(|l| l[b]);
        let q_len = self.q_lengths.as_ref().map(|l| l[b]);
        Visibility::new(
            &self.options,
            kv_len.unwrap_or(self.dims.kv_len as u32),
            q_len.unwrap_or(self.dims.q_len as u32),
            self.offsets.as_ref().map(|o| o[b]),
        )
    }

    /// Whether the pair takes part by every rule but the bias.
    pub fn visible_without_bias(&self, [b, h, i, j]: [usize; 4]) -> bool {
        let inputs = self.inputs();
        self.visibility(b).allows(i as u32, j as u32)
            && inputs.mask.is_none_or(|mask| mask.visible([b, h, i, j]))
            && inputs.segments.is_none_or(|(queries, keys)| {
                queries[b * self.dims.q_len + i] == keys[b * self.dims.kv_len + j]
            })
    }

    /// Whether the pair takes part.
    pub fn visible(&self, pair: [usize; 4]) -> bool {
        let bias = self.inputs().bias.map(|bias| bias.at(pair));
        bias != Some(f32::NEG_INFINITY) && self.visible_without_bias(pair)
    }
}
