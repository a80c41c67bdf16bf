//! Pipelines, made once for each shader and specialisation.

use crate::kernel::scope::scoped;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::kernel::compose::compose;
use crate::kernel::shader::{Access, Shader};
use crate::kernel::specialization::Specialization;

/// A pipeline and the layout of its bind group.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub pipeline: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// What a pipeline is made from; the last says whether wgpu's checks of
/// indices, loops and divisions are in it.
type Key = (Shader, Specialization, bool);

/// Pipelines made so far on one device.
#[derive(Debug)]
pub(crate) struct Pipelines {
    made: Mutex<HashMap<Key, Arc<Pipeline>>>,
    /// Texts in the place of the composed ones, by [`Specialization::file_stem`].
    texts: HashMap<String, String>,
    /// Where the driver keeps what can be saved, if the device has such a thing.
    saved: Mutex<Option<wgpu::PipelineCache>>,
}

impl Pipelines {
    /// None made; `saved` receives what the driver compiles.
    pub fn new(saved: Option<wgpu::PipelineCache>) -> Self {
        Pipelines {
            made: Mutex::default(),
            texts: HashMap::new(),
            saved: Mutex::new(saved),
        }
    }

    /// The same with texts of its own for some shaders, by their files' stems.
    pub fn with_texts(mut self, texts: HashMap<String, String>) -> Self {
        self.texts = texts;
        self
    }

    /// The driver's cache.
    pub fn saved(&self) -> Option<wgpu::PipelineCache> {
        lock(&self.saved).clone()
    }

    /// Makes pipelines from now on with another cache.
    pub fn save_in(&self, cache: wgpu::PipelineCache) {
        *lock(&self.saved) = Some(cache);
    }

    /// The pipeline for `key`, made now if it is new.
    ///
    /// Two threads that ask for the same new key may both make it; one is kept.
    pub fn get(&self, device: &wgpu::Device, key: Key) -> Result<Arc<Pipeline>> {
        if let Some(pipeline) = lock(&self.made).get(&key) {
            return Ok(pipeline.clone());
        }
        let label = key.0.name();
        let made = scoped(device, format_args!("creating pipeline {label}"), || {
            let module = self.module(device, key);
            create(device, key, &module, self.saved().as_ref())
        })?;
        Ok(lock(&self.made)
            .entry(key)
            .or_insert(Arc::new(made))
            .clone())
    }

    /// The shader module; a text of its own runs with all checks.
    fn module(&self, device: &wgpu::Device, key: Key) -> wgpu::ShaderModule {
        let (shader, specialization, checked) = key;
        match self.texts.get(&specialization.file_stem(shader)) {
            Some(text) => device.create_shader_module(wgpu::ShaderModuleDescriptor {
                label: Some(shader.name()),
                source: wgpu::ShaderSource::Wgsl(text.into()),
            }),
            None => module(device, shader, specialization, checked),
        }
    }

    /// Number of pipelines made so far.
    pub fn len(&self) -> usize {
        lock(&self.made).len()
    }
}

/// What is locked here is whole even if a thread panicked while holding it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn create(
    device: &wgpu::Device,
    (shader, specialization, _): Key,
    module: &wgpu::ShaderModule,
    cache: Option<&wgpu::PipelineCache>,
) -> Pipeline {
    let label = Some(shader.name());
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
    for (index, (_, access)) in shader.slots().iter().enumerate() {
        let read_only = *access == Access::Read && !specialization.shared;
        let ty = wgpu::BufferBindingType::Storage { read_only };
        entries.push(buffer(index as u32 + 1, ty));
    }
    let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label,
        entries: &entries,
    });
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label,
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label,
        layout: Some(&pipeline_layout),
        module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            // Every kernel writes its workgroup memory before it reads it.
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache,
    });
    Pipeline { pipeline, layout }
}

/// The shader module, without runtime checks unless `checked`.
#[allow(unsafe_code)]
fn module(
    device: &wgpu::Device,
    shader: Shader,
    specialization: Specialization,
    checked: bool,
) -> wgpu::ShaderModule {
    let descriptor = wgpu::ShaderModuleDescriptor {
        label: Some(shader.name()),
        source: wgpu::ShaderSource::Wgsl(compose(shader, specialization).text.into()),
    };
    if checked {
        return device.create_shader_module(descriptor);
    }
    debug_assert!(shader.is_proven());
    // SAFETY: wgpu asks for a shader that indexes in range, whose loops end and
    // whose divisors are not 0. Callers pass `checked` unless `is_proven`: then
    // the shader's text proves it from the uniform and the bindings of a plan.
    // Those come from `Plan::new` alone; `Prepared::check_operands` compares
    // the operands at each recording, and the idle workgroups of `warm_up`
    // return before they index anything.
    unsafe {
        let checks = wgpu::ShaderRuntimeChecks::unchecked();
        device.create_shader_module_trusted(descriptor, checks)
    }
}
