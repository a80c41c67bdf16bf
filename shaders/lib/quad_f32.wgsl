// Four consecutive elements, stored as f32.
fn widen_quad(words: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(words);
}

fn widen_pair(words: vec2<u32>) -> vec2<f32> {
    return bitcast<vec2<f32>>(words);
}
