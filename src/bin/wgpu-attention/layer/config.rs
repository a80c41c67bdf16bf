//! What a checkpoint says about its model beside the weights: the metadata of the file
//! and the config.json that usually lies next to it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::json;
use crate::layer::judge::assume;
use crate::layer::models;
use crate::layer::tensors::Tensors;
use crate::report::shown;

/// Names of the number of (query) heads in use.
const HEADS: [&str; 8] = [
    "heads",
    "num_heads",
    "num_attention_heads",
    "attention_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "n_head",
    "n_heads",
];

/// Names of the width of X, and of the width of a head.
pub const WIDTH: [&str; 4] = ["hidden_size", "d_model", "n_embd", "embed_dim"];
pub const HEAD_WIDTH: [&str; 5] = [
    "head_dim",
    "d_kv",
    "attention_head_size",
    "kv_channels",
    "head_size",
];

/// Half of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    Encoder,
    Decoder,
}

/// A number of heads, and who says so.
#[derive(Debug)]
pub struct Heads {
    pub count: usize,
    /// Before some were pruned.
    pub of: usize,
    pub from: String,
}

/// Metadata and config, each with what it is called.
#[derive(Debug)]
pub struct Config(Vec<(String, BTreeMap<String, Value>)>);

impl Config {
    /// The metadata of `tensors`, then `given` or the config.json beside `checkpoint`
    /// if there is one.
    pub fn read(
        tensors: &Tensors,
        checkpoint: &Path,
        given: Option<&Path>,
    ) -> Result<Config, String> {
        let metadata = tensors.metadata().into_iter();
        // Metadata are texts; one may be a flag or a number.
        let value = |text: String| json::read(text.as_bytes()).unwrap_or(Value::String(text));
        let metadata = metadata.map(|(key, text)| (key, value(text)));
        let mut sources = vec![("metadata".to_owned(), metadata.collect())];
        if let Some(path) = file(checkpoint, given) {
            let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
            let text = crate::input::text(&path).map_err(|e| named(&e))?;
            // The mark of UTF-8, as some editors put it in front.
            let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
            let config = json::read(text.as_bytes()).map_err(|e| named(&e))?;
            sources.push((path.display().to_string(), config));
        }
        Ok(Config(sources))
    }

    /// What holds for the layer at `prefix`, where a model is made of several that have
    /// configs of their own; `lenient` leaves all as it is where that is not known.
    pub fn of_part(mut self, prefix: &str, lenient: bool) -> Result<Config, String> {
        for (source, values) in &mut self.0 {
            let Some(model) = values.get("model_type").and_then(Value::as_str) else {
                continue;
            };
            let parts = models::parts(model);
            let in_prefix = |part: &str| {
                prefix.split('.').find(|p| parts.iter().any(|q| q.0 == *p)) == Some(part)
            };
            let part = parts.iter().find(|(part, ..)| in_prefix(part));
            let config =
                part.and_then(|(_, key, own)| Some((key, own, values.get(*key)?.as_object()?)));
            if let Some((key, own, config)) = config {
                let mut config: BTreeMap<String, Value> = config.clone().into_iter().collect();
                if !own.is_empty() {
                    config
                        .entry("model_type".to_owned())
                        .or_insert_with(|| (*own).into());
                }
                *source = format!("{key} of {source}");
                *values = config;
            } else if !parts.is_empty() && !lenient {
                let names: Vec<&str> = parts.iter().map(|(part, ..)| *part).collect();
                return Err(format!(
                    "{source} has model_type {model}: expected a prefix in a part with a config \
                     of its own, {}, got {prefix}; {}",
                    names.join(" or "),
                    assume()
                ));
            }
        }
        Ok(self)
    }

    /// The model's type and who says so.
    pub fn model_type(&self) -> Result<Option<(String, String)>, String> {
        let mut found: Option<(String, String)> = None;
        for (source, values) in &self.0 {
            let Some(value) = values.get("model_type").filter(|value| is_set(value)) else {
                continue;
            };
            let Some(name) = value.as_str() else {
                return Err(format!(
                    "{source}: model_type: expected a name, got {value}"
                ));
            };
            match &found {
                Some((other, first)) if other != name => {
                    return Err(format!(
                        "{first} has model_type {other}, and {source} has {name}"
                    ));
                }
                _ => found = Some((name.to_owned(), source.clone())),
            }
        }
        Ok(found)
    }

    /// Whether any source sets the key.
    pub fn flag(&self, key: &str) -> bool {
        let values = self.0.iter().filter_map(|(_, values)| values.get(key));
        values.into_iter().any(is_set)
    }

    /// The first text under a key.
    pub fn text(&self, key: &str) -> Option<String> {
        let mut values = self.0.iter().filter_map(|(_, values)| values.get(key));
        values.find_map(|value| value.as_str().map(str::to_owned))
    }

