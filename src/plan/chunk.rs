//! Cuts a problem into chunks whose operands fit the device's bindings and
//! whose grids fit its dispatches.

use std::ops::Range;

use crate::kernel::uniform::tile;
use crate::plan::caps::DeviceCaps;
use crate::plan::task::Task;
use crate::view::geometry::Geometry;

/// A box of batch entries, query heads and rows that one set of dispatches covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub batches: Range<usize>,
    pub heads: Range<usize>,
    pub rows: Range<usize>,
}

impl Chunk {
    /// Score pairs of the chunk.
    pub fn pairs(&self, task: &Task) -> u64 {
        [self.batches.len(), self.heads.len(), self.rows.len()]
            .iter()
            .fold(task.dims.kv_len as u64, |n, &m| n.saturating_mul(m as u64))
    }

    /// The kv heads that its query heads read.
    pub fn kv_heads(&self, task: &Task) -> Range<usize> {
        let group = task.dims.group();
        self.heads.start / group..self.heads.end.div_ceil(group)
    }

    /// Two halves along the outermost axis that can be cut.
    pub fn halves(&self, task: &Task) -> Option<[Chunk; 2]> {
        let cut = |range: &Range<usize>, unit: usize| {
            let units = range.len().div_ceil(unit);
            (units > 1).then(|| range.start + units / 2 * unit)
        };
        if let Some(at) = cut(&self.batches, 1) {
            let mut halves = [self.clone(), self.clone()];
            halves[0].batches.end = at;
            halves[1].batches.start = at;
            return Some(halves);
        }
        // Whole groups first: their heads read the same keys.
        let group = task.dims.group();
        let by_group = cut(&self.heads, group).filter(|_| self.heads.start.is_multiple_of(group));
        if let Some(at) = by_group.or_else(|| cut(&self.heads, 1)) {
            let mut halves = [self.clone(), self.clone()];
            halves[0].heads.end = at;
            halves[1].heads.start = at;
            return Some(halves);
        }
        let at = cut(&self.rows, tile::ROWS as usize)?;
        let mut halves = [self.clone(), self.clone()];
        halves[0].rows.end = at;
        halves[1].rows.start = at;
        Some(halves)
    }
}

/// The part of an operand that a chunk needs: bytes from the operand's aligned
/// start, and the element at which the chunk's first corner lies within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slab {
    pub start: u64,
    pub end: u64,
    pub base: u64,
}

/// The slab of `axes` (batch, head, row ranges; the last axis whole).
pub(crate) fn slab(geometry: &Geometry, axes: [Range<usize>; 3], caps: &DeviceCaps) -> Slab {
    let mut first = 0u64;
    let mut last = (geometry.shape[3] as u64 - 1) * geometry.strides[3] as u64;
    for (axis, range) in axes.iter().enumerate() {
        let stride = geometry.strides[axis] as u64;
        first += range.start as u64 * stride;
        last += (range.end as u64 - 1) * stride;
    }
    let size = geometry.element_size;
    let align = caps.alignment();
    let start_byte = geometry.phase + first * size;
    let start = start_byte / align * align;
    let end = (geometry.phase + (last + 1) * size).next_multiple_of(4);
    Slab {
        start,
        end,
        base: (start_byte - start) / size,
    }
}

/// Every operand's slab for a chunk, by name.
pub(crate) fn slabs(
    task: &Task,
    holds_scores: bool,
    chunk: &Chunk,
    caps: &DeviceCaps,
) -> Vec<(&'static str, Slab)> {
    let by_row = || {
        [
            chunk.batches.clone(),
            chunk.heads.clone(),
            chunk.rows.clone(),
        ]
    };
    let by_key = || {
        let keys = 0..task.dims.kv_len;
        [chunk.batches.clone(), chunk.kv_heads(task), keys]
    };
    let output_axes = match &task.facts.region {
        None => by_row(),
        Some(region) => {
            // The output begins at the region's corner.
            let from = |range: &Range<usize>, start: usize| range.start - start..range.end - start;
            [
                from(&chunk.batches, region.batches.start),
                from(&chunk.heads, region.heads.start),
                from(&chunk.rows, region.rows.start),
            ]
        }
    };
    let has_keys = task.dims.kv_len > 0;
    let mut all = Vec::new();
    if let Some(received) = task.received.as_ref().filter(|_| has_keys) {
        let [batches, heads, _] = output_axes.clone();
        let keys = 0..task.dims.kv_len;
        all.push(("received", slab(received, [batches, heads, keys], caps)));
    }
    if chunk.rows.is_empty() {
        return all;
    }
    all.push(("query", slab(&task.query, by_row(), caps)));
    if has_keys {
        all.push(("key", slab(&task.key, by_key(), caps)));
    }
    if let Some(norms) = task.norms.as_ref().filter(|_| has_keys) {
        let [batches, kv_heads, keys] = by_key();
        let heads = match task.norms_by_query() {
            true => chunk.heads.clone(),
            false => kv_heads,
        };
        all.push(("norms", slab(norms, [batches, heads, keys], caps)));
    }
    if task.facts.reads_values && task.dims.kv_len > 0 {
        all.push(("value", slab(&task.value, by_key(), caps)));
    }
    all.push(("output", slab(&task.output, output_axes, caps)));
    if task.dims.kv_len > 0 {
        if let Some((bias, _)) = &task.bias {
            all.push(("bias", slab(bias, by_row(), caps)));
        }
        if let Some(mask) = &task.mask {
            all.push(("mask", slab(&mask.geometry, by_row(), caps)));
        }
    }
    if let Some((stats, _)) = &task.stats {
        all.push(("stats", slab(stats, by_row(), caps)));
    }
    if holds_scores {
        let end = chunk.pairs(task).saturating_mul(4);
        let whole = Slab {
            start: 0,
            end,
            base: 0,
        };
        all.push(("scores", whole));
    }
    all
}
