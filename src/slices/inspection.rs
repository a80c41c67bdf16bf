//! Inspection of slices: owns buffers, submits, waits.

use crate::error::{Error, Result};
use crate::host::inputs::Inputs;
use crate::host::row_summary::RowSummary;
use crate::host::tensor::Tensor;
use crate::memory::{collected, filled, room};
use crate::ops::norms::Norms;
use crate::ops::project::Projection;
use crate::plan::operands::Operands;
use crate::plan::plan::{Plan, PlanOptions};
use crate::plan::problem::Problem;
use crate::record::attention::Attention;
use crate::record::encode::Workspace;
use crate::rules::dims::Dims;
use crate::rules::options::Options;
use crate::rules::region::Region;
use crate::rules::selection::{Pairs, Rows};
use crate::slices::upload::{Buffers, Lists, Stored};
use crate::view::dtype::DType;
use crate::view::tensor::{Stats, TensorView};

/// What an inspection of slices is given beside the inputs of a forward pass.
#[derive(Debug, Clone, Copy, Default)]
pub struct Inspection<'a> {
    /// The log-sum-exp of a forward pass over the same inputs, (B, Hq, Nq) row by
    /// row; `None`: a forward pass is run for the rows' states. Whether it belongs to the
    /// inputs is told by [`UploadedInspection::check_lse_async`].
    ///
    /// A weight is off by as much as the log-sum-exp, relatively: one f32 of size L is
    /// rounded by up to 6e-8 L. Beside a bias of -1e9 on a whole row it has lost the log
    /// of the sum; states (`None`) have not.
    pub lse: Option<&'a [f32]>,
    /// W_O, (1, 1, E, Hq * Dv) as torch's `Linear` has it. With it a contribution is
    /// W(i, j) |V_j W_O^(h)|, without it W(i, j) |V_j|.
    pub output_weight: Option<Tensor<'a>>,
    /// How everything is planned.
    pub plan: PlanOptions,
}

/// Queries, keys, statistics and norms on the device: ask for pairs, rows and keys of
/// them as often as you like.
#[derive(Debug)]
pub struct UploadedInspection {
    attention: Attention,
    options: Options,
    plan: PlanOptions,
    dims: Dims,
    buffers: Buffers,
    lists: Lists,
    norms: Stored,
    lse: Option<Vec<f32>>,
}

impl Attention {
    /// Copies the inputs to the device, runs a forward pass for the rows' states unless a
    /// log-sum-exp is given, and computes the norms of the values.
    ///
    /// Holds, beside copies of the inputs, an output of the forward pass, a norm per
    /// key and head and, while norms through an output projection are made,
    /// (B, 1, Nk, Dv) numbers: nothing by pair.
    ///
    /// # Errors
    /// As [`Attention::upload`]; [`Error::Shape`] if the log-sum-exp or the weight does
    /// not fit the inputs.
    pub fn upload_inspection(
        &self,
        inputs: &Inputs<'_>,
        options: &Options,
        inspection: &Inspection<'_>,
    ) -> Result<UploadedInspection> {
        let dims = inputs.validate(options)?;
        let rows = [dims.batch, dims.q_heads, dims.q_len];
        if let Some(lse) = inspection.lse.filter(|lse| lse.len() != dims.rows()) {
            let expected = format!("{rows:?}, {} numbers", dims.rows());
            return Err(Error::shape("lse", expected, [lse.len()]));
        }
        let gram = match &inspection.output_weight {
            Some(weight) => {
                let needed = [dims.q_heads, dims.v_dim, dims.v_dim, 4]
                    .iter()
                    .fold(1u64, |n, &m| n.saturating_mul(m as u64));
                let limit = self.caps().max_buffer_size;
                if needed > limit {
                    return Err(Error::Limit {
                        what: "gram matrices of the output weight in bytes".to_owned(),
                        needed,
                        limit_name: "max_buffer_size",
                        limit,
                    });
                }
                Some(gram_matrices(weight, dims.q_heads, dims.v_dim)?)
            }
            None => None,
        };
        let stats = Some((rows, Stats::RowState));
        let mut buffers = self.store(inputs, dims.output_shape(), DType::F32, stats)?;
        if let Some(lse) = inspection.lse {
            let lse = bytemuck::cast_slice(lse);
            let buffer = self.filled("lse", lse, wgpu::BufferUsages::STORAGE)?;
            buffers.stats = Some((buffer, rows, Stats::Lse));
        }
        let by_query = gram.is_some();
        let heads = if by_query {
            dims.q_heads
        } else {
            dims.kv_heads
        };
        let uploaded = UploadedInspection {
            attention: self.clone(),
            options: *options,
            plan: inspection.plan,
            norms: self.store_output(DType::F32, [dims.batch, heads, dims.kv_len, 1])?,
            lists: Lists::of(inputs),
            lse: inspection.lse.map(<[f32]>::to_vec),
            dims,
            buffers,
        };
        if inspection.lse.is_none() {
            let operands = uploaded.buffers.operands(&uploaded.lists)?;
            uploaded.submit(&Problem::forward(&operands, options)?, &operands)?;
        }
        match gram {
            _ if uploaded.norms.shape.contains(&0) => {}
            None => uploaded.norms_of_values()?,
            Some(gram) => uploaded.norms_through(&gram)?,
        }
        Ok(uploaded)
    }
}

