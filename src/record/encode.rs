//! Records a prepared plan into the caller's encoder or pass.

use crate::error::{Error, Result};
use crate::kernel::scope::scoped;
use crate::kernel::shader::{Access, Slot};
use crate::plan::call::Call;
use crate::plan::dispatch::Pass;
use crate::plan::operands::Operands;
use crate::plan::problem::Problem;
use crate::plan::spans::NamedSpans;
use crate::plan::task::Scores;
use crate::record::attention::Prepared;
use crate::view::dtype::DType;
use crate::view::extent::{Home, Span};
use crate::view::geometry::{Geometry, PHASE};
use crate::view::lists::{ListKind, ListRef, ListSource};
use crate::view::tensor::List;

/// Scratch memory that a plan asked for with [`crate::Plan::workspace_bytes`].
#[derive(Debug, Clone, Copy)]
pub struct Workspace<'a> {
    /// The buffer, with usage `STORAGE`.
    pub buffer: &'a wgpu::Buffer,
    /// First byte, a multiple of the device's `min_storage_buffer_offset_alignment`.
    pub offset: u64,
}

impl<'a> Workspace<'a> {
    /// A workspace at the start of a buffer.
    pub fn new(buffer: &'a wgpu::Buffer) -> Self {
        Workspace { buffer, offset: 0 }
    }
}

