//! The table of shaders: a row for each root in `shaders/`, in the order of [`Shader`].

use crate::kernel::file_lists::*;
use crate::kernel::module::*;
use crate::kernel::shader::Access::{Read, Write};
use crate::kernel::shader::{Access, Axes, LoadsAxis, Proof, Shader, ShaderRow, Slot, Workgroup};
use crate::kernel::specialization::{Loads, Specialization};
use crate::kernel::uniform::{LANES, tile};
use crate::view::dtype::DType;

/// What every forward pass binds: all eight storage buffers that WebGPU promises.
const FORWARD: &[(Slot, Access)] = &[
    (Slot::Query, Read),
    (Slot::Key, Read),
    (Slot::Value, Read),
    (Slot::Output, Write),
    (Slot::Stats, Write),
    (Slot::Bias, Read),
    (Slot::Mask, Read),
    (Slot::Aux, Read),
];

/// What showing pairs binds.
const INSPECT: &[(Slot, Access)] = &[
    (Slot::Query, Read),
    (Slot::Key, Read),
    (Slot::Stats, Read),
    (Slot::Bias, Read),
    (Slot::Mask, Read),
    (Slot::Aux, Read),
    (Slot::Norms, Read),
    (Slot::Output, Write),
];

/// What a projection binds.
const PROJECTION: &[(Slot, Access)] = &[
    (Slot::Query, Read),
    (Slot::Key, Read),
    (Slot::Output, Write),
    (Slot::Bias, Read),
];

