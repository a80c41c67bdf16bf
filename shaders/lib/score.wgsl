// What happens to a score between the scale and the softmax:
//   s = softcap * tanh(s / softcap);  s += bias;  s -= slope * |i + offset - j|

// tanh with a relative error of at most 8 * 2^-24; the adapters' own is only
// held to an absolute error of 1e-5 by WGSL, and was off by 2e-5 to 5e-5.
// Below 0.625 a polynomial in x^2 (fitted at Chebyshev nodes, measured 1.4
// units of 2^-24), above it 1 - 2 / (exp(2x) + 1).
fn accurate_tanh(x: f32) -> f32 {
    let a = abs(x);
    let z = x * x;
    var p = -0.0060967147;
    p = p * z + 0.02099718;
    p = p * z - 0.053850908;
    p = p * z + 0.1333277;
    p = p * z - 0.33333328;
    let near = x + x * z * p;
    // From 9.1 on the result rounds to 1.
    let e = exp2(min(a, 10.0) * 2.885390081777927);
    let far = 1.0 - 2.0 / (e + 1.0);
    let odd = select(far, -far, x < 0.0);
    // min() and exp2() may lose a NaN, and a comparison may be folded away.
    let no_number = (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
    return select(select(odd, near, a < 0.625), x, no_number);
}

// Softcap alone (stage 1 of the inspection).
fn softcapped(s: f32) -> f32 {
    if has(RULE_SOFTCAP) {
        return params.softcap * accurate_tanh(s / params.softcap);
    }
    return s;
}

// The whole modification for row and key j; the score of a key past the end is
// of no use, but its bias must not be read.
fn modified(row: Row, j: u32, raw: f32) -> f32 {
    var s = softcapped(raw);
    if has(RULE_BIAS) {
        let index = row.bias + min(j, params.kv_len - 1u) * params.bias_key;
        s += widen(bias[word_index(index, params.bias_dtype)], index, params.bias_dtype);
    }
    if has(RULE_ALIBI) {
        let distance = select(max(row.position, j) - min(row.position, j), row.position + j, row.before);
        s -= row.slope * f32(distance);
    }
    return s;
}
