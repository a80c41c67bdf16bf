//! What the storeys below ask of an operation.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::plan::caps::DeviceCaps;
use crate::plan::choose::choose;
use crate::plan::dispatch::Pass;
use crate::plan::family::Kernel;
use crate::plan::operands::Operands;
use crate::plan::passes::{Part, STAGE_WEIGHTS};
use crate::plan::problem::Problem;
use crate::rules::dims::Dims;
use crate::rules::region::Region;

/// An operation over the score matrix: what it computes, with the numbers that choose it.
/// Each is a folder or file of `ops`.
pub(crate) trait Operation: fmt::Debug + Send + Sync {
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

    /// The region, where it is not the whole; the output begins at its corner.
    fn region(&self) -> Option<&Region> {
        None
    }

    /// Whether there is nothing to compute although there are rows.
    fn is_empty(&self, problem: &Problem) -> bool {
        problem.dims.kv_len == 0
    }

    /// Most rows of a chunk, where a loop goes over them.
    fn most_rows(&self) -> Option<usize> {
        None
    }

    /// Whether the keys receive something even from no row.
    fn writes_without_rows(&self, _problem: &Problem) -> bool {
        false
    }

    /// Where scores lie between dispatches, if they do.
    fn scores(&self) -> Scores {
        Scores::Nowhere
    }

    /// Whether scores of whole rows are held in the workspace.
    fn holds_scores(&self, _kernel: Kernel) -> bool {
        self.scores() == Scores::Workspace
    }

    /// Whether a dispatch reads rows of the value; some operands only lend their shape.
    fn reads_values(&self) -> bool {
        false
    }

    /// Whether the value's rows have to be loadable as the query's and key's are.
    fn loads_values(&self) -> bool {
        true
    }

    /// Whether statistics are written, and not read.
    fn writes_stats(&self) -> bool {
        true
    }

    /// `params.stage`.
    fn stage(&self) -> u32 {
        STAGE_WEIGHTS
    }

    /// The kernel family, and why it: the caller's, or the planner's choice.
    fn choose(
        &self,
        problem: &Problem,
        caps: &DeviceCaps,
        forced: Option<Kernel>,
    ) -> Result<(Kernel, String)> {
        if let Some(kernel) = forced {
            return Ok((kernel, "forced by the caller".to_owned()));
        }
        let (kernel, why) = choose(problem, caps);
        Ok((kernel, format!("as for a forward pass; {why}")))
    }

    /// An error about operands by the names that the caller knows.
    fn in_its_words(&self, error: Error) -> Error {
        error
    }

    /// The problem in a line.
    fn describe(&self, problem: &Problem, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        problem.describe_sizes(f)
    }

    /// Whether it is a forward pass, which is what measurements speak for.
    fn is_forward(&self) -> bool {
        false
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

/// Where scores lie between the dispatches of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scores {
    /// No dispatch hands them to another.
    Nowhere,
    /// In the workspace, those of a chunk.
    Workspace,
    /// In the output, which they are.
    Output,
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
