//! The lists of a call (lengths, offsets, segments, slopes, sinks): what they
//! are, and what is checked of them.

use std::fmt;

use crate::view::geometry::PHASE;
use crate::view::tensor::List;

/// The lists that are gathered into `aux`, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ListKind {
    KvLengths,
    QLengths,
    Offsets,
    QSegments,
    KvSegments,
    Slopes,
    Sinks,
}

impl ListKind {
    pub const ALL: [ListKind; 7] = [
        ListKind::KvLengths,
        ListKind::QLengths,
        ListKind::Offsets,
        ListKind::QSegments,
        ListKind::KvSegments,
        ListKind::Slopes,
        ListKind::Sinks,
    ];

    pub fn name(self) -> &'static str {
        match self {
            ListKind::KvLengths => "kv_lengths",
            ListKind::QLengths => "q_lengths",
            ListKind::Offsets => "offsets",
            ListKind::QSegments => "q_segments",
            ListKind::KvSegments => "kv_segments",
            ListKind::Slopes => "alibi_slopes",
            ListKind::Sinks => "sinks",
        }
    }
}

/// A list as the plan knows it: its words, or where they will be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ListSource {
    Host(Vec<u32>),
    Buffer { len: usize, phase: u64 },
}

impl ListSource {
    pub fn len(&self) -> usize {
        match self {
            ListSource::Host(words) => words.len(),
            ListSource::Buffer { len, .. } => *len,
        }
    }

    pub fn borrowed(&self) -> ListRef<'_> {
        match self {
            ListSource::Host(words) => ListRef::Host(words),
            &ListSource::Buffer { len, phase } => ListRef::Buffer { len, phase },
        }
    }
}

/// A list of an operand: what a [`ListSource`] is made from, and compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ListRef<'a> {
    Host(&'a [u32]),
    Buffer { len: usize, phase: u64 },
}

impl<'a> ListRef<'a> {
    /// `None` for an empty list: it is never read, and an empty buffer cannot
    /// be bound.
    pub fn of<T: bytemuck::Pod>(list: &List<'a, T>) -> Option<Self> {
        let found = match *list {
            List::Host(values) => ListRef::Host(bytemuck::cast_slice(values)),
            List::Buffer { offset, len, .. } => ListRef::Buffer {
                len,
                phase: (offset as u64).saturating_mul(4) % PHASE,
            },
        };
        (list.len() > 0).then_some(found)
    }

    pub fn to_owned(self) -> ListSource {
        match self {
            ListRef::Host(words) => ListSource::Host(words.to_vec()),
            ListRef::Buffer { len, phase } => ListSource::Buffer { len, phase },
        }
    }
}

impl fmt::Display for ListRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListRef::Host(words) => write!(f, "{} host values", words.len()),
            ListRef::Buffer { len, phase } => {
                write!(f, "{len} values in a buffer at byte {phase} modulo 256")
            }
        }
    }
}

/// The lists of a call, in the order of [`ListKind::ALL`].
pub(crate) type ListRefs<'a> = [Option<ListRef<'a>>; ListKind::ALL.len()];
