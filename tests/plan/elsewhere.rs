//! A plan on a device that it was not made for: run or refused by all that it relies on.

use super::check::{check, forward, plan};
use crate::noop::{Buffers, Noop, SMALL};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::testing::{can_run, dispatches, layout};
use wgpu_attention::*;

/// Everything that a kernel may need, at WebGPU's default limits.
fn generous() -> DeviceCaps {
    let mut caps = DeviceCaps::webgpu_default();
    caps.subgroup_size = Some(8);
    caps.min_subgroup_size = Some(8);
    caps.shader_int64 = true;
    caps
}

/// The device lacks what the text names, and the error is the one for such a thing.
fn refused(plan: &Plan, caps: &DeviceCaps, expected: &str) {
    let error = can_run(plan, caps).expect_err(expected);
    let Error::PlanMismatch { operand, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*operand, "device");
    assert!(error.to_string().contains(expected), "{error}\n{expected}");
    assert!(error.is_input());
}

type Spoil = fn(&mut DeviceCaps, u64);

/// Exactly what a plan's dispatches need is enough on another device; one less is not.
#[test]
fn every_limit_is_asked_of_the_other_device() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let options = Options::default().alignment(Alignment::PerSequence);
    let problem = forward(&buffers.lists_on_device(buffers.dense()), &options);
    let mut judged = 0;
    for kernel in generous().kernels() {
        let plan = plan(&problem, &generous(), kernel).unwrap();
        can_run(&plan, &generous()).unwrap();
        let all = dispatches(&plan);
        let most = |of: &dyn Fn(&wgpu_attention::testing::Dispatch) -> u64| {
            all.iter().map(of).max().unwrap()
        };
        let largest = most(&|d| {
            let ranges = d.binds.iter().filter_map(|(_, range)| *range);
            ranges.map(|(start, end)| end - start).max().unwrap()
        });
        let grid = most(&|d| u64::from(*d.grid.iter().max().unwrap()));
        let buffers = most(&|d| d.binds.len() as u64);
        // 64 of the kernel that gathers lists.
        let lanes = match kernel {
            Kernel::LaneBroadcast => 64,
            _ => 128,
        };
        let uniform = layout("Params").unwrap().size as u64;
        let uniforms = all.len() as u64 * uniform.next_multiple_of(256);
        let spoils: [(&str, u64, Spoil); 11] = [
            ("max_storage_buffer_binding_size", largest, |c, n| {
                c.max_storage_buffer_binding_size = n;
            }),
            (
                "max_buffer_size",
                uniforms.max(plan.workspace_bytes()),
                |c, n| {
                    c.max_buffer_size = n;
                },
            ),
            ("max_compute_workgroups_per_dimension", grid, |c, n| {
                c.max_compute_workgroups_per_dimension = n as u32;
            }),
            ("max_storage_buffers_per_shader_stage", buffers, |c, n| {
                c.max_storage_buffers_per_shader_stage = n as u32;
            }),
            (
                "max_buffers_and_acceleration_structures_per_shader_stage",
                buffers + 1,
                |c, n| {
                    c.max_buffers_and_acceleration_structures_per_shader_stage = n as u32;
                },
            ),
            ("max_bindings_per_bind_group", buffers + 1, |c, n| {
                c.max_bindings_per_bind_group = n as u32;
            }),
            ("max_uniform_buffers_per_shader_stage", 1, |c, n| {
                c.max_uniform_buffers_per_shader_stage = n as u32;
            }),
            ("max_bind_groups", 1, |c, n| c.max_bind_groups = n as u32),
            ("max_uniform_buffer_binding_size", uniform, |c, n| {
                c.max_uniform_buffer_binding_size = n;
            }),
            ("max_compute_invocations_per_workgroup", lanes, |c, n| {
                c.max_compute_invocations_per_workgroup = n as u32;
            }),
            ("max_compute_workgroup_size_x", lanes, |c, n| {
                c.max_compute_workgroup_size_x = n as u32;
            }),
        ];
        for (name, needed, spoil) in spoils {
            let mut caps = generous();
            spoil(&mut caps, needed);
            can_run(&plan, &caps).unwrap_or_else(|error| panic!("{kernel} {name}: {error}"));
            spoil(&mut caps, needed - 1);
            refused(&plan, &caps, name);
            judged += 1;
        }
        let mut caps = generous();
        caps.max_compute_workgroup_storage_size = 0;
        refused(&plan, &caps, "max_compute_workgroup_storage_size");
        caps = generous();
        caps.max_loop_iterations = Some(65_535);
        can_run(&plan, &caps).unwrap();
        caps.max_loop_iterations = Some(3);
        refused(&plan, &caps, "loop iterations of one invocation");
    }
    assert_eq!(judged, 4 * 11);
}

