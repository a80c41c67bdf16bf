//! Layers of real models' definitions with random weights: `models/make.py` wrote them,
//! and what their models make of them. No number of heads, no causality and no part of the
//! attention is said on the command line: the config decides.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use wgpu_attention::reference::compare_abs;

use super::{layer, nothing};
use crate::{Parts, run, stderr, stdout};

/// The f32 CPU path and rounding to F32 of values up to some 100, in sums of 8 products;
/// some models compute their softmax in f32.
pub const TOLERANCE: f64 = 2e-5;

/// A file of `models/` with its config beside it, and the tensors that go with layers.
pub struct Model {
    folder: TempDir,
    stand: String,
    parts: Parts,
    config: Value,
}

impl Model {
    fn of(file: &Path) -> Model {
        let folder = TempDir::new().unwrap();
        let parts = Parts::read(file);
        let config = serde_json::from_str(&parts.metadata["config"]).unwrap();
        let model = Model {
            folder,
            stand: parts.metadata["stand"].clone(),
            parts,
            config,
        };
        let mut checkpoint = nothing();
        let own = |name: &str| {
            !["X.", "C.", "Y."]
                .iter()
                .any(|start| name.starts_with(start))
        };
        let tensors = model.parts.tensors.iter().filter(|(name, ..)| own(name));
        checkpoint.tensors = tensors.cloned().collect();
        checkpoint.write(&model.path("model.safetensors"));
        model.write_config(&model.config);
        model
    }

    pub fn named(name: &str) -> Model {
        Model::of(&folder().join(format!("{name}.safetensors")))
    }

