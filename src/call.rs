//! A call's operands, validated.

use crate::error::{Error, Result};
use crate::host::{DType, Dims};
use crate::inspect;
use crate::lists::{ListRefs, collect_lists};
use crate::operands::Operands;
use crate::options::Options;
use crate::problem::{Geometry, Goal, MaskGeometry};
use crate::spans::{NamedSpans, check_overlap, check_usage, check_writable};
use crate::tensor::{Stats, TensorView};

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
    /// Validates the operands of a call for a goal.
    pub fn new(operands: &Operands<'a>, options: &Options, goal: &Goal) -> Result<Self> {
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
        let of_inspection = inspect::output_shape(goal, operands, &dims)?;
        let output_shape = match goal {
            Goal::Forward => dims.output_shape(),
            Goal::Projection => [dims.batch, dims.q_heads, dims.q_len, dims.kv_len],
            Goal::Stage(_, region) => {
                region.check(&dims)?;
                if output.dtype != DType::F32 {
                    let actual = format!("{:?}", output.dtype);
                    return Err(Error::value("output", "F32 for a stage", actual));
                }
                let [batches, heads, rows] = region.lens();
                [batches, heads, rows, dims.kv_len]
            }
            Goal::Pairs(_) | Goal::Rows(_) | Goal::Norms => of_inspection.unwrap_or_default(),
        };
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
        let spans = NamedSpans::of(operands, goal);
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
                let strides = crate::place::contiguous(shape);
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