/// Every operation whose kernel has subgroups of one size, or 64-bit loads, needs them
/// where it is prepared.
#[test]
fn every_operation_asks_for_its_features() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let options = Options::default();
    let plain = buffers.plain();
    let stats = StatsView::new(&buffers.stats, Stats::Lse, SMALL.rows(), 0).unwrap();
    let out = noop.buffer(1 << 16);
    let output = |shape| TensorView::bhsd(&out, DType::F32, shape, 0).unwrap();
    let region = Region {
        batches: 0..2,
        heads: 0..4,
        rows: 0..5,
    };
    let rows = Rows {
        region: region.clone(),
        top: 1,
        first_keys: 0,
    };
    let pairs = Pairs {
        quantity: Quantity::Stage(Stage::Probabilities),
        region,
        keys: 0..7,
    };
    let mut inspected = plain.stats(stats);
    inspected.output = output([2, 4, 5, 7]);
    let mut summarized = inspected;
    summarized.output = output([2, 4, 5, rows.width()]);
    let projection = Projection {
        input: TensorView::tokens(&buffers.query, DType::F32, [2, 5, 8], 0).unwrap(),
        weight: TensorView::matrix(&buffers.key, DType::F32, [7, 8], 0).unwrap(),
        bias: None,
        output: output([2, 1, 5, 7]),
    };
    let norms = Norms {
        value: plain_value(&buffers),
        through: None,
        output: output([2, 2, 7, 1]),
    };
    let problems = [
        ("forward", forward(&plain, &options)),
        (
            "pairs",
            Problem::inspect(&inspected, &options, pairs).unwrap(),
        ),
        (
            "rows",
            Problem::summarize(&summarized, &options, rows).unwrap(),
        ),
        ("projection", Problem::projection(&projection).unwrap()),
        ("norms", Problem::norms(&norms).unwrap()),
    ];
    let size = |lanes: Option<u32>| {
        let mut caps = generous();
        (caps.subgroup_size, caps.min_subgroup_size) = (lanes, lanes);
        caps
    };
    let mut varying = size(Some(8));
    varying.subgroup_size = None;
    for (what, problem) in &problems {
        let broadcast = plan(problem, &size(Some(8)), Kernel::LaneBroadcast).unwrap();
        for (caps, text) in [(size(None), "SUBGROUP"), (varying.clone(), "one size")] {
            refused(&broadcast, &caps, text);
        }
        let wider = [8, 16, 32, 64].map(|lanes| size(Some(lanes)));
        for caps in &wider {
            can_run(&broadcast, caps).unwrap();
        }
        let narrow = plan(problem, &size(Some(4)), Kernel::LaneBroadcast).unwrap();
        can_run(&narrow, &size(Some(4))).unwrap();
        // The norms' kernel has no subgroups.
        if *what != "norms" {
            refused(&broadcast, &size(Some(4)), "got subgroups of 4 lanes");
            refused(&narrow, &size(Some(8)), "got subgroups of 8 lanes");
        }
        let tiled = plan(problem, &generous(), Kernel::TiledSubgroup).unwrap();
        can_run(&tiled, &varying).unwrap();
        can_run(&tiled, &size(Some(64))).unwrap();
        refused(&tiled, &size(None), "SUBGROUP");
        let mut narrow_loads = generous();
        narrow_loads.shader_int64 = false;
        let is_wide = matches!(*what, "pairs" | "rows" | "projection");
        match is_wide {
            true => refused(&broadcast, &narrow_loads, "SHADER_INT64"),
            // Dv is no multiple of 4.
            false => can_run(&broadcast, &narrow_loads).unwrap(),
        }
    }
}

fn plain_value(buffers: &Buffers) -> TensorView<'_> {
    TensorView::bhsd(&buffers.value, DType::F32, SMALL.value(), 0).unwrap()
}

/// Whatever two devices are like: a plan for one that the other takes keeps all of the
/// other's limits.
#[test]
fn what_is_taken_fits() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F16);
    let options = Options::default().alignment(Alignment::PerSequence);
    let problem = forward(&buffers.lists_on_device(buffers.dense()), &options);
    let mut rng = StdRng::seed_from_u64(11);
    let mut some = || {
        let mut caps = generous();
        let pick = |rng: &mut StdRng, of: &[u32]| of[rng.random_range(0..of.len())];
        caps.max_storage_buffer_binding_size = pick(&mut rng, &[320, 600, 2048, 1 << 20]).into();
        caps.min_storage_buffer_offset_alignment = pick(&mut rng, &[4, 16, 32, 64, 256]);
        caps.max_compute_workgroups_per_dimension = pick(&mut rng, &[1, 3, 16, 65_535]);
        caps.max_storage_buffers_per_shader_stage = pick(&mut rng, &[5, 8, 8, 10]);
        caps.max_loop_iterations = Some(pick(&mut rng, &[300, 1_000, 65_535]));
        let lanes = pick(&mut rng, &[0, 4, 8, 32]);
        caps.subgroup_size = Some(lanes).filter(|&lanes| lanes > 0);
        caps.min_subgroup_size = caps.subgroup_size;
        caps
    };
    let (mut taken, mut left) = (0, 0);
    for _ in 0..4_000 {
        let (here, there) = (some(), some());
        for kernel in here.kernels() {
            let Ok(made) = plan(&problem, &here, kernel) else {
                continue;
            };
            can_run(&made, &here).unwrap();
            match can_run(&made, &there) {
                Ok(()) => {
                    check(&made, &there, SMALL.rows());
                    assert!(there.kernels().any(|able| able == kernel), "{made}");
                    plan(&problem, &there, kernel).unwrap();
                    taken += 1;
                }
                Err(Error::PlanMismatch { .. }) => left += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(taken > 300 && left > 300, "{taken} {left}");
}
