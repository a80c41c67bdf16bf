fn widen_f32(pairs: vec2<u64>) -> vec4<f32> {
    return narrow_cell(pairs);
}
