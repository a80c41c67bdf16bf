//! The wgpu calls of a recording by hand, with nothing else: what recording
//! costs before this crate does anything.

use wgpu_attention::shaders::{Access, Shader, Slot, Specialization, compose};
use wgpu_attention::testing::{Dispatch, dispatches};
use wgpu_attention::{Plan, wgpu};

use super::{Buffers, Noop};

/// A plan's dispatches over buffers of a test, ready to be recorded.
pub struct Bare {
    device: wgpu::Device,
    uniform: wgpu::Buffer,
    steps: Vec<Step>,
}

struct Step {
    name: &'static str,
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
    grid: [u32; 2],
    /// Binding 0 first.
    bindings: Vec<(wgpu::Buffer, u64, u64)>,
}

const MOST_BINDINGS: usize = 9;
const MOST_STEPS: usize = 12;

impl Bare {
    /// For plans over f32 keys and values whose buffers are not shared.
    pub fn new(noop: &Noop, plan: &Plan, buffers: &Buffers) -> Bare {
        // Filled when made, as the library's are: wgpu lists what it has to clear first.
        let filled = |usage| {
            let buffer = noop.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: 1 << 16,
                usage,
                mapped_at_creation: true,
            });
            buffer.unmap();
            buffer
        };
        let uniform = filled(wgpu::BufferUsages::UNIFORM);
        let constants = filled(wgpu::BufferUsages::STORAGE);
        let workspace = noop.buffer(1 << 20);
        // What is not used binds one buffer for all that is read, one for the rest.
        let idle = [noop.buffer(1 << 12), noop.buffer(1 << 12)];
        let dispatches = dispatches(plan);
        let copies = |dispatch: &Dispatch| dispatch.shader == Shader::CopyWords;
        let gathered = dispatches.iter().any(copies);
        let found = |slot: Slot| match slot {
            Slot::Query => &buffers.query,
            Slot::Key => &buffers.key,
            Slot::Value => &buffers.value,
            Slot::Output => &buffers.output,
            Slot::Stats => &buffers.stats,
            Slot::Bias => &buffers.bias,
            Slot::Mask => &buffers.mask,
            Slot::Source => &buffers.list,
            Slot::Aux if !gathered => &constants,
            Slot::Aux | Slot::Scores => &workspace,
            Slot::Norms | Slot::Received => unreachable!("of inspections"),
        };
        let steps = dispatches.into_iter().enumerate().map(|(n, dispatch)| {
            let (pipeline, layout) = pipeline(&noop.device, &dispatch);
            let offset = n as u64 * 512;
            let mut bindings = vec![(uniform.clone(), offset, dispatch.uniform.len() as u64)];
            let slots = dispatch.binds.iter().zip(dispatch.shader.slots());
            for (position, ((slot, range), (_, access))) in slots.enumerate() {
                bindings.push(match range {
                    Some((start, end)) => (found(*slot).clone(), *start, end - start),
                    None => {
                        let buffer = idle[usize::from(*access == Access::Write)].clone();
                        (buffer, position as u64 * 256, 256)
                    }
                });
            }
            Step {
                name: dispatch.shader.name(),
                pipeline,
                layout,
                grid: dispatch.grid,
                bindings,
            }
        });
        Bare {
            device: noop.device.clone(),
            steps: steps.collect(),
            uniform,
        }
    }

    /// Makes the bind group of each dispatch and records all of them in a pass;
    /// with `scopes`, errors are caught by scopes and a lost device is noticed, as a
    /// guest has to.
    pub fn record(&self, encoder: &mut wgpu::CommandEncoder, scopes: bool) {
        use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};
        let scopes = scopes
            .then(|| [OutOfMemory, Internal, Validation].map(|f| self.device.push_error_scope(f)));
        let mut groups: [Option<wgpu::BindGroup>; MOST_STEPS] = [const { None }; MOST_STEPS];
        for (group, step) in groups.iter_mut().zip(&self.steps) {
            *group = Some(self.bind(step));
        }
        if let Some([memory, internal, validation]) = scopes {
            drop((validation.pop(), internal.pop(), memory.pop()));
            // Whether the device is lost shows by whether it refuses.
            let refusal = self.device.push_error_scope(Validation);
            let _ = self.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: 0,
                usage: wgpu::BufferUsages::empty(),
                mapped_at_creation: false,
            });
            drop(refusal.pop());
        }
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: Some("attention"),
            timestamp_writes: None,
        });
        for (step, group) in self.steps.iter().zip(&groups) {
            pass.set_pipeline(&step.pipeline);
            pass.set_bind_group(0, group, &[]);
            pass.dispatch_workgroups(step.grid[0], step.grid[1], 1);
        }
    }

    /// The bind group of one dispatch.
    fn bind(&self, step: &Step) -> wgpu::BindGroup {
        let entries: [_; MOST_BINDINGS] = std::array::from_fn(|index| {
            let (buffer, offset, size) = match step.bindings.get(index) {
                Some((buffer, offset, size)) => (buffer, *offset, *size),
                None => (&self.uniform, 0, 16),
            };
            wgpu::BindGroupEntry {
                binding: index as u32,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer,
                    offset,
                    size: wgpu::BufferSize::new(size),
                }),
            }
        });
        self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(step.name),
            layout: &step.layout,
            entries: &entries[..step.bindings.len()],
        })
    }

    /// The bind group of the first dispatch alone.
    pub fn bind_first(&self) -> wgpu::BindGroup {
        self.bind(&self.steps[0])
    }
}

fn pipeline(
    device: &wgpu::Device,
    dispatch: &Dispatch,
) -> (wgpu::ComputePipeline, wgpu::BindGroupLayout) {
    let label = Some(dispatch.shader.name());
    let buffer = |binding: u32, ty: wgpu::BufferBindingType| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty,
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    };
    let mut entries = vec![buffer(0, wgpu::BufferBindingType::Uniform)];
    for (index, (_, access)) in dispatch.shader.slots().iter().enumerate() {
        let read_only = *access == Access::Read;
        let ty = wgpu::BufferBindingType::Storage { read_only };
        entries.push(buffer(index as u32 + 1, ty));
    }
    let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label,
        entries: &entries,
    });
    let text = compose(dispatch.shader, Specialization::GENERAL).text;
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label,
        source: wgpu::ShaderSource::Wgsl(text.into()),
    });
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label,
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label,
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache: None,
    });
    (pipeline, layout)
}
