//! What the crate's own tests look at: the Rust side of the constants and
//! layouts that the shaders repeat, and the inside of plans. Not for callers.
#![allow(missing_docs)]

use std::collections::HashMap;
use std::mem::{offset_of, size_of};
use std::ops::Range;
use std::sync::Arc;

use crate::Dims;
use crate::error::Result;
use crate::kernel::compose::compose;
use crate::kernel::pipeline::Pipelines;
use crate::kernel::pipeline_cache::checksum;
use crate::kernel::pipelines::all_pipelines;
use crate::kernel::shader::{Shader, Slot, dtype_code};
use crate::kernel::specialization::Specialization;
use crate::kernel::uniform::{CopyParams, Params, View, align, lane_tile, rules, tile};
use crate::ops::project;
use crate::plan::caps::DeviceCaps;
use crate::plan::dispatch::Uniform;
use crate::plan::operation::OperationRef;
use crate::plan::plan::Plan;
use crate::plan::problem::Problem;
use crate::record::attention::Attention;
use crate::rules::options::Options;
use crate::rules::score_stage::Stage;
use crate::view::dtype::{DType, Polarity};
use crate::view::extent::{bytes_needed, contiguous};
use crate::view::geometry::{Geometry, MaskGeometry};
use crate::view::lists::{ListKind, ListSource};

/// Workgroup memory that the planner takes tiled kernels to need, in bytes.
pub const WORKGROUP_MEMORY: u64 = crate::plan::families::tiled::TILE_MEMORY;

/// The same of the lane-broadcast kernel.
pub const LANE_MEMORY: u64 = crate::plan::families::lanes::LANE_MEMORY;

/// Operands that a problem may have besides tensors, as `bench --rule` has them.
#[derive(Debug, Default, Clone, Copy)]
pub struct Ruled {
    pub bias: bool,
    pub mask_bytes: bool,
    pub mask_bits: bool,
    pub segments: bool,
    pub alibi: bool,
}

/// A problem that was made without buffers, with these operands too: an f32 bias and
/// a mask of shape (1, 1, Nq, Nk), lists that the host knows.
pub fn with_rules(mut problem: Problem, ruled: Ruled) -> Problem {
    let dims = problem.task.dims;
    let geometry = |keys: usize, element_size: u64| {
        let shape = [1, 1, dims.q_len, keys];
        Geometry::new(shape, contiguous(shape), element_size, 0)
    };
    if ruled.bias {
        problem.task.bias = Some((geometry(dims.kv_len, 4), DType::F32));
    }
    if ruled.mask_bytes || ruled.mask_bits {
        let (keys, element_size) = match ruled.mask_bits {
            true => (dims.kv_len.div_ceil(32), 4),
            false => (dims.kv_len, 1),
        };
        problem.task.mask = Some(MaskGeometry {
            geometry: geometry(keys, element_size),
            bits: ruled.mask_bits,
            polarity: Polarity::Keep,
            key_stride: usize::from(dims.kv_len > 1),
        });
    }
    let mut list = |kind: ListKind, len: usize| {
        problem
            .task
            .lists
            .push((kind, ListSource::Host(vec![0; len])));
    };
    if ruled.segments {
        list(ListKind::QSegments, dims.batch * dims.q_len);
        list(ListKind::KvSegments, dims.batch * dims.kv_len);
    }
    if ruled.alibi {
        list(ListKind::Slopes, dims.q_heads);
    }
    problem
}

/// A uniform's size and the offset of each field, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub size: usize,
    pub fields: Vec<(&'static str, usize)>,
}

macro_rules! layout {
    ($type:ty: $($field:ident)+) => {
        Layout {
            size: size_of::<$type>(),
            fields: vec![$((stringify!($field), offset_of!($type, $field))),+],
        }
    };
}

