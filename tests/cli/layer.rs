//! `layer`: the same layer under the names of every scheme. Layers of real models'
//! definitions are in `models.rs`, what a token sees in `sees.rs`, what is refused in
//! `refused.rs`, that no input is lost in `overwritten.rs`.

mod models;
mod overwritten;
mod refused;
mod sees;

use std::path::{Path, PathBuf};
use std::process::Output;

use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use safetensors::tensor::Dtype;
use tempfile::TempDir;
use wgpu_attention::reference::{self, Comparison, compare};
use wgpu_attention::{DType, HostLinear, MultiHeadInputs, Options, Tensor};

use crate::{Parts, data, run, stderr, stdout};

const HEADS: usize = 4;
const WIDTH: usize = 24;
const ROWS: [usize; 2] = [2, 7];

/// Weights (out, in) and biases of W_Q, W_K, W_V, W_O. All are square: the shapes tell
/// nothing of how a weight is meant.
struct Weights {
    weights: [Vec<f32>; 4],
    biases: [Vec<f32>; 4],
}

fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(seed);
    // Numbers that bf16 holds, so that a layer is the same in every element type.
    let number = |_| bf16::from_f32(rng.random_range(-1.0f32..1.0)).to_f32();
    (0..count).map(number).collect()
}

impl Weights {
    fn new() -> Weights {
        Weights {
            weights: [1, 2, 3, 4].map(|seed| random(seed, WIDTH * WIDTH)),
            biases: [5, 6, 7, 8].map(|seed| random(seed, WIDTH)),
        }
    }

    fn inputs<'a>(&'a self, x: &'a [f32]) -> MultiHeadInputs<'a> {
        let linears = [0, 1, 2, 3].map(|n| HostLinear {
            weight: Tensor::f32(&self.weights[n], [1, 1, WIDTH, WIDTH]).unwrap(),
            bias: Some(Tensor::f32(&self.biases[n], [1, 1, 1, WIDTH]).unwrap()),
        });
        let [batch, rows] = ROWS;
        let x = Tensor::f32(x, [batch, 1, rows, WIDTH]).unwrap();
        MultiHeadInputs::new(x, HEADS, linears)
    }
}

fn transposed(weight: &[f32], rows: usize) -> Vec<f32> {
    let columns = weight.len() / rows;
    let order = (0..columns).flat_map(|j| (0..rows).map(move |i| i * columns + j));
    order.map(|at| weight[at]).collect()
}

fn nothing() -> Parts {
    Parts {
        metadata: Default::default(),
        tensors: Vec::new(),
    }
}

impl Parts {
    fn add(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let (name, shape) = (name.to_owned(), shape.to_vec());
        self.tensors.push((name, Dtype::F32, shape, bytes));
    }

    fn without(mut self, name: &str) -> Parts {
        self.get(name);
        self.tensors.retain(|(n, ..)| n != name);
        self
    }

    fn at(mut self, path: PathBuf) -> PathBuf {
        self.metadata.insert("heads".to_owned(), HEADS.to_string());
        self.write(&path);
        path
    }
}

/// The schemes, each with where its layer stands.
const SCHEMES: [(&str, &str); 5] = [
    ("torch", "encoder.layers.0.self_attn"),
    ("torch separate", "layers.3.multihead_attn"),
    ("bert", "bert.encoder.layer.0.attention"),
    ("gpt2", "transformer.h.0.attn"),
    ("out_proj", "model.encoder.layers.0.self_attn"),
];

