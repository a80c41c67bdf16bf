//! A layer ready to be recorded.

use super::operands::MultiHeadOperands;
use super::plan::MultiHeadPlan;
use super::steps::{Layout, Steps};
use crate::error::{Error, Result};
use crate::plan::plan::PlanOptions;
use crate::record::attention::{Attention, Prepared};
use crate::record::encode::{BindGroups, Workspace};
use crate::rules::layer_dims::MultiHeadDims;
use crate::rules::options::Options;
use crate::view::aliasing::{NamedSpan, check_overlap};
use crate::view::extent::{Home, Span};
use crate::view::geometry::PHASE;

/// A multi-head layer with its pipelines and constants: ready to be recorded any
/// number of times, into any encoder of its device.
#[derive(Debug, Clone)]
pub struct PreparedMultiHead {
    plan: MultiHeadPlan,
    projections: Vec<Prepared>,
    attention: Prepared,
    output: Prepared,
}

impl Attention {
    /// Validates and plans a multi-head layer: [`MultiHeadPlan::new`].
    ///
    /// # Errors
    /// As that.
    pub fn plan_multi_head(
        &self,
        operands: &MultiHeadOperands<'_>,
        options: &Options,
    ) -> Result<MultiHeadPlan> {
        MultiHeadPlan::new(operands, options, self.caps(), &PlanOptions::default())
    }

    /// Makes a layer's plan recordable; see [`Attention::prepare`].
    ///
    /// # Errors
    /// As [`Attention::prepare`].
    pub fn prepare_multi_head(&self, plan: &MultiHeadPlan) -> Result<PreparedMultiHead> {
        plan.check_device(self.caps())?;
        let projections = plan.projections.iter().map(|(_, plan)| self.prepare(plan));
        Ok(PreparedMultiHead {
            plan: plan.clone(),
            projections: projections.collect::<Result<_>>()?,
            attention: self.prepare(&plan.attention)?,
            output: self.prepare(&plan.output.1)?,
        })
    }
}

/// Bind groups of every step, made before the first is recorded.
struct Bound<'a>(Vec<(&'a Prepared, BindGroups)>);

impl PreparedMultiHead {
    /// The plan.
    pub fn plan(&self) -> &MultiHeadPlan {
        &self.plan
    }

    /// Records into an encoder, in a compute pass of its own.
    ///
    /// Does not submit, poll or map. The operands must be those of the plan or others
    /// of the same shapes, strides, storage types, and byte offsets modulo 256. The
    /// workspace starts at a multiple of 256 bytes and overlaps no operand.
    ///
    /// # Errors
    /// [`Error::PlanMismatch`] if an operand differs from the plan's;
    /// [`Error::Overlap`] if the output or the statistics overlap anything; errors of
    /// the workspace; [`Error::Device`] and [`Error::DeviceLost`] as for
    /// [`Prepared::record`]. Nothing is recorded then.
    ///
    /// # Panics
    /// wgpu panics if the encoder belongs to another device.
    pub fn record(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        operands: &MultiHeadOperands<'_>,
        workspace: Workspace<'_>,
    ) -> Result<()> {
        let bound = self.bind(operands, workspace)?;
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: Some("multi-head attention"),
            timestamp_writes: None,
        });
        bound.dispatch(&mut pass);
        Ok(())
    }

    /// Records into an open compute pass. Sets its pipeline and bind group 0.
    ///
    /// # Errors
    /// As [`PreparedMultiHead::record`].
    ///
    /// # Panics
    /// wgpu panics if the pass belongs to another device.
    pub fn record_in_pass(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        operands: &MultiHeadOperands<'_>,
        workspace: Workspace<'_>,
    ) -> Result<()> {
        self.bind(operands, workspace)?.dispatch(pass);
        Ok(())
    }

    /// Submits one idle workgroup for each pipeline: [`Prepared::warm_up`].
    ///
    /// # Errors
    /// As that.
    pub fn warm_up(&self) -> Result<Option<wgpu::SubmissionIndex>> {
        let mut last = None;
        let steps = self
            .projections
            .iter()
            .chain([&self.attention, &self.output]);
        for prepared in steps {
            last = prepared.warm_up()?.or(last);
        }
        Ok(last)
    }

    fn bind(
        &self,
        operands: &MultiHeadOperands<'_>,
        workspace: Workspace<'_>,
    ) -> Result<Bound<'_>> {
        let plan = &self.plan;
        self.check_sizes(operands)?;
        let spans = operands.spans();
        check_overlap(&spans)?;
        check_workspace(plan, &spans, &workspace)?;
        let (home, start) = (Home::Buffer(workspace.buffer), workspace.offset);
        let steps = Steps::new(operands, &plan.dims, &plan.layout, home, start);
        let mut bound = Vec::with_capacity(self.projections.len() + 2);
        for ((names, projection), prepared) in steps.projections.iter().zip(&self.projections) {
            let groups = projection
                .operands()
                .and_then(|o| prepared.bind_groups(&o, None));
            bound.push((prepared, groups.map_err(|error| error.renamed(names))?));
        }
        let scratch = Workspace {
            buffer: workspace.buffer,
            offset: start + plan.layout.scratch,
        };
        let groups = self
            .attention
            .bind_groups(&steps.attention, Some(scratch))?;
        bound.push((&self.attention, groups));
        let (names, projection) = &steps.output;
        let groups = projection
            .operands()
            .and_then(|o| self.output.bind_groups(&o, None));
        bound.push((&self.output, groups.map_err(|error| error.renamed(names))?));
        Ok(Bound(bound))
    }

    /// Operands of other sizes would be laid out otherwise.
    fn check_sizes(&self, operands: &MultiHeadOperands<'_>) -> Result<()> {
        let dims = MultiHeadDims::of(operands)?;
        let layout = Layout::new(&dims, operands);
        if (dims, layout) == (self.plan.dims, self.plan.layout) {
            return Ok(());
        }
        Err(Error::PlanMismatch {
            operand: "layer",
            expected: format!("{:?}, packed: {}", self.plan.dims, self.plan.layout.packed),
            actual: format!("{dims:?}, packed: {}", layout.packed),
        })
    }
}

impl Bound<'_> {
    fn dispatch(&self, pass: &mut wgpu::ComputePass<'_>) {
        for (prepared, groups) in &self.0 {
            prepared.dispatch(pass, groups);
        }
    }
}

fn check_workspace(
    plan: &MultiHeadPlan,
    spans: &[NamedSpan<'_>],
    workspace: &Workspace<'_>,
) -> Result<()> {
    if !workspace.offset.is_multiple_of(PHASE) {
        return Err(Error::Layout {
            operand: "workspace",
            expected: format!("an offset that is a multiple of {PHASE}"),
            actual: format!("offset {}", workspace.offset),
        });
    }
    let end = workspace.offset.saturating_add(plan.workspace_bytes());
    if end > workspace.buffer.size() {
        return Err(Error::BufferTooSmall {
            operand: "workspace",
            needed: end,
            size: workspace.buffer.size(),
        });
    }
    let span = Span {
        home: Home::Buffer(workspace.buffer),
        bytes: workspace.offset..end,
    };
    match spans.iter().find(|(_, other, _)| span.overlaps(other)) {
        None => Ok(()),
        Some((other, other_span, _)) => Err(Error::Overlap {
            written: "workspace",
            other,
            ranges: format!("{:?} and {:?}", span.bytes, other_span.bytes),
        }),
    }
}
