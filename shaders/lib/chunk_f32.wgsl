fn widen_chunk(words: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(words);
}
