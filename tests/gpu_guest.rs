//! Being a guest: lists from buffers, several recordings, plans that serve other
//! buffers, devices with a browser's rules, devices that are gone.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use common::{Feature, Shape, generate};
use gpu::guest::{Guest, Setup};
use gpu::memory::Layout;
use gpu::{Report, gpu, kernels, limited, oracle};
use wgpu_attention::{
    AdapterOptions, Attention, DType, Error, HostLinear, Inspection, Kernel, MaskView,
    MultiHeadInputs, Plan, PlanOptions, Polarity, Problem, Region, Stage, Stats, Tensor,
    TensorView, wgpu,
};

fn forced(kernel: Kernel) -> Setup {
    Setup {
        plan: PlanOptions::default().kernel(kernel),
        ..Setup::default()
    }
}

/// Counts in a buffer that exceed the tensors' lengths are clamped.
#[test]
fn garbage_lengths_in_buffers_are_clamped() {
    let mut report = Report::new();
    for features in [
        &[Feature::Causal][..],
        &[Feature::WindowBoth, Feature::Bias],
        &[Feature::MaskBits],
    ] {
        let mut garbage = generate(8, Shape::f32([4, 2, 37, 8], 1, 70, 5), features);
        let mut clamped = garbage.clone();
        garbage.kv_lengths = Some(vec![u32::MAX, 71, 1 << 31, 12]);
        clamped.kv_lengths = Some(vec![70, 70, 70, 12]);
        garbage.q_lengths = Some(vec![38, 1 << 30, 5, u32::MAX]);
        clamped.q_lengths = Some(vec![37, 37, 5, 37]);
        let expected = oracle(&clamped);
        for kernel in kernels() {
            let setup = Setup {
                device_lists: true,
                ..forced(kernel)
            };
            let ran = Guest::run(gpu(), &garbage, &setup);
            if let Some(ran) = report.expect_ok("garbage lengths", ran) {
                report.judge(&format!("{kernel:?} {features:?}"), &expected, &ran);
            }
        }
    }
    report.finish(3 * 2 * 8 * 37 * 6);
}

/// Two problems in one encoder, in one pass, and over one set of buffers.
#[test]
fn recordings_share_an_encoder() {
    let mut report = Report::new();
    let first = generate(1, Shape::f32([1, 2, 33, 8], 2, 40, 8), &[Feature::Causal]);
    let second = generate(
        2,
        Shape::f32([2, 2, 5, 16], 1, 70, 3),
        &[Feature::Bias, Feature::KvLengths],
    );
    for kernel in kernels() {
        for in_pass in [false, true] {
            let setup = Setup {
                device_lists: true,
                ..forced(kernel)
            };
            let guests = [&first, &second].map(|case| Guest::new(gpu(), case, &setup).unwrap());
            let mut encoder = gpu().device().create_command_encoder(&Default::default());
            if in_pass {
                let mut pass = encoder.begin_compute_pass(&Default::default());
                for guest in &guests {
                    let operands = guest.operands().unwrap();
                    let recorded =
                        guest
                            .prepared
                            .record_in_pass(&mut pass, &operands, guest.workspace());
                    report.expect_ok("in a pass", recorded);
                }
            } else {
                for guest in &guests {
                    report.expect_ok("in an encoder", guest.record(&guest.prepared, &mut encoder));
                }
            }
            gpu().queue().submit([encoder.finish()]);
            for (guest, case) in guests.iter().zip([&first, &second]) {
                let what = format!("{kernel:?} in a pass {in_pass}: {}", case.name);
                if let Some(ran) = report.expect_ok(&what, guest.read()) {
                    report.judge(&what, &oracle(case), &ran);
                }
            }
        }
    }
    report.finish(2 * 2 * (66 * 9 + 20 * 4));
}

