//! A device that is lost at any place of any chain of calls: no panic, no hang, and the
//! chain ends with an error. Devices of the crate's own, and a caller's without handlers,
//! where an error that is nobody's would panic. Both polled after the loss and not with
//! `WGPU_ATTENTION_FUZZ` set; without, each of them in one way.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use std::cell::{Cell, RefCell};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::{Feature, OwnedCase, Shape, generate};
use gpu::limited;
use wgpu_attention::*;

/// A device that is lost when its chain comes to a place.
struct Doomed {
    attention: Attention,
    lost_at: usize,
    places: Cell<usize>,
    /// The call that has to notice, if it is lost by now.
    to_notice: Cell<Option<&'static str>>,
    /// Calls that should have.
    unnoticed: RefCell<Vec<&'static str>>,
    /// Whether the device is polled then, which lets wgpu release what was on it and
    /// call back.
    polled: bool,
}

impl Doomed {
    /// The device may be lost here. The call that follows has to notice.
    fn before(&self, call: &'static str) {
        self.before_blind();
        if self.places.get() > self.lost_at {
            self.to_notice.set(Some(call));
        }
    }

    /// The device may be lost here. What follows asks nothing of it, or is wgpu's own.
    fn before_blind(&self) {
        let place = self.places.replace(self.places.get() + 1);
        self.unnoticed.borrow_mut().extend(self.to_notice.take());
        if place == self.lost_at {
            let device = self.attention.device();
            device.destroy();
            if self.polled {
                let _ = device.poll(wgpu::PollType::Poll);
            }
        }
    }

    fn buffer(&self, bytes: usize) -> wgpu::Buffer {
        let device = self.attention.device();
        device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("operand"),
            size: (bytes as u64).next_multiple_of(4).max(4),
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        })
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        let device = self.attention.device();
        device.create_command_encoder(&Default::default())
    }

    /// A guest's own look at the result, by wgpu alone.
    fn read(&self, buffer: &wgpu::Buffer) -> Result<()> {
        let (device, queue) = (self.attention.device(), self.attention.queue());
        let staging = device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: buffer.size(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.encoder();
        encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, buffer.size());
        queue.submit([encoder.finish()]);
        let (sender, receiver) = mpsc::channel();
        // On a lost device the buffer was not made, and its mapping is refused aloud.
        let refused = device.push_error_scope(wgpu::ErrorFilter::Validation);
        staging.map_async(wgpu::MapMode::Read, .., move |result| {
            let _ = sender.send(result);
        });
        let _ = device.poll(wgpu::PollType::wait_indefinitely());
        let _ = pollster::block_on(refused.pop());
        let mapped = receiver.recv_timeout(Duration::from_secs(20));
        match mapped.expect("an answer, or its end") {
            Ok(()) => Ok(()),
            // As the crate's own does when it has read a lost device.
            Err(error) => Err(Error::DeviceLost {
                message: format!("read: {error}"),
            }),
        }
    }
}

fn case() -> OwnedCase {
    generate(
        1,
        Shape::f32([1, 2, 5, 4], 1, 6, 4),
        &[Feature::Bias, Feature::KvLengths],
    )
}

/// Buffers of query, key, value, output and statistics.
fn buffers(doomed: &Doomed) -> [wgpu::Buffer; 5] {
    [2 * 5 * 4, 6 * 4, 6 * 4, 2 * 5 * 4, 2 * 5].map(|numbers| doomed.buffer(4 * numbers))
}

fn operands([query, key, value, output, stats]: &[wgpu::Buffer; 5]) -> Result<Operands<'_>> {
    let view = |buffer, shape| TensorView::bhsd(buffer, DType::F32, shape, 0);
    let (rows, keys) = ([1, 2, 5, 4], [1, 1, 6, 4]);
    let operands = Operands::new(
        view(query, rows)?,
        view(key, keys)?,
        view(value, keys)?,
        view(output, rows)?,
    );
    Ok(operands.stats(StatsView::new(stats, Stats::Lse, [1, 2, 5], 0)?))
}

