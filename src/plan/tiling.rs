//! How a kernel family cuts its work into workgroups.

use crate::kernel::specialization::Loads;
use crate::plan::caps::DeviceCaps;
use crate::plan::task::Task;
use crate::view::dtype::DType;
use crate::view::geometry::Geometry;

/// What one workgroup covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tiling {
    /// Query rows.
    pub rows: u32,
    /// Keys at a time; outputs of a projection.
    pub keys: u32,
    /// Value columns.
    pub columns: u32,
    /// Invocations.
    pub lanes: u32,
    /// Bytes of workgroup memory; a test counts them from the shaders.
    pub memory: u64,
}

/// How a device can load the problem's rows.
pub(crate) fn loads(task: &Task, caps: &DeviceCaps) -> Loads {
    let fits = |tensor: &Geometry| {
        let strides = &tensor.strides[..3];
        tensor.shape[3].is_multiple_of(4)
            && strides.iter().all(|stride| stride.is_multiple_of(4))
            && tensor.phase.is_multiple_of(4 * tensor.element_size)
    };
    let count = if task.facts.loads_values { 3 } else { 2 };
    let tensors = &[&task.query, &task.key, &task.value][..count];
    let types = [DType::F32, task.kv_dtype];
    match types.contains(&task.query_dtype) && tensors.iter().all(|tensor| fits(tensor)) {
        false => Loads::Words,
        true if caps.shader_int64 => Loads::WideChunks,
        true => Loads::Chunks,
    }
}

/// Into how many tiles a chunk of one head is cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiles {
    /// Query rows.
    pub rows: u64,
    /// Tiles of query rows.
    pub row_tiles: u64,
    /// Tiles of all keys.
    pub key_tiles: u64,
    /// Tiles of value columns.
    pub column_tiles: u64,
}