/// The Rust mirror of the WGSL struct `name`.
pub fn layout(name: &str) -> Option<Layout> {
    match name {
        "View" => Some(layout!(View: batch head row base)),
        "CopyParams" => Some(layout!(CopyParams: source destination count stride)),
        "Params" => Some(layout!(Params:
            query key value output bias mask stats scores norms received
            q_len kv_len qk_dim v_dim
            batch_first head_first row_first row_end
            heads row_tiles column_tiles workgroups
            group alignment offset rules
            window_left window_right scale softcap
            query_dtype output_dtype bias_dtype bias_key
            mask_key stage aux_kv_lengths aux_q_lengths
            aux_offsets aux_q_segments aux_kv_segments aux_slopes
            aux_sinks trips_depth trips_keys trips_rows
            key_first key_end top first_keys)),
        _ => None,
    }
}

/// The numbers that the shaders repeat, by their name there.
pub fn constants() -> Vec<(&'static str, u32)> {
    vec![
        ("RULE_CAUSAL", rules::CAUSAL),
        ("RULE_LEFT", rules::LEFT),
        ("RULE_RIGHT", rules::RIGHT),
        ("RULE_KV_LENGTHS", rules::KV_LENGTHS),
        ("RULE_Q_LENGTHS", rules::Q_LENGTHS),
        ("RULE_SEGMENTS", rules::SEGMENTS),
        ("RULE_BIAS", rules::BIAS),
        ("RULE_MASK_BYTES", rules::MASK_BYTES),
        ("RULE_MASK_BITS", rules::MASK_BITS),
        ("RULE_MASK_DROP", rules::MASK_DROP),
        ("RULE_ALIBI", rules::ALIBI),
        ("RULE_SINKS", rules::SINKS),
        ("RULE_SOFTCAP", rules::SOFTCAP),
        ("RULE_STATS", rules::STATS),
        ("RULE_STATS_PAIRS", rules::STATS_PAIRS),
        ("RULE_NORMS", rules::NORMS),
        ("RULE_NORMS_BY_QUERY", rules::NORMS_BY_QUERY),
        ("RULE_CONTINUED", rules::CONTINUED),
        ("ALIGN_TOP_LEFT", align::TOP_LEFT),
        ("ALIGN_BOTTOM_RIGHT", align::BOTTOM_RIGHT),
        ("ALIGN_OFFSET", align::OFFSET),
        ("ALIGN_PER_SEQUENCE", align::PER_SEQUENCE),
        ("DTYPE_F32", dtype_code(DType::F32)),
        ("DTYPE_F16", dtype_code(DType::F16)),
        ("DTYPE_BF16", dtype_code(DType::BF16)),
        ("LANES", tile::LANES),
        ("OUTPUT_SLOTS", lane_tile::OUTPUT_SLOTS),
        ("TILE_ROWS", tile::ROWS),
        ("TILE_KEYS", tile::KEYS),
        ("TILE_DEPTH", tile::DEPTH),
        ("STAGE_SOFTCAPPED", Stage::Softcapped as u32),
        ("STAGE_MASKED", Stage::Masked as u32),
        ("STAGE_WEIGHTS", crate::plan::task::STAGE_WEIGHTS),
        (
            "STAGE_CONTRIBUTIONS",
            crate::rules::selection::STAGE_CONTRIBUTIONS,
        ),
        ("SUMMARY_FIELDS", crate::rules::selection::FIELDS as u32),
        (
            "DISTANCE_BINS",
            crate::rules::selection::DISTANCE_BINS as u32,
        ),
    ]
}

/// Every shader file: its name below `shaders/`, and its text.
pub fn files() -> Vec<(&'static str, &'static str)> {
    let mut files = Vec::new();
    for shader in Shader::ALL {
        let keys = all_pipelines().into_iter();
        for (_, key) in keys.filter(|(s, _)| *s == shader) {
            for module in shader.modules(key).iter().chain([&shader.root()]) {
                if !files.contains(&(module.name, module.text)) {
                    files.push((module.name, module.text));
                }
            }
        }
    }
    files
}

/// A hash of all texts of a root, in the order of [`all_pipelines`], and the one that its
/// proof was read beside, where it has a proof.
pub fn texts_of(shader: Shader) -> (u64, Option<u64>) {
    let all = all_pipelines().into_iter().filter(|(s, _)| *s == shader);
    let texts: String = all.map(|(shader, key)| compose(shader, key).text).collect();
    (checksum(texts.as_bytes()), shader.proven_texts())
}

