//! A layer over slices: owns buffers, submits, reads.

use super::operands::{InProjections, Linear, MultiHeadOperands};
use super::sizes::{MultiHeadDims, Projections, WeightShapes, check_bias};
use super::{MultiHeadPlan, PreparedMultiHead};
use crate::attention::Attention;
use crate::encode::Workspace;
use crate::error::{Error, Result};
use crate::host::{DType, Inputs, Tensor};
use crate::options::Options;
use crate::plan::PlanOptions;
use crate::upload::{Lists, Stored, StoredMask};

/// The weight and bias of one projection in host memory.
#[derive(Debug, Clone, Copy)]
pub struct HostLinear<'a> {
    /// (1, 1, out, in).
    pub weight: Tensor<'a>,
    /// (1, 1, 1, out).
    pub bias: Option<Tensor<'a>>,
}

/// All operands of a multi-head layer in host memory; W_Q, W_K and W_V in one matrix
/// are given as three slices of it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct MultiHeadInputs<'a> {
    /// X, (B, 1, Nq, width).
    pub input: Tensor<'a>,
    /// C, (B, 1, Nk, width of its own), for cross-attention.
    pub context: Option<Tensor<'a>>,
    /// Hq.
    pub q_heads: usize,
    /// Hkv, a divisor of Hq.
    pub kv_heads: usize,
    /// W_Q: Hq Dqk outputs, those of a head side by side.
    pub query: HostLinear<'a>,
    /// W_K: Hkv Dqk outputs.
    pub key: HostLinear<'a>,
    /// W_V: Hkv Dv outputs.
    pub value: HostLinear<'a>,
    /// W_O: its inputs are the heads side by side, Hq Dv.
    pub output: HostLinear<'a>,
    /// What attention takes besides query, key and value, which are placeholders here.
    attention: Inputs<'a>,
}

impl<'a> MultiHeadInputs<'a> {
    /// Self-attention of `heads` heads with nothing optional; `projections` are W_Q,
    /// W_K, W_V and W_O.
    pub fn new(input: Tensor<'a>, heads: usize, projections: [HostLinear<'a>; 4]) -> Self {
        let [query, key, value, output] = projections;
        MultiHeadInputs {
            input,
            context: None,
            q_heads: heads,
            kv_heads: heads,
            query,
            key,
            value,
            output,
            attention: Inputs::new(input, input, input),
        }
    }

    /// Takes keys and values from another sequence.
    pub fn context(mut self, context: Tensor<'a>) -> Self {
        self.context = Some(context);
        self
    }

    /// Sets the number of key and value heads, for grouped heads.
    pub fn kv_heads(mut self, heads: usize) -> Self {
        self.kv_heads = heads;
        self
    }

    /// Adds what attention takes besides query, key and value; `add` gets inputs whose
    /// three tensors are placeholders.
    pub fn attention(mut self, add: impl FnOnce(Inputs<'a>) -> Inputs<'a>) -> Self {
        self.attention = add(self.attention);
        self
    }

    /// The inputs of attention with these queries, keys and values.
    pub fn attention_of<'b>(
        &self,
        query: Tensor<'b>,
        key: Tensor<'b>,
        value: Tensor<'b>,
    ) -> Inputs<'b>
    where
        'a: 'b,
    {
        Inputs {
            query,
            key,
            value,
            ..self.attention
        }
    }

    /// Checks the shapes of the projections and returns the sizes; what attention
    /// takes besides is checked with the queries and keys.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Value`] naming the operand.
    pub fn dims(&self) -> Result<MultiHeadDims> {
        for (operand, rows) in [("input", Some(self.input)), ("context", self.context)] {
            if let Some(rows) = rows.filter(|rows| rows.shape()[1] != 1) {
                return Err(Error::shape(operand, "(B, 1, N, width)", rows.shape()));
            }
        }
        let shapes = WeightShapes {
            input: self.input.shape(),
            context: self.context.map(|context| context.shape()),
            projections: Projections::Separate(
                [&self.query, &self.key, &self.value].map(|linear| linear.weight.shape()),
            ),
            output: self.output.weight.shape(),
        };
        let dims = MultiHeadDims::new(&shapes, self.q_heads, self.kv_heads)?;
        let biases = [
            ("query bias", &self.query),
            ("key bias", &self.key),
            ("value bias", &self.value),
            ("output bias", &self.output),
        ];
        for (operand, linear) in biases {
            let bias = linear.bias.map(|bias| bias.shape());
            check_bias(operand, linear.weight.shape(), bias)?;
        }
        Ok(dims)
    }
}

/// A layer on the device: run it any number of times, read the result.
#[derive(Debug)]
pub struct UploadedMultiHead {
    prepared: PreparedMultiHead,
    attention: Attention,
    buffers: Buffers,
    workspace: wgpu::Buffer,
}

#[derive(Debug)]
struct Buffers {
    input: Stored,
    context: Option<Stored>,
    heads: [usize; 2],
    /// Weight and bias of W_Q, W_K, W_V, W_O.
    linears: [(Stored, Option<Stored>); 4],
    output: Stored,
    bias: Option<Stored>,
    mask: Option<StoredMask>,
    lists: Lists,
}

