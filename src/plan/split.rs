//! Cuts a problem into chunks whose operands fit the device's bindings and
//! whose grids fit its dispatches.

use crate::error::Error;
use crate::kernel::uniform::tile;
use crate::plan::caps::DeviceCaps;
use crate::plan::chunk::{Chunk, slabs};
use crate::plan::kernel::Kernel;
use crate::plan::operation::Operation;
use crate::plan::task::Task;
use crate::plan::tiling::Tiles;
use crate::view::lists::ListSource;

/// Scores of the staged path that are held at a time, unless one tile of rows
/// needs more.
const STAGED_WORKSPACE: u64 = 64 << 20;

/// Most dispatches of a [`Plan`](crate::Plan). A problem that a device's limits cut into
/// more parts is refused: of one step of a model none comes near, and every dispatch
/// takes memory of the host and a bind group.
pub const MAX_DISPATCHES: usize = 1 << 16;

/// Workgroups of the chunk's largest dispatch.
pub(crate) fn workgroups(
    operation: &dyn Operation,
    task: &Task,
    kernel: Kernel,
    chunk: &Chunk,
    caps: &DeviceCaps,
) -> u64 {
    let tiling = kernel.tiling(task.dims.v_dim, caps);
    let heads = chunk.batches.len() as u64 * chunk.heads.len() as u64;
    let rows = chunk.rows.len() as u64;
    let tiles = Tiles {
        rows,
        row_tiles: rows.div_ceil(u64::from(tiling.rows)),
        key_tiles: (task.dims.kv_len as u64).div_ceil(u64::from(tiling.keys)),
        column_tiles: (task.dims.v_dim as u64).div_ceil(u64::from(tiling.columns)),
    };
    let most = operation.workgroups(&tiles, kernel);
    most.saturating_mul(heads)
}

/// Why a chunk does not fit, if it does not.
fn misfit(
    operation: &dyn Operation,
    task: &Task,
    kernel: Kernel,
    chunk: &Chunk,
    caps: &DeviceCaps,
) -> Vec<Error> {
    let mut reasons = Vec::new();
    let binding = caps.max_storage_buffer_binding_size;
    for (operand, slab) in slabs(task, kernel.holds_scores(task), chunk, caps) {
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
    if kernel.holds_scores(task) {
        let tile = u64::from(tile::ROWS) * task.dims.kv_len as u64 * 4;
        let budget = STAGED_WORKSPACE.max(tile).min(binding);
        let needed = chunk.pairs(task).saturating_mul(4);
        if needed > budget {
            reasons.push(Error::Limit {
                what: "scores of one tile of rows in bytes".to_owned(),
                needed,
                limit_name: "max_storage_buffer_binding_size",
                limit: budget,
            });
        }
    }
    if let Some(most) = task.facts.most_rows.filter(|&most| chunk.rows.len() > most) {
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
    let needed = workgroups(operation, task, kernel, chunk, caps);
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
    operation: &dyn Operation,
    task: &Task,
    kernel: Kernel,
    caps: &DeviceCaps,
) -> Result<Vec<Chunk>, Vec<Error>> {
    let dims = &task.dims;
    let whole = match &task.facts.region {
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
        let no_rows = chunk.rows.is_empty() && !operation.writes_without_rows(task);
        chunk.batches.is_empty() || chunk.heads.is_empty() || no_rows
    };
    if empty(&whole) || operation.is_empty(task) {
        return Ok(Vec::new());
    }
    let most_chunks = MAX_DISPATCHES.saturating_sub(gather_dispatches(task))
        / operation.dispatches_of_chunk(kernel);
    let mut fitting = Vec::new();
    let mut pending = vec![whole];
    while let Some(chunk) = pending.pop() {
        let reasons = misfit(operation, task, kernel, &chunk, caps);
        if reasons.is_empty() {
            if fitting.len() == most_chunks {
                return Err(vec![too_many(&chunk)]);
            }
            fitting.push(chunk);
            continue;
        }
        match chunk.halves(task) {
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
fn gather_dispatches(task: &Task) -> usize {
    let is_host = |(_, source): &&(_, ListSource)| matches!(source, ListSource::Host(_));
    let host = task.lists.iter().filter(is_host).count();
    match task.lists.len() - host {
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