/// One dispatch of a plan.
#[derive(Debug, Clone)]
pub struct Dispatch {
    pub shader: Shader,
    pub specialization: Specialization,
    pub grid: [u32; 2],
    /// Tiles (or rows, or words) that its workgroups have to cover.
    pub workgroups: u64,
    /// Bytes that each slot binds, from its operand's aligned start.
    pub binds: Vec<(Slot, Option<(u64, u64)>)>,
    pub uniform: Vec<u8>,
    /// Batch entries, query heads and rows; none for a copy of lists.
    pub covers: Option<[Range<usize>; 3]>,
    /// What the kernel adds up to an element's index: (strides of batch, head
    /// and row, base) of each operand; none for a copy.
    pub views: Vec<(Slot, [u32; 4])>,
}

/// The dispatches of a plan, in order.
pub fn dispatches(plan: &Plan) -> Vec<Dispatch> {
    let describe = |pass: &crate::plan::dispatch::Pass| {
        let (workgroups, covers, views) = match &pass.uniform {
            Uniform::Attention(p) => {
                let covers = covers(p, pass.shader);
                (u64::from(p.workgroups), Some(covers), views(p))
            }
            Uniform::Copy(p) => {
                let workgroups = p.count.div_ceil(crate::kernel::uniform::LANES);
                (u64::from(workgroups), None, Vec::new())
            }
        };
        Dispatch {
            shader: pass.shader,
            specialization: pass.specialization,
            grid: pass.grid,
            workgroups,
            binds: pass.binds.iter().map(|b| (b.slot, b.range)).collect(),
            uniform: pass.uniform.bytes().to_vec(),
            covers,
            views,
        }
    };
    plan.passes.iter().map(describe).collect()
}

/// The host's lists of a plan, as one buffer: the contents of slot `aux`.
pub fn host_words(plan: &Plan) -> Vec<u32> {
    plan.host_words()
}

fn views(p: &Params) -> Vec<(Slot, [u32; 4])> {
    let all = [
        (Slot::Query, p.query),
        (Slot::Key, p.key),
        (Slot::Value, p.value),
        (Slot::Output, p.output),
        (Slot::Bias, p.bias),
        (Slot::Mask, p.mask),
        (Slot::Stats, p.stats),
        (Slot::Scores, p.scores),
        (Slot::Norms, p.norms),
        (Slot::Received, p.received),
    ];
    all.map(|(slot, v)| (slot, [v.batch, v.head, v.row, v.base]))
        .to_vec()
}

/// A problem that was made without buffers, with keys and values of another storage type.
///
/// # Errors
/// Where they are larger than what can be addressed.
pub fn with_kv_dtype(mut problem: Problem, dtype: DType) -> Result<Problem> {
    let task = &mut problem.task;
    let operands = [("key", &mut task.key), ("value", &mut task.value)];
    for (name, geometry) in operands {
        let (shape, size) = (geometry.shape, dtype.size());
        let strides = contiguous(shape);
        bytes_needed(name, &shape, &strides, 0, size)?;
        *geometry = Geometry::new(shape, strides, size, 0);
    }
    task.kv_dtype = dtype;
    Ok(problem)
}

/// A projection of contiguous tensors, each from the start of a buffer of its own: batch,
/// rows, inputs, outputs; the storage types of input and output, and of the weight.
///
/// # Errors
/// As [`Problem::contiguous`].
pub fn projection(
    [batch, rows, inputs, outputs]: [usize; 4],
    [dtype, weight]: [DType; 2],
) -> Result<Problem> {
    let every = [batch, 1, outputs, inputs];
    let dims = Dims::new([batch, 1, rows, inputs], every, every)?;
    let options = Options::default().scale(1.0);
    let problem = Problem::contiguous(&dims, dtype, dtype, &options)?;
    let mut problem = with_kv_dtype(problem, weight)?;
    problem.operation = OperationRef(project::OPERATION.clone());
    let task = &mut problem.task;
    task.facts = problem.operation.facts();
    // One weight for all batch entries.
    let shared = Geometry::new(every, [0, 0, inputs, 1], weight.size(), 0);
    (task.key, task.value) = (shared, shared);
    let shape = [batch, 1, rows, outputs];
    task.output = Geometry::new(shape, contiguous(shape), dtype.size(), 0);
    Ok(problem)
}

