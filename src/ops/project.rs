//! A projection, Y = X W^T + b: the matrix product of a multi-head layer.

use std::fmt;
use std::sync::{Arc, LazyLock};

use crate::error::{Error, Result};
use crate::kernel::shader::Shader;
use crate::kernel::uniform::{Params, lane_tile};
use crate::ops::checks::refuse_inspection;
use crate::plan::dispatch::Pass;
use crate::plan::family::ScoreTiles;
use crate::plan::kernel::Kernel;
use crate::plan::operands::Operands;
use crate::plan::operation::Operation;
use crate::plan::passes::Part;
use crate::plan::plan::{Plan, PlanOptions};
use crate::plan::problem::Problem;
use crate::plan::task::{Facts, Task};
use crate::plan::tiling::Tiles;
use crate::record::attention::Attention;
use crate::rules::dims::Dims;
use crate::rules::options::Options;
use crate::view::tensor::TensorView;

/// Y = X W^T + b, as views of the caller's buffers.
///
/// An output y(i, j) is the sum over k of x(i, k) w(j, k), accumulated in f32 in the
/// order of k, plus b(j). Rows are the third axis of every view, widths the last.
///
/// It is planned and recorded like any other problem. The output may be any part of a
/// buffer; here it is the slot of one token in a cache of keys, (B, capacity, Hkv, D), for
/// each sequence of a batch:
///
/// ```
/// # #[cfg(feature = "blocking")]
/// # fn main() -> Result<(), wgpu_attention::Error> {
/// use wgpu_attention::{Attention, DType, Projection, TensorView, wgpu};
///
/// let attention = Attention::on_default_adapter()?;
/// let device = attention.device();
/// let buffer = |numbers: usize| device.create_buffer(&wgpu::BufferDescriptor {
///     label: None,
///     size: 4 * numbers as u64,
///     usage: wgpu::BufferUsages::STORAGE,
///     mapped_at_creation: false,
/// });
/// let (batch, capacity, kv_heads, dim, width) = (2, 100, 2, 32, 256);
/// let row = kv_heads * dim;
/// let tokens = buffer(batch * width);
/// let weight = buffer(row * width);
/// let cache = buffer(batch * capacity * row);
/// let into_slot = |slot: usize| -> Result<Projection<'_>, wgpu_attention::Error> {
///     Ok(Projection {
///         input: TensorView::tokens(&tokens, DType::F32, [batch, 1, width], 0)?,
///         weight: TensorView::matrix(&weight, DType::F32, [row, width], 0)?,
///         bias: None,
///         output: TensorView::strided(
///             &cache,
///             DType::F32,
///             [batch, 1, 1, row],
///             [capacity * row, row, row, 1],
///             slot * row,
///         )?,
///     })
/// };
/// let prepared = attention.prepare(&attention.plan_projection(&into_slot(0)?)?)?;
/// for slot in 0..3 {
///     // One prepared plan for all slots: each begins at a multiple of 256 bytes.
///     let operands = into_slot(slot)?.operands()?;
///     let mut encoder = device.create_command_encoder(&Default::default());
///     prepared.record(&mut encoder, &operands, None)?;
///     // Record the attention over the cache here.
///     attention.queue().submit([encoder.finish()]);
/// }
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "blocking"))]
/// # fn main() {}
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Projection<'a> {
    /// X, (B, 1, N, in), last axis contiguous.
    pub input: TensorView<'a>,
    /// W, (1, 1, out, in), last axis contiguous: the layout of torch's `Linear`.
    pub weight: TensorView<'a>,
    /// b, (1, 1, 1, out).
    pub bias: Option<TensorView<'a>>,
    /// Y, (B, 1, N, out), last axis contiguous; its storage type is its own.
    pub output: TensorView<'a>,
}

