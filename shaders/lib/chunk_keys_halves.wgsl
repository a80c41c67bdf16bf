// Chunks of 4 elements, each one load. `row` is the row's first element, a
// multiple of 4.

fn key_chunk(row: u32, chunk: u32) -> vec4<f32> {
    return widen_halves(key[(row >> 2u) + chunk]);
}
