//! The entry point: a device's kernels, and plans made ready to record.

use std::sync::{Arc, OnceLock};

use crate::error::Result;
use crate::kernel::pipeline::{Pipeline, Pipelines};
use crate::kernel::pipeline_cache;
use crate::kernel::scope::scoped;
use crate::kernel::shader::Access;
use crate::kernel::uniform::Params;
use crate::plan::caps::DeviceCaps;
use crate::plan::plan::Plan;
use crate::record::faults::Faults;

/// Attention on one device: planning, and the pipelines made so far.
///
/// A guest on the caller's device: it never submits, polls or maps when
/// recording. Cheap to clone; clones share their pipelines, and so do threads,
/// each of which may plan, prepare and record.
#[derive(Debug, Clone)]
pub struct Attention {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub caps: DeviceCaps,
    pub pipelines: Arc<Pipelines>,
    /// Bound where a problem has no bias, mask or list: a slot of 256 bytes for
    /// each binding, so that no two of them overlap; one buffer for what is
    /// read and one for what is written, which wgpu keeps apart by buffer.
    idle: [wgpu::Buffer; 2],
    /// Zeros: a uniform that leaves a workgroup nothing to do.
    idle_uniform: wgpu::Buffer,
    /// Stays empty on a guest's device.
    faults: Faults,
    /// Whether the queue is known to be the device's.
    pub queue_is_own: OnceLock<()>,
}

/// Bytes of the uniform that idle workgroups read: as many zeros as the largest has.
const IDLE_UNIFORM: u64 = size_of::<Params>() as u64;

/// Bytes between the idle slots, the largest alignment WebGPU lets a device ask for.
const IDLE_STRIDE: u64 = 256;

/// More bindings than any shader has.
const IDLE_SLOTS: u64 = 10;

