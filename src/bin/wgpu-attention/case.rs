//! A file's tensors in memory, and the attention call it describes.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{SafeTensorError, SafeTensors};
use wgpu_attention::{Alignment, BoolMask, Inputs, MaskData, Options, Polarity};

use crate::array::{Array, Values};
use crate::report::shown;
use crate::{input, json, numpy, options};

/// Tensors and attributes of one file.
#[derive(Debug, Clone, Default)]
pub struct File {
    pub tensors: BTreeMap<String, Array>,
    pub metadata: BTreeMap<String, String>,
}

impl File {
    /// Reads a safetensors, .npz or .npy file; what it begins with decides.
    pub fn read(path: &Path) -> Result<File, String> {
        File::read_with(path, false)
    }

    /// The same; with `round_f64`, elements of type F64 become F32.
    pub fn read_with(path: &Path, round_f64: bool) -> Result<File, String> {
        let bytes = input::read(path)?;
        match numpy::kind(&bytes) {
            Some(kind) => numpy::parse(kind, &bytes, round_f64),
            None => File::parse_with(&bytes, round_f64),
        }
    }

    /// Parses the bytes of a safetensors file.
    pub fn parse(bytes: &[u8]) -> Result<File, String> {
        File::parse_with(bytes, false)
    }

    fn parse_with(bytes: &[u8], round_f64: bool) -> Result<File, String> {
        let not_safetensors = |e| match e {
            // What the first eight bytes of any other file mean as a number.
            SafeTensorError::HeaderTooLarge => "not a safetensors file".to_owned(),
            e => format!("not a safetensors file: {e}"),
        };
        // A length in 8 bytes, then the header; what is cut is refused below.
        let length = bytes.first_chunk().map(|n| u64::from_le_bytes(*n));
        let end = length.and_then(|n| usize::try_from(n).ok()?.checked_add(8));
        if let Some(header) = end.and_then(|end| bytes.get(8..end)) {
            json::read::<serde::de::IgnoredAny>(header)
                .map_err(|e| format!("not a safetensors file: its header: {e}"))?;
        }
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(not_safetensors)?;
        let views = SafeTensors::deserialize(bytes).map_err(not_safetensors)?;
        let mut tensors = BTreeMap::new();
        for (name, view) in views.iter() {
            let array = Array::from_view_with(&view, round_f64);
            let array = array.map_err(|e| format!("tensor {}: {e}", shown(name)))?;
            tensors.insert(name.to_owned(), array);
        }
        let metadata = header.metadata().clone().unwrap_or_default();
        Ok(File {
            tensors,
            metadata: metadata.into_iter().collect(),
        })
    }

    /// A tensor that may be absent.
    pub fn get(&self, name: &str) -> Option<&Array> {
        self.tensors.get(name)
    }

    /// A tensor that must be there.
    pub fn need(&self, name: &str) -> Result<&Array, String> {
        self.get(name).ok_or_else(|| format!("no tensor {name}"))
    }

    /// An attribute, parsed; `None` where it is absent.
    pub fn attribute<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        let Some(text) = self.metadata.get(name) else {
            return Ok(None);
        };
        let value = text.parse();
        value.map(Some).map_err(|_| {
            let kind = std::any::type_name::<T>();
            format!("metadata {name}: {text:?} is not a {kind}")
        })
    }

    /// An attribute that holds JSON.
    pub fn json(&self, name: &str) -> Result<Option<serde_json::Value>, String> {
        let Some(text) = self.metadata.get(name) else {
            return Ok(None);
        };
        let value = json::read(text.as_bytes());
        value.map(Some).map_err(|e| format!("metadata {name}: {e}"))
    }

    /// A flag of "0" or "1"; absent is false.
    pub fn flag(&self, name: &str) -> Result<bool, String> {
        match self.metadata.get(name).map(String::as_str) {
            None | Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(other) => Err(format!("metadata {name}: expected 0 or 1, got {other:?}")),
        }
    }

    /// A number, parsed; `None` where it is absent.
    pub fn number(&self, name: &str) -> Result<Option<f32>, String> {
        let text = self.metadata.get(name);
        let number = text.map(|text| {
            let what = |e| format!("metadata {name}: {:?}: {e}", shown(text));
            options::number(text).map_err(what)
        });
        number.transpose()
    }

    /// A softcap, where 0 stands for none.
    pub fn softcap(&self) -> Result<Option<f32>, String> {
        Ok(self.number("softcap")?.filter(|&c| c != 0.0))
    }

    /// One side of a window, where -1 (any negative number) stands for open.
    pub fn window_side(&self, name: &str) -> Result<Option<u32>, String> {
        let side = self.attribute::<i64>(name)?.filter(|&n| n >= 0);
        side.map(|n| u32::try_from(n).map_err(|_| format!("metadata {name}: {n} is too large")))
            .transpose()
    }
}

