//! The metadata of a file of bare operands: which keys are options, and which are
//! nearly one and refused.
//!
//! A key that is an option under another name, or nearly one by its spelling, is an
//! error: computed without it, the result would be another than the file's author
//! meant. Every other key (`format`, `source`, a licence) is free; commands list it.

use wgpu_attention::Alignment;

use crate::case::File;
use crate::options::{self, Layout, MaskPolarity, Side, alignment, side};

/// What the metadata says; `None` for what it does not speak of.
#[derive(Debug, Default)]
pub struct Given {
    /// `Some(None)`: "default".
    pub scale: Option<Option<f32>>,
    /// `Some(None)`: 0, none.
    pub softcap: Option<Option<f32>>,
    pub causal: Option<bool>,
    pub window_left: Option<Side>,
    pub window_right: Option<Side>,
    pub alignment: Option<Alignment>,
    pub mask_polarity: Option<MaskPolarity>,
    pub layout: Option<Layout>,
    /// Keys that are no options.
    pub unread: Vec<String>,
}

/// The options, and the values that each may have.
const OPTIONS: [(&str, &str); 8] = [
    ("scale", "a number or default"),
    ("softcap", "a number, 0 for none"),
    (
        "causal",
        "true, false, 1, 0, none, bottom_right or top_left",
    ),
    ("window_left", "a number of keys, -1 for all"),
    ("window_right", "a number of keys, -1 for all"),
    (
        "alignment",
        "top_left, bottom_right, per_sequence or a number",
    ),
    ("mask_polarity", "keep or drop"),
    ("layout", "bhsd, bshd or packed"),
];

/// Read, but no options.
const OTHERS: [&str; 2] = ["tokens", "suite"];

/// Options by their names elsewhere, in models' configs and in the cases of other
/// suites, and what to say here instead.
const ELSEWHERE: [(&str, &str); 35] = [
    ("is_causal", "causal: true or false"),
    ("is_decoder", "causal: true or false"),
    ("attention_scale", "scale"),
    ("logit_scale", "scale"),
    ("enable_gqa", "heads are grouped by the shapes"),
    ("causal_mask", "causal: bottom_right or top_left"),
    ("causal_offset", "the tensor offsets"),
    ("causal_offsets", "the tensor offsets"),
    ("q_offset", "the tensor offsets"),
    ("left_window_size", "window_left"),
    ("right_window_size", "window_right"),
    ("window", "window_left and window_right"),
    ("window_size", "window_left and window_right"),
    ("local_window_size", "window_left and window_right"),
    ("sliding_window", "window_left and window_right"),
    ("attention_window", "window_left and window_right"),
    ("softmax_scale", "scale"),
    ("sm_scale", "scale"),
    ("attn_scale", "scale"),
    ("scaling", "scale"),
    ("scale_factor", "scale"),
    ("attn_logit_softcapping", "softcap"),
    ("logit_softcap", "softcap"),
    ("logits_soft_cap", "softcap"),
    ("logit_cap", "softcap"),
    ("qkv_layout", "layout: bhsd, bshd or packed"),
    ("qkv_format", "layout: bhsd, bshd or packed"),
    ("input_layout", "layout: bhsd, bshd or packed"),
    ("tensor_layout", "layout: bhsd, bshd or packed"),
    ("alibi", "the tensor alibi_slopes"),
    ("use_alibi", "the tensor alibi_slopes"),
    ("mask", "the tensor attn_mask"),
    ("dropout", "no dropout"),
    ("dropout_p", "no dropout"),
    ("rotary", "no rotary embedding"),
];

/// The options in the metadata of `file`.
pub fn given(file: &File) -> Result<Given, String> {
    if let Some(doubt) = doubts(file).into_iter().next() {
        let known: Vec<&str> = OPTIONS.map(|(name, _)| name).to_vec();
        return Err(format!(
            "{doubt}; options are {}; --ignore-metadata reads none",
            known.join(", ")
        ));
    }
    let mut given = Given::default();
    for (key, text) in &file.metadata {
        let word = text.trim().to_lowercase();
        let word = word.as_str();
        let dashed = word.replace('_', "-");
        let number = || options::number(word).ok();
        let is_read = match key.as_str() {
            "scale" if word == "default" => set(&mut given.scale, Some(None)),
            "scale" => set(&mut given.scale, number().map(Some)),
            "softcap" if word == "none" => set(&mut given.softcap, Some(None)),
            "softcap" => {
                let cap = number().map(|cap| Some(cap).filter(|&cap| cap != 0.0));
                set(&mut given.softcap, cap)
            }
            "causal" => {
                let causal = match word {
                    "0" | "false" | "none" => Some(false),
                    "1" | "true" | "bottom_right" | "top_left" => Some(true),
                    _ => None,
                };
                if word.contains('_') && causal.is_some() {
                    let aligned = alignment(&dashed)?;
                    if given.alignment.is_some_and(|other| other != aligned) {
                        return Err(format!("metadata causal: {word} is not the alignment"));
                    }
                    given.alignment = Some(aligned);
                }
                set(&mut given.causal, causal)
            }
            "window_left" => set(&mut given.window_left, side(word).ok()),
            "window_right" => set(&mut given.window_right, side(word).ok()),
            // Before `causal`, by the order of their names.
            "alignment" => set(&mut given.alignment, alignment(&dashed).ok()),
            "mask_polarity" => {
                let meaning = <MaskPolarity as clap::ValueEnum>::from_str(word, true);
                set(&mut given.mask_polarity, meaning.ok())
            }
            "layout" => {
                let layout = <Layout as clap::ValueEnum>::from_str(word, true);
                set(&mut given.layout, layout.ok())
            }
            other => {
                if !OTHERS.contains(&other) {
                    given.unread.push(other.to_owned());
                }
                true
            }
        };
        if !is_read {
            let expected = OPTIONS.iter().find(|(name, _)| name == key);
            let expected = expected.map_or("", |(_, words)| words);
            return Err(format!("metadata {key}: expected {expected}, got {text:?}"));
        }
    }
    Ok(given)
}

