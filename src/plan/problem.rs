//! A problem: validated numbers, no buffers.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::plan::call::Call;
use crate::plan::operands::Operands;
use crate::plan::operation::{Operation, OperationRef};
use crate::plan::task::Task;
use crate::plan::tuned::ProblemClass;
use crate::rules::dims::Dims;
use crate::rules::options::Options;
use crate::view::lists::ListKind;

/// A validated attention call: sizes, options, strides, storage types; no
/// buffers. Made from [`Operands`], turned into a [`crate::Plan`].
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    pub(crate) task: Task,
    pub(crate) operation: OperationRef,
}

impl Problem {
    pub(crate) fn new(
        operands: &Operands<'_>,
        options: &Options,
        operation: Arc<dyn Operation>,
    ) -> Result<Problem> {
        let operation = OperationRef(operation);
        let call = Call::new(operands, options, &*operation)?;
        let lists = ListKind::ALL.into_iter().zip(call.lists);
        let task = Task {
            facts: operation.facts(),
            dims: call.dims,
            options: *options,
            query: call.query.0,
            query_dtype: call.query.1,
            key: call.key.0,
            value: call.value.0,
            kv_dtype: call.key.1,
            output: call.output.0,
            output_dtype: call.output.1,
            bias: call.bias,
            mask: call.mask,
            stats: call.stats,
            norms: call.norms,
            received: call.received,
            lists: lists
                .filter_map(|(kind, list)| Some((kind, list?.to_owned())))
                .collect(),
            shared: call.shared,
        };
        Ok(Problem { task, operation })
    }

    /// The sizes.
    pub fn dims(&self) -> Dims {
        self.task.dims
    }

    /// The options.
    pub fn options(&self) -> Options {
        self.task.options
    }

    /// Whether an input lies in a buffer that is also written, so that every
    /// buffer has to be bound read_write.
    pub fn shares_buffers(&self) -> bool {
        self.task.shared
    }

    /// Floating-point operations by the usual count, 4 B Hq Nq Nk D with
    /// (Dqk + Dv) / 2 for D, masks not considered; of a projection 2 B N in out; of chosen pairs their
    /// scores alone.
    pub fn flops(&self) -> f64 {
        let rows = match &self.task.facts.region {
            Some(region) => region.lens().iter().map(|&n| n as f64).product(),
            None => self.task.dims.rows() as f64,
        };
        self.operation.flops(&self.task.dims, rows)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operation.describe(&self.task, f)
    }
}

impl ProblemClass {
    /// The class of a problem.
    pub fn of(problem: &Problem) -> Self {
        ProblemClass::of_task(&problem.task)
    }
}
