//! The rules of the ONNX operator `Attention` (opset 23 to 25), laid over the
//! library's own: how its inputs and attributes become one attention call.
//!
//! | ONNX | here |
//! | --- | --- |
//! | 3-D inputs, `q_num_heads`, `kv_num_heads` | split into heads, output merged again |
//! | `past_key`, `past_value` | joined in front of K and V; offset = past length |
//! | `nonpad_kv_seqlen` | key lengths; offset = nonpad\[b\] - Nq, may be negative |
//! | neither | offset 0 (top-left), even if Nq != Nk |
//! | `attn_mask` bool, float | mask (true = visible), bias |
//! | mask of rank 1 to 4 | axes of 1 in front: rank 3 is (heads, Nq, Nk) |
//! | mask shorter than the keys | the missing keys are masked |
//! | `left_window_size`, `right_window_size` | window around p, -1 = open |
//! | `qk_matmul_output_mode` 0 to 3 | the stage of that number |
//! | `softmax_precision` | f32 arithmetic, whatever is asked for |

use wgpu_attention::{Alignment, DType, MAX_SEQUENCE, Options, Stage, Window};

use crate::array::Array;
use crate::case::{File, Problem, four_axes, integers};
use crate::suites::{Call, Copied, Job, Tolerance, Unsupported, Want, What};

/// What an ONNX case asks for.
pub fn job(file: &File) -> Result<Job, String> {
    let packed = file.need("Q")?.shape.len() == 3;
    let query = heads(file, "Q", "q_num_heads")?;
    let (new_key, new_value) = (
        heads(file, "K", "kv_num_heads")?,
        heads(file, "V", "kv_num_heads")?,
    );
    let (key, value) = (
        with_past(file, "past_key", &new_key)?,
        with_past(file, "past_value", &new_value)?,
    );
    let (nq, nk) = (axis(&query, 2)?, axis(&key, 2)?);
    let past = nk - axis(&new_key, 2)?;

    let mut options = Options::default();
    options.scale = file.number("scale")?;
    options.softcap = file.softcap()?;
    options.causal = file.flag("is_causal")?;
    options.window = Window {
        left: file.window_side("left_window_size")?,
        right: file.window_side("right_window_size")?,
    };
    let offset = i32::try_from(past).map_err(|e| format!("past_key: {e}"))?;
    options.alignment = match past {
        0 => Alignment::TopLeft,
        _ => Alignment::Offset(offset),
    };
    let lengths = integers::<u32>(file, "nonpad_kv_seqlen")?;
    if lengths.is_some() {
        if file.get("past_key").is_some() {
            return Err("nonpad_kv_seqlen does not go together with past_key".to_owned());
        }
        options.alignment = Alignment::PerSequence;
    }

    let mut problem = Problem::new(query, key, value, options);
    problem.offsets = match &lengths {
        None => None,
        Some(lengths) => {
            let offset = |&n: &u32| i32::try_from(i64::from(n) - nq as i64);
            let offsets: Result<_, _> = lengths.iter().map(offset).collect();
            Some(offsets.map_err(|e| format!("nonpad_kv_seqlen: {e}"))?)
        }
    };
    problem.kv_lengths = lengths;
    if let Some(mask) = file.get("attn_mask") {
        let mask = pad_keys(&four_axes(mask).map_err(|e| format!("attn_mask: {e}"))?, nk)?;
        match mask.dtype() {
            Some(_) => problem.bias = Some(mask),
            None => problem.mask = Some(mask),
        }
    }
    let unsupported = refused(file, &problem)?;
    if !unsupported.is_empty() {
        return Ok(Job {
            unsupported,
            ..Job::default()
        });
    }
    outputs(file, problem, packed)
}

fn outputs(file: &File, problem: Problem, packed: bool) -> Result<Job, String> {
    let mut job = Job::default();
    for (name, got) in [
        ("present_key", &problem.key),
        ("present_value", &problem.value),
    ] {
        if let Some(expected) = file.get(&format!("expected.{name}")) {
            let (got, expected) = (got.clone(), expected.clone());
            job.copies.push(Copied {
                name,
                got,
                expected,
            });
        }
    }
    let mut wants = Vec::new();
    let mut want = |name: &str, what| {
        if let Some(expected) = file.get(&format!("expected.{name}")) {
            let dtype = expected
                .dtype()
                .ok_or(format!("expected.{name}: not floats"))?;
            wants.push(Want {
                name: name.to_owned(),
                what,
                expected: expected.clone(),
                tolerance: tolerance(dtype),
            });
        }
        Ok::<(), String>(())
    };
    want("Y", if packed { What::Merged } else { What::Output })?;
    let stage = match file.attribute::<u8>("qk_matmul_output_mode")?.unwrap_or(0) {
        0 => Stage::Raw,
        1 => Stage::Softcapped,
        2 => Stage::Masked,
        3 => Stage::Probabilities,
        other => return Err(format!("qk_matmul_output_mode {other} is not 0 to 3")),
    };
    want("qk_matmul_output", What::Stage(stage, None))?;
    let output = problem.query.dtype().ok_or("Q: expected floats")?;
    job.calls.push(Call {
        problem,
        output,
        wants,
    });
    Ok(job)
}

