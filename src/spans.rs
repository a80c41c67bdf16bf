//! Where operands lie in their buffers: usages, overlaps, sharing.

use crate::error::{Error, Result};
use crate::operands::Operands;
use crate::tensor::{Span, TensorView};

/// An output may not overlap itself.
pub(crate) fn check_writable(operand: &'static str, view: &TensorView<'_>) -> Result<()> {
    if view.shape.contains(&0) {
        return Ok(());
    }
    // Sorted by stride, each axis has to step over all that the smaller ones span.
    let mut axes: Vec<(usize, usize)> = (0..4)
        .filter(|&axis| view.shape[axis] > 1)
        .map(|axis| (view.strides[axis], view.shape[axis]))
        .collect();
    axes.sort_unstable();
    let mut spanned = 1usize;
    for (stride, len) in axes {
        if stride < spanned {
            return Err(Error::Layout {
                operand,
                expected: "strides under which no two elements coincide".to_owned(),
                actual: format!("shape {:?}, strides {:?}", view.shape, view.strides),
            });
        }
        spanned = stride.saturating_mul(len - 1).saturating_add(spanned);
    }
    Ok(())
}

/// An operand's name, its bytes, and whether it is written.
pub(crate) type NamedSpan<'a> = (&'static str, Span<'a>, bool);

pub(crate) fn named_spans<'a>(operands: &Operands<'a>) -> Vec<NamedSpan<'a>> {
    let mut spans = vec![
        ("output", operands.output.span(), true),
        ("query", operands.query.span(), false),
        ("key", operands.key.span(), false),
        ("value", operands.value.span(), false),
    ];
    if let Some(stats) = &operands.stats {
        spans.push(("stats", stats.span(), true));
    }
    if let Some(bias) = &operands.bias {
        spans.push(("bias", bias.span(), false));
    }
    if let Some(mask) = &operands.mask {
        spans.push(("mask", mask.span(), false));
    }
    let lists = [
        ("kv_lengths", operands.kv_lengths.and_then(|l| l.span())),
        ("q_lengths", operands.q_lengths.and_then(|l| l.span())),
        ("offsets", operands.offsets.and_then(|l| l.span())),
        ("q_segments", operands.q_segments.and_then(|l| l.span())),
        ("kv_segments", operands.kv_segments.and_then(|l| l.span())),
        ("alibi_slopes", operands.alibi_slopes.and_then(|l| l.span())),
        ("sinks", operands.sinks.and_then(|l| l.span())),
    ];
    for (name, span) in lists {
        if let Some(span) = span {
            spans.push((name, span, false));
        }
    }
    spans
}

pub(crate) fn check_usage(spans: &[NamedSpan<'_>]) -> Result<()> {
    for (operand, span, _) in spans {
        let needed = wgpu::BufferUsages::STORAGE;
        if !span.buffer.usage().contains(needed) {
            return Err(Error::Usage {
                operand,
                needed,
                actual: span.buffer.usage(),
            });
        }
        // Views check this when they are made; lists have no constructor.
        if span.bytes.end > span.buffer.size() {
            return Err(Error::BufferTooSmall {
                operand,
                needed: span.bytes.end,
                size: span.buffer.size(),
            });
        }
    }
    Ok(())
}

/// Refuses overlaps with what is written; says whether buffers are shared.
pub(crate) fn check_overlap(spans: &[NamedSpan<'_>]) -> Result<bool> {
    let mut shared = false;
    for (index, (written, span, is_written)) in spans.iter().enumerate() {
        if !is_written {
            continue;
        }
        for (other_index, (other, other_span, other_written)) in spans.iter().enumerate() {
            if index == other_index {
                continue;
            }
            if span.overlaps(other_span) {
                return Err(Error::Overlap {
                    written,
                    other,
                    ranges: format!("{:?} and {:?}", span.bytes, other_span.bytes),
                });
            }
            shared |= !other_written && span.buffer == other_span.buffer;
        }
    }
    Ok(shared)
}
