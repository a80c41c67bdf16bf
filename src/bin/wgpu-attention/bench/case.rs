//! What is measured: shapes by name or by flags, their operations and bytes.

use serde::{Deserialize, Serialize};
use wgpu_attention::{Alignment, DType, Error, Options, Visibility, Window};

use super::rules::{Rule, SOFTCAP};
use crate::report::Stop;

/// Storage type, as the command line takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    F32,
    F16,
    Bf16,
}

impl Storage {
    pub fn dtype(self) -> DType {
        match self {
            Storage::F32 => DType::F32,
            Storage::F16 => DType::F16,
            Storage::Bf16 => DType::BF16,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Storage::F32 => "f32",
            Storage::F16 => "f16",
            Storage::Bf16 => "bf16",
        }
    }
}

/// One shape and its options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    pub name: String,
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub q_len: usize,
    pub kv_len: usize,
    pub head_dim: usize,
    pub v_dim: usize,
    /// Of query and output.
    pub dtype: Storage,
    /// Of key and value.
    pub kv_dtype: Storage,
    pub causal: bool,
    /// The last keys a row sees, its own position included.
    pub window: Option<u32>,
    /// Other rules on pairs and scores.
    pub rules: Vec<Rule>,
    /// Not attention but a projection: queries are its rows, keys its outputs,
    /// head_dim the width of its input.
    pub projection: bool,
}

/// The cases that have a name.
pub const NAMES: [&str; 11] = [
    "prefill-64",
    "prefill-128",
    "f16-kv",
    "causal",
    "dense-4096",
    "window-256",
    "long-2048",
    "long",
    "project-512",
    "project-1024",
    "rows-16384",
];

impl Case {
    /// The case of that name: one of [`NAMES`].
    pub fn named(name: &str) -> Option<Case> {
        let mut case = Case {
            name: name.to_owned(),
            batch: 1,
            heads: 8,
            kv_heads: 8,
            q_len: 512,
            kv_len: 512,
            head_dim: 64,
            v_dim: 64,
            dtype: Storage::F32,
            kv_dtype: Storage::F32,
            causal: false,
            window: None,
            rules: Vec::new(),
            projection: false,
        };
        match name {
            "prefill-64" => {}
            "prefill-128" => {
                (case.head_dim, case.v_dim) = (128, 128);
                case.set_len(1024);
            }
            "f16-kv" => case.kv_dtype = Storage::F16,
            "causal" => case.causal = true,
            "dense-4096" => case.set_len(4096),
            "window-256" => {
                case.set_len(4096);
                case.window = Some(256);
            }
            "long-2048" | "long" => {
                (case.heads, case.kv_heads) = (1, 1);
                case.set_len(if name == "long" { 16_384 } else { 2048 });
            }
            // 64 rows of one head over a long context: what an inspection looks at.
            "rows-16384" => {
                (case.heads, case.kv_heads) = (1, 1);
                (case.q_len, case.kv_len) = (64, 16_384);
            }
            "project-512" | "project-1024" => {
                let width = if name == "project-512" { 512 } else { 1024 };
                (case.heads, case.kv_heads) = (1, 1);
                (case.head_dim, case.v_dim) = (width, width);
                case.set_len(width);
                case.projection = true;
            }
            _ => return None,
        }
        Some(case)
    }

    fn set_len(&mut self, len: usize) {
        (self.q_len, self.kv_len) = (len, len);
    }

    /// The flags that give this case.
    pub fn flags(&self) -> Vec<String> {
        let mut flags: Vec<String> = [
            ("batch", self.batch),
            ("heads", self.heads),
            ("kv-heads", self.kv_heads),
            ("q-len", self.q_len),
            ("kv-len", self.kv_len),
            ("head-dim", self.head_dim),
            ("v-dim", self.v_dim),
        ]
        .into_iter()
        // Those that a projection has not.
        .filter(|(flag, _)| !self.projection || !["heads", "kv-heads", "v-dim"].contains(flag))
        .flat_map(|(flag, n)| [format!("--{flag}"), n.to_string()])
        .collect();
        flags.extend(["--dtype", self.dtype.name()].map(str::to_owned));
        flags.extend(["--kv-dtype", self.kv_dtype.name()].map(str::to_owned));
        if self.causal {
            flags.push("--causal".to_owned());
        }
        if self.projection {
            flags.push("--projection".to_owned());
        }
        if let Some(window) = self.window {
            flags.extend(["--window".to_owned(), window.to_string()]);
        }
        for rule in &self.rules {
            flags.extend(["--rule", rule.name()].map(str::to_owned));
        }
        flags
    }

    pub fn query_shape(&self) -> [usize; 4] {
        [self.batch, self.heads, self.q_len, self.head_dim]
    }

    /// Of the key, or of a projection's weight.
    pub fn key_shape(&self) -> [usize; 4] {
        match self.projection {
            true => [1, 1, self.kv_len, self.head_dim],
            false => [self.batch, self.kv_heads, self.kv_len, self.head_dim],
        }
    }

    /// A projection has no value.
    pub fn value_shape(&self) -> [usize; 4] {
        match self.projection {
            true => [0; 4],
            false => [self.batch, self.kv_heads, self.kv_len, self.v_dim],
        }
    }

    pub fn output_shape(&self) -> [usize; 4] {
        let width = if self.projection {
            self.kv_len
        } else {
            self.v_dim
        };
        [self.batch, self.heads, self.q_len, width]
    }

    pub fn options(&self) -> Result<Options, Error> {
        let mut options = Options::default()
            .causal(self.causal)
            .alignment(Alignment::BottomRight);
        if let Some(keys) = self.window {
            options = options.window(Window::last(keys)?);
        }
        options.softcap = self.rules.contains(&Rule::Softcap).then_some(SOFTCAP);
        Ok(options)
    }

