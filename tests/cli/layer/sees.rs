//! What a token sees, without a flag: the model's type, its config and the prefix say so,
//! and what they said is printed. What happens where nothing says a type.

use super::models::{Model, TOLERANCE};
use super::refused::{Desk, of};
use super::{SCHEMES, layer, y};
use crate::{stderr, stdout};

/// Every decoder that was computed as an encoder once, and its neighbours.
#[test]
fn the_models_type_says_whether_a_layer_is_causal() {
    for (name, prefix, causal, why) in [
        ("opt", "decoder.layers.0.self_attn", true, "opt"),
        ("xglm", "layers.0.self_attn", true, "xglm"),
        ("biogpt", "layers.0.self_attn", true, "biogpt"),
        ("trocr", "model.decoder.layers.0.self_attn", true, "trocr"),
        (
            "trocr",
            "model.decoder.layers.0.encoder_attn",
            false,
            "cross-attention",
        ),
        (
            "clip",
            "text_model.encoder.layers.0.self_attn",
            true,
            "clip_text_model of text_config",
        ),
        (
            "clip",
            "vision_model.encoder.layers.0.self_attn",
            false,
            "clip_vision_model of vision_config",
        ),
        (
            "clip_text_model",
            "text_model.encoder.layers.0.self_attn",
            true,
            "clip_text_model",
        ),
        ("bart", "decoder.layers.0.self_attn", true, ", decoder"),
        ("bart", "encoder.layers.0.self_attn", false, ", encoder"),
        (
            "bart",
            "decoder.layers.0.encoder_attn",
            false,
            "cross-attention",
        ),
        (
            "bert.decoder",
            "encoder.layer.0.attention",
            true,
            ", is_decoder",
        ),
        (
            "bert.decoder",
            "encoder.layer.0.crossattention",
            false,
            "cross-attention",
        ),
        ("bert", "encoder.layer.0.attention", false, ", no decoder"),
        ("gpt2", "h.0.attn", true, "gpt2"),
        ("wav2vec2", "encoder.layers.0.attention", false, "wav2vec2"),
    ] {
        let mut model = Model::named(name);
        assert!(model.prefixes().iter().any(|p| p == prefix), "{name}");
        let (error, said) = model.error(prefix, &[]);
        assert!(error < TOLERANCE, "{name} {prefix}: {error}: {said}");
        assert_eq!(said["causal"], causal, "{name} {prefix}: {said}");
        let sees = match causal {
            true => "earlier tokens and itself",
            false => "all tokens",
        };
        assert_eq!(said["sees"], sees, "{name} {prefix}");
        let reason = said["why"].as_str().unwrap();
        assert!(reason.contains(why), "{name} {prefix}: {reason}");
    }
}

/// Without a type in metadata or config only torch's own module is computed: it is plain
/// by its definition, and bidirectional until a flag says otherwise.
#[test]
fn without_a_type_only_torchs_module_is_computed() {
    for (scheme, prefix) in SCHEMES {
        let desk = Desk::new();
        let mut parts = of(scheme);
        parts.metadata.remove("model_type");
        let path = parts.at(desk.path("model"));
        assert!(!desk.path("config.json").exists());
        let flags = ["--backend", "cpu", "--prefix", prefix];
        if scheme.starts_with("torch") {
            let (_, text) = y(&path, &desk.x, &flags);
            let plain = "plain    by the definition of torch's MultiheadAttention\n";
            let sees =
                "sees     all tokens (nothing says causal; --causal if the model is a decoder)";
            assert!(text.contains(plain) && text.contains(sees), "{text}");
            continue;
        }
        let refused = layer(&path, &desk.x, &flags);
        let errors = stderr(&refused);
        assert_eq!(refused.status.code(), Some(2), "{scheme}: {errors}");
        let why = "no model_type, in metadata or a config.json (--config)";
        assert!(errors.contains(why), "{scheme}: {errors}");
        assert!(errors.contains("--assume-plain"), "{scheme}: {errors}");
        let assumed = [&flags[..], &["--assume-plain"]].concat();
        let (_, text) = y(&path, &desk.x, &assumed);
        assert!(text.contains("plain    assumed (--assume-plain)"), "{text}");
    }
    let help = crate::run(["layer", "--help"]);
    let help = stdout(&help)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(help.contains("Without a type"), "{help}");
}
