fn widen_halves(bits: u64) -> vec4<f32> {
    let words = vec2<u32>(u32(bits), u32(bits >> 32u));
    if KV_DTYPE == DTYPE_F16 {
        return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
    }
    let low = bitcast<vec2<f32>>(words << vec2<u32>(16u));
    let high = bitcast<vec2<f32>>(words & vec2<u32>(0xffff0000u));
    return vec4<f32>(low.x, high.x, low.y, high.y);
}
