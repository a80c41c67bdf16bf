//! A multi-head layer that owns its operands, and how it is computed on the host.

use wgpu_attention::{
    DType, Error, HostLinear, MultiHeadInputs, Options, Polarity, Tensor, cpu, reference,
};

use crate::array::{Array, swap_middle};
use crate::backend::narrow;
use crate::case::{Problem, mask_of};

/// One multi-head layer with everything that it reads.
#[derive(Debug, Clone)]
pub struct Layer {
    /// X, (B, Nq, width).
    pub input: Array,
    /// C, (B, Nk, width of its own), where keys and values come from another sequence.
    pub context: Option<Array>,
    pub q_heads: usize,
    pub kv_heads: usize,
    /// W_Q, W_K, W_V and W_O.
    pub projections: [Linear; 4],
    /// BOOL, four axes, broadcastable to (B, Hq, Nq, Nk); true takes part.
    pub mask: Option<Array>,
    /// Attention's.
    pub options: Options,
}

/// y = x W^T + b.
#[derive(Debug, Clone)]
pub struct Linear {
    /// (out, in).
    pub weight: Array,
    /// (out).
    pub bias: Option<Array>,
}

impl Linear {
    fn inputs(&self, which: &str) -> Result<HostLinear<'_>, String> {
        let (weight, bias) = (format!("W_{which}"), format!("b_{which}"));
        let of_bias = |array| Array::with_axes(array, &bias, |[out]| [1, 1, 1, out]);
        Ok(HostLinear {
            weight: (self.weight).with_axes(&weight, |[out, into]| [1, 1, out, into])?,
            bias: self.bias.as_ref().map(of_bias).transpose()?,
        })
    }
}

impl Layer {
    /// The layer as the library takes it.
    pub fn inputs(&self) -> Result<MultiHeadInputs<'_>, String> {
        let [query, key, value, output] = &self.projections;
        let projections = [
            query.inputs("q")?,
            key.inputs("k")?,
            value.inputs("v")?,
            output.inputs("o")?,
        ];
        let input = tokens(&self.input, "X")?;
        let mut inputs =
            MultiHeadInputs::new(input, self.q_heads, projections).kv_heads(self.kv_heads);
        if let Some(context) = &self.context {
            inputs = inputs.context(tokens(context, "context")?);
        }
        if let Some(mask) = &self.mask {
            let mask = mask_of(mask, Polarity::Keep)?;
            inputs = inputs.attention(|a| a.mask(mask));
        }
        Ok(inputs)
    }

    /// The attention inside the layer: queries, keys and values projected on the
    /// host in f64 and rounded to f32.
    pub fn attention(&self) -> Result<Problem, String> {
        let heads = heads(&self.inputs()?).map_err(|e| e.to_string())?;
        let [query, key, value] = heads.map(|heads| Array::f32(&heads.shape, heads.values));
        let mut problem = Problem::new(query, key, value, self.options);
        problem.mask = self.mask.clone();
        problem.output_weight = Some(self.projections[3].weight.clone());
        Ok(problem)
    }
}

fn tokens<'a>(array: &'a Array, name: &str) -> Result<Tensor<'a>, String> {
    array.with_axes(name, |[batch, rows, width]| [batch, 1, rows, width])
}

/// Y, (B, Nq, width), without an adapter: the plain f32 attention between
/// projections in f64.
pub fn on_cpu(
    inputs: &MultiHeadInputs<'_>,
    options: &Options,
    output: DType,
) -> Result<Vec<f32>, Error> {
    let d = inputs.dims()?.attention;
    let [query, key, value] = &heads(inputs)?;
    let attention = inputs.attention_of(query.view()?, key.view()?, value.view()?);
    let outputs = cpu::forward(&attention, options)?;
    let rows = swap_middle(&outputs.output, d.output_shape())?;
    let rows = Tensor::f32(&rows, [d.batch, 1, d.q_len, d.q_heads * d.v_dim])?;
    let last = &inputs.output;
    let projected = reference::project(&rows, &last.weight, last.bias.as_ref(), output)?;
    narrow("output", &projected.values)
}

/// Queries, keys or values of every head, (B, H, N, D).
struct Heads {
    values: Vec<f32>,
    shape: [usize; 4],
}

impl Heads {
    fn view(&self) -> Result<Tensor<'_>, Error> {
        Tensor::f32(&self.values, self.shape)
    }
}

/// Queries, keys and values, projected in f64 and rounded to f32.
fn heads(inputs: &MultiHeadInputs<'_>) -> Result<[Heads; 3], Error> {
    let d = inputs.dims()?.attention;
    let project = |rows: &Tensor<'_>, linear: &HostLinear<'_>, heads: usize, dim: usize| {
        let [batch, _, count, _] = rows.shape();
        let bias = linear.bias.as_ref();
        let projected = reference::project(rows, &linear.weight, bias, DType::F32)?;
        let values = narrow("projection", &projected.values)?;
        Ok(Heads {
            values: swap_middle(&values, [batch, count, heads, dim])?,
            shape: [batch, heads, count, dim],
        })
    };
    let source = inputs.context.unwrap_or(inputs.input);
    Ok([
        project(&inputs.input, &inputs.query, d.q_heads, d.qk_dim)?,
        project(&source, &inputs.key, d.kv_heads, d.qk_dim)?,
        project(&source, &inputs.value, d.kv_heads, d.v_dim)?,
    ])
}
