//! Where strided elements lie: their buffer, their bytes, how far they reach.

use std::ops::Range;

use crate::error::{Error, Result};

/// What a view lies in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Home<'a> {
    Buffer(&'a wgpu::Buffer),
    /// The workspace of a multi-head layer, which has no buffer until it is recorded.
    Workspace,
}

impl<'a> Home<'a> {
    pub fn buffer(self) -> Option<&'a wgpu::Buffer> {
        match self {
            Home::Buffer(buffer) => Some(buffer),
            Home::Workspace => None,
        }
    }
}

/// A byte range of a buffer.
#[derive(Debug, Clone)]
pub(crate) struct Span<'a> {
    pub home: Home<'a>,
    pub bytes: Range<u64>,
}

impl<'a> Span<'a> {
    /// The bytes of a view. An empty one has none, wherever it begins.
    pub fn new(
        home: Home<'a>,
        shape: &[usize; 4],
        strides: &[usize; 4],
        offset: u64,
        size: u64,
    ) -> Self {
        let count = extent(shape, strides).unwrap_or(u64::MAX);
        let start = if count == 0 {
            0
        } else {
            offset.saturating_mul(size)
        };
        let end = start.saturating_add(count.saturating_mul(size));
        Span {
            home,
            bytes: start..end,
        }
    }

    pub fn overlaps(&self, other: &Span<'_>) -> bool {
        self.home == other.home
            && !self.bytes.is_empty()
            && !other.bytes.is_empty()
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
    }
}

/// Row-major strides of a shape.
pub(crate) fn contiguous(shape: [usize; 4]) -> [usize; 4] {
    let [_, b, c, d] = shape;
    let cd = c.saturating_mul(d);
    [b.saturating_mul(cd), cd, d, 1]
}

/// Elements from the first to the last one, inclusive; 0 for an empty tensor;
/// `None` if the count does not fit.
pub(crate) fn extent(shape: &[usize; 4], strides: &[usize; 4]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    let mut last = 0u64;
    for (&n, &stride) in shape.iter().zip(strides) {
        last = last.checked_add((n as u64 - 1).checked_mul(stride as u64)?)?;
    }
    last.checked_add(1)
}

/// Bytes from the buffer's start to the view's end, rounded up to 4. An empty view needs
/// none, wherever it begins.
pub(crate) fn bytes_needed(
    operand: &'static str,
    shape: &[usize; 4],
    strides: &[usize; 4],
    offset: usize,
    size: u64,
) -> Result<u64> {
    let end = |count: u64| match count {
        0 => Some(0),
        _ => count.checked_add(offset as u64),
    };
    let needed = extent(shape, strides)
        .and_then(end)
        .and_then(|end| end.checked_mul(size))
        .and_then(|bytes| bytes.checked_next_multiple_of(4));
    needed.ok_or_else(|| Error::Layout {
        operand,
        expected: "a last element below 2^64 bytes".to_owned(),
        actual: format!("shape {shape:?}, strides {strides:?}, offset {offset}"),
    })
}

pub(crate) fn check_fit(
    operand: &'static str,
    buffer: &wgpu::Buffer,
    shape: &[usize; 4],
    strides: &[usize; 4],
    offset: usize,
    size: u64,
) -> Result<()> {
    let needed = bytes_needed(operand, shape, strides, offset, size)?;
    match needed > buffer.size() {
        true => Err(Error::BufferTooSmall {
            operand,
            needed,
            size: buffer.size(),
        }),
        false => Ok(()),
    }
}
