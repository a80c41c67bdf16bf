//! The dispatches of a plan: uniforms, bindings and grids.

use crate::kernel::shader::{Shader, Slot, dtype_code};
use crate::kernel::specialization::Specialization;
use crate::kernel::uniform::{CopyParams, LANES, Params, View, align, rules, tile};
use crate::plan::aux_layout::AuxLayout;
use crate::plan::caps::DeviceCaps;
use crate::plan::chunk::{Chunk, Slab, slabs};
use crate::plan::dispatch::{Bind, Pass, Uniform};
use crate::plan::kernel::Kernel;
use crate::plan::rule_bits::rule_bits;
use crate::plan::task::{Scores, Task};
use crate::plan::tiling::Tiling;
use crate::rules::options::Alignment;
use crate::view::geometry::Geometry;
use crate::view::lists::{ListKind, ListSource};

/// Dispatches that gather lists from the caller's buffers into `aux`, the
/// host's lists first; none if every list is the host's.
pub(crate) fn gather(task: &Task, aux: &AuxLayout, caps: &DeviceCaps) -> Vec<Pass> {
    if !task.has_device_lists() {
        return Vec::new();
    }
    let mut passes = Vec::new();
    let has_host = |(_, source): &(ListKind, ListSource)| matches!(source, ListSource::Host(_));
    if task.lists.iter().any(has_host) {
        passes.push(copy(None, 0, (0, aux.words * 4), 0, aux.words, aux, caps));
    }
    for (kind, source) in &task.lists {
        if let ListSource::Buffer { len, phase } = source {
            let range = list_range(*len, *phase, caps);
            let first = (phase - range.0) / 4;
            let to = aux.start(*kind);
            passes.push(copy(Some(*kind), first, range, to, *len as u64, aux, caps));
        }
    }
    passes
}

/// The bytes that a list of the caller's binds, from its buffer's aligned start.
pub(crate) fn list_range(len: usize, phase: u64, caps: &DeviceCaps) -> (u64, u64) {
    let align = caps.alignment();
    (phase / align * align, phase + len as u64 * 4)
}

fn copy(
    source: Option<ListKind>,
    first: u64,
    range: (u64, u64),
    destination: u64,
    count: u64,
    aux: &AuxLayout,
    caps: &DeviceCaps,
) -> Pass {
    let lanes = u64::from(LANES);
    let grid = fold(count.div_ceil(lanes), caps);
    Pass {
        shader: Shader::CopyWords,
        specialization: Specialization::GENERAL,
        grid,
        uniform: Uniform::Copy(CopyParams {
            source: first as u32,
            destination: destination as u32,
            count: count as u32,
            stride: grid[0] * LANES,
        }),
        binds: vec![
            Bind {
                slot: Slot::Source,
                range: Some(range),
            },
            Bind {
                slot: Slot::Aux,
                range: Some((0, aux.words * 4)),
            },
        ],
        source,
    }
}

/// A chunk of a problem, and what its dispatches have in common.
pub(crate) struct Part<'a> {
    pub task: &'a Task,
    pub kernel: Kernel,
    pub chunk: &'a Chunk,
    pub tiling: Tiling,
    /// Batch entries times heads.
    pub heads: u32,
    /// Query rows.
    pub row_count: u32,
    /// The uniform, but for what a dispatch has of its own.
    pub params: Params,
    aux: &'a AuxLayout,
    caps: &'a DeviceCaps,
    slabs: Vec<(&'static str, Slab)>,
}

impl<'a> Part<'a> {
    pub fn new(
        task: &'a Task,
        (kernel, tiling, holds_scores): (Kernel, Tiling, bool),
        chunk: &'a Chunk,
        aux: &'a AuxLayout,
        caps: &'a DeviceCaps,
    ) -> Self {
        let slabs = slabs(task, holds_scores, chunk, caps);
        Part {
            task,
            kernel,
            chunk,
            tiling,
            heads: (chunk.batches.len() * chunk.heads.len()) as u32,
            row_count: chunk.rows.len() as u32,
            params: params(task, chunk, aux, &slabs),
            aux,
            caps,
            slabs,
        }
    }

