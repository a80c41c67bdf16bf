//! From a case file to the attention calls it asks for and the values it
//! expects. One function a suite; the rules of ONNX are in `onnx.rs`.

use wgpu_attention::{Alignment, DType, Options, Stage, Window};

use crate::array::Array;
use crate::case::{File, Problem};
use crate::multi_head::{Layer, Linear};
use crate::onnx;
use crate::report::shown;

/// Everything that one file asks for.
#[derive(Debug, Default)]
pub struct Job {
    pub calls: Vec<Call>,
    /// A whole multi-head layer and what is expected of it.
    pub layer: Option<(Layer, Want)>,
    /// Results that are no attention: rearranged inputs, already computed.
    pub copies: Vec<Copied>,
    /// Expected outputs that cannot be produced, with the reason.
    pub unsupported: Vec<Unsupported>,
}

/// One attention call and what to compare of it.
#[derive(Debug)]
pub struct Call {
    pub problem: Problem,
    /// Storage type of the output.
    pub output: DType,
    pub wants: Vec<Want>,
}

/// An expected output of a call.
#[derive(Debug, Clone)]
pub struct Want {
    pub name: String,
    pub what: What,
    pub expected: Array,
    pub tolerance: Tolerance,
}

/// Which result of the call.
#[derive(Debug, Clone)]
pub enum What {
    /// The output, (B, Hq, Nq, Dv).
    Output,
    /// The output as (B, Nq, Hq*Dv), or that of a layer, (B, Nq, width).
    Merged,
    /// The log-sum-exp, (B, Hq, Nq).
    Lse,
    /// A stage of the scores for the query rows given, all of them if `None`.
    Stage(Stage, Option<std::ops::Range<usize>>),
}

/// `|got - expected| <= atol + rtol * |expected|`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    pub atol: f64,
    pub rtol: f64,
}

impl Tolerance {
    /// An absolute tolerance.
    pub fn absolute(atol: f64) -> Tolerance {
        Tolerance { atol, rtol: 0.0 }
    }
}

/// An output that is a rearrangement of the inputs and must be equal bit for bit.
#[derive(Debug)]
pub struct Copied {
    pub name: &'static str,
    pub got: Array,
    pub expected: Array,
}

/// Expected outputs that cannot be produced.
#[derive(Debug, Clone, PartialEq)]
pub struct Unsupported {
    pub names: Vec<String>,
    pub reason: String,
}

/// What `file` asks for; `strict` takes `atol` instead of `atol_wgsl`.
pub fn job(file: &File, strict: bool) -> Result<Job, String> {
    let job = match file.metadata.get("suite").map(String::as_str) {
        Some("onnx") => onnx::job(file)?,
        Some("sdpa_grads") => sdpa_grads(file, strict)?,
        Some("sdpa_options") => sdpa_options(file, strict)?,
        Some(other) => return Err(format!("suite {other:?} is not known here")),
        None if file.get("X").is_some() => multihead(file, strict)?,
        None if file.get("expected.Y").is_some() => captured(file, strict)?,
        None => {
            let is_plain = ["Q", "K", "V", "QKV"]
                .iter()
                .any(|name| file.get(name).is_some());
            let instead = match is_plain {
                true => "; `run` computes the attention of plain tensors",
                false => "",
            };
            let what = "not a case: no suite is named and no expected.Y given";
            return Err(format!("{what}{instead}"));
        }
    };
    // Whatever the file expects is either compared or named as not supported.
    let unsupported = job.unsupported.iter().flat_map(|u| u.names.iter());
    let wanted = job.calls.iter().flat_map(|c| c.wants.iter());
    let wanted = wanted
        .chain(job.layer.iter().map(|(_, want)| want))
        .map(|w| &w.name);
    let mut known: Vec<&str> = unsupported.chain(wanted).map(String::as_str).collect();
    known.extend(job.copies.iter().map(|c| c.name));
    for name in file
        .tensors
        .keys()
        .filter_map(|n| n.strip_prefix("expected."))
    {
        if !known.contains(&name) {
            return Err(format!(
                "expected.{} is not an output known in this suite",
                shown(name)
            ));
        }
    }
    Ok(job)
}

