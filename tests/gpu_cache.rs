//! Decoding over a preallocated cache of keys and values, by what there is: lengths in a
//! GPU buffer, one prepared plan, and projections that write into the cache.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use common::Elements;
use gpu::{Report, gpu, kernels};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::reference::{self, compare};
use wgpu_attention::{
    DType, Inputs, List, Operands, Options, Plan, PlanOptions, Prepared, Problem, Projection,
    Tensor, TensorView, Window, Workspace, wgpu,
};

/// A buffer of poison: what is not written since stays a NaN of these bits.
fn poisoned(bytes: usize) -> wgpu::Buffer {
    let buffer = gpu().device().create_buffer(&wgpu::BufferDescriptor {
        label: Some("cache"),
        size: bytes as u64,
        usage: wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    write(&buffer, 0, &vec![0xff; bytes]);
    buffer
}

fn write(buffer: &wgpu::Buffer, at: usize, bytes: &[u8]) {
    gpu().queue().write_buffer(buffer, at as u64, bytes);
}

fn read(buffer: &wgpu::Buffer) -> Vec<u8> {
    let (device, queue) = (gpu().device(), gpu().queue());
    let staging = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: buffer.size(),
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut encoder = device.create_command_encoder(&Default::default());
    encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, buffer.size());
    queue.submit([encoder.finish()]);
    staging.map_async(wgpu::MapMode::Read, .., |_| ());
    device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    let mapped = staging.get_mapped_range(..).unwrap();
    mapped.to_vec()
}

fn numbers(rng: &mut StdRng, count: usize, dtype: DType) -> Elements {
    let values: Vec<f32> = (0..count).map(|_| rng.random_range(-2.0..2.0)).collect();
    Elements::new(&values, dtype)
}

fn prepared(operands: &Operands<'_>, options: &Options, plan: &PlanOptions) -> Prepared {
    let problem = Problem::forward(operands, options).unwrap();
    let plan = Plan::new(&problem, gpu().caps(), plan).unwrap();
    gpu().prepare(&plan).unwrap()
}

/// A cache (B, Hkv, capacity, D), its lengths in a buffer, one prepared plan.
struct Cache {
    sizes: [usize; 5],
    dtype: DType,
    query: wgpu::Buffer,
    key: wgpu::Buffer,
    value: wgpu::Buffer,
    output: wgpu::Buffer,
    lengths: wgpu::Buffer,
}

impl Cache {
    fn new([batch, q_heads, kv_heads, capacity, dim]: [usize; 5], dtype: DType) -> Self {
        let size = dtype.size() as usize;
        let kept = batch * kv_heads * capacity * dim * size;
        Cache {
            sizes: [batch, q_heads, kv_heads, capacity, dim],
            dtype,
            query: poisoned(batch * q_heads * dim * 4),
            key: poisoned(kept),
            value: poisoned(kept),
            output: poisoned(batch * q_heads * dim * 4),
            lengths: poisoned(batch * 4),
        }
    }

    fn operands(&self) -> Operands<'_> {
        let [batch, q_heads, kv_heads, capacity, dim] = self.sizes;
        let view = |buffer, dtype, shape| TensorView::bhsd(buffer, dtype, shape, 0).unwrap();
        let (row, kept) = ([batch, q_heads, 1, dim], [batch, kv_heads, capacity, dim]);
        Operands::new(
            view(&self.query, DType::F32, row),
            view(&self.key, self.dtype, kept),
            view(&self.value, self.dtype, kept),
            view(&self.output, DType::F32, row),
        )
        .kv_lengths(List::Buffer {
            buffer: &self.lengths,
            offset: 0,
            len: batch,
        })
    }
}

/// One sequence's keys or values as they came: a row for each token, (Hkv, D).
type Rows = Vec<Elements>;

/// (1, Hkv, tokens, D) of rows.
fn gathered(rows: &Rows, kv_heads: usize, dim: usize) -> Vec<f32> {
    let of_head = |head: usize| {
        rows.iter()
            .flat_map(move |row| row.to_f32()[head * dim..][..dim].to_vec())
    };
    (0..kv_heads).flat_map(of_head).collect()
}

