//! Views of the caller's buffers. A view borrows; it owns and copies nothing.

use crate::error::Result;
use crate::view::dtype::{DType, Polarity};
use crate::view::extent::{Home, Span, check_fit, contiguous};

/// A tensor of four logical axes (batch, heads, sequence, head_dim) within a
/// buffer; for a bias (batch, query heads, queries, keys).
///
/// A view may start at any element. Strides are in elements; 0 broadcasts. Errors of its
/// making name it `tensor`, or what it is where its constructor says so; where one of
/// several went wrong, [`Error::named`](crate::Error::named) tells which.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    pub(crate) home: Home<'a>,
    pub(crate) dtype: DType,
    pub(crate) shape: [usize; 4],
    pub(crate) strides: [usize; 4],
    pub(crate) offset: u64,
}

impl<'a> TensorView<'a> {
    /// A view with explicit element strides, `offset` elements into the buffer.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`](crate::Error::BufferTooSmall) if the view reaches past the buffer's end,
    /// [`Error::Layout`](crate::Error::Layout) if a stride or offset is beyond what can be addressed.
    pub fn strided(
        buffer: &'a wgpu::Buffer,
        dtype: DType,
        shape: [usize; 4],
        strides: [usize; 4],
        offset: usize,
    ) -> Result<Self> {
        let view = TensorView {
            home: Home::Buffer(buffer),
            dtype,
            shape,
            strides,
            offset: offset as u64,
        };
        check_fit("tensor", buffer, &shape, &strides, offset, dtype.size())?;
        Ok(view)
    }

    /// Rows of a multi-head layer or a projection, (batch, tokens, width) contiguous
    /// from element `offset` on: a view of shape (batch, 1, tokens, width).
    ///
    /// # Errors
    /// As [`TensorView::strided`].
    pub fn tokens(
        buffer: &'a wgpu::Buffer,
        dtype: DType,
        [batch, tokens, width]: [usize; 3],
        offset: usize,
    ) -> Result<Self> {
        TensorView::bhsd(buffer, dtype, [batch, 1, tokens, width], offset)
    }

    /// A weight, (out, in) contiguous from element `offset` on: a view of shape
    /// (1, 1, out, in).
    ///
    /// # Errors
    /// As [`TensorView::strided`]; they name a weight.
    pub fn matrix(
        buffer: &'a wgpu::Buffer,
        dtype: DType,
        [rows, columns]: [usize; 2],
        offset: usize,
    ) -> Result<Self> {
        let view = TensorView::bhsd(buffer, dtype, [1, 1, rows, columns], offset);
        view.map_err(|error| error.named("weight"))
    }

    /// Memory order (batch, heads, sequence, head_dim), contiguous, from element
    /// `offset` on.
    ///
    /// # Errors
    /// As [`TensorView::strided`].
    pub fn bhsd(
        buffer: &'a wgpu::Buffer,
        dtype: DType,
        shape: [usize; 4],
        offset: usize,
    ) -> Result<Self> {
        TensorView::strided(buffer, dtype, shape, contiguous(shape), offset)
    }

    /// Memory order (batch, sequence, heads, head_dim), contiguous, from element
    /// `offset` on; `shape` is still (batch, heads, sequence, head_dim).
    ///
    /// # Errors
    /// As [`TensorView::strided`].
    pub fn bshd(
        buffer: &'a wgpu::Buffer,
        dtype: DType,
        shape: [usize; 4],
        offset: usize,
    ) -> Result<Self> {
        let [_, heads, sequence, dim] = shape;
        let row = heads.saturating_mul(dim);
        let strides = [sequence.saturating_mul(row), dim, row, 1];
        TensorView::strided(buffer, dtype, shape, strides, offset)
    }