impl<'a> Projection<'a> {
    /// A projection as the operands of [`crate::Prepared::record`]: the input as the
    /// query, the weight as key and value of every batch entry.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shapes do not fit each other.
    pub fn operands(&self) -> Result<Operands<'a>> {
        let [batch, heads, rows, width] = self.input.shape;
        if heads != 1 {
            return Err(Error::shape("input", "(B, 1, N, in)", self.input.shape));
        }
        let [one, one_more, outputs, inputs] = self.weight.shape;
        if (one, one_more) != (1, 1) || inputs != width {
            let expected = format!("(1, 1, out, {width}), as the input has width {width}");
            return Err(Error::shape("weight", expected, self.weight.shape));
        }
        let expected = [1, 1, 1, outputs];
        if let Some(bias) = self.bias.filter(|bias| bias.shape != expected) {
            return Err(Error::shape("bias", format!("{expected:?}"), bias.shape));
        }
        let expected = [batch, 1, rows, outputs];
        if self.output.shape != expected {
            let expected = format!("{expected:?}");
            return Err(Error::shape("output", expected, self.output.shape));
        }
        let [_, _, row, element] = self.weight.strides;
        let weight = TensorView {
            shape: [batch, 1, outputs, width],
            strides: [0, 0, row, element],
            ..self.weight
        };
        let mut operands = Operands::new(self.input, weight, weight, self.output);
        operands.bias = self.bias;
        Ok(operands)
    }
}

#[derive(Debug)]
struct Project;

/// One for all problems, so that none allocates its own.
pub(crate) static OPERATION: LazyLock<Arc<dyn Operation>> = LazyLock::new(|| Arc::new(Project));

impl Operation for Project {
    fn facts(&self) -> Facts {
        Facts::of(|kernel| vec![kernel.projection()])
    }

    fn output_shape(&self, operands: &Operands<'_>, dims: &Dims) -> Result<[usize; 4]> {
        refuse_inspection(operands)?;
        Ok([dims.batch, dims.q_heads, dims.q_len, dims.kv_len])
    }

    fn dispatches(&self, part: &Part<'_>) -> Vec<Pass> {
        let (shader, params) = match part.kernel.row().scores {
            ScoreTiles::Lanes => {
                let params = Params {
                    trips_rows: lane_tile::ROWS,
                    // Runs of 4 outputs.
                    trips_keys: part.tiling.keys / 4,
                    ..part.params
                };
                (Shader::ProjectLanes, params)
            }
            ScoreTiles::Workgroup => (Shader::ProjectTiled, part.params),
        };
        let tiles = [part.row_tiles(), part.key_tiles(part.task.dims.kv_len)];
        vec![part.tiles(shader, tiles, params)]
    }

    fn workgroups(&self, tiles: &Tiles, _kernel: Kernel) -> u64 {
        tiles.row_tiles.saturating_mul(tiles.key_tiles)
    }

    fn flops(&self, dims: &Dims, rows: f64) -> f64 {
        2.0 * (rows * dims.kv_len as f64) * dims.qk_dim as f64
    }

    fn in_its_words(&self, error: Error) -> Error {
        error.renamed(&[("query", "input"), ("key", "weight"), ("value", "weight")])
    }

    fn describe(&self, task: &Task, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = &task.dims;
        let (input, weight) = (task.query_dtype, task.kv_dtype);
        write!(
            f,
            "B {} N {} in {} out {}, input {input:?}, weight {weight:?}, output {:?}",
            d.batch, d.q_len, d.qk_dim, d.kv_len, task.output_dtype
        )
    }
}

impl Problem {
    /// Validates a projection.
    ///
    /// # Errors
    /// As [`Problem::forward`]; errors name the input, the weight, the bias or the
    /// output.
    pub fn projection(projection: &Projection<'_>) -> Result<Problem> {
        let options = Options::default().scale(1.0);
        let problem = Problem::new(&projection.operands()?, &options, OPERATION.clone());
        problem.map_err(|error| Project.in_its_words(error))
    }
}

impl Attention {
    /// Validates and plans a projection: [`Problem::projection`] and [`Plan::new`].
    ///
    /// # Errors
    /// As those two.
    pub fn plan_projection(&self, projection: &Projection<'_>) -> Result<Plan> {
        let problem = Problem::projection(projection)?;
        Plan::new(&problem, self.caps(), &PlanOptions::default())
    }
}
