//! The lists of a call, checked.

use crate::error::{Error, Result};
use crate::plan::operands::Operands;
use crate::rules::dims::{
    Dims, check_alignment, check_counts, check_len, check_sinks, check_slopes,
};
use crate::rules::options::Options;
use crate::view::lists::{ListKind, ListRef, ListRefs};
use crate::view::tensor::List;

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
