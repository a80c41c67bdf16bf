// The bias of a projection, one number an output.

// Of the outputs from `column` on; what lies past the last is of no use.
fn bias_of(column: u32) -> vec4<f32> {
    if !has(RULE_BIAS) {
        return vec4<f32>();
    }
    return vec4<f32>(bias_at(column), bias_at(column + 1u), bias_at(column + 2u), bias_at(column + 3u));
}

fn bias_at(column: u32) -> f32 {
    let index = params.bias.base + min(column, params.kv_len - 1u) * params.bias_key;
    return widen(bias[word_index(index, params.bias_dtype)], index, params.bias_dtype);
}
