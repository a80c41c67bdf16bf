//! Blocking forms of the convenience layer, for native programs.

use crate::attention::Attention;
use crate::device::AdapterOptions;
use crate::error::Result;
use crate::host::{Inputs, Outputs, Tensor};
use crate::multi_head::{MultiHeadInputs, UploadedMultiHead};
use crate::options::Options;
use crate::problem::Region;
use crate::stage::Stage;
use crate::upload::Uploaded;

impl Attention {
    /// Blocking form of [`Attention::adapters_async`].
    pub fn adapters() -> Vec<wgpu::Adapter> {
        pollster::block_on(Attention::adapters_async())
    }

    /// A device of its own on the fastest adapter.
    ///
    /// # Errors
    /// As [`Attention::with_adapter_async`].
    pub fn on_default_adapter() -> Result<Attention> {
        Attention::with_adapter(&AdapterOptions::default())
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
