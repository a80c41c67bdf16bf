//! A task: what an operation computes over which operands, in numbers.

use std::fmt;

use crate::kernel::shader::Shader;
use crate::plan::kernel::Kernel;
use crate::rules::dims::Dims;
use crate::rules::options::Options;
use crate::rules::region::Region;
use crate::view::dtype::DType;
use crate::view::geometry::{Geometry, MaskGeometry};
use crate::view::lists::{ListKind, ListSource};
use crate::view::tensor::Stats;

/// Sizes, options, strides and storage types of a validated call, and what its operation
/// says of itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Task {
    pub(crate) facts: Facts,
    pub(crate) dims: Dims,
    pub(crate) options: Options,
    pub(crate) query: Geometry,
    pub(crate) query_dtype: DType,
    pub(crate) key: Geometry,
    pub(crate) value: Geometry,
    pub(crate) kv_dtype: DType,
    pub(crate) output: Geometry,
    pub(crate) output_dtype: DType,
    pub(crate) bias: Option<(Geometry, DType)>,
    pub(crate) mask: Option<MaskGeometry>,
    pub(crate) stats: Option<(Geometry, Stats)>,
    pub(crate) norms: Option<Geometry>,
    pub(crate) received: Option<Geometry>,
    pub(crate) lists: Vec<(ListKind, ListSource)>,
    /// An input lies in a buffer that is also written.
    pub(crate) shared: bool,
}

/// What planning has to know of an operation, in numbers.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// The region, where it is not the whole; the output begins at its corner.
    pub region: Option<Region>,
    /// The shaders that it dispatches, the gathering of lists aside.
    pub shaders: fn(Kernel) -> Vec<Shader>,
    /// Where scores lie between dispatches.
    pub scores: Scores,
    /// Whether a dispatch reads rows of the value; else it only lends its shape.
    pub reads_values: bool,
    /// Whether the value's rows have to be loadable as the query's and key's are.
    pub loads_values: bool,
    /// Whether statistics are written, and not read.
    pub writes_stats: bool,
    /// `params.stage`.
    pub stage: u32,
    /// Most rows of a chunk, where a loop goes over them.
    pub most_rows: Option<usize>,
    /// Of a summary of rows, how many of a row's largest weights it holds.
    pub top: usize,
    /// Whether it is a forward pass, which is what measurements speak for.
    pub is_forward: bool,
}

impl PartialEq for Facts {
    /// All numbers; which shaders they are is the operation's, which is compared beside.
    fn eq(&self, other: &Self) -> bool {
        let numbers = |facts: &Facts| {
            (
                facts.scores,
                [facts.reads_values, facts.loads_values, facts.writes_stats],
                [
                    facts.stage as usize,
                    facts.top,
                    facts.most_rows.unwrap_or(0),
                ],
                facts.is_forward,
            )
        };
        self.region == other.region && numbers(self) == numbers(other)
    }
}

impl Facts {
    /// Those of an operation over all rows, in one dispatch that reads query and key.
    pub fn of(shaders: fn(Kernel) -> Vec<Shader>) -> Self {
        Facts {
            region: None,
            shaders,
            scores: Scores::Nowhere,
            reads_values: false,
            loads_values: true,
            writes_stats: true,
            stage: STAGE_WEIGHTS,
            most_rows: None,
            top: 0,
            is_forward: false,
        }
    }
}

/// `params.stage` of the softmax kernel where the value pass follows.
pub(crate) const STAGE_WEIGHTS: u32 = 4;

/// Where scores lie between the dispatches of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scores {
    /// No dispatch hands them to another.
    Nowhere,
    /// In the workspace, those of a chunk.
    Workspace,
    /// The same, where the family holds them.
    OfFamily,
    /// In the output, which they are.
    Output,
}

impl Task {
    /// Whether there is a norm for every query head and not for every kv head.
    pub(crate) fn norms_by_query(&self) -> bool {
        let by = |norms: &Geometry| norms.shape[1] == self.dims.q_heads;
        self.norms.as_ref().is_some_and(by)
    }

    pub(crate) fn describe_sizes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = &self.dims;
        write!(
            f,
            "B {} Hq {} Hkv {} Nq {} Nk {} Dqk {} Dv {}, query {:?}, key and value {:?}, output {:?}",
            d.batch,
            d.q_heads,
            d.kv_heads,
            d.q_len,
            d.kv_len,
            d.qk_dim,
            d.v_dim,
            self.query_dtype,
            self.kv_dtype,
            self.output_dtype
        )
    }

    pub(crate) fn list(&self, kind: ListKind) -> Option<&ListSource> {
        let found = self.lists.iter().find(|(k, _)| *k == kind);
        found.map(|(_, source)| source)
    }

    pub(crate) fn has_device_lists(&self) -> bool {
        let is_buffer = |(_, source): &(_, ListSource)| matches!(source, ListSource::Buffer { .. });
        self.lists.iter().any(is_buffer)
    }
}
