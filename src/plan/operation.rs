//! What the storeys below ask of an operation.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::plan::caps::DeviceCaps;
use crate::plan::choose::choose;
use crate::plan::dispatch::Pass;
use crate::plan::kernel::Kernel;
use crate::plan::operands::Operands;
use crate::plan::passes::Part;
use crate::plan::task::{Facts, Task};
use crate::plan::tiling::Tiles;
use crate::rules::dims::Dims;

/// An operation over the score matrix: what it computes, with the numbers that choose it.
/// Each is a folder or file of `ops`.
pub(crate) trait Operation: fmt::Debug + Send + Sync {
    /// What planning has to know of it.
    fn facts(&self) -> Facts;

    /// Checks the operands that it has of its own; the shape of its output.
    fn output_shape(&self, operands: &Operands<'_>, dims: &Dims) -> Result<[usize; 4]>;

    /// The dispatches of one chunk.
    fn dispatches(&self, part: &Part<'_>) -> Vec<Pass>;

    /// Most dispatches of one chunk.
    fn dispatches_of_chunk(&self, _kernel: Kernel) -> usize {
        1
    }

    /// Workgroups of the largest dispatch of a chunk, of one head of it.
    fn workgroups(&self, tiles: &Tiles, kernel: Kernel) -> u64;

    /// Floating-point operations of so many rows.
    fn flops(&self, dims: &Dims, rows: f64) -> f64;

    /// Whether there is nothing to compute although there are rows.
    fn is_empty(&self, task: &Task) -> bool {
        task.dims.kv_len == 0
    }

    /// Whether the keys receive something even from no row.
    fn writes_without_rows(&self, _task: &Task) -> bool {
        false
    }

    /// The kernel family, and why it: the caller's, or the planner's choice.
    fn choose(
        &self,
        task: &Task,
        caps: &DeviceCaps,
        forced: Option<Kernel>,
    ) -> Result<(Kernel, String)> {
        if let Some(kernel) = forced {
            return Ok((kernel, "forced by the caller".to_owned()));
        }
        let (kernel, why) = choose(task, caps);
        Ok((kernel, format!("as for a forward pass; {why}")))
    }

    /// An error about operands by the names that the caller knows.
    fn in_its_words(&self, error: Error) -> Error {
        error
    }

    /// The problem in a line.
    fn describe(&self, task: &Task, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        task.describe_sizes(f)
    }
}

/// The operation of a problem.
#[derive(Debug, Clone)]
pub(crate) struct OperationRef(pub Arc<dyn Operation>);

impl Deref for OperationRef {
    type Target = dyn Operation;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl PartialEq for OperationRef {
    /// Those are equal whose names and numbers are.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || format!("{self:?}") == format!("{other:?}")
    }
}
