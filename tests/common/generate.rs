//! Seeded cases: every option alone, and all of them mixed.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use wgpu_attention::{Alignment, DType, Dims, Options, Polarity, Window};

use super::case::{Elements, MaskBits, OwnedCase, OwnedMask};

/// Sequence lengths around every tile edge.
pub const SIZES: [usize; 9] = [1, 7, 31, 32, 33, 63, 64, 65, 129];

const HEAD_DIMS: [usize; 15] = [1, 2, 3, 5, 8, 16, 20, 31, 32, 33, 40, 64, 65, 80, 128];

/// Something that a case may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Feature {
    /// A scale that is not the default.
    Scale,
    NegativeScale,
    ZeroScale,
    Softcap,
    /// An additive bias of ordinary numbers.
    Bias,
    /// A bias with -inf here and there, and in whole rows.
    BiasNegInf,
    /// Whole rows of the lowest finite number.
    BiasLowest,
    Alibi,
    MaskBytes,
    MaskBits,
    Causal,
    WindowLeft,
    WindowRight,
    /// Left and right.
    WindowBoth,
    KvLengths,
    QLengths,
    Segments,
    Sinks,
    TopLeft,
    /// A fixed offset, possibly far outside.
    Offset,
    PerSequence,
    /// NaN and infinities wherever no row looks.
    Poison,
    /// Large scores, so that the softmax is nearly one-hot.
    Peaked,
}

impl Feature {
    pub const ALL: [Feature; 23] = [
        Feature::Scale,
        Feature::NegativeScale,
        Feature::ZeroScale,
        Feature::Softcap,
        Feature::Bias,
        Feature::BiasNegInf,
        Feature::BiasLowest,
        Feature::Alibi,
        Feature::MaskBytes,
        Feature::MaskBits,
        Feature::Causal,
        Feature::WindowLeft,
        Feature::WindowRight,
        Feature::WindowBoth,
        Feature::KvLengths,
        Feature::QLengths,
        Feature::Segments,
        Feature::Sinks,
        Feature::TopLeft,
        Feature::Offset,
        Feature::PerSequence,
        Feature::Poison,
        Feature::Peaked,
    ];
}

/// Sizes and storage types of a case.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub dims: Dims,
    pub query: DType,
    pub key_value: DType,
    pub out: DType,
}

impl Shape {
    /// All f32.
    pub fn f32(q: [usize; 4], kv_heads: usize, kv_len: usize, v_dim: usize) -> Shape {
        let [batch, q_heads, q_len, qk_dim] = q;
        let dims = Dims {
            batch,
            q_heads,
            kv_heads,
            q_len,
            kv_len,
            qk_dim,
            v_dim,
        };
        Shape {
            dims,
            query: DType::F32,
            key_value: DType::F32,
            out: DType::F32,
        }
    }

    /// Random sizes and storage types.
    pub fn random(rng: &mut StdRng) -> Shape {
        let qk_dim = pick(rng, &HEAD_DIMS);
        let v_dim = if rng.random_bool(0.6) {
            qk_dim
        } else {
            pick(rng, &HEAD_DIMS)
        };
        let kv_heads = rng.random_range(1..=3);
        let group = pick(rng, &[1, 1, 2, 3, 4]);
        let (q_len, kv_len) = (pick(rng, &SIZES), pick(rng, &SIZES));
        let batch = rng.random_range(1..=3);
        let q = [batch, kv_heads * group, q_len, qk_dim];
        let dtypes = [DType::F32, DType::F32, DType::F16, DType::BF16];
        Shape {
            query: pick(rng, &dtypes),
            key_value: pick(rng, &dtypes),
            out: pick(rng, &dtypes),
            ..Shape::f32(q, kv_heads, kv_len, v_dim)
        }
    }
}

