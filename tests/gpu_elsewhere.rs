//! Plans made for other devices, prepared on the adapter: refused by what they relied
//! on, as a driver would run them and give wrong numbers. And what a plan says that a
//! device of this adapter was made without.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use gpu::gpu;
use wgpu_attention::shaders::{Loads, Specialization, emitted};
use wgpu_attention::*;

/// A device without features, at WebGPU's default limits.
fn plain_device() -> Attention {
    Attention::with_adapter(&AdapterOptions::default().default_limits(true)).unwrap()
}

fn problem(kv_len: usize) -> Problem {
    let dims = Dims {
        batch: 1,
        q_heads: 2,
        kv_heads: 2,
        q_len: 3,
        kv_len,
        qk_dim: 8,
        v_dim: 8,
    };
    Problem::contiguous(&dims, DType::F32, DType::F32, &Options::default()).unwrap()
}

fn refused(attention: &Attention, plan: &Plan, expected: &str) {
    let error = attention.prepare(plan).expect_err(expected);
    assert!(matches!(error, Error::PlanMismatch { .. }), "{error}");
    assert!(error.to_string().contains(expected), "{error}\n{expected}");
}

/// Each family for rows so long that llvmpipe would end its loops.
#[test]
fn a_plan_with_loops_too_long_for_the_driver() {
    let mut caps = gpu().caps().clone();
    let Some(limit) = caps.max_loop_iterations.take() else {
        println!("no limit on this adapter");
        return;
    };
    assert_eq!(limit, 65_535);
    caps.max_storage_buffer_binding_size = u64::from(u32::MAX);
    let mut kernels = 0;
    for kernel in gpu().caps().kernels() {
        let chosen = PlanOptions::default().kernel(kernel);
        let short = Plan::new(&problem(400), &caps, &chosen).unwrap();
        gpu().prepare(&short).unwrap();
        // Rows of more keys than any family has.
        let long = Plan::new(&problem(4_000_000), &caps, &chosen).unwrap();
        refused(gpu(), &long, "loop iterations of one invocation");
        kernels += 1;
    }
    assert!(kernels >= 2);
    // What was found: the tiled kernel planned for an unknown device.
    let tiled = PlanOptions::default().kernel(Kernel::Tiled);
    let plan = Plan::new(&problem(40_000), &DeviceCaps::default(), &tiled).unwrap();
    refused(gpu(), &plan, "max_loop_iterations");
    refused(&plain_device(), &plan, "max_loop_iterations");
}

/// Kernels for subgroups of another size, or of a device that has features.
#[test]
fn a_plan_for_subgroups_and_features_that_are_not_there() {
    let plain = plain_device();
    let own = gpu().caps();
    let broadcast = PlanOptions::default().kernel(Kernel::LaneBroadcast);
    let with = |lanes: u32| {
        let mut caps = own.clone();
        caps.subgroup_size = Some(lanes);
        caps.min_subgroup_size = Some(lanes);
        caps
    };
    for lanes in [4, 8] {
        let plan = Plan::new(&problem(40), &with(lanes), &broadcast).unwrap();
        refused(&plain, &plan, "SUBGROUP");
        match own.subgroup_size {
            Some(size) if size == lanes || size > 8 && lanes == 8 => {
                gpu().prepare(&plan).unwrap();
            }
            Some(_) => refused(gpu(), &plan, &format!("{lanes} lanes")),
            None => refused(gpu(), &plan, "one size"),
        }
    }
    if own.min_subgroup_size.is_some() {
        let tiled = PlanOptions::default().kernel(Kernel::TiledSubgroup);
        let plan = Plan::new(&problem(40), own, &tiled).unwrap();
        gpu().prepare(&plan).unwrap();
        refused(&plain, &plan, "SUBGROUP");
    }
    // 64-bit loads, and a device that has subgroups alone.
    let adapters = Attention::adapters();
    let features = adapters[0].features() & wgpu::Features::SUBGROUP;
    let request = wgpu::DeviceDescriptor {
        required_features: features,
        ..Default::default()
    };
    let (device, queue) = pollster::block_on(adapters[0].request_device(&request)).unwrap();
    let narrow = Attention::new(&device, &queue).unwrap();
    if own.shader_int64 && own.subgroup_size.is_some() {
        let plan = Plan::new(&problem(40), own, &broadcast).unwrap();
        let wide = |(_, key): &(_, Specialization)| key.loads == Loads::WideChunks;
        assert!(emitted(&plan).iter().any(wide), "{plan}");
        refused(&narrow, &plan, "SHADER_INT64");
    }
}

/// A layer is refused by whichever of its steps the device cannot run.
#[test]
fn a_layer_planned_for_another_device() {
    let own = gpu().caps();
    let buffer = gpu().device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 1 << 16,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    });
    let output = gpu().device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 1 << 16,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    });
    let weight = TensorView::matrix(&buffer, DType::F32, [24, 8], 0).unwrap();
    let of_output = TensorView::matrix(&buffer, DType::F32, [8, 8], 0).unwrap();
    let input = TensorView::tokens(&buffer, DType::F32, [1, 4, 8], 0).unwrap();
    let operands = MultiHeadOperands::new(
        input,
        2,
        InProjections::Packed(Linear::new(weight)),
        Linear::new(of_output),
        TensorView::tokens(&output, DType::F32, [1, 4, 8], 0).unwrap(),
    );
    let mut caps = own.clone();
    let lanes = if own.subgroup_size == Some(4) { 8 } else { 4 };
    caps.subgroup_size = Some(lanes);
    caps.min_subgroup_size = Some(lanes);
    let options = Options::default();
    let broadcast = PlanOptions::default().kernel(Kernel::LaneBroadcast);
    let plan = MultiHeadPlan::new(&operands, &options, &caps, &broadcast).unwrap();
    let error = gpu().prepare_multi_head(&plan).unwrap_err();
    assert!(matches!(error, Error::PlanMismatch { .. }), "{error}");
    let plan = MultiHeadPlan::new(&operands, &options, own, &PlanOptions::default()).unwrap();
    gpu().prepare_multi_head(&plan).unwrap();
}

/// A device requested without the feature that the preferred kernel needs: the plan says
/// what to request, where the adapter has it.
#[test]
fn why_names_the_feature_to_request() {
    let plain = plain_device();
    let plan = |attention: &Attention| {
        Plan::new(&problem(40), attention.caps(), &PlanOptions::default()).unwrap()
    };
    let (full, without) = (plan(gpu()), plan(&plain));
    assert!(!full.why().contains("request"), "{}", full.why());
    println!("{}", without.why());
    let preferred = plain.caps().class.candidates()[0].kernel;
    let gives_another = full.kernel() == preferred && without.kernel() != preferred;
    assert_eq!(
        gives_another,
        without.why().contains("wgpu::Features::SUBGROUP"),
        "{}",
        without.why()
    );
    if gives_another {
        let text = format!("{preferred:?} comes before it");
        assert!(without.why().contains(&text), "{}", without.why());
        assert!(without.why().contains("Attention::features"));
        assert!(without.to_string().contains(without.why()));
    }
}