/// Sequences of unlike lengths grow by a token a step, and one by none; the plan and the
/// lengths' buffer stay what they were. Each step against the oracle over just the tokens
/// that are there: slots not yet written hold NaN.
#[test]
fn one_plan_decodes_over_a_cache_with_lengths_in_a_buffer() {
    let mut report = Report::new();
    let sizes = [3, 4, 2, 70, 20];
    let [batch, q_heads, kv_heads, capacity, dim] = sizes;
    let starts = [0, 57, 31];
    let steps = 13;
    for kernel in kernels() {
        for (options, dtype) in [
            (Options::default(), DType::F32),
            (Options::default().causal(true), DType::F16),
            (
                Options::default().causal(true).window(Window::around(9, 0)),
                DType::BF16,
            ),
        ] {
            let mut rng = StdRng::seed_from_u64(7);
            let cache = Cache::new(sizes, dtype);
            let operands = cache.operands();
            let prepared = prepared(&operands, &options, &PlanOptions::default().kernel(kernel));
            let scratch = poisoned(prepared.plan().workspace_bytes() as usize);
            let mut kept: Vec<[Rows; 2]> = vec![[Rows::new(), Rows::new()]; batch];
            let size = dtype.size() as usize;
            let mut append = |sequence: usize, rows: &mut [Rows; 2]| {
                for (rows, buffer) in rows.iter_mut().zip([&cache.key, &cache.value]) {
                    let row = numbers(&mut rng, kv_heads * dim, dtype);
                    let bytes = row.data().bytes().to_vec();
                    for (head, bytes) in bytes.chunks(dim * size).enumerate() {
                        let slot = (sequence * kv_heads + head) * capacity + rows.len();
                        write(buffer, slot * dim * size, bytes);
                    }
                    rows.push(row);
                }
            };
            for (sequence, rows) in kept.iter_mut().enumerate() {
                (0..starts[sequence]).for_each(|_| append(sequence, rows));
            }
            let mut queries = StdRng::seed_from_u64(8);
            for step in 0..steps {
                for (sequence, rows) in kept.iter_mut().enumerate() {
                    // The first sequence waits a while.
                    if sequence > 0 || step > 2 {
                        append(sequence, rows);
                    }
                }
                let lengths: Vec<u32> = kept.iter().map(|[key, _]| key.len() as u32).collect();
                write(&cache.lengths, 0, bytemuck::cast_slice(&lengths));
                let query = numbers(&mut queries, batch * q_heads * dim, DType::F32);
                write(&cache.query, 0, query.data().bytes());
                let mut encoder = gpu().device().create_command_encoder(&Default::default());
                let workspace = Some(Workspace::new(&scratch));
                prepared.record(&mut encoder, &operands, workspace).unwrap();
                gpu().queue().submit([encoder.finish()]);
                let output: Vec<f32> = bytemuck::pod_collect_to_vec(&read(&cache.output));
                for (sequence, [key, value]) in kept.iter().enumerate() {
                    let part = sequence * q_heads * dim..(sequence + 1) * q_heads * dim;
                    let (tokens, query) = (key.len(), &query.to_f32()[part.clone()]);
                    let [key, value] = [key, value].map(|rows| gathered(rows, kv_heads, dim));
                    let there = [1, kv_heads, tokens, dim];
                    let inputs = Inputs::new(
                        Tensor::f32(query, [1, q_heads, 1, dim]).unwrap(),
                        Tensor::f32(&key, there).unwrap(),
                        Tensor::f32(&value, there).unwrap(),
                    );
                    let expected = reference::forward(&inputs, &options, DType::F32).unwrap();
                    let found = compare(&output[part], &expected.output, &expected.output_bound);
                    let what = format!("{kernel} {dtype:?} step {step} sequence {sequence}");
                    report.record(&what, "output", q_heads * dim, found);
                }
            }
        }
    }
    report.finish(2 * 3 * steps * batch * q_heads * dim);
}

/// A projection of one token for each sequence, whose output is a slot of a cache
/// (B, capacity, Hkv, D).
fn into_slot<'a>(
    [input, weight, cache]: [&'a wgpu::Buffer; 3],
    [batch, capacity, width, from]: [usize; 4],
    slot: usize,
) -> Projection<'a> {
    let strides = [capacity * width, width, width, 1];
    let shape = [batch, 1, 1, width];
    Projection {
        input: TensorView::tokens(input, DType::F32, [batch, 1, from], 0).unwrap(),
        weight: TensorView::matrix(weight, DType::F32, [width, from], 0).unwrap(),
        bias: None,
        output: TensorView::strided(cache, DType::F32, shape, strides, slot * width).unwrap(),
    }
}

