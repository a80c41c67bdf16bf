fn widen_halves(bits: u64) -> vec4<f32> {
    return widen_quad(vec2<u32>(u32(bits), u32(bits >> 32u)));
}
