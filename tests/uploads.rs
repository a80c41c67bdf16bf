//! The convenience layer on wgpu's `noop` backend: buffers, submissions and
//! readback are valid for every size and storage type. Nothing is computed.

mod noop;

use half::{bf16, f16};
use noop::{Lists, Noop, SMALL, Sizes};
use wgpu_attention::{
    Alignment, BoolMask, DType, Data, Error, Inputs, Kernel, MaskData, Options, PlanOptions,
    Polarity, Region, Stage, Tensor, wgpu,
};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Zeros of every type, enough for any tensor here.
struct Zeros {
    f32: Vec<f32>,
    f16: Vec<f16>,
    bf16: Vec<bf16>,
    bytes: Vec<u8>,
}

impl Zeros {
    fn new() -> Self {
        Zeros {
            f32: vec![0.0; 4096],
            f16: vec![f16::ZERO; 4096],
            bf16: vec![bf16::ZERO; 4096],
            bytes: vec![1; 4096],
        }
    }

    fn tensor(&self, shape: [usize; 4], dtype: DType) -> Tensor<'_> {
        let count: usize = shape.iter().product();
        let data = match dtype {
            DType::F32 => Data::F32(&self.f32[..count]),
            DType::F16 => Data::F16(&self.f16[..count]),
            DType::BF16 => Data::BF16(&self.bf16[..count]),
        };
        Tensor::new(data, shape).unwrap()
    }

    fn inputs(&self, sizes: Sizes, dtype: DType) -> Inputs<'_> {
        let tensor = |shape| self.tensor(shape, dtype);
        Inputs::new(
            tensor(sizes.query()),
            tensor(sizes.key()),
            tensor(sizes.value()),
        )
    }

    /// With a bias, a mask and every list.
    fn all<'a>(&'a self, sizes: Sizes, dtype: DType, lists: &'a Lists) -> Inputs<'a> {
        let pairs: usize = sizes.pairs().iter().product();
        let mask = MaskData::Bytes(&self.bytes[..pairs]);
        self.inputs(sizes, dtype)
            .bias(self.tensor(sizes.pairs(), dtype))
            .mask(BoolMask::new(mask, sizes.pairs(), Polarity::Keep).unwrap())
            .kv_lengths(&lists.kv_lengths)
            .q_lengths(&lists.q_lengths)
            .offsets(&lists.offsets)
            .segments(&lists.q_segments, &lists.kv_segments)
            .alibi_slopes(&lists.slopes)
            .sinks(&lists.sinks)
    }
}

/// Odd counts of halves, and an axis of 0 in every place that may have one.
fn many_sizes() -> Vec<Sizes> {
    let odd = Sizes {
        batch: 1,
        q_heads: 3,
        kv_heads: 1,
        q_len: 5,
        kv_len: 7,
        qk_dim: 3,
        v_dim: 1,
    };
    vec![
        SMALL,
        odd,
        Sizes { batch: 0, ..SMALL },
        Sizes { q_heads: 0, ..odd },
        Sizes { q_len: 0, ..odd },
        Sizes { kv_len: 0, ..odd },
    ]
}

#[test]
fn results_have_their_shapes() {
    let noop = Noop::new();
    let zeros = Zeros::new();
    let options = Options::default()
        .alignment(Alignment::PerSequence)
        .causal(true);
    let mut runs = 0;
    for sizes in many_sizes() {
        let lists = Lists::new(sizes);
        let rows: usize = sizes.rows().iter().product();
        for input in DTYPES {
            for output in DTYPES {
                for kernel in [Kernel::Tiled, Kernel::Staged] {
                    let chosen = PlanOptions::default().kernel(kernel);
                    let inputs = zeros.all(sizes, input, &lists);
                    let uploaded = noop.attention.upload(&inputs, &options, output, &chosen);
                    let uploaded = uploaded.unwrap();
                    uploaded.submit().unwrap();
                    uploaded.run().unwrap();
                    let read = uploaded.read().unwrap();
                    assert_eq!(read.output.len(), rows * sizes.v_dim);
                    assert_eq!(read.lse.len(), rows);
                    runs += 1;
                }
            }
        }
        let plain = noop
            .attention
            .run(&zeros.inputs(sizes, DType::F16), &Options::default());
        assert_eq!(plain.unwrap().lse.len(), rows);
    }
    assert_eq!(noop.take_uncaptured(), Vec::<String>::new());
    assert_eq!(runs, 6 * 3 * 3 * 2);
}

#[test]
fn stages_have_their_shapes() {
    let noop = Noop::new();
    let zeros = Zeros::new();
    let options = Options::default()
        .alignment(Alignment::PerSequence)
        .softcap(2.0);
    for sizes in many_sizes() {
        let lists = Lists::new(sizes);
        let inputs = zeros.all(sizes, DType::BF16, &lists);
        let region = Region {
            batches: 0..sizes.batch,
            heads: sizes.q_heads.min(1)..sizes.q_heads,
            rows: 0..sizes.q_len.min(2),
        };
        let pairs = region.lens().iter().product::<usize>() * sizes.kv_len;
        for stage in Stage::ALL {
            let values = noop
                .attention
                .stage(&inputs, &options, stage, &region)
                .unwrap();
            assert_eq!(values.len(), pairs);
        }
        let beyond = Region {
            rows: 0..sizes.q_len + 1,
            ..region
        };
        let error = noop
            .attention
            .stage(&inputs, &options, Stage::Raw, &beyond)
            .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("region rows: expected a range within 0..")
        );
    }
    assert_eq!(noop.take_uncaptured(), Vec::<String>::new());
}

#[test]
fn buffers_over_the_limit_are_refused() {
    let noop = Noop::with_limits(wgpu::Limits {
        max_buffer_size: 4096,
        max_storage_buffer_binding_size: 4096,
        ..Default::default()
    });
    let zeros = Zeros::new();
    let sizes = Sizes { q_len: 33, ..SMALL };
    let inputs = zeros.inputs(sizes, DType::F32);
    let error = noop
        .attention
        .run(&inputs, &Options::default())
        .unwrap_err();
    let text = "query in bytes: 8448 needed, the device's max_buffer_size is 4096";
    assert_eq!(error.to_string(), text);
    assert!(error.is_unsupported());
    // Scores of 7,200 bytes are cut to what a buffer holds.
    let sizes = Sizes {
        q_len: 15,
        kv_len: 15,
        ..SMALL
    };
    let inputs = zeros.inputs(sizes, DType::F32);
    let chosen = PlanOptions::default().kernel(Kernel::Staged);
    let uploaded = noop
        .attention
        .upload(&inputs, &Options::default(), DType::F32, &chosen);
    let uploaded = uploaded.unwrap();
    assert_eq!(uploaded.plan().workspace_bytes(), 3600);
    assert_eq!(uploaded.plan().dispatches(), 2 * 3);
    assert_eq!(
        uploaded
            .run()
            .and_then(|_| uploaded.read())
            .unwrap()
            .lse
            .len(),
        120
    );
    assert_eq!(noop.take_uncaptured(), Vec::<String>::new());
}

#[test]
fn a_lost_device_takes_no_uploads() {
    let noop = Noop::new();
    let zeros = Zeros::new();
    noop.device.destroy();
    let error = noop
        .attention
        .run(&zeros.inputs(SMALL, DType::F32), &Options::default());
    assert!(matches!(error, Err(Error::DeviceLost { .. })), "{error:?}");
    assert_eq!(noop.take_uncaptured(), Vec::<String>::new());
}