    /// Tiles of query rows.
    pub fn row_tiles(&self) -> u32 {
        self.row_count.div_ceil(self.tiling.rows)
    }

    /// Tiles of so many keys.
    pub fn key_tiles(&self, keys: usize) -> u32 {
        (keys as u32).div_ceil(self.tiling.keys)
    }

    /// The bytes that a slot binds.
    pub fn bound(&self, slot: Slot) -> Option<(u64, u64)> {
        bound(self.task, slot, &self.slabs, self.aux)
    }

    /// A dispatch of one workgroup for each tile of rows and of columns.
    pub fn tiles(
        &self,
        shader: Shader,
        [row_tiles, column_tiles]: [u32; 2],
        params: Params,
    ) -> Pass {
        let params = Params {
            row_tiles,
            column_tiles,
            workgroups: self.heads * row_tiles * column_tiles,
            ..params
        };
        self.pass(shader, params)
    }

    /// A dispatch of one workgroup for each tile of rows and of value columns.
    pub fn columns(&self, shader: Shader, params: Params) -> Pass {
        let columns = (self.task.dims.v_dim as u32).div_ceil(self.tiling.columns);
        self.tiles(shader, [self.row_tiles(), columns], params)
    }

    /// A dispatch of one workgroup for each tile of rows and of keys.
    pub fn scores(&self, shader: Shader) -> Pass {
        let tiles = [self.row_tiles(), self.key_tiles(self.task.dims.kv_len)];
        self.tiles(shader, tiles, self.params)
    }

    /// A dispatch of one workgroup for each row.
    pub fn rows(&self, shader: Shader) -> Pass {
        let params = Params {
            row_tiles: self.row_tiles(),
            column_tiles: 1,
            workgroups: self.row_count * self.heads,
            ..self.params
        };
        self.pass(shader, params)
    }

    /// One dispatch of `params.workgroups` workgroups.
    fn pass(&self, shader: Shader, params: Params) -> Pass {
        let bind = |&(slot, _): &(Slot, _)| Bind {
            slot,
            range: self.bound(slot),
        };
        Pass {
            shader,
            specialization: Specialization::GENERAL,
            grid: fold(u64::from(params.workgroups), self.caps),
            uniform: Uniform::Attention(params),
            binds: shader.slots().iter().map(bind).collect(),
            source: None,
        }
    }
}