/// A plan serves other buffers, also at other aligned offsets, and refuses
/// those that it was not made for.
#[test]
fn a_prepared_plan_serves_other_buffers() {
    let mut report = Report::new();
    let shape = Shape::f32([2, 2, 33, 8], 2, 40, 8);
    let features = &[Feature::Bias, Feature::MaskBytes, Feature::Sinks];
    let planned = generate(1, shape, features);
    let mut other = planned.clone();
    other.query = generate(2, shape, &[]).query;
    other.value = generate(3, shape, &[]).value;
    for kernel in kernels() {
        let made = Guest::new(gpu(), &planned, &forced(kernel)).unwrap();
        let moved = Setup {
            skip: 768,
            ..forced(kernel)
        };
        let guest = Guest::new(gpu(), &other, &moved).unwrap();
        let mut encoder = gpu().device().create_command_encoder(&Default::default());
        report.expect_ok("moved", guest.record(&made.prepared, &mut encoder));
        gpu().queue().submit([encoder.finish()]);
        if let Some(ran) = report.expect_ok("moved", guest.read()) {
            report.judge(&format!("{kernel:?} moved"), &oracle(&other), &ran);
        }
        for unfit in [
            Setup {
                shift: 1,
                ..forced(kernel)
            },
            Setup {
                layout: Layout::TokenMajor,
                ..forced(kernel)
            },
            Setup {
                stats: Some(Stats::RowState),
                ..forced(kernel)
            },
            Setup {
                stats: None,
                ..forced(kernel)
            },
            Setup {
                device_lists: true,
                ..forced(kernel)
            },
            Setup {
                one_buffer: true,
                ..forced(kernel)
            },
        ] {
            let guest = Guest::new(gpu(), &other, &unfit).unwrap();
            let mut encoder = gpu().device().create_command_encoder(&Default::default());
            let refused = guest.record(&made.prepared, &mut encoder);
            let right = matches!(refused, Err(Error::PlanMismatch { .. }));
            report.expect(right, format!("{kernel:?} {unfit:?}: {refused:?}"));
            // Nothing that is wrong may have been recorded.
            gpu().queue().submit([encoder.finish()]);
        }
    }
    report.finish(2 * 132 * 9);
}

