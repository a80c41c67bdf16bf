//! One error type for the whole crate.

use std::fmt;

/// Result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call was refused or failed.
///
/// Every message names the operand, what was expected and what came. Nothing
/// is recorded, written or lost when a call returns an error.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A shape, length or rank does not fit the other operands.
    Shape {
        /// The operand, for instance `"key"`.
        operand: &'static str,
        /// What would have been accepted.
        expected: String,
        /// What was given.
        actual: String,
    },
    /// An option or list value is outside its domain.
    Value {
        /// The operand or option, for instance `"softcap"`.
        operand: &'static str,
        /// What would have been accepted.
        expected: String,
        /// What was given.
        actual: String,
    },
    /// Strides, offset or alignment of a view cannot be used.
    Layout {
        /// The operand.
        operand: &'static str,
        /// What would have been accepted.
        expected: String,
        /// What was given.
        actual: String,
    },
    /// A view reaches past the end of its buffer.
    BufferTooSmall {
        /// The operand.
        operand: &'static str,
        /// Bytes that the view needs, offset included, rounded up to 4.
        needed: u64,
        /// Size of the buffer in bytes.
        size: u64,
    },
    /// A buffer lacks a usage flag.
    Usage {
        /// The operand.
        operand: &'static str,
        /// The flag that is missing.
        needed: wgpu::BufferUsages,
        /// The flags that the buffer has.
        actual: wgpu::BufferUsages,
    },
    /// Two operands share memory and at least one of them is written.
    Overlap {
        /// The operand that is written.
        written: &'static str,
        /// The operand it overlaps.
        other: &'static str,
        /// Byte ranges of both, within their buffer.
        ranges: String,
    },
    /// Something exceeds a limit of the device.
    Limit {
        /// What exceeds it, for instance `"key: one (batch, kv head) slab in bytes"`.
        what: String,
        /// How much would be needed.
        needed: u64,
        /// The limit's name, as in [`wgpu::Limits`].
        limit_name: &'static str,
        /// The limit's value on this device.
        limit: u64,
    },
    /// The host has no memory for a result.
    HostMemory {
        /// What it is for.
        what: String,
        /// How many numbers it would hold.
        count: u64,
    },
    /// The device cannot run this problem; all the reasons are given.
    Unsupported {
        /// Every reason, not only the first.
        reasons: Vec<Error>,
    },
    /// The operands given to a prepared plan are not those it was made for.
    PlanMismatch {
        /// The operand that differs.
        operand: &'static str,
        /// What the plan was made for.
        expected: String,
        /// What was given.
        actual: String,
    },
    /// No adapter was found.
    NoAdapter {
        /// What was asked for and what there was.
        detail: String,
    },
    /// The device refused to create an object, or a shader did not compile.
    Device {
        /// What was being done.
        action: String,
        /// wgpu's message.
        message: String,
    },
    /// The device was lost; every buffer and pipeline on it is gone.
    DeviceLost {
        /// wgpu's message.
        message: String,
    },
    /// A result could not be read back.
    Readback {
        /// wgpu's message.
        message: String,
    },
}