/// The path on the caller's buffers. Only what asks nothing of the device goes through
/// on a lost one: views and plans.
fn guest(doomed: &Doomed) -> Result<()> {
    doomed.before("new");
    let (device, queue) = (doomed.attention.device(), doomed.attention.queue());
    let attention = Attention::new(device, queue)?;
    doomed.before_blind();
    let buffers = buffers(doomed);
    doomed.before_blind();
    let operands = operands(&buffers)?;
    let plan = attention.plan(&operands, &Options::default())?;
    doomed.before("prepare");
    let prepared = attention.prepare(&plan)?;
    doomed.before("warm_up");
    prepared.warm_up()?;
    doomed.before_blind();
    let mut encoder = doomed.encoder();
    doomed.before("record");
    prepared.record(&mut encoder, &operands, None)?;
    doomed.before_blind();
    let mut pass = encoder.begin_compute_pass(&Default::default());
    doomed.before("record_in_pass");
    prepared.record_in_pass(&mut pass, &operands, None)?;
    drop(pass);
    doomed.before_blind();
    let commands = encoder.finish();
    doomed.before_blind();
    queue.submit([commands]);
    doomed.before("read");
    doomed.read(&buffers[3])
}

/// A layer on the caller's buffers.
fn guest_layer(doomed: &Doomed) -> Result<()> {
    let attention = &doomed.attention;
    let [input, weight, output] = [8 * 16, 16 * 16, 8 * 16].map(|n| doomed.buffer(4 * n));
    let tokens = |buffer| TensorView::tokens(buffer, DType::F32, [1, 8, 16], 0);
    let linear = Linear::new(TensorView::matrix(&weight, DType::F32, [16, 16], 0)?);
    let separate = InProjections::Separate {
        query: linear,
        key: linear,
        value: linear,
    };
    let layer = MultiHeadOperands::new(tokens(&input)?, 2, separate, linear, tokens(&output)?);
    doomed.before_blind();
    let plan = attention.plan_multi_head(&layer, &Options::default())?;
    let workspace = doomed.buffer(plan.workspace_bytes() as usize);
    doomed.before("prepare_multi_head");
    let prepared = attention.prepare_multi_head(&plan)?;
    doomed.before("warm_up");
    prepared.warm_up()?;
    doomed.before("record");
    let mut encoder = doomed.encoder();
    prepared.record(&mut encoder, &layer, Workspace::new(&workspace))?;
    doomed.before("read");
    attention.queue().submit([encoder.finish()]);
    doomed.read(&output)
}

/// The path on slices.
fn slices(doomed: &Doomed) -> Result<()> {
    let (attention, case) = (&doomed.attention, case());
    let (inputs, options) = (case.inputs(), &case.options);
    doomed.before("upload");
    let chosen = PlanOptions::default();
    let uploaded = attention.upload(&inputs, options, DType::F32, &chosen)?;
    doomed.before("warm_up");
    uploaded.prepared().warm_up()?;
    doomed.before("submit");
    uploaded.submit()?;
    doomed.before("run");
    uploaded.run()?;
    doomed.before("read");
    uploaded.read()?;
    doomed.before("Attention::run");
    attention.run(&inputs, options)?;
    doomed.before("stage");
    let region = Region {
        batches: 0..1,
        heads: 0..2,
        rows: 1..4,
    };
    attention.stage(&inputs, options, Stage::Probabilities, &region)?;
    Ok(())
}

/// Looking at it.
fn inspection(doomed: &Doomed) -> Result<()> {
    let case = case();
    let (inputs, options) = (case.inputs(), &case.options);
    let weight = [0.5; 3 * 8];
    let inspection = Inspection {
        output_weight: Some(Tensor::f32(&weight, [1, 1, 3, 8])?),
        ..Inspection::default()
    };
    let region = Region {
        batches: 0..1,
        heads: 0..2,
        rows: 1..4,
    };
    doomed.before("upload_inspection");
    let seen = doomed
        .attention
        .upload_inspection(&inputs, options, &inspection)?;
    doomed.before("pairs");
    seen.pairs(&Pairs {
        quantity: Quantity::Contribution,
        region: region.clone(),
        keys: 0..6,
    })?;
    doomed.before("rows");
    seen.rows(&Rows {
        region: region.clone(),
        top: 2,
        first_keys: 1,
    })?;
    doomed.before("received");
    seen.received(&region)?;
    doomed.before("check_lse");
    seen.check_lse(&region, 1e-3)
}

