//! What the adapter can do at most, by two small kernels: multiply-adds on
//! values that stay in registers, and a copy.

use std::fmt::Write;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use wgpu_attention::wgpu;

use super::clock::{Clock, LEAST_PROCESSOR_TIME, processor_time};
use crate::report::Stop;

/// The adapter's own rates.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Ceilings {
    /// Operations a second: two a multiply-add.
    pub flops: f64,
    /// The same a second of processor time, all threads: for software adapters.
    pub flops_by_processor: Option<f64>,
    /// Bytes a second, those read and those written.
    pub copy: f64,
}

/// Independent sums of an invocation: enough to hide an adder's latency, few
/// enough for 16 registers.
const SUMS: u32 = 8;
/// Multiply-adds of each sum in one trip of the loop.
const STEPS: u32 = 16;
const LANES: u32 = 64;
const WORKGROUPS: u32 = 4096;
/// A measurement has to take this long to be believed ...
const LONG_ENOUGH: Duration = Duration::from_millis(10);
/// ... or this many trips: the sums are exact up to 2^24 steps, and Mesa's
/// llvmpipe ends loops after 65,535 iterations.
const MOST_TRIPS: u32 = 32_768;
/// Bytes read, and as many written: beyond a processor's caches.
const COPIED: u64 = 32 << 20;
/// vec4 values that one invocation copies.
const COPIES: u32 = 4;
const REPEATS: usize = 3;

impl Ceilings {
    /// Measures both; an error if a kernel's result is wrong.
    pub fn measure(clock: &Clock<'_>) -> Result<Ceilings, Stop> {
        let (flops, flops_by_processor) = multiply_add(clock)?;
        Ok(Ceilings {
            flops,
            flops_by_processor,
            copy: copy(clock)?,
        })
    }

    /// The greater of each.
    pub fn best(self, other: Ceilings) -> Ceilings {
        Ceilings {
            flops: self.flops.max(other.flops),
            flops_by_processor: match (self.flops_by_processor, other.flops_by_processor) {
                (Some(a), Some(b)) => Some(a.max(b)),
                (a, b) => a.or(b),
            },
            copy: self.copy.max(other.copy),
        }
    }
}

fn multiply_add(clock: &Clock<'_>) -> Result<(f64, Option<f64>), Stop> {
    let module = clock.module("multiply-adds", &multiply_add_text());
    let pipeline = clock.pipeline(&module, "main");
    let sums = clock.buffer("sums", u64::from(WORKGROUPS * LANES) * 4);
    let run = |trips: u32| -> Result<Duration, Stop> {
        // The factor and the summand are 1, which the compiler cannot know: the
        // result counts the steps, exactly.
        let uniform = clock.uniform(&[trips, 1f32.to_bits(), 1f32.to_bits(), 0]);
        let group = clock.bind(&pipeline, &[(0, &uniform), (1, &sums)]);
        clock.time(|pass| {
            dispatch(pass, &pipeline, &group, WORKGROUPS);
            Ok(())
        })
    };
    run(1)?; // compiles
    let mut trips = 4;
    let mut best = run(trips)?;
    while best < LONG_ENOUGH && trips < MOST_TRIPS {
        trips *= 2;
        best = run(trips)?;
    }
    let (started, busy) = (Instant::now(), processor_time());
    let mut repeats = 0;
    while repeats < REPEATS || started.elapsed() < LONG_ENOUGH * 20 {
        best = best.min(run(trips)?);
        repeats += 1;
    }
    let processor = busy.zip(processor_time()).map(|(from, to)| to - from);
    let last = clock.read(&sums, u64::from(WORKGROUPS * LANES) * 4)?;
    let last: Vec<f32> = bytemuck::pod_collect_to_vec(&last);
    let expected = (SUMS * (SUMS - 1) / 2 + SUMS * STEPS * trips) as f32;
    if let Some(wrong) = last.iter().find(|&&sum| sum != expected) {
        return Err(format!("multiply-adds gave {wrong}, not {expected}").into());
    }
    let lanes = f64::from(WORKGROUPS * LANES);
    let steps = f64::from(SUMS * STEPS) * f64::from(trips);
    let flops = 2.0 * lanes * steps;
    let processor = processor.filter(|&time| time >= LEAST_PROCESSOR_TIME);
    let by_processor = processor.map(|time| flops * repeats as f64 / time.as_secs_f64());
    Ok((flops / best.as_secs_f64(), by_processor))
}

fn multiply_add_text() -> String {
    let mut text = format!(
        "struct Uniform {{ trips: u32, factor: f32, summand: f32, unused: u32 }}
@group(0) @binding(0) var<uniform> u: Uniform;
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;
@compute @workgroup_size({LANES})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let a = u.factor;
    let b = u.summand;\n"
    );
    // Writing to a String does not fail.
    for sum in 0..SUMS {
        let _ = writeln!(text, "    var x{sum} = {sum}.0 * a;");
    }
    text += "    for (var trip = 0u; trip < u.trips; trip++) {\n";
    for _ in 0..STEPS {
        for sum in 0..SUMS {
            let _ = writeln!(text, "        x{sum} = fma(x{sum}, a, b);");
        }
    }
    let all: Vec<String> = (0..SUMS).map(|sum| format!("x{sum}")).collect();
    let _ = write!(text, "    }}\n    sums[id.x] = {};\n}}\n", all.join(" + "));
    text
}

fn copy(clock: &Clock<'_>) -> Result<f64, Stop> {
    let limits = clock.device.limits();
    let chunk = u64::from(LANES * COPIES) * 16;
    let most = limits
        .max_storage_buffer_binding_size
        .min(limits.max_buffer_size)
        .min(u64::from(limits.max_compute_workgroups_per_dimension) * chunk)
        .min(COPIED);
    let workgroups = (most / chunk) as u32;
    let words = u64::from(workgroups) * chunk / 4;
    let numbers: Vec<u32> = (0..words as u32).collect();
    let source = clock.filled("copied from", bytemuck::cast_slice(&numbers));
    let target = clock.buffer("copied to", words * 4);
    let module = clock.module(
        "copy",
        &format!(
            "@group(0) @binding(0) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> result: array<vec4<u32>>;
@compute @workgroup_size({LANES})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    let first = group.x * {block}u + lane;
    for (var n = 0u; n < {COPIES}u; n++) {{
        result[first + n * {LANES}u] = source[first + n * {LANES}u];
    }}
}}\n",
            block = LANES * COPIES
        ),
    );
    let pipeline = clock.pipeline(&module, "main");
    let group = clock.bind(&pipeline, &[(0, &source), (1, &target)]);
    let mut best = Duration::MAX;
    // The first compiles and touches the pages.
    for _ in 0..=REPEATS {
        best = best.min(clock.time(|pass| {
            dispatch(pass, &pipeline, &group, workgroups);
            Ok(())
        })?);
    }
    let copied: Vec<u32> = bytemuck::pod_collect_to_vec(&clock.read(&target, words * 4)?);
    if copied != numbers {
        return Err("the copy kernel's result is not what it copied".into());
    }
    Ok(2.0 * words as f64 * 4.0 / best.as_secs_f64())
}

fn dispatch(
    pass: &mut wgpu::ComputePass<'_>,
    pipeline: &wgpu::ComputePipeline,
    group: &wgpu::BindGroup,
    workgroups: u32,
) {
    pass.set_pipeline(pipeline);
    pass.set_bind_group(0, group, &[]);
    pass.dispatch_workgroups(workgroups, 1, 1);
}
