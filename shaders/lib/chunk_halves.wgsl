fn widen_halves(words: vec2<u32>) -> vec4<f32> {
    return widen_quad(words);
}