/// A layer under the names of a scheme, beside what else a checkpoint holds.
fn checkpoint(scheme: &str, layer: &Weights) -> Parts {
    let (_, prefix) = SCHEMES.into_iter().find(|(s, _)| *s == scheme).unwrap();
    let mut parts = nothing();
    // torch's module is plain by its definition, the others by their model's.
    let model = match scheme {
        "bert" => Some("bert"),
        "gpt2" => Some("gpt2"),
        "out_proj" => Some("bart"),
        _ => None,
    };
    let model = model.map(|name| ("model_type".to_owned(), name.to_owned()));
    parts.metadata.extend(model);
    // Of a type that is not read here: only the layer's own tensors are.
    let doubles = ("embeddings.weight".to_owned(), Dtype::F64, vec![2, 1]);
    parts
        .tensors
        .push((doubles.0, doubles.1, doubles.2, vec![0; 16]));
    let square = [WIDTH, WIDTH];
    let mut add = |name: &str, shape: &[usize], values: &[f32]| {
        parts.add(&format!("{prefix}.{name}"), shape, values);
    };
    let (w, b) = (&layer.weights, &layer.biases);
    let mut separate = |names: [&str; 4]| {
        for (n, name) in names.into_iter().enumerate() {
            add(&format!("{name}.weight"), &square, &w[n]);
            add(&format!("{name}.bias"), &[WIDTH], &b[n]);
        }
    };
    let in_one = [&w[0][..], &w[1], &w[2]].concat();
    let bias_in_one = [&b[0][..], &b[1], &b[2]].concat();
    match scheme {
        "bert" => {
            separate(["self.query", "self.key", "self.value", "output.dense"]);
            add("output.LayerNorm.weight", &[WIDTH], &b[0]);
            add("output.LayerNorm.bias", &[WIDTH], &b[0]);
        }
        "out_proj" => separate(["q_proj", "k_proj", "v_proj", "out_proj"]),
        "gpt2" => {
            let packed = transposed(&in_one, 3 * WIDTH);
            add("c_attn.weight", &[WIDTH, 3 * WIDTH], &packed);
            add("c_attn.bias", &[3 * WIDTH], &bias_in_one);
            add("c_proj.weight", &square, &transposed(&w[3], WIDTH));
            add("c_proj.bias", &[WIDTH], &b[3]);
            add("bias", &[1, 1, 3, 3], &[1.0; 9]);
            add("masked_bias", &[], &[-1e4]);
        }
        _ => {
            match scheme {
                "torch" => add("in_proj_weight", &[3 * WIDTH, WIDTH], &in_one),
                _ => {
                    for (n, name) in ["q", "k", "v"].into_iter().enumerate() {
                        add(&format!("{name}_proj_weight"), &square, &w[n]);
                    }
                }
            }
            add("in_proj_bias", &[3 * WIDTH], &bias_in_one);
            add("out_proj.weight", &square, &w[3]);
            add("out_proj.bias", &[WIDTH], &b[3]);
        }
    }
    parts
}

/// The input of every test, X (2, 7, 24).
fn input(folder: &TempDir) -> (PathBuf, Vec<f32>) {
    let [batch, rows] = ROWS;
    let x = random(9, batch * rows * WIDTH);
    let mut parts = nothing();
    parts.add("X", &[batch, rows, WIDTH], &x);
    let path = folder.path().join("x.safetensors");
    parts.write(&path);
    (path, x)
}

fn layer(checkpoint: &Path, x: &Path, flags: &[&str]) -> Output {
    let fixed = [Path::new("layer"), checkpoint, Path::new("--input"), x];
    run(fixed.into_iter().chain(flags.iter().map(Path::new)))
}

/// Y of a run that goes well, and what is printed.
fn y(checkpoint: &Path, x: &Path, flags: &[&str]) -> (Vec<f32>, String) {
    let out = checkpoint.with_extension("out");
    let written = [flags, &["-o", out.to_str().unwrap()]].concat();
    let output = layer(checkpoint, x, &written);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{flags:?}: {}",
        stderr(&output)
    );
    (Parts::read(&out).f32("Y"), stdout(&output))
}

fn against(got: &[f32], inputs: &MultiHeadInputs<'_>, causal: bool) -> Comparison {
    let options = Options::default().causal(causal);
    let expected = reference::multi_head(inputs, &options, DType::F32).unwrap();
    let found = compare(got, &expected.values, &expected.bound).unwrap();
    assert_eq!(found.compared, got.len());
    found
}

/// One layer is the same bits whatever its tensors are called, on every backend, and
/// what the oracle says of it.
#[test]
fn one_layer_in_the_clothes_of_every_scheme() {
    let folder = TempDir::new().unwrap();
    let (x, numbers) = input(&folder);
    let weights = Weights::new();
    let inputs = weights.inputs(&numbers);
    let mut first: [Option<Vec<f32>>; 3] = Default::default();
    for (scheme, prefix) in SCHEMES {
        let path = checkpoint(scheme, &weights).at(folder.path().join(scheme));
        for (at, backend) in ["gpu", "cpu", "oracle"].into_iter().enumerate() {
            let (got, text) = y(&path, &x, &["--causal", "--backend", backend]);
            let what = format!("{scheme} on {backend}");
            assert!(text.starts_with(&format!("layer    {prefix}, ")), "{text}");
            assert!(
                text.contains("heads    4 of 6 (heads of metadata)"),
                "{text}"
            );
            assert!(text.contains("\nY        F32 [2, 7, 24]\n"), "{text}");
            let found = against(&got, &inputs, true);
            assert!(found.passed(), "{what}: {found}");
            let one = first[at].get_or_insert_with(|| got.clone());
            assert_eq!(*one, got, "{what}");
        }
        // Of itself only GPT-2 is causal, and says why.
        let (got, text) = y(&path, &x, &["--backend", "cpu"]);
        let causal = scheme == "gpt2";
        assert_eq!(
            text.contains("itself (model_type gpt2 of metadata)"),
            causal,
            "{text}"
        );
        assert!(against(&got, &inputs, causal).passed(), "{scheme}");
        assert!(!against(&got, &inputs, !causal).passed(), "{scheme}");
    }
}