    fn write_config(&self, config: &Value) {
        std::fs::write(self.path("config.json"), config.to_string()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn prefixes(&self) -> Vec<String> {
        let names = self.parts.tensors.iter();
        let prefixes = names.filter_map(|(name, ..)| name.strip_prefix("X."));
        prefixes.map(str::to_owned).collect()
    }

    fn has(&self, name: &str) -> bool {
        self.parts.tensors.iter().any(|(n, ..)| n == name)
    }

    /// What the command says of the layer at `prefix`.
    fn run(&mut self, prefix: &str, flags: &[&str]) -> std::process::Output {
        let mut flags = flags.to_vec();
        let out = self.path("out");
        std::fs::remove_file(&out).ok();
        let of = |parts: &mut Parts, kind: &str, path: &Path| {
            let name = format!("{kind}.{prefix}");
            let (shape, values) = (parts.shape(&name), parts.f32(&name));
            let mut one = nothing();
            one.add("X", &shape, &values);
            one.write(path);
        };
        let (x, context) = (self.path("x"), self.path("context"));
        of(&mut self.parts, "X", &x);
        if self.has(&format!("C.{prefix}")) {
            of(&mut self.parts, "C", &context);
            flags.extend(["--context", context.to_str().unwrap()]);
        }
        flags.extend(["--prefix", prefix, "--json", "--backend", "cpu"]);
        flags.extend(["-o", out.to_str().unwrap()]);
        layer(&self.path("model.safetensors"), &x, &flags)
    }

    /// The largest difference from what the model makes of it, and what was decided.
    pub fn error(&mut self, prefix: &str, flags: &[&str]) -> (f64, Value) {
        let output = self.run(prefix, flags);
        let what = format!("{} {prefix} {flags:?}", self.config["model_type"]);
        assert!(output.status.success(), "{what}: {}", stderr(&output));
        let got = Parts::read(&self.path("out")).f32("Y");
        let expected = self.parts.f32(&format!("Y.{prefix}"));
        let found = compare_abs(&got, &expected, 0.0, 0.0).unwrap();
        assert_eq!(found.compared, expected.len(), "{what}");
        let differences = got.iter().zip(&expected);
        let differences = differences.map(|(a, b)| f64::from((a - b).abs()));
        let scale = expected.iter().fold(1.0f32, |m, y| m.max(y.abs()));
        let largest = differences.fold(0.0, f64::max) / f64::from(scale);
        (largest, serde_json::from_str(&stdout(&output)).unwrap())
    }

    /// The error for a layer that is not computed.
    fn refusal(&mut self, prefix: &str, flags: &[&str]) -> String {
        let output = self.run(prefix, flags);
        let errors = stderr(&output);
        let what = format!("{} {prefix} {flags:?}", self.config);
        assert_eq!(output.status.code(), Some(2), "{what}: {errors}");
        assert!(!self.path("out").exists(), "{what}");
        errors
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/layer/models")
}

fn files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
        .collect();
    files.sort();
    files
}

/// Every layer is what its model computes, with what the model's type says of causality,
/// or is refused. The other causality is another layer.
#[test]
fn layers_are_what_their_models_compute() {
    let mut plain: BTreeMap<String, usize> = BTreeMap::new();
    for file in files() {
        let mut model = Model::of(&file);
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        for prefix in model.prefixes() {
            // GroupViT's vision is not in the table.
            if model.stand == "other" || name == "groupvit" && prefix.starts_with("vision") {
                let errors = model.refusal(&prefix, &[]);
                let end = ["--assume-plain computes it", "--scale has to say"];
                assert!(end.iter().any(|end| errors.contains(end)), "{errors}");
                continue;
            }
            let (error, said) = model.error(&prefix, &[]);
            assert!(error < TOLERANCE, "{name} {prefix}: {error}: {said}");
            *plain
                .entry(model.config["model_type"].to_string())
                .or_default() += 1;
            let causal = said["causal"].as_bool().unwrap();
            let is_cross = model.has(&format!("C.{prefix}"));
            assert!(!(causal && is_cross), "{name} {prefix}: {said}");
            let other = if causal {
                "--bidirectional"
            } else {
                "--causal"
            };
            let (error, said) = model.error(&prefix, &[other]);
            assert!(error > 0.01, "{name} {prefix} {other}: {error}");
            assert_eq!(said["causal"], !causal);
            assert_eq!(said["why"], other);
        }
    }
    assert!(plain.len() >= 50, "{}: {plain:?}", plain.len());
}

/// A layer with a part more is refused by the part's name, and is another one without.
#[test]
fn parts_of_attention_outside_the_layer_are_named() {
    for (name, prefix, word) in [
        (
            "layoutlmv3",
            "encoder.layer.0.attention",
            "relative positions",
        ),
        (
            "speecht5",
            "encoder.wrapped_encoder.layers.0.attention",
            "encoder_max_relative_position 160",
        ),
        ("roformer", "encoder.layer.0.attention", "rotary position"),
        ("yoso", "encoder.layer.0.attention", "model_type yoso"),
        ("gpt_neo", "h.0.attn.attention", "a window"),
        (
            "gpt2.inverse",
            "h.1.attn",
            "scale_attn_by_inverse_layer_idx",
        ),
    ] {
        let mut model = Model::named(name);
        let errors = model.refusal(prefix, &[]);
        assert!(errors.contains(word), "{name}: {errors}");
        let (error, said) = model.error(prefix, &["--assume-plain"]);
        assert!(error > 0.01, "{name}: {error}");
        assert_eq!(said["plain"], "assumed (--assume-plain)");
    }
    // The type says so, with nothing else in the config.
    for (name, word) in [
        ("layoutlmv3", "a relative position bias"),
        ("speecht5", "relative keys"),
    ] {
        let mut model = Model::named(name);
        let config = serde_json::json!({"model_type": name, "num_attention_heads": 4});
        model.write_config(&config);
        let prefix = model.prefixes().remove(0);
        let errors = model.refusal(&prefix, &[]);
        assert!(errors.contains(word), "{name}: {errors}");
    }
}

/// Keys that add a part to a model which is plain without them.
#[test]
fn a_config_keeps_its_model_plain() {
    for (name, key, value, word) in [
        (
            "big_bird",
            "attention_type",
            "\"block_sparse\"",
            "got block_sparse",
        ),
        (
            "big_bird",
            "attention_type",
            "null",
            "expected attention_type original_full, got none",
        ),
        (
            "informer",
            "attention_type",
            "\"prob\"",
            "expected attention_type full, got prob",
        ),
        ("mvp", "use_prompt", "true", "prompts among keys and values"),
        ("bert", "alibi", "true", "ALiBi"),
        (
            "bert",
            "position_embedding_type",
            "\"alibi\"",
            "only absolute positions",
        ),
        (
            "bert",
            "auto_map",
            "{\"AutoModel\": \"other.Model\"}",
            "code of its own",
        ),
        ("bert", "relative_attention", "true", "relative positions"),
        ("opt", "sliding_window", "4", "a window"),
        ("bart", "attention_window", "[4]", "a window"),
        ("opt", "attn_logit_softcapping", "50.0", "a softcap"),
        (
            "clip_vision_model",
            "use_qk_norm",
            "true",
            "norms of queries and keys",
        ),
        (
            "esm",
            "position_embedding_type",
            "\"rotary\"",
            "only absolute positions",
        ),
        ("bert", "rope_theta", "10000.0", "rotary"),
        ("wav2vec2", "is_decoder", "true", "not known as a decoder"),
        ("bert", "model_type", "\"autoformer\"", "autocorrelation"),
        (
            "bart",
            "model_type",
            "\"rt_detr\"",
            "positions on queries and keys",
        ),
        (
            "bert",
            "model_type",
            "\"layoutlmv2\"",
            "relative position bias",
        ),
        (
            "bert",
            "model_type",
            "\"brand-new\"",
            "not known whether its attention is plain",
        ),
        ("bert", "model_type", "\"bart\"", "by the names of q_proj"),
        (
            "bert",
            "model_type",
            "7",
            "model_type: expected a name, got 7",
        ),
        ("bert", "model_type", "null", "no model_type"),
    ] {
        let mut model = Model::named(name);
        let prefix = model.prefixes().remove(0);
        let mut config = model.config.clone();
        config[key] = serde_json::from_str(value).unwrap();
        model.write_config(&config);
        let errors = model.refusal(&prefix, &[]);
        assert!(errors.contains(word), "{name} {key} {value}: {errors}");
        // The same key without a meaning changes nothing.
        if !["model_type", "attention_type"].contains(&key) {
            for nothing in [Value::Null, false.into()] {
                config[key] = nothing;
                model.write_config(&config);
                assert!(model.error(&prefix, &[]).0 < TOLERANCE, "{name} {key}");
            }
        }
    }
}

/// Pruned heads are left out of their layer's number of heads, and never guessed.
#[test]
fn pruned_heads() {
    let mut model = Model::named("bert.pruned");
    let first = "encoder.layer.0.attention";
    let (error, said) = model.error(first, &[]);
    assert!(error < TOLERANCE, "{error}");
    assert_eq!(said["heads"]["query"], 2);
    let from = said["heads"]["from"].as_str().unwrap();
    assert!(from.contains("less 2 of pruned_heads"), "{from}");
    for (pruned, word) in [
        ("{}", "were heads pruned?"),
        ("{\"1\": [0]}", "were heads pruned?"),
        ("{\"0\": [0]}", "were heads pruned?"),
        ("{\"0\": [0, 4]}", "expected numbers below 4 for layer 0"),
        ("{\"0\": [0, 1, 2, 3]}", "layer 0 has no head left"),
        ("{\"0\": 3}", "expected numbers below 4"),
        ("[1, 3]", "expected lists of heads by layer"),
    ] {
        let mut config = model.config.clone();
        config["pruned_heads"] = serde_json::from_str(pruned).unwrap();
        model.write_config(&config);
        let errors = model.refusal(first, &[]);
        assert!(errors.contains(word), "{pruned}: {errors}");
        let given = model.error(first, &["--heads", "2"]).0;
        assert!(given < TOLERANCE, "{pruned}: {given}");
    }
}

/// Which half, which part, and cross-attention.
#[test]
fn the_prefix_says_which_part_of_a_model() {
    // A decoder within a model of two.
    let mut model = Model::named("trocr");
    let config = serde_json::json!({
        "model_type": "vision-encoder-decoder",
        "encoder": {"model_type": "vit", "num_attention_heads": 3},
        "decoder": model.config,
    });
    let start = |parts: &mut Parts, start: &str| {
        for (name, ..) in &mut parts.tensors {
            let at = name.find("model.").unwrap();
            name.insert_str(at, start);
        }
    };
    start(&mut model.parts, "decoder.");
    let mut checkpoint = Parts::read(&model.path("model.safetensors"));
    start(&mut checkpoint, "decoder.");
    checkpoint.write(&model.path("model.safetensors"));
    model.write_config(&config);
    for prefix in model.prefixes() {
        let (error, said) = model.error(&prefix, &[]);
        assert!(error < TOLERANCE, "{prefix}: {error}");
        assert_eq!(said["causal"], prefix.ends_with("self_attn"));
    }
    // Cross-attention without what it looks at.
    let cross = "decoder.model.decoder.layers.0.encoder_attn";
    let context = format!("C.{cross}");
    model.parts.tensors.retain(|(name, ..)| *name != context);
    let errors = model.refusal(cross, &[]);
    let word = "encoder_attn is cross-attention";
    assert!(
        errors.contains("--context is needed") && errors.contains(word),
        "{errors}"
    );

    // A prefix outside both parts, and one outside both halves.
    let mut model = Model::named("clip_text_model");
    let prefix = model.prefixes().remove(0);
    model.write_config(&serde_json::json!({"model_type": "encoder-decoder"}));
    let errors = model.refusal(&prefix, &[]);
    assert!(
        errors.contains("no model_type") || errors.contains("expected a prefix"),
        "{errors}"
    );
    let mut model = Model::named("opt");
    let mut checkpoint = Parts::read(&model.path("model.safetensors"));
    for (name, ..) in checkpoint
        .tensors
        .iter_mut()
        .chain(&mut model.parts.tensors)
    {
        *name = name.replace("decoder.layers", "layers");
    }
    checkpoint.write(&model.path("model.safetensors"));
    model.write_config(&serde_json::json!({"model_type": "bart", "num_heads": 4}));
    let errors = model.refusal("layers.0.self_attn", &[]);
    assert!(
        errors.contains("--causal or --bidirectional has to say"),
        "{errors}"
    );
    assert!(model.error("layers.0.self_attn", &["--causal"]).0 < TOLERANCE);
    // Self-attention looks at its own tokens.
    let x = model.path("x");
    let flags = ["--causal", "--context", x.to_str().unwrap()];
    let errors = model.refusal("layers.0.self_attn", &flags);
    assert!(
        errors.contains("layers.0.self_attn is self-attention"),
        "{errors}"
    );
}

/// `inspect` decides alike.
#[test]
fn inspect_refuses_what_layer_refuses() {
    let mut model = Model::named("speecht5");
    let prefix = model.prefixes().remove(0);
    model.refusal(&prefix, &[]);
    let (checkpoint, x) = (model.path("model.safetensors"), model.path("x"));
    let fixed = ["inspect", checkpoint.to_str().unwrap(), "--stats"];
    let flags = [
        "--input",
        x.to_str().unwrap(),
        "--prefix",
        &prefix,
        "--backend",
        "oracle",
    ];
    let words = [&fixed[..], &flags, &["--head", "0"]].concat();
    let refused = run(&words);
    assert_eq!(refused.status.code(), Some(2));
    let errors = stderr(&refused);
    assert!(errors.contains("encoder_max_relative_position"), "{errors}");
    let assumed = run(words.iter().chain(&["--assume-plain"]));
    assert!(assumed.status.success(), "{}", stderr(&assumed));
}
