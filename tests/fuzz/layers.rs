//! Random multi-head layers on wgpu's noop backend.

use rand::RngExt;
use rand::rngs::StdRng;
use wgpu_attention::{
    DType, InProjections, Linear, MultiHeadOperands, MultiHeadPlan, PlanOptions, Result, Workspace,
};

use crate::calls::{Pool, Values, devices, dims, optional, options, view};
use crate::noop::Noop;
use crate::{fuzz, mostly, pick};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// One random layer up to its submission.
fn layer(rng: &mut StdRng, noop: &Noop, pool: &Pool, values: &Values) -> Result<()> {
    let one = rng.random_ratio(1, 4);
    let mut dims = dims(rng);
    let packed = rng.random_ratio(1, 3);
    let context = !packed && rng.random();
    if packed {
        dims.v_dim = dims.qk_dim;
    }
    if !context {
        dims.kv_len = dims.q_len;
    }
    let [width, source] = [pick(rng, &[1, 7, 16, 33]), pick(rng, &[1, 8, 20])];
    let source = if context { source } else { width };
    let dtype = pick(rng, &DTYPES);
    let mut options = options(rng);
    let queries = dims.q_heads.saturating_mul(dims.qk_dim);
    let keys = dims.kv_heads.saturating_mul(dims.qk_dim);
    let outputs = dims.kv_heads.saturating_mul(dims.v_dim);
    let heads = dims.q_heads.saturating_mul(dims.v_dim);
    let linear = |rng: &mut StdRng, out: usize, inputs: usize| -> Result<Linear<'_>> {
        let linear = Linear::new(view(rng, pool, one, dtype, [1, 1, out, inputs])?);
        match rng.random() {
            true => Ok(linear.bias(view(rng, pool, one, dtype, [1, 1, 1, out])?)),
            false => Ok(linear),
        }
    };
    let projections = match packed {
        true => {
            let all = queries.saturating_add(keys).saturating_add(outputs);
            InProjections::Packed(linear(rng, all, width)?)
        }
        false => InProjections::Separate {
            query: linear(rng, queries, width)?,
            key: linear(rng, keys, source)?,
            value: linear(rng, outputs, source)?,
        },
    };
    let last = linear(rng, 9, heads)?;
    let input = view(rng, pool, one, dtype, [dims.batch, 1, dims.q_len, width])?;
    let output = view(rng, pool, one, dtype, [dims.batch, 1, dims.q_len, 9])?;
    let mut operands = MultiHeadOperands::new(input, dims.q_heads, projections, last, output)
        .kv_heads(dims.kv_heads);
    if context {
        let shape = [dims.batch, 1, dims.kv_len, source];
        operands = operands.context(view(rng, pool, one, dtype, shape)?);
    }
    let mut refused = None;
    let operands = operands.attention(|a| {
        optional(rng, a, &mut options, pool, values, dims).unwrap_or_else(|error| {
            refused = Some(error);
            a
        })
    });
    if let Some(error) = refused {
        return Err(error);
    }
    let chosen = PlanOptions::default().shared_buffers(rng.random_ratio(1, 3));
    let plan = MultiHeadPlan::new(&operands, &options, noop.attention.caps(), &chosen)?;
    assert!(!plan.to_string().is_empty());
    if plan.dispatches() > 64 {
        return Ok(());
    }
    let bytes = mostly(rng, plan.workspace_bytes(), 20, &[0, 4]).max(4);
    let workspace = noop.buffer(bytes);
    let prepared = noop.attention.prepare_multi_head(&plan)?;
    let mut encoder = noop.device.create_command_encoder(&Default::default());
    let recorded = prepared.record(&mut encoder, &operands, Workspace::new(&workspace));
    noop.attention.queue().submit([encoder.finish()]);
    recorded
}

#[test]
fn random_layers_are_recorded_or_refused() {
    let devices = devices();
    let pools: Vec<Pool> = devices.iter().map(Pool::new).collect();
    let values = Values::new();
    fuzz(2000, |rng| {
        let n = rng.random_range(0..devices.len());
        let (noop, pool) = (&devices[n], &pools[n]);
        let result = layer(rng, noop, pool, &values);
        let uncaptured = noop.take_uncaptured();
        assert!(uncaptured.is_empty(), "{result:?}: {uncaptured:#?}");
        if let Err(error) = &result {
            assert!(!error.is_device(), "{error}");
        }
        result.is_ok()
    });
}
