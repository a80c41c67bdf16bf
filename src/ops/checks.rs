//! Checks of operands that several operations make.

use crate::error::{Error, Result};
use crate::plan::operands::Operands;
use crate::view::dtype::DType;
use crate::view::tensor::TensorView;

pub(crate) fn check_f32(operand: &'static str, view: &TensorView<'_>) -> Result<()> {
    match view.dtype {
        DType::F32 => Ok(()),
        other => Err(Error::value(operand, "F32", format!("{other:?}"))),
    }
}

/// Refuses what an inspection alone has.
pub(crate) fn refuse_inspection(operands: &Operands<'_>) -> Result<()> {
    let only = "none: only an inspection reads them";
    refuse("norms", &operands.norms, only)?;
    refuse_received(operands)
}

/// Refuses what summaries of rows alone have.
pub(crate) fn refuse_received(operands: &Operands<'_>) -> Result<()> {
    let only = "none: only summaries of rows write it";
    refuse("received", &operands.received, only)
}

fn refuse(operand: &'static str, view: &Option<TensorView<'_>>, expected: &str) -> Result<()> {
    match view {
        None => Ok(()),
        Some(view) => Err(Error::value(
            operand,
            expected,
            format!("a tensor of shape {:?}", view.shape),
        )),
    }
}

pub(crate) fn missing(operand: &'static str, expected: &str) -> Error {
    Error::value(operand, expected, "none")
}