/// Whether a file names a suite, or holds what only cases do: then its suite says what
/// its metadata means.
pub fn is_case(file: &File) -> bool {
    let is_there = |name| file.get(name).is_some();
    file.metadata.contains_key("suite") || is_there("X") || is_there("expected.Y")
}

/// The first attention call of a case, for whoever wants to look at it.
pub fn case_call(file: &File) -> Result<Problem, String> {
    let job = job(file, false)?;
    if let Some((layer, _)) = &job.layer {
        return layer.attention();
    }
    let call = job.calls.into_iter().next();
    Ok(call.ok_or("holds no attention call")?.problem)
}

/// Random inputs with gradients: `../conformance/sdpa_grads`.
fn sdpa_grads(file: &File, strict: bool) -> Result<Job, String> {
    let mut options = common_options(file)?;
    let (nq, nk) = sequence_lengths(file)?;
    let (alignment, offset) = match file.metadata.get("causal").map(String::as_str) {
        None | Some("none") => (Alignment::TopLeft, 0),
        Some("top_left") => (Alignment::TopLeft, 0),
        Some("bottom_right") => (Alignment::BottomRight, nk - nq),
        Some(other) => return Err(format!("metadata causal: {other:?} is not known")),
    };
    options.alignment = alignment;
    options.causal = file.flag("is_causal")?;
    // The name of the alignment and the number that the file gives must agree.
    let given = file.attribute::<i64>("causal_offset")?.unwrap_or(offset);
    if options.causal && given != offset {
        return Err(format!(
            "causal_offset {given} is not that of {alignment:?}, {offset}"
        ));
    }
    let problem = Problem::from_file(file, options)?;
    let wants = forward_wants(file, strict)?;
    Ok(Job {
        calls: vec![Call::f32(problem, wants)],
        unsupported: gradients(file),
        ..Job::default()
    })
}

/// Options, lengths, segments, sinks, parts: `../options/sdpa_options`.
fn sdpa_options(file: &File, strict: bool) -> Result<Job, String> {
    let mut options = common_options(file)?;
    options.causal = file.flag("causal")?;
    options.window = Window {
        left: file.window_side("window_left")?,
        right: file.window_side("window_right")?,
    };
    options.alignment = Alignment::PerSequence;
    let mut problem = Problem::from_file(file, options)?;
    let offsets = file
        .json("causal_offsets")?
        .ok_or("no metadata causal_offsets")?;
    problem.offsets = Some(integer_list("causal_offsets", &offsets)?);

    let mut calls = vec![Call::f32(problem.clone(), forward_wants(file, strict)?)];
    let mut unsupported = gradients(file);
    if let Some(bounds) = file.json("part_bounds")? {
        let bounds: Vec<usize> = integer_list("part_bounds", &bounds)?;
        for (p, cut) in bounds.windows(2).enumerate() {
            let part = problem.part(cut[0]..cut[1]);
            let part = part.map_err(|e| format!("part_bounds: {e}"))?;
            let wants = [("O", What::Output), ("lse", What::Lse)].map(|(output, what)| {
                let name = format!("part{p}.{output}");
                let expected = file.need(&name)?.clone();
                let tolerance = tolerance(file, strict, &name)?;
                Ok(Want {
                    name,
                    what,
                    expected,
                    tolerance,
                })
            });
            let wants = wants.into_iter().collect::<Result<_, String>>()?;
            calls.push(Call::f32(part, wants));
        }
        unsupported.push(Unsupported {
            names: vec!["merge of the given parts".to_owned()],
            reason: "merging of partial states does not exist yet".to_owned(),
        });
    }
    Ok(Job {
        calls,
        unsupported,
        ..Job::default()
    })
}

/// Attention captured from a real model: `../real`.
fn captured(file: &File, strict: bool) -> Result<Job, String> {
    let options = captured_options(file)?;
    let mut wants = forward_wants(file, strict)?;
    if let Some(expected) = file.get("expected.weights_row0") {
        wants.push(Want {
            name: "weights_row0".to_owned(),
            what: What::Stage(Stage::Probabilities, Some(0..1)),
            expected: expected.clone(),
            tolerance: tolerance(file, strict, "weights_row0")?,
        });
    }
    let problem = Problem::from_file(file, options)?;
    Ok(Job {
        calls: vec![Call::f32(problem, wants)],
        ..Job::default()
    })
}

