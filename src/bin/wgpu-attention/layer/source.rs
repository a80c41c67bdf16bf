//! Which layer of a checkpoint, with which input: as flags, and read from the files.

use std::path::{Path, PathBuf};

use clap::Args;
use wgpu_attention::{MultiHeadDims, Options};

use crate::array::{Array, Values};
use crate::layer::config::{self, Config, Heads};
use crate::layer::judge::{self, Asked, Judged};
use crate::layer::load::{self, Found, Part, Trust};
use crate::layer::models;
use crate::layer::scheme::{self, Scheme};
use crate::layer::tensors::{TensorPath, Tensors};
use crate::multi_head::Layer;
use crate::options::{CommonFlags, number};
use crate::report::{listed, shown};

/// Which layer, and what attention takes besides X.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// Where the layer is, as encoder.layer.0.attention or h.0: some or all of what stands
    /// before its names [default: the only layer].
    #[arg(long, value_name = "NAME", requires = "input")]
    prefix: Option<String>,
    /// What keys and values come from, (B,Nk,width): cross-attention [default: X].
    #[arg(long, value_name = "FILE[:TENSOR]", requires = "input")]
    context: Option<TensorPath>,
    /// Which keys take part, BOOL or 0 and 1: (B,Nk), or four axes that broadcast to
    /// (B,Hq,Nq,Nk).
    #[arg(long, value_name = "FILE[:TENSOR]", requires = "input")]
    mask: Option<TensorPath>,
    /// Query heads [default: from the file's metadata or the config].
    #[arg(long, value_name = "H", requires = "input")]
    heads: Option<usize>,
    /// Key and value heads [default: as many as the key weight has].
    #[arg(long, value_name = "H", requires = "input")]
    kv_heads: Option<usize>,
    /// The model's config [default: config.json beside the checkpoint, if there is one].
    #[arg(long, value_name = "FILE", requires = "input")]
    config: Option<PathBuf>,
    /// Token i sees tokens up to itself only [default: as the metadata or the model's type
    /// says].
    #[arg(long, conflicts_with = "bidirectional")]
    causal: bool,
    /// Tokens see all tokens [default: as the metadata or the model's type says].
    #[arg(long)]
    bidirectional: bool,
    /// Compute the layer as plain attention, whatever its model's type, config and
    /// further tensors are.
    #[arg(long, requires = "input")]
    assume_plain: bool,
    /// Factor on q.k [default: 1/sqrt(head_dim)].
    #[arg(long, value_parser = number)]
    scale: Option<f32>,
}

/// A layer of a checkpoint with its input, and what was found.
#[derive(Debug)]
pub struct Loaded {
    pub layer: Layer,
    pub found: Found,
    pub dims: MultiHeadDims,
    judged: Judged,
    heads_from: String,
    input: String,
}

impl SourceArgs {
    /// The flags that a file of bare operands heeds too.
    pub fn common(&self) -> CommonFlags {
        CommonFlags {
            scale: self.scale,
            causal: CommonFlags::causal(self.causal, self.bidirectional),
        }
    }

    /// Every file that [`SourceArgs::load`] reads.
    pub fn files(&self, checkpoint: &Path, input: &TensorPath) -> Vec<PathBuf> {
        let tensors = [Some(input), self.context.as_ref(), self.mask.as_ref()];
        let files = tensors.into_iter().flatten().map(|t| t.file.clone());
        let config = config::file(checkpoint, self.config.as_deref());
        [checkpoint.to_owned()]
            .into_iter()
            .chain(files)
            .chain(config)
            .collect()
    }

    fn asked(&self) -> Asked {
        let CommonFlags { scale, causal } = self.common();
        Asked {
            assume_plain: self.assume_plain,
            scaled: scale.is_some(),
            causal,
        }
    }

