//! The names under which checkpoints keep an attention layer.
//!
//! | scheme | weights below the prefix | |
//! | --- | --- | --- |
//! | torch | `in_proj_weight` (3E, E), or `q_proj_weight`, `k_proj_weight`, `v_proj_weight`; `out_proj.weight` | `torch.nn.MultiheadAttention` |
//! | BERT | `self.query.weight`, `self.key.weight`, `self.value.weight`, `output.dense.weight` | |
//! | GPT-2 | `c_attn.weight` (E, 3E), `c_proj.weight` | (in, out) |
//! | out_proj | `q_proj.weight`, `k_proj.weight`, `v_proj.weight`, `out_proj.weight` | BART, OPT, Whisper, CLIP |
//! | Llama | as before, but `o_proj.weight` | needs rotary embedding: refused |
//!
//! Names decide, not what a file is called, and shapes only confirm them.

use std::collections::HashSet;

use crate::layer::tensors::Tensors;
use crate::report::listed;

/// A way of naming the tensors of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Torch,
    Bert,
    Gpt2,
    /// q_proj, k_proj and v_proj with either out_proj or o_proj.
    Projections,
}

/// Ends of names that occur in attention layers alone.
const MARKS: [(&str, Scheme); 11] = [
    ("in_proj_weight", Scheme::Torch),
    ("q_proj_weight", Scheme::Torch),
    ("k_proj_weight", Scheme::Torch),
    ("v_proj_weight", Scheme::Torch),
    ("self.query.weight", Scheme::Bert),
    ("self.key.weight", Scheme::Bert),
    ("self.value.weight", Scheme::Bert),
    ("c_attn.weight", Scheme::Gpt2),
    ("q_proj.weight", Scheme::Projections),
    ("k_proj.weight", Scheme::Projections),
    ("v_proj.weight", Scheme::Projections),
];

impl Scheme {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Torch => "torch MultiheadAttention",
            Scheme::Bert => "BERT",
            Scheme::Gpt2 => "GPT-2",
            Scheme::Projections => "q_proj .. out_proj (BART, OPT, Whisper, CLIP)",
        }
    }

    /// Tensors beside the layer's own that are no part of the attention: norms after
    /// the residual connection, a stored causal mask.
    pub fn beside(self) -> &'static [&'static str] {
        match self {
            Scheme::Bert => &[
                "output.LayerNorm.weight",
                "output.LayerNorm.bias",
                "output.LayerNorm.gamma",
                "output.LayerNorm.beta",
            ],
            Scheme::Gpt2 => &["bias", "masked_bias"],
            Scheme::Torch | Scheme::Projections => &[],
        }
    }
}

/// Every layer of a file, by the names alone.
pub fn all(tensors: &Tensors) -> Vec<(String, Scheme)> {
    let mut layers: Vec<(String, Scheme)> = Vec::new();
    let mut known = HashSet::new();
    for name in tensors.names() {
        let marked = MARKS.iter().find_map(|(mark, scheme)| {
            let rest = name.strip_suffix(mark)?;
            let prefix = rest.strip_suffix('.');
            let prefix = prefix.or(rest.is_empty().then_some(""))?;
            Some((prefix.to_owned(), *scheme))
        });
        if let Some(layer) = marked.filter(|(prefix, _)| known.insert(prefix.clone())) {
            layers.push(layer);
        }
    }
    layers
}

/// Where a layer is.
pub fn find(tensors: &Tensors, wanted: Option<&str>) -> Result<(String, Scheme), String> {
    let layers = all(tensors);
    let found = match wanted {
        None => layers.clone(),
        Some(wanted) => matching(&layers, wanted),
    };
    match (&found[..], wanted) {
        ([only], _) => Ok(only.clone()),
        ([], Some(wanted)) if !layers.is_empty() => {
            let prefixes = prefixes(&layers);
            Err(format!(
                "--prefix {wanted}: no attention layer there; those of the file are {prefixes}"
            ))
        }
        ([], _) => {
            let names = match &tensors.names()[..] {
                [] => "the file has none".to_owned(),
                names => format!("those of the file are {}", listed(names, 8)),
            };
            let marks: Vec<&str> = MARKS.iter().map(|(mark, _)| *mark).collect();
            Err(format!(
                "no attention layer: no tensor ends in {}; {names}",
                marks.join(", ")
            ))
        }
        (several, _) => Err(format!(
            "several attention layers; --prefix takes one of {}",
            prefixes(several)
        )),
    }
}

/// The layer of exactly this prefix; else those whose prefix has it as whole parts
/// between dots, so that a leading `bert.` or `transformer.` may be left out.
fn matching(layers: &[(String, Scheme)], wanted: &str) -> Vec<(String, Scheme)> {
    let wanted = wanted.trim_end_matches('.');
    if let Some(exact) = layers.iter().find(|(prefix, _)| prefix == wanted) {
        return vec![exact.clone()];
    }
    let dotted = format!(".{wanted}.");
    let within = |prefix: &str| format!(".{prefix}.").contains(&dotted);
    let layers = layers.iter().filter(|(prefix, _)| within(prefix));
    layers.cloned().collect()
}

/// Where layers are, for a message.
pub fn prefixes(layers: &[(String, Scheme)]) -> String {
    let quoted = |(prefix, _): &(String, Scheme)| match prefix.is_empty() {
        true => "\"\"".to_owned(),
        false => prefix.clone(),
    };
    listed(&layers.iter().map(quoted).collect::<Vec<_>>(), 48)
}