/// Bytes of a mask may lie anywhere: kernels that look at several at once do so
/// where a row's are together and begin with a word.
#[test]
fn masks_of_bytes_with_any_strides() {
    let mut report = Report::new();
    let (rows, keys) = (37, 70);
    let shape = Shape::f32([1, 1, rows, 4], 1, keys, 4);
    for (row_stride, key_stride, offset) in [
        (72, 1, 0),
        (72, 1, 8),
        (72, 1, 3),
        (71, 1, 0),
        (280, 4, 0),
        (210, 3, 1),
        (1, 37, 0),
        (0, 1, 4),
        (1, 0, 2),
    ] {
        // A byte where no pair is hides it if it is read.
        let size = offset + (rows - 1) * row_stride + (keys - 1) * key_stride + 1;
        let mut bytes = vec![0; size.next_multiple_of(4)];
        let mut case = generate(7, shape, &[]);
        let mut pairs = Vec::new();
        for (i, j) in (0..rows).flat_map(|i| (0..keys).map(move |j| (i, j))) {
            let (i, j) = (i * row_stride.min(1), j * key_stride.min(1));
            let is_set = (i * 7 + j * 5 + i * j) % 3 != 0;
            bytes[offset + i * row_stride + j * key_stride] = if is_set { 1 << (j % 8) } else { 0 };
            pairs.push(u8::from(is_set));
        }
        case.mask = Some(common::OwnedMask {
            data: common::MaskBits::Bytes(pairs),
            shape: [1, 1, rows, keys],
            polarity: Polarity::Keep,
        });
        let buffer = gpu().device().create_buffer(&wgpu::BufferDescriptor {
            label: Some("strided mask"),
            size: bytes.len() as u64,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        gpu().queue().write_buffer(&buffer, 0, &bytes);
        let strides = [0, 0, row_stride, key_stride];
        let mask =
            MaskView::bytes_strided(&buffer, [1, 1, rows, keys], strides, offset, Polarity::Keep);
        let mask = mask.unwrap();
        for kernel in kernels() {
            let setup = forced(kernel);
            let name = format!("{kernel:?} {strides:?} from {offset}");
            let guest = Guest::new(gpu(), &case, &setup).unwrap();
            let operands = guest.operands().unwrap().mask(mask);
            let problem = Problem::forward(&operands, &case.options).unwrap();
            let plan = Plan::new(&problem, gpu().caps(), &setup.plan).unwrap();
            let prepared = gpu().prepare(&plan).unwrap();
            let mut encoder = gpu().device().create_command_encoder(&Default::default());
            let recorded = prepared.record(&mut encoder, &operands, guest.workspace());
            report.expect_ok(&name, recorded);
            gpu().queue().submit([encoder.finish()]);
            if let Some(ran) = report.expect_ok(&name, guest.read()) {
                report.judge(&name, &oracle(&case), &ran);
            }
        }
    }
    report.finish(9 * 3 * rows * 5);
}

/// Bits do not change from run to run.
#[test]
fn two_hundred_runs_give_the_same_bits() {
    let mut report = Report::new();
    let shape = Shape {
        out: DType::F16,
        ..Shape::f32([1, 2, 130, 17], 1, 97, 67)
    };
    let case = generate(1, shape, &[Feature::Causal, Feature::Bias]);
    for kernel in kernels() {
        let guest = Guest::new(gpu(), &case, &forced(kernel)).unwrap();
        let mut first = None;
        for n in 0..200 {
            let mut encoder = gpu().device().create_command_encoder(&Default::default());
            guest.record(&guest.prepared, &mut encoder).unwrap();
            gpu().queue().submit([encoder.finish()]);
            if n % 10 == 0 {
                let ran = guest.read().unwrap();
                let first = first.get_or_insert_with(|| ran.clone());
                report.same_bits(&format!("{kernel:?} run {n}"), first, &ran);
            }
        }
    }
    report.finish(2 * 20 * 260 * 68);
}

/// What a browser would give: WebGPU's default limits, no feature, strict rules.
#[test]
fn strict_webgpu_at_default_limits() {
    let options = AdapterOptions::default()
        .strict_webgpu(true)
        .default_limits(true);
    let strict = Attention::with_adapter(&options).unwrap();
    let mut report = Report::new();
    for (seed, feature) in Feature::ALL.into_iter().enumerate() {
        let dtype = [DType::F32, DType::F16, DType::BF16][seed % 3];
        let shape = Shape {
            key_value: dtype,
            out: dtype,
            ..Shape::f32([2, 4, 35, 20], 2, 70, 19)
        };
        let setup = Setup {
            shift: seed % 2,
            device_lists: true,
            ..Setup::default()
        };
        report.case_on(&strict, &generate(seed as u64, shape, &[feature]), &setup);
    }
    report.finish(23 * 2 * 280 * 20);
}

/// A device on the caller's own adapter: buffers of the caller's other devices are told
/// from its own.
#[test]
fn on_an_adapter_of_the_callers() {
    let mut report = Report::new();
    let instance =
        wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle().with_env());
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
    let name = gpu().adapter_line();
    let of_tests = |adapter: &&wgpu::Adapter| adapter.get_info() == gpu().adapter_info();
    let adapter = adapters.iter().find(of_tests).expect(&name);
    let [ours, theirs] = [(); 2].map(|()| Attention::on_adapter(adapter).unwrap());
    assert_eq!(ours.adapter_line(), name);
    assert_eq!(ours.caps(), gpu().caps());
    let case = generate(3, Shape::f32([1, 2, 5, 8], 2, 7, 8), &[Feature::Causal]);
    report.case_on(&ours, &case, &Setup::default());
    // Both begin with the same buffers, so that numbers alone would not do.
    let [own, other] = [&ours, &theirs].map(|a| Guest::new(a, &case, &Setup::default()).unwrap());
    let mut encoder = ours.device().create_command_encoder(&Default::default());
    let mut mixed = own.operands().unwrap();
    mixed.key = other.operands().unwrap().key;
    let refused = own.prepared.record(&mut encoder, &mixed, own.workspace());
    let right = matches!(&refused, Err(Error::Device { .. }));
    report.expect(right, format!("{refused:?}"));
    let recorded = own.record(&own.prepared, &mut encoder);
    report.expect_ok("its own buffers", recorded);
    ours.queue().submit([encoder.finish()]);
    if let Some(ran) = report.expect_ok("its own buffers", own.read()) {
        report.judge("its own buffers", &oracle(&case), &ran);
    }
    report.finish(3 * 10 * 9);
}

/// The queue of another device: an error of every call that would submit to it, and of
/// none where several threads ask at once about the right one.
#[test]
fn the_queue_of_another_device() {
    let case = generate(3, Shape::f32([1, 2, 5, 8], 2, 7, 8), &[Feature::Causal]);
    let (inputs, options) = (case.inputs(), &case.options);
    let theirs = limited(|_| ());
    let region = Region {
        batches: 0..1,
        heads: 0..2,
        rows: 0..5,
    };
    let weight = [0.5; 8 * 8];
    let linear = HostLinear {
        weight: Tensor::f32(&weight, [1, 1, 8, 8]).unwrap(),
        bias: None,
    };
    let tokens = Tensor::f32(&weight, [1, 1, 8, 8]).unwrap();
    let layer = MultiHeadInputs::new(tokens, 2, [linear; 4]);
    let inspection = Inspection::default();
    type Call<'a> = &'a (dyn Fn(&Attention) -> Result<(), Error> + Sync);
    let calls: [Call<'_>; 4] = [
        &|a| a.run(&inputs, options).map(drop),
        &|a| a.stage(&inputs, options, Stage::Masked, &region).map(drop),
        &|a| a.multi_head(&layer, options).map(drop),
        &|a| a.upload_inspection(&inputs, options, &inspection).map(drop),
    ];
    let mixed = Attention::new(gpu().device(), theirs.queue()).unwrap();
    let expected = "queue: expected the queue of the device, got that of another device";
    // Each waits for a callback that does not come.
    std::thread::scope(|scope| {
        let asked = calls.map(|call| scope.spawn(|| call(&mixed)));
        for refused in asked.map(|thread| thread.join().unwrap()) {
            assert_eq!(refused.unwrap_err().to_string(), expected);
        }
    });
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..2 {
                    let own = Attention::new(gpu().device(), gpu().queue()).unwrap();
                    own.upload(&inputs, options, DType::F32, &PlanOptions::default())
                        .unwrap();
                }
            });
        }
    });
}

