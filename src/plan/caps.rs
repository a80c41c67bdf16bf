//! What planning needs to know of a device.

use crate::kernel::specialization::Lanes;
use crate::plan::device_class::{DeviceClass, is_llvmpipe};
use crate::plan::tuned::Tuned;

/// The limits that planning reads, from a device or written by hand.
///
/// Of [`wgpu::Limits`] a dispatch of this crate relies on those that are fields here, and
/// on `min_uniform_buffer_offset_alignment`, which is read when a plan is
/// [prepared](crate::Attention::prepare). On the others it does not rely: it has one bind
/// group without dynamic offsets, a uniform buffer and at most 8 storage buffers, no
/// immediates, textures, samplers, binding arrays, vertex buffers or acceleration
/// structures, and workgroups of one dimension; `max_non_sampler_bindings` counts what
/// all bind groups of a D3D12 device hold together, which only its owner can know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCaps {
    /// Largest binding of a storage buffer, in bytes.
    pub max_storage_buffer_binding_size: u64,
    /// Largest buffer, in bytes.
    pub max_buffer_size: u64,
    /// Alignment of a storage binding's offset, in bytes.
    pub min_storage_buffer_offset_alignment: u32,
    /// Storage buffers a shader stage may bind.
    pub max_storage_buffers_per_shader_stage: u32,
    /// Workgroups in each dimension of a dispatch.
    pub max_compute_workgroups_per_dimension: u32,
    /// Invocations a workgroup.
    pub max_compute_invocations_per_workgroup: u32,
    /// Bytes of workgroup memory.
    pub max_compute_workgroup_storage_size: u32,
    /// Invocations a workgroup in its first dimension, the only one in use.
    pub max_compute_workgroup_size_x: u32,
    /// Largest binding of a uniform buffer, in bytes.
    pub max_uniform_buffer_binding_size: u64,
    /// Uniform buffers a shader stage may bind.
    pub max_uniform_buffers_per_shader_stage: u32,
    /// Uniform and storage buffers a shader stage may bind, together; `u32::MAX` under
    /// strict WebGPU rules, which have no such limit.
    pub max_buffers_and_acceleration_structures_per_shader_stage: u32,
    /// Bind groups of a pipeline.
    pub max_bind_groups: u32,
    /// Bindings of a bind group.
    pub max_bindings_per_bind_group: u32,
    /// Whether two read_write bindings of one dispatch must not overlap
    /// (browsers check this; wgpu on native backends does not).
    pub checks_writable_aliasing: bool,
    /// Iterations of all its loops together after which the driver ends an
    /// invocation's loops, without an error. Mesa's llvmpipe (lavapipe) does
    /// after 65,535; `None` where no such limit is known.
    pub max_loop_iterations: Option<u32>,
    /// Lanes of the smallest subgroup, if the device has the feature `SUBGROUP`
    /// and its shaders need no directive for it (browsers' do).
    pub min_subgroup_size: Option<u32>,
    /// The kind of device, which says what kernels suit it.
    pub class: DeviceClass,
    /// What was measured on this very device, before what its class suggests.
    pub tuned: Vec<Tuned>,
    /// Lanes of a subgroup, if the device has the feature `SUBGROUP`, subgroups of one
    /// size only, and shaders that need no directive for them.
    pub subgroup_size: Option<u32>,
    /// Whether the device has the feature `SHADER_INT64`.
    pub shader_int64: bool,
    /// Lanes of the adapter's smallest and largest subgroup, where they are known,
    /// whether or not the device has the feature `SUBGROUP`. No kernel is chosen by them:
    /// [`Plan::why`](crate::Plan::why) says by them what the feature would give.
    pub adapter_subgroup_sizes: Option<[u32; 2]>,
}

/// `LP_MAX_TGSI_LOOP_ITERATIONS` of Mesa.
const LLVMPIPE_LOOP_ITERATIONS: u32 = 65_535;

impl DeviceCaps {
    /// The capabilities of a device.
    pub fn of(device: &wgpu::Device) -> Self {
        DeviceCaps::reported(&device.limits(), device.features(), &device.adapter_info())
    }

    /// The capabilities by what a device reports of itself.
    fn reported(limits: &wgpu::Limits, features: wgpu::Features, info: &wgpu::AdapterInfo) -> Self {
        let in_browser = info.backend == wgpu::Backend::BrowserWebGpu;
        let [least, most] = [info.subgroup_min_size, info.subgroup_max_size];
        let subgroups = features.contains(wgpu::Features::SUBGROUP) && !in_browser;
        DeviceCaps {
            checks_writable_aliasing: in_browser,
            max_loop_iterations: is_llvmpipe(info).then_some(LLVMPIPE_LOOP_ITERATIONS),
            min_subgroup_size: subgroups.then_some(least),
            class: DeviceClass::of(info),
            subgroup_size: (subgroups && least == most).then_some(least),
            shader_int64: features.contains(wgpu::Features::SHADER_INT64),
            adapter_subgroup_sizes: subgroup_sizes(info),
            ..DeviceCaps::from_limits(limits)
        }
    }

