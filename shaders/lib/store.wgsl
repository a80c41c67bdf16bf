// Stores elements of O, rounded to their storage type.

// Stores the first `count` of 4 consecutive elements from `first` on. Whole
// words are stored; where a half of a word belongs to a neighbour, only our
// bits are flipped by an atomic xor (nobody else changes them, so what was
// loaded is still theirs), and the neighbour's half survives whoever comes
// first.
fn store_run(first: u32, count: u32, x: vec4<f32>) {
    let dtype = params.output_dtype;
    let words_end = word_index(first + count - 1u, dtype) + 1u;
    for (var word = word_index(first, dtype); word < words_end; word++) {
        var bits: u32;
        var ours = 0xffffffffu;
        if dtype == DTYPE_F32 {
            bits = bitcast<u32>(component(x, word - first));
        } else {
            // Wraps for the neighbour's half, whose bits are masked off.
            let low = component(x, min(word * 2u - first, 3u));
            let high = component(x, min(word * 2u + 1u - first, 3u));
            let low_ours = word * 2u >= first;
            let high_ours = word * 2u + 1u < first + count;
            ours = select(0u, 0xffffu, low_ours) | select(0u, 0xffff0000u, high_ours);
            if dtype == DTYPE_F16 {
                bits = f16_bits(low) | (f16_bits(high) << 16u);
            } else {
                bits = bf16_bits(low) | (bf16_bits(high) << 16u);
            }
        }
        if ours == 0xffffffffu {
            atomicStore(&output[word], bits);
        } else {
            atomicXor(&output[word], (atomicLoad(&output[word]) ^ bits) & ours);
        }
    }
}
