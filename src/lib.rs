//! Attention as WGSL compute kernels, with a Rust host layer, on any adapter
//! that wgpu reaches.
//!
//! ```text
//! O = softmax(scale * Q K^T + bias, over the visible keys) V
//! ```
//!
//! One fused kernel computes every option together (scale, softcap, bias, ALiBi,
//! boolean masks, causal masks, windows, lengths, segments, sinks, grouped
//! heads) with memory linear in the sequence length, inside WebGPU's default
//! limits and without subgroups. A staged path of three kernels computes the
//! same over materialised scores, is what the fused one is checked against, and
//! gives the scores and probabilities of any region. A CPU oracle in f64
//! ([`mod@reference`]) says for each value what is right and how far an f32
//! result may be away. The semantics are written down in [`semantics`].
//!
//! # On the caller's device
//!
//! Data travels one way, and every step can be looked at:
//!
//! ```text
//! buffers -> TensorView -> Problem -> Plan -> Prepared -> the caller's encoder
//! ```
//!
//! ```no_run
//! use wgpu_attention::{Attention, DType, Operands, Options, TensorView, wgpu};
//!
//! # fn example(device: wgpu::Device, queue: wgpu::Queue, [q, k, v, o]: [wgpu::Buffer; 4])
//! #     -> Result<(), wgpu_attention::Error> {
//! let shape = [1, 8, 512, 64]; // batch, heads, sequence, head_dim
//! let operands = Operands::new(
//!     TensorView::bhsd(&q, DType::F32, shape, 0)?,
//!     TensorView::bhsd(&k, DType::F32, shape, 0)?,
//!     TensorView::bhsd(&v, DType::F32, shape, 0)?,
//!     TensorView::bhsd(&o, DType::F32, shape, 0)?,
//! );
//! let attention = Attention::new(&device, &queue)?;
//! let plan = attention.plan(&operands, &Options::default().causal(true))?;
//! let prepared = attention.prepare(&plan)?; // pipelines and uniforms; keep it
//! let mut encoder = device.create_command_encoder(&Default::default());
//! prepared.record(&mut encoder, &operands, None)?; // submits nothing
//! queue.submit([encoder.finish()]);
//! # Ok(())
//! # }
//! ```
//!
//! The library is a guest: recording does not submit, poll, map or wait. The one
//! call that submits is explicit, [`Prepared::warm_up`], for drivers that compile
//! at a pipeline's first dispatch; pipelines may be prepared on threads. A
//! workspace, where a plan needs one, has an exact size that is asked for up
//! front ([`Plan::workspace_bytes`]).
//!
//! Which kernel runs is chosen from a table of device classes
//! ([`DeviceClass::candidates`], each row with its [`Evidence`]), or by what
//! `Attention::tune` (feature `tune`) measured on the device; [`PlanOptions`]
//! overrides both, and [`Plan::why`] says what decided.
//!
//! # Over a cache
//!
//! A preallocated cache of keys and values, (B, Hkv, capacity, D) or, as projections write
//! it in one go, (B, capacity, Hkv, D), is a view like any other, and how much of it is
//! there are its lengths: in a GPU buffer one prepared plan serves every step, and what
//! lies behind a length is not read into any result. [`Projection`]s write their rows into
//! the slots of new tokens, in the same encoder.
//!
//! ```
//! # #[cfg(feature = "blocking")]
//! # fn main() -> Result<(), wgpu_attention::Error> {
//! use wgpu_attention::{Attention, DType, List, Operands, Options, TensorView, Workspace, wgpu};
//!
//! let attention = Attention::on_default_adapter()?; // or Attention::new on your device
//! let (device, queue) = (attention.device(), attention.queue());
//! let buffer = |bytes: usize| device.create_buffer(&wgpu::BufferDescriptor {
//!     label: None,
//!     size: bytes as u64,
//!     usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
//!     mapped_at_creation: false,
//! });
//! let (batch, q_heads, kv_heads, capacity, dim) = (2, 8, 2, 1024, 64);
//! let [q, o] = [(); 2].map(|()| buffer(batch * q_heads * dim * 4));
//! let [k, v] = [(); 2].map(|()| buffer(batch * capacity * kv_heads * dim * 2)); // f16
//! let lengths = buffer(batch * 4);
//! let (token, cache) = ([batch, q_heads, 1, dim], [batch, kv_heads, capacity, dim]);
//! let operands = Operands::new(
//!     TensorView::bhsd(&q, DType::F32, token, 0)?,
//!     TensorView::bshd(&k, DType::F16, cache, 0)?,
//!     TensorView::bshd(&v, DType::F16, cache, 0)?,
//!     TensorView::bhsd(&o, DType::F32, token, 0)?,
//! )
//! .kv_lengths(List::Buffer { buffer: &lengths, offset: 0, len: batch });
//! // Causal would change nothing: the last query stands at the last key of its sequence.
//! let prepared = attention.prepare(&attention.plan(&operands, &Options::default())?)?;
//! let workspace = buffer(prepared.plan().workspace_bytes() as usize); // the lists, gathered
//! for step in 0..3u32 {
//!     // Write the query, and key and value of the new tokens; by commands if you like.
//!     let counts = [step + 1, step + 5]; // each sequence with its own
//!     queue.write_buffer(&lengths, 0, bytemuck::cast_slice(&counts));
//!     let mut encoder = device.create_command_encoder(&Default::default());
//!     prepared.record(&mut encoder, &operands, Some(Workspace::new(&workspace)))?;
//!     queue.submit([encoder.finish()]);
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "blocking"))]
//! # fn main() {}
//! ```
//!
//! An engine whose tensors and workspace are parts of one buffer asks for
//! [`PlanOptions::shared_buffers`].
//!
//! # On slices
//!
//! For people who just have numbers, [`Attention::on_default_adapter`] makes a
//! device, and [`Attention::forward`] and [`Attention::run`] take slices
//! (feature `blocking`, on by default; `run_async` without it). Without any
//! adapter the f32 path of [`cpu`] computes the same:
//!
//! ```
//! use wgpu_attention::{Inputs, Options, Tensor, cpu};
//!
//! # fn main() -> Result<(), wgpu_attention::Error> {
//! let q = Tensor::f32(&[1.0, 0.0], [1, 1, 1, 2])?;
//! let k = Tensor::f32(&[1.0, 0.0, 1.0, 0.0], [1, 1, 2, 2])?;
//! let v = Tensor::f32(&[1.0, 3.0], [1, 1, 2, 1])?;
//! let out = cpu::forward(&Inputs::new(q, k, v), &Options::default())?;
//! assert!((out.output[0] - 2.0).abs() < 1e-6); // two equal keys: the mean
//! # Ok(())
//! # }
//! ```
//!
//! # The whole layer
//!
//! `Y = Concat(head_1 .. head_h) W_O`: [`Attention::multi_head`] over slices, or
//! [`MultiHeadOperands`] -> [`MultiHeadPlan`] -> [`PreparedMultiHead`] in the caller's
//! buffers and encoder, with one workspace of an exact size. Self- and
//! cross-attention, separate or packed weights in torch's (out, in) layout, grouped
//! heads, and every option of attention. A single product is a [`Projection`].
//!
//! # Looking inside
//!
//! Beside the fused kernel, from its log-sum-exp: weights, contributions W(i, j) |V_j|
//! and |V_j W_O|, the stages of the scores, summaries of rows (entropy, largest weights,
//! first keys, distances) and the mass that keys receive, for any rows and keys:
//!
//! ```no_run
//! use wgpu_attention::{Attention, Inputs, Inspection, Options, Pairs, Quantity, Region, Rows};
//!
//! # fn example(attention: &Attention, inputs: Inputs) -> Result<(), wgpu_attention::Error> {
//! let options = Options::default().causal(true);
//! let seen = attention.upload_inspection(&inputs, &options, &Inspection::default())?;
//! let region = Region { batches: 0..1, heads: 3..4, rows: 0..64 };
//! let contributions = seen.pairs(&Pairs {
//!     quantity: Quantity::Contribution,
//!     region: region.clone(),
//!     keys: 0..64,
//! })?;
//! let received = seen.received(&region)?; // what each key gets from these rows
//! for row in seen.rows(&Rows { region, top: 5, first_keys: 1 })? {
//!     println!("entropy {}, largest weights {:?}", row.entropy, row.top);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! On your own buffers and encoder they are [`Problem::inspect`],
//! [`Problem::summarize`] and [`Problem::norms`]. What weights that you hold mean,
//! [`interpret`] says on the host: whether a head is a previous-token or an induction
//! head, what each key adds to the output as a vector, attention rolled out over layers.
//!
//! # By task
//!
//! | to | use |
//! | --- | --- |
//! | describe tensors in your buffers | [`TensorView`], [`MaskView`], [`StatsView`], [`List`], [`DType`] |
//! | attend on your device | [`Attention`], [`Operands`], [`Options`], [`Problem`], [`Plan`], [`Prepared`], [`Workspace`] |
//! | say what a row sees | [`Alignment`], [`Window`], [`Visibility`], [`Polarity`] |
//! | choose a kernel | [`PlanOptions`], [`Kernel`], [`DeviceCaps`], [`DeviceClass`], [`Candidate`], [`Evidence`] |
#![cfg_attr(
    all(feature = "tune", not(target_family = "wasm")),
    doc = "| choose it by measurement (feature `tune`) | [`Attention::tune`], [`TuneOptions`], [`TuneReport`], [`Trial`], [`Outcome`], [`TuneStep`], [`Tuning`], [`Tuned`], [`ProblemClass`] |"
)]
#![cfg_attr(
    not(all(feature = "tune", not(target_family = "wasm"))),
    doc = "| choose it by measurement (feature `tune`, native only) | `Attention::tune`, `Tuning`, [`Tuned`], [`ProblemClass`] |"
)]
//! | attend over slices | [`Tensor`], [`Inputs`], [`Outputs`], [`BoolMask`], [`Data`], [`MaskData`], [`Dims`], [`Uploaded`], [`AdapterOptions`] |
//! | compute a multi-head layer | [`MultiHeadOperands`], [`MultiHeadPlan`], [`PreparedMultiHead`], [`Linear`], [`InProjections`], [`MultiHeadDims`], [`Projection`] |
//! | compute it over slices | [`MultiHeadInputs`], [`HostLinear`], [`UploadedMultiHead`] |
//! | look inside | [`Inspection`], [`Pairs`], [`Rows`], [`Region`], [`Quantity`], [`Stage`], [`Stats`], [`RowSummary`], [`TopKey`], [`Norms`], [`UploadedInspection`], [`gram_matrices`], [`interpret`] |
//! | check a result | [`mod@reference`], [`semantics`] |
//! | change the crate | [`structure`] |
//! | do without a GPU | [`cpu`] |
//!
//! # Not here yet
//!
//! Gradients, merging of partial states, operations of a KV cache's own (appending to
//! it, copying and reordering) beyond [the above](#over-a-cache), paged and packed
//! (variable-length) layouts, dropout, rotary embedding.
#![deny(missing_docs)]
// Set on docs.rs alone: marks each item of a feature with the feature's name.
#![cfg_attr(docsrs, feature(doc_cfg))]
// Allowed function by function, each with its proof.
#![deny(unsafe_code)]

