//! Lists, options, regions, tensors in host memory.

use super::bench::{Bench, judge};
use crate::noop::SMALL;
use wgpu_attention::*;

#[test]
fn lists() {
    judge(&[
        (
            "Shape",
            |b| b.with(|o| o.kv_lengths = Some(List::Host(&[1, 2, 3]))),
            "kv_lengths: expected shape [2], got [3]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.q_lengths = Some(List::Host(&[]))),
            "q_lengths: expected shape [2], got [0]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.kv_lengths = Some(b.on_device(0, 1))),
            "kv_lengths: expected shape [2], got [1]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.alibi_slopes = Some(List::Host(&[1.0; 2]))),
            "alibi_slopes: expected shape [4], got [2]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.sinks = Some(List::Host(&[1.0; 5]))),
            "sinks: expected shape [4], got [5]",
        ),
        (
            "Shape",
            |b| {
                let (queries, keys) = (List::Host(&[0; 9]), List::Host(&[0; 14]));
                b.forward(b.good.plain().segments(queries, keys))
            },
            "q_segments: expected shape [10], got [9]",
        ),
        (
            "Shape",
            |b| {
                let (queries, keys) = (List::Host(&[0; 10]), List::Host(&[0; 7]));
                b.forward(b.good.plain().segments(queries, keys))
            },
            "kv_segments: expected shape [14], got [7]",
        ),
        (
            "Value",
            |b| b.with(|o| o.q_segments = Some(List::Host(&[0; 10]))),
            "kv_segments: expected ids beside q_segments, got none",
        ),
        (
            "Value",
            |b| b.with(|o| o.kv_segments = Some(List::Host(&[0; 14]))),
            "q_segments: expected ids beside kv_segments, got none",
        ),
        (
            "Value",
            |b| b.with(|o| o.kv_lengths = Some(List::Host(&[7, 8]))),
            "kv_lengths: expected counts of at most 7, got 8 at batch entry 1",
        ),
        (
            "Value",
            |b| b.with(|o| o.q_lengths = Some(List::Host(&[u32::MAX, 1]))),
            "q_lengths: expected counts of at most 5, got 4294967295 at batch entry 0",
        ),
        (
            "Value",
            |b| b.options(Options::default().alignment(Alignment::PerSequence)),
            "offsets: expected one offset a sequence (alignment is PerSequence), got none",
        ),
        (
            "Value",
            |b| b.with(|o| o.offsets = Some(List::Host(&[0, 0]))),
            "offsets: expected none unless alignment is PerSequence, got alignment BottomRight with offsets",
        ),
        (
            "Shape",
            |b| {
                let options = Options::default().alignment(Alignment::PerSequence);
                let operands = b.good.plain().offsets(List::Host(&[0, 0, 0]));
                Problem::forward(&operands, &options).unwrap_err()
            },
            "offsets: expected shape [2], got [3]",
        ),
        (
            "Value",
            |b| b.with(|o| o.sinks = Some(List::Host(&[0.0, f32::NEG_INFINITY, 1.0, f32::NAN]))),
            "sinks: expected finite numbers or -inf, got NaN",
        ),
        (
            "Value",
            |b| b.with(|o| o.sinks = Some(List::Host(&[0.0, 1.0, f32::INFINITY, 1.0]))),
            "sinks: expected finite numbers or -inf, got inf",
        ),
        (
            "Value",
            |b| b.with(|o| o.alibi_slopes = Some(List::Host(&[0.0, -1.0, f32::NEG_INFINITY, 1.0]))),
            "alibi_slopes: expected finite numbers, got -inf",
        ),
        (
            "Value",
            |b| b.with(|o| o.alibi_slopes = Some(List::Host(&[f32::NAN; 4]))),
            "alibi_slopes: expected finite numbers, got NaN",
        ),
    ]);
}