    /// Pairs of query and key that are counted: all of them; half of them for
    /// a causal square; the visible ones for any other causal shape or window.
    /// Other rules change nothing.
    pub fn pairs(&self) -> Result<f64, Error> {
        let heads = (self.batch * self.heads) as f64;
        let all = heads * self.q_len as f64 * self.kv_len as f64;
        if !self.causal && self.window.is_none() {
            return Ok(all);
        }
        if self.window.is_none() && self.q_len == self.kv_len {
            return Ok(all / 2.0);
        }
        let (rows, keys) = (self.q_len as u32, self.kv_len as u32);
        let visible = Visibility::new(&self.options()?, keys, rows, None);
        let seen = (0..rows).map(|row| visible.keys_of_row(row).len() as f64);
        Ok(heads * seen.sum::<f64>())
    }

    /// Floating-point operations: 2 (Dqk + Dv) a counted pair; of a projection 2 a
    /// row, input and output.
    pub fn flops(&self) -> Result<f64, Error> {
        if self.projection {
            return Ok(self.pairs()? * 2.0 * self.head_dim as f64);
        }
        Ok(self.pairs()? * 2.0 * (self.head_dim + self.v_dim) as f64)
    }

    /// Bytes of the operands, each counted once.
    pub fn bytes(&self) -> f64 {
        self.buffers().into_iter().map(|(_, bytes)| bytes).sum()
    }

    /// An error if the host should not be asked to hold the operands.
    pub fn check_size(&self) -> Result<(), Stop> {
        match self.bytes() > (1u64 << 34) as f64 {
            true => Err("the operands take more than 16 GiB".into()),
            false => Ok(()),
        }
    }

    /// Its tensors, mask and bias: names and bytes.
    pub fn buffers(&self) -> Vec<(&'static str, f64)> {
        let bytes = |shape: [usize; 4], storage: Storage| {
            shape.iter().map(|&n| n as f64).product::<f64>() * storage.dtype().size() as f64
        };
        let mut buffers = vec![
            ("query", bytes(self.query_shape(), self.dtype)),
            ("key", bytes(self.key_shape(), self.kv_dtype)),
            ("value", bytes(self.value_shape(), self.kv_dtype)),
            ("output", bytes(self.output_shape(), self.dtype)),
        ];
        let rows = self.q_len as f64;
        let pairs = self
            .rules
            .iter()
            .filter_map(|rule| rule.bytes_of_row(self.kv_len));
        buffers.extend(pairs.map(|(name, bytes)| (name, rows * bytes as f64)));
        buffers
    }

    /// The shape in a line.
    pub fn describe(&self) -> String {
        if self.projection {
            return format!(
                "projection, batch {}, rows {}, inputs {}, outputs {}, {} with {} weights",
                self.batch,
                self.q_len,
                self.head_dim,
                self.kv_len,
                self.dtype.name(),
                self.kv_dtype.name(),
            );
        }
        let mut text = format!(
            "batch {}, heads {}{}, queries {}, keys {}, head_dim {}{}, {}",
            self.batch,
            self.heads,
            match self.kv_heads == self.heads {
                true => String::new(),
                false => format!(" over {} kv heads", self.kv_heads),
            },
            self.q_len,
            self.kv_len,
            self.head_dim,
            match self.v_dim == self.head_dim {
                true => String::new(),
                false => format!(" and {}", self.v_dim),
            },
            self.dtype.name(),
        );
        if self.kv_dtype != self.dtype {
            text += &format!(" with {} keys and values", self.kv_dtype.name());
        }
        if self.causal {
            text += ", causal";
        }
        if let Some(window) = self.window {
            text += &format!(", window of {window} keys");
        }
        for rule in &self.rules {
            text += &format!(", {}", rule.name());
        }
        if !self.rules.is_empty() {
            text += " (operations counted as without)";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_by_the_rules() {
        let flops = |name: &str| Case::named(name).unwrap().flops().unwrap();
        let dense = 4.0 * 8.0 * 512.0 * 512.0 * 64.0;
        assert_eq!(flops("prefill-64"), dense);
        assert_eq!(flops("causal"), dense / 2.0);
        assert_eq!(flops("f16-kv"), dense);
        assert_eq!(flops("project-512"), 2.0 * 512f64.powi(3));
        // Row i sees min(i + 1, 256) keys.
        let seen = (1..=256).sum::<u64>() + (4096 - 256) * 256;
        assert_eq!(flops("window-256"), 4.0 * 8.0 * 64.0 * seen as f64);
        // Another causal shape: by its visible pairs. Row i sees keys 0 to i + 2.
        let case = Case {
            q_len: 2,
            kv_len: 4,
            v_dim: 16,
            ..Case::named("causal").unwrap()
        };
        assert_eq!(case.pairs().unwrap(), 8.0 * (3.0 + 4.0));
        assert_eq!(case.flops().unwrap(), 8.0 * 7.0 * 2.0 * (64.0 + 16.0));
    }

    #[test]
    fn bytes_follow_the_storage_types() {
        let one = 8.0 * 512.0 * 64.0;
        assert_eq!(Case::named("prefill-64").unwrap().bytes(), 4.0 * one * 4.0);
        let halves = 2.0 * one * 4.0 + 2.0 * one * 2.0;
        assert_eq!(Case::named("f16-kv").unwrap().bytes(), halves);
        let project = Case::named("project-512").unwrap().bytes();
        assert_eq!(project, 3.0 * 512.0 * 512.0 * 4.0);
    }

    #[test]
    fn every_name_is_a_case() {
        for name in NAMES {
            assert_eq!(Case::named(name).unwrap().name, name);
        }
        assert_eq!(Case::named("prefill"), None);
    }
}
