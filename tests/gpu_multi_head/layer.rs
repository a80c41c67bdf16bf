//! A random layer, run by every family.

use crate::common::{Elements, Shape};
use crate::gpu::{Report, gpu, kernels};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::reference::{self, StageExpected, compare};
use wgpu_attention::{
    DType, Error, HostLinear, Kernel, MultiHeadInputs, Options, PlanOptions, Tensor,
};

/// A layer of random numbers.
pub struct Layer {
    pub batch: usize,
    pub q_len: usize,
    /// Keys and width of the context, if there is one.
    pub context: Option<[usize; 2]>,
    pub width: usize,
    pub heads: [usize; 2],
    pub dims: [usize; 2],
    pub output: usize,
    /// Storage types of input and context, and of weights and biases.
    pub stored: [DType; 2],
    /// As [`Layer::shapes`].
    pub numbers: [Elements; 10],
}

impl Layer {
    pub fn new(seed: u64) -> Layer {
        Layer::of(seed, |_| ())
    }

    /// The same with other sizes.
    pub fn of(seed: u64, change: impl FnOnce(&mut Layer)) -> Layer {
        let mut rng = StdRng::seed_from_u64(seed);
        let kv_heads = [1, 2, 3, 8][rng.random_range(0..4)];
        let group = [1, 1, 2, 4][rng.random_range(0..4)];
        let dims = [0, 1].map(|_| rng.random_range(1..20));
        let mut layer = Layer {
            batch: rng.random_range(1..4),
            q_len: rng.random_range(1..40),
            context: rng
                .random_bool(0.5)
                .then(|| [rng.random_range(1..50), rng.random_range(1..30)]),
            width: rng.random_range(1..50),
            heads: [kv_heads * group, kv_heads],
            dims,
            output: rng.random_range(1..60),
            stored: [DType::F32; 2],
            numbers: std::array::from_fn(|_| Elements::F32(Vec::new())),
        };
        change(&mut layer);
        let shapes = layer.shapes();
        for (n, shape) in shapes.into_iter().enumerate() {
            let count: usize = shape.iter().product();
            let numbers: Vec<f32> = (0..count).map(|_| rng.random_range(-1.0..1.0)).collect();
            layer.numbers[n] = Elements::new(&numbers, layer.stored[usize::from(n > 1)]);
        }
        layer
    }

    /// Input, context, then weight and bias of W_Q, W_K, W_V, W_O.
    fn shapes(&self) -> [[usize; 4]; 10] {
        let [q_heads, kv_heads] = self.heads;
        let [qk_dim, v_dim] = self.dims;
        let [kv_len, source] = self.context.unwrap_or([self.q_len, self.width]);
        let outputs = [
            q_heads * qk_dim,
            kv_heads * qk_dim,
            kv_heads * v_dim,
            self.output,
        ];
        let inputs = [self.width, source, source, q_heads * v_dim];
        let mut shapes = [[0; 4]; 10];
        shapes[0] = [self.batch, 1, self.q_len, self.width];
        shapes[1] = [self.batch, 1, kv_len, source];
        for n in 0..4 {
            shapes[2 + 2 * n] = [1, 1, outputs[n], inputs[n]];
            shapes[3 + 2 * n] = [1, 1, 1, outputs[n]];
        }
        shapes
    }

    pub fn inputs(&self) -> MultiHeadInputs<'_> {
        let shapes = self.shapes();
        let tensor = |n: usize| Tensor::new(self.numbers[n].data(), shapes[n]).unwrap();
        let linears = [0, 1, 2, 3].map(|n| HostLinear {
            weight: tensor(2 + 2 * n),
            // Some have no bias.
            bias: (n != 1).then(|| tensor(3 + 2 * n)),
        });
        let inputs = MultiHeadInputs::new(tensor(0), self.heads[0], linears);
        let inputs = inputs.kv_heads(self.heads[1]);
        match self.context {
            Some(_) => inputs.context(tensor(1)),
            None => inputs,
        }
    }

    /// Sizes and the storage type of Y, for a case of attention.
    pub fn shape(&self, out: DType) -> Shape {
        let dims = self.inputs().dims().unwrap().attention;
        let q = [dims.batch, dims.q_heads, dims.q_len, dims.qk_dim];
        Shape {
            out,
            ..Shape::f32(q, dims.kv_heads, dims.kv_len, dims.v_dim)
        }
    }
}

/// Y of a layer by a family of kernels.
pub fn run(
    inputs: &MultiHeadInputs<'_>,
    kernel: Kernel,
    options: &Options,
    out: DType,
) -> Result<Vec<f32>, Error> {
    let plan = PlanOptions::default().kernel(kernel);
    let uploaded = gpu().upload_multi_head(inputs, options, out, &plan)?;
    uploaded.submit()?;
    uploaded.read()
}

/// Y by every family, against the oracle's.
pub fn judge(
    report: &mut Report,
    what: &str,
    inputs: &MultiHeadInputs<'_>,
    options: &Options,
    out: DType,
) -> StageExpected {
    let expected = reference::multi_head(inputs, options, out).unwrap();
    for kernel in kernels() {
        let what = format!("{kernel}, {what}");
        if let Some(got) = report.expect_ok(&what, run(inputs, kernel, options, out)) {
            let found = compare(&got, &expected.values, &expected.bound);
            report.record(&what, "output", expected.values.len(), found);
        }
    }
    expected
}

/// A buffer for what is only bound.
pub fn storage(size: u64) -> wgpu::Buffer {
    gpu().device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    })
}
