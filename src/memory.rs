//! Lists in host memory: a size that no host has is an error, not an abort.

use crate::error::{Result, no_memory};

/// The elements of a shape; `usize::MAX` if there are more.
pub(crate) fn count(shape: &[usize]) -> usize {
    shape.iter().fold(1, |n: usize, &m| n.saturating_mul(m))
}

/// An empty list with room for the elements of `shape`.
pub(crate) fn room<T>(what: &str, shape: &[usize]) -> Result<Vec<T>> {
    let (mut list, count) = (Vec::new(), count(shape));
    let reserved = list.try_reserve_exact(count);
    reserved.map_err(|_| no_memory(what, count))?;
    Ok(list)
}

/// A list of that many elements, all `value`.
pub(crate) fn filled<T: Clone>(what: &str, shape: &[usize], value: T) -> Result<Vec<T>> {
    let mut list = room(what, shape)?;
    list.resize(count(shape), value);
    Ok(list)
}

/// What an iterator of known length gives.
pub(crate) fn collected<T>(what: &str, items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut list = room(what, &[items.len()])?;
    list.extend(items);
    Ok(list)
}
