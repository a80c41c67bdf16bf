//! One dispatch of a plan.

use crate::kernel::shader::{Shader, Slot};
use crate::kernel::specialization::Specialization;
use crate::kernel::uniform::{CopyParams, Params};

/// The part of an operand that a pass binds, in bytes from the operand's
/// aligned start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bind {
    pub slot: Slot,
    /// `None`: the slot is not used and gets an idle buffer.
    pub range: Option<(u64, u64)>,
}

/// The uniform of a pass.
// A plan has few of them, all but the copies large.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Uniform {
    Attention(Params),
    Copy(CopyParams),
}

impl Uniform {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Uniform::Attention(params) => bytemuck::bytes_of(params),
            Uniform::Copy(params) => bytemuck::bytes_of(params),
        }
    }
}

/// One dispatch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pass {
    pub shader: Shader,
    pub specialization: Specialization,
    pub grid: [u32; 2],
    pub uniform: Uniform,
    pub binds: Vec<Bind>,
    /// For `copy_words`: the list it reads, or `None` for the host's lists.
    pub source: Option<crate::view::lists::ListKind>,
}
