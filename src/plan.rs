//! A plan: which kernels run, over which parts, with which bindings. Inert
//! data, a pure function of the problem and the device's capabilities.

use std::fmt;

use crate::caps::DeviceCaps;
use crate::class;
use crate::error::{Error, Result};
use crate::kernel::{Access, Kernel, Shader, Slot};
use crate::lists::ListSource;
use crate::params::{CopyParams, Params};
use crate::problem::{Goal, Problem};
use crate::requirements::{check_passes, check_whole, mismatch};
use crate::specialization::{Specialization, canonical};
use crate::split::{holds_scores, split};
use crate::tiling::specialization;
use crate::{aux_layout::AuxLayout, passes};

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

/// The part of an operand that a pass binds, in bytes from the operand's
/// aligned start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bind {
    pub slot: Slot,
    /// `None`: the slot is not used and gets an idle buffer.
    pub range: Option<(u64, u64)>,
}

/// The uniform of a pass.
// A plan has few of them, all but the copies large.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Uniform {
    Attention(Params),
    Copy(CopyParams),
}

impl Uniform {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Uniform::Attention(params) => bytemuck::bytes_of(params),
            Uniform::Copy(params) => bytemuck::bytes_of(params),
        }
    }
}

/// One dispatch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pass {
    pub shader: Shader,
    pub specialization: Specialization,
    pub grid: [u32; 2],
    pub uniform: Uniform,
    pub binds: Vec<Bind>,
    /// For `copy_words`: the list it reads, or `None` for the host's lists.
    pub source: Option<crate::lists::ListKind>,
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
        Plan::find(problem, caps, options).map_err(|error| problem.goal.in_its_words(error))
    }

    fn find(problem: &Problem, caps: &DeviceCaps, options: &PlanOptions) -> Result<Plan> {
        let (kernel, why) = choose(problem, caps, options)?;
        let shared = problem.shared || options.shared_buffers;
        let aux = AuxLayout::new(problem);
        let chunks = split(problem, kernel, caps);
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
        let gathered = if problem.has_device_lists() {
            aux_bytes
        } else {
            0
        };
        let scores_start = gathered.next_multiple_of(caps.alignment());
        let scores_bytes = match holds_scores(problem, kernel) {
            true => chunks.iter().map(|chunk| chunk.pairs(problem) * 4).max(),
            false => None,
        };
        let scores_bytes = scores_bytes.unwrap_or(0);
        let workspace_bytes = match scores_bytes {
            0 => gathered,
            _ => scores_start + scores_bytes,
        };
        let mut reasons = check_whole(problem, kernel, aux_bytes, workspace_bytes, caps);
        reasons.extend(misfits);
        if !reasons.is_empty() {
            return Err(Error::Unsupported { reasons });
        }
        // Gathered lists and scores lie in one workspace: what writes the
        // scores cannot bind the lists read-only.
        let mixed = gathered > 0 && scores_bytes > 0;
        let mut passes = passes::gather(problem, &aux, caps);
        for chunk in &chunks {
            passes.extend(passes::attention(problem, kernel, chunk, &aux, caps));
        }
        for pass in &mut passes {
            let writes = |(bind, (_, access)): (&Bind, &(Slot, Access))| {
                bind.slot == Slot::Scores && *access == Access::Write
            };
            let writes_scores = pass.binds.iter().zip(pass.shader.slots()).any(writes);
            let specialization = Specialization {
                shared: shared || (mixed && writes_scores),
                ..specialization(problem, kernel, caps)
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
        let (problem, kernel) = (&self.problem, self.kernel);
        let (aux_bytes, workspace_bytes) = (self.aux.words * 4, self.workspace_bytes);
        let mut reasons = check_whole(problem, kernel, aux_bytes, workspace_bytes, caps);
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
        for (kind, source) in &self.problem.lists {
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

fn choose(problem: &Problem, caps: &DeviceCaps, options: &PlanOptions) -> Result<(Kernel, String)> {
    match (&problem.goal, options.kernel) {
        (Goal::Stage(..), None | Some(Kernel::Staged)) => {
            Ok((Kernel::Staged, "scores are asked for".to_owned()))
        }
        (Goal::Stage(..), Some(kernel)) => Err(Error::value(
            "kernel",
            "Staged, the only one that writes scores",
            format!("{kernel:?}"),
        )),
        (_, Some(kernel)) => Ok((kernel, "forced by the caller".to_owned())),
        (Goal::Forward, None) => Ok(class::choose(problem, caps)),
        (_, None) => {
            let (kernel, why) = class::choose(problem, caps);
            Ok((kernel, format!("as for a forward pass; {why}")))
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