    /// Finds the layer, reads it and its input, and checks that all of it fits.
    pub fn load(&self, checkpoint: &Path, input: &TensorPath) -> Result<Loaded, String> {
        let named = |e: String| format!("{}: {e}", checkpoint.display());
        let tensors = Tensors::open(checkpoint)?;
        let config = Config::read(&tensors, checkpoint, self.config.as_deref())?;
        let at = scheme::find(&tensors, self.prefix.as_deref()).map_err(named)?;
        let config = config.of_part(&at.0, self.assume_plain)?;
        let model = config.model_type()?.map(|(name, _)| name);
        let model = model.as_deref().unwrap_or_default();
        let trust = Trust {
            assumed: self.assume_plain,
            known: models::plain(model).is_some_and(|(scheme, _)| scheme == at.1),
            beside: models::beside(model),
        };
        let judged = judge::judge(&config, (&at.0, at.1), self.asked()).map_err(named);
        // Without a type there is more to say of the tensors than of the model.
        let (judged, found) = match model {
            "" => {
                let found = load::load(&tensors, at, trust).map_err(named)?;
                (judged?, found)
            }
            _ => (judged?, load::load(&tensors, at, trust).map_err(named)?),
        };
        if found.scheme == Scheme::Gpt2 && self.context.is_some() {
            let why = "layers of GPT-2's names are self-attention";
            return Err(format!("--context: {why}"));
        }
        match (judged.cross, &self.context) {
            (Some(true), None) => {
                return Err(format!(
                    "--context is needed: {} is cross-attention",
                    found.prefix
                ));
            }
            (Some(false), Some(_)) => {
                return Err(format!(
                    "--context: {} is self-attention ({})",
                    found.prefix, judged.plain
                ));
            }
            _ => {}
        }
        let [query, key, value, output] = &found.parts;
        let (input_name, input) = rows("--input", input, query)?;
        let context = match &self.context {
            Some(context) => Some(rows("--context", context, key)?.1),
            None if key.inputs() != query.inputs() => {
                let width = key.inputs();
                return Err(format!(
                    "--context is needed: {} takes rows of width {width}, those of X have {}",
                    key.weight,
                    query.inputs()
                ));
            }
            None => None,
        };
        let (q_heads, heads_from) = match self.heads {
            Some(heads) => (heads, "--heads".to_owned()),
            None => {
                let heads = config.heads(&found.prefix, judged.half)?.ok_or_else(|| {
                    named(
                        "--heads is needed: neither its metadata nor a config.json beside it has \
                         the number of heads"
                            .to_owned(),
                    )
                })?;
                // In all models that are known, heads before pruning share the width.
                if trust.known && !self.assume_plain {
                    whole(query, &heads).map_err(named)?;
                }
                (heads.count, heads.from)
            }
        };
        if !self.assume_plain {
            let width = format!("{}: inputs", shown(&query.weight));
            let unless = judge::assume();
            config.expect(&config::WIDTH, (&width, query.inputs()), unless)?;
        }
        let divides = q_heads > 0 && query.outputs().is_multiple_of(q_heads);
        if !self.assume_plain && self.heads.is_none() && divides {
            let what = format!(
                "{}: the width of each of {q_heads} heads ({heads_from})",
                shown(&query.weight)
            );
            let unless = "--heads says how many there are";
            let width = query.outputs() / q_heads;
            config.expect(&config::HEAD_WIDTH, (&what, width), unless)?;
        }
        let kv_heads = heads([query, key, value, output], q_heads, self.kv_heads)?;
        let mut options = Options::default();
        options.causal = judged.causal;
        options.scale = self.scale;
        let mask = self.mask.as_ref().map(mask).transpose()?;
        let layer = Layer {
            input,
            context,
            q_heads,
            kv_heads,
            projections: [query, key, value, output].map(|part| part.linear.clone()),
            mask,
            options,
        };
        // What is left to check, the library does: batches, the mask's shape.
        let dims = layer.inputs()?.dims().map_err(|e| e.to_string())?;
        Ok(Loaded {
            layer,
            dims,
            found,
            judged,
            heads_from,
            input: shown(&input_name),
        })
    }
}

/// Refuses a number of heads that are not of the width that the model's have.
fn whole(query: &Part, heads: &Heads) -> Result<(), String> {
    let (width, got) = (query.inputs(), query.outputs());
    let Heads { count, of, from } = heads;
    match width.is_multiple_of(*of) && got == width / of * count {
        true => Ok(()),
        false => Err(format!(
            "{}: expected outputs of {count} heads ({from}) that are 1/{of} of the width {width} \
             each, got {got}: were heads pruned? --heads says how many there are",
            query.weight
        )),
    }
}

/// Rows for `part` to take, (B, N, width), and what the tensor is called.
fn rows(flag: &str, path: &TensorPath, part: &Part) -> Result<(String, Array), String> {
    let (name, mut array) = path.read(&["X"]).map_err(|e| format!("{flag}: {e}"))?;
    let (width, shown_name) = (part.inputs(), shown(&name));
    let given = array.shape.clone();
    if let [rows, width] = given[..] {
        array.shape = vec![1, rows, width];
    }
    if array.dtype().is_none() {
        let got = array.type_name();
        return Err(format!("{flag}: {shown_name}: expected floats, got {got}"));
    }
    match array.shape[..] {
        [_, _, last] if last == width => Ok((name, array)),
        _ => Err(format!(
            "{flag}: {shown_name}: expected shape [B, N, {width}], as {} takes rows of width {width}, \
             got {given:?}",
            part.weight
        )),
    }
}

/// A mask of bytes and four axes; two are those of batch and keys.
fn mask(path: &TensorPath) -> Result<Array, String> {
    let (name, mut array) = path.read(&["attn_mask", "attention_mask"])?;
    let named = |e: String| format!("--mask: {}: {e}", shown(&name));
    match array.shape[..] {
        [batch, keys] => array.shape = vec![batch, 1, 1, keys],
        [_, _, _, _] => {}
        ref shape => return Err(named(format!("expected two or four axes, got {shape:?}"))),
    }
    if !matches!(array.values, Values::Bool(_)) {
        let numbers = array.to_i64().map_err(named)?;
        if let Some(other) = numbers.iter().find(|n| ![0, 1].contains(*n)) {
            return Err(named(format!("expected 0 and 1, got {other}")));
        }
        array.values = Values::Bool(numbers.iter().map(|&n| n as u8).collect());
    }
    Ok(array)
}

