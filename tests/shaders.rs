//! Every shader that a plan can ask for, validated without a GPU.

use wgpu_attention::shaders::{all_pipelines, compose};

fn parse(text: &str) -> Result<naga::Module, String> {
    naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))
}

fn validate(module: &naga::Module) -> Result<naga::valid::ModuleInfo, String> {
    // What plain WebGPU has, `unpack2x16float` included.
    naga::valid::Validator::new(
        naga::valid::ValidationFlags::all(),
        naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32,
    )
    .validate(module)
    .map_err(|error| format!("{error:?}"))
}

#[test]
fn every_pipeline_composes_and_validates() {
    let all = all_pipelines();
    // fused, scores and values by three key types, softmax and copy by none; times shared or not.
    assert_eq!(all.len(), 22, "the number of pipelines changed");
    for (shader, key) in all {
        let composed = compose(shader, key);
        let module = parse(&composed.text).unwrap_or_else(|e| panic!("{shader:?} {key:?}: {e}"));
        validate(&module).unwrap_or_else(|e| panic!("{shader:?} {key:?}: {e}"));
    }
}
