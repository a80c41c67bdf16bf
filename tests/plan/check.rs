//! What every plan promises.

use wgpu_attention::shaders::{Shader, Slot};
use wgpu_attention::testing::{Dispatch, dispatches};
use wgpu_attention::*;

pub fn forward(operands: &Operands<'_>, options: &Options) -> Problem {
    Problem::forward(operands, options).unwrap()
}

pub fn plan(problem: &Problem, caps: &DeviceCaps, kernel: Kernel) -> Result<Plan> {
    Plan::new(problem, caps, &PlanOptions::default().kernel(kernel))
}

/// Checks what every plan promises: grids within the limits and covering all
/// tiles, bindings within the limits, every row covered exactly once by each
/// shader. Returns how many rows were counted.
pub fn check(plan: &Plan, caps: &DeviceCaps, whole: [usize; 3]) -> usize {
    let all = dispatches(plan);
    let most = caps.max_compute_workgroups_per_dimension;
    let align = u64::from(caps.min_storage_buffer_offset_alignment);
    let mut counted = 0;
    for dispatch in &all {
        let [x, y] = dispatch.grid;
        assert!(x >= 1 && y >= 1 && x <= most && y <= most, "{plan}");
        let launched = u64::from(x) * u64::from(y);
        assert!(launched >= dispatch.workgroups, "{plan}");
        assert!(launched - dispatch.workgroups < u64::from(x), "{plan}");
        assert!(u32::try_from(launched).is_ok());
        assert!(dispatch.binds.len() <= caps.max_storage_buffers_per_shader_stage as usize);
        assert_eq!(dispatch.binds.len(), dispatch.shader.slots().len());
        for (slot, range) in &dispatch.binds {
            if let Some((start, end)) = range {
                assert!(start < end, "{slot:?}");
                assert!(
                    end - start <= caps.max_storage_buffer_binding_size,
                    "{slot:?}"
                );
                assert_eq!((start % align, (end - start) % 4), (0, 0), "{slot:?}");
            }
        }
    }
    for shader in Shader::ALL {
        let boxes: Vec<_> = all.iter().filter(|d| d.shader == shader).collect();
        let Some(first) = boxes.first() else { continue };
        if first.covers.is_none() {
            continue;
        }
        let mut times = vec![0u8; whole.iter().product()];
        for [batches, heads, rows] in boxes.iter().map(|d| d.covers.clone().unwrap()) {
            for b in batches {
                for h in heads.clone() {
                    for r in rows.clone() {
                        times[(b * whole[1] + h) * whole[2] + r] += 1;
                    }
                }
            }
        }
        assert!(times.iter().all(|&n| n == 1), "{shader:?}\n{plan}");
        counted += times.len();
    }
    counted
}

/// Whatever a kernel adds up, in 32 bits and without wrapping, is the element
/// that the view means.
pub fn addresses(plan: &Plan) -> usize {
    let all = dispatches(plan);
    all.iter().map(|d| compare_contiguous(d, plan)).sum()
}

pub fn compare_contiguous(dispatch: &Dispatch, plan: &Plan) -> usize {
    let d = plan.problem().dims();
    let strides = |heads: usize, rows: usize, row: usize| [heads * rows * row, rows * row, row];
    let known = [
        (Slot::Query, strides(d.q_heads, d.q_len, d.qk_dim)),
        (Slot::Key, strides(d.kv_heads, d.kv_len, d.qk_dim)),
        (Slot::Value, strides(d.kv_heads, d.kv_len, d.v_dim)),
        (Slot::Output, strides(d.q_heads, d.q_len, d.v_dim)),
    ];
    known
        .into_iter()
        .map(|(slot, strides)| compare(dispatch, plan, slot, strides, 0, 4))
        .sum()
}

/// Compares the address of every row of one operand.
pub fn compare(
    dispatch: &Dispatch,
    plan: &Plan,
    slot: Slot,
    strides: [usize; 3],
    phase: u64,
    size: u64,
) -> usize {
    let Some([batches, heads, rows]) = dispatch.covers.clone() else {
        return 0;
    };
    let bound = dispatch.binds.iter().find(|(s, _)| *s == slot);
    let Some((start, end)) = bound.and_then(|(_, range)| *range) else {
        return 0;
    };
    let view = dispatch.views.iter().find(|(s, _)| *s == slot).unwrap().1;
    let dims = plan.problem().dims();
    let is_key = matches!(slot, Slot::Key | Slot::Value);
    let width = if matches!(slot, Slot::Query | Slot::Key) {
        dims.qk_dim
    } else {
        dims.v_dim
    };
    let group = dims.group();
    let (first_b, first_h, first_r) = (batches.start, heads.start, rows.start);
    let mut compared = 0;
    for b in batches {
        for h in heads.clone() {
            let (head, step) = match is_key {
                true => (h / group, h / group - first_h / group),
                false => (h, h - first_h),
            };
            let rows = if is_key { 0..dims.kv_len } else { rows.clone() };
            let last = rows.end.saturating_sub(1);
            // The ends and a stride of the middle: all of 2^30 would take hours.
            let some = rows.clone().step_by(1 + rows.len() / 50).chain([last]);
            for r in some {
                let first = if is_key { 0 } else { first_r };
                let steps = [b - first_b, step, r - first].map(|n| n as u64);
                let [batch, head_stride, row, base] = view.map(u64::from);
                let in_kernel = base + steps[0] * batch + steps[1] * head_stride + steps[2] * row;
                let at = [b, head, r];
                let element: u64 = at
                    .iter()
                    .zip(strides)
                    .map(|(&i, s)| i as u64 * s as u64)
                    .sum();
                assert!(in_kernel + width as u64 <= u64::from(u32::MAX), "{slot:?}");
                assert_eq!(
                    start + in_kernel * size,
                    phase + element * size,
                    "{slot:?} {at:?}"
                );
                assert!(
                    start + (in_kernel + width as u64) * size <= end,
                    "{slot:?} {at:?}"
                );
                compared += 1;
            }
        }
    }
    compared
}
