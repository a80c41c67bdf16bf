//! The buffer ranges of a call, by operand.

use std::iter::Flatten;
use std::slice;

use crate::plan::operands::Operands;
use crate::view::aliasing::NamedSpan;
use crate::view::extent::Span;
use crate::view::tensor::{List, MaskView, StatsView, TensorView};

/// Four tensors, five more operands, seven lists.
const MOST_SPANS: usize = 16;

/// The buffer ranges of a call.
pub(crate) struct NamedSpans<'a> {
    all: [Option<NamedSpan<'a>>; MOST_SPANS],
}

impl<'a> NamedSpans<'a> {
    pub fn of(operands: &Operands<'a>, writes_stats: bool) -> Self {
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
                named("stats", o.stats.as_ref().map(StatsView::span), writes_stats),
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