impl Prepared {
    /// Records into an encoder, in a compute pass of its own.
    ///
    /// Does not submit, poll or map. The operands must be those of the plan or
    /// others of the same shapes, strides, storage types, and byte offsets
    /// modulo 256.
    ///
    /// Every buffer has to be of this device, and of one [`wgpu::Instance`] with it. wgpu
    /// knows a buffer by a number of its instance: one of another device is refused, but
    /// one of another *instance* is taken for whatever buffer has that number here, or
    /// ends in a panic of wgpu. A buffer may be mapped while it is recorded, as long as it
    /// is unmapped when the commands are submitted; wgpu refuses the submission otherwise.
    ///
    /// # Errors
    /// [`Error::PlanMismatch`] if an operand differs from the plan's; errors of
    /// the workspace; [`Error::Device`] for a buffer that is destroyed or of another
    /// device; [`Error::DeviceLost`] if the device is lost by now (not in a browser). That
    /// it is lost between this and the submission, nothing tells but the device's own
    /// callback and the reading of a result. Nothing is recorded with an error.
    ///
    /// # Panics
    /// wgpu panics if the encoder belongs to another device.
    pub fn record(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        operands: &Operands<'_>,
        workspace: Option<Workspace<'_>>,
    ) -> Result<()> {
        let groups = self.bind_groups(operands, workspace)?;
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: Some("attention"),
            timestamp_writes: None,
        });
        self.dispatch(&mut pass, &groups);
        Ok(())
    }

    /// Records into an open compute pass. Sets its pipeline and bind group 0.
    ///
    /// # Errors
    /// As [`Prepared::record`].
    ///
    /// # Panics
    /// wgpu panics if the pass belongs to another device.
    pub fn record_in_pass(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        operands: &Operands<'_>,
        workspace: Option<Workspace<'_>>,
    ) -> Result<()> {
        let groups = self.bind_groups(operands, workspace)?;
        self.dispatch(pass, &groups);
        Ok(())
    }

    pub(crate) fn dispatch(&self, pass: &mut wgpu::ComputePass<'_>, groups: &BindGroups) {
        let passes = self.plan.passes.iter().zip(&self.pipelines);
        for ((planned, pipeline), group) in passes.zip(groups.iter()) {
            pass.set_pipeline(&pipeline.pipeline);
            pass.set_bind_group(0, group, &[]);
            pass.dispatch_workgroups(planned.grid[0], planned.grid[1], 1);
        }
    }

    /// Checks everything that would otherwise surface at the caller's
    /// `finish()`, then makes the bind groups.
    pub(crate) fn bind_groups(
        &self,
        operands: &Operands<'_>,
        workspace: Option<Workspace<'_>>,
    ) -> Result<BindGroups> {
        self.attention.check_faults()?;
        let operation = &self.plan.problem.operation;
        let checked = self.check_operands(operands);
        checked.map_err(|error| operation.in_its_words(error))?;
        self.check_workspace(operands, workspace.as_ref())?;
        let resolver = Resolver {
            prepared: self,
            operands,
            workspace,
        };
        // Refused for a buffer of another device, or a destroyed one.
        scoped(self.attention.device(), "binding the operands", || {
            let mut groups = BindGroups::for_passes(self.plan.passes.len());
            for (index, planned) in self.plan.passes.iter().enumerate() {
                groups.put(index, self.bind_group(index, planned, &resolver)?);
            }
            Ok(groups)
        })?
    }

    fn bind_group(
        &self,
        index: usize,
        planned: &Pass,
        resolver: &Resolver<'_>,
    ) -> Result<wgpu::BindGroup> {
        let uniforms = self.uniforms.as_ref().ok_or_else(|| internal("uniform"))?;
        let uniform = wgpu::BufferBinding {
            buffer: uniforms,
            offset: self.uniform_starts[index],
            size: wgpu::BufferSize::new(planned.uniform.bytes().len() as u64),
        };
        let mut bindings: [_; MOST_BINDINGS] = std::array::from_fn(|_| uniform.clone());
        let count = planned.binds.len() + 1;
        resolver.resolve(planned, &mut bindings[1..count])?;
        if self.attention.caps().checks_writable_aliasing {
            check_aliasing(planned, &bindings[1..count])?;
        }
        let entries: [_; MOST_BINDINGS] = std::array::from_fn(|binding| wgpu::BindGroupEntry {
            binding: binding as u32,
            resource: wgpu::BindingResource::Buffer(bindings[binding].clone()),
        });
        let descriptor = wgpu::BindGroupDescriptor {
            label: Some(planned.shader.name()),
            layout: &self.pipelines[index].layout,
            entries: &entries[..count],
        };
        Ok(self.attention.device().create_bind_group(&descriptor))
    }

    /// Compares the operands with the plan's. No text is made unless they differ.
    fn check_operands(&self, operands: &Operands<'_>) -> Result<()> {
        let Problem {
            task: plan,
            operation,
        } = &self.plan.problem;
        let now = Call::new(operands, &plan.options, &**operation)?;
        let tensors = [
            ("query", (plan.query, plan.query_dtype), now.query),
            ("key", (plan.key, plan.kv_dtype), now.key),
            ("value", (plan.value, plan.kv_dtype), now.value),
            ("output", (plan.output, plan.output_dtype), now.output),
        ];
        for (operand, was, is) in tensors {
            if was != is {
                return Err(mismatch(operand, placed(was), placed(is)));
            }
        }
        if plan.bias != now.bias {
            return Err(mismatch(
                "bias",
                given(plan.bias.map(placed)),
                given(now.bias.map(placed)),
            ));
        }
        if plan.mask != now.mask {
            return Err(mismatch("mask", given(plan.mask), given(now.mask)));
        }
        if plan.stats != now.stats {
            let text = |(geometry, kind)| format!("{kind:?}, {geometry}");
            return Err(mismatch(
                "stats",
                given(plan.stats.map(text)),
                given(now.stats.map(text)),
            ));
        }
        for kind in ListKind::ALL {
            let was = plan.list(kind).map(ListSource::borrowed);
            let is = now.lists[kind as usize];
            if was == is {
                continue;
            }
            let note = match (was, is) {
                (Some(ListRef::Host(_)), Some(ListRef::Host(_))) => " with other values",
                _ => "",
            };
            let text = |list: Option<ListRef<'_>>| match list {
                None => "no list".to_owned(),
                Some(list) => list.to_string(),
            };
            return Err(mismatch(kind.name(), text(was), text(is) + note));
        }
        let extra = [
            ("norms", plan.norms, now.norms),
            ("received", plan.received, now.received),
        ];
        for (operand, was, is) in extra {
            if was != is {
                return Err(mismatch(operand, given(was), given(is)));
            }
        }
        if now.shared && !self.plan.shared {
            return Err(mismatch(
                "output",
                "buffers that hold no input (see PlanOptions::shared_buffers)".to_owned(),
                "a buffer that also holds an input".to_owned(),
            ));
        }
        Ok(())
    }

    fn check_workspace(
        &self,
        operands: &Operands<'_>,
        workspace: Option<&Workspace<'_>>,
    ) -> Result<()> {
        let needed = self.plan.workspace_bytes;
        if needed == 0 {
            return Ok(());
        }
        let Some(workspace) = workspace else {
            return Err(Error::value(
                "workspace",
                format!("{needed} bytes"),
                "no workspace",
            ));
        };
        let align = u64::from(self.attention.caps().min_storage_buffer_offset_alignment);
        if workspace.offset % align != 0 {
            return Err(Error::Layout {
                operand: "workspace",
                expected: format!("an offset that is a multiple of {align}"),
                actual: format!("offset {}", workspace.offset),
            });
        }
        let end = workspace.offset.saturating_add(needed);
        if end > workspace.buffer.size() {
            return Err(Error::BufferTooSmall {
                operand: "workspace",
                needed: end,
                size: workspace.buffer.size(),
            });
        }
        let usage = wgpu::BufferUsages::STORAGE;
        if !workspace.buffer.usage().contains(usage) {
            return Err(Error::Usage {
                operand: "workspace",
                needed: usage,
                actual: workspace.buffer.usage(),
            });
        }
        let span = Span {
            home: Home::Buffer(workspace.buffer),
            bytes: workspace.offset..end,
        };
        for (other, other_span, _) in
            NamedSpans::of(operands, self.plan.problem.task.facts.writes_stats).iter()
        {
            if span.overlaps(other_span) {
                return Err(Error::Overlap {
                    written: "workspace",
                    other,
                    ranges: format!("{:?} and {:?}", span.bytes, other_span.bytes),
                });
            }
            if span.home == other_span.home && !self.plan.shared {
                return Err(Error::PlanMismatch {
                    operand: "workspace",
                    expected: "a buffer of its own (see PlanOptions::shared_buffers)".to_owned(),
                    actual: format!("the buffer of {other}"),
                });
            }
        }
        Ok(())
    }
}

