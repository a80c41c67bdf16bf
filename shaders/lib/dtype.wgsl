// Storage types. Every tensor is an array of u32 words: an f32 is a word, two
// halves share one, least significant first. This needs no f16 feature and was
// faster than native f16 loads where measured (lavapipe).

const DTYPE_F32: u32 = 0u;
const DTYPE_F16: u32 = 1u;
const DTYPE_BF16: u32 = 2u;

// The word that holds element `index`.
fn word_index(index: u32, dtype: u32) -> u32 {
    return select(index >> 1u, index, dtype == DTYPE_F32);
}

// The 16 bits of element `index` within its word.
fn half_bits(word: u32, index: u32) -> u32 {
    return (word >> ((index & 1u) << 4u)) & 0xffffu;
}

// Element `index` of the word that holds it, widened exactly.
fn widen(word: u32, index: u32, dtype: u32) -> f32 {
    let bits = half_bits(word, index);
    let half = select(bitcast<f32>(bits << 16u), unpack2x16float(bits).x, dtype == DTYPE_F16);
    return select(half, bitcast<f32>(word), dtype == DTYPE_F32);
}

// Whether that element is -inf, decided by its bits: WGSL implementations may
// assume that no infinity occurs in float arithmetic.
fn is_negative_infinity(word: u32, index: u32, dtype: u32) -> bool {
    if dtype == DTYPE_F32 {
        return word == 0xff800000u;
    }
    return half_bits(word, index) == select(0xff80u, 0xfc00u, dtype == DTYPE_F16);
}

// f32 to f16, round to nearest even, overflow to infinity, on the integer:
// pack2x16float(70000) is inf on one adapter and NaN on another.
fn f16_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if magnitude > 0x7f800000u {
        return sign | 0x7e00u;
    }
    if magnitude >= 0x477ff000u {
        return sign | 0x7c00u;
    }
    if magnitude >= 0x38800000u {
        let even = (magnitude >> 13u) & 1u;
        return sign | ((magnitude - 0x38000000u + 0xfffu + even) >> 13u);
    }
    // Subnormal: a multiple of 2^-24. Below 2^-25 nothing is left.
    let exponent = magnitude >> 23u;
    if exponent < 102u {
        return sign;
    }
    let mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    let shift = 126u - exponent;
    let quotient = mantissa >> shift;
    let rest = mantissa & ((1u << shift) - 1u);
    let middle = 1u << (shift - 1u);
    let up = rest > middle || (rest == middle && (quotient & 1u) == 1u);
    return sign | (quotient + select(0u, 1u, up));
}

// f32 to bf16, round to nearest even, NaN kept.
fn bf16_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if (bits & 0x7fffffffu) > 0x7f800000u {
        return (bits >> 16u) | 0x40u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
