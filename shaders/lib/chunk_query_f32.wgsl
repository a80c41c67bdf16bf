// A chunk of 4 elements, one load. `row` is the row's first element, a multiple
// of 4.

fn query_chunk(row: u32, chunk: u32) -> vec4<f32> {
    return widen_f32(query[(row >> 2u) + chunk]);
}
