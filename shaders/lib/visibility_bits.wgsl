// What mask and bias hide, a run of keys at once.

// Bit n is set if byte n of the word is not 0.
fn nonzero_bytes(word: u32) -> u32 {
    let high = (((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word) & 0x80808080u;
    return ((high >> 7u) * 0x01020408u) >> 24u;
}

// Bit k is set unless the mask hides key first + k of the row or its bias is -inf.
// There are `keys` of them, which divide 32 and `first`; bits of keys past the end
// say nothing.
fn shown_by_mask_and_bias(mask_base: u32, bias_base: u32, first: u32, keys: u32) -> u32 {
    let is_bytes = has(RULE_MASK_BYTES);
    let is_masked = has(RULE_MASK_BYTES | RULE_MASK_BITS);
    // Keys that a trip looks at: 4 bytes may lie in one word, 32 bits do.
    let per_word = select(32u, select(1u, 4u, (mask_base & 3u) == 0u), is_bytes);
    let step = select(1u, per_word, params.mask_key == 1u && !has(RULE_BIAS));
    var is_set = 0u;
    var infinite = 0u;
    for (var k = 0u; k < select(0u, keys, is_masked || has(RULE_BIAS)); k += step) {
        let j = min(first + k, params.kv_len - 1u);
        if is_masked {
            let element = j * params.mask_key;
            let flat = select(element, mask_base + element, is_bytes);
            let word = mask_words[select(mask_base, 0u, is_bytes) + (flat >> select(5u, 2u, is_bytes))];
            let bytes = nonzero_bytes(word >> ((flat & 3u) << 3u));
            let bits = select(word >> (flat & 31u), bytes, is_bytes);
            is_set |= (bits & (0xffffffffu >> (32u - step))) << k;
        }
        if has(RULE_BIAS) {
            let index = bias_base + j * params.bias_key;
            let word = bias[word_index(index, params.bias_dtype)];
            infinite |= select(0u, 1u << k, is_negative_infinity(word, index, params.bias_dtype));
        }
    }
    let hidden = select(~is_set, is_set, has(RULE_MASK_DROP));
    return ~(infinite | select(0u, hidden, is_masked));
}
