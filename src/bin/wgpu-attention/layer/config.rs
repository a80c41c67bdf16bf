//! What a checkpoint says about its model beside the weights: the metadata of the file
//! and the config.json that usually lies next to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::layer::tensors::Tensors;

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
        let metadata = metadata.map(|(key, text)| (key, Value::String(text)));
        let mut sources = vec![("metadata".to_owned(), metadata.collect())];
        if let Some(path) = file(checkpoint, given) {
            let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
            let text = crate::input::text(&path).map_err(|e| named(&e))?;
            let config = serde_json::from_str(&text).map_err(|e| named(&e))?;
            sources.push((path.display().to_string(), config));
        }
        Ok(Config(sources))
    }

    /// The number of heads and who says so.
    pub fn heads(&self) -> Result<Option<(usize, String)>, String> {
        for (source, values) in &self.0 {
            let named = HEADS
                .iter()
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
                    return Ok(Some((heads, format!("{key} of {source}"))));
                }
            }
        }
        Ok(None)
    }

    /// Refuses models whose attention is not scaled dot-product attention alone;
    /// `scaled` says that the caller gives the scale.
    pub fn check(&self, scaled: bool) -> Result<(), String> {
        for (source, values) in &self.0 {
            let text = |key: &str| values.get(key).and_then(Value::as_str).unwrap_or_default();
            let refused = |what: String, why: &str| Err(format!("{source} has {what}: {why}"));
            let rotary = values.iter().find(|(key, value)| {
                (key.starts_with("rope_") || key.starts_with("rotary")) && is_set(value)
            });
            const NO_ROTARY: &str =
                "the layer needs rotary position embedding, which does not exist here yet";
            if let Some((key, value)) = rotary {
                return refused(format!("{key} {value}"), NO_ROTARY);
            }
            if text("model_type") == "roformer" {
                return refused("model_type roformer".to_owned(), NO_ROTARY);
            }
            let position = text("position_embedding_type");
            if !["", "absolute"].contains(&position) {
                let what = format!("position_embedding_type {position}");
                return refused(what, "only absolute positions add nothing to attention");
            }
            let flag = |key: &str| values.get(key).and_then(Value::as_bool);
            for (key, usual) in [
                ("scale_attn_weights", true),
                ("scale_attn_by_inverse_layer_idx", false),
            ] {
                if !scaled && flag(key) == Some(!usual) {
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

/// A positive number, in JSON or as text.
fn count(value: &Value) -> Option<usize> {
    let number = match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64().and_then(|n| usize::try_from(n).ok()),
    };
    number.filter(|&n| n > 0)
}

fn is_set(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false))
}
