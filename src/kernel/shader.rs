//! The registry of shaders: which modules each root needs, which buffers it
//! binds and how. Bind group layouts and the WGSL binding declarations are both
//! made from it; tests compare it with what naga reflects.

use crate::kernel::specialization::{Loads, Specialization};
use crate::kernel::uniform::{LANES, tile};
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

    /// Type of an element in WGSL. The output is atomic because rows of halves
    /// may share a word; chunks of 4 elements are loaded at once, but by the tiled
    /// kernels only pairs of queries and keys.
    pub fn wgsl_element(self, shader: Shader, key: Specialization) -> &'static str {
        let dtype = match self {
            Slot::Output => return "atomic<u32>",
            Slot::Query => key.query_dtype,
            Slot::Key | Slot::Value => key.kv_dtype,
            _ => return "u32",
        };
        let is_pair = shader.loads_pairs() && self != Slot::Value;
        match (key.loads, dtype) {
            (Loads::Words, _) => "u32",
            (Loads::Chunks, DType::F32) if is_pair => "vec2<u32>",
            (Loads::Chunks, _) if is_pair => "u32",
            (Loads::Chunks, DType::F32) => "vec4<u32>",
            (Loads::Chunks, _) => "vec2<u32>",
            (Loads::WideChunks, DType::F32) => "vec2<u64>",
            (Loads::WideChunks, _) => "u64",
        }
    }
}

use Access::{Read, Write};

impl Shader {
    /// Every root.
    pub const ALL: [Shader; 14] = [
        Shader::ForwardTiled,
        Shader::ForwardTiledSubgroup,
        Shader::ForwardLanes,
        Shader::StagedScores,
        Shader::StagedSoftmax,
        Shader::StagedValues,
        Shader::ProjectTiled,
        Shader::ProjectLanes,
        Shader::InspectTiled,
        Shader::InspectLanes,
        Shader::InspectRows,
        Shader::InspectKeys,
        Shader::RowNorms,
        Shader::CopyWords,
    ];

