//! Limits: every reason at once, and numbers at their largest.

use super::check::{check, forward, plan};
use crate::noop::{Buffers, Noop, SMALL, reasons};
use wgpu_attention::shaders::Slot;
use wgpu_attention::testing::dispatches;
use wgpu_attention::*;

#[test]
fn huge_counts_are_planned_or_refused() {
    let noop = Noop::new();
    let caps = DeviceCaps::webgpu_default();
    let options = Options::default();
    let buffer = noop.buffer(4 * 65_536);
    let output = noop.buffer(4 * 65_536);
    // 65,536 x 65,536 pairs, 2^32 of them.
    let view = |buffer| TensorView::bhsd(buffer, DType::F32, [1, 1, 65_536, 1], 0).unwrap();
    let square = Operands::new(view(&buffer), view(&buffer), view(&buffer), view(&output));
    let problem = forward(&square, &options);
    let fused = plan(&problem, &caps, Kernel::Tiled).unwrap();
    assert_eq!(check(&fused, &caps, [1, 1, 65_536]), 65_536);
    let staged = plan(&problem, &caps, Kernel::Staged).unwrap();
    assert_eq!(check(&staged, &caps, [1, 1, 65_536]), 3 * 65_536);
    assert_eq!(staged.workspace_bytes(), 64 << 20);
    for dispatch in dispatches(&staged) {
        let rows = dispatch.covers.unwrap()[2].len() as u64;
        let [_, _, row, base] = dispatch
            .views
            .iter()
            .find(|v| v.0 == Slot::Scores)
            .unwrap()
            .1;
        assert_eq!((base, row), (0, 65_536));
        assert!(rows * 65_536 * 4 <= staged.workspace_bytes());
    }

    // 2^30 keys by a broadcast row: no memory, but every number is at its largest.
    let keys = TensorView::strided(&buffer, DType::F32, [1, 1, 1 << 30, 1], [0, 0, 0, 1], 0);
    let keys = keys.unwrap();
    let long = Operands::new(view(&buffer), keys, keys, view(&output));
    let problem = forward(&long, &options);
    let fused = plan(&problem, &caps, Kernel::Tiled).unwrap();
    check(&fused, &caps, [1, 1, 65_536]);
    let refused = reasons(plan(&problem, &caps, Kernel::Staged).unwrap_err());
    let scores = "scores: one (batch, kv head) slab in bytes: 274877906944 needed, the device's max_storage_buffer_binding_size is 134217728";
    assert!(refused.contains(&scores.to_owned()), "{refused:?}");
    assert!(problem.flops().is_finite());

    // 2^90 rows of a broadcast query, of which a stage takes one.
    let many = [1 << 30, 1 << 30, 1 << 30, 1];
    let query = TensorView::strided(&buffer, DType::F32, many, [0, 0, 0, 1], 0).unwrap();
    let key = [1 << 30, 1, 4, 1];
    let key = TensorView::strided(&buffer, DType::F32, key, [0, 0, 1, 1], 0).unwrap();
    let scores = TensorView::bhsd(&output, DType::F32, [1, 1, 1, 4], 0).unwrap();
    let last = (1 << 30) - 1;
    let region = Region {
        batches: last..last + 1,
        heads: last..last + 1,
        rows: last..last + 1,
    };
    let broadcast = Operands::new(query, key, key, scores);
    let problem = Problem::stage(&broadcast, &options, Stage::Masked, region).unwrap();
    assert!(problem.flops() > 0.0);
    assert_eq!(problem.dims().rows(), usize::MAX);
    let plan = Plan::new(&problem, &caps, &PlanOptions::default()).unwrap();
    assert_eq!(plan.dispatches(), 2);
}