/// The problem with other strides and another byte offset modulo 256 of query,
/// key, value or output, as if their buffer were large enough for any.
pub fn relaid(problem: &Problem, slot: Slot, strides: [usize; 4], phase: u64) -> Problem {
    let mut problem = problem.clone();
    let geometry = match slot {
        Slot::Query => &mut problem.task.query,
        Slot::Key => &mut problem.task.key,
        Slot::Value => &mut problem.task.value,
        _ => &mut problem.task.output,
    };
    geometry.strides = strides;
    geometry.phase = phase;
    problem
}

/// Attention on the same device, with a browser's rules about writable bindings.
pub fn as_in_a_browser(attention: &Attention) -> Result<Attention> {
    let mut attention = Attention::new(attention.device(), attention.queue())?;
    if let Some(shared) = Arc::get_mut(&mut attention.shared) {
        shared.caps.checks_writable_aliasing = true;
    }
    Ok(attention)
}

/// Attention on the same device that makes pipelines of given texts in the place of
/// its own: WGSL by the stem of the file that `shaders --out` writes. To measure
/// kernels with parts taken out.
pub fn with_texts(attention: &Attention, texts: HashMap<String, String>) -> Result<Attention> {
    let mut attention = Attention::new(attention.device(), attention.queue())?;
    if let Some(shared) = Arc::get_mut(&mut attention.shared) {
        shared.pipelines = Arc::new(Pipelines::new(None).with_texts(texts));
    }
    Ok(attention)
}

/// Whether a device of these capabilities can run a plan: what `prepare` asks of its own.
pub fn can_run(plan: &Plan, caps: &DeviceCaps) -> Result<()> {
    plan.check_device(caps)
}

/// Whether some shader of a family runs without wgpu's runtime checks.
pub fn runs_unchecked(kernel: crate::Kernel) -> bool {
    kernel.shaders().iter().any(|shader| shader.is_proven())
}

/// Pipeline cache data as another adapter, driver or crate would have left it.
pub fn foreign_pipeline_cache(attention: &Attention, data: &[u8]) -> Option<Vec<u8>> {
    let mut info = attention.adapter_info();
    info.driver_info.push_str(" of another year");
    let key = crate::kernel::pipeline_cache::key(&info)?;
    Some(crate::kernel::pipeline_cache::seal(&key, data))
}

/// Rows and keys of a tile of the plan's kernel.
pub fn tile_of(plan: &Plan, caps: &DeviceCaps) -> [usize; 2] {
    let tiling = plan.kernel.tiling(plan.problem.task.dims.v_dim, caps);
    [tiling.rows as usize, tiling.keys as usize]
}

/// The same plan, whose fused kernel stores counts of tiles in the place of row
/// states: those it computed for the row, and those of them without mask code.
pub fn counting_tiles(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    for pass in &mut plan.passes {
        pass.specialization.count_tiles = true;
    }
    plan
}

/// A bound of the loop iterations that one invocation of a shader takes in such a plan,
/// and the number of loops in its text with those of the functions that it calls.
pub fn loop_bound(plan: &Plan, shader: Shader, caps: &DeviceCaps) -> [u64; 2] {
    let loops = crate::plan::loops::loops_of(shader, &plan.problem.task, plan.kernel, caps);
    [loops.run, loops.idle]
}

/// The box that the kernels work out from a uniform, read back from it alone.
fn covers(p: &Params, shader: Shader) -> [Range<usize>; 3] {
    let a_head = match shader {
        Shader::StagedSoftmax => p.row_end - p.row_first,
        _ => p.row_tiles * p.column_tiles,
    };
    let batches = p.workgroups / (a_head * p.heads);
    [
        p.batch_first as usize..(p.batch_first + batches) as usize,
        p.head_first as usize..(p.head_first + p.heads) as usize,
        p.row_first as usize..p.row_end as usize,
    ]
}
