// A cell of workgroup memory: 4 numbers in two 64-bit words. lavapipe's cost of
// a load goes by its words, of 32 bits or of 64.

alias Cell = vec2<u64>;

fn to_cell(x: vec4<f32>) -> Cell {
    let bits = bitcast<vec4<u32>>(x);
    return vec2<u64>(u64(bits.x) | (u64(bits.y) << 32u), u64(bits.z) | (u64(bits.w) << 32u));
}

fn narrow_cell(cell: Cell) -> vec4<f32> {
    let even = bitcast<vec2<f32>>(vec2<u32>(cell));
    let odd = bitcast<vec2<f32>>(vec2<u32>(cell >> vec2<u32>(32u)));
    return vec4<f32>(even.x, odd.x, even.y, odd.y);
}