/// Bindings of the largest dispatch: its uniform and eight storage buffers.
const MOST_BINDINGS: usize = 9;

/// Dispatches whose bind groups need no allocation of ours: all lists gathered,
/// then the staged path.
const FEW: usize = 12;

/// One bind group a dispatch, all made before the first is recorded.
pub(crate) struct BindGroups {
    few: [Option<wgpu::BindGroup>; FEW],
    /// Used instead of `few` by plans with more dispatches.
    many: Vec<Option<wgpu::BindGroup>>,
}

impl BindGroups {
    fn for_passes(count: usize) -> Self {
        BindGroups {
            few: [const { None }; FEW],
            many: vec![None; if count > FEW { count } else { 0 }],
        }
    }

    fn put(&mut self, index: usize, group: wgpu::BindGroup) {
        match self.many.is_empty() {
            true => self.few[index] = Some(group),
            false => self.many[index] = Some(group),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &wgpu::BindGroup> {
        self.few.iter().chain(&self.many).flatten()
    }
}

fn mismatch(operand: &'static str, expected: String, actual: String) -> Error {
    Error::PlanMismatch {
        operand,
        expected,
        actual,
    }
}

fn placed((geometry, dtype): (Geometry, DType)) -> String {
    format!("{dtype:?}, {geometry}")
}

fn given<T: ToString>(operand: Option<T>) -> String {
    operand.map_or_else(|| "none".to_owned(), |found| found.to_string())
}

/// Turns a plan's slots into buffer ranges.
struct Resolver<'a> {
    prepared: &'a Prepared,
    operands: &'a Operands<'a>,
    workspace: Option<Workspace<'a>>,
}

impl<'a> Resolver<'a> {
    /// The storage buffers of one dispatch.
    fn resolve(&self, planned: &Pass, bindings: &mut [wgpu::BufferBinding<'a>]) -> Result<()> {
        let slots = planned.binds.iter().zip(planned.shader.slots());
        let all = slots.zip(bindings).enumerate();
        for (position, ((bind, (_, access)), binding)) in all {
            *binding = match bind.range {
                None => self.prepared.attention.idle_slot(position, *access),
                Some((start, end)) => {
                    let (buffer, origin) = self.locate(bind.slot, planned)?;
                    wgpu::BufferBinding {
                        buffer,
                        offset: origin + start,
                        size: wgpu::BufferSize::new(end - start),
                    }
                }
            };
        }
        Ok(())
    }

    /// The buffer of a slot, and the byte its ranges count from.
    fn locate(&self, slot: Slot, planned: &Pass) -> Result<(&'a wgpu::Buffer, u64)> {
        let o = self.operands;
        let prepared = self.prepared;
        let plan = &prepared.plan;
        let aligned =
            |span: Span<'a>| Some((span.home.buffer()?, span.bytes.start / PHASE * PHASE));
        let workspace = |at: u64| self.workspace.map(|w| (w.buffer, w.offset + at));
        let constants = || prepared.constants.as_ref().map(|buffer| (buffer, 0));
        let found = match slot {
            Slot::Query => aligned(o.query.span()),
            Slot::Key => aligned(o.key.span()),
            Slot::Value => aligned(o.value.span()),
            Slot::Output => aligned(o.output.span()),
            Slot::Stats => o.stats.and_then(|s| aligned(s.span())),
            Slot::Bias => o.bias.and_then(|b| aligned(b.span())),
            Slot::Mask => o.mask.and_then(|m| aligned(m.span())),
            Slot::Norms => o.norms.and_then(|n| aligned(n.span())),
            Slot::Received => o.received.and_then(|r| aligned(r.span())),
            Slot::Scores if plan.problem.task.facts.scores == Scores::Output => {
                aligned(o.output.span())
            }
            Slot::Scores => workspace(plan.scores_start),
            Slot::Aux if plan.problem.task.has_device_lists() => workspace(0),
            Slot::Aux => constants(),
            Slot::Source => match planned.source {
                None => constants(),
                Some(kind) => list_span(o, kind).and_then(aligned),
            },
        };
        found.ok_or_else(|| internal(slot.name()))
    }
}

fn list_span<'a>(operands: &Operands<'a>, kind: ListKind) -> Option<Span<'a>> {
    fn span<'a, T>(list: Option<List<'a, T>>) -> Option<Span<'a>> {
        list.and_then(|list| list.span())
    }
    match kind {
        ListKind::KvLengths => span(operands.kv_lengths),
        ListKind::QLengths => span(operands.q_lengths),
        ListKind::Offsets => span(operands.offsets),
        ListKind::QSegments => span(operands.q_segments),
        ListKind::KvSegments => span(operands.kv_segments),
        ListKind::Slopes => span(operands.alibi_slopes),
        ListKind::Sinks => span(operands.sinks),
    }
}

