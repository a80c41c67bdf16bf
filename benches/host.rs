//! What a call costs the host: to plan, to prepare again, to record.
//!
//!     cargo bench --bench host
//!
//! Times are the thread's processor time, so that a busy machine does not count.
//! Finishing the encoder and submitting are left out. Allocations are those of
//! a call once everything that is kept has been made; beside them stands what
//! wgpu takes for the same calls by hand (`tests/noop/bare.rs`). Two devices:
//! wgpu's `noop` backend, where only the host's work is left, and the default
//! adapter where there is one.

#[path = "../tests/noop/mod.rs"]
mod noop;

use std::hint::black_box;
use std::time::Duration;

use allocation_counter::measure;
use cpu_time::ThreadTime;
use criterion::{Criterion, criterion_group, criterion_main};
use noop::bare::Bare;
use noop::{Buffers, Noop, Sizes};
use wgpu_attention::{Attention, DType, Operands, Options, wgpu};

/// A usual prefill.
const SIZES: Sizes = Sizes {
    batch: 1,
    q_heads: 8,
    kv_heads: 8,
    q_len: 512,
    kv_len: 512,
    qk_dim: 64,
    v_dim: 64,
};

/// Recordings that share an encoder, whose making is left out.
const BATCH: u64 = 64;

fn devices() -> Vec<(&'static str, Noop)> {
    let mut devices = vec![("noop", Noop::new())];
    match Attention::on_default_adapter() {
        Ok(own) => {
            println!("adapter: {}", own.adapter_line());
            devices.push(("adapter", Noop::of(own.device().clone(), own.queue())));
        }
        Err(error) => println!("{error}"),
    }
    devices
}

fn host(c: &mut Criterion) {
    for (device, noop) in devices() {
        let buffers = Buffers::new(&noop, SIZES, DType::F32);
        for (shape, operands) in [
            ("plain", buffers.plain()),
            ("bias, mask and statistics", buffers.dense()),
        ] {
            call(c, &format!("{device}, {shape}"), &noop, &buffers, &operands);
        }
    }
}

fn call(c: &mut Criterion, name: &str, noop: &Noop, buffers: &Buffers, operands: &Operands<'_>) {
    let attention = &noop.attention;
    let options = Options::default().causal(true);
    let plan = attention.plan(operands, &options).unwrap();
    let prepared = attention.prepare(&plan).unwrap();
    let bare = Bare::new(noop, &plan, buffers);
    let mut step = |what: &str, run: &mut dyn FnMut(&mut wgpu::CommandEncoder)| {
        let mut encoder = noop.device.create_command_encoder(&Default::default());
        // The first runs make what is kept, and that grows now and then.
        let counts = (0..8).map(|_| measure(|| run(&mut encoder)).count_total);
        let count = counts.min().unwrap_or_default();
        drop(encoder);
        c.bench_function(&format!("{name}: {what} ({count} allocations)"), |b| {
            b.iter_custom(|iterations| timed(noop, iterations, run));
        });
    };
    step("plan", &mut |_| {
        black_box(attention.plan(operands, &options).unwrap());
    });
    step("prepare warm", &mut |_| {
        black_box(attention.prepare(&plan).unwrap());
    });
    step("record", &mut |encoder| {
        prepared.record(encoder, operands, None).unwrap();
    });
    step("plan, prepare warm, record", &mut |encoder| {
        let plan = attention.plan(operands, &options).unwrap();
        let prepared = attention.prepare(&plan).unwrap();
        prepared.record(encoder, operands, None).unwrap();
    });
    step("of wgpu: a uniform buffer", &mut |_| {
        black_box(uniform(noop));
    });
    step("of wgpu: a bind group", &mut |_| {
        black_box(bare.bind_first());
    });
    step("of wgpu: bind group, pass, dispatch", &mut |encoder| {
        bare.record(encoder, false);
    });
    step("of wgpu: the same in error scopes", &mut |encoder| {
        bare.record(encoder, true);
    });
}

/// The time of some runs, in batches that share an encoder.
fn timed(noop: &Noop, iterations: u64, run: &mut dyn FnMut(&mut wgpu::CommandEncoder)) -> Duration {
    let mut total = Duration::ZERO;
    let mut left = iterations;
    while left > 0 {
        let batch = left.min(BATCH);
        let mut encoder = noop.device.create_command_encoder(&Default::default());
        let started = ThreadTime::now();
        for _ in 0..batch {
            run(&mut encoder);
        }
        total += started.elapsed();
        left -= batch;
        drop(encoder);
        // What was dropped is given back here, not while the clock runs.
        noop.device.poll(wgpu::PollType::Poll).unwrap();
    }
    total
}

/// What preparing makes anew each time.
fn uniform(noop: &Noop) -> wgpu::Buffer {
    let contents = [0u8; 304];
    let buffer = noop.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("attention uniforms"),
        size: contents.len() as u64,
        usage: wgpu::BufferUsages::UNIFORM,
        mapped_at_creation: true,
    });
    let mut mapped = buffer.get_mapped_range_mut(..).unwrap();
    mapped.copy_from_slice(&contents);
    drop(mapped);
    buffer.unmap();
    buffer
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(40)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = host
}
criterion_main!(benches);
