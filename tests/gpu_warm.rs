//! Getting ready: warm-up on the adapter, and preparation on threads.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use std::time::{Duration, Instant};

use common::{Feature, Shape, generate};
use gpu::guest::{Guest, Setup};
use gpu::{gpu, kernels, oracle};
use wgpu_attention::reference::compare;
use wgpu_attention::{Attention, DType, Kernel, PlanOptions, Prepared, wgpu};

fn wait() {
    let device = gpu().device();
    device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
}

/// From recording to completion.
fn time(guest: &Guest<'_>, prepared: &Prepared) -> Duration {
    let start = Instant::now();
    let mut encoder = gpu().device().create_command_encoder(&Default::default());
    guest.record(prepared, &mut encoder).unwrap();
    gpu().queue().submit([encoder.finish()]);
    wait();
    start.elapsed()
}

/// First dispatches in steady times: the best and the middle one of five.
fn first_dispatch(kernel: Kernel, warm: bool) -> [f64; 2] {
    // With a warm-up the steady time should show, and not what a first
    // submission costs besides (0.1 ms); without it, what compilation takes.
    let (heads, len, dim) = if warm { (2, 150, 64) } else { (1, 40, 16) };
    let shape = Shape::f32([1, heads, len, dim], 1, len, dim);
    let case = generate(1, shape, &[]);
    let setup = Setup {
        plan: PlanOptions::default().kernel(kernel),
        ..Setup::default()
    };
    // The buffers' own first use is over, so that only the pipelines are new.
    let guest = Guest::new(gpu(), &case, &setup).unwrap();
    time(&guest, &guest.prepared);
    let mut ratios = Vec::new();
    for _ in 0..5 {
        // Pipelines belong to an `Attention`; the device is the tests' one.
        let attention = Attention::new(gpu().device(), gpu().queue()).unwrap();
        let prepared = attention.prepare(guest.prepared.plan()).unwrap();
        if warm {
            let waiting = wgpu::PollType::Wait {
                submission_index: prepared.warm_up().unwrap(),
                timeout: None,
            };
            gpu().device().poll(waiting).unwrap();
        }
        let first = time(&guest, &prepared);
        let steady = (0..10).map(|_| time(&guest, &prepared)).min().unwrap();
        ratios.push(first.as_secs_f64() / steady.as_secs_f64());
    }
    println!("{kernel}, warm {warm}: {ratios:.2?}");
    ratios.sort_by(f64::total_cmp);
    [ratios[0], ratios[2]]
}

/// After a warm-up the first dispatch takes under twice the steady time; on a
/// driver that compiles then (lavapipe) it otherwise takes more, even from the
/// driver's cache on disk.
#[test]
fn a_warm_first_dispatch_is_a_steady_one() {
    for kernel in kernels() {
        let [best, _] = first_dispatch(kernel, true);
        assert!(best < 2.0, "{kernel}: {best}");
        if gpu().adapter_info().driver == "llvmpipe" {
            let [_, middle] = first_dispatch(kernel, false);
            assert!(middle > 2.0, "{kernel}: {middle}");
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