/// A standing list: every feature alone on several shapes, every pair of
/// features once on a small shape, then `mixed` random mixtures.
pub fn cases(mixed: u64) -> Vec<OwnedCase> {
    let mut rng = StdRng::seed_from_u64(1);
    let mut list = Vec::new();
    for feature in Feature::ALL {
        for _ in 0..3 {
            let shape = Shape::random(&mut rng);
            list.push(generate(rng.random(), shape, &[feature]));
        }
    }
    for (n, &a) in Feature::ALL.iter().enumerate() {
        for &b in &Feature::ALL[n + 1..] {
            let q_len = pick(&mut rng, &[1, 9, 33]);
            let kv_len = pick(&mut rng, &[7, 34, 65]);
            let shape = Shape::f32([2, 4, q_len, 8], 2, kv_len, 12);
            list.push(generate(rng.random(), shape, &[a, b]));
        }
    }
    list.extend((0..mixed).map(random_case));
    list
}

/// A random mixture of features on a random shape.
pub fn random_case(seed: u64) -> OwnedCase {
    let mut rng = StdRng::seed_from_u64(seed);
    let shape = Shape::random(&mut rng);
    let density = pick(&mut rng, &[0.1, 0.25, 0.5]);
    let features: Vec<Feature> = Feature::ALL
        .into_iter()
        .filter(|_| rng.random_bool(density))
        .collect();
    generate(rng.random(), shape, &features)
}

/// A case with the given features. Features that exclude each other (two masks,
/// two alignments): the last one counts.
pub fn generate(seed: u64, shape: Shape, features: &[Feature]) -> OwnedCase {
    let rng = &mut StdRng::seed_from_u64(seed);
    let Shape { dims, .. } = shape;
    let has = |feature| features.contains(&feature);
    let amplitude = if has(Feature::Peaked) { 6.0 } else { 1.0 };
    let q_count = dims.batch * dims.q_heads * dims.q_len * dims.qk_dim;
    let kv_rows = dims.batch * dims.kv_heads * dims.kv_len;
    let mut case = OwnedCase {
        name: format!("seed {seed} {shape:?} {features:?}"),
        dims,
        query: Elements::new(&normal(rng, q_count, amplitude), shape.query),
        key: Elements::new(&normal(rng, kv_rows * dims.qk_dim, 1.0), shape.key_value),
        value: Elements::new(&normal(rng, kv_rows * dims.v_dim, 1.0), shape.key_value),
        bias: None,
        mask: None,
        kv_lengths: None,
        q_lengths: None,
        offsets: None,
        segments: None,
        alibi_slopes: None,
        sinks: None,
        options: Options::default(),
        out: shape.out,
        poisoned: 0,
    };
    for &feature in features {
        add(&mut case, rng, feature);
    }
    if has(Feature::Poison) {
        poison(&mut case, rng);
    }
    case
}

