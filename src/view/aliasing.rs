//! Where operands lie in their buffers: usages, overlaps, sharing.

use crate::error::{Error, Result};
use crate::view::extent::Span;
use crate::view::tensor::TensorView;

/// An output may not overlap itself.
pub(crate) fn check_writable(operand: &'static str, view: &TensorView<'_>) -> Result<()> {
    if view.shape.contains(&0) {
        return Ok(());
    }
    // Sorted by stride, each axis has to step over all that the smaller ones span.
    let mut axes = [0, 1, 2, 3].map(|axis| (view.strides[axis], view.shape[axis]));
    axes.sort_unstable();
    let mut spanned = 1usize;
    for (stride, len) in axes.into_iter().filter(|&(_, len)| len > 1) {
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

pub(crate) fn check_usage<'s, 'a: 's>(
    spans: impl IntoIterator<Item = &'s NamedSpan<'a>>,
) -> Result<()> {
    for (operand, span, _) in spans {
        let needed = wgpu::BufferUsages::STORAGE;
        // A workspace is checked when it is there.
        let Some(buffer) = span.home.buffer() else {
            continue;
        };
        if !buffer.usage().contains(needed) {
            return Err(Error::Usage {
                operand,
                needed,
                actual: buffer.usage(),
            });
        }
        // Views check this when they are made; lists have no constructor.
        if span.bytes.end > buffer.size() {
            return Err(Error::BufferTooSmall {
                operand,
                needed: span.bytes.end,
                size: buffer.size(),
            });
        }
    }
    Ok(())
}

/// Refuses overlaps with what is written; says whether buffers are shared.
pub(crate) fn check_overlap<'s, 'a: 's>(
    spans: impl IntoIterator<Item = &'s NamedSpan<'a>, IntoIter: Clone>,
) -> Result<bool> {
    let spans = spans.into_iter();
    let mut shared = false;
    for (index, (written, span, is_written)) in spans.clone().enumerate() {
        if !is_written {
            continue;
        }
        for (other_index, (other, other_span, other_written)) in spans.clone().enumerate() {
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
            shared |= !other_written && span.home == other_span.home;
        }
    }
    Ok(shared)
}
