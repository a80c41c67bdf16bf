//! The convenience layer: slices in, slices out. Owns buffers, submits, waits.

use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::host::inputs::{Inputs, Outputs};
use crate::host::tensor::{BoolMask, MaskData, Tensor};
use crate::kernel::scope::scoped;
use crate::memory::collected;
use crate::plan::operands::Operands;
use crate::plan::plan::{Plan, PlanOptions};
use crate::plan::problem::Problem;
use crate::record::attention::{Attention, Prepared};
use crate::record::encode::Workspace;
use crate::rules::options::Options;
use crate::rules::region::Region;
use crate::rules::score_stage::Stage;
use crate::slices::readback::read_bytes;
use crate::view::dtype::DType;
use crate::view::tensor::{List, MaskView, Stats, StatsView, TensorView};

/// Buffers of one call on the device, and its prepared plan: run it any number
/// of times, read the results.
#[derive(Debug)]
pub struct Uploaded {
    pub(crate) prepared: Prepared,
    buffers: Buffers,
    lists: Lists,
    workspace: Option<wgpu::Buffer>,
}

#[derive(Debug)]
pub(crate) struct Buffers {
    query: Stored,
    key: Stored,
    pub value: Stored,
    output: Stored,
    bias: Option<Stored>,
    mask: Option<StoredMask>,
    pub stats: Option<(wgpu::Buffer, [usize; 3], Stats)>,
}

/// Lists stay on the host: they become part of the plan.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    kv_lengths: Option<Vec<u32>>,
    q_lengths: Option<Vec<u32>>,
    offsets: Option<Vec<i32>>,
    segments: Option<(Vec<u32>, Vec<u32>)>,
    alibi_slopes: Option<Vec<f32>>,
    pub sinks: Option<Vec<f32>>,
}

#[derive(Debug)]
pub(crate) struct Stored {
    pub buffer: wgpu::Buffer,
    pub dtype: DType,
    pub shape: [usize; 4],
}

#[derive(Debug)]
pub(crate) struct StoredMask {
    buffer: wgpu::Buffer,
    bits: bool,
    shape: [usize; 4],
    polarity: crate::view::dtype::Polarity,
}

impl Attention {
    /// Copies the inputs to the device and prepares a forward pass whose output
    /// is stored as `output`.
    ///
    /// # Errors
    /// As [`Inputs::validate`], [`Plan::new`] and [`Attention::prepare`];
    /// [`Error::Value`] if the queue is another device's.
    pub fn upload(
        &self,
        inputs: &Inputs<'_>,
        options: &Options,
        output: DType,
        plan_options: &PlanOptions,
    ) -> Result<Uploaded> {
        let dims = inputs.validate(options)?;
        let stats = Some(([dims.batch, dims.q_heads, dims.q_len], Stats::Lse));
        let buffers = self.store(inputs, dims.output_shape(), output, stats)?;
        let lists = Lists::of(inputs);
        let operands = buffers.operands(&lists)?;
        let problem = Problem::forward(&operands, options)?;
        self.finish_upload(&problem, plan_options, buffers, lists)
    }

    /// Copies the inputs to the device and prepares one stage of a region.
    ///
    /// # Errors
    /// As [`Attention::upload`]; [`crate::Error::Value`] if the region does not fit.
    pub fn upload_stage(
        &self,
        inputs: &Inputs<'_>,
        options: &Options,
        stage: Stage,
        region: &Region,
    ) -> Result<Uploaded> {
        let dims = inputs.validate(options)?;
        region.check(&dims)?;
        let [batches, heads, rows] = region.lens();
        let shape = [batches, heads, rows, dims.kv_len];
        let buffers = self.store(inputs, shape, DType::F32, None)?;
        let lists = Lists::of(inputs);
        let operands = buffers.operands(&lists)?;
        let problem = Problem::stage(&operands, options, stage, region.clone())?;
        self.finish_upload(&problem, &PlanOptions::default(), buffers, lists)
    }

    /// Attention of slices, awaiting the result.
    ///
    /// On native backends it waits inside; in a browser it yields to the event loop.
    ///
    /// # Errors
    /// As [`Attention::upload`] and [`Uploaded::read_async`].
    pub async fn run_async(&self, inputs: &Inputs<'_>, options: &Options) -> Result<Outputs> {
        let uploaded = self.upload(inputs, options, DType::F32, &PlanOptions::default())?;
        uploaded.submit()?;
        uploaded.read_async().await
    }

    /// One stage of a region, awaiting the result: (batches, heads, rows, Nk).
    ///
    /// # Errors
    /// As [`Attention::upload_stage`] and [`Uploaded::read_async`].
    pub async fn stage_async(
        &self,
        inputs: &Inputs<'_>,
        options: &Options,
        stage: Stage,
        region: &Region,
    ) -> Result<Vec<f32>> {
        let uploaded = self.upload_stage(inputs, options, stage, region)?;
        uploaded.submit()?;
        Ok(uploaded.read_async().await?.output)
    }