/// Square weights look alike either way round; the values tell.
#[test]
fn a_transposed_weight_is_another_layer() {
    let folder = TempDir::new().unwrap();
    let (x, numbers) = input(&folder);
    let weights = Weights::new();
    let inputs = weights.inputs(&numbers);
    for (scheme, tensors) in [
        ("gpt2", &["c_proj.weight"][..]),
        ("bert", &["self.query.weight", "output.dense.weight"]),
        ("out_proj", &["v_proj.weight"]),
        ("torch separate", &["k_proj_weight"]),
    ] {
        let (_, prefix) = SCHEMES.into_iter().find(|(s, _)| *s == scheme).unwrap();
        for tensor in tensors {
            let mut wrong = checkpoint(scheme, &weights);
            let name = format!("{prefix}.{tensor}");
            let turned = transposed(&wrong.f32(&name), WIDTH);
            *wrong.get(&name) = turned.iter().flat_map(|x| x.to_le_bytes()).collect();
            let path = wrong.at(folder.path().join("wrong"));
            let (got, _) = y(&path, &x, &["--causal", "--backend", "cpu"]);
            let found = against(&got, &inputs, true);
            assert!(!found.passed(), "{name}: {found}");
        }
    }
}

/// X without a batch is one entry: the first rows of the batch, and the same Y.
#[test]
fn rows_alone_are_one_entry() {
    let folder = TempDir::new().unwrap();
    let (x, numbers) = input(&folder);
    let path = checkpoint("torch", &Weights::new()).at(folder.path().join("model"));
    let count = ROWS[1] * WIDTH;
    let mut one = nothing();
    one.add("tokens", &[ROWS[1], WIDTH], &numbers[..count]);
    one.add("X", &[1, 1], &[0.0]);
    let rows = folder.path().join("rows");
    one.write(&rows);
    let flags = ["--backend", "oracle", "--output-dtype", "f32"];
    let named = format!("{}:tokens", rows.display());
    let (got, text) = y(&path, Path::new(&named), &flags);
    assert!(text.contains("X        tokens F32 [1, 7, 24]"), "{text}");
    assert_eq!(got, y(&path, &x, &flags).0[..count]);
}

/// Weights in halves: these numbers lose nothing in bf16, and next to nothing in f16.
#[test]
fn weights_in_halves() {
    let folder = TempDir::new().unwrap();
    let (x, numbers) = input(&folder);
    let weights = Weights::new();
    let inputs = weights.inputs(&numbers);
    for (name, dtype) in [("f16", Dtype::F16), ("bf16", Dtype::BF16)] {
        let mut parts = checkpoint("bert", &weights);
        for (_, of, _, bytes) in parts.tensors.iter_mut().filter(|t| t.1 == Dtype::F32) {
            let numbers = bytes.chunks_exact(4);
            let numbers = numbers.map(|b| f32::from_le_bytes(b.try_into().unwrap()));
            let halves = numbers.map(|x| match dtype {
                Dtype::F16 => f16::from_f32(x).to_le_bytes(),
                _ => bf16::from_f32(x).to_le_bytes(),
            });
            (*of, *bytes) = (dtype, halves.flatten().collect());
        }
        let path = parts.at(folder.path().join(name));
        for backend in ["gpu", "oracle"] {
            let (got, text) = y(&path, &x, &["--backend", backend]);
            let found = against(&got, &inputs, false);
            assert!(found.passed(), "{name} on {backend}: {found}");
            let kind = format!("self.query.weight {} [24, 24]", name.to_uppercase());
            assert!(text.contains(&kind), "{text}");
        }
    }
}

