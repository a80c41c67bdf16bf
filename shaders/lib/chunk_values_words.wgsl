// Chunks of one element, for rows of any alignment, length and storage type.

fn value_chunk(row: u32, chunk: u32) -> vec4<f32> {
    let index = row + chunk;
    return vec4<f32>(widen(value[word_index(index, KV_DTYPE)], index, KV_DTYPE));
}