/// The bytes that a slot binds; `None` if the problem does not use it.
fn bound(
    task: &Task,
    slot: Slot,
    slabs: &[(&'static str, Slab)],
    aux: &AuxLayout,
) -> Option<(u64, u64)> {
    let is_stage = task.facts.scores == Scores::Output;
    let name = match slot {
        Slot::Query => "query",
        Slot::Key => "key",
        Slot::Value => "value",
        Slot::Output => "output",
        Slot::Stats => "stats",
        Slot::Bias => "bias",
        Slot::Mask => "mask",
        Slot::Norms => "norms",
        Slot::Received => "received",
        // A stage's scores are the caller's output.
        Slot::Scores if is_stage => "output",
        Slot::Scores => "scores",
        Slot::Aux => return (aux.words > 0).then_some((0, aux.words * 4)),
        Slot::Source => return None,
    };
    let found = slabs.iter().find(|(n, _)| *n == name);
    found
        .map(|(_, slab)| (slab.start, slab.end))
        .filter(|(start, end)| end > start)
}

/// Folds a number of workgroups into two dimensions.
fn fold(workgroups: u64, caps: &DeviceCaps) -> [u32; 2] {
    let most = u64::from(caps.max_compute_workgroups_per_dimension).max(1);
    if workgroups <= most {
        return [workgroups as u32, 1];
    }
    // As square as needed: few idle workgroups in the last row.
    let rows = workgroups.div_ceil(most);
    [workgroups.div_ceil(rows) as u32, rows as u32]
}

fn params(task: &Task, chunk: &Chunk, aux: &AuxLayout, slabs: &[(&'static str, Slab)]) -> Params {
    let base = |name: &str| {
        let found = slabs.iter().find(|(n, _)| *n == name);
        found.map_or(0, |(_, slab)| slab.base as u32)
    };
    let dims = &task.dims;
    let options = &task.options;
    let (window_left, left) = side(options.window.left, rules::LEFT);
    let (window_right, right) = side(options.window.right, rules::RIGHT);
    let (alignment, offset) = match options.alignment {
        Alignment::TopLeft => (align::TOP_LEFT, 0),
        Alignment::BottomRight => (align::BOTTOM_RIGHT, 0),
        Alignment::Offset(offset) => (align::OFFSET, offset),
        Alignment::PerSequence => (align::PER_SEQUENCE, 0),
    };
    let list = |kind: ListKind| aux.start(kind) as u32;
    let scores = match task.facts.scores {
        Scores::Output => view(&task.output, base("output")),
        Scores::Nowhere => View::default(),
        Scores::Workspace | Scores::OfFamily => {
            let keys = dims.kv_len as u64;
            let head = keys * chunk.rows.len() as u64;
            View {
                batch: (head * chunk.heads.len() as u64) as u32,
                head: head as u32,
                row: keys as u32,
                base: 0,
            }
        }
    };
    Params {
        query: view(&task.query, base("query")),
        key: view(&task.key, base("key")),
        value: view(&task.value, base("value")),
        output: view(&task.output, base("output")),
        bias: task
            .bias
            .map_or(View::default(), |(g, _)| view(&g, base("bias"))),
        mask: task
            .mask
            .map_or(View::default(), |m| view(&m.geometry, base("mask"))),
        stats: task
            .stats
            .map_or(View::default(), |(g, _)| view(&g, base("stats"))),
        scores,
        norms: task
            .norms
            .map_or(View::default(), |g| view(&g, base("norms"))),
        received: task
            .received
            .map_or(View::default(), |g| view(&g, base("received"))),
        q_len: dims.q_len as u32,
        kv_len: dims.kv_len as u32,
        qk_dim: dims.qk_dim as u32,
        v_dim: dims.v_dim as u32,
        batch_first: chunk.batches.start as u32,
        head_first: chunk.heads.start as u32,
        row_first: chunk.rows.start as u32,
        row_end: chunk.rows.end as u32,
        heads: chunk.heads.len() as u32,
        row_tiles: 0,
        column_tiles: 0,
        workgroups: 0,
        group: dims.group() as u32,
        alignment,
        offset,
        rules: rule_bits(task) | left | right,
        window_left,
        window_right,
        scale: options.scale_for(dims.qk_dim),
        softcap: options.softcap.unwrap_or(1.0),
        query_dtype: dtype_code(task.query_dtype),
        output_dtype: dtype_code(task.output_dtype),
        bias_dtype: task.bias.map_or(0, |(_, dtype)| dtype_code(dtype)),
        bias_key: task.bias.map_or(0, |(g, _)| g.strides[3] as u32),
        mask_key: task.mask.map_or(0, |m| m.key_stride as u32),
        stage: task.facts.stage,
        aux_kv_lengths: list(ListKind::KvLengths),
        aux_q_lengths: list(ListKind::QLengths),
        aux_offsets: list(ListKind::Offsets),
        aux_q_segments: list(ListKind::QSegments),
        aux_kv_segments: list(ListKind::KvSegments),
        aux_slopes: list(ListKind::Slopes),
        aux_sinks: list(ListKind::Sinks),
        trips_depth: tile::DEPTH,
        trips_keys: tile::KEYS,
        trips_rows: 8,
        key_first: 0,
        key_end: dims.kv_len as u32,
        top: 0,
        first_keys: 0,
    }
}

/// The view of a chunk; strides fit u32 because the slab does, or the axis is
/// never stepped.
fn view(geometry: &Geometry, base: u32) -> View {
    View {
        batch: geometry.strides[0] as u32,
        head: geometry.strides[1] as u32,
        row: geometry.strides[2] as u32,
        base,
    }
}

fn side(count: Option<u32>, rule: u32) -> (u32, u32) {
    count.map_or((0, 0), |n| (n, rule))
}
