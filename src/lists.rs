//! The lists of a call (lengths, offsets, segments, slopes, sinks): what they
//! are, and what is checked of them.

use std::fmt;

use crate::error::{Error, Result};
use crate::host::{Dims, check_alignment, check_counts, check_len, check_sinks, check_slopes};
use crate::operands::Operands;
use crate::options::Options;
use crate::problem::PHASE;
use crate::tensor::List;

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
    fn of<T: bytemuck::Pod>(list: &List<'a, T>) -> Option<Self> {
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

/// Checks the lists and gathers them, without allocating.
pub(crate) fn collect_lists<'a>(
    operands: &Operands<'a>,
    options: &Options,
    dims: &Dims,
) -> Result<ListRefs<'a>> {
    fn host<'a, T>(list: &List<'a, T>) -> Option<&'a [T]> {
        match *list {
            List::Host(values) => Some(values),
            List::Buffer { .. } => None,
        }
    }
    let mut lists: ListRefs<'a> = [None; ListKind::ALL.len()];
    let mut put = |kind: ListKind, list: Option<ListRef<'a>>| lists[kind as usize] = list;
    if let Some(list) = &operands.kv_lengths {
        check_len("kv_lengths", list.len(), dims.batch)?;
        check_counts("kv_lengths", host(list), dims.batch, dims.kv_len)?;
        put(ListKind::KvLengths, ListRef::of(list));
    }
    if let Some(list) = &operands.q_lengths {
        check_len("q_lengths", list.len(), dims.batch)?;
        check_counts("q_lengths", host(list), dims.batch, dims.q_len)?;
        put(ListKind::QLengths, ListRef::of(list));
    }
    let offsets = operands.offsets.as_ref();
    check_alignment(options, offsets.map(List::len), dims.batch)?;
    if let Some(list) = offsets {
        put(ListKind::Offsets, ListRef::of(list));
    }
    match (&operands.q_segments, &operands.kv_segments) {
        (Some(queries), Some(keys)) => {
            check_len("q_segments", queries.len(), dims.queries())?;
            check_len("kv_segments", keys.len(), dims.keys())?;
            put(ListKind::QSegments, ListRef::of(queries));
            put(ListKind::KvSegments, ListRef::of(keys));
        }
        (None, None) => {}
        (Some(_), None) => {
            return Err(Error::value("kv_segments", "ids beside q_segments", "none"));
        }
        (None, Some(_)) => {
            return Err(Error::value("q_segments", "ids beside kv_segments", "none"));
        }
    }
    if let Some(list) = &operands.alibi_slopes {
        check_len("alibi_slopes", list.len(), dims.q_heads)?;
        host(list).map_or(Ok(()), check_slopes)?;
        put(ListKind::Slopes, ListRef::of(list));
    }
    if let Some(list) = &operands.sinks {
        check_len("sinks", list.len(), dims.q_heads)?;
        host(list).map_or(Ok(()), check_sinks)?;
        put(ListKind::Sinks, ListRef::of(list));
    }
    Ok(lists)
}
