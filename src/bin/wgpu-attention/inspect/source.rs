//! Where weights and contributions come from: the device, or the oracle.

use wgpu_attention::reference;
use wgpu_attention::{
    DType, Dims, Error, Inputs, Inspection, Options, Pairs, Stats, Tensor, UploadedInspection,
    gram_matrices,
};

use crate::backend::{Backend, beside_tuning, kernel_of, narrow};

/// Where probabilities come from: the CPU path never holds any, so that the oracle
/// stands in for it.
pub fn backend_of(backend: &Backend) -> &Backend {
    match backend {
        Backend::Cpu => &Backend::Oracle,
        other => other,
    }
}

/// Where the pairs of a call come from.
pub enum Source<'a> {
    /// With what is said of its kernel.
    Gpu(Box<UploadedInspection>, &'static str),
    Oracle {
        inputs: &'a Inputs<'a>,
        options: Options,
        norms: Vec<f32>,
        shape: [usize; 4],
    },
}

impl<'a> Source<'a> {
    /// Copies the inputs to the device, or computes norms on the host.
    pub fn new(
        backend: &Backend,
        inputs: &'a Inputs<'a>,
        options: &Options,
        output_weight: Option<Tensor<'_>>,
    ) -> Result<Source<'a>, Error> {
        if let Backend::Gpu(attention, plan) = backend {
            let inspection = Inspection {
                output_weight,
                plan: *plan,
                ..Inspection::default()
            };
            let uploaded = attention.upload_inspection(inputs, options, &inspection)?;
            return Ok(Source::Gpu(
                Box::new(uploaded),
                beside_tuning(attention, plan),
            ));
        }
        let dims = inputs.validate(options)?;
        let norms = norms(inputs, &dims, output_weight.as_ref())?;
        let heads = match output_weight {
            Some(_) => dims.q_heads,
            None => dims.kv_heads,
        };
        Ok(Source::Oracle {
            inputs,
            options: *options,
            norms,
            shape: [dims.batch, heads, dims.kv_len, 1],
        })
    }

    /// The kernel of the forward pass, with the reason for it.
    pub fn kernel(&self) -> Result<Option<String>, Error> {
        match self {
            Source::Gpu(uploaded, beside) => Ok(Some(kernel_of(&uploaded.forward_plan()?, beside))),
            Source::Oracle { .. } => Ok(None),
        }
    }

    /// A quantity of chosen pairs.
    pub fn pairs(&self, pairs: &Pairs) -> Result<Vec<f32>, Error> {
        match self {
            Source::Gpu(uploaded, _) => uploaded.pairs(pairs),
            Source::Oracle {
                inputs,
                options,
                norms,
                shape,
            } => {
                let norms = Tensor::f32(norms, *shape)?;
                let (stats, dtype) = (Stats::RowState, DType::F32);
                let found = reference::pairs(inputs, options, stats, Some(&norms), pairs, dtype)?;
                narrow("pairs", &found.values)
            }
        }
    }
}

/// |V_j| or |V_j W_O^(h)| of every key of every kv or query head.
fn norms(
    inputs: &Inputs<'_>,
    dims: &Dims,
    output_weight: Option<&Tensor<'_>>,
) -> Result<Vec<f32>, Error> {
    let (heads, width) = (dims.q_heads, dims.v_dim);
    let norms = match output_weight {
        None => reference::value_norms(&inputs.value)?,
        Some(weight) => {
            let gram = gram_matrices(weight, heads, width)?;
            let gram = Tensor::f32(&gram, [1, heads, width, width])?;
            reference::value_norms_through(&inputs.value, &gram)?
        }
    };
    narrow("norms", &norms.values)
}
