//! Records a prepared plan into the caller's encoder or pass.

use crate::attention::Prepared;
use crate::error::{Error, Result};
use crate::kernel::{Access, Slot};
use crate::lists::{ListKind, ListSource};
use crate::operands::Operands;
use crate::pipeline::scoped;
use crate::plan::Pass;
use crate::problem::{Goal, PHASE, Problem};
use crate::spans::named_spans;
use crate::tensor::{List, Span};

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
    /// # Errors
    /// [`Error::PlanMismatch`] if an operand differs from the plan's; errors of
    /// the workspace. Nothing is recorded then.
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

    fn dispatch(&self, pass: &mut wgpu::ComputePass<'_>, groups: &[wgpu::BindGroup]) {
        let passes = self.plan.passes.iter().zip(&self.pipelines).zip(groups);
        for ((planned, pipeline), group) in passes {
            pass.set_pipeline(&pipeline.pipeline);
            pass.set_bind_group(0, group, &[]);
            pass.dispatch_workgroups(planned.grid[0], planned.grid[1], 1);
        }
    }

    /// Checks everything that would otherwise surface at the caller's
    /// `finish()`, then makes the bind groups.
    fn bind_groups(
        &self,
        operands: &Operands<'_>,
        workspace: Option<Workspace<'_>>,
    ) -> Result<Vec<wgpu::BindGroup>> {
        self.attention.check_faults()?;
        self.check_operands(operands)?;
        self.check_workspace(operands, workspace.as_ref())?;
        let resolver = Resolver {
            prepared: self,
            operands,
            workspace,
        };
        let mut bound = Vec::new();
        for (index, planned) in self.plan.passes.iter().enumerate() {
            let bindings = resolver.bindings(index, planned)?;
            if self.attention.caps().checks_writable_aliasing {
                check_aliasing(planned, &bindings)?;
            }
            bound.push(bindings);
        }
        let make = |(index, bindings): (usize, &Vec<wgpu::BufferBinding<'_>>)| {
            let entries: Vec<_> = bindings
                .iter()
                .enumerate()
                .map(|(binding, resource)| wgpu::BindGroupEntry {
                    binding: binding as u32,
                    resource: wgpu::BindingResource::Buffer(resource.clone()),
                })
                .collect();
            let descriptor = wgpu::BindGroupDescriptor {
                label: Some(self.plan.passes[index].shader.name()),
                layout: &self.pipelines[index].layout,
                entries: &entries,
            };
            self.attention.device().create_bind_group(&descriptor)
        };
        // Refused for a buffer of another device, or a destroyed one.
        scoped(self.attention.device(), "binding the operands", || {
            bound.iter().enumerate().map(make).collect()
        })
    }

    fn check_operands(&self, operands: &Operands<'_>) -> Result<()> {
        let plan = &self.plan.problem;
        let now = match &plan.goal {
            Goal::Forward => Problem::forward(operands, &plan.options)?,
            Goal::Stage(stage, region) => {
                Problem::stage(operands, &plan.options, *stage, region.clone())?
            }
        };
        let mismatch = |operand: &'static str, expected: String, actual: String| {
            Err(Error::PlanMismatch {
                operand,
                expected,
                actual,
            })
        };
        macro_rules! same {
            ($operand:literal, $($field:ident),+) => {
                $(if now.$field != plan.$field {
                    return mismatch(
                        $operand,
                        format!("{:?}", plan.$field),
                        format!("{:?}", now.$field),
                    );
                })+
            };
        }
        same!("query", query, query_dtype);
        same!("key", key, kv_dtype);
        same!("value", value);
        same!("output", output, output_dtype);
        same!("bias", bias);
        same!("mask", mask);
        same!("stats", stats);
        for kind in ListKind::ALL {
            let (was, is) = (plan.list(kind), now.list(kind));
            if was != is {
                let text = |source: Option<&ListSource>| match source {
                    None => "no list".to_owned(),
                    Some(ListSource::Host(words)) => format!("{} host values", words.len()),
                    Some(ListSource::Buffer { len, phase }) => {
                        format!("{len} values in a buffer at byte {phase} modulo 256")
                    }
                };
                let host = |s: Option<&ListSource>| matches!(s, Some(ListSource::Host(_)));
                let note = if host(was) && host(is) {
                    " with other values"
                } else {
                    ""
                };
                return mismatch(kind.name(), text(was), text(is) + note);
            }
        }
        if now.shared && !self.plan.shared {
            return mismatch(
                "output",
                "buffers that hold no input (see PlanOptions::shared_buffers)".to_owned(),
                "a buffer that also holds an input".to_owned(),
            );
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
            buffer: workspace.buffer,
            bytes: workspace.offset..end,
        };
        for (other, other_span, _) in named_spans(operands) {
            if span.overlaps(&other_span) {
                return Err(Error::Overlap {
                    written: "workspace",
                    other,
                    ranges: format!("{:?} and {:?}", span.bytes, other_span.bytes),
                });
            }
            if span.buffer == other_span.buffer && !self.plan.shared {
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

/// Turns a plan's slots into buffer ranges.
struct Resolver<'a> {
    prepared: &'a Prepared,
    operands: &'a Operands<'a>,
    workspace: Option<Workspace<'a>>,
}

impl<'a> Resolver<'a> {
    /// The uniform, then the storage buffers of one dispatch.
    fn bindings(&self, index: usize, planned: &Pass) -> Result<Vec<wgpu::BufferBinding<'a>>> {
        let mut bindings = Vec::with_capacity(planned.binds.len() + 1);
        let uniforms = self.prepared.uniforms.as_ref();
        bindings.push(wgpu::BufferBinding {
            buffer: uniforms.ok_or_else(|| internal("uniform"))?,
            offset: self.prepared.uniform_starts[index],
            size: wgpu::BufferSize::new(planned.uniform.bytes().len() as u64),
        });
        let slots = planned.binds.iter().zip(planned.shader.slots());
        for (position, (bind, (_, access))) in slots.enumerate() {
            let Some((start, end)) = bind.range else {
                bindings.push(self.prepared.attention.idle_slot(position, *access));
                continue;
            };
            let (buffer, origin) = self.locate(bind.slot, planned)?;
            bindings.push(wgpu::BufferBinding {
                buffer,
                offset: origin + start,
                size: wgpu::BufferSize::new(end - start),
            });
        }
        Ok(bindings)
    }

    /// The buffer of a slot, and the byte its ranges count from.
    fn locate(&self, slot: Slot, planned: &Pass) -> Result<(&'a wgpu::Buffer, u64)> {
        let o = self.operands;
        let prepared = self.prepared;
        let plan = &prepared.plan;
        let aligned = |span: Span<'a>| (span.buffer, span.bytes.start / PHASE * PHASE);
        let workspace = |at: u64| self.workspace.map(|w| (w.buffer, w.offset + at));
        let constants = || prepared.constants.as_ref().map(|buffer| (buffer, 0));
        let found = match slot {
            Slot::Query => Some(aligned(o.query.span())),
            Slot::Key => Some(aligned(o.key.span())),
            Slot::Value => Some(aligned(o.value.span())),
            Slot::Output => Some(aligned(o.output.span())),
            Slot::Stats => o.stats.map(|s| aligned(s.span())),
            Slot::Bias => o.bias.map(|b| aligned(b.span())),
            Slot::Mask => o.mask.map(|m| aligned(m.span())),
            Slot::Scores => match &plan.problem.goal {
                Goal::Stage(..) => Some(aligned(o.output.span())),
                Goal::Forward => workspace(plan.scores_start),
            },
            Slot::Aux if plan.problem.has_device_lists() => workspace(0),
            Slot::Aux => constants(),
            Slot::Source => match planned.source {
                None => constants(),
                Some(kind) => list_span(o, kind).map(aligned),
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
    Error::PlanMismatch {
        operand: slot,
        expected: "an operand".to_owned(),
        actual: "none".to_owned(),
    }
}

/// In a browser the ranges of one dispatch that are bound read_write must not
/// overlap, down to the alignment.
fn check_aliasing(planned: &Pass, bindings: &[wgpu::BufferBinding<'_>]) -> Result<()> {
    let is_writable = |access: Access| access == Access::Write || planned.specialization.shared;
    let slots = planned.shader.slots().iter();
    let all = planned.binds.iter().zip(&bindings[1..]).zip(slots);
    let named: Vec<_> = all
        .filter(|(_, (_, access))| is_writable(*access))
        .map(|(pair, _)| pair)
        .collect();
    let range =
        |b: &wgpu::BufferBinding<'_>| b.offset..b.offset + b.size.map_or(0, wgpu::BufferSize::get);
    for (index, (bind, binding)) in named.iter().enumerate() {
        for (other, other_binding) in &named[index + 1..] {
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