impl Buffers {
    fn operands(&self) -> Result<MultiHeadOperands<'_>> {
        let made = |n: usize| -> Result<Linear<'_>> {
            let (weight, bias) = &self.linears[n];
            Ok(Linear {
                weight: weight.view()?,
                bias: bias.as_ref().map(Stored::view).transpose()?,
            })
        };
        let projections = InProjections::Separate {
            query: made(0)?,
            key: made(1)?,
            value: made(2)?,
        };
        let [q_heads, kv_heads] = self.heads;
        let (input, output) = (self.input.view()?, self.output.view()?);
        let mut operands = MultiHeadOperands::new(input, q_heads, projections, made(3)?, output)
            .kv_heads(kv_heads);
        operands.context = self.context.as_ref().map(Stored::view).transpose()?;
        let bias = self.bias.as_ref().map(Stored::view).transpose()?;
        let mask = self.mask.as_ref().map(StoredMask::view).transpose()?;
        Ok(operands.attention(|mut attention| {
            attention.bias = bias;
            attention.mask = mask;
            self.lists.add_to(attention)
        }))
    }
}

impl Attention {
    /// Copies a layer to the device and prepares it; Y is stored as `output`.
    ///
    /// # Errors
    /// As [`MultiHeadInputs::dims`], [`MultiHeadPlan::new`] and
    /// [`Attention::prepare`].
    pub fn upload_multi_head(
        &self,
        inputs: &MultiHeadInputs<'_>,
        options: &Options,
        output: DType,
        plan_options: &PlanOptions,
    ) -> Result<UploadedMultiHead> {
        let dims = inputs.dims()?;
        self.check_queue()?;
        let d = &dims.attention;
        let stored = |label: &str, tensor: Option<&Tensor<'_>>| -> Result<Option<Stored>> {
            tensor.map(|t| self.store_tensor(label, t)).transpose()
        };
        let linear = |label: &str, linear: &HostLinear<'_>| -> Result<(Stored, Option<Stored>)> {
            let weight = self.store_tensor(label, &linear.weight)?;
            Ok((weight, stored("projection bias", linear.bias.as_ref())?))
        };
        let mask = inputs.attention.mask.as_ref();
        let buffers = Buffers {
            input: self.store_tensor("input", &inputs.input)?,
            context: stored("context", inputs.context.as_ref())?,
            heads: [inputs.q_heads, inputs.kv_heads],
            linears: [
                linear("query weight", &inputs.query)?,
                linear("key weight", &inputs.key)?,
                linear("value weight", &inputs.value)?,
                linear("output weight", &inputs.output)?,
            ],
            output: self.store_output(output, [d.batch, 1, d.q_len, dims.output_width])?,
            bias: stored("bias", inputs.attention.bias.as_ref())?,
            mask: mask.map(|mask| self.store_mask(mask)).transpose()?,
            lists: Lists::of(&inputs.attention),
        };
        let plan = MultiHeadPlan::new(&buffers.operands()?, options, self.caps(), plan_options)?;
        let prepared = self.prepare_multi_head(&plan)?;
        let bytes = plan.workspace_bytes();
        let storage = wgpu::BufferUsages::STORAGE;
        Ok(UploadedMultiHead {
            prepared,
            attention: self.clone(),
            buffers,
            workspace: self.empty("multi-head workspace", bytes, storage)?,
        })
    }

    /// A multi-head layer over slices, awaiting Y: (B, Nq, width of the output).
    ///
    /// # Errors
    /// As [`Attention::upload_multi_head`] and [`UploadedMultiHead::read_async`].
    pub async fn multi_head_async(
        &self,
        inputs: &MultiHeadInputs<'_>,
        options: &Options,
    ) -> Result<Vec<f32>> {
        let plan = PlanOptions::default();
        let uploaded = self.upload_multi_head(inputs, options, DType::F32, &plan)?;
        uploaded.submit()?;
        uploaded.read_async().await
    }
}

impl UploadedMultiHead {
    /// The plan.
    pub fn plan(&self) -> &MultiHeadPlan {
        self.prepared.plan()
    }

    /// Records and submits one run; does not wait.
    ///
    /// # Errors
    /// As [`PreparedMultiHead::record`].
    pub fn submit(&self) -> Result<()> {
        let device = self.attention.device();
        let mut encoder = device.create_command_encoder(&Default::default());
        let operands = self.buffers.operands()?;
        let workspace = Workspace::new(&self.workspace);
        self.prepared.record(&mut encoder, &operands, workspace)?;
        self.attention.queue().submit([encoder.finish()]);
        Ok(())
    }

    /// Reads Y, (B, Nq, width), widened to f32, awaiting the device.
    ///
    /// # Errors
    /// [`Error::Readback`] or [`Error::DeviceLost`].
    pub async fn read_async(&self) -> Result<Vec<f32>> {
        let output = self.buffers.output.read(&self.attention).await?;
        self.attention.check_faults()?;
        Ok(output)
    }
}
