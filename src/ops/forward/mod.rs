//! The forward pass: O = softmax(scale Q K^T + ...) V, and statistics where the operands
//! name them.

pub mod stage;

use std::sync::{Arc, LazyLock};

use crate::error::{Error, Result};
use crate::ops::checks::refuse_inspection;
use crate::plan::caps::DeviceCaps;
use crate::plan::choose::choose;
use crate::plan::dispatch::Pass;
use crate::plan::kernel::Kernel;
use crate::plan::operands::Operands;
use crate::plan::operation::{Operation, OperationRef};
use crate::plan::passes::Part;
use crate::plan::plan::{Plan, PlanOptions};
use crate::plan::problem::Problem;
use crate::plan::task::{Facts, Scores, Task};
use crate::plan::tiling::Tiles;
use crate::record::attention::Attention;
use crate::rules::dims::Dims;
use crate::rules::options::{Alignment, Options};
use crate::view::dtype::DType;
use crate::view::extent::{bytes_needed, contiguous};
use crate::view::geometry::Geometry;

#[derive(Debug)]
struct Forward;

/// One for all problems, so that none allocates its own.
static OPERATION: LazyLock<Arc<dyn Operation>> = LazyLock::new(|| Arc::new(Forward));

impl Operation for Forward {
    fn facts(&self) -> Facts {
        Facts {
            scores: Scores::OfFamily,
            reads_values: true,
            is_forward: true,
            ..Facts::of(|kernel| kernel.shaders().to_vec())
        }
    }

    fn output_shape(&self, operands: &Operands<'_>, dims: &Dims) -> Result<[usize; 4]> {
        refuse_inspection(operands)?;
        Ok(dims.output_shape())
    }

    fn dispatches(&self, part: &Part<'_>) -> Vec<Pass> {
        (part.kernel.row().dispatches)(part)
    }

    fn dispatches_of_chunk(&self, kernel: Kernel) -> usize {
        kernel.shaders().len()
    }

    fn workgroups(&self, tiles: &Tiles, kernel: Kernel) -> u64 {
        (kernel.row().workgroups)(tiles)
    }

    fn flops(&self, dims: &Dims, rows: f64) -> f64 {
        2.0 * (rows * dims.kv_len as f64) * (dims.qk_dim + dims.v_dim) as f64
    }

    /// Without keys an output of 0 is written.
    fn is_empty(&self, _task: &Task) -> bool {
        false
    }

    fn choose(
        &self,
        task: &Task,
        caps: &DeviceCaps,
        forced: Option<Kernel>,
    ) -> Result<(Kernel, String)> {
        Ok(match forced {
            Some(kernel) => (kernel, "forced by the caller".to_owned()),
            None => choose(task, caps),
        })
    }
}

impl Problem {
    /// Validates a forward pass.
    ///
    /// # Errors
    /// An error that names the operand, what was expected and what came:
    /// shapes, storage types, strides, buffer sizes and usages, overlaps, list
    /// lengths and values, options.
    pub fn forward(operands: &Operands<'_>, options: &Options) -> Result<Problem> {
        Problem::new(operands, options, OPERATION.clone())
    }

    /// A forward pass over contiguous tensors in memory order (batch, heads,
    /// sequence, head_dim), each from the start of a buffer of its own: for
    /// planning without buffers. Query, key and value are stored as `dtype`.
    ///
    /// # Errors
    /// [`Error::Shape`] as [`Dims::new`], for sizes without meaning;
    /// [`Error::Layout`] for a tensor beyond what can be addressed;
    /// [`Error::Value`] for an option without meaning, or one that needs a list.
    pub fn contiguous(
        dims: &Dims,
        dtype: DType,
        output: DType,
        options: &Options,
    ) -> Result<Problem> {
        options.validate()?;
        if options.alignment == Alignment::PerSequence {
            let expected = "an alignment that needs no list of offsets";
            return Err(Error::value("alignment", expected, "PerSequence"));
        }
        let kv = |dim| [dims.batch, dims.kv_heads, dims.kv_len, dim];
        let query = [dims.batch, dims.q_heads, dims.q_len, dims.qk_dim];
        let (key, value) = (kv(dims.qk_dim), kv(dims.v_dim));
        let dims = Dims::new(query, key, value)?;
        let geometry = |operand, shape, dtype: DType| {
            let strides = contiguous(shape);
            bytes_needed(operand, &shape, &strides, 0, dtype.size())?;
            Ok(Geometry::new(shape, strides, dtype.size(), 0))
        };
        let task = Task {
            facts: OPERATION.facts(),
            dims,
            options: *options,
            query: geometry("query", query, dtype)?,
            query_dtype: dtype,
            key: geometry("key", key, dtype)?,
            value: geometry("value", value, dtype)?,
            kv_dtype: dtype,
            output: geometry("output", dims.output_shape(), output)?,
            output_dtype: output,
            bias: None,
            mask: None,
            stats: None,
            norms: None,
            received: None,
            lists: Vec::new(),
            shared: false,
        };
        Ok(Problem {
            task,
            operation: OperationRef(OPERATION.clone()),
        })
    }
}

impl Attention {
    /// Validates and plans a forward pass: [`Problem::forward`] and [`Plan::new`]. Asks
    /// nothing of the device, which may be lost by now: preparing the plan tells.
    ///
    /// # Errors
    /// As those two.
    pub fn plan(&self, operands: &Operands<'_>, options: &Options) -> Result<Plan> {
        let problem = Problem::forward(operands, options)?;
        Plan::new(&problem, self.caps(), &PlanOptions::default())
    }
}