    fn finish_upload(
        &self,
        problem: &Problem,
        options: &PlanOptions,
        buffers: Buffers,
        lists: Lists,
    ) -> Result<Uploaded> {
        let plan = Plan::new(problem, self.caps(), options)?;
        let prepared = self.prepare(&plan)?;
        let bytes = plan.workspace_bytes();
        let workspace = match bytes {
            0 => None,
            _ => Some(self.empty("attention workspace", bytes, wgpu::BufferUsages::STORAGE)?),
        };
        Ok(Uploaded {
            prepared,
            buffers,
            lists,
            workspace,
        })
    }

    pub(crate) fn store(
        &self,
        inputs: &Inputs<'_>,
        output_shape: [usize; 4],
        output: DType,
        stats: Option<([usize; 3], Stats)>,
    ) -> Result<Buffers> {
        self.check_queue()?;
        let result = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        Ok(Buffers {
            query: self.store_tensor("query", &inputs.query)?,
            key: self.store_tensor("key", &inputs.key)?,
            value: self.store_tensor("value", &inputs.value)?,
            output: self.store_output(output, output_shape)?,
            bias: match &inputs.bias {
                Some(bias) => Some(self.store_tensor("bias", bias)?),
                None => None,
            },
            mask: match &inputs.mask {
                Some(mask) => Some(self.store_mask(mask)?),
                None => None,
            },
            stats: match stats {
                Some((shape, kind)) => {
                    let bytes = bytes_of(&shape, 4 * kind.width() as u64);
                    Some((self.empty("lse", bytes, result)?, shape, kind))
                }
                None => None,
            },
        })
    }

    /// An output that can be read.
    pub(crate) fn store_output(&self, dtype: DType, shape: [usize; 4]) -> Result<Stored> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        let bytes = bytes_of(&shape, dtype.size());
        Ok(Stored {
            buffer: self.empty("output", bytes, usage)?,
            dtype,
            shape,
        })
    }

    pub(crate) fn store_tensor(&self, label: &str, tensor: &Tensor<'_>) -> Result<Stored> {
        Ok(Stored {
            buffer: self.filled(label, tensor.data().bytes(), wgpu::BufferUsages::STORAGE)?,
            dtype: tensor.dtype(),
            shape: tensor.shape(),
        })
    }

    pub(crate) fn store_mask(&self, mask: &BoolMask<'_>) -> Result<StoredMask> {
        let (bytes, bits): (&[u8], bool) = match mask.data() {
            MaskData::Bytes(bytes) => (bytes, false),
            MaskData::Bits(words) => (bytemuck::cast_slice(words), true),
        };
        Ok(StoredMask {
            buffer: self.filled("mask", bytes, wgpu::BufferUsages::STORAGE)?,
            bits,
            shape: mask.shape(),
            polarity: mask.polarity(),
        })
    }

    /// A buffer that holds `contents` from its creation on, padded with zeros.
    pub(crate) fn filled(
        &self,
        label: &str,
        contents: &[u8],
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer> {
        let buffer = self.create(label, contents.len() as u64, usage, true)?;
        // Made, so that only a device that was lost since has no memory for it.
        let mut mapped = buffer
            .get_mapped_range_mut(..)
            .map_err(|error| Error::DeviceLost {
                message: format!("noticed when filling buffer {label}: {error}"),
            })?;
        mapped.slice(..contents.len()).copy_from_slice(contents);
        drop(mapped);
        buffer.unmap();
        Ok(buffer)
    }

    /// A buffer of at least `bytes` bytes.
    pub(crate) fn empty(
        &self,
        label: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer> {
        self.create(label, bytes, usage, false)
    }

    /// A buffer of at least `bytes` bytes, a multiple of 4 and not empty.
    fn create(
        &self,
        label: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
        mapped_at_creation: bool,
    ) -> Result<wgpu::Buffer> {
        let size = bytes.checked_next_multiple_of(4).unwrap_or(u64::MAX).max(4);
        let limit = self.caps().max_buffer_size;
        if size > limit {
            return Err(Error::Limit {
                what: format!("{label} in bytes"),
                needed: size,
                limit_name: "max_buffer_size",
                limit,
            });
        }
        scoped(
            self.device(),
            format_args!("creating buffer {label}"),
            || {
                self.device().create_buffer(&wgpu::BufferDescriptor {
                    label: Some(label),
                    size,
                    usage,
                    mapped_at_creation,
                })
            },
        )
    }
}

impl Stored {
    pub fn view(&self) -> Result<TensorView<'_>> {
        TensorView::bhsd(&self.buffer, self.dtype, self.shape, 0)
    }

    /// Its elements, widened to f32.
    pub async fn read(&self, attention: &Attention) -> Result<Vec<f32>> {
        let mut values = widen(&self.read_bytes(attention).await?, self.dtype)?;
        values.truncate(self.shape.iter().product());
        Ok(values)
    }

    /// Its bytes, padded to whole words.
    pub async fn read_bytes(&self, attention: &Attention) -> Result<Vec<u8>> {
        // The buffer was made, so that this is no more than it holds.
        let bytes = bytes_of(&self.shape, self.dtype.size()).next_multiple_of(4);
        let (device, queue) = (attention.device(), attention.queue());
        read_bytes(device, queue, &self.buffer, bytes).await
    }
}