/// The data's own suggestion: the reference's measured error and as much again
/// for the kernel, times 4; for bf16 two units in the last place.
fn tolerance(dtype: DType) -> Tolerance {
    let both = match dtype {
        DType::F32 => 2e-6,
        DType::F16 => 2e-3,
        DType::BF16 => 1.0 / 64.0,
    };
    Tolerance {
        atol: both,
        rtol: both,
    }
}

/// Attribute values for which the operator itself gives nothing to compare with.
fn refused(file: &File, problem: &Problem) -> Result<Vec<Unsupported>, String> {
    let mut reasons = Vec::new();
    if let Some(scale) = problem.options.scale.filter(|&s| s < 0.0) {
        reasons.push(format!(
            "scale {scale}: ONNX takes its square root, which is NaN"
        ));
    }
    // The numbers are those of TensorProto.DataType: f32, f16, f64, bf16.
    let precision = file.attribute::<i64>("softmax_precision")?;
    if let Some(other) = precision.filter(|p| ![1, 10, 11, 16].contains(p)) {
        reasons.push(format!("softmax_precision {other} is not a float type"));
    }
    let names = file
        .tensors
        .keys()
        .filter_map(|n| n.strip_prefix("expected."));
    let names: Vec<String> = names.map(str::to_owned).collect();
    let reasons = reasons.into_iter().map(|reason| Unsupported {
        names: names.clone(),
        reason,
    });
    Ok(reasons.collect())
}

/// A 4-D input as it is, a 3-D one split into heads.
fn heads(file: &File, name: &str, attribute: &str) -> Result<Array, String> {
    let array = file.need(name)?;
    match array.shape.len() {
        4 => Ok(array.clone()),
        3 => {
            let heads = file.attribute::<usize>(attribute)?;
            let heads =
                heads.ok_or_else(|| format!("{name} has three axes: {attribute} is needed"))?;
            array.split_heads(heads).map_err(|e| format!("{name}: {e}"))
        }
        _ => Err(format!(
            "{name}: expected three or four axes, got shape {:?}",
            array.shape
        )),
    }
}

fn with_past(file: &File, name: &str, new: &Array) -> Result<Array, String> {
    match file.get(name) {
        Some(past) => past.concat(new, 2).map_err(|e| format!("{name}: {e}")),
        None => Ok(new.clone()),
    }
}

fn axis(array: &Array, axis: usize) -> Result<usize, String> {
    let extent = array.shape.get(axis).copied();
    extent.ok_or_else(|| format!("expected four axes, got shape {:?}", array.shape))
}

/// A mask whose last axis is shorter than the keys hides the keys it lacks.
fn pad_keys(mask: &Array, nk: usize) -> Result<Array, String> {
    let given = mask.shape[3];
    if given > nk {
        return Err(format!("attn_mask: {given} keys, there are {nk}"));
    }
    let mut shape = mask.shape.clone();
    shape[3] = nk;
    let rows: usize = shape[..3].iter().product();
    if rows.checked_mul(nk).is_none_or(|n| n > MAX_SEQUENCE) {
        return Err(format!("attn_mask: {rows} rows of {nk} keys are too many"));
    }
    let order = (0..rows)
        .flat_map(|row| (0..nk).map(move |key| (key < given).then_some(row * given + key)));
    Ok(mask.gather(shape, order))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Values;

    #[test]
    fn a_short_mask_hides_the_rest() {
        let bias = Array::f32(&[1, 1, 2, 2], vec![1.0, 2.0, 3.0, 4.0]);
        let inf = f32::NEG_INFINITY;
        let padded = pad_keys(&bias, 3).unwrap();
        assert_eq!(
            padded,
            Array::f32(&[1, 1, 2, 3], vec![1.0, 2.0, inf, 3.0, 4.0, inf])
        );
        let mask = Array {
            shape: vec![1, 1, 1, 1],
            values: Values::Bool(vec![1]),
        };
        assert_eq!(
            pad_keys(&mask, 3).unwrap().values,
            Values::Bool(vec![1, 0, 0])
        );
        assert!(pad_keys(&bias, 1).is_err());
    }
}