/// Whether there is a value to set.
fn set<T>(place: &mut Option<T>, value: Option<T>) -> bool {
    let is_some = value.is_some();
    *place = value;
    is_some
}

/// Keys that are nearly one of those that are read, and options under another name.
pub fn doubts(file: &File) -> Vec<String> {
    let known = || (OPTIONS.iter().map(|(name, _)| *name)).chain(OTHERS);
    let doubt = |key: &String| {
        if known().any(|name| name == key) {
            return None;
        }
        let plain = key.to_lowercase().replace(['-', ' '], "_");
        if let Some((_, here)) = ELSEWHERE.iter().find(|(name, _)| *name == plain) {
            // Without operands, flags give the options.
            let is_read = file.tensors.is_empty();
            return (!is_read).then(|| format!("metadata {key} is not read here, but {here}"));
        }
        let near = known()
            .find(|known| strsim::damerau_levenshtein(&plain, known) <= (known.len() / 3).min(2))?;
        Some(format!("metadata {key} is not read; is {near} meant?"))
    };
    file.metadata.keys().filter_map(doubt).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Array;

    fn with(metadata: &[(&str, &str)]) -> File {
        let mut file = File::default();
        let operand = Array::f32(&[1], vec![0.0]);
        file.tensors.insert("Q".to_owned(), operand);
        let entries = metadata.iter().copied();
        file.metadata
            .extend(entries.map(|(key, text)| (key.to_owned(), text.to_owned())));
        file
    }

    #[test]
    fn free_keys_are_listed_and_options_elsewhere_refused() {
        for key in [
            "source",
            "note",
            "layer",
            "layers",
            "name",
            "format",
            "license",
            "heads",
            "model",
            "token_count",
            "size",
            "style",
            "sample",
            "window_title",
            "case",
            "",
        ] {
            assert_eq!(given(&with(&[(key, "pt")])).unwrap().unread, [key]);
        }
        for (key, meant) in [
            ("casual", "causal"),
            ("Causal", "causal"),
            ("window-left", "window_left"),
            ("windowright", "window_right"),
            ("soft_cap", "softcap"),
            ("token", "tokens"),
            ("scales", "scale"),
            ("mask_polarty", "mask_polarity"),
            ("Layout", "layout"),
        ] {
            let refused = given(&with(&[(key, "1")])).unwrap_err();
            let why = format!("metadata {key} is not read; is {meant} meant?; options are scale, ");
            assert!(refused.starts_with(&why), "{refused}");
        }
        let refused = given(&with(&[("window_size", "4")])).unwrap_err();
        let why = "metadata window_size is not read here, but window_left and window_right; ";
        assert!(refused.starts_with(why), "{refused}");
        // Without operands nothing is computed from it.
        let mut file = with(&[("window_size", "4")]);
        file.tensors.clear();
        assert_eq!(doubts(&file), [""; 0]);
    }

    #[test]
    fn values_are_read_or_refused_with_the_accepted_words() {
        let all = given(&with(&[
            ("scale", "0.5"),
            ("softcap", "0"),
            ("causal", "top_left"),
            ("window_left", "-1"),
            ("window_right", "3"),
            ("mask_polarity", "Drop"),
            ("layout", "BSHD"),
            ("tokens", "[]"),
        ]));
        let all = all.unwrap();
        assert_eq!((all.scale, all.softcap), (Some(Some(0.5)), Some(None)));
        assert_eq!(
            (all.causal, all.alignment),
            (Some(true), Some(Alignment::TopLeft))
        );
        assert_eq!(
            (all.window_left, all.window_right),
            (Some(None), Some(Some(3)))
        );
        assert_eq!(all.mask_polarity, Some(MaskPolarity::Drop));
        assert_eq!((all.layout, all.unread.len()), (Some(Layout::Bshd), 0));
        // As Python prints it; the alignment stays the default.
        let python = given(&with(&[("causal", "True")])).unwrap();
        assert_eq!((python.causal, python.alignment), (Some(true), None));
        for (key, text) in [
            ("scale", "big"),
            ("scale", "-1e-50"),
            ("softcap", "0.0001e-45"),
            ("softcap", ""),
            ("causal", "yes"),
            ("window_left", "4294967296"),
            ("window_right", "few"),
            ("alignment", "centre"),
            ("mask_polarity", "1"),
            ("layout", "bsd"),
        ] {
            let refused = given(&with(&[(key, text)])).unwrap_err();
            let (_, words) = OPTIONS.iter().find(|(name, _)| *name == key).unwrap();
            let expected = format!("metadata {key}: expected {words}, got {text:?}");
            assert_eq!(refused, expected);
        }
        let both = given(&with(&[("causal", "top_left"), ("alignment", "3")])).unwrap_err();
        assert!(both.contains("is not the alignment"), "{both}");
    }
}
