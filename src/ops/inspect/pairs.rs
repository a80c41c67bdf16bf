//! A quantity of chosen pairs, from the rows' statistics.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::kernel::uniform::Params;
use crate::ops::checks::{missing, refuse_received};
use crate::ops::inspect;
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
use crate::rules::selection::{Pairs, Quantity};

#[derive(Debug)]
struct InspectPairs(Pairs);

impl Operation for InspectPairs {
    fn facts(&self) -> Facts {
        Facts {
            region: Some(self.0.region.clone()),
            loads_values: false,
            writes_stats: false,
            stage: self.0.quantity.code(),
            ..Facts::of(|kernel| vec![kernel.inspection()])
        }
    }

    fn output_shape(&self, operands: &Operands<'_>, dims: &Dims) -> Result<[usize; 4]> {
        let pairs = &self.0;
        pairs.check(dims)?;
        refuse_received(operands)?;
        if pairs.quantity.needs_stats() && operands.stats.is_none() {
            return Err(missing("stats", "the statistics of a forward pass"));
        }
        if pairs.quantity == Quantity::Contribution && operands.norms.is_none() {
            return Err(missing("norms", "norms of the values"));
        }
        inspect::output_shape(operands, dims, &pairs.region, pairs.keys.len())
    }

    fn dispatches(&self, part: &Part<'_>) -> Vec<Pass> {
        let keys = &self.0.keys;
        let (shader, params) = inspect::of_family(part);
        let params = Params {
            key_first: keys.start as u32,
            key_end: keys.end as u32,
            ..params
        };
        let tiles = [part.row_tiles(), part.key_tiles(keys.len())];
        vec![part.tiles(shader, tiles, params)]
    }

    fn workgroups(&self, tiles: &Tiles, _kernel: Kernel) -> u64 {
        inspect::workgroups(tiles)
    }

    fn flops(&self, dims: &Dims, rows: f64) -> f64 {
        inspect::flops(dims, rows, self.0.keys.len())
    }

    fn is_empty(&self, _task: &Task) -> bool {
        self.0.keys.is_empty()
    }

    fn describe(&self, task: &Task, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pairs {
            quantity,
            region,
            keys,
        } = &self.0;
        task.describe_sizes(f)?;
        write!(f, "; {quantity:?} of {region}, keys {keys:?}")
    }
}

impl Problem {
    /// Validates the computation of scores, weights or contributions of chosen
    /// pairs. `operands.output` receives them and has shape (batches, heads, rows,
    /// keys) of the selection, any storage type. Weights and contributions need the
    /// rows' statistics of a forward pass over the same operands in
    /// `operands.stats`, of either kind, which are read; contributions need norms
    /// in `operands.norms` too, (B, Hkv, Nk, 1) or (B, Hq, Nk, 1).
    ///
    /// Nothing else of the score matrix is held.
    ///
    /// # Errors
    /// As [`Problem::forward`]; [`Error::Value`](crate::Error::Value) if a range does not fit or
    /// statistics or norms are missing.
    pub fn inspect(operands: &Operands<'_>, options: &Options, pairs: Pairs) -> Result<Problem> {
        Problem::new(operands, options, Arc::new(InspectPairs(pairs)))
    }
}