/// Keys and values come from projections that are recorded before the attention, in one
/// encoder, by one prepared plan each: slots of 64 numbers begin at a multiple of 256
/// bytes. Nothing but the slot is written, and every step is what the oracle says of what
/// is in the cache.
#[test]
fn projections_write_into_the_slots_of_a_cache() {
    let mut report = Report::new();
    let [batch, q_heads, kv_heads, capacity, dim, from] = [2, 4, 2, 12, 32, 24];
    let width = kv_heads * dim;
    let options = Options::default().causal(true);
    for kernel in kernels() {
        let chosen = PlanOptions::default().kernel(kernel);
        let mut rng = StdRng::seed_from_u64(9);
        let weights = [(); 2].map(|()| numbers(&mut rng, width * from, DType::F32));
        let [key_weight, value_weight] = [0, 1].map(|n| {
            let buffer = poisoned(width * from * 4);
            write(&buffer, 0, weights[n].data().bytes());
            buffer
        });
        let token = poisoned(batch * from * 4);
        let row = batch * q_heads * dim * 4;
        let (query, output, lengths) = (poisoned(row), poisoned(row), poisoned(batch * 4));
        let [key, value] = [(); 2].map(|()| poisoned(batch * capacity * width * 4));
        let there = [batch, kv_heads, capacity, dim];
        let rows = [batch, q_heads, 1, dim];
        let operands = Operands::new(
            TensorView::bhsd(&query, DType::F32, rows, 0).unwrap(),
            TensorView::bshd(&key, DType::F32, there, 0).unwrap(),
            TensorView::bshd(&value, DType::F32, there, 0).unwrap(),
            TensorView::bhsd(&output, DType::F32, rows, 0).unwrap(),
        );
        let operands = operands.kv_lengths(List::Buffer {
            buffer: &lengths,
            offset: 0,
            len: batch,
        });
        let attention = prepared(&operands, &options, &chosen);
        let scratch = poisoned(attention.plan().workspace_bytes() as usize);
        let sizes = [batch, capacity, width, from];
        let projected = [(&key_weight, &key), (&value_weight, &value)];
        let of_slot = |n: usize, slot: usize| {
            let (weight, cache) = projected[n];
            into_slot([&token, weight, cache], sizes, slot)
        };
        let projections = [0, 1].map(|n| {
            let problem = Problem::projection(&of_slot(n, 0)).unwrap();
            let plan = Plan::new(&problem, gpu().caps(), &chosen).unwrap();
            gpu().prepare(&plan).unwrap()
        });
        let mut held = [(); 2].map(|()| vec![0xff; batch * capacity * width * 4]);
        for slot in 0..capacity {
            let x = numbers(&mut rng, batch * from, DType::F32);
            write(&token, 0, x.data().bytes());
            let q = numbers(&mut rng, batch * q_heads * dim, DType::F32);
            write(&query, 0, q.data().bytes());
            let counts = vec![slot as u32 + 1; batch];
            write(&lengths, 0, bytemuck::cast_slice(&counts));
            let mut encoder = gpu().device().create_command_encoder(&Default::default());
            for (n, prepared) in projections.iter().enumerate() {
                let operands = of_slot(n, slot).operands().unwrap();
                prepared.record(&mut encoder, &operands, None).unwrap();
            }
            let workspace = Some(Workspace::new(&scratch));
            attention
                .record(&mut encoder, &operands, workspace)
                .unwrap();
            gpu().queue().submit([encoder.finish()]);
            let what = format!("{kernel} slot {slot}");
            // What the projections wrote, and that they wrote nothing else.
            let caches = [read(&key), read(&value)];
            for n in 0..2 {
                let x = Tensor::new(x.data(), [batch, 1, 1, from]).unwrap();
                let w = Tensor::new(weights[n].data(), [1, 1, width, from]).unwrap();
                let expected = reference::project(&x, &w, None, DType::F32).unwrap();
                let mut wrote = Vec::new();
                for sequence in 0..batch {
                    let at = (sequence * capacity + slot) * width * 4;
                    let bytes = &caches[n][at..at + width * 4];
                    held[n][at..at + width * 4].copy_from_slice(bytes);
                    wrote.extend(bytemuck::pod_collect_to_vec::<u8, f32>(bytes));
                }
                let found = compare(&wrote, &expected.values, &expected.bound);
                report.record(&what, "projection", batch * width, found);
                report.expect(held[n] == caches[n], format!("{what}: other bytes changed"));
            }
            // What the attention made of it, in the oracle's order (B, Hkv, tokens, D).
            let [key, value] = caches.map(|cache| {
                let cache: Vec<f32> = bytemuck::pod_collect_to_vec(&cache);
                let mut sorted = Vec::new();
                for (sequence, head) in (0..batch * kv_heads).map(|n| (n / kv_heads, n % kv_heads))
                {
                    for token in 0..=slot {
                        let at = ((sequence * capacity + token) * kv_heads + head) * dim;
                        sorted.extend_from_slice(&cache[at..at + dim]);
                    }
                }
                sorted
            });
            let there = [batch, kv_heads, slot + 1, dim];
            let inputs = Inputs::new(
                Tensor::new(q.data(), rows).unwrap(),
                Tensor::f32(&key, there).unwrap(),
                Tensor::f32(&value, there).unwrap(),
            );
            let expected = reference::forward(&inputs, &options, DType::F32).unwrap();
            let output: Vec<f32> = bytemuck::pod_collect_to_vec(&read(&output));
            let found = compare(&output, &expected.output, &expected.output_bound);
            report.record(&what, "output", batch * q_heads * dim, found);
        }
    }
    report.finish(2 * capacity * batch * (2 * width + q_heads * dim));
}
