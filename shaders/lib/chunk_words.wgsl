// Chunks of one element, for rows of any alignment, length and storage type: of
// queries and keys.

fn query_chunk(row: u32, chunk: u32) -> vec4<f32> {
    let index = row + chunk;
    return vec4<f32>(widen(query[word_index(index, params.query_dtype)], index, params.query_dtype));
}

fn key_chunk(row: u32, chunk: u32) -> vec4<f32> {
    let index = row + chunk;
    return vec4<f32>(widen(key[word_index(index, KV_DTYPE)], index, KV_DTYPE));
}
