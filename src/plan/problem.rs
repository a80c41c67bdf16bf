//! A problem: validated numbers, no buffers.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::plan::call::Call;
use crate::plan::operands::Operands;
use crate::plan::operation::{Operation, OperationRef};
use crate::rules::dims::Dims;
use crate::rules::options::Options;
use crate::view::dtype::DType;
use crate::view::geometry::{Geometry, MaskGeometry};
use crate::view::lists::{ListKind, ListSource};
use crate::view::tensor::Stats;

/// A validated attention call: sizes, options, strides, storage types; no
/// buffers. Made from [`Operands`], turned into a [`crate::Plan`].
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    pub(crate) operation: OperationRef,
    pub(crate) dims: Dims,
    pub(crate) options: Options,
    pub(crate) query: Geometry,
    pub(crate) query_dtype: DType,
    pub(crate) key: Geometry,
    pub(crate) value: Geometry,
    pub(crate) kv_dtype: DType,
    pub(crate) output: Geometry,
    pub(crate) output_dtype: DType,
    pub(crate) bias: Option<(Geometry, DType)>,
    pub(crate) mask: Option<MaskGeometry>,
    pub(crate) stats: Option<(Geometry, Stats)>,
    pub(crate) norms: Option<Geometry>,
    pub(crate) received: Option<Geometry>,
    pub(crate) lists: Vec<(ListKind, ListSource)>,
    /// An input lies in a buffer that is also written.
    pub(crate) shared: bool,
}

impl Problem {
    pub(crate) fn new(
        operands: &Operands<'_>,
        options: &Options,
        operation: Arc<dyn Operation>,
    ) -> Result<Problem> {
        let operation = OperationRef(operation);
        let call = Call::new(operands, options, &*operation)?;
        let lists = ListKind::ALL.into_iter().zip(call.lists);
        Ok(Problem {
            operation,
            dims: call.dims,
            options: *options,
            query: call.query.0,
            query_dtype: call.query.1,
            key: call.key.0,
            value: call.value.0,
            kv_dtype: call.key.1,
            output: call.output.0,
            output_dtype: call.output.1,
            bias: call.bias,
            mask: call.mask,
            stats: call.stats,
            norms: call.norms,
            received: call.received,
            lists: lists
                .filter_map(|(kind, list)| Some((kind, list?.to_owned())))
                .collect(),
            shared: call.shared,
        })
    }

    /// The sizes.
    pub fn dims(&self) -> Dims {
        self.dims
    }

    /// The options.
    pub fn options(&self) -> Options {
        self.options
    }

    /// Whether an input lies in a buffer that is also written, so that every
    /// buffer has to be bound read_write.
    pub fn shares_buffers(&self) -> bool {
        self.shared
    }

    /// Floating-point operations by the usual count, 4 B Hq Nq Nk D with
    /// (Dqk + Dv) / 2 for D, masks not considered; of a projection 2 B N in out; of chosen pairs their
    /// scores alone.
    pub fn flops(&self) -> f64 {
        let rows = match self.operation.region() {
            Some(region) => region.lens().iter().map(|&n| n as f64).product(),
            None => self.dims.rows() as f64,
        };
        self.operation.flops(&self.dims, rows)
    }

    /// Whether there is a norm for every query head and not for every kv head.
    pub(crate) fn norms_by_query(&self) -> bool {
        let by = |norms: &Geometry| norms.shape[1] == self.dims.q_heads;
        self.norms.as_ref().is_some_and(by)
    }

    pub(crate) fn describe_sizes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = &self.dims;
        write!(
            f,
            "B {} Hq {} Hkv {} Nq {} Nk {} Dqk {} Dv {}, query {:?}, key and value {:?}, output {:?}",
            d.batch,
            d.q_heads,
            d.kv_heads,
            d.q_len,
            d.kv_len,
            d.qk_dim,
            d.v_dim,
            self.query_dtype,
            self.kv_dtype,
            self.output_dtype
        )
    }

    pub(crate) fn list(&self, kind: ListKind) -> Option<&ListSource> {
        let found = self.lists.iter().find(|(k, _)| *k == kind);
        found.map(|(_, source)| source)
    }

    pub(crate) fn has_device_lists(&self) -> bool {
        let is_buffer = |(_, source): &(_, ListSource)| matches!(source, ListSource::Buffer { .. });
        self.lists.iter().any(is_buffer)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operation.describe(self, f)
    }
}
