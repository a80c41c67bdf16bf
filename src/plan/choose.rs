//! Device classes: which kernels suit which kind of device, best first, and how
//! that is known.

use crate::plan::device_class::DeviceClass;
use std::fmt;

use crate::error::Error;
use crate::kernel::specialization::Loads;
use crate::plan::caps::DeviceCaps;
use crate::plan::kernel::Kernel;
use crate::plan::loops::check_loops;
use crate::plan::requirements::check_device;
use crate::plan::task::Task;
use crate::plan::tiling::loads;
use crate::plan::tuned::{ProblemClass, Tuned};
use crate::view::lists::ListKind;

/// How a row of the table is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Evidence {
    /// Timed on such a device.
    Measured,
    /// Taken from what a compiler for such a device reports: registers, spills,
    /// instructions.
    StaticFigure,
    /// Thought out, not yet looked at.
    Judgement,
}

/// A kernel that may suit a class of devices: a row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// The kernel family.
    pub kernel: Kernel,
    /// How its place is known.
    pub evidence: Evidence,
    /// Where the evidence comes from.
    pub source: &'static str,
}

impl DeviceClass {
    /// The kernels for such devices, best first. Planning takes the first that
    /// the device's features and limits allow for the problem.
    pub fn candidates(self) -> &'static [Candidate] {
        match self {
            DeviceClass::OldLlvmpipe => OLD_LLVMPIPE,
            DeviceClass::Llvmpipe => LLVMPIPE,
            DeviceClass::SwiftShader => SWIFTSHADER,
            DeviceClass::Amd => AMD,
            _ => ONE_PASS,
        }
    }
}

/// A row of the table.
const fn row(kernel: Kernel, evidence: Evidence, source: &'static str) -> Candidate {
    Candidate {
        kernel,
        evidence,
        source,
    }
}

use Evidence::{Judgement, Measured, StaticFigure};

// Processor seconds of `wgpu-attention bench --heads 2 --q-len 512 --head-dim 64
// --kernel NAME --processes 2` (f32), 2026-11-30, a virtual core of an AMD EPYC
// without AVX-512, LP_NUM_THREADS=1.

const OLD_LLVMPIPE: &[Candidate] = &[
    row(
        Kernel::LaneBroadcast,
        Measured,
        "0.026 s against 0.27 of tiled on Mesa 22.3.6",
    ),
    row(
        Kernel::Tiled,
        Measured,
        "0.27 s against 0.34 of staged on Mesa 22.3.6",
    ),
    row(Kernel::Staged, Measured, "0.34 s on Mesa 22.3.6"),
];

const LLVMPIPE: &[Candidate] = &[
    row(
        Kernel::LaneBroadcast,
        Measured,
        "0.010 s against 0.048 of tiled on Mesa 25.0.7",
    ),
    row(
        Kernel::Tiled,
        Measured,
        "0.048 s against 0.085 of staged on Mesa 25.0.7",
    ),
    row(Kernel::Staged, Measured, "0.085 s on Mesa 25.0.7"),
];

const SWIFTSHADER: &[Candidate] = &[
    row(
        Kernel::LaneBroadcast,
        Measured,
        "0.19 s against 0.30 of tiled",
    ),
    row(Kernel::Tiled, Measured, "0.30 s against 0.57 of staged"),
    row(Kernel::Staged, Measured, "0.57 s"),
];

/// The figures of `benches/static/gpu.sh` with RADV of Mesa 22.3.6.
const AMD: &[Candidate] = &[
    row(
        Kernel::TiledSubgroup,
        StaticFigure,
        "registers and occupancy of tiled, 6 reads and writes of workgroup memory a tile less",
    ),
    row(
        Kernel::Tiled,
        StaticFigure,
        "no spills, 10 and 3 subgroups a SIMD on navi21 and vega20 at head_dim 64",
    ),
    row(
        Kernel::Staged,
        Judgement,
        "three passes, every score is written and read again",
    ),
];

/// Other GPUs, and what is not known.
const ONE_PASS: &[Candidate] = &[
    row(
        Kernel::TiledSubgroup,
        Judgement,
        "one pass, row maxima without a round through workgroup memory",
    ),
    row(
        Kernel::Tiled,
        Judgement,
        "one pass, memory linear in the sequence length",
    ),
    row(
        Kernel::Staged,
        Judgement,
        "three passes, every score is written and read again",
    ),
];

