//! Shapes, strides, buffers.

use super::bench::{Bench, judge};
use wgpu_attention::*;

#[test]
fn shapes() {
    judge(&[
        (
            "Shape",
            |b| {
                b.with(|o| {
                    o.query = b.view([2, 4, 5, 0]);
                    o.key = b.view([2, 2, 7, 0]);
                })
            },
            "query: expected shape (B, Hq, Nq, Dqk) with Dqk > 0, got [2, 4, 5, 0]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.key = b.view([2, 0, 7, 8])),
            "key: expected shape (B, Hkv, Nk, Dqk) with Hkv > 0, got [2, 0, 7, 8]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.key = b.view([3, 2, 7, 8])),
            "key: expected shape [2, Hkv, Nk, 8] (from query), got [3, 2, 7, 8]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.key = b.view([2, 2, 7, 9])),
            "key: expected shape [2, Hkv, Nk, 8] (from query), got [2, 2, 7, 9]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.query = b.view([2, 3, 5, 8])),
            "query: expected shape a multiple of the 2 kv heads as query heads, got [2, 3, 5, 8]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.value = b.view([2, 2, 6, 6])),
            "value: expected shape [2, 2, 7, Dv] with Dv > 0 (from key), got [2, 2, 6, 6]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.value = b.view([2, 4, 7, 6])),
            "value: expected shape [2, 2, 7, Dv] with Dv > 0 (from key), got [2, 4, 7, 6]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.value = b.view([2, 2, 7, 0])),
            "value: expected shape [2, 2, 7, Dv] with Dv > 0 (from key), got [2, 2, 7, 0]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.query = b.strided([2, 4, (1 << 30) + 1, 8], [0, 0, 0, 1])),
            "query: expected shape every axis at most 2^30, got [2, 4, 1073741825, 8]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.output = b.view([2, 4, 5, 7])),
            "output: expected shape [2, 4, 5, 6], got [2, 4, 5, 7]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.output = b.view([4, 2, 5, 6])),
            "output: expected shape [2, 4, 5, 6], got [4, 2, 5, 6]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.bias = Some(b.view([2, 4, 5, 6]))),
            "bias: expected shape broadcastable to [2, 4, 5, 7] (each axis equal or 1), got [2, 4, 5, 6]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.bias = Some(b.view([1, 0, 1, 1]))),
            "bias: expected shape broadcastable to [2, 4, 5, 7] (each axis equal or 1), got [1, 0, 1, 1]",
        ),
        (
            "Shape",
            |b| {
                let mask = MaskView::bits(&b.big, [2, 2, 5, 7], 0, Polarity::Keep).unwrap();
                b.with(|o| o.mask = Some(mask))
            },
            "mask: expected shape broadcastable to [2, 4, 5, 7] (each axis equal or 1), got [2, 2, 5, 7]",
        ),
        (
            "Shape",
            |b| {
                let stats = StatsView::new(&b.big, Stats::Lse, [2, 4, 6], 0).unwrap();
                b.with(|o| o.stats = Some(stats))
            },
            "stats: expected shape [2, 4, 5], got [2, 4, 6]",
        ),
        (
            "Value",
            |b| {
                let half = TensorView::bhsd(&b.big, DType::F16, [2, 2, 7, 6], 0).unwrap();
                b.with(|o| o.value = half)
            },
            "value: expected the key's storage type F32, got F16",
        ),
    ]);
}