    /// The number of heads of the layer at `prefix` and who says so.
    pub fn heads(&self, prefix: &str, half: Option<Half>) -> Result<Option<Heads>, String> {
        let others = match half {
            Some(Half::Encoder) => "decoder_attention_heads",
            Some(Half::Decoder) => "encoder_attention_heads",
            None => "",
        };
        for (source, values) in &self.0 {
            let named = HEADS
                .iter()
                .filter(|key| **key != others)
                .filter_map(|key| Some((*key, values.get(*key)?)));
            let named: Vec<(&str, &Value)> = named.filter(|(_, value)| !value.is_null()).collect();
            let given = named
                .iter()
                .filter_map(|(key, value)| Some((*key, count(value)?)));
            let given: Vec<(&str, usize)> = given.collect();
            match given[..] {
                [] => {
                    if let Some((key, value)) = named.first() {
                        return Err(format!(
                            "{source}: {key}: expected a number of heads, got {value}: --heads \
                             says how many"
                        ));
                    }
                }
                [(key, heads), ref others @ ..] => {
                    if let Some((other, differs)) = others.iter().find(|(_, n)| *n != heads) {
                        return Err(format!(
                            "{source} has {key} {heads} and {other} {differs}: --heads says which"
                        ));
                    }
                    let from = format!("{key} of {source}");
                    return self.without_pruned(prefix, heads, from).map(Some);
                }
            }
        }
        Ok(None)
    }

    /// Refuses a size under one of `keys` that is not `got`, that of `what`; `unless` is
    /// the way out.
    pub fn expect(
        &self,
        keys: &[&str],
        (what, got): (&str, usize),
        unless: &str,
    ) -> Result<(), String> {
        for (source, values) in &self.0 {
            let set = keys
                .iter()
                .filter_map(|key| Some((key, values.get(*key).filter(|v| !v.is_null())?)));
            for (key, value) in set {
                if count(value) != Some(got) {
                    let value = shown(&value.to_string());
                    return Err(format!(
                        "{what}: expected {value}, as {source} has {key} {value}, got {got}; {unless}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// `of` heads less those that `pruned_heads` names for the layer at `prefix`.
    fn without_pruned(&self, prefix: &str, of: usize, from: String) -> Result<Heads, String> {
        let pruned = self.0.iter().find_map(|(source, values)| {
            let pruned = values.get("pruned_heads").filter(|value| is_set(value))?;
            Some((source, pruned))
        });
        let Some((source, pruned)) = pruned else {
            return Ok(Heads {
                count: of,
                of,
                from,
            });
        };
        let wrong = |expected: &str| {
            Err(format!(
                "{source} has pruned_heads {pruned}: {expected}; --heads says how many are left"
            ))
        };
        let Some(pruned) = pruned.as_object() else {
            return wrong("expected lists of heads by layer");
        };
        let Some(layer) = prefix.rsplit('.').find(|p| p.parse::<usize>().is_ok()) else {
            return wrong(&format!("expected a layer's number in the prefix {prefix}"));
        };
        let heads = match pruned.get(layer) {
            None => BTreeSet::new(),
            Some(list) => {
                let numbers = list.as_array().into_iter().flatten();
                let numbers: Option<BTreeSet<u64>> = numbers.map(Value::as_u64).collect();
                match numbers {
                    Some(n) if list.is_array() && n.iter().all(|&n| n < of as u64) => n,
                    _ => return wrong(&format!("expected numbers below {of} for layer {layer}")),
                }
            }
        };
        let count = of - heads.len();
        if count == 0 {
            return wrong(&format!("layer {layer} has no head left"));
        }
        Ok(match heads.is_empty() {
            true => Heads { count, of, from },
            false => Heads {
                count,
                of,
                from: format!("{from}, less {} of pruned_heads", heads.len()),
            },
        })
    }

    /// Refuses models whose attention is not scaled dot-product attention alone;
    /// `scaled` says that the caller gives the scale.
    pub fn check(&self, scaled: bool) -> Result<(), String> {
        for (source, values) in &self.0 {
            let refused = |what: String, why: &str| Err(format!("{source} has {what}: {why}"));
            for (key, value) in values.iter().filter(|(_, value)| is_set(value)) {
                let word = models::WORDS.iter().find(|(word, _)| key.contains(word));
                if let Some((_, part)) = word {
                    let why = format!("the layer needs {part}; {}", assume());
                    return refused(format!("{key} {value}"), &why);
                }
            }
            let position = values.get("position_embedding_type").filter(|v| is_set(v));
            if let Some(position) = position.filter(|p| p.as_str() != Some("absolute")) {
                let what = format!("position_embedding_type {position}");
                let why = "only absolute positions add nothing to attention";
                return refused(what, &format!("{why}; {}", assume()));
            }
            for (key, usual) in [
                ("scale_attn_weights", true),
                ("scale_attn_by_inverse_layer_idx", false),
            ] {
                let value = values.get(key).filter(|value| !value.is_null());
                if !scaled && value.is_some_and(|value| is_set(value) != usual) {
                    let what = format!("{key} {}", !usual);
                    return refused(what, "--scale has to say the factor on q.k");
                }
            }
        }
        Ok(())
    }
}

/// The file that [`Config::read`] reads, if any.
pub fn file(checkpoint: &Path, given: Option<&Path>) -> Option<PathBuf> {
    let beside = || Some(checkpoint.with_file_name("config.json")).filter(|path| path.is_file());
    given.map(Path::to_owned).or_else(beside)
}

/// A positive number.
fn count(value: &Value) -> Option<usize> {
    let number = match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64().and_then(|n| usize::try_from(n).ok()),
    };
    number.filter(|&n| n > 0)
}

/// Whether a value says more than that there is none.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) => true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => {
            let none = ["", "none", "null", "false", "no"];
            !none.contains(&text.to_lowercase().as_str())
        }
        Value::Array(values) => !values.is_empty(),
        Value::Object(values) => !values.is_empty(),
    }
}
