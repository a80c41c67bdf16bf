//! Cuts a problem into chunks whose operands fit the device's bindings and
//! whose grids fit its dispatches.

use std::ops::Range;

use crate::error::Error;
use crate::kernel::uniform::{LANES, tile};
use crate::plan::caps::DeviceCaps;
use crate::plan::family::Kernel;
use crate::plan::operation::Tiles;
use crate::plan::problem::Problem;
use crate::plan::tiling::Tiling;
use crate::view::geometry::Geometry;
use crate::view::lists::ListSource;

/// A box of batch entries, query heads and rows that one set of dispatches covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub batches: Range<usize>,
    pub heads: Range<usize>,
    pub rows: Range<usize>,
}

/// Scores of the staged path that are held at a time, unless one tile of rows
/// needs more.
const STAGED_WORKSPACE: u64 = 64 << 20;

/// Most dispatches of a [`Plan`](crate::Plan). A problem that a device's limits cut into
/// more parts is refused: of one step of a model none comes near, and every dispatch
/// takes memory of the host and a bind group.
pub const MAX_DISPATCHES: usize = 1 << 16;

impl Chunk {
    /// Score pairs of the chunk.
    pub fn pairs(&self, problem: &Problem) -> u64 {
        [self.batches.len(), self.heads.len(), self.rows.len()]
            .iter()
            .fold(problem.dims.kv_len as u64, |n, &m| {
                n.saturating_mul(m as u64)
            })
    }

    /// The kv heads that its query heads read.
    pub fn kv_heads(&self, problem: &Problem) -> Range<usize> {
        let group = problem.dims.group();
        self.heads.start / group..self.heads.end.div_ceil(group)
    }

