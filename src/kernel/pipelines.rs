//! Every pipeline that a plan can ask for.

use crate::kernel::shader::{Access, LoadsAxis, Shader};
use crate::kernel::specialization::{Lanes, Loads, RuleSet, Specialization};
use crate::kernel::uniform::tile;
use crate::view::dtype::DType;

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
                    for rules in RuleSet::ALL_SETS {
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

/// Forgets what the shader's text does not depend on, so that pipelines are shared.
pub(crate) fn canonical(shader: Shader, key: Specialization) -> Specialization {
    let (axes, general) = (shader.axes(), Specialization::GENERAL);
    let kv_dtype = match shader.reads_keys_or_values() {
        true => key.kv_dtype,
        false => general.kv_dtype,
    };
    let (loads, query_dtype) = match axes.loads {
        LoadsAxis::Words => (general.loads, general.query_dtype),
        LoadsAxis::Pairs => (pairs(key), key.kv_dtype),
        LoadsAxis::Chunks => (key.loads, chunk_query(key)),
    };
    let pick = |depends: bool, own: Specialization| if depends { own } else { general };
    Specialization {
        kv_dtype,
        query_dtype,
        shared: key.shared,
        lanes: pick(shader.broadcasts(), key).lanes,
        loads,
        rules: pick(axes.rules, key).rules,
        column_runs: pick(axes.column_runs, key).column_runs,
        count_tiles: pick(axes.count_tiles, key).count_tiles,
    }
}

/// Tiled kernels load query and key by one function.
fn pairs(key: Specialization) -> Loads {
    match key.loads {
        _ if key.query_dtype != key.kv_dtype => Loads::Words,
        Loads::Words => Loads::Words,
        Loads::Chunks | Loads::WideChunks => Loads::Chunks,
    }
}

/// Element by element, the query's type is in the uniform.
fn chunk_query(key: Specialization) -> DType {
    match key.loads {
        Loads::Words => Specialization::GENERAL.query_dtype,
        Loads::Chunks | Loads::WideChunks => key.query_dtype,
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
        if shader.axes().column_runs {
            stem += &format!(".{}columns", tile::RUN * self.column_runs);
        }
        match self.loads {
            Loads::Words => {}
            Loads::Chunks => stem += ".chunks",
            Loads::WideChunks => stem += ".wide",
        }
        if shader.broadcasts() {
            if self.loads != Loads::Words && self.query_dtype != self.kv_dtype {
                stem += ".f32query";
            }
            stem += &format!(".{}lanes", self.lanes.count());
        }
        match self.rules {
            RuleSet::Intervals => stem += ".intervals",
            RuleSet::Pairs => stem += ".pairs",
            RuleSet::Scores => stem += ".scores",
            RuleSet::All => {}
        }
        if self.shared {
            stem += ".shared";
        }
        stem
    }
}
