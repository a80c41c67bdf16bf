//! One stage of attention, for the pairs of a region.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::kernel::shader::Shader;
use crate::ops::checks::refuse_inspection;
use crate::plan::caps::DeviceCaps;
use crate::plan::dispatch::Pass;
use crate::plan::kernel::Kernel;
use crate::plan::operands::Operands;
use crate::plan::operation::Operation;
use crate::plan::passes::Part;
use crate::plan::problem::Problem;
use crate::plan::task::{Facts, Scores, Task};
use crate::plan::tiling::Tiles;
use crate::rules::dims::Dims;
use crate::rules::options::Options;
use crate::rules::region::Region;
use crate::rules::score_stage::Stage;
use crate::view::dtype::DType;

/// The staged path up to the stage that is asked for, its scores in the output.
#[derive(Debug)]
struct ScoreStage {
    stage: Stage,
    region: Region,
}

impl Operation for ScoreStage {
    fn facts(&self) -> Facts {
        Facts {
            region: Some(self.region.clone()),
            scores: Scores::Output,
            stage: self.stage as u32,
            ..Facts::of(|_| vec![Shader::StagedScores, Shader::StagedSoftmax])
        }
    }

    fn output_shape(&self, operands: &Operands<'_>, dims: &Dims) -> Result<[usize; 4]> {
        refuse_inspection(operands)?;
        self.region.check(dims)?;
        if operands.output.dtype != DType::F32 {
            let actual = format!("{:?}", operands.output.dtype);
            return Err(Error::value("output", "F32 for a stage", actual));
        }
        let [batches, heads, rows] = self.region.lens();
        Ok([batches, heads, rows, dims.kv_len])
    }

    fn dispatches(&self, part: &Part<'_>) -> Vec<Pass> {
        let mut passes = vec![part.scores(Shader::StagedScores)];
        if self.stage != Stage::Raw {
            passes.push(part.rows(Shader::StagedSoftmax));
        }
        passes
    }

    fn dispatches_of_chunk(&self, _kernel: Kernel) -> usize {
        3
    }

    fn workgroups(&self, tiles: &Tiles, kernel: Kernel) -> u64 {
        (kernel.row().workgroups)(tiles)
    }

    fn flops(&self, dims: &Dims, rows: f64) -> f64 {
        2.0 * (rows * dims.kv_len as f64) * (dims.qk_dim + dims.v_dim) as f64
    }

    fn choose(
        &self,
        _task: &Task,
        _caps: &DeviceCaps,
        forced: Option<Kernel>,
    ) -> Result<(Kernel, String)> {
        match forced {
            None | Some(Kernel::Staged) => Ok((Kernel::Staged, "scores are asked for".to_owned())),
            Some(kernel) => Err(Error::value(
                "kernel",
                "Staged, the only one that writes scores",
                format!("{kernel:?}"),
            )),
        }
    }

    fn describe(&self, task: &Task, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        task.describe_sizes(f)?;
        write!(f, "; {:?} of {}", self.stage, self.region)
    }
}

impl Problem {
    /// Validates the computation of one stage (scores or probabilities) of a
    /// region; `operands.output` receives it and has shape (batches, heads,
    /// rows, Nk), f32.
    ///
    /// # Errors
    /// As [`Problem::forward`]; [`Error::Value`] if the region does not fit.
    pub fn stage(
        operands: &Operands<'_>,
        options: &Options,
        stage: Stage,
        region: Region,
    ) -> Result<Problem> {
        Problem::new(operands, options, Arc::new(ScoreStage { stage, region }))
    }
}