pub mod cpu;
mod error;
mod host;
pub mod interpret;
mod kernel;
mod memory;
mod ops;
mod plan;
mod record;
pub mod reference;
mod rules;
pub mod semantics;
mod slices;
pub mod structure;
#[doc(hidden)]
pub mod testing;
#[cfg(all(feature = "tune", not(target_family = "wasm")))]
mod tune;
mod view;

pub use error::{Error, Result};
pub use host::inputs::{Inputs, Outputs};
pub use host::layer::{HostLinear, MultiHeadInputs};
pub use host::row_summary::{RowSummary, TopKey};
pub use host::tensor::{BoolMask, Data, MaskData, Tensor};
pub use ops::layer::operands::{InProjections, Linear, MultiHeadOperands};
pub use ops::layer::plan::MultiHeadPlan;
pub use ops::layer::prepared::PreparedMultiHead;
pub use ops::norms::Norms;
pub use ops::project::Projection;
pub use plan::caps::DeviceCaps;
pub use plan::choose::{Candidate, Evidence};
pub use plan::device_class::DeviceClass;
pub use plan::kernel::Kernel;
pub use plan::operands::Operands;
pub use plan::plan::{Plan, PlanOptions};
pub use plan::problem::Problem;
pub use plan::split::MAX_DISPATCHES;
pub use plan::tuned::{ProblemClass, Tuned};
pub use record::attention::{Attention, Prepared};
pub use record::encode::Workspace;
pub use rules::dims::{Dims, MAX_SEQUENCE};
pub use rules::layer_dims::MultiHeadDims;
pub use rules::options::{Alignment, Options, Window};
pub use rules::positional::Visibility;
pub use rules::region::Region;
pub use rules::score_stage::Stage;
pub use rules::selection::{MAX_TOP, Pairs, Quantity, Rows};
pub use slices::device::AdapterOptions;
pub use slices::inspection::{Inspection, UploadedInspection, gram_matrices};
pub use slices::layer::UploadedMultiHead;
pub use slices::upload::Uploaded;
#[cfg(all(feature = "tune", not(target_family = "wasm")))]
pub use tune::file::Tuning;
#[cfg(all(feature = "tune", not(target_family = "wasm")))]
pub use tune::measure::{Outcome, Trial, TuneOptions, TuneReport, TuneStep};
pub use view::dtype::{DType, Polarity};
pub use view::tensor::{List, MaskView, Stats, StatsView, TensorView};

/// The shaders as text, for validation and inspection.
#[doc(hidden)]
pub mod shaders {
    pub use crate::kernel::compose::{Composed, compose};
    pub use crate::kernel::pipelines::all_pipelines;
    pub use crate::kernel::shader::{Access, Shader, Slot};
    pub use crate::kernel::specialization::{Lanes, Loads, RuleSet, Specialization};
    pub use crate::plan::plan::emitted;
}

/// The wgpu that this crate is built with.
pub use wgpu;
