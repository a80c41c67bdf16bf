//! What a plan needs of a device, and every reason why one falls short: asked of the
//! device that it is made for, and again of the one that it is prepared on.

use crate::error::{Error, Result};
use crate::kernel::specialization::Loads;
use crate::kernel::uniform::Params;
use crate::plan::caps::DeviceCaps;
use crate::plan::dispatch::Pass;
use crate::plan::kernel::Kernel;
use crate::plan::loops::check_loops;
use crate::plan::passes;
use crate::plan::task::Task;
use crate::view::geometry::PHASE;
use crate::view::lists::ListSource;

/// What every kernel needs of a device, whatever the problem.
pub(crate) fn check_device(caps: &DeviceCaps, kernel: Kernel) -> Vec<Error> {
    let shaders = kernel.shaders();
    let mut reasons = Vec::new();
    reasons.extend((kernel.row().lacks)(caps));
    let align = caps.alignment();
    if !PHASE.is_multiple_of(align) {
        reasons.push(Error::Limit {
            what: "alignment of bindings, a divisor of".to_owned(),
            needed: PHASE,
            limit_name: "min_storage_buffer_offset_alignment",
            limit: align,
        });
    }
    let tiling = kernel.tiling(0, caps);
    let buffers = shaders.iter().map(|shader| shader.slots().len()).max();
    reasons.extend(check_dispatch(buffers.unwrap_or(0), tiling.lanes, caps));
    let memory = u64::from(caps.max_compute_workgroup_storage_size);
    if tiling.memory > memory {
        reasons.push(Error::Limit {
            what: "workgroup memory in bytes".to_owned(),
            needed: tiling.memory,
            limit_name: "max_compute_workgroup_storage_size",
            limit: memory,
        });
    }
    reasons
}

impl DeviceCaps {
    /// The kernel families that such a device can run.
    pub fn kernels(&self) -> impl Iterator<Item = Kernel> + '_ {
        let able = |kernel: &Kernel| check_device(self, *kernel).is_empty();
        Kernel::ALL.iter().copied().filter(able)
    }
}

/// What a dispatch needs that binds so many storage buffers, in workgroups of so many
/// invocations.
fn check_dispatch(buffers: usize, lanes: u32, caps: &DeviceCaps) -> impl Iterator<Item = Error> {
    let buffers = buffers as u64;
    let needs = [
        (
            "storage buffers of one dispatch",
            buffers,
            "max_storage_buffers_per_shader_stage",
            u64::from(caps.max_storage_buffers_per_shader_stage),
        ),
        (
            "uniform buffers of one dispatch",
            1,
            "max_uniform_buffers_per_shader_stage",
            u64::from(caps.max_uniform_buffers_per_shader_stage),
        ),
        (
            "storage and uniform buffers of one dispatch",
            buffers + 1,
            "max_buffers_and_acceleration_structures_per_shader_stage",
            u64::from(caps.max_buffers_and_acceleration_structures_per_shader_stage),
        ),
        (
            "bindings of one bind group",
            buffers + 1,
            "max_bindings_per_bind_group",
            u64::from(caps.max_bindings_per_bind_group),
        ),
        (
            "bind groups of one dispatch",
            1,
            "max_bind_groups",
            u64::from(caps.max_bind_groups),
        ),
        (
            "uniform of one dispatch in bytes",
            UNIFORM_BYTES,
            "max_uniform_buffer_binding_size",
            caps.max_uniform_buffer_binding_size,
        ),
        (
            "invocations of one workgroup",
            u64::from(lanes),
            "max_compute_invocations_per_workgroup",
            u64::from(caps.max_compute_invocations_per_workgroup),
        ),
        (
            "invocations of one workgroup in x",
            u64::from(lanes),
            "max_compute_workgroup_size_x",
            u64::from(caps.max_compute_workgroup_size_x),
        ),
    ];
    let short = needs
        .into_iter()
        .filter(|(_, needed, _, limit)| needed > limit);
    short.map(|(what, needed, limit_name, limit)| Error::Limit {
        what: what.to_owned(),
        needed,
        limit_name,
        limit,
    })
}

/// Bytes of the largest uniform.
const UNIFORM_BYTES: u64 = size_of::<Params>() as u64;

/// What a plan needs beside its dispatches: its kernel, its loops, its lists, its
/// workspace.
pub(crate) fn check_whole(
    task: &Task,
    kernel: Kernel,
    aux_bytes: u64,
    workspace_bytes: u64,
    caps: &DeviceCaps,
) -> Vec<Error> {
    let mut reasons = check_device(caps, kernel);
    reasons.extend(check_loops(task, kernel, caps));
    reasons.extend(check_lists(task, aux_bytes, caps));
    reasons.extend(check_buffer("workspace in bytes", workspace_bytes, caps));
    reasons
}

