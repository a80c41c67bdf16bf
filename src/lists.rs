//! The lists of a call (lengths, offsets, segments, slopes, sinks): what they
//! are, and what is checked of them.

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
}

pub(crate) fn collect_lists(
    operands: &Operands<'_>,
    options: &Options,
    dims: &Dims,
) -> Result<Vec<(ListKind, ListSource)>> {
    fn source<T: bytemuck::Pod>(list: &List<'_, T>) -> ListSource {
        match *list {
            List::Host(values) => ListSource::Host(bytemuck::cast_slice(values).to_vec()),
            List::Buffer { offset, len, .. } => ListSource::Buffer {
                len,
                phase: (offset as u64).saturating_mul(4) % PHASE,
            },
        }
    }
    fn host<'a, T>(list: &List<'a, T>) -> Option<&'a [T]> {
        match *list {
            List::Host(values) => Some(values),
            List::Buffer { .. } => None,
        }
    }
    let mut lists = Vec::new();
    if let Some(list) = &operands.kv_lengths {
        check_len("kv_lengths", list.len(), dims.batch)?;
        check_counts("kv_lengths", host(list), dims.batch, dims.kv_len)?;
        lists.push((ListKind::KvLengths, source(list)));
    }
    if let Some(list) = &operands.q_lengths {
        check_len("q_lengths", list.len(), dims.batch)?;
        check_counts("q_lengths", host(list), dims.batch, dims.q_len)?;
        lists.push((ListKind::QLengths, source(list)));
    }
    let offsets = operands.offsets.as_ref();
    check_alignment(options, offsets.map(List::len), dims.batch)?;
    if let Some(list) = offsets {
        lists.push((ListKind::Offsets, source(list)));
    }
    match (&operands.q_segments, &operands.kv_segments) {
        (Some(queries), Some(keys)) => {
            check_len("q_segments", queries.len(), dims.queries())?;
            check_len("kv_segments", keys.len(), dims.keys())?;
            lists.push((ListKind::QSegments, source(queries)));
            lists.push((ListKind::KvSegments, source(keys)));
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
        lists.push((ListKind::Slopes, source(list)));
    }
    if let Some(list) = &operands.sinks {
        check_len("sinks", list.len(), dims.q_heads)?;
        host(list).map_or(Ok(()), check_sinks)?;
        lists.push((ListKind::Sinks, source(list)));
    }
    // An empty list is never read, and an empty buffer cannot be bound.
    lists.retain(|(_, source)| source.len() > 0);
    Ok(lists)
}
