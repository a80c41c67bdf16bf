//! Whether the loops of a plan are within what a driver allows an invocation.

use crate::error::Error;
use crate::kernel::pipelines::canonical;
use crate::kernel::shader::Shader;
use crate::plan::caps::DeviceCaps;
use crate::plan::kernel::Kernel;
use crate::plan::loop_count::{Loops, NONE, Shape, repeat, store_run};
use crate::plan::task::Task;

/// A bound of the iterations of one invocation of a shader, in a plan of the problem
/// for a family of kernels.
pub(crate) fn loops_of(shader: Shader, task: &Task, kernel: Kernel, caps: &DeviceCaps) -> Loops {
    let shape = Shape {
        task,
        key: canonical(shader, kernel.specialization(task, caps)),
        tiling: kernel.tiling(task.dims.v_dim, caps),
    };
    match shader {
        Shader::ProjectTiled => shape.scores_tile() + repeat(8, store_run()),
        Shader::InspectTiled => shape.scores_tile() + repeat(8, shape.shown() + store_run()),
        Shader::ProjectLanes => {
            let runs = u64::from(shape.tiling.keys / 4);
            repeat(shape.depth_chunks(), NONE) + repeat(runs, repeat(4, store_run()))
        }
        Shader::InspectLanes => {
            let runs = u64::from(shape.tiling.keys / 4);
            let row = shape.shown() + store_run();
            repeat(shape.depth_chunks(), NONE) + repeat(runs, repeat(4, row))
        }
        Shader::InspectRows => shape.inspect_rows(),
        Shader::InspectKeys => {
            let rows = task
                .facts
                .region
                .as_ref()
                .map_or(0, |region| region.rows.len());
            let most = task.facts.most_rows.unwrap_or(rows);
            repeat(rows.min(most) as u64, NONE)
        }
        // One element is one word.
        Shader::RowNorms => repeat(task.dims.qk_dim as u64, NONE) + repeat(1, NONE),
        _ => (kernel.row().loops)(&shape, shader),
    }
}

/// One part in so many of a driver's limit is left free, for what a compiler may add.
const SPARE: u64 = 16;

/// Why the driver would end the loops too early, if it would.
pub(crate) fn check_loops(task: &Task, kernel: Kernel, caps: &DeviceCaps) -> Option<Error> {
    let limit = u64::from(caps.max_loop_iterations?);
    let limit = limit - limit / SPARE;
    let shaders = (task.facts.shaders)(kernel).into_iter();
    let needed = shaders.map(|shader| loops_of(shader, task, kernel, caps).run);
    let needed = needed.max().unwrap_or(0);
    (needed > limit).then(|| Error::Limit {
        what: format!("loop iterations of one invocation of the {kernel:?} kernels"),
        needed,
        limit_name: "15/16 of max_loop_iterations (a limit of Mesa's llvmpipe)",
        limit,
    })
}
