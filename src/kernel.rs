//! The registry of shaders: which modules each root needs, which buffers it
//! binds and how. Bind group layouts and the WGSL binding declarations are both
//! made from it; tests compare it with what naga reflects.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::host::DType;
use crate::params::{lane_tile, rules};

/// A family of kernels that computes the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// One kernel, memory linear in the sequence length: tiles in workgroup
    /// memory, a micro-tile of scores and outputs a lane.
    Tiled,
    /// One kernel, memory linear in the sequence length, for software adapters:
    /// keys and values are loaded once a subgroup and spread by broadcasts.
    /// Needs subgroups of exactly 4 or 8 lanes.
    LaneBroadcast,
    /// Three kernels over materialised scores: what the fused one is checked
    /// against, and what gives the stages of [`crate::Stage`].
    Staged,
}

impl Kernel {
    /// Every family.
    pub const ALL: &[Kernel] = &[Kernel::Tiled, Kernel::LaneBroadcast, Kernel::Staged];

    /// Its name, as the command line takes it.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Tiled => "tiled",
            Kernel::LaneBroadcast => "lane-broadcast",
            Kernel::Staged => "staged",
        }
    }

    /// The shaders that its forward pass dispatches.
    pub(crate) fn shaders(self) -> &'static [Shader] {
        match self {
            Kernel::Tiled => &[Shader::ForwardTiled],
            Kernel::LaneBroadcast => &[Shader::ForwardLanes],
            Kernel::Staged => &[
                Shader::StagedScores,
                Shader::StagedSoftmax,
                Shader::StagedValues,
            ],
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kernel {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Kernel::ALL.iter().find(|kernel| kernel.name() == name);
        found.copied().ok_or_else(|| {
            let names: Vec<_> = Kernel::ALL.iter().map(|kernel| kernel.name()).collect();
            Error::value("kernel", format!("one of {}", names.join(", ")), name)
        })
    }
}

/// A WGSL root in `shaders/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Shader {
    ForwardTiled,
    ForwardLanes,
    StagedScores,
    StagedSoftmax,
    StagedValues,
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
            Slot::Source => "source",
        }
    }

    /// Type of an element in WGSL. The output is atomic because rows of halves
    /// may share a word; chunks of 4 elements are loaded at once.
    pub fn wgsl_element(self, key: Specialization) -> &'static str {
        let is_input = matches!(self, Slot::Query | Slot::Key | Slot::Value);
        match (key.loads, key.kv_dtype) {
            _ if self == Slot::Output => "atomic<u32>",
            (Loads::Chunks, DType::F32) if is_input => "vec4<u32>",
            (Loads::Chunks, _) if is_input => "vec2<u32>",
            (Loads::WideChunks, DType::F32) if is_input => "vec2<u64>",
            (Loads::WideChunks, _) if is_input => "u64",
            _ => "u32",
        }
    }
}

use Access::{Read, Write};

impl Shader {
    /// Every root.
    pub const ALL: [Shader; 6] = [
        Shader::ForwardTiled,
        Shader::ForwardLanes,
        Shader::StagedScores,
        Shader::StagedSoftmax,
        Shader::StagedValues,
        Shader::CopyWords,
    ];

