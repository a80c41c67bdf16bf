//! Every text, and what naga makes of it for Direct3D and Metal.

use std::path::Path;

use naga::back::{hlsl, msl};
use naga::valid::Capabilities;
use serde_json::{Value, json};
use wgpu_attention::shaders::{Composed, Loads, Shader, Specialization, all_pipelines, compose};

use crate::lints::{parse, validate_with};

/// Writes `STEM.wgsl`, `STEM.hlsl` and `STEM.metal` of every pipeline, and what the other
/// compilers have to know of each as `list.json`.
pub fn write_all(folder: &Path) -> Vec<Value> {
    let list: Vec<Value> = all_pipelines()
        .into_iter()
        .map(|(shader, key)| {
            let stem = key.file_stem(shader);
            let composed = compose(shader, key);
            let (hlsl, msl) =
                translate(shader, &composed).unwrap_or_else(|e| panic!("{stem}: {e}"));
            let write = |extension: &str, text: &str| {
                std::fs::write(folder.join(format!("{stem}.{extension}")), text).unwrap();
            };
            write("wgsl", &composed.text);
            write("hlsl", &hlsl);
            write("metal", &msl);
            entry(shader, key, &stem)
        })
        .collect();
    let document = serde_json::to_string_pretty(&list).unwrap();
    std::fs::write(folder.join("list.json"), document).unwrap();
    list
}

fn entry(shader: Shader, key: Specialization, stem: &str) -> Value {
    json!({
        "stem": stem,
        "root": shader.name(),
        "rules": format!("{:?}", key.rules),
        "dtype": format!("{:?}", key.kv_dtype),
        "shared": key.shared,
        "subgroups": shader.needs_subgroups(),
        "lanes": shader.broadcasts(),
        "int64": shader.needs_subgroups() && key.loads == Loads::WideChunks,
    })
}

/// The text in HLSL and MSL, with the options that wgpu passes on such devices: without
/// runtime checks where the crate asks for none, workgroup memory left as it is.
fn translate(shader: Shader, composed: &Composed) -> Result<(String, String), String> {
    let module = parse(&composed.text)?;
    let all = Capabilities::SUBGROUP | Capabilities::SHADER_INT64;
    let info = validate_with(&module, all)?;
    let checked = !shader.is_proven();
    let entry = Some((naga::ShaderStage::Compute, "main".to_owned()));

    // The number of workgroups comes from the host there, by a constant buffer.
    let special_constants = hlsl::BindTarget {
        space: 1,
        ..Default::default()
    };
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_0,
        special_constants_binding: Some(special_constants),
        zero_initialize_workgroup_memory: false,
        restrict_indexing: checked,
        force_loop_bounding: checked,
        ..Default::default()
    };
    let pipeline = hlsl::PipelineOptions {
        entry_point: entry.clone(),
    };
    let mut text = String::new();
    let written = hlsl::Writer::new(&mut text, &options, &pipeline).write(&module, &info, None);
    let written = written.map_err(|e| format!("HLSL: {e}"))?;
    match written.entry_point_names.as_slice() {
        [Ok(name)] if name == "main" => {}
        other => return Err(format!("HLSL: entry points {other:?}, expected main alone")),
    }

    let policy = match checked {
        true => naga::proc::BoundsCheckPolicy::Restrict,
        false => naga::proc::BoundsCheckPolicy::Unchecked,
    };
    let options = msl::Options {
        lang_version: (2, 4),
        bounds_check_policies: naga::proc::BoundsCheckPolicies {
            index: policy,
            buffer: policy,
            image_load: policy,
            binding_array: naga::proc::BoundsCheckPolicy::Unchecked,
        },
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: checked,
        emit_int_div_checks: checked,
        ..Default::default()
    };
    let pipeline = msl::PipelineOptions {
        entry_point: entry,
        ..Default::default()
    };
    let (msl, written) =
        msl::write_string(&module, &info, &options, &pipeline).map_err(|e| format!("MSL: {e}"))?;
    match written.entry_point_names.as_slice() {
        [Ok(_)] => Ok((text, msl)),
        other => Err(format!("MSL: entry points {other:?}, expected one")),
    }
}
