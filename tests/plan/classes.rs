//! Which class an adapter belongs to, and what its table makes of a plan.

use super::check::forward;
use crate::noop::{Buffers, Noop, SMALL, Sizes};
use wgpu_attention::*;

fn info(
    backend: wgpu::Backend,
    kind: wgpu::DeviceType,
    vendor: u32,
    [name, driver, driver_info]: [&str; 3],
) -> wgpu::AdapterInfo {
    wgpu::AdapterInfo {
        name: name.to_owned(),
        vendor,
        driver: driver.to_owned(),
        driver_info: driver_info.to_owned(),
        ..wgpu::AdapterInfo::new(kind, backend)
    }
}

#[test]
fn adapters_have_classes() {
    use wgpu::Backend::{BrowserWebGpu, Dx12, Metal, Vulkan};
    use wgpu::DeviceType::{Cpu, DiscreteGpu, IntegratedGpu, Other};
    let mesa = |version| ["llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe", version];
    let swiftshader = ["SwiftShader Device (Subzero)", "SwiftShader driver", ""];
    let named = |name| [name, "", ""];
    let radv = ["AMD Radeon RX 6800 (RADV NAVI21)", "radv", "Mesa 22.3.6"];
    let h200 = ["NVIDIA H200", "NVIDIA", "570.10"];
    let adreno = ["Adreno (TM) 730", "Qualcomm", ""];
    let mali = ["Mali-G78", "Mali", ""];
    for (class, info) in [
        (
            DeviceClass::OldLlvmpipe,
            info(Vulkan, Cpu, 0x10005, mesa("Mesa 22.3.6 (LLVM 15.0.6)")),
        ),
        (
            DeviceClass::Llvmpipe,
            info(Vulkan, Cpu, 0x10005, mesa("Mesa 23.0.0 (LLVM 15.0.6)")),
        ),
        (
            DeviceClass::Llvmpipe,
            info(Vulkan, Cpu, 0x10005, mesa("Mesa 25.0.7-2~bpo12+1")),
        ),
        // A version that cannot be read is taken for a new one.
        (
            DeviceClass::Llvmpipe,
            info(Vulkan, Cpu, 0x10005, mesa("Mesa git")),
        ),
        (DeviceClass::Llvmpipe, info(Vulkan, Cpu, 0x10005, mesa(""))),
        (
            DeviceClass::SwiftShader,
            info(Vulkan, Cpu, 0x1ae0, swiftshader),
        ),
        (
            DeviceClass::Software,
            info(Dx12, Cpu, 0x1414, named("Microsoft Basic Render Driver")),
        ),
        (DeviceClass::Amd, info(Vulkan, DiscreteGpu, 0x1002, radv)),
        (DeviceClass::Nvidia, info(Vulkan, DiscreteGpu, 0x10de, h200)),
        (
            DeviceClass::Intel,
            info(Dx12, IntegratedGpu, 0x8086, named("Intel(R) Arc(TM)")),
        ),
        (
            DeviceClass::Apple,
            info(Metal, IntegratedGpu, 0, named("Apple M2")),
        ),
        (
            DeviceClass::Amd,
            info(Metal, DiscreteGpu, 0, named("AMD Radeon Pro 5500M")),
        ),
        (
            DeviceClass::Qualcomm,
            info(Vulkan, IntegratedGpu, 0x5143, adreno),
        ),
        (DeviceClass::Mali, info(Vulkan, IntegratedGpu, 0x13b5, mali)),
        (
            DeviceClass::Browser,
            info(BrowserWebGpu, Other, 0, named("llvmpipe")),
        ),
        (
            DeviceClass::Unknown,
            info(Vulkan, DiscreteGpu, 0x9999, named("Something")),
        ),
    ] {
        assert_eq!(DeviceClass::of(&info), class, "{info:?}");
    }
}

/// Every class has its kernels in an order without repetition, every row says
/// where it comes from, and what was measured has a figure.
#[test]
fn every_row_has_its_evidence() {
    for class in DeviceClass::ALL {
        let rows = class.candidates();
        assert!(rows.len() >= 2, "{class}");
        for (at, row) in rows.iter().enumerate() {
            assert!(rows[..at].iter().all(|r| r.kernel != row.kernel), "{class}");
            assert!(row.source.len() > 5, "{class}: {row}");
            let has_figure = row.source.contains(|c: char| c.is_ascii_digit());
            assert!(
                has_figure || row.evidence == Evidence::Judgement,
                "{class}: {row}"
            );
        }
        let names = DeviceClass::ALL.iter().filter(|c| c.name() == class.name());
        assert_eq!(names.count(), 1, "{class}");
    }
}

