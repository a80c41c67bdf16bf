//! Bundled cases (`tests/data/README.md` has their form): the call, and what is expected.

use half::f16;
use safetensors::{Dtype, SafeTensors};
use wgpu_attention::{Alignment, BoolMask, Inputs, MaskData, Options, Polarity, Tensor, Window};

/// Elements of a tensor.
enum Elements {
    F32(Vec<f32>),
    F16(Vec<f16>),
    I32(Vec<i32>),
    Bool(Vec<u8>),
}

/// A tensor of a case; axes of 1 are in front until there are four.
struct Array {
    shape: [usize; 4],
    elements: Elements,
}

/// An expected output, and what each element may be off by.
pub struct Expected {
    pub values: Vec<f32>,
    pub tolerances: Vec<f32>,
}

/// One case.
pub struct Case {
    arrays: std::collections::HashMap<String, Array>,
    metadata: std::collections::HashMap<String, String>,
}

impl Array {
    fn read(view: &safetensors::tensor::TensorView<'_>) -> Array {
        fn each<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
            let chunks = bytes.chunks_exact(N);
            chunks
                .map(|chunk| read(chunk.try_into().unwrap()))
                .collect()
        }
        let bytes = view.data();
        let elements = match view.dtype() {
            Dtype::F32 => Elements::F32(each(bytes, f32::from_le_bytes)),
            Dtype::F16 => Elements::F16(each(bytes, f16::from_le_bytes)),
            Dtype::I32 => Elements::I32(each(bytes, i32::from_le_bytes)),
            Dtype::BOOL => Elements::Bool(bytes.to_vec()),
            other => panic!("{other}: not read here"),
        };
        let mut shape = [1; 4];
        shape[4 - view.shape().len()..].copy_from_slice(view.shape());
        Array { shape, elements }
    }

    fn tensor(&self) -> Tensor<'_> {
        match &self.elements {
            Elements::F32(values) => Tensor::f32(values, self.shape).unwrap(),
            Elements::F16(values) => Tensor::f16(values, self.shape).unwrap(),
            _ => panic!("not a tensor of floats"),
        }
    }

    fn floats(&self) -> &[f32] {
        match &self.elements {
            Elements::F32(values) => values,
            _ => panic!("not f32"),
        }
    }

    /// Counts and ids keep their bits.
    fn words(&self) -> &[u32] {
        match &self.elements {
            Elements::I32(values) => bytemuck::cast_slice(values),
            _ => panic!("not i32"),
        }
    }
}

impl Case {
    pub fn parse(bytes: &[u8]) -> Case {
        let (_, header) = SafeTensors::read_metadata(bytes).unwrap();
        let views = SafeTensors::deserialize(bytes).unwrap();
        let read = |(name, view): (&str, _)| (name.to_owned(), Array::read(&view));
        Case {
            arrays: views.iter().map(read).collect(),
            metadata: header.metadata().clone().unwrap(),
        }
    }

    fn attribute(&self, name: &str) -> Option<&str> {
        self.metadata.get(name).map(String::as_str)
    }

    /// A number, where the default is another.
    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        let text = self.attribute(name).filter(|&text| text != "default");
        text.map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: {text}")))
    }

    /// Offsets of the batch entries, in the suite that gives them as numbers.
    pub fn offsets(&self) -> Option<Vec<i32>> {
        let list = self.attribute("causal_offsets")?;
        Some(serde_json::from_str(list).unwrap())
    }

    pub fn options(&self) -> Options {
        let mut options = Options::default();
        options.scale = self.number("scale");
        options.softcap = self.number("softcap").filter(|&cap: &f32| cap != 0.0);
        let side = |name| self.number(name).filter(|&n: &i64| n >= 0);
        options.window = Window {
            left: side("window_left").map(|n| n as u32),
            right: side("window_right").map(|n| n as u32),
        };
        (options.causal, options.alignment) = match self.attribute("suite") {
            Some("sdpa_options") => (self.number("causal") == Some(1), Alignment::PerSequence),
            Some("sdpa_grads") => {
                let alignment = match self.attribute("causal") {
                    Some("bottom_right") => Alignment::BottomRight,
                    _ => Alignment::TopLeft,
                };
                (self.number("is_causal") == Some(1), alignment)
            }
            other => panic!("suite {other:?}: not read here"),
        };
        options
    }

    /// The operands; `offsets` are this case's.
    pub fn inputs<'a>(&'a self, offsets: Option<&'a [i32]>) -> Inputs<'a> {
        let get = |name: &str| self.arrays.get(name);
        let [query, key, value] = ["Q", "K", "V"].map(|name| get(name).unwrap().tensor());
        let mut inputs = Inputs::new(query, key, value);
        if let Some(bias) = get("attn_bias") {
            inputs = inputs.bias(bias.tensor());
        }
        if let Some(mask) = get("attn_mask") {
            let Elements::Bool(bytes) = &mask.elements else {
                panic!("a mask that is not of bytes");
            };
            let mask = BoolMask::new(MaskData::Bytes(bytes), mask.shape, Polarity::Keep);
            inputs = inputs.mask(mask.unwrap());
        }
        inputs.kv_lengths = get("kv_lengths").map(Array::words);
        inputs.q_lengths = get("q_lengths").map(Array::words);
        inputs.segments = get("q_segments")
            .zip(get("kv_segments"))
            .map(|(q, kv)| (q.words(), kv.words()));
        inputs.alibi_slopes = get("alibi_slopes").map(Array::floats);
        inputs.sinks = get("sinks").map(Array::floats);
        inputs.offsets = offsets;
        inputs
    }

    /// Output and log-sum-exp with the tolerance of f32 arithmetic, by the rules of
    /// `check`: a row of zeros is exact, a log-sum-exp beyond 1000 relative.
    pub fn expected(&self) -> [Expected; 2] {
        let atol: serde_json::Value =
            serde_json::from_str(self.attribute("atol").unwrap()).unwrap();
        ["Y", "lse"].map(|name| {
            let array = &self.arrays[&format!("expected.{name}")];
            let values = array.floats().to_vec();
            let atol = atol[name].as_f64().unwrap() as f32;
            let row = array.shape[3];
            let tolerance = |(index, value): (usize, &f32)| match name {
                // Only -inf is -inf.
                _ if !value.is_finite() => 0.0,
                "lse" if value.abs() > 1000.0 => 1e-6 * value.abs(),
                "lse" => atol,
                _ => {
                    let start = index / row * row;
                    let empty = values[start..start + row].iter().all(|&x| x == 0.0);
                    if empty { 0.0 } else { atol }
                }
            };
            let tolerances = values.iter().enumerate().map(tolerance).collect();
            Expected { values, tolerances }
        })
    }
}
