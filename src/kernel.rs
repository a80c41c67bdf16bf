//! The registry of shaders: which modules each root needs, which buffers it
//! binds and how. Bind group layouts and the WGSL binding declarations are both
//! made from it; tests compare it with what naga reflects.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::host::DType;

/// A family of kernels that computes the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// One kernel, memory linear in the sequence length.
    Tiled,
    /// Three kernels over materialised scores: what the fused one is checked
    /// against, and what gives the stages of [`crate::Stage`].
    Staged,
}

impl Kernel {
    /// Every family.
    pub const ALL: &[Kernel] = &[Kernel::Tiled, Kernel::Staged];

    /// Its name, as the command line takes it.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Tiled => "tiled",
            Kernel::Staged => "staged",
        }
    }

    /// The shaders that its forward pass dispatches.
    pub(crate) fn shaders(self) -> &'static [Shader] {
        match self {
            Kernel::Tiled => &[Shader::ForwardTiled],
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

    /// Type in WGSL. The output is atomic because rows of halves may share a word.
    pub fn wgsl_type(self) -> &'static str {
        match self {
            Slot::Output => "array<atomic<u32>>",
            _ => "array<u32>",
        }
    }
}

use Access::{Read, Write};

impl Shader {
    /// Every root.
    pub const ALL: [Shader; 5] = [
        Shader::ForwardTiled,
        Shader::StagedScores,
        Shader::StagedSoftmax,
        Shader::StagedValues,
        Shader::CopyWords,
    ];

    /// Name of the file in `shaders/`, and of the pipeline.
    pub fn name(self) -> &'static str {
        match self {
            Shader::ForwardTiled => "forward_tiled",
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
            Shader::ForwardTiled => &[
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
            Shader::ForwardTiled => false,
        }
    }

    /// Modules before the root, in order of dependence.
    pub(crate) fn modules(self) -> &'static [Module] {
        match self {
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
        }
    }

    pub(crate) fn root(self) -> Module {
        match self {
            Shader::ForwardTiled => Module {
                name: "forward_tiled.wgsl",
                text: include_str!("../shaders/forward_tiled.wgsl"),
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

/// What is fixed when a shader is composed; everything else is in the uniform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub struct Specialization {
    /// Storage type of key and value.
    pub kv_dtype: DType,
    /// Every buffer is bound read_write, because an input shares its buffer
    /// with something that is written (wgpu tracks usage per whole buffer).
    pub shared: bool,
}

/// Every pipeline that a plan can ask for.
#[doc(hidden)]
pub fn all_pipelines() -> Vec<(Shader, Specialization)> {
    let mut all = Vec::new();
    for shader in Shader::ALL {
        for shared in [false, true] {
            for kv_dtype in [DType::F32, DType::F16, DType::BF16] {
                let key = canonical(shader, Specialization { kv_dtype, shared });
                if !all.contains(&(shader, key)) {
                    all.push((shader, key));
                }
            }
        }
    }
    all
}

/// Forgets what the shader's text does not depend on, so that pipelines are shared.
pub(crate) fn canonical(shader: Shader, mut key: Specialization) -> Specialization {
    if !shader.reads_keys_or_values() {
        key.kv_dtype = DType::F32;
    }
    key
}

/// The code of a storage type in the shaders (`DTYPE_` constants).
pub(crate) fn dtype_code(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
    }
}