impl UploadedInspection {
    /// The plan of the forward pass behind the inspection.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn forward_plan(&self) -> Result<Plan> {
        let operands = self.buffers.operands(&self.lists)?;
        let problem = Problem::forward(&operands, &self.options)?;
        Plan::new(&problem, self.attention.caps(), &self.plan)
    }

    /// A quantity of chosen pairs, (batches, heads, rows, keys) of the selection,
    /// awaiting the device.
    ///
    /// # Errors
    /// As [`Problem::inspect`], [`Plan::new`] and [`Attention::prepare`];
    /// [`Error::Readback`] or [`Error::DeviceLost`].
    pub async fn pairs_async(&self, pairs: &Pairs) -> Result<Vec<f32>> {
        pairs.check(&self.dims)?;
        let [batches, heads, rows] = pairs.region.lens();
        let shape = [batches, heads, rows, pairs.keys.len()];
        let output = self.attention.store_output(DType::F32, shape)?;
        let mut operands = self.operands()?;
        operands.output = output.view()?;
        self.submit(
            &Problem::inspect(&operands, &self.options, pairs.clone())?,
            &operands,
        )?;
        self.read(&output).await
    }

    /// Summaries of rows, those of a head after each other, awaiting the device.
    ///
    /// # Errors
    /// As [`Problem::summarize`] and [`UploadedInspection::pairs_async`].
    pub async fn rows_async(&self, rows: &Rows) -> Result<Vec<RowSummary>> {
        let (output, _) = self.summarize(rows, false)?;
        let bytes = output.read_bytes(&self.attention).await?;
        self.attention.check_faults()?;
        let words = bytes.chunks_exact(4);
        let words = words.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let words: Vec<u32> = collected("rows", words)?;
        let mut summaries = room("rows", &rows.region.lens())?;
        for row in words.chunks_exact(rows.width()) {
            summaries.push(RowSummary::decode(row)?);
        }
        Ok(summaries)
    }

    /// The mass that each key receives, the sum of its weights over the rows of
    /// `region`: (batches, heads, Nk), awaiting the device.
    ///
    /// # Errors
    /// As [`UploadedInspection::rows_async`].
    pub async fn received_async(&self, region: &Region) -> Result<Vec<f32>> {
        let rows = Rows {
            region: region.clone(),
            top: 1,
            first_keys: 0,
        };
        match self.summarize(&rows, true)? {
            (_, Some(received)) => self.read(&received).await,
            (_, None) => Ok(Vec::new()),
        }
    }

    /// Checks that the log-sum-exp belongs to the queries and keys, for the rows of
    /// `region`: the weights of a row with visible keys and its sink's sum to 1 within
    /// `tolerance`; a row without has a log-sum-exp of -inf, or of its sink. Rows whose
    /// scores are NaN are passed over.
    ///
    /// An LSE that is off by d moves the sum by about d: a tolerance of 1e-3 leaves
    /// room for scores computed in another order, and none for other keys.
    ///
    /// # Errors
    /// [`Error::Value`] that names the first row that does not fit; else as
    /// [`UploadedInspection::rows_async`].
    pub async fn check_lse_async(&self, region: &Region, tolerance: f32) -> Result<()> {
        let rows = Rows {
            region: region.clone(),
            top: 1,
            first_keys: 0,
        };
        if !(tolerance.is_finite() && tolerance >= 0.0) {
            let expected = "a finite number of at least 0";
            return Err(Error::value("tolerance", expected, tolerance));
        }
        let summaries = self.rows_async(&rows).await?;
        let [_, heads, count] = region.lens();
        for (n, row) in summaries.iter().enumerate() {
            let at = [
                region.batches.start + n / (heads * count),
                region.heads.start + n / count % heads,
                region.rows.start + n % count,
            ];
            let [b, h, i] = at;
            let sink = self.lists.sinks.as_ref().map(|sinks| sinks[h]);
            let is_empty = row.visible == 0.0 && sink.is_none_or(|s| s == f32::NEG_INFINITY);
            if is_empty {
                let given = self.lse.as_ref();
                let given = given.map(|lse| lse[(b * self.dims.q_heads + h) * self.dims.q_len + i]);
                if let Some(lse) = given.filter(|&lse| lse != f32::NEG_INFINITY) {
                    let expected = format!("-inf for row {at:?}, which sees no key");
                    return Err(Error::value("lse", expected, lse));
                }
                continue;
            }
            let sum = row.mass + row.sink_mass;
            // Not `>`: a sum that is NaN fails.
            let fits = (sum - 1.0).abs() <= tolerance;
            if !fits && !row.score_mean.is_nan() {
                let expected = format!(
                    "that of these queries and keys (weights of row {at:?} that sum to 1 within {tolerance})"
                );
                return Err(Error::value("lse", expected, format!("a sum of {sum}")));
            }
        }
        Ok(())
    }

    fn summarize(&self, rows: &Rows, receives: bool) -> Result<(Stored, Option<Stored>)> {
        rows.check(&self.dims)?;
        let [batches, heads, count] = rows.region.lens();
        let shape = [batches, heads, count, rows.width()];
        let output = self.attention.store_output(DType::F32, shape)?;
        let received = match receives {
            false => None,
            true => {
                let shape = [batches, heads, self.dims.kv_len, 1];
                Some(self.attention.store_output(DType::F32, shape)?)
            }
        };
        let mut operands = self.operands()?;
        operands.output = output.view()?;
        operands.received = received.as_ref().map(Stored::view).transpose()?;
        self.submit(
            &Problem::summarize(&operands, &self.options, rows.clone())?,
            &operands,
        )?;
        Ok((output, received))
    }

    /// |V_j|.
    fn norms_of_values(&self) -> Result<()> {
        let norms = Norms {
            value: self.buffers.value.view()?,
            through: None,
            output: self.norms.view()?,
        };
        self.submit(&Problem::norms(&norms)?, &norms.operands())
    }

    /// |V_j W_O^(h)|, head by head through one buffer.
    fn norms_through(&self, gram: &[f32]) -> Result<()> {
        let Dims {
            batch,
            q_heads,
            kv_heads,
            kv_len,
            v_dim,
            ..
        } = self.dims;
        let attention = &self.attention;
        let storage = wgpu::BufferUsages::STORAGE;
        let gram = attention.filled("gram matrices", bytemuck::cast_slice(gram), storage)?;
        let through = attention.store_output(DType::F32, [batch, 1, kv_len, v_dim])?;
        for head in 0..q_heads {
            let matrix = TensorView::bhsd(
                &gram,
                DType::F32,
                [1, 1, v_dim, v_dim],
                head * v_dim * v_dim,
            )?;
            let value = one_head(&self.buffers.value, head / (q_heads / kv_heads))?;
            let projection = Projection {
                input: value,
                weight: matrix,
                bias: None,
                output: through.view()?,
            };
            self.submit(&Problem::projection(&projection)?, &projection.operands()?)?;
            let norms = Norms {
                value,
                through: Some(through.view()?),
                output: one_head(&self.norms, head)?,
            };
            self.submit(&Problem::norms(&norms)?, &norms.operands())?;
        }
        Ok(())
    }

    /// What every inspection reads.
    fn operands(&self) -> Result<Operands<'_>> {
        let operands = self.buffers.operands(&self.lists)?;
        Ok(operands.norms(self.norms.view()?))
    }

    fn submit(&self, problem: &Problem, operands: &Operands<'_>) -> Result<()> {
        let attention = &self.attention;
        let plan = Plan::new(problem, attention.caps(), &self.plan)?;
        let workspace = match plan.workspace_bytes() {
            0 => None,
            bytes => {
                let usage = wgpu::BufferUsages::STORAGE;
                Some(attention.empty("inspection workspace", bytes, usage)?)
            }
        };
        let prepared = attention.prepare(&plan)?;
        let mut encoder = attention
            .device()
            .create_command_encoder(&Default::default());
        let workspace = workspace.as_ref().map(Workspace::new);
        prepared.record(&mut encoder, operands, workspace)?;
        attention.queue().submit([encoder.finish()]);
        Ok(())
    }

    async fn read(&self, stored: &Stored) -> Result<Vec<f32>> {
        let numbers = stored.read(&self.attention).await?;
        self.attention.check_faults()?;
        Ok(numbers)
    }
}

