//! How a kernel family cuts its work into workgroups.

use crate::kernel::specialization::{Lanes, Loads, Specialization};
use crate::kernel::uniform::{lane_tile, tile};
use crate::plan::caps::DeviceCaps;
use crate::plan::family::Kernel;
use crate::plan::rule_bits::rule_set;
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

impl Tiling {
    pub fn of(kernel: Kernel, v_dim: usize, caps: &DeviceCaps) -> Tiling {
        match kernel {
            Kernel::Tiled | Kernel::TiledSubgroup | Kernel::Staged => Tiling {
                rows: tile::ROWS,
                keys: tile::KEYS,
                columns: tile::RUN * column_runs(kernel, v_dim),
                lanes: tile::LANES,
                memory: TILE_MEMORY,
            },
            Kernel::LaneBroadcast => {
                let lanes = caps.lanes().unwrap_or(Lanes::Eight).count();
                Tiling {
                    rows: lane_tile::ROWS * lanes,
                    keys: lane_tile::GROUPS * lanes,
                    columns: lane_tile::OUTPUT_SLOTS / lanes,
                    lanes,
                    memory: LANE_MEMORY,
                }
            }
        }
    }
}

/// Workgroup memory of the largest tiled kernel.
pub(crate) const TILE_MEMORY: u64 = 14_720;

/// Workgroup memory of the lane-broadcast kernel.
pub(crate) const LANE_MEMORY: u64 = 16 * lane_tile::OUTPUT_SLOTS as u64;

/// Runs of 32 value columns of a workgroup of the tiled kernels: the fewest that
/// hold all, or the most that there are.
pub(crate) fn column_runs(kernel: Kernel, v_dim: usize) -> u32 {
    let [_, _, most] = tile::COLUMN_RUNS;
    match kernel {
        Kernel::Tiled | Kernel::TiledSubgroup => {
            let holds = |runs: &u32| (runs * tile::RUN) as usize >= v_dim;
            tile::COLUMN_RUNS.into_iter().find(holds).unwrap_or(most)
        }
        Kernel::Staged | Kernel::LaneBroadcast => tile::STAGED_COLUMN_RUNS,
    }
}

/// What the shaders of a family are composed for, each forgetting what it does not need.
pub(crate) fn specialization(task: &Task, kernel: Kernel, caps: &DeviceCaps) -> Specialization {
    Specialization {
        kv_dtype: task.kv_dtype,
        query_dtype: task.query_dtype,
        shared: false,
        lanes: caps.lanes().unwrap_or(Lanes::Eight),
        loads: loads(task, caps),
        rules: rule_set(task),
        column_runs: column_runs(kernel, task.dims.v_dim),
        count_tiles: false,
    }
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
