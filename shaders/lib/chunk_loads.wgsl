// Chunks of 4 elements, each one load. `row` is the row's first element, a
// multiple of 4; query, key and value are of one storage type.

fn query_chunk(row: u32, chunk: u32) -> vec4<f32> {
    return widen_chunk(query[(row >> 2u) + chunk]);
}

fn key_chunk(row: u32, chunk: u32) -> vec4<f32> {
    return widen_chunk(key[(row >> 2u) + chunk]);
}

fn value_chunk(row: u32, chunk: u32) -> vec4<f32> {
    return widen_chunk(value[(row >> 2u) + chunk]);
}