    /// Name of the file in `shaders/`, and of the pipeline.
    pub fn name(self) -> &'static str {
        match self {
            Shader::ForwardTiled => "forward_tiled",
            Shader::ForwardLanes => "forward_lanes",
            Shader::StagedScores => "staged_scores",
            Shader::StagedSoftmax => "staged_softmax",
            Shader::StagedValues => "staged_values",
            Shader::CopyWords => "copy_words",
        }
    }

    /// Storage buffers, in the order of their bindings (1, 2, ...); binding 0
    /// is the uniform.
    pub fn slots(self) -> &'static [(Slot, Access)] {
        match self {
            Shader::ForwardTiled | Shader::ForwardLanes => &[
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
            Shader::StagedScores
            | Shader::StagedSoftmax
            | Shader::StagedValues
            | Shader::CopyWords => true,
            Shader::ForwardTiled | Shader::ForwardLanes => false,
        }
    }

    /// Modules before the root, in order of dependence.
    pub(crate) fn modules(self, key: Specialization) -> Vec<Module> {
        let modules: &[Module] = match self {
            Shader::ForwardTiled => &[
                PARAMS,
                DTYPE,
                SEQUENCE,
                VISIBILITY,
                SCORE,
                SOFTMAX,
                GRID,
                TILE,
                SCORES_TILE,
                VALUES_TILE,
                STORE,
                OUTPUT_TILE,
            ],
            Shader::ForwardLanes => &[
                PARAMS, DTYPE, SEQUENCE, VISIBILITY, SCORE, SOFTMAX, GRID, STORE,
            ],
            Shader::StagedScores => &[PARAMS, DTYPE, SEQUENCE, GRID, TILE, SCORES_TILE],
            Shader::StagedSoftmax => &[PARAMS, DTYPE, SEQUENCE, VISIBILITY, SCORE, SOFTMAX],
            Shader::StagedValues => &[
                PARAMS,
                DTYPE,
                SEQUENCE,
                GRID,
                TILE,
                VALUES_TILE,
                STORE,
                OUTPUT_TILE,
            ],
            Shader::CopyWords => &[],
        };
        let mut modules = modules.to_vec();
        if self == Shader::ForwardLanes {
            let is_f32 = key.kv_dtype == DType::F32;
            modules.extend_from_slice(match (key.loads, is_f32) {
                (Loads::Words, _) => &[CELL, CHUNK_WORDS],
                (Loads::Chunks, true) => &[CELL, CHUNK_F32, CHUNK_LOADS],
                (Loads::Chunks, false) => &[CELL, CHUNK_HALVES, CHUNK_LOADS],
                (Loads::WideChunks, true) => &[CELL_WIDE, CHUNK_WIDE_F32, CHUNK_LOADS],
                (Loads::WideChunks, false) => &[CELL_WIDE, CHUNK_WIDE_HALVES, CHUNK_LOADS],
            });
        }
        modules
    }

    pub(crate) fn root(self) -> Module {
        match self {
            Shader::ForwardTiled => Module {
                name: "forward_tiled.wgsl",
                text: include_str!("../shaders/forward_tiled.wgsl"),
            },
            Shader::ForwardLanes => Module {
                name: "forward_lanes.wgsl",
                text: include_str!("../shaders/forward_lanes.wgsl"),
            },
            Shader::StagedScores => Module {
                name: "staged_scores.wgsl",
                text: include_str!("../shaders/staged_scores.wgsl"),
            },
            Shader::StagedSoftmax => Module {
                name: "staged_softmax.wgsl",
                text: include_str!("../shaders/staged_softmax.wgsl"),
            },
            Shader::StagedValues => Module {
                name: "staged_values.wgsl",
                text: include_str!("../shaders/staged_values.wgsl"),
            },
            Shader::CopyWords => Module {
                name: "copy_words.wgsl",
                text: include_str!("../shaders/copy_words.wgsl"),
            },
        }
    }
}

/// A WGSL file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Module {
    pub name: &'static str,
    pub text: &'static str,
}

macro_rules! module {
    ($constant:ident, $file:literal) => {
        const $constant: Module = Module {
            name: concat!("lib/", $file),
            text: include_str!(concat!("../shaders/lib/", $file)),
        };
    };
}

module!(PARAMS, "params.wgsl");
module!(DTYPE, "dtype.wgsl");
module!(SEQUENCE, "sequence.wgsl");
module!(VISIBILITY, "visibility.wgsl");
module!(SCORE, "score.wgsl");
module!(SOFTMAX, "softmax.wgsl");
module!(GRID, "grid.wgsl");
module!(TILE, "tile.wgsl");
module!(SCORES_TILE, "scores_tile.wgsl");
module!(VALUES_TILE, "values_tile.wgsl");
module!(STORE, "store.wgsl");
module!(OUTPUT_TILE, "output_tile.wgsl");
module!(CELL, "cell.wgsl");
module!(CELL_WIDE, "cell_wide.wgsl");
module!(CHUNK_LOADS, "chunk_loads.wgsl");
module!(CHUNK_F32, "chunk_f32.wgsl");
module!(CHUNK_WIDE_F32, "chunk_wide_f32.wgsl");
module!(CHUNK_WIDE_HALVES, "chunk_wide_halves.wgsl");
module!(CHUNK_HALVES, "chunk_halves.wgsl");
module!(CHUNK_WORDS, "chunk_words.wgsl");

