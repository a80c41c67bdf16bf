//! A plan: which kernels run, over which parts, with which bindings. Inert
//! data, a pure function of the problem and the device's capabilities.

use crate::plan::dispatch::{Bind, Pass};
use std::fmt;

use crate::error::{Error, Result};
use crate::kernel::pipelines::canonical;
use crate::kernel::shader::{Access, Shader, Slot};
use crate::kernel::specialization::Specialization;
use crate::plan::aux_layout::AuxLayout;
use crate::plan::caps::DeviceCaps;
use crate::plan::kernel::Kernel;
use crate::plan::passes;
use crate::plan::passes::Part;
use crate::plan::problem::Problem;
use crate::plan::requirements::{check_passes, check_whole, mismatch};
use crate::plan::split::split;
use crate::view::lists::ListSource;

/// Choices that a caller may take out of the planner's hands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PlanOptions {
    /// The kernel family; `None` lets the planner choose.
    pub kernel: Option<Kernel>,
    /// Bind every buffer read_write even if the operands at hand share none.
    /// Needed where the workspace, or the operands of a later call, will lie in
    /// the same buffers as inputs: an engine that cuts its tensors from a pool of one
    /// buffer asks for it with every plan.
    ///
    /// ```
    /// # #[cfg(feature = "blocking")]
    /// # fn main() -> Result<(), wgpu_attention::Error> {
    /// use wgpu_attention::{
    ///     Attention, DType, Operands, Options, Plan, PlanOptions, Problem, TensorView,
    ///     Workspace, wgpu,
    /// };
    ///
    /// let attention = Attention::on_default_adapter()?;
    /// let device = attention.device();
    /// let pool = device.create_buffer(&wgpu::BufferDescriptor {
    ///     label: None,
    ///     size: 1 << 20,
    ///     usage: wgpu::BufferUsages::STORAGE,
    ///     mapped_at_creation: false,
    /// });
    /// let shape = [1, 2, 64, 32];
    /// let view = |n: usize| TensorView::bhsd(&pool, DType::F32, shape, n * 2 * 64 * 32);
    /// let operands = Operands::new(view(0)?, view(1)?, view(2)?, view(3)?);
    /// let problem = Problem::forward(&operands, &Options::default())?;
    /// let options = PlanOptions::default().shared_buffers(true);
    /// let plan = Plan::new(&problem, attention.caps(), &options)?;
    /// assert!(plan.workspace_bytes() <= 1 << 19);
    /// let prepared = attention.prepare(&plan)?;
    /// let mut encoder = device.create_command_encoder(&Default::default());
    /// let workspace = Workspace { buffer: &pool, offset: 1 << 19 }; // if it needs one
    /// prepared.record(&mut encoder, &operands, Some(workspace))?;
    /// attention.queue().submit([encoder.finish()]);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "blocking"))]
    /// # fn main() {}
    /// ```
    pub shared_buffers: bool,
    /// Keep wgpu's runtime checks of indices, loops and divisions in every
    /// shader. Without this, shaders that are proven to need none (the proof is
    /// in their text) are compiled without them.
    pub force_checks: bool,
}

impl PlanOptions {
    /// Forces a kernel family.
    pub fn kernel(mut self, kernel: Kernel) -> Self {
        self.kernel = Some(kernel);
        self
    }

    /// Sets [`PlanOptions::shared_buffers`].
    pub fn shared_buffers(mut self, shared: bool) -> Self {
        self.shared_buffers = shared;
        self
    }

    /// Sets [`PlanOptions::force_checks`].
    pub fn force_checks(mut self, force: bool) -> Self {
        self.force_checks = force;
        self
    }
}

/// What will run for a [`Problem`] on a device: kernels, grids, workspace.
///
/// A plan holds no buffer and records nothing; it prints what it will do and
/// why. [`crate::Attention::prepare`] makes it recordable.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub(crate) problem: Problem,
    pub(crate) kernel: Kernel,
    pub(crate) why: String,
    pub(crate) shared: bool,
    pub(crate) force_checks: bool,
    pub(crate) passes: Vec<Pass>,
    pub(crate) aux: AuxLayout,
    /// Bytes of the workspace before the scores: the gathered lists.
    pub(crate) scores_start: u64,
    pub(crate) workspace_bytes: u64,
}

impl Plan {
    /// Plans a problem for a device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with every reason, not only the first; that the plan would
    /// take more than [`MAX_DISPATCHES`](crate::MAX_DISPATCHES) is one.
    pub fn new(problem: &Problem, caps: &DeviceCaps, options: &PlanOptions) -> Result<Plan> {
        Plan::find(problem, caps, options).map_err(|error| problem.operation.in_its_words(error))
    }