/// A real layer under BERT's names, its prefix without the model's, its heads from the
/// config.json beside it, its padding as a mask of integers; and what its heads look at.
#[test]
fn a_real_layer_from_a_checkpoint() {
    let folder = TempDir::new().unwrap();
    let case = data("real/minilm_layer0_multihead.safetensors");
    let mut real = Parts::read(&case);
    let mut parts = nothing();
    for layer in [0, 1] {
        for (from, to) in [
            ("q", "self.query"),
            ("k", "self.key"),
            ("v", "self.value"),
            ("o", "output.dense"),
        ] {
            let name = format!("bert.encoder.layer.{layer}.attention.{to}");
            let (weight, bias) = (
                real.f32(&format!("W_{from}")),
                real.f32(&format!("b_{from}")),
            );
            parts.add(&format!("{name}.weight"), &[384, 384], &weight);
            parts.add(&format!("{name}.bias"), &[384], &bias);
        }
    }
    let model = folder.path().join("model.safetensors");
    parts.write(&model);
    let config = r#"{"model_type": "bert", "num_attention_heads": 12, "position_embedding_type": "absolute"}"#;
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let mask = real.get("attn_mask").clone().into_iter();
    let mask = mask.flat_map(|keep| i64::from(keep).to_le_bytes());
    let mut input = nothing();
    input.metadata = real.metadata.clone();
    let mask = ("mask".to_owned(), Dtype::I64, vec![3, 24], mask.collect());
    input.tensors.push(mask);
    input.add("X", &[3, 24, 384], &real.f32("X"));
    let x = folder.path().join("x.safetensors");
    input.write(&x);

    let of_mask = format!("{}:mask", x.display());
    let flags = ["--prefix", "encoder.layer.0.attention", "--mask", &of_mask];
    let (got, text) = y(&model, &x, &flags);
    assert!(
        text.contains("heads    12 of 32 (num_attention_heads of "),
        "{text}"
    );
    let expected = real.f32("expected.Y");
    let atol: serde_json::Value = serde_json::from_str(&real.metadata["atol"]).unwrap();
    let atol = atol["Y"].as_f64().unwrap();
    let found = reference::compare_abs(&got, &expected, atol, 0.0).unwrap();
    assert!(found.passed(), "{found}");
    // Without the mask it is another layer.
    let (got, _) = y(&model, &x, &flags[..2]);
    let found = reference::compare_abs(&got, &expected, atol, 0.0).unwrap();
    assert!(!found.passed(), "{found}");

    let stats = |words: &[&str]| {
        let fixed = ["--head", "3", "--stats", "--json", "--backend", "oracle"];
        let output = run(words.iter().chain(&fixed));
        assert!(output.status.success(), "{}", stderr(&output));
        let document: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        document["heads"].clone()
    };
    let (model, x) = (model.to_str().unwrap(), x.to_str().unwrap());
    let inspected = stats(&[&["inspect", model, "--input", x], &flags[..]].concat());
    assert_eq!(inspected, stats(&["inspect", case.to_str().unwrap()]));
    assert_eq!(inspected[0]["rows"].as_array().unwrap().len(), 13);
}

/// Grouped heads and a context of another width and length, without k_proj's bias.
#[test]
fn grouped_heads_look_at_another_sequence() {
    let folder = TempDir::new().unwrap();
    let (x, numbers) = input(&folder);
    let weights = Weights::new();
    let ([kv_heads, source, kv_len], dim) = ([2, 10, 5], WIDTH / HEADS);
    let outputs = kv_heads * dim;
    let (key, value) = (random(20, outputs * source), random(21, outputs * source));
    let mut parts = nothing();
    let square = [WIDTH, WIDTH];
    parts.add("q_proj.weight", &square, &weights.weights[0]);
    parts.add("q_proj.bias", &[WIDTH], &weights.biases[0]);
    parts.add("k_proj.weight", &[outputs, source], &key);
    parts.add("v_proj.weight", &[outputs, source], &value);
    parts.add("v_proj.bias", &[outputs], &weights.biases[2][..outputs]);
    parts.add("out_proj.weight", &square, &weights.weights[3]);
    let path = parts.at(folder.path().join("grouped"));
    let context = random(22, ROWS[0] * kv_len * source);
    let mut of_context = nothing();
    of_context.add("X", &[ROWS[0], kv_len, source], &context);
    let context_path = folder.path().join("context");
    of_context.write(&context_path);

    let mut inputs = weights.inputs(&numbers).kv_heads(kv_heads);
    let shape = [ROWS[0], 1, kv_len, source];
    inputs = inputs.context(Tensor::f32(&context, shape).unwrap());
    let shape = [1, 1, outputs, source];
    inputs.key.weight = Tensor::f32(&key, shape).unwrap();
    inputs.key.bias = None;
    inputs.value.weight = Tensor::f32(&value, shape).unwrap();
    let bias = &weights.biases[2][..outputs];
    inputs.value.bias = Some(Tensor::f32(bias, [1, 1, 1, outputs]).unwrap());
    inputs.output.bias = None;
    let context = ["--context", context_path.to_str().unwrap()];
    for flags in [&["--kv-heads", "2"][..], &["--backend", "oracle"]] {
        let assumed = ["--assume-plain"];
        let (got, text) = y(&path, &x, &[&context[..], &assumed, flags].concat());
        let found = against(&got, &inputs, false);
        assert!(found.passed(), "{flags:?}: {found}");
        assert!(text.contains("4 of 6 over 2 key heads"), "{text}");
    }
    let refused = layer(&path, &x, &["--backend", "cpu", "--assume-plain"]);
    let why = "--context is needed: k_proj.weight takes rows of width 10, those of X have 24";
    assert!(stderr(&refused).contains(why), "{}", stderr(&refused));
}
