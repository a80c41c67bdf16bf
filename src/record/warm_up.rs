//! Warming up: letting a driver that compiles at the first dispatch compile now.

use std::sync::Arc;

use crate::error::Result;
use crate::kernel::scope::scoped;
use crate::record::attention::Prepared;

impl Prepared {
    /// Submits one idle workgroup for each pipeline of the plan, so that what a
    /// driver puts off until a pipeline's first dispatch is done before the
    /// dispatch that matters. lavapipe compiles then: 0.1 to 7 s, once.
    ///
    /// The workgroup reads from its uniform that there is nothing to do, and
    /// returns: it touches no memory of the caller's. This is the one call on a
    /// caller's device that submits; it waits for nothing. To wait, hand the
    /// index to [`wgpu::Device::poll`]. `None`: the plan dispatches nothing.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if the device refuses,
    /// [`Error::DeviceLost`](crate::Error::DeviceLost) if it is lost.
    pub fn warm_up(&self) -> Result<Option<wgpu::SubmissionIndex>> {
        self.attention.check_faults()?;
        let mut pending = Vec::new();
        for (pass, pipeline) in self.plan.passes.iter().zip(&self.pipelines) {
            if !pending.iter().any(|(_, seen)| Arc::ptr_eq(pipeline, seen)) {
                pending.push((pass.shader, Arc::clone(pipeline)));
            }
        }
        if pending.is_empty() {
            return Ok(None);
        }
        let (device, queue) = (self.attention.device(), self.attention.queue());
        let index = scoped(device, "warming up", || {
            let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor {
                label: Some("attention warm-up"),
            });
            let mut compute = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: Some("attention warm-up"),
                timestamp_writes: None,
            });
            for (shader, pipeline) in &pending {
                let slots = shader.slots().iter().enumerate();
                let slots = slots.map(|(at, (_, access))| self.attention.idle_slot(at, *access));
                let bindings = [self.attention.idle_uniform()].into_iter().chain(slots);
                let entries: Vec<_> = (0..)
                    .zip(bindings)
                    .map(|(binding, buffer)| wgpu::BindGroupEntry {
                        binding,
                        resource: wgpu::BindingResource::Buffer(buffer),
                    })
                    .collect();
                let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
                    label: Some(shader.name()),
                    layout: &pipeline.layout,
                    entries: &entries,
                });
                compute.set_pipeline(&pipeline.pipeline);
                compute.set_bind_group(0, &group, &[]);
                compute.dispatch_workgroups(1, 1, 1);
            }
            drop(compute);
            queue.submit([encoder.finish()])
        })?;
        Ok(Some(index))
    }
}
