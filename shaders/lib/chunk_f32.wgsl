fn widen_f32(words: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(words);
}