    /// The capabilities that a set of limits gives.
    pub fn from_limits(limits: &wgpu::Limits) -> Self {
        DeviceCaps {
            max_storage_buffer_binding_size: limits.max_storage_buffer_binding_size,
            max_buffer_size: limits.max_buffer_size,
            min_storage_buffer_offset_alignment: limits.min_storage_buffer_offset_alignment,
            max_storage_buffers_per_shader_stage: limits.max_storage_buffers_per_shader_stage,
            max_compute_workgroups_per_dimension: limits.max_compute_workgroups_per_dimension,
            max_compute_invocations_per_workgroup: limits.max_compute_invocations_per_workgroup,
            max_compute_workgroup_storage_size: limits.max_compute_workgroup_storage_size,
            max_compute_workgroup_size_x: limits.max_compute_workgroup_size_x,
            max_uniform_buffer_binding_size: limits.max_uniform_buffer_binding_size,
            max_uniform_buffers_per_shader_stage: limits.max_uniform_buffers_per_shader_stage,
            // Not one of WebGPU's: 0 under its strict rules, and not checked then.
            max_buffers_and_acceleration_structures_per_shader_stage: match limits
                .max_buffers_and_acceleration_structures_per_shader_stage
            {
                0 => u32::MAX,
                limit => limit,
            },
            max_bind_groups: limits.max_bind_groups,
            max_bindings_per_bind_group: limits.max_bindings_per_bind_group,
            checks_writable_aliasing: false,
            max_loop_iterations: None,
            min_subgroup_size: None,
            class: DeviceClass::Unknown,
            tuned: Vec::new(),
            subgroup_size: None,
            shader_int64: false,
            adapter_subgroup_sizes: None,
        }
    }

    /// What the device could do had it been requested with the feature `SUBGROUP`, as far
    /// as the adapter tells.
    pub(crate) fn with_subgroups(&self) -> Option<DeviceCaps> {
        let [least, most] = self.adapter_subgroup_sizes?;
        self.min_subgroup_size.is_none().then(|| DeviceCaps {
            min_subgroup_size: Some(least),
            subgroup_size: (least == most).then_some(least),
            ..self.clone()
        })
    }

    /// The lanes that a lane-broadcast kernel uses, if the device's subgroups
    /// have them. A workgroup of 8 is the first 8 lanes of a wider subgroup.
    pub(crate) fn lanes(&self) -> Option<Lanes> {
        match self.subgroup_size {
            Some(4) => Some(Lanes::Four),
            Some(8..) => Some(Lanes::Eight),
            _ => None,
        }
    }

    /// Alignment of bindings in bytes, at least a word.
    pub(crate) fn alignment(&self) -> u64 {
        u64::from(self.min_storage_buffer_offset_alignment).max(4)
    }

    /// WebGPU's default limits: what every conforming device has.
    pub fn webgpu_default() -> Self {
        DeviceCaps::from_limits(&wgpu::Limits::default())
    }
}

impl Default for DeviceCaps {
    fn default() -> Self {
        DeviceCaps::webgpu_default()
    }
}

/// The sizes of an adapter's subgroups. A driver that does not tell has those that wgpu
/// puts in their place; a browser's shaders would need a directive.
fn subgroup_sizes(info: &wgpu::AdapterInfo) -> Option<[u32; 2]> {
    let sizes = [info.subgroup_min_size, info.subgroup_max_size];
    let unknown = [
        wgpu::MINIMUM_SUBGROUP_MIN_SIZE,
        wgpu::MAXIMUM_SUBGROUP_MAX_SIZE,
    ];
    (sizes != unknown && info.backend != wgpu::Backend::BrowserWebGpu).then_some(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::kernel::Kernel;
    use wgpu::{Backend, Features};

    /// Under strict rules wgpu says 0 of limits that WebGPU does not have.
    #[test]
    fn limits_that_webgpu_does_not_have_refuse_no_kernel() {
        let strict = DeviceCaps::from_limits(&wgpu::Limits {
            max_buffers_and_acceleration_structures_per_shader_stage: 0,
            ..wgpu::Limits::default()
        });
        let kernels: Vec<_> = strict.kernels().collect();
        assert_eq!(kernels, [Kernel::Tiled, Kernel::Staged]);
        assert_eq!(kernels, DeviceCaps::default().kernels().collect::<Vec<_>>());
    }

    /// A browser's shaders need `enable subgroups;`, which naga refuses: no kernel with
    /// subgroups can run there, whatever the device says it has.
    #[test]
    fn a_browser_has_no_subgroups() {
        let told = |backend, sizes: [u32; 2], features| {
            let info = wgpu::AdapterInfo {
                subgroup_min_size: sizes[0],
                subgroup_max_size: sizes[1],
                ..wgpu::AdapterInfo::new(wgpu::DeviceType::DiscreteGpu, backend)
            };
            DeviceCaps::reported(&wgpu::Limits::default(), features, &info)
        };
        let kernels = |caps: &DeviceCaps| caps.kernels().collect::<Vec<_>>();
        for features in [Features::SUBGROUP, Features::all()] {
            for sizes in [[4, 4], [8, 8], [32, 32], [8, 32], [4, 128]] {
                let native = told(Backend::Vulkan, sizes, features);
                assert_eq!(native.min_subgroup_size, Some(sizes[0]));
                let one_size = (sizes[0] == sizes[1]).then_some(sizes[0]);
                assert_eq!(native.subgroup_size, one_size);
                assert!(kernels(&native).contains(&Kernel::TiledSubgroup));
                let browser = told(Backend::BrowserWebGpu, sizes, features);
                assert_eq!(browser.min_subgroup_size, None);
                assert_eq!(browser.subgroup_size, None);
                assert_eq!(browser.adapter_subgroup_sizes, None);
                assert_eq!(kernels(&browser), kernels(&DeviceCaps::default()));
                assert!(browser.checks_writable_aliasing);
            }
        }
        let without = told(Backend::Vulkan, [8, 8], Features::empty());
        assert_eq!(
            [without.subgroup_size, without.min_subgroup_size],
            [None; 2]
        );
    }
}