/// The number of key and value heads, after checking that every weight has the heads.
fn heads(parts: [&Part; 4], q_heads: usize, given: Option<usize>) -> Result<usize, String> {
    let [query, key, value, output] = parts;
    let wrong = |part: &Part, expected: String, got: usize| {
        let [rows, columns] = part.stored;
        // One weight may be those of three projections.
        let whole = match rows * columns == part.outputs() * part.inputs() {
            true => String::new(),
            false => format!(", a third of its shape [{rows}, {columns}]"),
        };
        Err(format!(
            "{}: expected {expected}, got {got}{whole}",
            part.weight
        ))
    };
    let all = query.outputs();
    if q_heads == 0 || all % q_heads != 0 {
        let expected = format!("outputs for {q_heads} query heads of one width");
        return wrong(query, expected, all);
    }
    let dim = all / q_heads;
    let kv_heads = given.unwrap_or(key.outputs().div_ceil(dim));
    // A divisor is no larger than what it divides, so that products with it stay exact;
    // 0 divides only 0.
    if !q_heads.is_multiple_of(kv_heads) {
        let kind = if given.is_some() {
            "--kv-heads"
        } else {
            "key heads"
        };
        return Err(format!(
            "{kind}: expected a divisor of the {q_heads} query heads, got {kv_heads}"
        ));
    }
    if key.outputs() != kv_heads * dim {
        let expected = format!("{} outputs, {kv_heads} key heads of {dim}", kv_heads * dim);
        return wrong(key, expected, key.outputs());
    }
    if value.outputs() % kv_heads != 0 {
        let expected = format!("outputs for {kv_heads} value heads of one width");
        return wrong(value, expected, value.outputs());
    }
    let concatenated = q_heads * (value.outputs() / kv_heads);
    if output.inputs() != concatenated {
        let expected = format!("{concatenated} inputs, {q_heads} heads side by side");
        return wrong(output, expected, output.inputs());
    }
    Ok(kv_heads)
}

impl Loaded {
    /// What a token sees.
    fn sees(&self) -> &'static str {
        match (self.layer.options.causal, &self.layer.mask) {
            (true, None) => "earlier tokens and itself",
            (true, Some(_)) => "earlier tokens and itself, of those that the mask keeps",
            (false, None) => "all tokens",
            (false, Some(_)) => "all tokens that the mask keeps",
        }
    }

    /// What was decided and why, for programs.
    pub fn json(&self) -> serde_json::Value {
        let d = &self.dims.attention;
        serde_json::json!({
            "layer": self.found.prefix,
            "names": self.found.scheme.name(),
            "heads": {
                "query": d.q_heads,
                "key": d.kv_heads,
                "width": d.qk_dim,
                "from": self.heads_from,
            },
            "plain": self.judged.plain,
            "without": self.found.left_out,
            "causal": self.layer.options.causal,
            "sees": self.sees(),
            "why": self.judged.why,
        })
    }

    /// What was found, for people.
    pub fn describe(&self) -> Vec<String> {
        let Found {
            prefix,
            scheme,
            parts,
            left_out,
        } = &self.found;
        let at = match &prefix[..] {
            "" => String::new(),
            prefix => format!("{}, ", shown(prefix)),
        };
        let mut lines = vec![format!("layer    {at}by the names of {}", scheme.name())];
        // One weight may be those of three projections.
        let packed = parts[0].weight == parts[1].weight;
        let matrices: &[(&str, usize)] = match packed {
            true => &[("W_QKV", 0), ("W_O", 3)],
            false => &[("W_Q", 0), ("W_K", 1), ("W_V", 2), ("W_O", 3)],
        };
        let below = |name: &str| shown(name[prefix.len()..].trim_start_matches('.'));
        for &(matrix, at) in matrices {
            let part = &parts[at];
            let bias = part.bias.as_deref().map_or("no bias".to_owned(), below);
            let (name, kind) = (below(&part.weight), part.linear.weight.type_name());
            lines.push(format!(
                "{matrix:<9}{name} {kind} {:?}, {bias}",
                part.stored
            ));
        }
        let (layer, d) = (&self.layer, &self.dims.attention);
        let grouped = match d.q_heads == d.kv_heads {
            true => String::new(),
            false => format!(" over {} key heads", d.kv_heads),
        };
        let (heads, dim, from) = (d.q_heads, d.qk_dim, &self.heads_from);
        lines.push(format!("heads    {heads} of {dim}{grouped} ({from})"));
        lines.push(format!("plain    {}", self.judged.plain));
        if !left_out.is_empty() {
            lines.push(format!("without  {}", listed(left_out, 4)));
        }
        lines.push(format!("sees     {} ({})", self.sees(), self.judged.why));
        let tensor = |array: &Array| format!("{} {:?}", array.type_name(), array.shape);
        lines.push(format!("X        {} {}", self.input, tensor(&layer.input)));
        if let Some(context) = &layer.context {
            lines.push(format!("context  {}", tensor(context)));
        }
        lines
    }
}