    /// Query, key and value of a packed projection, memory order
    /// (batch, sequence, q_heads + 2 * kv_heads, head_dim): all query heads of
    /// a token, then its key heads, then its value heads; from element `offset` on.
    ///
    /// # Errors
    /// As [`TensorView::strided`]; they name the query, the key or the value.
    pub fn packed_qkv(
        buffer: &'a wgpu::Buffer,
        dtype: DType,
        batch: usize,
        sequence: usize,
        (q_heads, kv_heads): (usize, usize),
        head_dim: usize,
        offset: usize,
    ) -> Result<[Self; 3]> {
        let all = kv_heads.saturating_mul(2).saturating_add(q_heads);
        let row = all.saturating_mul(head_dim);
        let strides = [sequence.saturating_mul(row), head_dim, row, 1];
        let part = |name: &'static str, first_head: usize, heads: usize| {
            let start = offset.saturating_add(first_head.saturating_mul(head_dim));
            let shape = [batch, heads, sequence, head_dim];
            let view = TensorView::strided(buffer, dtype, shape, strides, start);
            view.map_err(|error| error.named(name))
        };
        Ok([
            part("query", 0, q_heads)?,
            part("key", q_heads, kv_heads)?,
            part("value", q_heads.saturating_add(kv_heads), kv_heads)?,
        ])
    }

    /// Logical shape.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// Element strides.
    pub fn strides(&self) -> [usize; 4] {
        self.strides
    }

    /// Storage type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn span(&self) -> Span<'a> {
        let size = self.dtype.size();
        Span::new(self.home, &self.shape, &self.strides, self.offset, size)
    }
}

/// A boolean mask within a buffer, broadcastable to
/// (batch, query heads, queries, keys).
#[derive(Debug, Clone, Copy)]
pub struct MaskView<'a> {
    pub(crate) buffer: &'a wgpu::Buffer,
    pub(crate) bits: bool,
    pub(crate) polarity: Polarity,
    pub(crate) shape: [usize; 4],
    pub(crate) strides: [usize; 4],
    pub(crate) offset: u64,
}

impl<'a> MaskView<'a> {
    /// One byte a pair, nonzero is true; contiguous from byte `offset` on.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`](crate::Error::BufferTooSmall) if the view reaches past the buffer's end.
    pub fn bytes(
        buffer: &'a wgpu::Buffer,
        shape: [usize; 4],
        offset: usize,
        polarity: Polarity,
    ) -> Result<Self> {
        MaskView::bytes_strided(buffer, shape, contiguous(shape), offset, polarity)
    }

    /// One byte a pair with explicit strides in bytes; 0 broadcasts.
    ///
    /// # Errors
    /// As [`MaskView::bytes`].
    pub fn bytes_strided(
        buffer: &'a wgpu::Buffer,
        shape: [usize; 4],
        strides: [usize; 4],
        offset: usize,
        polarity: Polarity,
    ) -> Result<Self> {
        check_fit("mask", buffer, &shape, &strides, offset, 1)?;
        Ok(MaskView {
            buffer,
            bits: false,
            polarity,
            shape,
            strides,
            offset: offset as u64,
        })
    }

    /// 32 keys a u32 word, least significant bit first, each row of keys
    /// starting a new word; contiguous from word `offset` on. Bits past the
    /// last key are ignored.
    ///
    /// # Errors
    /// As [`MaskView::bytes`].
    pub fn bits(
        buffer: &'a wgpu::Buffer,
        shape: [usize; 4],
        offset: usize,
        polarity: Polarity,
    ) -> Result<Self> {
        let words = [shape[0], shape[1], shape[2], shape[3].div_ceil(32)];
        let [batch, head, row, _] = contiguous(words);
        MaskView::bits_strided(buffer, shape, [batch, head, row], offset, polarity)
    }

    /// Bits with explicit strides of batch, head and row, in words; 0 broadcasts.
    ///
    /// # Errors
    /// As [`MaskView::bytes`].
    pub fn bits_strided(
        buffer: &'a wgpu::Buffer,
        shape: [usize; 4],
        strides: [usize; 3],
        offset: usize,
        polarity: Polarity,
    ) -> Result<Self> {
        let [batch, head, row] = strides;
        let view = MaskView {
            buffer,
            bits: true,
            polarity,
            shape,
            strides: [batch, head, row, 1],
            offset: offset as u64,
        };
        let words = view.storage_shape();
        check_fit("mask", buffer, &words, &view.strides, offset, 4)?;
        Ok(view)
    }