    fn find(problem: &Problem, caps: &DeviceCaps, options: &PlanOptions) -> Result<Plan> {
        let (task, operation) = (&problem.task, &*problem.operation);
        let (kernel, why) = operation.choose(task, caps, options.kernel)?;
        let shared = task.shared || options.shared_buffers;
        let aux = AuxLayout::new(task);
        let chunks = split(operation, task, kernel, caps);
        if chunks.as_ref().is_ok_and(Vec::is_empty) {
            // An axis is empty: nothing runs, so nothing can be too large.
            return Ok(Plan {
                problem: problem.clone(),
                kernel,
                why,
                shared,
                force_checks: options.force_checks,
                passes: Vec::new(),
                aux,
                scores_start: 0,
                workspace_bytes: 0,
            });
        }
        let (chunks, misfits) = match chunks {
            Ok(chunks) => (chunks, Vec::new()),
            Err(misfits) => (Vec::new(), misfits),
        };
        let aux_bytes = aux.words * 4;
        let gathered = if task.has_device_lists() {
            aux_bytes
        } else {
            0
        };
        let scores_start = gathered.next_multiple_of(caps.alignment());
        let scores_bytes = match kernel.holds_scores(task) {
            true => chunks.iter().map(|chunk| chunk.pairs(task) * 4).max(),
            false => None,
        };
        let scores_bytes = scores_bytes.unwrap_or(0);
        let workspace_bytes = match scores_bytes {
            0 => gathered,
            _ => scores_start + scores_bytes,
        };
        let mut reasons = check_whole(task, kernel, aux_bytes, workspace_bytes, caps);
        reasons.extend(misfits);
        if !reasons.is_empty() {
            return Err(Error::Unsupported { reasons });
        }
        // Gathered lists and scores lie in one workspace: what writes the
        // scores cannot bind the lists read-only.
        let mixed = gathered > 0 && scores_bytes > 0;
        let mut passes = passes::gather(task, &aux, caps);
        let tiling = kernel.tiling(task.dims.v_dim, caps);
        let of_family = (kernel, tiling, kernel.holds_scores(task));
        for chunk in &chunks {
            let part = Part::new(task, of_family, chunk, &aux, caps);
            passes.extend(operation.dispatches(&part));
        }
        for pass in &mut passes {
            let writes = |(bind, (_, access)): (&Bind, &(Slot, Access))| {
                bind.slot == Slot::Scores && *access == Access::Write
            };
            let writes_scores = pass.binds.iter().zip(pass.shader.slots()).any(writes);
            let specialization = Specialization {
                shared: shared || (mixed && writes_scores),
                ..kernel.specialization(task, caps)
            };
            pass.specialization = canonical(pass.shader, specialization);
        }
        let reasons = check_passes(&passes, caps);
        if !reasons.is_empty() {
            return Err(Error::Unsupported { reasons });
        }
        Ok(Plan {
            problem: problem.clone(),
            kernel,
            why,
            shared,
            force_checks: options.force_checks,
            passes,
            aux,
            scores_start,
            workspace_bytes,
        })
    }

    /// The kernel family that was chosen.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Why it was chosen; and where the device was requested without a feature, or with a
    /// limit too small, for a kernel that its class prefers, what to request.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Exact size of the workspace that recording needs, in bytes; 0 if none.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes
    }

    /// The problem it was made for.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Number of dispatches.
    pub fn dispatches(&self) -> usize {
        self.passes.len()
    }

    /// Shader, workgroups and grid of every dispatch, in order.
    pub fn describe_dispatches(&self) -> impl Iterator<Item = (&'static str, [u32; 2])> + '_ {
        self.passes
            .iter()
            .map(|pass| (pass.shader.name(), pass.grid))
    }

    /// Whether a device of these capabilities can run the plan, which may have been made
    /// for another: everything that was asked of that one is asked of this.
    pub(crate) fn check_device(&self, caps: &DeviceCaps) -> Result<()> {
        if self.passes.is_empty() {
            return Ok(());
        }
        let (task, kernel) = (&self.problem.task, self.kernel);
        let (aux_bytes, workspace_bytes) = (self.aux.words * 4, self.workspace_bytes);
        let mut reasons = check_whole(task, kernel, aux_bytes, workspace_bytes, caps);
        reasons.extend(check_passes(&self.passes, caps));
        let align = caps.alignment();
        if !self.scores_start.is_multiple_of(align) {
            reasons.push(Error::value(
                "device",
                format!("scores at byte {} of the workspace", self.scores_start),
                format!("an alignment of {align}"),
            ));
        }
        mismatch(reasons)
    }

    /// The host's lists, as the words of the region that the kernels read.
    pub(crate) fn host_words(&self) -> Vec<u32> {
        let mut words = vec![0; self.aux.words as usize];
        for (kind, source) in &self.problem.task.lists {
            if let ListSource::Host(values) = source {
                let at = self.aux.start(*kind) as usize;
                words[at..at + values.len()].copy_from_slice(values);
            }
        }
        words
    }
}

/// The most dispatches that a plan prints.
const MAX_SHOWN: usize = 64;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "problem: {}", self.problem)?;
        writeln!(f, "kernel: {:?} ({})", self.kernel, self.why)?;
        if self.shared {
            writeln!(
                f,
                "buffers: all bound read_write, inputs share a written buffer"
            )?;
        }
        write!(f, "workspace: {} bytes", self.workspace_bytes)?;
        if self.passes.is_empty() {
            write!(f, "\nnothing to do: an axis is empty")?;
        }
        for pass in self.passes.iter().take(MAX_SHOWN) {
            let (name, [x, y]) = (pass.shader.name(), pass.grid);
            let lanes = pass.shader.lanes(pass.specialization);
            write!(f, "\n  {name}: {x} x {y} workgroups of {lanes}")?;
        }
        match self.passes.len().saturating_sub(MAX_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// The shaders that a plan dispatches, each once, in the order of first use.
#[doc(hidden)]
pub fn emitted(plan: &Plan) -> Vec<(Shader, Specialization)> {
    let mut found = Vec::new();
    for pass in &plan.passes {
        let key = (pass.shader, pass.specialization);
        if !found.contains(&key) {
            found.push(key);
        }
    }
    found
}