/// A plan takes the first row that the device can run, and says so.
#[test]
fn plans_follow_the_table() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let problem = forward(&buffers.plain(), &Options::default());
    for class in DeviceClass::ALL {
        let mut caps = DeviceCaps::webgpu_default();
        caps.class = *class;
        let able: Vec<_> = caps.kernels().collect();
        let plan = Plan::new(&problem, &caps, &PlanOptions::default()).unwrap();
        let mut rows = class.candidates().iter();
        let row = rows.find(|row| able.contains(&row.kernel)).unwrap();
        assert_eq!(plan.kernel(), row.kernel, "{class}");
        assert_eq!(
            plan.why(),
            format!("{class}: {}, {}", row.source, row.evidence)
        );
        // Nothing fits: an error with reasons, not another kernel.
        caps.max_compute_invocations_per_workgroup = 1;
        let error = Plan::new(&problem, &caps, &PlanOptions::default()).unwrap_err();
        assert!(error.is_unsupported(), "{error}");
    }
}

/// A row that the driver's loop limit rules out is passed over, with the reason.
#[test]
fn a_row_that_cannot_is_passed_over() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let problem = forward(&buffers.plain(), &Options::default());
    let mut seen = 0;
    for limit in (0..2000).step_by(20) {
        let mut caps = DeviceCaps::webgpu_default();
        caps.max_loop_iterations = Some(limit);
        let Ok(plan) = Plan::new(&problem, &caps, &PlanOptions::default()) else {
            continue;
        };
        let table = caps.class.candidates();
        let first = table
            .iter()
            .find(|row| caps.kernels().any(|k| k == row.kernel));
        let first = first.unwrap().kernel;
        let reason = format!("; not {first:?}: loop iterations");
        assert_eq!(
            plan.kernel() != first,
            plan.why().contains(&reason),
            "{}",
            plan.why()
        );
        seen += usize::from(plan.kernel() != first);
    }
    assert!(seen > 0, "no limit rules out the first row alone");
}

/// What was measured on the device comes before the table, for its problems
/// alone, and only where the device can.
#[test]
fn plans_follow_measurements() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let problem = forward(&buffers.plain(), &Options::default());
    let causal = forward(&buffers.plain(), &Options::default().causal(true));
    let own = ProblemClass::of(&problem);
    for kernel in DeviceCaps::webgpu_default().kernels() {
        let mut caps = DeviceCaps::webgpu_default();
        caps.tuned = vec![Tuned::new(own, kernel)];
        let plan = |problem: &Problem, caps: &DeviceCaps| {
            Plan::new(problem, caps, &PlanOptions::default()).unwrap()
        };
        let tuned = plan(&problem, &caps);
        assert_eq!(tuned.kernel(), kernel);
        assert_eq!(tuned.why(), format!("measured on this device for {own}"));
        let table = plan(&causal, &DeviceCaps::webgpu_default());
        assert_eq!(plan(&causal, &caps), table);
        // A word of the caller's counts more.
        let staged = PlanOptions::default().kernel(Kernel::Staged);
        let staged = Plan::new(&problem, &caps, &staged).unwrap();
        assert_eq!(staged.kernel(), Kernel::Staged);
    }
    let mut caps = DeviceCaps::webgpu_default();
    caps.tuned = vec![Tuned::new(own, Kernel::Tiled)];
    let passed_over = (0..2000).step_by(20).filter_map(|limit| {
        caps.max_loop_iterations = Some(limit);
        Plan::new(&problem, &caps, &PlanOptions::default()).ok()
    });
    let passed_over: Vec<_> = passed_over
        .filter(|plan| plan.kernel() != Kernel::Tiled)
        .collect();
    assert!(!passed_over.is_empty());
    for plan in passed_over {
        assert!(plan.why().contains("; not Tiled: loop"), "{}", plan.why());
    }
}

/// The class rounds sizes up and keeps what changes the work.
#[test]
fn problem_classes() {
    let noop = Noop::new();
    let of = |sizes: Sizes, options: Options| {
        let buffers = Buffers::new(&noop, sizes, DType::F16);
        ProblemClass::of(&forward(&buffers.plain(), &options))
    };
    let plain = of(SMALL, Options::default());
    assert_eq!(
        plain.to_string(),
        "query F16, key and value F16, up to head_dim 32, 16 heads, 16 queries and 16 keys"
    );
    assert_eq!(of(Sizes { q_len: 16, ..SMALL }, Options::default()), plain);
    assert_ne!(of(Sizes { q_len: 17, ..SMALL }, Options::default()), plain);
    assert_ne!(of(Sizes { q_len: 4, ..SMALL }, Options::default()), plain);
    let causal = of(SMALL, Options::default().causal(true));
    assert!(causal.causal && !causal.window && !causal.pairwise);
    let window = of(SMALL, Options::default().window(Window::around(3, 1)));
    assert!(window.causal && window.window);
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let dense = forward(&buffers.dense(), &Options::default());
    assert!(ProblemClass::of(&dense).pairwise);
}
