//! Many runs of one plan, in a process of their own: what other tests make grows lists of
//! wgpu's that are counted here.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use allocation_counter::measure;
use common::{Shape, generate};
use gpu::guest::{Guest, Setup};
use gpu::{Report, gpu, oracle};
use wgpu_attention::Attention;

/// 10,000 recordings of a prepared plan: the same bits to the end, no pipeline more, and
/// no memory of the host that grows from one to the next.
#[test]
fn ten_thousand_runs() {
    let case = generate(5, Shape::f32([1, 2, 9, 8], 1, 33, 5), &[]);
    let attention = Attention::new(gpu().device(), gpu().queue()).unwrap();
    let guest = Guest::new(&attention, &case, &Setup::default()).unwrap();
    let runs = |count: usize| {
        for _ in 0..count / 100 {
            let mut encoder = attention
                .device()
                .create_command_encoder(&Default::default());
            for _ in 0..100 {
                guest.record(&guest.prepared, &mut encoder).unwrap();
            }
            attention.queue().submit([encoder.finish()]);
            attention
                .device()
                .poll(wgpu_attention::wgpu::PollType::wait_indefinitely())
                .unwrap();
        }
        guest.read().unwrap().output
    };
    let first = runs(1000);
    let pipelines = attention.pipelines();
    let mut last = Vec::new();
    let grown = measure(|| last = runs(9000)).bytes_current;
    assert_eq!(first, last);
    assert_eq!(attention.pipelines(), pipelines);
    // What a run kept would be there 9000 times.
    assert!(grown < 9000, "{grown} bytes");
    let expected = oracle(&case);
    let mut report = Report::new();
    report.judge("the last run", &expected, &guest.read().unwrap());
    report.finish(1);
}
