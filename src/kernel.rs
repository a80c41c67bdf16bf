//! The registry of shaders: which modules each root needs, which buffers it
//! binds and how. Bind group layouts and the WGSL binding declarations are both
//! made from it; tests compare it with what naga reflects.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::host::DType;
use crate::params::{LANES, lane_tile, rules, tile};

/// A family of kernels that computes the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// One kernel, memory linear in the sequence length: tiles in workgroup
    /// memory, a micro-tile of scores and outputs a lane.
    Tiled,
    /// The same with reductions in subgroups, of any size from 4 up.
    TiledSubgroup,
    /// One kernel, memory linear in the sequence length, for software adapters:
    /// keys and values are loaded once a subgroup and spread by broadcasts.
    /// Needs subgroups of one size: 4, or 8 and more (of which 8 lanes are used).
    LaneBroadcast,
    /// Three kernels over materialised scores: what the fused one is checked
    /// against, and what gives the stages of [`crate::Stage`].
    Staged,
}

impl Kernel {
    /// Every family.
    pub const ALL: &[Kernel] = &[
        Kernel::Tiled,
        Kernel::TiledSubgroup,
        Kernel::LaneBroadcast,
        Kernel::Staged,
    ];

    /// Its name, as the command line takes it.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Tiled => "tiled",
            Kernel::TiledSubgroup => "tiled-subgroup",
            Kernel::LaneBroadcast => "lane-broadcast",
            Kernel::Staged => "staged",
        }
    }

    /// The shaders that its forward pass dispatches.
    pub(crate) fn shaders(self) -> &'static [Shader] {
        match self {
            Kernel::Tiled => &[Shader::ForwardTiled],
            Kernel::TiledSubgroup => &[Shader::ForwardTiledSubgroup],
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
    ForwardTiledSubgroup,
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
    /// may share a word; chunks of 4 elements are loaded at once, but by the tiled
    /// kernels only pairs of queries and keys.
    pub fn wgsl_element(self, shader: Shader, key: Specialization) -> &'static str {
        let dtype = match self {
            Slot::Output => return "atomic<u32>",
            Slot::Query => key.query_dtype,
            Slot::Key | Slot::Value => key.kv_dtype,
            _ => return "u32",
        };
        let is_pair = shader.is_tiled() && self != Slot::Value;
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
    pub const ALL: [Shader; 7] = [
        Shader::ForwardTiled,
        Shader::ForwardTiledSubgroup,
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
            Shader::ForwardTiledSubgroup => "forward_tiled_subgroup",
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
            | Shader::CopyWords => true,
            Shader::ForwardLanes => false,
        }
    }

    /// Invocations of a workgroup.
    pub fn lanes(self, key: Specialization) -> u32 {
        match self {
            Shader::ForwardTiled
            | Shader::ForwardTiledSubgroup
            | Shader::StagedScores
            | Shader::StagedValues => tile::LANES,
            Shader::ForwardLanes => key.lanes.count(),
            Shader::StagedSoftmax | Shader::CopyWords => LANES,
        }
    }

    /// Whether it is the forward pass in tiles.
    pub fn is_tiled(self) -> bool {
        matches!(self, Shader::ForwardTiled | Shader::ForwardTiledSubgroup)
    }

    /// Whether the text uses subgroups.
    pub fn needs_subgroups(self) -> bool {
        matches!(self, Shader::ForwardTiledSubgroup | Shader::ForwardLanes)
    }

    /// Modules before the root, in order of dependence.
    pub(crate) fn modules(self, key: Specialization) -> Vec<Module> {
        let is_f32 = key.kv_dtype == DType::F32;
        let base: &[Module] = &[PARAMS, DTYPE, SEQUENCE];
        let row: &[Module] = &[VISIBILITY, SCORE, SOFTMAX];
        let tile: &[Module] = match key.shared {
            false => &[UNIFORM_READ, GRID, TILE],
            true => &[UNIFORM_SHARED, GRID, TILE],
        };
        let rows: &[Module] = match (key.loads, is_f32) {
            (Loads::Words, _) => &[ROWS_NARROW, SCORES_TILE],
            (_, true) => &[QUAD_F32, ROWS_WIDE, SCORES_TILE],
            (_, false) => &[QUAD_HALF, ROWS_WIDE, SCORES_TILE],
        };
        let values: &[Module] = match key.loads {
            Loads::Words => &[VALUES_NARROW, VALUES_TILE, STORE, OUTPUT_TILE],
            _ => &[VALUES_WIDE, VALUES_TILE, STORE, OUTPUT_TILE],
        };
        match self {
            Shader::ForwardTiled | Shader::ForwardTiledSubgroup => {
                [base, row, tile, rows, values, &[FORWARD_TILE]].concat()
            }
            Shader::ForwardLanes => [base, row, &[GRID, STORE], &chunk_modules(key)].concat(),
            Shader::StagedScores => [base, tile, rows].concat(),
            Shader::StagedSoftmax => [base, row].concat(),
            Shader::StagedValues => [base, tile, values].concat(),
            Shader::CopyWords => Vec::new(),
        }
    }

    pub(crate) fn root(self) -> Module {
        match self {
            Shader::ForwardTiled => Module {
                name: "forward_tiled.wgsl",
                text: include_str!("../shaders/forward_tiled.wgsl"),
            },
            Shader::ForwardTiledSubgroup => Module {
                name: "forward_tiled_subgroup.wgsl",
                text: include_str!("../shaders/forward_tiled_subgroup.wgsl"),
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
module!(UNIFORM_READ, "uniform_read.wgsl");
module!(UNIFORM_SHARED, "uniform_shared.wgsl");
module!(TILE, "tile.wgsl");
module!(QUAD_F32, "quad_f32.wgsl");
module!(QUAD_HALF, "quad_half.wgsl");
module!(ROWS_NARROW, "rows_narrow.wgsl");
module!(ROWS_WIDE, "rows_wide.wgsl");
module!(VALUES_NARROW, "values_narrow.wgsl");
module!(VALUES_WIDE, "values_wide.wgsl");
module!(SCORES_TILE, "scores_tile.wgsl");
module!(VALUES_TILE, "values_tile.wgsl");
module!(STORE, "store.wgsl");
module!(OUTPUT_TILE, "output_tile.wgsl");
module!(FORWARD_TILE, "forward_tile.wgsl");
module!(CELL, "cell.wgsl");
module!(CELL_WIDE, "cell_wide.wgsl");
module!(CHUNK_QUERY_F32, "chunk_query_f32.wgsl");
module!(CHUNK_QUERY_HALVES, "chunk_query_halves.wgsl");
module!(CHUNK_KEYS_F32, "chunk_keys_f32.wgsl");
module!(CHUNK_KEYS_HALVES, "chunk_keys_halves.wgsl");
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
    /// Storage type of the query, where it is loaded in chunks.
    pub query_dtype: DType,
    /// Every buffer is bound read_write, because an input shares its buffer
    /// with something that is written (wgpu tracks usage per whole buffer).
    pub shared: bool,
    /// Lanes of a subgroup.
    pub lanes: Lanes,
    /// How rows of query, key and value are loaded.
    pub loads: Loads,
    /// The rules that the text knows.
    pub rules: RuleSet,
    /// Runs of 32 value columns of a tile: 1, 2 or 4.
    pub column_runs: u32,
    /// For tests: in the place of row states the tiled kernels store how many
    /// tiles of keys they computed for the row, and how many without mask code.
    pub count_tiles: bool,
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

/// How a kernel loads query, key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Loads {
    /// Element by element, whatever the layout.
    Words,
    /// 4 elements at once: rows are aligned to 4 elements and multiples of 4
    /// long, the query is f32 or of the type of key and value.
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
        query_dtype: DType::F32,
        shared: false,
        lanes: Lanes::Eight,
        loads: Loads::Words,
        rules: RuleSet::All,
        column_runs: tile::STAGED_COLUMN_RUNS,
        count_tiles: false,
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
        if shader.is_tiled() {
            stem += &format!(".{}columns", tile::RUN * self.column_runs);
        }
        match self.loads {
            Loads::Words => {}
            Loads::Chunks => stem += ".chunks",
            Loads::WideChunks => stem += ".wide",
        }
        if shader == Shader::ForwardLanes {
            stem += &format!(".{}lanes", self.lanes.count());
        }
        if self.rules == RuleSet::Intervals {
            stem += ".intervals";
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
    let mut list = |key| {
        for shader in Shader::ALL {
            let pipeline = (shader, canonical(shader, key));
            if !all.contains(&pipeline) {
                all.push(pipeline);
            }
        }
    };
    for kv_dtype in [DType::F32, DType::F16, DType::BF16] {
        for shared in [false, true] {
            for loads in [Loads::Words, Loads::Chunks, Loads::WideChunks] {
                let key = Specialization {
                    kv_dtype,
                    query_dtype: kv_dtype,
                    shared,
                    loads,
                    ..Specialization::GENERAL
                };
                for column_runs in tile::COLUMN_RUNS {
                    list(Specialization { column_runs, ..key });
                }
                for lanes in [Lanes::Four, Lanes::Eight] {
                    for rules in [RuleSet::Intervals, RuleSet::All] {
                        for query_dtype in [DType::F32, kv_dtype] {
                            list(Specialization {
                                lanes,
                                rules,
                                query_dtype,
                                ..key
                            });
                        }
                    }
                }
            }
        }
    }
    all
}

/// What a lane-broadcast kernel loads chunks with.
fn chunk_modules(key: Specialization) -> Vec<Module> {
    let is_wide = key.loads == Loads::WideChunks;
    let pick = |first: bool, yes: Module, no: Module| if first { yes } else { no };
    let mut modules = vec![pick(is_wide, CELL_WIDE, CELL)];
    if key.loads == Loads::Words {
        modules.push(CHUNK_WORDS);
        return modules;
    }
    let [query, keys] = [key.query_dtype, key.kv_dtype].map(|dtype| dtype == DType::F32);
    if query || keys {
        modules.push(pick(is_wide, CHUNK_WIDE_F32, CHUNK_F32));
    }
    if !query || !keys {
        modules.push(pick(is_wide, CHUNK_WIDE_HALVES, CHUNK_HALVES));
    }
    modules.push(pick(query, CHUNK_QUERY_F32, CHUNK_QUERY_HALVES));
    modules.push(pick(keys, CHUNK_KEYS_F32, CHUNK_KEYS_HALVES));
    modules
}

/// Forgets what the shader's text does not depend on, so that pipelines are
/// shared. The staged kernels load words: they are what others are checked against.
pub(crate) fn canonical(shader: Shader, key: Specialization) -> Specialization {
    let general = Specialization::GENERAL;
    let staged = Specialization {
        kv_dtype: match shader.reads_keys_or_values() {
            true => key.kv_dtype,
            false => general.kv_dtype,
        },
        shared: key.shared,
        ..general
    };
    match shader {
        Shader::ForwardTiled | Shader::ForwardTiledSubgroup => Specialization {
            // These load query and key by one function.
            loads: match key.loads {
                _ if key.query_dtype != key.kv_dtype => Loads::Words,
                Loads::Words => Loads::Words,
                Loads::Chunks | Loads::WideChunks => Loads::Chunks,
            },
            query_dtype: key.kv_dtype,
            column_runs: key.column_runs,
            count_tiles: key.count_tiles,
            ..staged
        },
        Shader::ForwardLanes => Specialization {
            query_dtype: match key.loads {
                Loads::Words => general.query_dtype,
                Loads::Chunks | Loads::WideChunks => key.query_dtype,
            },
            lanes: key.lanes,
            loads: key.loads,
            rules: key.rules,
            ..staged
        },
        _ => staged,
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