/// One attention call that owns its operands.
#[derive(Debug, Clone)]
pub struct Problem {
    pub query: Array,
    pub key: Array,
    pub value: Array,
    pub bias: Option<Array>,
    pub mask: Option<Array>,
    pub polarity: Polarity,
    pub kv_lengths: Option<Vec<u32>>,
    pub q_lengths: Option<Vec<u32>>,
    pub offsets: Option<Vec<i32>>,
    pub segments: Option<(Vec<u32>, Vec<u32>)>,
    pub alibi_slopes: Option<Vec<f32>>,
    pub sinks: Option<Vec<f32>>,
    /// W_O of the layer around it, (out, Hq*Dv); no part of the call.
    pub output_weight: Option<Array>,
    pub options: Options,
}

impl Problem {
    /// Query, key and value with `options`; nothing else.
    pub fn new(query: Array, key: Array, value: Array, options: Options) -> Problem {
        Problem {
            query,
            key,
            value,
            bias: None,
            mask: None,
            polarity: Polarity::Keep,
            kv_lengths: None,
            q_lengths: None,
            offsets: None,
            segments: None,
            alibi_slopes: None,
            sinks: None,
            output_weight: None,
            options,
        }
    }

    /// The operands of `file` under the names of the case files: Q K V
    /// attn_bias attn_mask alibi_slopes sinks kv_lengths q_lengths offsets
    /// q_segments kv_segments.
    pub fn from_file(file: &File, options: Options) -> Result<Problem, String> {
        let mut problem = Problem::new(
            file.need("Q")?.copied("Q")?,
            file.need("K")?.copied("K")?,
            file.need("V")?.copied("V")?,
            options,
        );
        problem.take_rest(file)?;
        Ok(problem)
    }

    /// Every operand of `file` besides query, key and value.
    pub fn take_rest(&mut self, file: &File) -> Result<(), String> {
        let named = |name: &str, e: String| format!("{name}: {e}");
        let floats = |name: &str| match file.get(name) {
            Some(a) => (a.to_f32().map(|v| Some(v.into_owned()))).map_err(|e| named(name, e)),
            None => Ok(None),
        };
        let counts = |name: &str| integers::<u32>(file, name);
        self.bias = (file.get("attn_bias").map(four_axes).transpose())
            .map_err(|e| named("attn_bias", e))?;
        self.mask = (file.get("attn_mask").map(four_axes).transpose())
            .map_err(|e| named("attn_mask", e))?;
        self.alibi_slopes = floats("alibi_slopes")?;
        self.sinks = floats("sinks")?;
        self.kv_lengths = counts("kv_lengths")?;
        self.q_lengths = counts("q_lengths")?;
        self.offsets = integers::<i32>(file, "offsets")?;
        self.segments = match (ids(file, "q_segments")?, ids(file, "kv_segments")?) {
            (Some(q), Some(kv)) => Some((q, kv)),
            (None, None) => None,
            _ => return Err("q_segments and kv_segments go together, one is missing".to_owned()),
        };
        Ok(())
    }

