//! Summaries of rows, and the mass that keys receive from them.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::kernel::shader::{Shader, Slot, dtype_code};
use crate::kernel::uniform::{LANES, Params, rules};
use crate::ops::checks::{check_f32, missing};
use crate::ops::inspect;
use crate::plan::dispatch::{Bind, Pass};
use crate::plan::kernel::Kernel;
use crate::plan::operands::Operands;
use crate::plan::operation::Operation;
use crate::plan::passes::Part;
use crate::plan::problem::Problem;
use crate::plan::task::{Facts, Scores, Task};
use crate::plan::tiling::Tiles;
use crate::rules::dims::Dims;
use crate::rules::options::Options;
use crate::rules::score_stage::Stage;
use crate::rules::selection::Rows;
use crate::view::dtype::DType;

/// Rows of a chunk of summaries: a loop goes over them, and some drivers end long
/// ones (src/plan/loops.rs).
pub(crate) const MOST_SUMMARY_ROWS: usize = 1 << 15;

#[derive(Debug)]
struct SummarizeRows(Rows);

impl Operation for SummarizeRows {
    fn facts(&self) -> Facts {
        Facts {
            region: Some(self.0.region.clone()),
            scores: Scores::Workspace,
            loads_values: false,
            writes_stats: false,
            stage: Stage::Raw as u32,
            most_rows: Some(MOST_SUMMARY_ROWS),
            top: self.0.top,
            ..Facts::of(|kernel| {
                vec![
                    kernel.inspection(),
                    Shader::InspectRows,
                    Shader::InspectKeys,
                ]
            })
        }
    }

    fn output_shape(&self, operands: &Operands<'_>, dims: &Dims) -> Result<[usize; 4]> {
        let rows = &self.0;
        rows.check(dims)?;
        if operands.stats.is_none() {
            return Err(missing("stats", "the statistics of a forward pass"));
        }
        check_f32("output", &operands.output)?;
        inspect::output_shape(operands, dims, &rows.region, rows.width())
    }

    fn dispatches(&self, part: &Part<'_>) -> Vec<Pass> {
        let (wanted, task, all) = (&self.0, part.task, part.params);
        let rows = part.chunk.rows.len() as u32;
        let kv_len = task.dims.kv_len;
        // Raw scores go to the workspace, and weights take their place.
        let (shader, params) = inspect::of_family(part);
        let raw = Params {
            output: all.scores,
            output_dtype: dtype_code(DType::F32),
            ..params
        };
        let tiles = [part.row_tiles(), part.key_tiles(kv_len)];
        let mut scores = part.tiles(shader, tiles, raw);
        for bind in scores.binds.iter_mut().filter(|b| b.slot == Slot::Output) {
            *bind = Bind {
                slot: Slot::Scores,
                range: part.bound(Slot::Scores),
            };
        }
        let summary = Params {
            top: wanted.top as u32,
            first_keys: wanted.first_keys as u32,
            ..all
        };
        let keys = task.received.as_ref().map(|_| {
            let continued = part.chunk.rows.start > wanted.region.rows.start;
            let mut params = all;
            params.rules |= if continued { rules::CONTINUED } else { 0 };
            let columns = (kv_len as u32).div_ceil(LANES);
            part.tiles(Shader::InspectKeys, [1, columns], params)
        });
        let summaries = part.tiles(Shader::InspectRows, [rows, 1], summary);
        match (rows, kv_len) {
            // No row gives a mass, and every key has to hear of it.
            (0, _) => keys.into_iter().collect(),
            // No scores, and no key that receives a mass.
            (_, 0) => vec![summaries],
            _ => [scores, summaries].into_iter().chain(keys).collect(),
        }
    }

    fn dispatches_of_chunk(&self, _kernel: Kernel) -> usize {
        3
    }

    fn workgroups(&self, tiles: &Tiles, _kernel: Kernel) -> u64 {
        inspect::workgroups(tiles)
    }

    fn flops(&self, dims: &Dims, rows: f64) -> f64 {
        inspect::flops(dims, rows, dims.kv_len)
    }

    /// Without keys the summary of an empty row is written.
    fn is_empty(&self, _task: &Task) -> bool {
        false
    }

    /// Keys that no row gives a mass receive 0.
    fn writes_without_rows(&self, task: &Task) -> bool {
        task.received.is_some() && task.dims.kv_len > 0
    }

    fn describe(&self, task: &Task, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rows {
            region,
            top,
            first_keys,
        } = &self.0;
        task.describe_sizes(f)?;
        write!(
            f,
            "; summaries of {region}, {top} largest weights, {first_keys} first keys"
        )
    }
}

impl Problem {
    /// Validates the summaries of rows, over all their keys. `operands.output`
    /// receives them and has shape (batches, heads, rows, [`Rows::width`]), f32;
    /// [`RowSummary::decode`](crate::RowSummary::decode) reads them. Statistics are read as by
    /// [`Problem::inspect`], norms where given. `operands.received`, where given,
    /// receives the mass of each key, summed over the rows in their order:
    /// (batches, heads, Nk, 1), f32.
    ///
    /// A bounded part of the scores is held at a time, in the workspace.
    ///
    /// # Errors
    /// As [`Problem::inspect`].
    pub fn summarize(operands: &Operands<'_>, options: &Options, rows: Rows) -> Result<Problem> {
        Problem::new(operands, options, Arc::new(SummarizeRows(rows)))
    }
}
