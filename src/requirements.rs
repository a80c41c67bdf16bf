//! What kernels and lists need of a device, and every reason why one falls short.

use crate::caps::DeviceCaps;
use crate::error::Error;
use crate::kernel::Kernel;
use crate::lists::ListSource;
use crate::passes;
use crate::problem::{PHASE, Problem};
use crate::tiling::Tiling;

/// What every kernel needs of a device, whatever the problem.
pub(crate) fn check_device(caps: &DeviceCaps, kernel: Kernel) -> Vec<Error> {
    let shaders = kernel.shaders();
    let mut reasons = Vec::new();
    if kernel == Kernel::LaneBroadcast && caps.lanes().is_none() {
        reasons.push(Error::value(
            "device",
            "the feature SUBGROUP and subgroups of one size, 4 or at least 8 lanes",
            match caps.subgroup_size {
                Some(size) => format!("subgroups of {size} lanes"),
                None => "no subgroups of one size".to_owned(),
            },
        ));
    }
    let quads = caps.min_subgroup_size.is_some_and(|lanes| lanes >= 4);
    if kernel == Kernel::TiledSubgroup && !quads {
        reasons.push(Error::value(
            "device",
            "the feature SUBGROUP and subgroups of at least 4 lanes",
            match caps.min_subgroup_size {
                Some(size) => format!("subgroups of {size} lanes"),
                None => "no subgroups".to_owned(),
            },
        ));
    }
    let align = caps.alignment();
    if !PHASE.is_multiple_of(align) {
        reasons.push(Error::Limit {
            what: "alignment of bindings, a divisor of".to_owned(),
            needed: PHASE,
            limit_name: "min_storage_buffer_offset_alignment",
            limit: align,
        });
    }
    let tiling = Tiling::of(kernel, 0, caps);
    let buffers = shaders.iter().map(|shader| shader.slots().len()).max();
    let needs = [
        (
            "storage buffers of one dispatch",
            buffers.unwrap_or(0) as u64,
            "max_storage_buffers_per_shader_stage",
            u64::from(caps.max_storage_buffers_per_shader_stage),
        ),
        (
            "invocations of one workgroup",
            u64::from(tiling.lanes),
            "max_compute_invocations_per_workgroup",
            u64::from(caps.max_compute_invocations_per_workgroup),
        ),
        (
            "workgroup memory in bytes",
            tiling.memory,
            "max_compute_workgroup_storage_size",
            u64::from(caps.max_compute_workgroup_storage_size),
        ),
    ];
    let short = needs
        .into_iter()
        .filter(|(_, needed, _, limit)| needed > limit)
        .map(|(what, needed, limit_name, limit)| Error::Limit {
            what: what.to_owned(),
            needed,
            limit_name,
            limit,
        });
    reasons.extend(short);
    reasons
}

/// What the lists need of a device: each one bound alone where it is gathered
/// from a buffer, all of them bound together.
pub(crate) fn check_lists(problem: &Problem, aux_bytes: u64, caps: &DeviceCaps) -> Vec<Error> {
    let mut needs = vec![(
        "lengths, segments, sinks and slopes together, in bytes".to_owned(),
        aux_bytes,
    )];
    for (kind, source) in &problem.lists {
        if let ListSource::Buffer { len, phase } = source {
            let (start, end) = passes::list_range(*len, *phase, caps);
            needs.push((format!("{} in bytes", kind.name()), end - start));
        }
    }
    let most = u64::from(caps.max_compute_workgroups_per_dimension);
    let bytes_a_grid = most
        .saturating_mul(most)
        .saturating_mul(4 * u64::from(crate::params::LANES));
    let limits = [
        (
            "max_storage_buffer_binding_size",
            caps.max_storage_buffer_binding_size,
        ),
        ("32-bit addresses", u64::from(u32::MAX)),
        (
            "max_compute_workgroups_per_dimension, squared, in bytes copied",
            match problem.has_device_lists() {
                true => bytes_a_grid,
                false => u64::MAX,
            },
        ),
    ];
    let mut reasons = Vec::new();
    for (what, needed) in needs {
        for (limit_name, limit) in limits {
            if needed > limit {
                reasons.push(Error::Limit {
                    what: what.clone(),
                    needed,
                    limit_name,
                    limit,
                });
            }
        }
    }
    reasons
}