/// A head of a tensor, (B, 1, N, D).
fn one_head(stored: &Stored, head: usize) -> Result<TensorView<'_>> {
    let [batch, _, rows, width] = stored.shape;
    let whole = stored.view()?;
    let offset = head * rows * width;
    let shape = [batch, 1, rows, width];
    TensorView::strided(&stored.buffer, stored.dtype, shape, whole.strides, offset)
}

/// The Gram matrices G_h = W_O^(h) W_O^(h)^T of an output projection, (1, Hq, Dv, Dv),
/// from W_O, (1, 1, E, Hq * Dv) as torch's `Linear` has it, summed in f64:
/// |v W_O^(h)|^2 = v G_h v^T, whose cost does not grow with the model's width E.
///
/// Where a value lies in the null space of W_O^(h), a square near 0 is what is left of
/// numbers of the size of |v|^2 |G_h|: the norm is then right to about
/// 2^-12 |v| |W_O^(h)|, and no better.
///
/// # Errors
/// [`Error::Shape`] if the weight is not that wide, [`Error::HostMemory`] if there is no
/// memory for the matrices.
pub fn gram_matrices(weight: &Tensor<'_>, heads: usize, v_dim: usize) -> Result<Vec<f32>> {
    let [one, one_more, outputs, width] = weight.shape();
    let fits = v_dim > 0 && Some(width) == heads.checked_mul(v_dim);
    if (one, one_more) != (1, 1) || !fits {
        let expected = format!("(1, 1, E, {heads} heads of {v_dim})");
        return Err(Error::shape("output weight", expected, weight.shape()));
    }
    let mut gram = room("gram matrices", &[v_dim, width])?;
    let data = weight.data();
    let mut of_head: Vec<f64> = room("output weight of a head", &[outputs, v_dim])?;
    let mut sums = filled("gram matrices", &[v_dim], 0f64)?;
    for head in 0..heads {
        of_head.clear();
        let columns =
            (0..outputs).flat_map(|e| e * width + head * v_dim..e * width + (head + 1) * v_dim);
        of_head.extend(columns.map(|n| f64::from(data.get(n))));
        let rows = || of_head.chunks_exact(v_dim);
        for a in 0..v_dim {
            sums.fill(0.0);
            for row in rows() {
                sums.iter_mut()
                    .zip(row)
                    .for_each(|(sum, b)| *sum += row[a] * b);
            }
            gram.extend(sums.iter().map(|&sum| sum as f32));
        }
    }
    Ok(gram)
}