impl StoredMask {
    pub fn view(&self) -> Result<MaskView<'_>> {
        match self.bits {
            true => MaskView::bits(&self.buffer, self.shape, 0, self.polarity),
            false => MaskView::bytes(&self.buffer, self.shape, 0, self.polarity),
        }
    }
}

impl Lists {
    pub fn of(inputs: &Inputs<'_>) -> Self {
        Lists {
            kv_lengths: inputs.kv_lengths.map(<[u32]>::to_vec),
            q_lengths: inputs.q_lengths.map(<[u32]>::to_vec),
            offsets: inputs.offsets.map(<[i32]>::to_vec),
            segments: inputs.segments.map(|(q, k)| (q.to_vec(), k.to_vec())),
            alibi_slopes: inputs.alibi_slopes.map(<[f32]>::to_vec),
            sinks: inputs.sinks.map(<[f32]>::to_vec),
        }
    }

    pub fn add_to<'a>(&'a self, mut operands: Operands<'a>) -> Operands<'a> {
        operands.kv_lengths = self.kv_lengths.as_deref().map(List::Host);
        operands.q_lengths = self.q_lengths.as_deref().map(List::Host);
        operands.offsets = self.offsets.as_deref().map(List::Host);
        if let Some((queries, keys)) = &self.segments {
            operands = operands.segments(List::Host(queries), List::Host(keys));
        }
        operands.alibi_slopes = self.alibi_slopes.as_deref().map(List::Host);
        operands.sinks = self.sinks.as_deref().map(List::Host);
        operands
    }
}

impl Buffers {
    pub fn operands<'a>(&'a self, lists: &'a Lists) -> Result<Operands<'a>> {
        let mut operands = Operands::new(
            self.query.view()?,
            self.key.view()?,
            self.value.view()?,
            self.output.view()?,
        );
        if let Some((buffer, shape, kind)) = &self.stats {
            operands.stats = Some(StatsView::new(buffer, *kind, *shape, 0)?);
        }
        operands.bias = self.bias.as_ref().map(Stored::view).transpose()?;
        operands.mask = self.mask.as_ref().map(StoredMask::view).transpose()?;
        Ok(lists.add_to(operands))
    }
}

impl Uploaded {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        self.prepared.plan()
    }

    /// The prepared plan, for instance to [warm up](Prepared::warm_up).
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Records and submits one run; does not wait.
    ///
    /// # Errors
    /// As [`Prepared::record`].
    pub fn submit(&self) -> Result<()> {
        let device = self.prepared.attention.device();
        let mut encoder = device.create_command_encoder(&Default::default());
        let workspace = self.workspace.as_ref().map(Workspace::new);
        let operands = self.buffers.operands(&self.lists)?;
        self.prepared.record(&mut encoder, &operands, workspace)?;
        self.prepared.attention.queue().submit([encoder.finish()]);
        Ok(())
    }

    pub(crate) fn output_buffer(&self) -> &wgpu::Buffer {
        &self.buffers.output.buffer
    }

    pub(crate) fn record_in_pass(&self, pass: &mut wgpu::ComputePass<'_>) -> Result<()> {
        let workspace = self.workspace.as_ref().map(Workspace::new);
        let operands = self.buffers.operands(&self.lists)?;
        self.prepared.record_in_pass(pass, &operands, workspace)
    }

    /// Reads output and log-sum-exp, awaiting the device.
    ///
    /// # Errors
    /// [`crate::Error::Readback`] or [`crate::Error::DeviceLost`].
    pub async fn read_async(&self) -> Result<Outputs> {
        let attention = &self.prepared.attention;
        let (device, queue) = (attention.device(), attention.queue());
        let output = self.buffers.output.read(attention).await?;
        let lse = match &self.buffers.stats {
            Some((buffer, shape, _)) => {
                let bytes = bytes_of(shape, 4);
                widen(&read_bytes(device, queue, buffer, bytes).await?, DType::F32)?
            }
            None => Vec::new(),
        };
        attention.check_faults()?;
        Ok(Outputs { output, lse })
    }
}

/// The bytes of a tensor; `u64::MAX` if there are more.
fn bytes_of(shape: &[usize], size: u64) -> u64 {
    (shape.iter()).fold(size, |bytes, &n| bytes.saturating_mul(n as u64))
}

fn widen(bytes: &[u8], dtype: DType) -> Result<Vec<f32>> {
    let pairs = bytes
        .chunks_exact(2)
        .map(|b| u16::from_le_bytes([b[0], b[1]]));
    let words = bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    match dtype {
        DType::F32 => collected("result", words),
        DType::F16 => collected("result", pairs.map(|b| f16::from_bits(b).to_f32())),
        DType::BF16 => collected("result", pairs.map(|b| bf16::from_bits(b).to_f32())),
    }
}