#[test]
fn layouts_and_buffers() {
    judge(&[
        (
            "Layout",
            |b| b.with(|o| o.query = b.strided([2, 4, 5, 8], [640, 160, 32, 2])),
            "query: expected layout with a contiguous last axis (stride 1), got strides [640, 160, 32, 2]",
        ),
        (
            "Layout",
            |b| b.with(|o| o.key = b.strided([2, 2, 7, 8], [1, 2, 4, 28])),
            "key: expected layout with a contiguous last axis (stride 1), got strides [1, 2, 4, 28]",
        ),
        (
            "Layout",
            |b| b.with(|o| o.value = b.strided([2, 2, 7, 6], [0, 0, 0, 0])),
            "value: expected layout with a contiguous last axis (stride 1), got strides [0, 0, 0, 0]",
        ),
        (
            "Layout",
            |b| b.with(|o| o.output = b.strided([2, 4, 5, 6], [120, 30, 6, 2])),
            "output: expected layout with a contiguous last axis (stride 1), got strides [120, 30, 6, 2]",
        ),
        (
            "Layout",
            |b| b.with(|o| o.output = b.strided([2, 4, 5, 6], [120, 30, 5, 1])),
            "output: expected layout with strides under which no two elements coincide, got shape [2, 4, 5, 6], strides [120, 30, 5, 1]",
        ),
        (
            "Layout",
            |b| b.with(|o| o.output = b.strided([2, 4, 5, 6], [0, 30, 6, 1])),
            "output: expected layout with strides under which no two elements coincide, got shape [2, 4, 5, 6], strides [0, 30, 6, 1]",
        ),
        (
            "BufferTooSmall",
            |b| TensorView::bhsd(&b.big, DType::F32, [1, 1, 128, 129], 0).unwrap_err(),
            "tensor: the view needs 66048 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| TensorView::bhsd(&b.big, DType::F32, [1, 1, 128, 128], 1).unwrap_err(),
            "tensor: the view needs 65540 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| TensorView::bshd(&b.big, DType::F16, [1, 2, 128, 128], 1).unwrap_err(),
            "tensor: the view needs 65540 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| TensorView::packed_qkv(&b.big, DType::F32, 1, 64, (3, 1), 64, 0).unwrap_err(),
            "query: the view needs 81408 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| TensorView::packed_qkv(&b.big, DType::F32, 1, 1, (64, 256), 64, 0).unwrap_err(),
            "key: the view needs 81920 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| TensorView::packed_qkv(&b.big, DType::F32, 1, 1, (64, 192), 64, 0).unwrap_err(),
            "value: the view needs 114688 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| TensorView::matrix(&b.big, DType::F32, [128, 129], 0).unwrap_err(),
            "weight: the view needs 66048 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| TensorView::bhsd(&b.big, DType::F32, [1, 1, 1, 1], 1 << 32).unwrap_err(),
            "tensor: the view needs 17179869188 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| TensorView::bhsd(&b.big, DType::F32, [1, 1, 65_536, 65_536], 0).unwrap_err(),
            "tensor: the view needs 17179869184 bytes of its buffer, which has 65536",
        ),
        (
            "Layout",
            |b| TensorView::bhsd(&b.big, DType::F32, [1, 1, 1, 1], usize::MAX).unwrap_err(),
            "tensor: expected layout with a last element below 2^64 bytes, got shape [1, 1, 1, 1], strides [1, 1, 1, 1], offset 18446744073709551615",
        ),
        (
            "Layout",
            |b| b_strided_overflow(b),
            "tensor: expected layout with a last element below 2^64 bytes, got shape [3, 1, 1, 1], strides [9223372036854775808, 0, 0, 1], offset 0",
        ),
        (
            "BufferTooSmall",
            |b| MaskView::bytes(&b.big, [1, 1, 256, 257], 0, Polarity::Keep).unwrap_err(),
            "mask: the view needs 65792 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| MaskView::bits(&b.big, [1, 1, 16_384, 32], 1, Polarity::Drop).unwrap_err(),
            "mask: the view needs 65540 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| StatsView::new(&b.big, Stats::RowState, [1, 1, 8193], 0).unwrap_err(),
            "stats: the view needs 65544 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| b.with(|o| o.kv_lengths = Some(b.on_device(16_383, 2))),
            "kv_lengths: the view needs 65540 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| b.with(|o| o.sinks = Some(b.on_device(usize::MAX, 4))),
            "sinks: the view needs 18446744073709551615 bytes of its buffer, which has 65536",
        ),
        (
            "Usage",
            |b| {
                let view = TensorView::bhsd(&b.unusable, DType::F32, [2, 2, 7, 8], 0).unwrap();
                b.with(|o| o.key = view)
            },
            "key: its buffer needs usage BufferUsages(STORAGE), it has BufferUsages(COPY_DST)",
        ),
        (
            "Usage",
            |b| {
                let view = TensorView::bhsd(&b.unusable, DType::F32, [2, 4, 5, 6], 0).unwrap();
                b.with(|o| o.output = view)
            },
            "output: its buffer needs usage BufferUsages(STORAGE), it has BufferUsages(COPY_DST)",
        ),
        (
            "Usage",
            |b| {
                let list = List::Buffer {
                    buffer: &b.unusable,
                    offset: 0,
                    len: 2,
                };
                b.with(|o| o.q_lengths = Some(list))
            },
            "q_lengths: its buffer needs usage BufferUsages(STORAGE), it has BufferUsages(COPY_DST)",
        ),
        (
            "Overlap",
            |b| {
                b.with(|o| {
                    o.output = b.view([2, 4, 5, 6]);
                    o.query = b.view([2, 4, 5, 8]);
                })
            },
            "output: is written and must not overlap query (0..960 and 0..1280)",
        ),
        (
            "Overlap",
            |b| {
                let stats = StatsView::new(&b.big, Stats::Lse, [2, 4, 5], 239).unwrap();
                b.with(|o| {
                    o.output = b.view([2, 4, 5, 6]);
                    o.stats = Some(stats);
                })
            },
            "output: is written and must not overlap stats (0..960 and 956..1116)",
        ),
        (
            "Overlap",
            |b| {
                let stats = StatsView::new(&b.big, Stats::RowState, [2, 4, 5], 1).unwrap();
                b.with(|o| {
                    o.stats = Some(stats);
                    o.kv_lengths = Some(b.on_device(80, 2));
                })
            },
            "stats: is written and must not overlap kv_lengths (4..324 and 320..328)",
        ),
    ]);
}