/// A whole multi-head layer: `../real/minilm_layer0_multihead`.
fn multihead(file: &File, strict: bool) -> Result<Job, String> {
    let heads = file
        .attribute::<usize>("heads")?
        .ok_or("no metadata heads")?;
    let linear = |which: &str| -> Result<Linear, String> {
        Ok(Linear {
            weight: file.need(&format!("W_{which}"))?.clone(),
            bias: Some(file.need(&format!("b_{which}"))?.clone()),
        })
    };
    let layer = Layer {
        input: file.need("X")?.clone(),
        context: None,
        q_heads: heads,
        kv_heads: heads,
        projections: [linear("q")?, linear("k")?, linear("v")?, linear("o")?],
        mask: file.get("attn_mask").cloned(),
        options: captured_options(file)?,
    };
    let want = Want {
        name: "Y".to_owned(),
        what: What::Merged,
        expected: file.need("expected.Y")?.clone(),
        tolerance: tolerance(file, strict, "Y")?,
    };
    Ok(Job {
        layer: Some((layer, want)),
        ..Job::default()
    })
}

impl Call {
    fn f32(problem: Problem, wants: Vec<Want>) -> Call {
        Call {
            problem,
            output: DType::F32,
            wants,
        }
    }
}

fn common_options(file: &File) -> Result<Options, String> {
    let mut options = Options::default();
    options.scale = file.number("scale")?;
    options.softcap = file.softcap()?;
    Ok(options)
}

fn captured_options(file: &File) -> Result<Options, String> {
    let mut options = Options::default();
    if file.metadata.get("scale").is_some_and(|s| s != "default") {
        options.scale = file.number("scale")?;
    }
    match file.metadata.get("causal").map(String::as_str) {
        None | Some("none") => {}
        Some("bottom_right") => options.causal = true,
        Some(other) => return Err(format!("metadata causal: {other:?} is not known")),
    }
    Ok(options)
}

fn sequence_lengths(file: &File) -> Result<(i64, i64), String> {
    let length = |name: &str| match file.need(name)?.shape.as_slice() {
        &[_, _, n, _] => i64::try_from(n).map_err(|e| e.to_string()),
        other => Err(format!("{name}: expected four axes, got shape {other:?}")),
    };
    Ok((length("Q")?, length("K")?))
}

/// `expected.Y` and `expected.lse`, each where it is given.
fn forward_wants(file: &File, strict: bool) -> Result<Vec<Want>, String> {
    let mut wants = Vec::new();
    for (name, what) in [("Y", What::Output), ("lse", What::Lse)] {
        if let Some(expected) = file.get(&format!("expected.{name}")) {
            wants.push(Want {
                name: name.to_owned(),
                what,
                expected: expected.clone(),
                tolerance: tolerance(file, strict, name)?,
            });
        }
    }
    Ok(wants)
}

fn tolerance(file: &File, strict: bool, output: &str) -> Result<Tolerance, String> {
    let key = if strict { "atol" } else { "atol_wgsl" };
    let list = file
        .json(key)?
        .ok_or_else(|| format!("no metadata {key}"))?;
    let atol = list.get(output).and_then(serde_json::Value::as_f64);
    match atol {
        Some(atol) if atol.is_finite() && atol >= 0.0 => Ok(Tolerance::absolute(atol)),
        _ => Err(format!("metadata {key}: no tolerance for {output}")),
    }
}

fn gradients(file: &File) -> Vec<Unsupported> {
    let names = file
        .tensors
        .keys()
        .filter_map(|n| n.strip_prefix("expected.d"));
    let names: Vec<String> = names.map(|n| format!("d{n}")).collect();
    if names.is_empty() {
        return Vec::new();
    }
    vec![Unsupported {
        names,
        reason: "the backward pass does not exist yet".to_owned(),
    }]
}

fn integer_list<T: TryFrom<i64>>(name: &str, list: &serde_json::Value) -> Result<Vec<T>, String> {
    let wrong = || format!("metadata {name}: expected a list of integers, got {list}");
    let entries = list.as_array().ok_or_else(wrong)?.iter();
    let entries = entries.map(|n| {
        n.as_i64()
            .and_then(|n| T::try_from(n).ok())
            .ok_or_else(wrong)
    });
    entries.collect()
}