    /// The operands as the library takes them.
    pub fn inputs(&self) -> Result<Inputs<'_>, String> {
        let mut inputs = Inputs::new(
            self.query.tensor("Q")?,
            self.key.tensor("K")?,
            self.value.tensor("V")?,
        );
        if let Some(bias) = &self.bias {
            inputs = inputs.bias(bias.tensor("attn_bias")?);
        }
        if let Some(mask) = &self.mask {
            inputs = inputs.mask(mask_of(mask, self.polarity)?);
        }
        inputs.kv_lengths = self.kv_lengths.as_deref();
        inputs.q_lengths = self.q_lengths.as_deref();
        inputs.offsets = self.offsets.as_deref();
        inputs.segments = self.segments.as_ref().map(|(q, kv)| (&q[..], &kv[..]));
        inputs.alibi_slopes = self.alibi_slopes.as_deref();
        inputs.sinks = self.sinks.as_deref();
        Ok(inputs)
    }

    /// The same call over the keys `keys` alone: every rule by the original key
    /// index and the offset of the whole, and no sink. Needs
    /// [`Alignment::PerSequence`].
    ///
    /// With keys counted from `keys.start`, a position p becomes `p - start`,
    /// so the offset moves by as much and causal, window and ALiBi stay the same.
    pub fn part(&self, keys: std::ops::Range<usize>) -> Result<Problem, String> {
        let dims = self.inputs()?.validate(&self.options);
        let nk = dims.map_err(|e| e.to_string())?.kv_len;
        if keys.start > keys.end || keys.end > nk {
            return Err(format!("part {keys:?} is outside the {nk} keys"));
        }
        let (Alignment::PerSequence, Some(offsets)) = (self.options.alignment, &self.offsets)
        else {
            return Err("a part needs the offsets of the whole".to_owned());
        };
        let start = i32::try_from(keys.start).map_err(|e| e.to_string())?;
        let pairs = |a: &Array| match a.shape[3] {
            1 if nk != 1 => a.clone(),
            _ => a.slice(3, keys.clone()),
        };
        let mut part = Problem::new(
            self.query.clone(),
            self.key.slice(2, keys.clone()),
            self.value.slice(2, keys.clone()),
            self.options,
        );
        part.bias = self.bias.as_ref().map(pairs);
        part.mask = self.mask.as_ref().map(pairs);
        part.polarity = self.polarity;
        part.kv_lengths = self.kv_lengths.as_ref().map(|lengths| {
            let cut = |&n: &u32| (n as usize).clamp(keys.start, keys.end) - keys.start;
            lengths.iter().map(|n| cut(n) as u32).collect()
        });
        part.q_lengths = self.q_lengths.clone();
        part.offsets = Some(offsets.iter().map(|o| o.saturating_sub(start)).collect());
        part.segments = self.segments.as_ref().map(|(q, kv)| {
            let rows = kv.chunks(nk.max(1));
            (
                q.clone(),
                rows.flat_map(|row| row[keys.clone()].to_vec()).collect(),
            )
        });
        part.alibi_slopes = self.alibi_slopes.clone();
        Ok(part)
    }
}

/// A mask of bytes and four axes as the library takes it.
pub fn mask_of(mask: &Array, polarity: Polarity) -> Result<BoolMask<'_>, String> {
    let Values::Bool(bytes) = &mask.values else {
        let got = mask.type_name();
        return Err(format!("attn_mask: expected BOOL, got {got}"));
    };
    let shape = mask.shape.as_slice().try_into();
    let shape = shape.map_err(|_| {
        let got = &mask.shape;
        format!("attn_mask: expected four axes, got shape {got:?}")
    })?;
    BoolMask::new(MaskData::Bytes(bytes), shape, polarity).map_err(|e| e.to_string())
}

/// Puts axes of 1 in front until there are four.
pub fn four_axes(array: &Array) -> Result<Array, String> {
    let rank = array.shape.len();
    if rank > 4 {
        return Err(format!(
            "expected up to four axes, got shape {:?}",
            array.shape
        ));
    }
    let mut wide = array.copied("pairs")?;
    wide.shape = [vec![1; 4 - rank], array.shape.clone()].concat();
    Ok(wide)
}

/// An integer tensor within the range of `T`; `None` where it is absent.
pub fn integers<T: TryFrom<i64>>(file: &File, name: &str) -> Result<Option<Vec<T>>, String> {
    let Some(array) = file.get(name) else {
        return Ok(None);
    };
    let wide = array.to_i64().map_err(|e| format!("{name}: {e}"))?;
    let narrow = wide
        .iter()
        .map(|&n| T::try_from(n).map_err(|_| format!("{name}: {n} is out of range")));
    narrow.collect::<Result<Vec<T>, _>>().map(Some)
}

/// Ids of any sign, of which only equality matters: 32 bits of each are kept.
fn ids(file: &File, name: &str) -> Result<Option<Vec<u32>>, String> {
    let Some(array) = file.get(name) else {
        return Ok(None);
    };
    let wide = array.to_i64().map_err(|e| format!("{name}: {e}"))?;
    let ids = wide.iter().map(|&n| match i32::try_from(n) {
        Ok(signed) => Ok(signed as u32),
        Err(_) => u32::try_from(n).map_err(|_| format!("{name}: {n} does not fit 32 bits")),
    });
    ids.collect::<Result<Vec<u32>, _>>().map(Some)
}