pub(crate) static ROWS: [ShaderRow; 14] = [
    ShaderRow {
        shader: Shader::ForwardTiled,
        name: "forward_tiled",
        root: wgsl!("forward_tiled.wgsl"),
        modules: |key| {
            [
                BASE,
                ROW,
                &[STORE_STATS],
                tile(key),
                rows(key),
                values(key),
                &[FORWARD_TILE],
            ]
            .concat()
        },
        slots: FORWARD,
        workgroup: Workgroup::Of(tile::LANES),
        axes: Axes {
            loads: LoadsAxis::Pairs,
            column_runs: true,
            count_tiles: true,
            ..Axes::NONE
        },
        subgroups: false,
        proof: Some(Proof {
            texts: 0x1b79_86d7_3d19_1ab9,
        }),
    },
    ShaderRow {
        shader: Shader::ForwardTiledSubgroup,
        name: "forward_tiled_subgroup",
        root: wgsl!("forward_tiled_subgroup.wgsl"),
        modules: |key| (ROWS[Shader::ForwardTiled as usize].modules)(key),
        slots: FORWARD,
        workgroup: Workgroup::Of(tile::LANES),
        axes: Axes {
            loads: LoadsAxis::Pairs,
            column_runs: true,
            count_tiles: true,
            ..Axes::NONE
        },
        subgroups: true,
        proof: Some(Proof {
            texts: 0xa142_7591_4830_adc1,
        }),
    },
    ShaderRow {
        shader: Shader::ForwardLanes,
        name: "forward_lanes",
        root: wgsl!("forward_lanes.wgsl"),
        modules: |key| {
            let own = [VISIBILITY_BITS, STORE_STATS, GRID, STORE];
            [BASE, ROW, &own, &chunks(key), &[value_chunks(key)]].concat()
        },
        slots: FORWARD,
        workgroup: Workgroup::Subgroup,
        axes: Axes {
            loads: LoadsAxis::Chunks,
            rules: true,
            count_tiles: true,
            ..Axes::NONE
        },
        subgroups: true,
        proof: None,
    },
    ShaderRow {
        shader: Shader::StagedScores,
        name: "staged_scores",
        root: wgsl!("staged_scores.wgsl"),
        modules: |key| [BASE, tile(key), rows(key)].concat(),
        slots: &[
            (Slot::Query, Read),
            (Slot::Key, Read),
            (Slot::Scores, Write),
            (Slot::Aux, Read),
        ],
        workgroup: Workgroup::Of(tile::LANES),
        axes: Axes::NONE,
        subgroups: false,
        proof: Some(Proof {
            texts: 0x73f2_ccfe_663a_08dd,
        }),
    },
    ShaderRow {
        shader: Shader::StagedSoftmax,
        name: "staged_softmax",
        root: wgsl!("staged_softmax.wgsl"),
        modules: |_| [BASE, ROW, &[STORE_STATS, STAGES, REDUCE]].concat(),
        slots: &[
            (Slot::Scores, Write),
            (Slot::Stats, Write),
            (Slot::Bias, Read),
            (Slot::Mask, Read),
            (Slot::Aux, Read),
        ],
        workgroup: Workgroup::Of(LANES),
        axes: Axes::NONE,
        subgroups: false,
        proof: Some(Proof {
            texts: 0x8ba8_45e5_d5d1_3b37,
        }),
    },
    ShaderRow {
        shader: Shader::StagedValues,
        name: "staged_values",
        root: wgsl!("staged_values.wgsl"),
        modules: |key| [BASE, tile(key), values(key)].concat(),
        slots: &[
            (Slot::Scores, Read),
            (Slot::Value, Read),
            (Slot::Output, Write),
            (Slot::Aux, Read),
        ],
        workgroup: Workgroup::Of(tile::LANES),
        axes: Axes::NONE,
        subgroups: false,
        proof: Some(Proof {
            texts: 0xf819_949f_1d6b_dd85,
        }),
    },
    ShaderRow {
        shader: Shader::ProjectTiled,
        name: "project_tiled",
        root: wgsl!("project_tiled.wgsl"),
        modules: |key| [NUMBERS, &[GRID, TILE], rows(key), &[STORE, PROJECT]].concat(),
        slots: PROJECTION,
        workgroup: Workgroup::Of(tile::LANES),
        axes: Axes {
            loads: LoadsAxis::Pairs,
            ..Axes::NONE
        },
        subgroups: false,
        proof: Some(Proof {
            texts: 0xe0dc_965b_b6d9_0629,
        }),
    },
    ShaderRow {
        shader: Shader::ProjectLanes,
        name: "project_lanes",
        root: wgsl!("project_lanes.wgsl"),
        modules: |key| [NUMBERS, &[GRID, STORE, PROJECT], &chunks(key)].concat(),
        slots: PROJECTION,
        workgroup: Workgroup::Subgroup,
        axes: Axes {
            loads: LoadsAxis::Chunks,
            ..Axes::NONE
        },
        subgroups: true,
        proof: Some(Proof {
            texts: 0x0e84_135e_831a_9b81,
        }),
    },
    ShaderRow {
        shader: Shader::InspectTiled,
        name: "inspect_tiled",
        root: wgsl!("inspect_tiled.wgsl"),
        modules: |key| {
            [
                BASE,
                ROW,
                tile(key),
                rows(key),
                &[STORE, STAGES, WEIGHTS, PAIRS],
            ]
            .concat()
        },
        slots: INSPECT,
        workgroup: Workgroup::Of(tile::LANES),
        axes: Axes {
            loads: LoadsAxis::Pairs,
            ..Axes::NONE
        },
        subgroups: false,
        proof: Some(Proof {
            texts: 0xd510_3631_4e70_4881,
        }),
    },
    ShaderRow {
        shader: Shader::InspectLanes,
        name: "inspect_lanes",
        root: wgsl!("inspect_lanes.wgsl"),
        modules: |key| {
            [
                BASE,
                ROW,
                &[GRID, STORE, STAGES, WEIGHTS, PAIRS],
                &chunks(key),
            ]
            .concat()
        },
        slots: INSPECT,
        workgroup: Workgroup::Subgroup,
        axes: Axes {
            loads: LoadsAxis::Chunks,
            ..Axes::NONE
        },
        subgroups: true,
        proof: Some(Proof {
            texts: 0x0baf_0264_1588_5799,
        }),
    },
    ShaderRow {
        shader: Shader::InspectRows,
        name: "inspect_rows",
        root: wgsl!("inspect_rows.wgsl"),
        modules: |_| [BASE, ROW, &[GRID, REDUCE, WEIGHTS]].concat(),
        slots: &[
            (Slot::Scores, Write),
            (Slot::Stats, Read),
            (Slot::Bias, Read),
            (Slot::Mask, Read),
            (Slot::Aux, Read),
            (Slot::Norms, Read),
            (Slot::Output, Write),
        ],
        workgroup: Workgroup::Of(LANES),
        axes: Axes::NONE,
        subgroups: false,
        proof: None,
    },
    ShaderRow {
        shader: Shader::InspectKeys,
        name: "inspect_keys",
        root: wgsl!("inspect_keys.wgsl"),
        modules: |_| [NUMBERS, &[GRID]].concat(),
        slots: &[(Slot::Scores, Read), (Slot::Received, Write)],
        workgroup: Workgroup::Of(LANES),
        axes: Axes::NONE,
        subgroups: false,
        proof: None,
    },
    ShaderRow {
        shader: Shader::RowNorms,
        name: "row_norms",
        root: wgsl!("row_norms.wgsl"),
        modules: |_| [NUMBERS, &[GRID, STORE]].concat(),
        slots: &[
            (Slot::Query, Read),
            (Slot::Key, Read),
            (Slot::Output, Write),
        ],
        workgroup: Workgroup::Of(LANES),
        axes: Axes::NONE,
        subgroups: false,
        proof: None,
    },
    ShaderRow {
        shader: Shader::CopyWords,
        name: "copy_words",
        root: wgsl!("copy_words.wgsl"),
        modules: |_| Vec::new(),
        slots: &[(Slot::Source, Read), (Slot::Aux, Write)],
        workgroup: Workgroup::Of(LANES),
        axes: Axes::NONE,
        subgroups: false,
        proof: Some(Proof {
            texts: 0x31a4_e077_b504_6ec5,
        }),
    },
];