fn add(case: &mut OwnedCase, rng: &mut StdRng, feature: Feature) {
    let Dims {
        batch,
        q_heads,
        q_len,
        kv_len,
        ..
    } = case.dims;
    let options = &mut case.options;
    match feature {
        Feature::Scale => options.scale = Some(rng.random_range(0.05..0.6)),
        Feature::NegativeScale => options.scale = Some(-rng.random_range(0.05f32..0.6)),
        Feature::ZeroScale => options.scale = Some(0.0),
        Feature::Softcap => options.softcap = Some(pick(rng, &[0.5, 2.0, 20.0, 50.0])),
        Feature::Bias | Feature::BiasNegInf | Feature::BiasLowest => add_bias(case, rng, feature),
        Feature::Alibi => {
            let slope = |h: usize| 2f32.powf(-8.0 * (h + 1) as f32 / q_heads as f32);
            case.alibi_slopes = Some((0..q_heads).map(slope).collect());
        }
        Feature::MaskBytes | Feature::MaskBits => case.mask = Some(mask(case.dims, rng, feature)),
        Feature::Causal => options.causal = true,
        Feature::WindowLeft => options.window.left = Some(pick(rng, &[0, 1, 5, 40])),
        Feature::WindowRight => options.window.right = Some(pick(rng, &[0, 1, 5, 40])),
        Feature::WindowBoth => {
            options.window = Window::around(rng.random_range(0..9), rng.random_range(0..9));
        }
        Feature::KvLengths => case.kv_lengths = Some(counts(rng, batch, kv_len)),
        Feature::QLengths => case.q_lengths = Some(counts(rng, batch, q_len)),
        Feature::Segments => {
            // Runs of neighbours, as packed documents are; each entry has its own.
            let mut ids = |n: usize| -> Vec<u32> {
                let mut all = Vec::new();
                for _ in 0..batch {
                    let starts: Vec<usize> = (0..3).map(|_| rng.random_range(0..=n)).collect();
                    let id = |i| starts.iter().filter(|&&s| s <= i).count() as u32;
                    all.extend((0..n).map(id));
                }
                all
            };
            let queries = ids(q_len);
            case.segments = Some((queries, ids(kv_len)));
        }
        Feature::Sinks => {
            let low = f32::NEG_INFINITY;
            let sinks = [-3.0, 0.0, 1.5, 4.0, 30.0, low];
            case.sinks = Some((0..q_heads).map(|_| pick(rng, &sinks)).collect());
        }
        Feature::TopLeft => set_alignment(case, Alignment::TopLeft, None),
        Feature::Offset => {
            let offset = pick(rng, &[-40, -3, 0, 2, 50, i32::MIN, i32::MAX]);
            set_alignment(case, Alignment::Offset(offset), None);
        }
        Feature::PerSequence => {
            let most = kv_len as i32;
            let offsets = (0..batch).map(|_| rng.random_range(-5..=most)).collect();
            set_alignment(case, Alignment::PerSequence, Some(offsets));
        }
        Feature::Poison | Feature::Peaked => {}
    }
}

fn set_alignment(case: &mut OwnedCase, alignment: Alignment, offsets: Option<Vec<i32>>) {
    case.options.alignment = alignment;
    case.offsets = offsets;
}

fn add_bias(case: &mut OwnedCase, rng: &mut StdRng, feature: Feature) {
    let (mut values, shape, dtype) = match case.bias.take() {
        Some((elements, shape)) => (elements.to_f32(), shape, elements.dtype()),
        None => {
            let shape = broadcast(case.dims, rng);
            let values = normal(rng, shape.iter().product(), 1.0);
            (
                values,
                shape,
                pick(rng, &[DType::F32, DType::F16, DType::BF16]),
            )
        }
    };
    let line = shape[3].max(1);
    let lowest = match dtype {
        DType::F32 => f32::MIN,
        DType::F16 => half::f16::MIN.to_f32(),
        DType::BF16 => half::bf16::MIN.to_f32(),
    };
    for row in values.chunks_mut(line) {
        match feature {
            Feature::BiasNegInf => {
                let share = pick(rng, &[0.0, 0.3, 1.0]);
                let hidden = |v: &mut f32| *v = f32::NEG_INFINITY;
                row.iter_mut()
                    .filter(|_| rng.random_bool(share))
                    .for_each(hidden);
            }
            Feature::BiasLowest if rng.random_bool(0.5) => row.fill(lowest),
            _ => {}
        }
    }
    case.bias = Some((Elements::new(&values, dtype), shape));
}

