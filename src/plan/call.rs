//! A call's operands, validated.

use crate::error::{Error, Result};
use crate::plan::lists::collect_lists;
use crate::plan::operands::Operands;
use crate::plan::operation::Operation;
use crate::plan::spans::NamedSpans;
use crate::rules::dims::Dims;
use crate::rules::options::Options;
use crate::view::aliasing::{check_overlap, check_usage, check_writable};
use crate::view::dtype::DType;
use crate::view::geometry::{Geometry, MaskGeometry};
use crate::view::lists::ListRefs;
use crate::view::tensor::{Stats, TensorView};

/// A validated call as its operands have it, nothing owned: what a problem is
/// made from, and what a later call is compared with. Making one allocates
/// nothing unless it fails.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub dims: Dims,
    pub query: (Geometry, DType),
    pub key: (Geometry, DType),
    pub value: (Geometry, DType),
    pub output: (Geometry, DType),
    pub bias: Option<(Geometry, DType)>,
    pub mask: Option<MaskGeometry>,
    pub stats: Option<(Geometry, Stats)>,
    pub norms: Option<Geometry>,
    pub received: Option<Geometry>,
    pub lists: ListRefs<'a>,
    pub shared: bool,
}

impl<'a> Call<'a> {
    /// Validates the operands of a call for an operation.
    pub fn new(
        operands: &Operands<'a>,
        options: &Options,
        operation: &dyn Operation,
    ) -> Result<Self> {
        options.validate()?;
        let Operands {
            query,
            key,
            value,
            output,
            ..
        } = operands;
        let dims = Dims::new(query.shape, key.shape, value.shape)?;
        if key.dtype != value.dtype {
            let expected = format!("the key's storage type {:?}", key.dtype);
            return Err(Error::value(
                "value",
                expected,
                format!("{:?}", value.dtype),
            ));
        }
        let output_shape = operation.output_shape(operands, &dims)?;
        if output.shape != output_shape {
            let expected = format!("{output_shape:?}");
            return Err(Error::shape("output", expected, output.shape));
        }
        let tensors = [
            ("query", query),
            ("key", key),
            ("value", value),
            ("output", output),
        ];
        for (operand, view) in tensors {
            if view.shape[3] > 1 && view.strides[3] != 1 {
                return Err(Error::Layout {
                    operand,
                    expected: "a contiguous last axis (stride 1)".to_owned(),
                    actual: format!("strides {:?}", view.strides),
                });
            }
        }
        check_writable("output", output)?;
        if let Some(received) = &operands.received {
            check_writable("received", received)?;
        }
        if let Some(bias) = &operands.bias {
            dims.check_pairs("bias", bias.shape)?;
        }
        if let Some(mask) = &operands.mask {
            dims.check_pairs("mask", mask.shape)?;
        }
        if let Some(stats) = &operands.stats {
            let expected = [dims.batch, dims.q_heads, dims.q_len];
            if stats.shape != expected {
                return Err(Error::shape("stats", format!("{expected:?}"), stats.shape));
            }
        }
        let lists = collect_lists(operands, options, &dims)?;
        let spans = NamedSpans::of(operands, operation.facts().writes_stats);
        check_usage(&spans)?;
        let shared = check_overlap(&spans)?;
        let placed = |view: &TensorView<'_>| (Geometry::of(view), view.dtype);
        Ok(Call {
            dims,
            query: placed(query),
            key: placed(key),
            value: placed(value),
            output: placed(output),
            bias: operands.bias.as_ref().map(placed),
            mask: operands.mask.as_ref().map(MaskGeometry::of),
            stats: operands.stats.as_ref().map(|s| {
                let shape = s.storage_shape();
                let strides = crate::view::extent::contiguous(shape);
                let geometry = Geometry::new(shape, strides, 4, s.span().bytes.start);
                (geometry, s.kind)
            }),
            norms: operands.norms.as_ref().map(Geometry::of),
            received: operands.received.as_ref().map(Geometry::of),
            lists,
            shared,
        })
    }
}