#[test]
fn every_reason_is_given() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let options = Options::default().alignment(Alignment::PerSequence);
    let problem = forward(&buffers.lists_on_device(buffers.dense()), &options);
    let good = DeviceCaps::webgpu_default();
    assert!(plan(&problem, &good, Kernel::Tiled).is_ok());

    let mut caps = good.clone();
    caps.max_storage_buffers_per_shader_stage = 7;
    caps.max_compute_invocations_per_workgroup = 63;
    caps.max_compute_workgroup_storage_size = wgpu_attention::testing::WORKGROUP_MEMORY as u32 - 1;
    caps.min_storage_buffer_offset_alignment = 48;
    caps.max_storage_buffer_binding_size = 100;
    caps.max_buffer_size = 100;
    caps.max_compute_workgroup_size_x = 127;
    caps.max_uniform_buffer_binding_size = 16;
    caps.max_uniform_buffers_per_shader_stage = 0;
    caps.max_buffers_and_acceleration_structures_per_shader_stage = 8;
    caps.max_bind_groups = 0;
    caps.max_bindings_per_bind_group = 8;
    let found = reasons(plan(&problem, &caps, Kernel::Tiled).unwrap_err());
    let expected = [
        "alignment of bindings, a divisor of: 256 needed, the device's min_storage_buffer_offset_alignment is 48",
        "storage buffers of one dispatch: 8 needed, the device's max_storage_buffers_per_shader_stage is 7",
        "invocations of one workgroup: 128 needed, the device's max_compute_invocations_per_workgroup is 63",
        "workgroup memory in bytes: 14720 needed, the device's max_compute_workgroup_storage_size is 14719",
        "invocations of one workgroup in x: 128 needed, the device's max_compute_workgroup_size_x is 127",
        "uniform of one dispatch in bytes: 320 needed, the device's max_uniform_buffer_binding_size is 16",
        "uniform buffers of one dispatch: 1 needed, the device's max_uniform_buffers_per_shader_stage is 0",
        "storage and uniform buffers of one dispatch: 9 needed, the device's max_buffers_and_acceleration_structures_per_shader_stage is 8",
        "bind groups of one dispatch: 1 needed, the device's max_bind_groups is 0",
        "bindings of one bind group: 9 needed, the device's max_bindings_per_bind_group is 8",
        "query: one (batch, kv head) slab in bytes: 160 needed, the device's max_storage_buffer_binding_size is 100",
        "key: one (batch, kv head) slab in bytes: 224 needed, the device's max_storage_buffer_binding_size is 100",
        "value: one (batch, kv head) slab in bytes: 168 needed, the device's max_storage_buffer_binding_size is 100",
        "output: one (batch, kv head) slab in bytes: 120 needed, the device's max_storage_buffer_binding_size is 100",
        "bias: one (batch, kv head) slab in bytes: 140 needed, the device's max_storage_buffer_binding_size is 100",
        "lengths, segments, sinks and slopes together, in bytes: 152 needed, the device's max_storage_buffer_binding_size is 100",
        "workspace in bytes: 152 needed, the device's max_buffer_size is 100",
    ];
    for text in expected {
        assert!(found.iter().any(|f| f == text), "{text}\nnot in {found:#?}");
    }

    // One limit at a time: exactly what is needed is enough, one less is not.
    let spoil: [fn(&mut DeviceCaps, i64); 8] = [
        |c, less| c.max_compute_workgroup_size_x = (128 - less) as u32,
        |c, less| c.max_uniform_buffers_per_shader_stage = (1 - less) as u32,
        |c, less| {
            c.max_buffers_and_acceleration_structures_per_shader_stage = (9 - less) as u32;
        },
        |c, less| c.max_bind_groups = (1 - less) as u32,
        |c, less| c.max_bindings_per_bind_group = (9 - less) as u32,
        |c, less| c.max_storage_buffers_per_shader_stage = (8 - less) as u32,
        |c, less| c.max_compute_invocations_per_workgroup = (128 - less) as u32,
        |c, less| {
            let memory = wgpu_attention::testing::WORKGROUP_MEMORY as i64;
            c.max_compute_workgroup_storage_size = (memory - less) as u32;
        },
    ];
    for spoil in spoil {
        let mut caps = good.clone();
        spoil(&mut caps, 0);
        assert!(plan(&problem, &caps, Kernel::Tiled).is_ok());
        spoil(&mut caps, 1);
        let found = reasons(plan(&problem, &caps, Kernel::Tiled).unwrap_err());
        assert_eq!(found.len(), 1, "{found:?}");
    }
}

#[test]
fn lists_over_the_limits_are_refused() {
    let noop = Noop::new();
    let mut caps = DeviceCaps::webgpu_default();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let list = noop.buffer(4 * 600);
    let segments = |offset, len| List::Buffer {
        buffer: &list,
        offset,
        len,
    };
    let operands = buffers
        .plain()
        .segments(segments(63, 10), segments(126, 14));
    let problem = forward(&operands, &Options::default());
    // The aligned-down starts add 252 bytes to the 40 and 248 to the 56 of the lists.
    caps.max_storage_buffer_binding_size = 303;
    caps.min_storage_buffer_offset_alignment = 32;
    assert!(plan(&problem, &caps, Kernel::Tiled).is_ok());
    caps.min_storage_buffer_offset_alignment = 256;
    let found = reasons(plan(&problem, &caps, Kernel::Tiled).unwrap_err());
    let text =
        "kv_segments in bytes: 304 needed, the device's max_storage_buffer_binding_size is 303";
    assert!(found.contains(&text.to_owned()), "{found:?}");
    caps.max_storage_buffer_binding_size = 576;
    assert!(plan(&problem, &caps, Kernel::Tiled).is_ok());
}

/// Hand-written capabilities with nonsense in them give errors or plans.
#[test]
fn no_capability_panics() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F16);
    let options = Options::default()
        .alignment(Alignment::PerSequence)
        .window(Window::around(0, u32::MAX));
    let problem = forward(&buffers.lists_on_device(buffers.dense()), &options);
    let mut judged = 0;
    for kernel in [Kernel::Tiled, Kernel::Staged] {
        for value in [0, 1, 2, 3, 255, 257, 1 << 16, u32::MAX - 1, u32::MAX] {
            for field in 0..13 {
                let mut caps = DeviceCaps::webgpu_default();
                match field {
                    0 => caps.max_storage_buffer_binding_size = u64::from(value),
                    1 => caps.max_buffer_size = u64::from(value),
                    2 => caps.min_storage_buffer_offset_alignment = value,
                    3 => caps.max_storage_buffers_per_shader_stage = value,
                    4 => caps.max_compute_workgroups_per_dimension = value,
                    5 => caps.max_compute_invocations_per_workgroup = value,
                    6 => caps.max_compute_workgroup_storage_size = value,
                    7 => caps.max_compute_workgroup_size_x = value,
                    8 => caps.max_uniform_buffer_binding_size = u64::from(value),
                    9 => caps.max_uniform_buffers_per_shader_stage = value,
                    10 => caps.max_buffers_and_acceleration_structures_per_shader_stage = value,
                    11 => caps.max_bind_groups = value,
                    _ => caps.max_bindings_per_bind_group = value,
                }
                match plan(&problem, &caps, kernel) {
                    Ok(plan) => assert!(plan.dispatches() > 0),
                    Err(error) => assert!(!reasons(error).is_empty()),
                }
                judged += 1;
            }
        }
    }
    assert_eq!(judged, 2 * 9 * 13);
}
