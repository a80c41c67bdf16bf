// Four consecutive elements, stored as halves, widened exactly.
fn widen_quad(words: vec2<u32>) -> vec4<f32> {
    let bf16 = vec4<u32>(words.x << 16u, words.x & 0xffff0000u, words.y << 16u, words.y & 0xffff0000u);
    let f16 = vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
    return select(bitcast<vec4<f32>>(bf16), f16, KV_DTYPE == DTYPE_F16);
}

fn widen_pair(word: u32) -> vec2<f32> {
    let bf16 = bitcast<vec2<f32>>(vec2<u32>(word << 16u, word & 0xffff0000u));
    return select(bf16, unpack2x16float(word), KV_DTYPE == DTYPE_F16);
}
