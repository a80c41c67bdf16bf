//! Blocking forms of the convenience layer, for native programs.

use crate::error::Result;
use crate::host::inputs::{Inputs, Outputs};
use crate::host::layer::MultiHeadInputs;
use crate::host::row_summary::RowSummary;
use crate::host::tensor::Tensor;
use crate::record::attention::Attention;
use crate::rules::options::Options;
use crate::rules::region::Region;
use crate::rules::score_stage::Stage;
use crate::rules::selection::{Pairs, Rows};
use crate::slices::device::AdapterOptions;
use crate::slices::inspection::UploadedInspection;
use crate::slices::layer::UploadedMultiHead;
use crate::slices::upload::Uploaded;

impl Attention {
    /// Blocking form of [`Attention::adapters_async`].
    pub fn adapters() -> Vec<wgpu::Adapter> {
        pollster::block_on(Attention::adapters_async())
    }

    /// A device of its own on the fastest adapter, of an instance of this crate's own.
    /// Buffers of another instance cannot be used with it, and wgpu cannot tell them from
    /// its own: where you have an instance, take [`Attention::on_adapter`] or
    /// [`Attention::new`].
    ///
    /// # Errors
    /// As [`Attention::with_adapter_async`].
    pub fn on_default_adapter() -> Result<Attention> {
        Attention::with_adapter(&AdapterOptions::default())
    }

    /// Blocking form of [`Attention::on_adapter_async`].
    ///
    /// # Errors
    /// As there.
    pub fn on_adapter(adapter: &wgpu::Adapter) -> Result<Attention> {
        pollster::block_on(Attention::on_adapter_async(adapter))
    }

    /// Blocking form of [`Attention::with_adapter_async`].
    ///
    /// # Errors
    /// As there.
    pub fn with_adapter(options: &AdapterOptions) -> Result<Attention> {
        pollster::block_on(Attention::with_adapter_async(options))
    }

    /// Attention of query, key and value alone.
    ///
    /// # Errors
    /// As [`Attention::run_async`].
    pub fn forward(
        &self,
        query: &Tensor<'_>,
        key: &Tensor<'_>,
        value: &Tensor<'_>,
        options: &Options,
    ) -> Result<Outputs> {
        self.run(&Inputs::new(*query, *key, *value), options)
    }

    /// Attention with every operand.
    ///
    /// # Errors
    /// As [`Attention::run_async`].
    pub fn run(&self, inputs: &Inputs<'_>, options: &Options) -> Result<Outputs> {
        pollster::block_on(self.run_async(inputs, options))
    }

    /// Blocking form of [`Attention::multi_head_async`].
    ///
    /// # Errors
    /// As there.
    pub fn multi_head(&self, inputs: &MultiHeadInputs<'_>, options: &Options) -> Result<Vec<f32>> {
        pollster::block_on(self.multi_head_async(inputs, options))
    }

    /// Blocking form of [`Attention::stage_async`].
    ///
    /// # Errors
    /// As there.
    pub fn stage(
        &self,
        inputs: &Inputs<'_>,
        options: &Options,
        stage: Stage,
        region: &Region,
    ) -> Result<Vec<f32>> {
        pollster::block_on(self.stage_async(inputs, options, stage, region))
    }
}

impl UploadedMultiHead {
    /// Blocking form of [`UploadedMultiHead::read_async`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&self) -> Result<Vec<f32>> {
        pollster::block_on(self.read_async())
    }
}

impl UploadedInspection {
    /// Blocking form of [`UploadedInspection::pairs_async`].
    ///
    /// # Errors
    /// As there.
    pub fn pairs(&self, pairs: &Pairs) -> Result<Vec<f32>> {
        pollster::block_on(self.pairs_async(pairs))
    }

    /// Blocking form of [`UploadedInspection::rows_async`].
    ///
    /// # Errors
    /// As there.
    pub fn rows(&self, rows: &Rows) -> Result<Vec<RowSummary>> {
        pollster::block_on(self.rows_async(rows))
    }

    /// Blocking form of [`UploadedInspection::received_async`].
    ///
    /// # Errors
    /// As there.
    pub fn received(&self, region: &Region) -> Result<Vec<f32>> {
        pollster::block_on(self.received_async(region))
    }

    /// Blocking form of [`UploadedInspection::check_lse_async`].
    ///
    /// # Errors
    /// As there.
    pub fn check_lse(&self, region: &Region, tolerance: f32) -> Result<()> {
        pollster::block_on(self.check_lse_async(region, tolerance))
    }
}

impl Uploaded {
    /// Blocking form of [`Uploaded::read_async`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&self) -> Result<Outputs> {
        pollster::block_on(self.read_async())
    }

    /// Blocking form of [`Uploaded::run_async`].
    ///
    /// # Errors
    /// As there.
    pub fn run(&self) -> Result<std::time::Duration> {
        pollster::block_on(self.run_async())
    }
}