impl Attention {
    /// Attention on the caller's device.
    ///
    /// `queue` has to be the device's own. wgpu does not tell whose queue one is, and
    /// finding out takes waiting, which a guest does not: calls over slices find out and
    /// return an error. What [`Prepared::warm_up`] or you submit to the queue of another
    /// device is refused to that device's handler of uncaptured errors, which panics
    /// unless its owner set another.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if the device refuses to create a small
    /// buffer, [`Error::DeviceLost`](crate::Error::DeviceLost) if it is lost.
    ///
    /// # Lost devices
    /// On native backends this, [`Attention::prepare`], [`Prepared::warm_up`],
    /// [`Prepared::record`] and everything over slices notice that the device is lost by
    /// then; [`Attention::plan`] asks nothing of it. Of a loss after the recording wgpu
    /// tells by the device's lost callback, which is its owner's to set, and by what is
    /// read: submitting to a lost device does nothing, and mapping a buffer of one fails.
    /// In a browser the callback alone tells, and for refused objects the device's handler
    /// of uncaptured errors.
    pub fn new(device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Attention> {
        Attention::with_faults(device, queue, Faults::default())
    }

    pub(crate) fn with_faults(
        device: &wgpu::Device,
        queue: &wgpu::Queue,
        faults: Faults,
    ) -> Result<Attention> {
        let (storage, uniform) = (wgpu::BufferUsages::STORAGE, wgpu::BufferUsages::UNIFORM);
        let [inputs, outputs, idle_uniform] = scoped(device, "creating the idle buffers", || {
            [
                ("attention idle inputs", IDLE_STRIDE * IDLE_SLOTS, storage),
                ("attention idle outputs", IDLE_STRIDE * IDLE_SLOTS, storage),
                ("attention idle uniform", IDLE_UNIFORM, uniform),
            ]
            .map(|(label, size, usage)| {
                device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some(label),
                    size,
                    usage,
                    mapped_at_creation: false,
                })
            })
        })?;
        Ok(Attention {
            shared: Arc::new(Shared {
                device: device.clone(),
                queue: queue.clone(),
                caps: DeviceCaps::of(device),
                pipelines: Arc::new(Pipelines::new(pipeline_cache::empty(device)?)),
                idle: [inputs, outputs],
                idle_uniform,
                faults,
                queue_is_own: OnceLock::new(),
            }),
        })
    }

    /// The device.
    pub fn device(&self) -> &wgpu::Device {
        &self.shared.device
    }

    /// The queue.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.shared.queue
    }

    /// What planning knows of the device.
    pub fn caps(&self) -> &DeviceCaps {
        &self.shared.caps
    }

    /// Number of pipelines made so far.
    pub fn pipelines(&self) -> usize {
        self.shared.pipelines.len()
    }

    /// Makes a plan recordable: pipelines, the immutable uniforms of its
    /// dispatches, and the host's lists.
    ///
    /// # Errors
    /// [`Error::PlanMismatch`](crate::Error::PlanMismatch) with every reason if the plan was made for
    /// another device and relies on what this one lacks: a limit, a feature, a size of
    /// subgroups, an alignment, loops as long as its kernel's;
    /// [`Error::Device`](crate::Error::Device) if the device refuses,
    /// [`Error::DeviceLost`](crate::Error::DeviceLost) if it is lost.
    pub fn prepare(&self, plan: &Plan) -> Result<Prepared> {
        self.check_faults()?;
        plan.check_device(self.caps())?;
        let device = self.device();
        let mut pipelines = Vec::with_capacity(plan.passes.len());
        for pass in &plan.passes {
            let checked = plan.force_checks || !pass.shader.is_proven();
            let key = (pass.shader, pass.specialization, checked);
            pipelines.push(self.shared.pipelines.get(device, key)?);
        }
        let align = u64::from(device.limits().min_uniform_buffer_offset_alignment);
        let mut bytes = Vec::new();
        let mut uniform_starts = Vec::with_capacity(plan.passes.len());
        for pass in &plan.passes {
            bytes.resize((bytes.len() as u64).next_multiple_of(align) as usize, 0);
            uniform_starts.push(bytes.len() as u64);
            bytes.extend_from_slice(pass.uniform.bytes());
        }
        let words = plan.host_words();
        let filled = |label: &str, contents: &[u8], usage: wgpu::BufferUsages| {
            let made = (!contents.is_empty()).then(|| self.filled(label, contents, usage));
            made.transpose()
        };
        let uniforms = filled("attention uniforms", &bytes, wgpu::BufferUsages::UNIFORM)?;
        let words = bytemuck::cast_slice(&words);
        let constants = filled("attention lists", words, wgpu::BufferUsages::STORAGE)?;
        Ok(Prepared {
            attention: self.clone(),
            plan: plan.clone(),
            pipelines,
            uniforms,
            uniform_starts,
            constants,
        })
    }

    /// The same with other choices of kernels; it shares the pipelines.
    #[cfg(all(feature = "tune", not(target_family = "wasm")))]
    pub(crate) fn with_choices(&self, tuned: Vec<crate::Tuned>) -> Attention {
        let mut shared = Shared::clone(&self.shared);
        shared.caps.tuned = tuned;
        Attention {
            shared: Arc::new(shared),
        }
    }

    /// The same with no pipelines made yet.
    #[cfg(all(feature = "tune", not(target_family = "wasm")))]
    pub(crate) fn without_pipelines(&self) -> Result<Attention> {
        let mut shared = Shared::clone(&self.shared);
        shared.pipelines = Arc::new(Pipelines::new(pipeline_cache::empty(self.device())?));
        Ok(Attention {
            shared: Arc::new(shared),
        })
    }

    pub(crate) fn check_faults(&self) -> Result<()> {
        self.shared.faults.check()
    }

    /// The uniform of an idle workgroup; wgpu fills new buffers with zeros.
    pub(crate) fn idle_uniform(&self) -> wgpu::BufferBinding<'_> {
        self.shared.idle_uniform.as_entire_buffer_binding()
    }

    pub(crate) fn idle_slot(&self, binding: usize, access: Access) -> wgpu::BufferBinding<'_> {
        let [read, written] = &self.shared.idle;
        wgpu::BufferBinding {
            buffer: match access {
                Access::Read => read,
                Access::Write => written,
            },
            offset: binding as u64 * IDLE_STRIDE,
            size: wgpu::BufferSize::new(IDLE_STRIDE),
        }
    }
}

/// A plan with its pipelines and constants: ready to be recorded any number of
/// times, into any encoder of its device.
#[derive(Debug, Clone)]
pub struct Prepared {
    pub(crate) attention: Attention,
    pub(crate) plan: Plan,
    pub(crate) pipelines: Vec<Arc<Pipeline>>,
    pub(crate) uniforms: Option<wgpu::Buffer>,
    pub(crate) uniform_starts: Vec<u64>,
    pub(crate) constants: Option<wgpu::Buffer>,
}

impl Prepared {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}