    /// Shape in storage elements: bytes, or words of 32 keys.
    pub(crate) fn storage_shape(&self) -> [usize; 4] {
        let [batch, head, row, keys] = self.shape;
        [
            batch,
            head,
            row,
            if self.bits { keys.div_ceil(32) } else { keys },
        ]
    }

    pub(crate) fn element_size(&self) -> u64 {
        if self.bits { 4 } else { 1 }
    }

    pub(crate) fn span(&self) -> Span<'a> {
        let shape = self.storage_shape();
        let size = self.element_size();
        let home = Home::Buffer(self.buffer);
        Span::new(home, &shape, &self.strides, self.offset, size)
    }
}

/// What is written of a row's softmax.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stats {
    /// Natural log-sum-exp, one f32 a row; -inf for a row without a visible key.
    Lse,
    /// The pair (row maximum, natural log of the sum relative to it), two f32
    /// a row; LSE is their sum. What merging, inspection and a backward pass
    /// use: beside a huge maximum one f32 loses the log of the sum.
    RowState,
}

impl Stats {
    /// Numbers of a row.
    pub(crate) fn width(self) -> usize {
        match self {
            Stats::Lse => 1,
            Stats::RowState => 2,
        }
    }
}

/// Where LSE or row states go: (B, Hq, Nq) f32, or (B, Hq, Nq, 2).
#[derive(Debug, Clone, Copy)]
#[doc(alias = "lse")]
pub struct StatsView<'a> {
    pub(crate) buffer: &'a wgpu::Buffer,
    pub(crate) kind: Stats,
    pub(crate) shape: [usize; 3],
    pub(crate) offset: u64,
}

impl<'a> StatsView<'a> {
    /// Contiguous rows of `shape` (B, Hq, Nq), from f32 `offset` on.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`](crate::Error::BufferTooSmall) if the view reaches past the buffer's end.
    pub fn new(
        buffer: &'a wgpu::Buffer,
        kind: Stats,
        shape: [usize; 3],
        offset: usize,
    ) -> Result<Self> {
        let view = StatsView {
            buffer,
            kind,
            shape,
            offset: offset as u64,
        };
        let full = view.storage_shape();
        check_fit("stats", buffer, &full, &contiguous(full), offset, 4)?;
        Ok(view)
    }

    pub(crate) fn storage_shape(&self) -> [usize; 4] {
        let [batch, heads, rows] = self.shape;
        let width = match self.kind {
            Stats::Lse => 1,
            Stats::RowState => 2,
        };
        [batch, heads, rows, width]
    }

    pub(crate) fn span(&self) -> Span<'a> {
        let full = self.storage_shape();
        let home = Home::Buffer(self.buffer);
        Span::new(home, &full, &contiguous(full), self.offset, 4)
    }
}

/// A list of per-sequence or per-head values, from the host or from a buffer.
#[derive(Debug, Clone, Copy)]
pub enum List<'a, T> {
    /// Values known on the host; they become part of the plan.
    Host(&'a [T]),
    /// Values in a buffer (4 bytes each), read when the commands run.
    Buffer {
        /// The buffer, with usage `STORAGE`.
        buffer: &'a wgpu::Buffer,
        /// First value, in 4-byte elements.
        offset: usize,
        /// Number of values.
        len: usize,
    },
}

impl<'a, T> List<'a, T> {
    pub(crate) fn len(&self) -> usize {
        match self {
            List::Host(values) => values.len(),
            List::Buffer { len, .. } => *len,
        }
    }

    pub(crate) fn span(&self) -> Option<Span<'a>> {
        match *self {
            List::Host(_) => None,
            List::Buffer {
                buffer,
                offset,
                len,
            } => {
                let shape = [1, 1, 1, len];
                let home = Home::Buffer(buffer);
                Some(Span::new(home, &shape, &[0, 0, 0, 1], offset as u64, 4))
            }
        }
    }
}
