//! A device that validates everything and computes nothing (wgpu's `noop`
//! backend), and problems on it.
#![allow(dead_code)]

pub mod bare;

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use wgpu_attention::{
    Attention, DType, Error, List, MaskView, Operands, Options, Plan, PlanOptions, Polarity,
    Problem, Result, Stats, StatsView, TensorView, Workspace, wgpu,
};

/// A device at WebGPU's default limits that keeps every uncaptured error.
pub struct Noop {
    pub attention: Attention,
    pub device: wgpu::Device,
    uncaptured: Arc<Mutex<Vec<String>>>,
}

impl Noop {
    pub fn new() -> Self {
        Noop::with_limits(wgpu::Limits::default())
    }

    pub fn with_limits(required_limits: wgpu::Limits) -> Self {
        let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor {
            required_limits,
            ..Default::default()
        });
        Noop::of(device, &queue)
    }

    /// The same over another device.
    pub fn of(device: wgpu::Device, queue: &wgpu::Queue) -> Self {
        let uncaptured = Arc::new(Mutex::new(Vec::new()));
        let keep = uncaptured.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            keep.lock().unwrap().push(error.to_string());
        }));
        Noop {
            attention: Attention::new(&device, queue).unwrap(),
            device,
            uncaptured,
        }
    }

    /// Two devices of one instance, so that wgpu can tell them apart.
    pub fn pair() -> [Self; 2] {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::NOOP;
        descriptor.backend_options.noop = wgpu::NoopBackendOptions::enabled();
        let instance = wgpu::Instance::new(descriptor);
        let adapter = ready(instance.request_adapter(&Default::default())).unwrap();
        [(); 2].map(|()| {
            let (device, queue) = ready(adapter.request_device(&Default::default())).unwrap();
            Noop::of(device, &queue)
        })
    }

    /// A storage buffer.
    pub fn buffer(&self, size: u64) -> wgpu::Buffer {
        self.buffer_with(size, wgpu::BufferUsages::STORAGE)
    }

    pub fn buffer_with(&self, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage,
            mapped_at_creation: false,
        })
    }

    /// Errors that reached the device's handler since the last call.
    pub fn take_uncaptured(&self) -> Vec<String> {
        std::mem::take(&mut self.uncaptured.lock().unwrap())
    }

    /// Plans, prepares, records, finishes and submits; fails on any error that
    /// wgpu reports at any of these.
    pub fn run(
        &self,
        operands: &Operands<'_>,
        options: &Options,
        plan_options: &PlanOptions,
    ) -> Result<Plan> {
        let problem = Problem::forward(operands, options)?;
        self.run_problem(&problem, operands, plan_options)
    }

    pub fn run_problem(
        &self,
        problem: &Problem,
        operands: &Operands<'_>,
        plan_options: &PlanOptions,
    ) -> Result<Plan> {
        let plan = Plan::new(problem, self.attention.caps(), plan_options)?;
        let bytes = plan.workspace_bytes();
        let buffer = (bytes > 0).then(|| self.buffer(bytes));
        self.record(&plan, operands, buffer.as_ref().map(Workspace::new))?;
        Ok(plan)
    }

    pub fn record(
        &self,
        plan: &Plan,
        operands: &Operands<'_>,
        workspace: Option<Workspace<'_>>,
    ) -> Result<()> {
        let prepared = self.attention.prepare(plan)?;
        prepared.warm_up()?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        // Twice in one encoder, once of them in a pass that is already open.
        let recorded = prepared.record(&mut encoder, operands, workspace);
        let in_pass = {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            prepared.record_in_pass(&mut pass, operands, workspace)
        };
        assert_eq!(recorded, in_pass);
        self.attention.queue().submit([encoder.finish()]);
        let uncaptured = self.take_uncaptured();
        assert!(uncaptured.is_empty(), "{plan}\n{uncaptured:#?}");
        recorded
    }
}

/// The value of a future that is ready at once, as this backend's are.
fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("not ready"),
    }
}

/// Sizes of a small problem.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub batch: usize,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub q_len: usize,
    pub kv_len: usize,
    pub qk_dim: usize,
    pub v_dim: usize,
}

pub const SMALL: Sizes = Sizes {
    batch: 2,
    q_heads: 4,
    kv_heads: 2,
    q_len: 5,
    kv_len: 7,
    qk_dim: 8,
    v_dim: 6,
};

impl Sizes {
    pub fn query(&self) -> [usize; 4] {
        [self.batch, self.q_heads, self.q_len, self.qk_dim]
    }

    pub fn key(&self) -> [usize; 4] {
        [self.batch, self.kv_heads, self.kv_len, self.qk_dim]
    }

    pub fn value(&self) -> [usize; 4] {
        [self.batch, self.kv_heads, self.kv_len, self.v_dim]
    }

    pub fn output(&self) -> [usize; 4] {
        [self.batch, self.q_heads, self.q_len, self.v_dim]
    }

    pub fn pairs(&self) -> [usize; 4] {
        [self.batch, self.q_heads, self.q_len, self.kv_len]
    }

    pub fn rows(&self) -> [usize; 3] {
        [self.batch, self.q_heads, self.q_len]
    }
}