/// The kernel for a problem, and why it: what was measured on this device for
/// such forward passes, else the first row of its class; each passed over if the
/// device cannot run it for this problem. Where none can, one whose reasons
/// tell most.
pub(crate) fn choose(task: &Task, caps: &DeviceCaps) -> (Kernel, String) {
    let (class, own) = (caps.class, ProblemClass::of_task(task));
    let is_tuned = |tuned: &&Tuned| task.facts.is_forward && tuned.problem == own;
    let tuned = caps.tuned.iter().filter(is_tuned);
    let tuned = tuned.map(|tuned| (tuned.kernel, format!("measured on this device for {own}")));
    let table = class.candidates().iter().map(|row| {
        let Candidate {
            kernel,
            evidence,
            source,
        } = *row;
        (kernel, format!("{class}: {source}, {evidence}"))
    });
    let wanted = || tuned.clone().chain(table.clone());
    let is_able = |kernel| check_device(caps, kernel).is_empty();
    let mut passed_over = String::new();
    let mut advised = Vec::new();
    for (kernel, why) in wanted() {
        if !is_able(kernel) {
            if !advised.contains(&kernel) {
                passed_over += &advice(task, kernel, &why, caps).unwrap_or_default();
                advised.push(kernel);
            }
            continue;
        }
        match check_loops(task, kernel, caps) {
            None => {
                return (kernel, why + &passed_over + wider_loads(task, kernel, caps));
            }
            Some(reason) => passed_over += &format!("; not {kernel:?}: {reason}"),
        }
    }
    let mut all = wanted().map(|(kernel, _)| kernel);
    let first = wanted()
        .map(|(k, _)| k)
        .find(|k| is_able(*k))
        .or(all.next());
    let why = format!("{class}: none of its kernels can{passed_over}");
    (first.unwrap_or(Kernel::Tiled), why)
}

/// What to request, so that a kernel that comes first could run: the feature that the
/// device was made without though its adapter is known to have subgroups, and larger
/// limits. `None` if that would not do, or nothing is known of the adapter.
fn advice(task: &Task, kernel: Kernel, why: &str, caps: &DeviceCaps) -> Option<String> {
    let needs_subgroups = kernel.shaders().iter().any(|s| s.needs_subgroups());
    let with = caps.with_subgroups().filter(|_| needs_subgroups);
    let mut wishes: Vec<String> = with
        .iter()
        .map(|_| "wgpu::Features::SUBGROUP".to_owned())
        .collect();
    let with = with.as_ref().unwrap_or(caps);
    for reason in check_device(with, kernel) {
        match reason {
            Error::Limit {
                limit_name, needed, ..
            } => wishes.push(format!("the limit {limit_name} at {needed}")),
            _ => return None,
        }
    }
    check_loops(task, kernel, with).is_none().then(|| {
        format!(
            "; {kernel:?} comes before it ({why}): for it request the device with {}, if the \
             adapter has that (see Attention::features)",
            wishes.join(" and ")
        )
    })
}

/// The same for the feature with which the kernel for llvmpipe loads more at once.
fn wider_loads(task: &Task, kernel: Kernel, caps: &DeviceCaps) -> &'static str {
    let is_llvmpipe = matches!(caps.class, DeviceClass::OldLlvmpipe | DeviceClass::Llvmpipe);
    let suits = is_llvmpipe && kernel == Kernel::LaneBroadcast;
    match suits && loads(task, caps) == Loads::Chunks {
        true => "; its loads are wider on a device requested with wgpu::Features::SHADER_INT64",
        false => "",
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Evidence::Measured => "measured",
            Evidence::StaticFigure => "static figure",
            Evidence::Judgement => "judgement",
        })
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.kernel, self.source, self.evidence)
    }
}

impl ProblemClass {
    /// The class of a problem.
    pub(crate) fn of_task(task: &Task) -> Self {
        let (dims, options) = (&task.dims, &task.options);
        let power = |n: usize, log: u32| {
            let bits = (n.max(1) as u64).next_power_of_two().trailing_zeros();
            1u64 << bits.next_multiple_of(log)
        };
        ProblemClass {
            query: task.query_dtype,
            key_value: task.kv_dtype,
            head_dim: power(dims.qk_dim.max(dims.v_dim), 1).max(32),
            heads: power(dims.batch.saturating_mul(dims.q_heads), 2),
            q_len: power(dims.q_len, 2),
            kv_len: power(dims.kv_len, 2),
            causal: options.causal || options.window.right.is_some(),
            window: options.window.left.is_some(),
            pairwise: task.bias.is_some()
                || task.mask.is_some()
                || task.list(ListKind::QSegments).is_some(),
        }
    }
}
