//! What `layer` refuses, and what it says.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use safetensors::tensor::Dtype;
use tempfile::TempDir;

use super::{SCHEMES, WIDTH, Weights, checkpoint, input, layer, nothing};
use crate::{Parts, stderr, stdout};

/// Files in a folder of their own, and what the command says of them.
pub struct Desk {
    folder: TempDir,
    pub x: PathBuf,
}

impl Desk {
    pub fn new() -> Desk {
        let folder = TempDir::new().unwrap();
        let (x, _) = input(&folder);
        Desk { folder, x }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The message for a checkpoint that cannot be computed.
    fn refused(&self, parts: Parts, flags: &[&str]) -> String {
        let path = parts.at(self.path("refused"));
        let flags = [flags, &["--backend", "oracle"]].concat();
        let output = layer(&path, &self.x, &flags);
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {errors}");
        assert_eq!(stdout(&output), "");
        assert!(errors.starts_with("error: "), "{errors}");
        errors
    }

    fn says(&self, parts: Parts, flags: &[&str], words: &[&str]) {
        let errors = self.refused(parts, flags);
        for word in words {
            assert!(errors.contains(word), "expected {word:?} in {errors}");
        }
    }
}

pub fn of(scheme: &str) -> Parts {
    checkpoint(scheme, &Weights::new())
}

fn renamed(mut parts: Parts, from: &str, to: &str) -> Parts {
    for (name, ..) in &mut parts.tensors {
        *name = name.replace(from, to);
    }
    parts
}

pub fn with(mut parts: Parts, name: &str, shape: &[usize]) -> Parts {
    parts.add(name, shape, &vec![0.5; shape.iter().product()]);
    parts
}

fn reshaped(parts: Parts, name: &str, shape: &[usize]) -> Parts {
    with(parts.without(name), name, shape)
}

/// Layers whose result would be another than that of their model.
#[test]
fn layers_that_need_more_than_attention() {
    let desk = Desk::new();
    let llama = renamed(of("out_proj"), "out_proj", "o_proj");
    let no_rotary = "needs rotary position embedding";
    desk.says(llama, &[], &["self_attn.o_proj.weight", no_rotary]);
    let prefix = "model.encoder.layers.0.self_attn";
    let mut gptj = of("out_proj").without(&format!("{prefix}.q_proj.bias"));
    gptj.metadata.remove("model_type");
    desk.says(gptj, &[], &["without a q_proj.bias", "GPT-J", "GPT-Neo"]);
    for scheme in ["torch", "torch separate"] {
        let (_, prefix) = SCHEMES.into_iter().find(|(s, _)| *s == scheme).unwrap();
        for name in ["bias_k", "bias_v"] {
            let name = format!("{prefix}.{name}");
            let parts = with(of(scheme), &name, &[1, 1, WIDTH]);
            desk.says(parts, &[], &[&name, "add_bias_kv"]);
        }
    }
    let key = "layers.3.multihead_attn.v_proj_weight";
    let other_vdim = reshaped(of("torch separate"), key, &[WIDTH, 10]);
    desk.says(
        other_vdim,
        &[],
        &[key, "[24, 24]", "[24, 10]", "vdim = kdim"],
    );
    // Relative positions; a stored rotation.
    for name in ["self.distance_embedding.weight", "self.rotary.inv_freq"] {
        let name = format!("bert.encoder.layer.0.attention.{name}");
        let parts = with(of("bert"), &name, &[9, 6]);
        desk.says(parts, &[], &[&name, "not known as part of a layer", "BERT"]);
    }
    // A model that says so itself.
    let untyped = || {
        let mut parts = of("gpt2");
        parts.metadata.remove("model_type");
        parts
    };
    for (config, word) in [
        (r#"{"rope_theta": 10000.0}"#, no_rotary),
        (r#"{"rotary_dim": 64}"#, no_rotary),
        (r#"{"model_type": "roformer"}"#, "rotary position embedding"),
        (
            r#"{"position_embedding_type": "relative_key"}"#,
            "relative_key",
        ),
        (r#"{"scale_attn_weights": false}"#, "--scale"),
        (
            r#"{"scale_attn_by_inverse_layer_idx": true}"#,
            "--scale has to say",
        ),
        ("{", "config.json"),
        (
            r#"{"a": {"n_head": 4, "n_head": 2}}"#,
            "n_head is in it twice",
        ),
        ("\u{feff}{\"rope_theta\": 1.0}", no_rotary),
    ] {
        std::fs::write(desk.path("config.json"), config).unwrap();
        desk.says(untyped(), &[], &["config.json", word]);
    }
    let config = r#"{"rope_scaling": null, "scale_attn_weights": false}"#;
    std::fs::write(desk.path("config.json"), config).unwrap();
    let path = of("gpt2").at(desk.path("scaled"));
    let scaled = layer(&path, &desk.x, &["--backend", "cpu", "--scale", "-1"]);
    assert!(scaled.status.success(), "{}", stderr(&scaled));
}

/// Tensors that are missing, misspelt, or of another shape or type.
#[test]
fn tensors_that_do_not_fit_are_named() {
    let desk = Desk::new();
    let bert = "bert.encoder.layer.0.attention";
    let key = format!("{bert}.self.key.weight");
    let misspelt = renamed(of("bert"), "self.key.weight", "self.kye.weight");
    let near = format!("nearest are {bert}.self.kye.weight, ");
    desk.says(misspelt, &[], &[&format!("no tensor {key}; "), &near]);
    for (scheme, name) in [
        ("bert", "self.value.bias"),
        ("bert", "output.dense.weight"),
        ("torch", "in_proj_bias"),
        ("torch", "out_proj.bias"),
        ("torch separate", "q_proj_weight"),
        ("gpt2", "c_proj.weight"),
        ("gpt2", "c_attn.bias"),
        ("out_proj", "k_proj.weight"),
        ("out_proj", "out_proj.weight"),
    ] {
        let (_, prefix) = SCHEMES.into_iter().find(|(s, _)| *s == scheme).unwrap();
        let name = format!("{prefix}.{name}");
        let missing = format!("no tensor {name}; nearest are {prefix}.");
        desk.says(of(scheme).without(&name), &[], &[&missing]);
    }
    let cases: [(&str, &str, &[usize], &str); 9] = [
        ("bert", "self.query.weight", &[26, 24], "outputs of 4 heads"),
        ("bert", "self.key.weight", &[24, 23], "--context is needed"),
        ("bert", "self.key.bias", &[23], "shape [24], got [23]"),
        (
            "bert",
            "self.value.weight",
            &[24],
            "two axes, got shape [24]",
        ),
        (
            "bert",
            "output.dense.weight",
            &[24, 30],
            "24 inputs, 4 heads side by side, got 30",
        ),
        (
            "torch",
            "in_proj_weight",
            &[71, 24],
            "shape [72, 24] (query, key and value, inputs), got [71, 24]",
        ),
        // As torch's Linear would have it.
        (
            "gpt2",
            "c_attn.weight",
            &[72, 24],
            "shape [72, 216] (inputs, outputs: query, key, value), got [72, 24]",
        ),
        (
            "gpt2",
            "c_proj.weight",
            &[24, 25],
            "shape [24, 24] (inputs, outputs), got [24, 25]",
        ),
        ("out_proj", "k_proj.weight", &[25, 24], "[25], got [24]"),
    ];
    for (scheme, name, shape, word) in cases {
        let (_, prefix) = SCHEMES.into_iter().find(|(s, _)| *s == scheme).unwrap();
        let name = format!("{prefix}.{name}");
        let mut parts = of(scheme);
        if name.ends_with("query.weight") {
            parts = reshaped(parts, &format!("{prefix}.self.query.bias"), &[26]);
        }
        let tensor = name.trim_end_matches("weight").trim_end_matches("bias");
        desk.says(reshaped(parts, &name, shape), &[], &[tensor, word]);
    }
    let mut integers = of("bert");
    let place = integers.tensors.iter_mut().find(|t| t.0 == key).unwrap();
    place.1 = Dtype::I32;
    desk.says(integers, &[], &[&key, "expected floats, got I32"]);
}

/// Which layer, how many heads, which input.
#[test]
fn what_has_to_be_said_is_asked_for() {
    let desk = Desk::new();
    // Layers 0, 1, .. 10, and another attention in layer 1.
    let several = || {
        let mut parts = nothing();
        let model = ("model_type".to_owned(), "bert".to_owned());
        parts.metadata.extend([model]);
        for n in 0..11 {
            let one = renamed(of("bert"), "layer.0", &format!("layer.{n}"));
            parts.tensors.extend(one.tensors);
        }
        let cross = renamed(of("bert"), "layer.0.attention", "layer.1.crossattention");
        parts.tensors.extend(cross.tensors);
        parts.tensors.sort_by(|a, b| a.0.cmp(&b.0));
        parts.tensors.dedup_by(|a, b| a.0 == b.0);
        parts
    };
    let bert = "bert.encoder.layer";
    let list = format!(
        "--prefix takes one of {bert}.0.attention, {bert}.1.attention, {bert}.1.crossattention, {bert}.2."
    );
    desk.says(several(), &[], &[&list, &format!("{bert}.10.attention\n")]);
    let two = format!("one of {bert}.1.attention, {bert}.1.crossattention\n");
    desk.says(several(), &["--prefix", "encoder.layer.1"], &[&two]);
    let none = ["--prefix", "encoder.layer.11"];
    let those = format!(
        "--prefix encoder.layer.11: no attention layer there; those of the file are {bert}.0.attention, "
    );
    desk.says(several(), &none, &[&those]);
    let path = several().at(desk.path("several"));
    for prefix in [
        "layer.1.attention",
        "encoder.layer.10",
        "bert.encoder.layer.1.attention.",
    ] {
        let output = layer(&path, &desk.x, &["--backend", "cpu", "--prefix", prefix]);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let mut other = nothing();
    other.add("model.layers.0.mixer.weight", &[2, 2], &[0.0; 4]);
    let words = [
        "no attention layer: no tensor ends in in_proj_weight",
        "self.query.weight",
        "mixer.weight",
    ];
    desk.says(other, &[], &words);

    // Heads.
    let path = desk.path("headless");
    of("bert").write(&path);
    let headless = layer(&path, &desk.x, &["--backend", "oracle"]);
    assert!(
        stderr(&headless).contains("--heads is needed"),
        "{}",
        stderr(&headless)
    );
    let config = r#"{"encoder_attention_heads": 4, "decoder_attention_heads": 8}"#;
    std::fs::write(desk.path("other.json"), config).unwrap();
    let given = desk.path("other.json");
    let flags = ["--backend", "oracle", "--config", given.to_str().unwrap()];
    let nowhere = desk.path("nowhere");
    renamed(of("bert"), "encoder.", "").write(&nowhere);
    let unclear = layer(&nowhere, &desk.x, &flags);
    let words = "encoder_attention_heads 4 and decoder_attention_heads 8: --heads says which";
    assert!(stderr(&unclear).contains(words), "{}", stderr(&unclear));
    // The prefix says which.
    let encoder = layer(&path, &desk.x, &flags);
    assert!(encoder.status.success(), "{}", stderr(&encoder));
    let clear = layer(&nowhere, &desk.x, &[&flags[..], &["--heads", "4"]].concat());
    assert!(clear.status.success(), "{}", stderr(&clear));
    let heads = |flags: &[&str], word: &str| desk.says(of("bert"), flags, &[word]);
    heads(
        &["--heads", "5"],
        "self.query.weight: expected outputs for 5 query heads of one width, got 24",
    );
    heads(&["--heads", "0"], "for 0 query heads");
    heads(
        &["--kv-heads", "2"],
        "self.key.weight: expected 12 outputs, 2 key heads of 6, got 24",
    );
    for count in ["0", "3", "9223372036854775808", "18446744073709551615"] {
        let why = format!("--kv-heads: expected a divisor of the 4 query heads, got {count}");
        heads(&["--kv-heads", count], &why);
    }
    for count in ["9223372036854775808", "18446744073709551615"] {
        heads(&["--heads", count], &format!("for {count} query heads"));
    }

    let packed = ["--heads", "5"];
    let words = "in_proj_weight: expected outputs for 5 query heads of one width, got 24, a third of its shape [72, 24]";
    desk.says(of("torch"), &packed, &[words]);
    for count in ["0", "-2", "2.0", "1e300", r#""four""#, "[4]"] {
        let config = format!(r#"{{"n_head": null, "num_heads": {count}}}"#);
        std::fs::write(desk.path("other.json"), config).unwrap();
        let errors = stderr(&layer(&path, &desk.x, &flags));
        let words = "other.json: num_heads: expected a number of heads, got ";
        assert!(errors.contains(words), "{count}: {errors}");
        assert!(!errors.contains("neither"), "{errors}");
        let given = layer(&path, &desk.x, &[&flags[..], &["--heads", "4"]].concat());
        assert!(given.status.success(), "{}", stderr(&given));
    }

    // Inputs. BERT's layer is known to be self-attention.
    heads(
        &["--context", desk.x.to_str().unwrap()],
        "self-attention (model_type bert of metadata)",
    );
    let context = |flags: &[&str], word: &str| heads(&[flags, &["--assume-plain"]].concat(), word);
    desk.says(
        nothing(),
        &[],
        &["k_proj.weight, v_proj.weight; the file has none\n"],
    );
    let empty = nothing().at(desk.path("empty"));
    let why = "empty: expected a tensor, got a file without any";
    context(&["--context", empty.to_str().unwrap()], why);
    heads(&["--mask", empty.to_str().unwrap()], why);
    let x = desk.x.display();
    let absent = format!("{x}:Z");
    let flags = ["--context", &absent];
    context(&flags, "--context: ");
    context(&flags, "no tensor Z; nearest are X");
    let narrow = with(nothing(), "X", &[2, 7, 23]).at(desk.path("narrow"));
    let narrow = narrow.to_str().unwrap();
    let why = "X: expected shape [B, N, 24], as bert.encoder.layer.0.attention.self.key.weight takes rows of width 24, got [2, 7, 23]";
    context(&["--context", narrow], why);
    let twos = with(with(nothing(), "a", &[2, 7]), "b", &[2, 7]).at(desk.path("twos"));
    let twos = twos.to_str().unwrap();
    heads(&["--mask", twos], "twos:TENSOR, one of a, b");
    heads(
        &["--mask", &format!("{twos}:a")],
        "--mask: a: expected integers, got F32",
    );
    let context = ["--context", desk.x.to_str().unwrap()];
    desk.says(
        of("gpt2"),
        &context,
        &["--context: layers of GPT-2's names are self-attention"],
    );
}

/// Files that are cut off or no tensors, and outputs that would overwrite an input.
#[test]
fn files_are_not_lost_and_not_trusted() {
    let desk = Desk::new();
    let path = of("bert").at(desk.path("model"));
    let bytes = std::fs::read(&path).unwrap();
    let junk = desk.path("junk");
    let huge = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    let broken: [(&[u8], &str); 5] = [
        (&bytes[..4], "junk: not a safetensors file"),
        (&bytes[..60], "junk: not a safetensors file"),
        (&bytes[..bytes.len() - 1], "bytes of"),
        (
            b"no tensors here",
            "junk: not a safetensors file: a header of",
        ),
        (&huge, "a header of 18446744073709551615 bytes"),
    ];
    for (bytes, word) in broken {
        std::fs::write(&junk, bytes).unwrap();
        let output = layer(&junk, &desk.x, &["--backend", "oracle"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
    let flags = ["--backend", "oracle", "--prefix", "nowhere", "-o"];
    let out = desk.path("out");
    let output = layer(
        &path,
        &desk.x,
        &[&flags[..], &[out.to_str().unwrap()]].concat(),
    );
    assert_eq!(output.status.code(), Some(2));
    assert!(!out.exists());
    let lone = crate::run([
        "inspect",
        path.to_str().unwrap(),
        "--head",
        "0",
        "--prefix",
        "a",
    ]);
    assert!(stderr(&lone).contains("--input"), "{}", stderr(&lone));
    let lone = crate::run(["inspect", path.to_str().unwrap(), "--head", "2"]);
    assert_eq!(lone.status.code(), Some(2));
    let words = "; --input says what an attention layer of this checkpoint is given, and --prefix which of bert.encoder.layer.0.attention\n";
    assert!(stderr(&lone).contains(words), "{}", stderr(&lone));
}

/// Names of 60,000 characters: of the file's tensors, of one that is missing, of one that
/// is asked for. Comparing two of them letter by letter takes minutes.
#[test]
fn long_names_take_no_time() {
    let desk = Desk::new();
    let long = "n".repeat(60_000);
    let limit = Duration::from_secs(20);
    let start = Instant::now();
    // A weight is missing beside others of such names.
    let prefix = "bert.encoder.layer.0.attention";
    let mut parts = renamed(of("bert"), prefix, &long);
    for n in 0..4 {
        parts = with(parts, &format!("{long}{n}"), &[1]);
    }
    let parts = parts.without(&format!("{long}.output.dense.weight"));
    let missing = "nn.output.dense.weight; its names are ";
    desk.says(parts, &[], &["no tensor nnn", missing]);
    let spent = start.elapsed();
    assert!(spent < limit, "a missing weight: {spent:?}");
    // An input of such a name, which an argument can just hold, and one that is another's.
    let mut named = nothing();
    for n in 0..4 {
        named = with(named, &format!("{long}{n}"), &[2, 7]);
    }
    let file = named.at(desk.path("named"));
    for (asked, answer) in [(&long[..], "its names are "), ("mask", "longer than 256")] {
        let mask = format!("{}:{asked}", file.display());
        desk.says(of("bert"), &["--mask", &mask], &["no tensor ", answer]);
        let spent = start.elapsed();
        assert!(spent < limit, "{} characters asked: {spent:?}", asked.len());
    }
    // A prefix, a key of the metadata, and a config's key.
    desk.says(of("bert"), &["--prefix", &long], &["no attention layer"]);
    let mut parts = of("bert");
    parts.metadata.insert(long.clone(), long.clone());
    std::fs::write(desk.path("config.json"), format!("{{\"{long}\": 1}}")).unwrap();
    let flags = ["--mask", desk.x.to_str().unwrap()];
    desk.says(parts, &flags, &["--mask: "]);
    let spent = start.elapsed();
    assert!(spent < limit, "a prefix and keys: {spent:?}");
}

/// A config's sizes are the checkpoint's.
#[test]
fn sizes_of_the_config_that_are_not_the_weights() {
    let desk = Desk::new();
    let path = of("bert").at(desk.path("model"));
    let run = |config: &str, flags: &[&str]| {
        std::fs::write(desk.path("config.json"), config).unwrap();
        layer(&path, &desk.x, &[flags, &["--backend", "oracle"]].concat())
    };
    let fits = r#"{"hidden_size": 24, "head_dim": 6, "d_kv": null}"#;
    assert!(run(fits, &[]).status.success());
    let query = "bert.encoder.layer.0.attention.self.query.weight: ";
    for (config, why, way_out) in [
        (
            r#"{"hidden_size": 25}"#,
            "inputs: expected 25, as ",
            "--assume-plain",
        ),
        (
            r#"{"d_model": "many"}"#,
            "d_model \"many\", got 24; ",
            "--assume-plain",
        ),
        (r#"{"head_dim": 8}"#, "expected 8, as ", "--heads"),
        (r#"{"d_kv": 12}"#, "d_kv 12, got 6; ", "--heads"),
        (r#"{"attention_head_size": 5}"#, "got 6; ", "--heads"),
    ] {
        let errors = stderr(&run(config, &[]));
        for word in [query, why, way_out] {
            assert!(errors.contains(word), "expected {word:?} in {errors}");
        }
        let flag = [way_out, "4"];
        let flags = &flag[..if way_out == "--heads" { 2 } else { 1 }];
        let way = run(config, flags);
        assert!(way.status.success(), "{config}: {}", stderr(&way));
    }
}