pub fn bytes_of(shape: [usize; 4], dtype: DType) -> u64 {
    let count: usize = shape.iter().product();
    (count as u64 * dtype.size()).next_multiple_of(4).max(4)
}

/// Buffers for every operand of a problem.
pub struct Buffers {
    pub sizes: Sizes,
    pub dtype: DType,
    pub query: wgpu::Buffer,
    pub key: wgpu::Buffer,
    pub value: wgpu::Buffer,
    pub output: wgpu::Buffer,
    pub stats: wgpu::Buffer,
    pub bias: wgpu::Buffer,
    pub mask: wgpu::Buffer,
    pub list: wgpu::Buffer,
}

/// Values for every list of a problem.
pub struct Lists {
    pub kv_lengths: Vec<u32>,
    pub q_lengths: Vec<u32>,
    pub offsets: Vec<i32>,
    pub q_segments: Vec<u32>,
    pub kv_segments: Vec<u32>,
    pub slopes: Vec<f32>,
    pub sinks: Vec<f32>,
}

impl Lists {
    pub fn new(sizes: Sizes) -> Self {
        Lists {
            kv_lengths: vec![sizes.kv_len as u32; sizes.batch],
            q_lengths: vec![sizes.q_len as u32; sizes.batch],
            offsets: vec![-1; sizes.batch],
            q_segments: vec![3; sizes.batch * sizes.q_len],
            kv_segments: vec![3; sizes.batch * sizes.kv_len],
            slopes: vec![0.5; sizes.q_heads],
            sinks: vec![0.25; sizes.q_heads],
        }
    }

    /// Every list that goes with `Alignment::PerSequence`, on the host.
    pub fn on_host<'a>(&'a self, operands: Operands<'a>) -> Operands<'a> {
        operands
            .kv_lengths(List::Host(&self.kv_lengths))
            .q_lengths(List::Host(&self.q_lengths))
            .offsets(List::Host(&self.offsets))
            .segments(List::Host(&self.q_segments), List::Host(&self.kv_segments))
            .alibi_slopes(List::Host(&self.slopes))
            .sinks(List::Host(&self.sinks))
    }
}

impl Buffers {
    pub fn new(noop: &Noop, sizes: Sizes, dtype: DType) -> Self {
        let pairs: usize = sizes.pairs().iter().product();
        let rows: usize = sizes.rows().iter().product();
        let lists = 4 * (sizes.batch * (3 + sizes.q_len + sizes.kv_len) + 2 * sizes.q_heads);
        let room = |count: usize| noop.buffer((count as u64).next_multiple_of(4).max(4));
        Buffers {
            sizes,
            dtype,
            query: noop.buffer(bytes_of(sizes.query(), dtype)),
            key: noop.buffer(bytes_of(sizes.key(), dtype)),
            value: noop.buffer(bytes_of(sizes.value(), dtype)),
            output: noop.buffer(bytes_of(sizes.output(), DType::F32)),
            stats: room(rows * 8),
            bias: room(pairs * 4),
            mask: room(pairs),
            list: room(lists),
        }
    }

    /// Query, key, value and output alone.
    pub fn plain(&self) -> Operands<'_> {
        let s = &self.sizes;
        let view = |buffer, shape| TensorView::bhsd(buffer, self.dtype, shape, 0).unwrap();
        Operands::new(
            view(&self.query, s.query()),
            view(&self.key, s.key()),
            view(&self.value, s.value()),
            TensorView::bhsd(&self.output, DType::F32, s.output(), 0).unwrap(),
        )
    }

    /// Statistics, bias and byte mask too.
    pub fn dense(&self) -> Operands<'_> {
        let s = &self.sizes;
        let stats = StatsView::new(&self.stats, Stats::RowState, s.rows(), 0).unwrap();
        self.plain()
            .stats(stats)
            .bias(TensorView::bhsd(&self.bias, DType::F32, s.pairs(), 0).unwrap())
            .mask(MaskView::bytes(&self.mask, s.pairs(), 0, Polarity::Keep).unwrap())
    }

    /// Every list that goes with `Alignment::PerSequence`, from one buffer.
    pub fn lists_on_device<'a>(&'a self, operands: Operands<'a>) -> Operands<'a> {
        fn next<'a, T>(buffer: &'a wgpu::Buffer, at: &mut usize, len: usize) -> List<'a, T> {
            let offset = *at;
            *at += len;
            List::Buffer {
                buffer,
                offset,
                len,
            }
        }
        let s = &self.sizes;
        let (b, at) = (&self.list, &mut 0);
        operands
            .kv_lengths(next(b, at, s.batch))
            .q_lengths(next(b, at, s.batch))
            .offsets(next(b, at, s.batch))
            .segments(
                next(b, at, s.batch * s.q_len),
                next(b, at, s.batch * s.kv_len),
            )
            .alibi_slopes(next(b, at, s.q_heads))
            .sinks(next(b, at, s.q_heads))
    }
}

/// The reasons of an `Unsupported` error.
pub fn reasons(error: Error) -> Vec<String> {
    match error {
        Error::Unsupported { reasons } => reasons.iter().map(Error::to_string).collect(),
        other => panic!("not Unsupported: {other:?}"),
    }
}