    /// Two halves along the outermost axis that can be cut.
    fn halves(&self, problem: &Problem) -> Option<[Chunk; 2]> {
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
        let group = problem.dims.group();
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
    problem: &Problem,
    kernel: Kernel,
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
        let keys = 0..problem.dims.kv_len;
        [chunk.batches.clone(), chunk.kv_heads(problem), keys]
    };
    let output_axes = match problem.operation.region() {
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
    let has_keys = problem.dims.kv_len > 0;
    let mut all = Vec::new();
    if let Some(received) = problem.received.as_ref().filter(|_| has_keys) {
        let [batches, heads, _] = output_axes.clone();
        let keys = 0..problem.dims.kv_len;
        all.push(("received", slab(received, [batches, heads, keys], caps)));
    }
    if chunk.rows.is_empty() {
        return all;
    }
    all.push(("query", slab(&problem.query, by_row(), caps)));
    if has_keys {
        all.push(("key", slab(&problem.key, by_key(), caps)));
    }
    if let Some(norms) = problem.norms.as_ref().filter(|_| has_keys) {
        let [batches, kv_heads, keys] = by_key();
        let heads = match problem.norms_by_query() {
            true => chunk.heads.clone(),
            false => kv_heads,
        };
        all.push(("norms", slab(norms, [batches, heads, keys], caps)));
    }
    if problem.operation.reads_values() && problem.dims.kv_len > 0 {
        all.push(("value", slab(&problem.value, by_key(), caps)));
    }
    all.push(("output", slab(&problem.output, output_axes, caps)));
    if problem.dims.kv_len > 0 {
        if let Some((bias, _)) = &problem.bias {
            all.push(("bias", slab(bias, by_row(), caps)));
        }
        if let Some(mask) = &problem.mask {
            all.push(("mask", slab(&mask.geometry, by_row(), caps)));
        }
    }
    if let Some((stats, _)) = &problem.stats {
        all.push(("stats", slab(stats, by_row(), caps)));
    }
    if problem.operation.holds_scores(kernel) {
        let end = chunk.pairs(problem).saturating_mul(4);
        let whole = Slab {
            start: 0,
            end,
            base: 0,
        };
        all.push(("scores", whole));
    }
    all
}

/// Workgroups of the chunk's largest dispatch.
pub(crate) fn workgroups(
    problem: &Problem,
    kernel: Kernel,
    chunk: &Chunk,
    caps: &DeviceCaps,
) -> u64 {
    let tiling = Tiling::of(kernel, problem.dims.v_dim, caps);
    let heads = chunk.batches.len() as u64 * chunk.heads.len() as u64;
    let rows = chunk.rows.len() as u64;
    let tiles = Tiles {
        rows,
        row_tiles: rows.div_ceil(u64::from(tiling.rows)),
        key_tiles: (problem.dims.kv_len as u64).div_ceil(u64::from(tiling.keys)),
        column_tiles: (problem.dims.v_dim as u64).div_ceil(u64::from(tiling.columns)),
    };
    let most = problem.operation.workgroups(&tiles, kernel);
    most.saturating_mul(heads)
}

/// Why a chunk does not fit, if it does not.
fn misfit(problem: &Problem, kernel: Kernel, chunk: &Chunk, caps: &DeviceCaps) -> Vec<Error> {
    let mut reasons = Vec::new();
    let binding = caps.max_storage_buffer_binding_size;
    for (operand, slab) in slabs(problem, kernel, chunk, caps) {
        if slab.end - slab.start > binding {
            reasons.push(Error::Limit {
                what: format!("{operand}: one (batch, kv head) slab in bytes"),
                needed: slab.end - slab.start,
                limit_name: "max_storage_buffer_binding_size",
                limit: binding,
            });
        }
        // Shaders count elements in u32; the smallest one is a byte of a mask.
        if slab.end - slab.start > u64::from(u32::MAX) {
            reasons.push(Error::Limit {
                what: format!("{operand}: one (batch, kv head) slab in bytes"),
                needed: slab.end - slab.start,
                limit_name: "32-bit addresses",
                limit: u64::from(u32::MAX),
            });
        }
    }
    if problem.operation.holds_scores(kernel) {
        let tile = u64::from(tile::ROWS) * problem.dims.kv_len as u64 * 4;
        let budget = STAGED_WORKSPACE.max(tile).min(binding);
        let needed = chunk.pairs(problem).saturating_mul(4);
        if needed > budget {
            reasons.push(Error::Limit {
                what: "scores of one tile of rows in bytes".to_owned(),
                needed,
                limit_name: "max_storage_buffer_binding_size",
                limit: budget,
            });
        }
    }
    if let Some(most) = problem
        .operation
        .most_rows()
        .filter(|&most| chunk.rows.len() > most)
    {
        reasons.push(Error::Limit {
            what: "rows that a key's mass is summed over at a time".to_owned(),
            needed: chunk.rows.len() as u64,
            limit_name: "rows of a pass",
            limit: most as u64,
        });
    }
    let most = u64::from(caps.max_compute_workgroups_per_dimension);
    // Half of u32: a folded grid has some idle workgroups, and they are numbered too.
    let limit = most.saturating_mul(most).min(u64::from(u32::MAX / 2));
    let needed = workgroups(problem, kernel, chunk, caps);
    if needed > limit {
        reasons.push(Error::Limit {
            what: "workgroups of one tile of rows".to_owned(),
            needed,
            limit_name: "max_compute_workgroups_per_dimension, squared",
            limit,
        });
    }
    reasons
}

/// Chunks that fit, or every reason why not even the smallest one does.
pub(crate) fn split(
    problem: &Problem,
    kernel: Kernel,
    caps: &DeviceCaps,
) -> Result<Vec<Chunk>, Vec<Error>> {
    let dims = &problem.dims;
    let whole = match problem.operation.region() {
        None => Chunk {
            batches: 0..dims.batch,
            heads: 0..dims.q_heads,
            rows: 0..dims.q_len,
        },
        Some(region) => Chunk {
            batches: region.batches.clone(),
            heads: region.heads.clone(),
            rows: region.rows.clone(),
        },
    };
    let empty = |chunk: &Chunk| {
        let no_rows = chunk.rows.is_empty() && !problem.operation.writes_without_rows(problem);
        chunk.batches.is_empty() || chunk.heads.is_empty() || no_rows
    };
    if empty(&whole) || problem.operation.is_empty(problem) {
        return Ok(Vec::new());
    }
    let most_chunks = MAX_DISPATCHES.saturating_sub(gather_dispatches(problem))
        / problem.operation.dispatches_of_chunk(kernel);
    let mut fitting = Vec::new();
    let mut pending = vec![whole];
    while let Some(chunk) = pending.pop() {
        let reasons = misfit(problem, kernel, &chunk, caps);
        if reasons.is_empty() {
            if fitting.len() == most_chunks {
                return Err(vec![too_many(&chunk)]);
            }
            fitting.push(chunk);
            continue;
        }
        match chunk.halves(problem) {
            Some([first, second]) => {
                pending.push(second);
                pending.push(first);
            }
            None => return Err(reasons),
        }
    }
    Ok(fitting)
}

/// Dispatches that gather lists: one a list in a buffer, one for all of the host's.
fn gather_dispatches(problem: &Problem) -> usize {
    let is_host = |(_, source): &&(_, ListSource)| matches!(source, ListSource::Host(_));
    let host = problem.lists.iter().filter(is_host).count();
    match problem.lists.len() - host {
        0 => 0,
        buffers => buffers + host.min(1),
    }
}

fn too_many(chunk: &Chunk) -> Error {
    let parts = [
        (&chunk.batches, "batch entries"),
        (&chunk.heads, "heads"),
        (&chunk.rows, "rows"),
    ]
    .map(|(range, axis)| format!("{} {axis}", range.len()));
    Error::value(
        "plan",
        format!("at most {MAX_DISPATCHES} dispatches (MAX_DISPATCHES)"),
        format!(
            "more, as the device's limits cut the problem into parts of {}",
            parts.join(", ")
        ),
    )
}