/// A layer over slices.
fn layer(doomed: &Doomed) -> Result<()> {
    let (x, w) = ([0.5; 8 * 16], [0.25; 16 * 16]);
    let linear = HostLinear {
        weight: Tensor::f32(&w, [1, 1, 16, 16])?,
        bias: None,
    };
    let inputs = MultiHeadInputs::new(Tensor::f32(&x, [1, 1, 8, 16])?, 2, [linear; 4]);
    let (options, chosen) = (Options::default(), PlanOptions::default());
    doomed.before("upload_multi_head");
    let attention = &doomed.attention;
    let uploaded = attention.upload_multi_head(&inputs, &options, DType::F32, &chosen)?;
    doomed.before("submit");
    uploaded.submit()?;
    doomed.before("read");
    uploaded.read()?;
    doomed.before("multi_head");
    attention.multi_head(&inputs, &options).map(drop)
}

/// Measuring; between its rounds too.
#[cfg(feature = "tune")]
fn tune(doomed: &Doomed) -> Result<()> {
    let dims = Dims {
        batch: 1,
        q_heads: 1,
        kv_heads: 1,
        q_len: 9,
        kv_len: 9,
        qk_dim: 8,
        v_dim: 8,
    };
    let problem = Problem::contiguous(&dims, DType::F32, DType::F32, &Options::default())?;
    // Until it comes to its first candidate it may ask nothing of the device.
    doomed.before_blind();
    // Each candidate's first run, and a round or two of their times.
    let progress = |_: &TuneStep| {
        if doomed.places.get() < 8 {
            doomed.before("tune");
        }
    };
    let options = TuneOptions::default()
        .budget(Duration::from_secs(60))
        .progress(&progress);
    doomed.attention.tune(&problem, &options).map(drop)
}

/// Runs a chain with the device lost at each of its places, one after the other.
fn lose(name: &'static str, chain: fn(&Doomed) -> Result<()>, places: usize) {
    let (sender, receiver) = mpsc::channel();
    let mut ways = vec![(true, false), (false, true)];
    if std::env::var_os("WGPU_ATTENTION_FUZZ").is_some() {
        ways.extend([(true, true), (false, false)]);
    }
    let least = ways.len() * places;
    let runs = thread::spawn(move || {
        for (own, polled) in ways {
            for lost_at in 0.. {
                let what = format!("{name}: own {own}, polled {polled}, lost at {lost_at}");
                let doomed = Doomed {
                    attention: match own {
                        true => Attention::with_adapter(&AdapterOptions::default()).unwrap(),
                        false => limited(|_| ()),
                    },
                    lost_at,
                    places: Cell::new(0),
                    to_notice: Cell::new(None),
                    unnoticed: RefCell::default(),
                    polled,
                };
                let ended = chain(&doomed);
                if doomed.places.get() <= lost_at {
                    // There is no such place: nothing was lost, and all went well.
                    ended.unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert!(lost_at >= places, "{what}");
                    break;
                }
                let passed = doomed.places.get() - 1 - lost_at;
                println!("{what}: {ended:?}, {passed} places later");
                let lost = matches!(ended, Err(Error::DeviceLost { .. }));
                assert!(lost, "{what}: {ended:?}");
                let unnoticed = doomed.unnoticed.take();
                assert!(unnoticed.is_empty(), "{what}: not noticed by {unnoticed:?}");
                sender.send(()).unwrap();
            }
        }
    });
    // A hang ends the test, too.
    let limit = Duration::from_secs(300);
    let mut count = 0;
    loop {
        match receiver.recv_timeout(limit) {
            Ok(()) => count += 1,
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("{name}: hangs after {count} chains"),
        }
    }
    runs.join().unwrap();
    assert!(count >= least, "only {count} chains");
}

#[test]
fn in_a_guests_calls() {
    lose("guest", guest, 12);
}

#[test]
fn in_a_guests_layer() {
    lose("layer of a guest", guest_layer, 5);
}

#[test]
fn in_calls_over_slices() {
    lose("slices", slices, 7);
}

#[test]
fn in_an_inspection() {
    lose("inspection", inspection, 5);
}

#[test]
fn in_a_layer_over_slices() {
    lose("layer", layer, 4);
}

#[cfg(feature = "tune")]
#[test]
fn in_a_measurement() {
    lose("tune", tune, 2);
}