fn mask(dims: Dims, rng: &mut StdRng, feature: Feature) -> OwnedMask {
    let shape = broadcast(dims, rng);
    let [b, h, n, keys] = shape;
    let set: Vec<bool> = (0..b * h * n * keys)
        .map(|_| rng.random_bool(0.6))
        .collect();
    let data = match feature {
        // Any nonzero byte is true.
        Feature::MaskBytes => MaskBits::Bytes(set.iter().map(|&s| u8::from(s) * 255).collect()),
        _ => {
            let words = keys.div_ceil(32);
            // Tail bits are ignored, so they are random.
            let mut bits: Vec<u32> = (0..b * h * n * words).map(|_| rng.random()).collect();
            for (index, &s) in set.iter().enumerate() {
                let (row, j) = (index / keys, index % keys);
                let word = &mut bits[row * words + j / 32];
                *word = *word & !(1 << (j % 32)) | u32::from(s) << (j % 32);
            }
            MaskBits::Bits(bits)
        }
    };
    OwnedMask {
        data,
        shape,
        polarity: pick(rng, &[Polarity::Keep, Polarity::Drop]),
    }
}

/// NaN and infinities in K and V at keys that no row sees, in Q at rows past
/// their length, and in the bias where every pair is excluded by another rule.
fn poison(case: &mut OwnedCase, rng: &mut StdRng) {
    const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let dims = case.dims;
    let mut seen_keys = vec![false; dims.batch * dims.kv_heads * dims.kv_len];
    let mut seen_bias = vec![false; case.bias.as_ref().map_or(0, |(bias, _)| bias.len())];
    for b in 0..dims.batch {
        for h in 0..dims.q_heads {
            let kv = (b * dims.kv_heads + h / dims.group()) * dims.kv_len;
            for i in 0..dims.q_len {
                for j in 0..dims.kv_len {
                    let pair = [b, h, i, j];
                    if !case.visible_without_bias(pair) {
                        continue;
                    }
                    seen_keys[kv + j] |= case.visible(pair);
                    if let Some((_, shape)) = &case.bias {
                        seen_bias[flat(*shape, pair)] = true;
                    }
                }
            }
        }
    }
    for (key, _) in seen_keys.iter().enumerate().filter(|(_, seen)| !**seen) {
        for (elements, dim) in [(&mut case.key, dims.qk_dim), (&mut case.value, dims.v_dim)] {
            for d in 0..dim {
                elements.set(key * dim + d, pick(rng, &BAD));
            }
        }
        case.poisoned += dims.qk_dim + dims.v_dim;
    }
    if let Some((bias, _)) = &mut case.bias {
        for (index, _) in seen_bias.iter().enumerate().filter(|(_, seen)| !**seen) {
            bias.set(index, pick(rng, &BAD));
            case.poisoned += 1;
        }
    }
    for row in 0..dims.rows() {
        let b = row / (dims.q_heads * dims.q_len);
        if (row % dims.q_len) as u32 >= case.visibility(b).q_len {
            for d in 0..dims.qk_dim {
                case.query.set(row * dims.qk_dim + d, pick(rng, &BAD));
            }
            case.poisoned += dims.qk_dim;
        }
    }
}

fn flat(shape: [usize; 4], pair: [usize; 4]) -> usize {
    let index = |axis: usize| if shape[axis] == 1 { 0 } else { pair[axis] };
    (0..4).fold(0, |at, axis| at * shape[axis] + index(axis))
}

/// (B, Hq, Nq, Nk) with some axes 1.
fn broadcast(dims: Dims, rng: &mut StdRng) -> [usize; 4] {
    let full = [dims.batch, dims.q_heads, dims.q_len, dims.kv_len];
    full.map(|n| if rng.random_bool(0.6) { n } else { 1 })
}

fn counts(rng: &mut StdRng, batch: usize, most: usize) -> Vec<u32> {
    (0..batch)
        .map(|_| match rng.random_range(0..5) {
            0 => 0,
            1 => most as u32,
            _ => rng.random_range(0..=most as u32),
        })
        .collect()
}

fn normal(rng: &mut StdRng, count: usize, amplitude: f32) -> Vec<f32> {
    (0..count)
        .map(|_| amplitude * rng.sample::<f32, _>(StandardNormal))
        .collect()
}

fn pick<T: Copy>(rng: &mut StdRng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}