/// The plan binds a slot that the checked operands lack: a fault of this crate.
fn internal(slot: &'static str) -> Error {
    mismatch(slot, "an operand".to_owned(), "none".to_owned())
}

/// In a browser the ranges of one dispatch that are bound read_write must not
/// overlap, down to the alignment.
fn check_aliasing(planned: &Pass, bindings: &[wgpu::BufferBinding<'_>]) -> Result<()> {
    let slots = planned.shader.slots().iter();
    let all = planned.binds.iter().zip(bindings).zip(slots);
    let writable =
        all.filter(|(_, (_, access))| *access == Access::Write || planned.specialization.shared);
    let range =
        |b: &wgpu::BufferBinding<'_>| b.offset..b.offset + b.size.map_or(0, wgpu::BufferSize::get);
    let mut others = writable.map(|((bind, binding), _)| (bind, binding));
    while let Some((bind, binding)) = others.next() {
        for (other, other_binding) in others.clone() {
            let (a, b) = (range(binding), range(other_binding));
            if binding.buffer == other_binding.buffer && a.start < b.end && b.start < a.end {
                return Err(Error::Overlap {
                    written: bind.slot.name(),
                    other: other.slot.name(),
                    ranges: format!(
                        "{a:?} and {b:?} after alignment, both bound read_write; a browser refuses this"
                    ),
                });
            }
        }
    }
    Ok(())
}
