//! A layer over slices: owns buffers, submits, reads.

use crate::error::Result;
use crate::host::layer::{HostLinear, MultiHeadInputs};
use crate::host::tensor::Tensor;
use crate::ops::layer::operands::{InProjections, Linear, MultiHeadOperands};
use crate::ops::layer::plan::MultiHeadPlan;
use crate::ops::layer::prepared::PreparedMultiHead;
use crate::plan::plan::PlanOptions;
use crate::record::attention::Attention;
use crate::record::encode::Workspace;
use crate::rules::options::Options;
use crate::slices::upload::{Lists, Stored, StoredMask};
use crate::view::dtype::DType;

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
    /// [`Error::Readback`](crate::Error::Readback) or [`Error::DeviceLost`](crate::Error::DeviceLost).
    pub async fn read_async(&self) -> Result<Vec<f32>> {
        let output = self.buffers.output.read(&self.attention).await?;
        self.attention.check_faults()?;
        Ok(output)
    }
}