/// What is fixed when a shader is composed; everything else is in the uniform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub struct Specialization {
    /// Storage type of key and value.
    pub kv_dtype: DType,
    /// Every buffer is bound read_write, because an input shares its buffer
    /// with something that is written (wgpu tracks usage per whole buffer).
    pub shared: bool,
    /// Lanes of a subgroup.
    pub lanes: Lanes,
    /// How rows of query, key and value are loaded.
    pub loads: Loads,
    /// The rules that the text knows.
    pub rules: RuleSet,
}

/// The subgroup sizes that lane-broadcast kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Lanes {
    Four,
    Eight,
}

impl Lanes {
    /// Their number.
    pub fn count(self) -> u32 {
        match self {
            Lanes::Four => 4,
            Lanes::Eight => 8,
        }
    }
}

/// How a lane-broadcast kernel loads query, key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Loads {
    /// Element by element, whatever the layout.
    Words,
    /// 4 elements at once: rows are of one type, aligned to 4 elements and
    /// multiples of 4 long.
    Chunks,
    /// The same in 64-bit words, which needs the feature `SHADER_INT64`.
    WideChunks,
}

/// Which rules a shader knows: a driver compiles what is left out in no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum RuleSet {
    /// Those that leave each row an interval of keys; sinks; statistics.
    Intervals,
    /// All.
    All,
}

impl RuleSet {
    /// `RULE_` bits.
    pub fn bits(self) -> u32 {
        match self {
            RuleSet::Intervals => rules::INTERVALS,
            RuleSet::All => u32::MAX,
        }
    }
}

impl Specialization {
    /// Nothing that needs a condition to hold.
    pub const GENERAL: Specialization = Specialization {
        kv_dtype: DType::F32,
        shared: false,
        lanes: Lanes::Eight,
        loads: Loads::Words,
        rules: RuleSet::All,
    };

    /// Names that `#for` may count to, which are constants of the text too.
    pub(crate) fn counts(self) -> [(&'static str, u32); 3] {
        let dims = if self.loads == Loads::Words { 1 } else { 4 };
        [
            ("SUBGROUP", self.lanes.count()),
            ("GROUPS", lane_tile::GROUPS),
            ("DIMS", dims),
        ]
    }
}

impl Specialization {
    /// How a shader declares a buffer: `read` or `read_write`.
    pub fn mode(self, access: Access) -> &'static str {
        match access {
            Access::Read if !self.shared => "read",
            _ => "read_write",
        }
    }

    /// Name of the composed shader's file, without an extension.
    pub fn file_stem(self, shader: Shader) -> String {
        let mut stem = shader.name().to_owned();
        if shader.reads_keys_or_values() {
            stem += match self.kv_dtype {
                DType::F32 => ".f32",
                DType::F16 => ".f16",
                DType::BF16 => ".bf16",
            };
        }
        if self.shared {
            stem += ".shared";
        }
        stem
    }
}

/// Every pipeline that a plan can ask for.
#[doc(hidden)]
pub fn all_pipelines() -> Vec<(Shader, Specialization)> {
    let mut all = Vec::new();
    for shader in Shader::ALL {
        for kv_dtype in [DType::F32, DType::F16, DType::BF16] {
            for shared in [false, true] {
                for lanes in [Lanes::Four, Lanes::Eight] {
                    for loads in [Loads::Words, Loads::Chunks, Loads::WideChunks] {
                        for rules in [RuleSet::Intervals, RuleSet::All] {
                            let key = Specialization {
                                kv_dtype,
                                shared,
                                lanes,
                                loads,
                                rules,
                            };
                            let key = canonical(shader, key);
                            if !all.contains(&(shader, key)) {
                                all.push((shader, key));
                            }
                        }
                    }
                }
            }
        }
    }
    all
}

/// Forgets what the shader's text does not depend on, so that pipelines are shared.
pub(crate) fn canonical(shader: Shader, key: Specialization) -> Specialization {
    let general = Specialization::GENERAL;
    match shader {
        Shader::ForwardLanes => key,
        _ => Specialization {
            kv_dtype: match shader.reads_keys_or_values() {
                true => key.kv_dtype,
                false => general.kv_dtype,
            },
            shared: key.shared,
            ..general
        },
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
