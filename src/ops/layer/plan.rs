//! The plan of a layer: one plan a step, one workspace.

use std::fmt;

use super::operands::{MultiHeadOperands, Names};
use super::steps::{Layout, NamedProjection, Steps};
use crate::error::{Error, Result};
use crate::plan::caps::DeviceCaps;
use crate::plan::plan::{Plan, PlanOptions};
use crate::plan::problem::Problem;
use crate::plan::requirements::{check_buffer, mismatch};
use crate::rules::layer_dims::MultiHeadDims;
use crate::rules::options::Options;
use crate::view::aliasing::check_overlap;
use crate::view::extent::Home;

/// What will run for a multi-head layer on a device.
///
/// Holds no buffer and records nothing;
/// [`Attention::prepare_multi_head`](crate::Attention::prepare_multi_head) makes it
/// recordable.
#[derive(Debug, Clone, PartialEq)]
pub struct MultiHeadPlan {
    pub(super) dims: MultiHeadDims,
    pub(super) layout: Layout,
    pub(super) projections: Vec<(Names, Plan)>,
    pub(super) attention: Plan,
    pub(super) output: (Names, Plan),
}

impl MultiHeadPlan {
    /// Validates and plans a layer. `options` are attention's; `plan_options` hold
    /// for every step.
    ///
    /// # Errors
    /// An error that names the operand, what was expected and what came;
    /// [`Error::Unsupported`] with every reason of the first step that the device
    /// cannot run.
    pub fn new(
        operands: &MultiHeadOperands<'_>,
        options: &Options,
        caps: &DeviceCaps,
        plan_options: &PlanOptions,
    ) -> Result<MultiHeadPlan> {
        let dims = MultiHeadDims::of(operands)?;
        check_overlap(&operands.spans())?;
        let layout = Layout::new(&dims, operands);
        // Before anything is placed where it cannot be.
        check_workspace(layout.scratch, caps)?;
        let steps = Steps::new(operands, &dims, &layout, Home::Workspace, 0);
        let project = |(names, projection): &NamedProjection<'_>| -> Result<(Names, Plan)> {
            let named = |error: Error| error.renamed(names);
            let problem = Problem::projection(projection).map_err(named)?;
            let plan = Plan::new(&problem, caps, plan_options).map_err(named)?;
            Ok((*names, plan))
        };
        let output = project(&steps.output)?;
        let projections: Result<Vec<_>> = steps.projections.iter().map(project).collect();
        let attention = Problem::forward(&steps.attention, options)?;
        let plan = MultiHeadPlan {
            dims,
            layout,
            projections: projections?,
            attention: Plan::new(&attention, caps, plan_options)?,
            output,
        };
        check_workspace(plan.workspace_bytes(), caps)?;
        Ok(plan)
    }

    /// The sizes.
    pub fn dims(&self) -> MultiHeadDims {
        self.dims
    }

    /// Exact size of the workspace that recording needs, in bytes: the projected
    /// queries, keys and values and the heads' outputs in f32, and what attention
    /// itself needs.
    pub fn workspace_bytes(&self) -> u64 {
        let own = self.attention.workspace_bytes();
        self.layout.scratch.saturating_add(own)
    }

    /// Whether a device has room for the whole workspace; the plan of each step is
    /// checked when it is prepared.
    pub(super) fn check_device(&self, caps: &DeviceCaps) -> Result<()> {
        let workspace = check_buffer("workspace in bytes", self.workspace_bytes(), caps);
        mismatch(workspace.into_iter().collect())
    }

    /// Number of dispatches.
    pub fn dispatches(&self) -> usize {
        self.plans().map(|(_, plan)| plan.dispatches()).sum()
    }

    /// The plan of each step in order, with what it computes.
    pub fn plans(&self) -> impl Iterator<Item = (&'static str, &Plan)> {
        let projections = self
            .projections
            .iter()
            .map(|(names, plan)| (names[0].1, plan));
        let attention = [("attention", &self.attention)];
        let output = [(self.output.0[0].1, &self.output.1)];
        projections.chain(attention).chain(output)
    }
}

fn check_workspace(needed: u64, caps: &DeviceCaps) -> Result<()> {
    match check_buffer("workspace in bytes", needed, caps) {
        None => Ok(()),
        Some(reason) => Err(Error::Unsupported {
            reasons: vec![reason],
        }),
    }
}

impl fmt::Display for MultiHeadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "workspace: {} bytes", self.workspace_bytes())?;
        for (step, plan) in self.plans() {
            write!(f, "\n{step}: {}", plan.to_string().replace('\n', "\n  "))?;
        }
        Ok(())
    }
}