    /// Name of the file in `shaders/`, and of the pipeline.
    pub fn name(self) -> &'static str {
        match self {
            Shader::ForwardTiled => "forward_tiled",
            Shader::ForwardTiledSubgroup => "forward_tiled_subgroup",
            Shader::ForwardLanes => "forward_lanes",
            Shader::StagedScores => "staged_scores",
            Shader::StagedSoftmax => "staged_softmax",
            Shader::StagedValues => "staged_values",
            Shader::ProjectTiled => "project_tiled",
            Shader::ProjectLanes => "project_lanes",
            Shader::InspectTiled => "inspect_tiled",
            Shader::InspectLanes => "inspect_lanes",
            Shader::InspectRows => "inspect_rows",
            Shader::InspectKeys => "inspect_keys",
            Shader::RowNorms => "row_norms",
            Shader::CopyWords => "copy_words",
        }
    }

    /// Storage buffers, in the order of their bindings (1, 2, ...); binding 0
    /// is the uniform.
    pub fn slots(self) -> &'static [(Slot, Access)] {
        match self {
            Shader::ForwardTiled | Shader::ForwardTiledSubgroup | Shader::ForwardLanes => &[
                (Slot::Query, Read),
                (Slot::Key, Read),
                (Slot::Value, Read),
                (Slot::Output, Write),
                (Slot::Stats, Write),
                (Slot::Bias, Read),
                (Slot::Mask, Read),
                (Slot::Aux, Read),
            ],
            Shader::StagedScores => &[
                (Slot::Query, Read),
                (Slot::Key, Read),
                (Slot::Scores, Write),
                (Slot::Aux, Read),
            ],
            Shader::StagedSoftmax => &[
                (Slot::Scores, Write),
                (Slot::Stats, Write),
                (Slot::Bias, Read),
                (Slot::Mask, Read),
                (Slot::Aux, Read),
            ],
            Shader::StagedValues => &[
                (Slot::Scores, Read),
                (Slot::Value, Read),
                (Slot::Output, Write),
                (Slot::Aux, Read),
            ],
            Shader::ProjectTiled | Shader::ProjectLanes => &[
                (Slot::Query, Read),
                (Slot::Key, Read),
                (Slot::Output, Write),
                (Slot::Bias, Read),
            ],
            Shader::InspectTiled | Shader::InspectLanes => &[
                (Slot::Query, Read),
                (Slot::Key, Read),
                (Slot::Stats, Read),
                (Slot::Bias, Read),
                (Slot::Mask, Read),
                (Slot::Aux, Read),
                (Slot::Norms, Read),
                (Slot::Output, Write),
            ],
            Shader::InspectRows => &[
                (Slot::Scores, Write),
                (Slot::Stats, Read),
                (Slot::Bias, Read),
                (Slot::Mask, Read),
                (Slot::Aux, Read),
                (Slot::Norms, Read),
                (Slot::Output, Write),
            ],
            Shader::InspectKeys => &[(Slot::Scores, Read), (Slot::Received, Write)],
            Shader::RowNorms => &[
                (Slot::Query, Read),
                (Slot::Key, Read),
                (Slot::Output, Write),
            ],
            Shader::CopyWords => &[(Slot::Source, Read), (Slot::Aux, Write)],
        }
    }

    /// Whether the text depends on the storage type of key and value.
    pub fn reads_keys_or_values(self) -> bool {
        self.slots()
            .iter()
            .any(|(slot, _)| matches!(slot, Slot::Key | Slot::Value))
    }

    /// Whether a comment in its root proves that every index is in range, every
    /// loop ends and no divisor is 0, whatever the buffers hold. Such a shader
    /// runs without wgpu's runtime checks. Whoever changes an index, a loop or a
    /// division of the root or its modules checks the proof or removes it here.
    pub fn is_proven(self) -> bool {
        match self {
            Shader::ForwardTiled
            | Shader::ForwardTiledSubgroup
            | Shader::StagedScores
            | Shader::StagedSoftmax
            | Shader::StagedValues
            | Shader::ProjectTiled
            | Shader::ProjectLanes
            | Shader::InspectTiled
            | Shader::InspectLanes
            | Shader::CopyWords => true,
            Shader::ForwardLanes | Shader::InspectRows | Shader::InspectKeys | Shader::RowNorms => {
                false
            }
        }
    }

    /// Invocations of a workgroup.
    pub fn lanes(self, key: Specialization) -> u32 {
        match self {
            Shader::ForwardTiled
            | Shader::ForwardTiledSubgroup
            | Shader::StagedScores
            | Shader::StagedValues
            | Shader::ProjectTiled
            | Shader::InspectTiled => tile::LANES,
            Shader::ForwardLanes | Shader::ProjectLanes | Shader::InspectLanes => key.lanes.count(),
            Shader::StagedSoftmax
            | Shader::InspectRows
            | Shader::InspectKeys
            | Shader::RowNorms
            | Shader::CopyWords => LANES,
        }
    }

    /// Whether it is the forward pass in tiles.
    pub fn is_tiled(self) -> bool {
        matches!(self, Shader::ForwardTiled | Shader::ForwardTiledSubgroup)
    }

    /// Whether queries and keys are loaded in pairs where they are loaded wide.
    pub fn loads_pairs(self) -> bool {
        self.is_tiled() || matches!(self, Shader::ProjectTiled | Shader::InspectTiled)
    }

    /// Whether a workgroup is a subgroup that spreads what its lanes load.
    pub fn broadcasts(self) -> bool {
        matches!(
            self,
            Shader::ForwardLanes | Shader::ProjectLanes | Shader::InspectLanes
        )
    }

    /// Whether the text uses subgroups.
    pub fn needs_subgroups(self) -> bool {
        self == Shader::ForwardTiledSubgroup || self.broadcasts()
    }
}

/// The code of a storage type in the shaders (`DTYPE_` constants).
pub(crate) fn dtype_code(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
    }
}
