//! Getting ready: warm-up on the adapter, and preparation on threads.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use std::time::{Duration, Instant};

use common::{Feature, Shape, generate};
use gpu::guest::{Guest, Setup};
use gpu::{gpu, kernels, oracle};
use wgpu_attention::reference::compare;
use wgpu_attention::{Attention, DType, Kernel, Options, PlanOptions, Uploaded, wgpu};

/// A small problem on pipelines that nobody has dispatched yet.
fn uploaded(kernel: Kernel) -> Uploaded {
    // About a millisecond on a software adapter, where the kernels' rates differ.
    let (heads, len) = match kernel {
        Kernel::LaneBroadcast => (4, 192),
        _ => (1, 40),
    };
    let case = generate(1, Shape::f32([1, heads, len, 16], heads, len, 16), &[]);
    // Pipelines belong to an `Attention`; the device is the tests' one.
    let attention = Attention::new(gpu().device(), gpu().queue()).unwrap();
    let options = PlanOptions::default().kernel(kernel);
    let inputs = case.inputs();
    attention
        .upload(&inputs, &Options::default(), DType::F32, &options)
        .unwrap()
}

fn wait() {
    let device = gpu().device();
    device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
}

/// From recording to completion.
fn time(uploaded: &Uploaded) -> Duration {
    let start = Instant::now();
    uploaded.submit().unwrap();
    wait();
    start.elapsed()
}

/// The best of five first dispatches, in steady times.
fn first_dispatch(kernel: Kernel, warm: bool) -> f64 {
    let mut ratios = Vec::new();
    for _ in 0..5 {
        let uploaded = uploaded(kernel);
        if warm {
            let index = uploaded.prepared().warm_up().unwrap();
            let waiting = wgpu::PollType::Wait {
                submission_index: index,
                timeout: None,
            };
            gpu().device().poll(waiting).unwrap();
        }
        let first = time(&uploaded);
        let steady = (0..10).map(|_| time(&uploaded)).min().unwrap();
        ratios.push(first.as_secs_f64() / steady.as_secs_f64());
    }
    let best = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    println!("{kernel}, warm {warm}: {best:.2} of {ratios:.1?}");
    best
}

/// After a warm-up the first dispatch takes under twice the steady time; on a
/// driver that compiles then (lavapipe) it otherwise takes more, even from the
/// driver's cache on disk.
#[test]
fn a_warm_first_dispatch_is_a_steady_one() {
    for kernel in kernels() {
        assert!(first_dispatch(kernel, true) < 2.0, "{kernel}");
        if gpu().adapter_info().driver == "llvmpipe" {
            assert!(first_dispatch(kernel, false) > 2.0, "{kernel}");
        }
    }
}

/// Every pipeline, shared buffers and the gathering of lists included: no byte
/// of the caller's changes, and nothing is computed.
#[test]
fn a_warm_up_touches_nothing() {
    let features = [Feature::Bias, Feature::MaskBits, Feature::KvLengths];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let shape = Shape {
            key_value: dtype,
            ..Shape::f32([2, 2, 5, 4], 1, 7, 3)
        };
        let case = generate(1, shape, &features);
        for kernel in kernels() {
            for one_buffer in [false, true] {
                let setup = Setup {
                    plan: PlanOptions::default().kernel(kernel),
                    device_lists: true,
                    one_buffer,
                    ..Setup::default()
                };
                let guest = Guest::new(gpu(), &case, &setup).unwrap();
                assert!(guest.prepared.warm_up().unwrap().is_some());
                let ran = guest.read().unwrap();
                let expected = oracle(&case);
                let found = compare(&ran.output, &expected.output, &expected.output_bound).unwrap();
                assert_eq!(found.failed, found.compared, "{kernel} wrote outputs");
            }
        }
    }
}

/// A plan without dispatches has nothing to warm up.
#[test]
fn an_empty_plan_submits_nothing() {
    let case = generate(1, Shape::f32([1, 1, 0, 4], 1, 7, 3), &[]);
    let guest = Guest::new(gpu(), &case, &Setup::default()).unwrap();
    assert!(guest.prepared.warm_up().unwrap().is_none());
}

/// Threads prepare the same plan at once, share its pipelines, and get its result.
#[test]
fn threads_prepare_together() {
    let case = generate(3, Shape::f32([1, 2, 9, 8], 1, 33, 5), &[Feature::Causal]);
    let expected = oracle(&case);
    for kernel in kernels() {
        let attention = Attention::new(gpu().device(), gpu().queue()).unwrap();
        let setup = Setup {
            plan: PlanOptions::default().kernel(kernel),
            ..Setup::default()
        };
        let alone = Guest::new(&attention, &case, &setup).unwrap();
        let alone = (alone.prepared.plan().clone(), attention.pipelines());
        let attention = Attention::new(gpu().device(), gpu().queue()).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|_| {
                    scope.spawn(|| {
                        let guest = Guest::new(&attention, &case, &setup).unwrap();
                        guest.prepared.warm_up().unwrap();
                        let plan = guest.prepared.plan().clone();
                        let ran = Guest::run(&attention, &case, &setup).unwrap();
                        (plan, ran)
                    })
                })
                .collect();
            for thread in threads {
                let (plan, ran) = thread.join().unwrap();
                assert_eq!(plan, alone.0);
                for found in [
                    compare(&ran.output, &expected.output, &expected.output_bound).unwrap(),
                    compare(&ran.stats, &expected.lse, &expected.lse_bound).unwrap(),
                ] {
                    assert!(found.passed(), "{kernel}: {found}");
                }
            }
        });
        assert_eq!(attention.pipelines(), alone.1, "{kernel}");
    }
}