#[test]
fn options_and_regions() {
    judge(&[
        (
            "Value",
            |b| b.options(Options::default().softcap(0.0)),
            "softcap: expected 1.1754944e-38 (2^-126) to 8.507059e37 (2^126), got 0e0",
        ),
        (
            "Value",
            |b| b.options(Options::default().softcap(-1.0)),
            "softcap: expected 1.1754944e-38 (2^-126) to 8.507059e37 (2^126), got -1e0",
        ),
        (
            "Value",
            |b| b.options(Options::default().softcap(f32::NAN)),
            "softcap: expected 1.1754944e-38 (2^-126) to 8.507059e37 (2^126), got NaN",
        ),
        (
            "Value",
            |b| b.options(Options::default().softcap(f32::INFINITY)),
            "softcap: expected 1.1754944e-38 (2^-126) to 8.507059e37 (2^126), got inf",
        ),
        (
            "Value",
            |b| b.options(Options::default().scale(f32::NAN)),
            "scale: expected a finite number, got NaN",
        ),
        (
            "Value",
            |b| b.options(Options::default().scale(f32::NEG_INFINITY)),
            "scale: expected a finite number, got -inf",
        ),
        (
            "Value",
            |_| Window::last(0).unwrap_err(),
            "window: expected at least 1 key, got 0",
        ),
        (
            "Value",
            |b| b.stage([[1, 3], [0, 1], [0, 1]], b.view([2, 1, 1, 7])),
            "region batches: expected a range within 0..2, got 1..3",
        ),
        (
            "Value",
            |b| b.stage([[0, 1], [4, usize::MAX], [0, 1]], b.view([1, 1, 1, 7])),
            "region heads: expected a range within 0..4, got 4..18446744073709551615",
        ),
        (
            "Value",
            |b| b.stage([[0, 1], [0, 1], [3, 1]], b.view([1, 1, 2, 7])),
            "region rows: expected a range within 0..5, got 3..1",
        ),
        (
            "Shape",
            |b| b.stage([[0, 1], [1, 3], [0, 5]], b.view([2, 4, 5, 7])),
            "output: expected shape [1, 2, 5, 7], got [2, 4, 5, 7]",
        ),
        (
            "Value",
            |b| {
                let halves = TensorView::bhsd(&b.big, DType::BF16, [1, 1, 1, 7], 0).unwrap();
                b.stage([[0, 1], [0, 1], [0, 1]], halves)
            },
            "output: expected F32 for a stage, got BF16",
        ),
        (
            "Value",
            |b| {
                let shape = [1, 1, 3, 7];
                let mut operands = b.good.plain();
                operands.output = b.view(shape);
                let region = Region {
                    batches: 0..1,
                    heads: 0..1,
                    rows: 0..3,
                };
                let options = Options::default();
                let problem = Problem::stage(&operands, &options, Stage::Raw, region).unwrap();
                let chosen = PlanOptions::default().kernel(Kernel::Tiled);
                Plan::new(&problem, b.noop.attention.caps(), &chosen).unwrap_err()
            },
            "kernel: expected Staged, the only one that writes scores, got Tiled",
        ),
    ]);
}

#[test]
fn host_tensors() {
    judge(&[
        (
            "Shape",
            |_| Tensor::f32(&[0.0; 23], [1, 2, 3, 4]).unwrap_err(),
            "tensor: expected shape [1, 2, 3, 4] (24 elements), got 23 elements",
        ),
        (
            "Shape",
            |_| Tensor::f32(&[], [usize::MAX, 2, 1, 1]).unwrap_err(),
            "tensor: expected shape [18446744073709551615, 2, 1, 1] (too many elements), got 0 elements",
        ),
        (
            "Shape",
            |_| BoolMask::new(MaskData::Bytes(&[1; 5]), [1, 1, 2, 3], Polarity::Keep).unwrap_err(),
            "mask: expected shape [1, 1, 2, 3] (6 bytes), got 5 bytes",
        ),
        (
            "Shape",
            |_| BoolMask::new(MaskData::Bits(&[1; 3]), [1, 1, 2, 33], Polarity::Keep).unwrap_err(),
            "mask: expected shape [1, 1, 2, 33] (4 words), got 3 words",
        ),
        (
            "Shape",
            |b| host(b, |i| i.kv_lengths(&[1])),
            "kv_lengths: expected shape [2], got [1]",
        ),
        (
            "Value",
            |b| host(b, |i| i.q_lengths(&[1, 6])),
            "q_lengths: expected counts of at most 5, got 6 at batch entry 1",
        ),
        (
            "Shape",
            |b| host(b, |i| i.segments(&[0; 10], &[0; 13])),
            "kv_segments: expected shape [14], got [13]",
        ),
        (
            "Value",
            |b| host(b, |i| i.offsets(&[0, 0])),
            "offsets: expected none unless alignment is PerSequence, got alignment BottomRight with offsets",
        ),
        (
            "Value",
            |b| host(b, |i| i.sinks(&[f32::NAN; 4])),
            "sinks: expected finite numbers or -inf, got NaN",
        ),
        (
            "Shape",
            |b| host(b, |i| i.alibi_slopes(&[1.0; 3])),
            "alibi_slopes: expected shape [4], got [3]",
        ),
        (
            "Shape",
            |b| host(b, |i| i.bias(Tensor::f32(&[0.0; 3], [3, 1, 1, 1]).unwrap())),
            "bias: expected shape broadcastable to [2, 4, 5, 7] (each axis equal or 1), got [3, 1, 1, 1]",
        ),
    ]);
}

/// The error of host inputs with one change, from the upload.
fn host(b: &Bench, change: fn(Inputs<'static>) -> Inputs<'static>) -> Error {
    static ZEROS: [f32; 320] = [0.0; 320];
    let of = |shape: [usize; 4]| Tensor::f32(&ZEROS[..shape.iter().product()], shape).unwrap();
    let inputs = Inputs::new(of(SMALL.query()), of(SMALL.key()), of(SMALL.value()));
    let chosen = PlanOptions::default();
    let uploaded =
        b.noop
            .attention
            .upload(&change(inputs), &Options::default(), DType::F32, &chosen);
    uploaded.unwrap_err()
}