/// What the dispatches of a plan need: why the first that the device cannot run is not
/// possible, whatever device it was planned for.
pub(crate) fn check_passes(passes: &[Pass], caps: &DeviceCaps) -> Vec<Error> {
    // Prepared in one buffer, each from a multiple of the largest alignment on.
    let uniforms = passes.len() as u64 * UNIFORM_BYTES.next_multiple_of(PHASE);
    let uniforms = check_buffer("uniforms of all dispatches in bytes", uniforms, caps);
    let reasons = passes.iter().map(|pass| check_pass(pass, caps));
    let first = reasons.into_iter().find(|reasons| !reasons.is_empty());
    uniforms
        .into_iter()
        .chain(first.into_iter().flatten())
        .collect()
}

fn check_pass(pass: &Pass, caps: &DeviceCaps) -> Vec<Error> {
    let (shader, key) = (pass.shader, pass.specialization);
    let buffers = shader.slots().len();
    let mut reasons: Vec<_> = check_dispatch(buffers, shader.lanes(key), caps).collect();
    if shader.broadcasts() && caps.lanes() != Some(key.lanes) {
        let lanes = key.lanes.count();
        reasons.push(Error::value(
            "device",
            format!("subgroups of one size, of which the kernel uses {lanes} lanes"),
            match caps.subgroup_size {
                Some(size) => format!("subgroups of {size} lanes"),
                None => "no subgroups of one size".to_owned(),
            },
        ));
    }
    if key.loads == Loads::WideChunks && !caps.shader_int64 {
        let expected = "the feature SHADER_INT64";
        reasons.push(Error::value("device", expected, "a device without it"));
    }
    let most = caps.max_compute_workgroups_per_dimension;
    if let Some(&needed) = pass.grid.iter().find(|&&n| n > most) {
        reasons.push(Error::Limit {
            what: "workgroups in one dimension".to_owned(),
            needed: u64::from(needed),
            limit_name: "max_compute_workgroups_per_dimension",
            limit: u64::from(most),
        });
    }
    let align = caps.alignment();
    for bind in &pass.binds {
        let Some((start, end)) = bind.range else {
            continue;
        };
        if end - start > caps.max_storage_buffer_binding_size {
            reasons.push(Error::Limit {
                what: format!("{}: a binding in bytes", bind.slot.name()),
                needed: end - start,
                limit_name: "max_storage_buffer_binding_size",
                limit: caps.max_storage_buffer_binding_size,
            });
        }
        if !start.is_multiple_of(align) {
            reasons.push(Error::value(
                "device",
                format!("{}: a binding at byte {start}", bind.slot.name()),
                format!("an alignment of {align}"),
            ));
        }
    }
    reasons
}

/// Why a device cannot make a buffer of so many bytes.
pub(crate) fn check_buffer(what: &str, needed: u64, caps: &DeviceCaps) -> Option<Error> {
    (needed > caps.max_buffer_size).then(|| Error::Limit {
        what: what.to_owned(),
        needed,
        limit_name: "max_buffer_size",
        limit: caps.max_buffer_size,
    })
}

/// The reasons why a device cannot run what was planned for another.
pub(crate) fn mismatch(reasons: Vec<Error>) -> Result<()> {
    if reasons.is_empty() {
        return Ok(());
    }
    let (mut expected, mut actual) = (Vec::new(), Vec::new());
    for reason in reasons {
        let (needed, given) = match reason {
            Error::Limit {
                what,
                needed,
                limit_name,
                limit,
            } => (format!("{what}: {needed}"), format!("{limit_name} {limit}")),
            Error::Value {
                expected, actual, ..
            } => (expected, actual),
            other => return Err(other),
        };
        expected.push(needed);
        // Several needs may meet one limit.
        if !actual.contains(&given) {
            actual.push(given);
        }
    }
    Err(Error::PlanMismatch {
        operand: "device",
        expected: expected.join("; "),
        actual: actual.join("; "),
    })
}

/// What the lists need of a device: each one bound alone where it is gathered
/// from a buffer, all of them bound together.
fn check_lists(task: &Task, aux_bytes: u64, caps: &DeviceCaps) -> Vec<Error> {
    let mut needs = vec![(
        "lengths, segments, sinks and slopes together, in bytes".to_owned(),
        aux_bytes,
    )];
    for (kind, source) in &task.lists {
        if let ListSource::Buffer { len, phase } = source {
            let (start, end) = passes::list_range(*len, *phase, caps);
            needs.push((format!("{} in bytes", kind.name()), end - start));
        }
    }
    let most = u64::from(caps.max_compute_workgroups_per_dimension);
    let bytes_a_grid = most
        .saturating_mul(most)
        .saturating_mul(4 * u64::from(crate::kernel::uniform::LANES));
    let limits = [
        (
            "max_storage_buffer_binding_size",
            caps.max_storage_buffer_binding_size,
        ),
        ("32-bit addresses", u64::from(u32::MAX)),
        (
            "max_compute_workgroups_per_dimension, squared, in bytes copied",
            match task.has_device_lists() {
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