impl Error {
    /// True if the problem is valid but this device, or this host, cannot run it.
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self,
            Error::Unsupported { .. } | Error::Limit { .. } | Error::HostMemory { .. }
        )
    }

    /// True if an operand's shape, layout, size or value is at fault.
    pub fn is_input(&self) -> bool {
        matches!(
            self,
            Error::Shape { .. }
                | Error::Value { .. }
                | Error::Layout { .. }
                | Error::BufferTooSmall { .. }
                | Error::Usage { .. }
                | Error::Overlap { .. }
                | Error::PlanMismatch { .. }
        )
    }

    /// True if the adapter or device is at fault.
    pub fn is_device(&self) -> bool {
        matches!(
            self,
            Error::NoAdapter { .. }
                | Error::Device { .. }
                | Error::DeviceLost { .. }
                | Error::Readback { .. }
        )
    }

    /// The error as one of an operand of this name. A view of a tensor does not know what
    /// it is for; whoever makes it does:
    ///
    /// ```
    /// use wgpu_attention::{DType, Result, TensorView, wgpu};
    ///
    /// # fn example(key: &wgpu::Buffer) -> Result<TensorView<'_>> {
    /// TensorView::bhsd(key, DType::F16, [1, 8, 512, 64], 0).map_err(|error| error.named("key"))
    /// # }
    /// ```
    ///
    /// Errors without an operand, and of two operands, stay as they are.
    pub fn named(mut self, name: &'static str) -> Self {
        match &mut self {
            Error::Shape { operand, .. }
            | Error::Value { operand, .. }
            | Error::Layout { operand, .. }
            | Error::BufferTooSmall { operand, .. }
            | Error::Usage { operand, .. }
            | Error::PlanMismatch { operand, .. } => *operand = name,
            Error::Overlap { .. }
            | Error::Limit { .. }
            | Error::HostMemory { .. }
            | Error::Unsupported { .. }
            | Error::NoAdapter { .. }
            | Error::Device { .. }
            | Error::DeviceLost { .. }
            | Error::Readback { .. } => {}
        }
        self
    }

    /// The error with other names for the operands, given as pairs of an old and a
    /// new name.
    pub(crate) fn renamed(mut self, names: &[(&'static str, &'static str)]) -> Self {
        let new_name = |old: &str| names.iter().find(|(name, _)| *name == old).map(|n| n.1);
        let rename = |operand: &mut &'static str| *operand = new_name(operand).unwrap_or(operand);
        match &mut self {
            Error::Shape { operand, .. }
            | Error::Value { operand, .. }
            | Error::Layout { operand, .. }
            | Error::BufferTooSmall { operand, .. }
            | Error::Usage { operand, .. }
            | Error::PlanMismatch { operand, .. } => rename(operand),
            Error::Overlap { written, other, .. } => {
                rename(written);
                rename(other);
            }
            Error::Limit { what, .. } => {
                // "key: one slab in bytes"
                let old = what.split(':').next().unwrap_or_default();
                if let Some(new) = new_name(old) {
                    *what = format!("{new}{}", &what[old.len()..]);
                }
            }
            Error::Unsupported { reasons } => {
                let renamed = reasons.drain(..).map(|reason| reason.renamed(names));
                *reasons = renamed.collect();
            }
            Error::HostMemory { .. }
            | Error::NoAdapter { .. }
            | Error::Device { .. }
            | Error::DeviceLost { .. }
            | Error::Readback { .. } => {}
        }
        self
    }

    pub(crate) fn shape(
        operand: &'static str,
        expected: impl Into<String>,
        actual: impl fmt::Debug,
    ) -> Self {
        Error::Shape {
            operand,
            expected: expected.into(),
            actual: format!("{actual:?}"),
        }
    }

    pub(crate) fn value(
        operand: &'static str,
        expected: impl Into<String>,
        actual: impl fmt::Display,
    ) -> Self {
        Error::Value {
            operand,
            expected: expected.into(),
            actual: actual.to_string(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Shape {
                operand,
                expected,
                actual,
            } => write!(f, "{operand}: expected shape {expected}, got {actual}"),
            Error::Value {
                operand,
                expected,
                actual,
            } => write!(f, "{operand}: expected {expected}, got {actual}"),
            Error::Layout {
                operand,
                expected,
                actual,
            } => write!(
                f,
                "{operand}: expected layout with {expected}, got {actual}"
            ),
            Error::BufferTooSmall {
                operand,
                needed,
                size,
            } => write!(
                f,
                "{operand}: the view needs {needed} bytes of its buffer, which has {size}"
            ),
            Error::Usage {
                operand,
                needed,
                actual,
            } => write!(
                f,
                "{operand}: its buffer needs usage {needed:?}, it has {actual:?}"
            ),
            Error::Overlap {
                written,
                other,
                ranges,
            } => write!(
                f,
                "{written}: is written and must not overlap {other} ({ranges})"
            ),
            Error::Limit {
                what,
                needed,
                limit_name,
                limit,
            } => write!(
                f,
                "{what}: {needed} needed, the device's {limit_name} is {limit}"
            ),
            Error::HostMemory { what, count } => {
                write!(f, "{what}: the host has no memory for {count} numbers")
            }
            Error::Unsupported { reasons } => {
                write!(f, "not supported on this device:")?;
                for reason in reasons {
                    write!(f, "\n  - {reason}")?;
                }
                Ok(())
            }
            Error::PlanMismatch {
                operand,
                expected,
                actual,
            } => write!(
                f,
                "{operand}: the plan was made for {expected}, got {actual}"
            ),
            Error::NoAdapter { detail } => write!(f, "no adapter: {detail}"),
            Error::Device { action, message } => write!(f, "{action}: {message}"),
            Error::DeviceLost { message } => write!(f, "the device was lost: {message}"),
            Error::Readback { message } => write!(f, "reading a result back: {message}"),
        }
    }
}

impl std::error::Error for Error {}

/// `count` f32 or f64 values that the host has no memory for.
pub(crate) fn no_memory(what: &str, count: usize) -> Error {
    Error::HostMemory {
        what: what.to_owned(),
        count: count as u64,
    }
}
