//! Metadata that could be meant as an option and is read as none.

use crate::case::File;

/// What bare operands are looked at with, and what a case is known by: see
/// [`crate::suites::to_look_at`].
const READ: [&str; 7] = [
    "scale",
    "softcap",
    "causal",
    "window_left",
    "window_right",
    "tokens",
    "suite",
];

/// Options by their names elsewhere, in models' configs and in the cases of other
/// suites, and what to say here instead.
const ELSEWHERE: [(&str, &str); 12] = [
    ("is_causal", "causal: bottom_right or none"),
    ("causal_offset", "the tensor offsets"),
    ("causal_offsets", "the tensor offsets"),
    ("alignment", "causal: bottom_right, or the tensor offsets"),
    ("left_window_size", "window_left"),
    ("right_window_size", "window_right"),
    ("window", "window_left and window_right"),
    ("window_size", "window_left and window_right"),
    ("sliding_window", "window_left and window_right"),
    ("attn_logit_softcapping", "softcap"),
    ("logit_softcap", "softcap"),
    (
        "mask_polarity",
        "the tensor attn_mask, where true takes part",
    ),
];

/// What to warn of: keys that are nearly one of those that are read, and options that
/// `file`, operands without a suite, has under another name. All other keys are free.
pub fn doubts(file: &File) -> Vec<String> {
    let is_case = file.metadata.contains_key("suite")
        || ["X", "expected.Y"]
            .iter()
            .any(|name| file.get(name).is_some());
    let doubt = |key: &String| {
        if READ.contains(&&key[..]) {
            return None;
        }
        if let Some((_, here)) = ELSEWHERE.iter().find(|(name, _)| name == key) {
            // A case's own suite reads it. Without operands, flags give the options.
            let is_read = is_case || file.tensors.is_empty();
            return (!is_read).then(|| format!("metadata {key} is not read here, but {here}"));
        }
        let plain = key.to_lowercase().replace(['-', ' '], "_");
        let near = READ
            .iter()
            .find(|known| strsim::damerau_levenshtein(&plain, known) <= (known.len() / 3).min(2))?;
        Some(format!("metadata {key} is not read; is {near} meant?"))
    };
    file.metadata.keys().filter_map(doubt).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Array;

    #[test]
    fn free_keys_raise_no_doubt() {
        let mut file = File::default();
        file.tensors
            .insert("Q".to_owned(), Array::f32(&[1], vec![0.0]));
        let mut doubts_of = |key: &str| {
            file.metadata = [(key.to_owned(), "1".to_owned())].into();
            doubts(&file).join("\n")
        };
        for key in READ.into_iter().chain([
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
        ]) {
            assert_eq!(doubts_of(key), "", "{key}");
        }
        for (key, meant) in [
            ("casual", "causal"),
            ("Causal", "causal"),
            ("window-left", "window_left"),
            ("windowright", "window_right"),
            ("soft_cap", "softcap"),
            ("token", "tokens"),
            ("scales", "scale"),
        ] {
            assert_eq!(
                doubts_of(key),
                format!("metadata {key} is not read; is {meant} meant?")
            );
        }
        assert_eq!(
            doubts_of("window_size"),
            "metadata window_size is not read here, but window_left and window_right"
        );
        file.metadata.insert("suite".to_owned(), "onnx".to_owned());
        assert_eq!(doubts(&file), [""; 0]);
    }
}