fn b_strided_overflow(b: &Bench) -> Error {
    TensorView::strided(&b.big, DType::F32, [3, 1, 1, 1], [1 << 63, 0, 0, 1], 0).unwrap_err()
}

/// Whoever makes a view says what it is: every constructor, every error of one.
#[test]
fn views_are_named_by_who_makes_them() {
    let bench = Bench::new();
    let (big, f32) = (&bench.big, DType::F32);
    let huge = [1, 1, 1 << 20, 1 << 20];
    let errors = [
        TensorView::strided(big, f32, huge, [1, 1, 1 << 20, 1], 0).map(drop),
        TensorView::strided(big, f32, [1; 4], [1; 4], usize::MAX).map(drop),
        TensorView::bhsd(big, f32, huge, 0).map(drop),
        TensorView::bshd(big, f32, huge, 0).map(drop),
        TensorView::tokens(big, f32, [1, 1 << 20, 1 << 20], 0).map(drop),
        TensorView::matrix(big, f32, [1 << 20, 1 << 20], 0).map(drop),
        TensorView::packed_qkv(big, f32, 1, 1 << 20, (1, 1), 64, 0).map(drop),
        MaskView::bytes(big, huge, 0, Polarity::Keep).map(drop),
        MaskView::bytes_strided(big, huge, [1; 4], usize::MAX, Polarity::Keep).map(drop),
        MaskView::bits(big, huge, 0, Polarity::Keep).map(drop),
        MaskView::bits_strided(big, huge, [1; 3], usize::MAX, Polarity::Keep).map(drop),
        StatsView::new(big, Stats::Lse, [1, 1 << 20, 1 << 20], 0).map(drop),
        Tensor::f32(&[0.0; 3], [1, 1, 1, 4]).map(drop),
    ];
    for error in errors {
        let error = error.unwrap_err();
        let text = error.to_string();
        let (operand, rest) = text.split_once(':').unwrap();
        let known = ["tensor", "mask", "stats", "weight", "query"];
        assert!(known.contains(&operand), "{text}");
        let named = error.named("key of layer 3").to_string();
        assert_eq!(named, format!("key of layer 3:{rest}"));
    }
    // Errors of no operand, or of two, stay what they are.
    let lost = Error::DeviceLost {
        message: "gone".to_owned(),
    };
    assert_eq!(lost.clone().named("key"), lost);
    let overlap = Error::Overlap {
        written: "output",
        other: "key",
        ranges: String::new(),
    };
    assert_eq!(overlap.clone().named("key"), overlap);
}