impl Shader {
    /// Every root.
    pub const ALL: [Shader; 14] = {
        let mut all = [Shader::CopyWords; 14];
        let mut at = 0;
        while at < all.len() {
            all[at] = ROWS[at].shader;
            at += 1;
        }
        all
    };

    fn row(self) -> &'static ShaderRow {
        &ROWS[self as usize]
    }

    /// Name of the file in `shaders/`, and of the pipeline.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The file with its entry point.
    pub(crate) fn root(self) -> Module {
        self.row().root
    }

    /// The files before the root, in order of dependence.
    pub(crate) fn modules(self, key: Specialization) -> Vec<Module> {
        (self.row().modules)(key)
    }

    /// Storage buffers, in the order of their bindings (1, 2, ...); binding 0
    /// is the uniform.
    pub fn slots(self) -> &'static [(Slot, Access)] {
        self.row().slots
    }

    /// What the text depends on.
    pub(crate) fn axes(self) -> Axes {
        self.row().axes
    }

    /// Whether the text depends on the storage type of key and value.
    pub fn reads_keys_or_values(self) -> bool {
        self.slots()
            .iter()
            .any(|(slot, _)| matches!(slot, Slot::Key | Slot::Value))
    }

    /// Whether it runs without wgpu's runtime checks: its row has a proof.
    pub fn is_proven(self) -> bool {
        self.row().proof.is_some()
    }

    /// The hash of the texts that its proof was read beside.
    pub fn proven_texts(self) -> Option<u64> {
        self.row().proof.map(|proof| proof.texts)
    }

    /// Type of an element of a slot in WGSL. The output is atomic because rows of halves
    /// may share a word; chunks of 4 elements are loaded at once, but by the tiled
    /// kernels only pairs of queries and keys.
    pub(crate) fn element(self, slot: Slot, key: Specialization) -> &'static str {
        let dtype = match slot {
            Slot::Output => return "atomic<u32>",
            Slot::Query => key.query_dtype,
            Slot::Key | Slot::Value => key.kv_dtype,
            _ => return "u32",
        };
        let is_pair = self.loads_pairs() && slot != Slot::Value;
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

    /// Invocations of a workgroup.
    pub fn lanes(self, key: Specialization) -> u32 {
        match self.row().workgroup {
            Workgroup::Of(lanes) => lanes,
            Workgroup::Subgroup => key.lanes.count(),
        }
    }

    /// Whether queries and keys are loaded in pairs where they are loaded wide.
    pub fn loads_pairs(self) -> bool {
        self.axes().loads == LoadsAxis::Pairs
    }

    /// Whether a workgroup is a subgroup that spreads what its lanes load.
    pub fn broadcasts(self) -> bool {
        self.row().workgroup == Workgroup::Subgroup
    }

    /// Whether the text uses subgroups.
    pub fn needs_subgroups(self) -> bool {
        self.row().subgroups
    }
}
