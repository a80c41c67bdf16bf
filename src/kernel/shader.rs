//! The registry of shaders: which modules each root needs, which buffers it
//! binds and how. Bind group layouts and the WGSL binding declarations are both
//! made from it; tests compare it with what naga reflects.

use crate::kernel::module::Module;
use crate::kernel::specialization::Specialization;
use crate::view::dtype::DType;

/// A WGSL root in `shaders/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Shader {
    ForwardTiled,
    ForwardTiledSubgroup,
    ForwardLanes,
    StagedScores,
    StagedSoftmax,
    StagedValues,
    ProjectTiled,
    ProjectLanes,
    InspectTiled,
    InspectLanes,
    InspectRows,
    InspectKeys,
    RowNorms,
    CopyWords,
}

/// A buffer that a shader binds, by its name in the shader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Slot {
    Query,
    Key,
    Value,
    Output,
    Stats,
    Bias,
    Mask,
    Aux,
    Scores,
    Norms,
    Received,
    /// The list that `copy_words` gathers.
    Source,
}

/// What a shader does with a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Access {
    Read,
    Write,
}

impl Slot {
    /// Name in WGSL.
    pub fn name(self) -> &'static str {
        match self {
            Slot::Query => "query",
            Slot::Key => "key",
            Slot::Value => "value",
            Slot::Output => "output",
            Slot::Stats => "stats",
            Slot::Bias => "bias",
            Slot::Mask => "mask_words",
            Slot::Aux => "aux",
            Slot::Scores => "scores",
            Slot::Norms => "norms",
            Slot::Received => "received",
            Slot::Source => "source",
        }
    }
}

/// What is known of a root: its row in [`rows`](crate::kernel::rows).
pub(crate) struct ShaderRow {
    /// The root that the row is of.
    pub shader: Shader,
    /// Name of its file in `shaders/`, and of the pipeline.
    pub name: &'static str,
    /// The file with its entry point.
    pub root: Module,
    /// The files before it, in order of dependence.
    pub modules: fn(Specialization) -> Vec<Module>,
    /// Storage buffers, in the order of their bindings (1, 2, ...); binding 0 is the
    /// uniform.
    pub slots: &'static [(Slot, Access)],
    /// Invocations of a workgroup.
    pub workgroup: Workgroup,
    /// What its text depends on, besides the storage types of what it binds and how it
    /// binds them.
    pub axes: Axes,
    /// Whether its text uses subgroups.
    pub subgroups: bool,
    /// The texts whose proof was read.
    pub proof: Option<Proof>,
}

/// Invocations of a workgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workgroup {
    /// So many.
    Of(u32),
    /// A subgroup, whose lanes spread what they load.
    Subgroup,
}

/// Which parts of a [`Specialization`] a text depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Axes {
    /// How it may load rows of query, key and value.
    pub loads: LoadsAxis,
    /// The rules that it knows; all where it does not.
    pub rules: bool,
    /// Runs of value columns.
    pub column_runs: bool,
    /// For tests: counts of tiles in the place of row states.
    pub count_tiles: bool,
}

impl Axes {
    /// A text for loads of words that knows all rules.
    pub const NONE: Axes = Axes {
        loads: LoadsAxis::Words,
        rules: false,
        column_runs: false,
        count_tiles: false,
    };
}

/// How a text may load rows of query, key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadsAxis {
    /// By words alone: the staged kernels are what others are checked against.
    Words,
    /// By words, or chunks in which queries and keys of one storage type come in pairs.
    Pairs,
    /// By words, chunks, or chunks of 64-bit words; the query has its own storage type.
    Chunks,
}

/// The comment in a root that proves of its texts that every index is in range, every loop
/// ends and no divisor is 0, whatever the buffers hold. Such a shader runs without wgpu's
/// runtime checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proof {
    /// A hash of all texts of the root, when the proof was last read beside them. A test
    /// compares it: whoever changes the root or one of its modules reads the proof again.
    pub texts: u64,
}

/// The code of a storage type in the shaders (`DTYPE_` constants).
pub(crate) fn dtype_code(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
    }
}
