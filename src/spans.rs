//! Where operands lie in their buffers: usages, overlaps, sharing.

use std::iter::Flatten;
use std::slice;

use crate::error::{Error, Result};
use crate::operands::Operands;
use crate::place::Span;
use crate::problem::Goal;
use crate::tensor::{List, MaskView, StatsView, TensorView};

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

/// Four tensors, five more operands, seven lists.
const MOST_SPANS: usize = 16;

/// The buffer ranges of a call.
pub(crate) struct NamedSpans<'a> {
    all: [Option<NamedSpan<'a>>; MOST_SPANS],
}

impl<'a> NamedSpans<'a> {
    pub fn of(operands: &Operands<'a>, goal: &Goal) -> Self {
        fn list<'a, T>(list: &Option<List<'a, T>>) -> Option<Span<'a>> {
            list.as_ref().and_then(List::span)
        }
        let o = operands;
        let named = |name, span: Option<Span<'a>>, written| span.map(|span| (name, span, written));
        NamedSpans {
            all: [
                named("output", Some(o.output.span()), true),
                named("query", Some(o.query.span()), false),
                named("key", Some(o.key.span()), false),
                named("value", Some(o.value.span()), false),
                named(
                    "stats",
                    o.stats.as_ref().map(StatsView::span),
                    !goal.inspects(),
                ),
                named("bias", o.bias.as_ref().map(TensorView::span), false),
                named("mask", o.mask.as_ref().map(MaskView::span), false),
                named("kv_lengths", list(&o.kv_lengths), false),
                named("q_lengths", list(&o.q_lengths), false),
                named("offsets", list(&o.offsets), false),
                named("q_segments", list(&o.q_segments), false),
                named("kv_segments", list(&o.kv_segments), false),
                named("alibi_slopes", list(&o.alibi_slopes), false),
                named("sinks", list(&o.sinks), false),
                named("norms", o.norms.as_ref().map(TensorView::span), false),
                named("received", o.received.as_ref().map(TensorView::span), true),
            ],
        }
    }

    pub fn iter(&self) -> Flatten<slice::Iter<'_, Option<NamedSpan<'a>>>> {
        self.all.iter().flatten()
    }

    /// All but the output, query, key and value.
    pub fn besides_tensors(&self) -> impl Iterator<Item = &NamedSpan<'a>> {
        self.all[4..].iter().flatten()
    }
}

impl<'s, 'a> IntoIterator for &'s NamedSpans<'a> {
    type Item = &'s NamedSpan<'a>;
    type IntoIter = Flatten<slice::Iter<'s, Option<NamedSpan<'a>>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

pub(crate) fn check_usage(spans: &NamedSpans<'_>) -> Result<()> {
    for (operand, span, _) in spans.iter() {
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