/// A buffer may be mapped while it is recorded, and has to be unmapped when that is
/// submitted: wgpu says so itself, to the submitter.
#[test]
fn a_mapped_buffer_is_recorded_and_not_submitted() {
    let mut report = Report::new();
    let case = generate(4, Shape::f32([1, 2, 5, 8], 2, 7, 8), &[]);
    let guest = Guest::new(gpu(), &case, &Setup::default()).unwrap();
    let (device, mut operands) = (gpu().device(), guest.operands().unwrap());
    let numbers = case.query.to_f32();
    let mapped = device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("mapped query"),
        size: 4 * numbers.len() as u64,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: true,
    });
    operands.query = TensorView::bhsd(&mapped, DType::F32, [1, 2, 5, 8], 0).unwrap();
    let prepared = gpu().prepare(&gpu().plan(&operands, &case.options).unwrap());
    let prepared = prepared.unwrap();
    let commands = |count: usize| {
        let mut encoder = device.create_command_encoder(&Default::default());
        for _ in 0..count {
            let recorded = prepared.record(&mut encoder, &operands, guest.workspace());
            recorded.unwrap();
        }
        encoder.finish()
    };
    let (first, second) = (commands(1), commands(2));
    let submitted = |commands| {
        let refusal = device.push_error_scope(wgpu::ErrorFilter::Validation);
        gpu().queue().submit([commands]);
        pollster::block_on(refusal.pop())
    };
    let refused = submitted(first).map(|error| error.to_string());
    let right = refused.as_ref().is_some_and(|text| text.contains("mapped"));
    report.expect(right, format!("{refused:?}"));
    let mut bytes = mapped.get_mapped_range_mut(..).unwrap();
    bytes.copy_from_slice(bytemuck::cast_slice(&numbers));
    drop(bytes);
    mapped.unmap();
    let refused = submitted(second);
    report.expect(refused.is_none(), format!("{refused:?}"));
    if let Some(ran) = report.expect_ok("unmapped", guest.read()) {
        report.judge("unmapped", &oracle(&case), &ran);
    }
    report.finish(10 * 9);
}

/// A device that is gone is an error, not a panic, wherever it is noticed.
#[test]
fn a_lost_device_is_an_error() {
    let case = generate(1, Shape::f32([1, 1, 5, 4], 1, 6, 4), &[Feature::Bias]);
    let own = Attention::with_adapter(&AdapterOptions::default()).unwrap();
    let guest_of = limited(|_| ());
    for attention in [own, guest_of] {
        let upload = || {
            let options = PlanOptions::default();
            attention.upload(&case.inputs(), &case.options, DType::F32, &options)
        };
        let uploaded = upload().unwrap();
        uploaded.run().unwrap();
        attention.device().destroy();
        let _ = attention.device().poll(wgpu::PollType::Poll);
        let read = uploaded.run().and_then(|_| uploaded.read());
        assert!(read.as_ref().is_err_and(Error::is_device), "{read:?}");
        let again = upload();
        let lost = matches!(again, Err(Error::DeviceLost { .. }));
        assert!(lost, "{again:?}");
    }
}
