//! Norms of rows of values, or of their products with an output projection.

use std::fmt;
use std::sync::{Arc, LazyLock};

use crate::error::{Error, Result};
use crate::kernel::shader::Shader;
use crate::kernel::uniform::LANES;
use crate::ops::checks::check_f32;
use crate::plan::dispatch::Pass;
use crate::plan::kernel::Kernel;
use crate::plan::operands::Operands;
use crate::plan::operation::Operation;
use crate::plan::passes::Part;
use crate::plan::problem::Problem;
use crate::plan::task::{Facts, Task};
use crate::plan::tiling::Tiles;
use crate::rules::dims::Dims;
use crate::rules::options::Options;
use crate::view::tensor::TensorView;

/// Norms of rows of values, as views of the caller's buffers: [`Problem::norms`].
#[derive(Debug, Clone, Copy)]
pub struct Norms<'a> {
    /// (B, H, N, D), last axis contiguous.
    pub value: TensorView<'a>,
    /// (B, Hq, N, D), last axis contiguous, or none: the value itself.
    pub through: Option<TensorView<'a>>,
    /// (B, Hq, N, 1), f32.
    pub output: TensorView<'a>,
}

impl<'a> Norms<'a> {
    /// As the operands of [`crate::Prepared::record`].
    pub fn operands(&self) -> Operands<'a> {
        let through = self.through.unwrap_or(self.value);
        Operands::new(through, self.value, self.value, self.output)
    }
}

/// The products of query and key, row by row.
#[derive(Debug)]
struct RowNorms;

/// One for all problems, so that none allocates its own.
static OPERATION: LazyLock<Arc<dyn Operation>> = LazyLock::new(|| Arc::new(RowNorms));

impl Operation for RowNorms {
    fn facts(&self) -> Facts {
        Facts::of(|_| vec![Shader::RowNorms])
    }

    fn output_shape(&self, operands: &Operands<'_>, dims: &Dims) -> Result<[usize; 4]> {
        if dims.q_len != dims.kv_len {
            let expected = format!("{} rows, as the value has", dims.kv_len);
            return Err(Error::shape("query", expected, operands.query.shape));
        }
        check_f32("output", &operands.output)?;
        Ok([dims.batch, dims.q_heads, dims.q_len, 1])
    }

    fn dispatches(&self, part: &Part<'_>) -> Vec<Pass> {
        let rows = part.row_count.div_ceil(LANES);
        vec![part.tiles(Shader::RowNorms, [rows, 1], part.params)]
    }

    fn workgroups(&self, tiles: &Tiles, _kernel: Kernel) -> u64 {
        tiles.rows.div_ceil(u64::from(LANES))
    }

    fn flops(&self, dims: &Dims, rows: f64) -> f64 {
        2.0 * rows * dims.qk_dim as f64
    }

    fn in_its_words(&self, error: Error) -> Error {
        error.renamed(&[("query", "through"), ("key", "value")])
    }

    fn describe(&self, task: &Task, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        task.describe_sizes(f)?;
        write!(f, "; norms of values")
    }
}

impl Problem {
    /// Validates the norms of rows of values, |V_j|: from `value`, (B, H, N, D),
    /// into `output`, (B, H, N, 1), f32.
    ///
    /// With `through`, (B, Hq, N, D) where Hq is a multiple of H, the norms are
    /// sqrt(max(0, through_j . V_j)), (B, Hq, N, 1): through an output projection,
    /// |V_j W_O^(h)|, where `through` is V_j G_h with the Gram matrix
    /// G_h = W_O^(h) W_O^(h)^T, a [projection](crate::Projection) whose cost does
    /// not grow with the width of the model.
    ///
    /// # Errors
    /// As [`Problem::forward`].
    pub fn norms(norms: &Norms<'_>) -> Result<Problem> {
        let options = Options::default().scale(1.0);
        let problem = Problem::new(&norms.operands(), &options, OPERATION.clone());
        problem.map_err(|error| RowNorms.in_its_words(error))
    }
}
