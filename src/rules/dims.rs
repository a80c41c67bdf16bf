//! The sizes of a call, and what is checked of its lists.

use crate::error::{Error, Result};
use crate::rules::options::{Alignment, Options};

/// Longest sequence (queries or keys) that is accepted: `2^30`, so that every
/// position fits the kernels' 32-bit arithmetic.
pub const MAX_SEQUENCE: usize = 1 << 30;

/// Sizes of a validated call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dims {
    /// B.
    pub batch: usize,
    /// Hq.
    pub q_heads: usize,
    /// Hkv.
    pub kv_heads: usize,
    /// Nq.
    pub q_len: usize,
    /// Nk.
    pub kv_len: usize,
    /// Dqk.
    pub qk_dim: usize,
    /// Dv.
    pub v_dim: usize,
}

impl Dims {
    /// Query heads that share one kv head; 0 if there is no kv head, which
    /// [`Dims::new`] refuses.
    pub fn group(&self) -> usize {
        self.q_heads.checked_div(self.kv_heads).unwrap_or(0)
    }

    /// Shape of the output, (B, Hq, Nq, Dv).
    pub fn output_shape(&self) -> [usize; 4] {
        [self.batch, self.q_heads, self.q_len, self.v_dim]
    }

    /// Rows of the output, B * Hq * Nq; `usize::MAX` if there are more (views
    /// that broadcast may have any number).
    pub fn rows(&self) -> usize {
        let heads = self.batch.saturating_mul(self.q_heads);
        heads.saturating_mul(self.q_len)
    }

    /// Queries of the whole batch, B * Nq.
    pub(crate) fn queries(&self) -> usize {
        self.batch.saturating_mul(self.q_len)
    }

    /// Keys of the whole batch, B * Nk.
    pub(crate) fn keys(&self) -> usize {
        self.batch.saturating_mul(self.kv_len)
    }

    /// Sizes from the shapes of query, key and value.
    ///
    /// # Errors
    /// [`Error::Shape`] naming the operand that does not fit.
    pub fn new(query: [usize; 4], key: [usize; 4], value: [usize; 4]) -> Result<Dims> {
        let [batch, q_heads, q_len, qk_dim] = query;
        let [_, kv_heads, kv_len, _] = key;
        let v_dim = value[3];
        if qk_dim == 0 {
            return Err(Error::shape(
                "query",
                "(B, Hq, Nq, Dqk) with Dqk > 0",
                query,
            ));
        }
        if kv_heads == 0 {
            return Err(Error::shape("key", "(B, Hkv, Nk, Dqk) with Hkv > 0", key));
        }
        if key[0] != batch || key[3] != qk_dim {
            let expected = format!("[{batch}, Hkv, Nk, {qk_dim}] (from query)");
            return Err(Error::shape("key", expected, key));
        }
        if q_heads % kv_heads != 0 {
            let expected = format!("a multiple of the {kv_heads} kv heads as query heads");
            return Err(Error::shape("query", expected, query));
        }
        if value[..3] != key[..3] || v_dim == 0 {
            let expected = format!("[{batch}, {kv_heads}, {kv_len}, Dv] with Dv > 0 (from key)");
            return Err(Error::shape("value", expected, value));
        }
        for (operand, shape) in [("query", query), ("key", key), ("value", value)] {
            if shape.iter().any(|&n| n > MAX_SEQUENCE) {
                return Err(Error::shape(operand, "every axis at most 2^30", shape));
            }
        }
        Ok(Dims {
            batch,
            q_heads,
            kv_heads,
            q_len,
            kv_len,
            qk_dim,
            v_dim,
        })
    }

    /// Checks that `shape` broadcasts to (B, Hq, Nq, Nk).
    pub(crate) fn check_pairs(&self, operand: &'static str, shape: [usize; 4]) -> Result<()> {
        let full = [self.batch, self.q_heads, self.q_len, self.kv_len];
        let fits = shape.iter().zip(full).all(|(&n, m)| n == m || n == 1);
        if !fits {
            let expected = format!("broadcastable to {full:?} (each axis equal or 1)");
            return Err(Error::shape(operand, expected, shape));
        }
        Ok(())
    }
}

pub(crate) fn check_len(operand: &'static str, got: usize, expected: usize) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(Error::shape(operand, format!("[{expected}]"), [got]))
}

pub(crate) fn check_counts(
    operand: &'static str,
    counts: Option<&[u32]>,
    batch: usize,
    most: usize,
) -> Result<()> {
    let Some(counts) = counts else {
        return Ok(());
    };
    check_len(operand, counts.len(), batch)?;
    match counts.iter().position(|&n| n as usize > most) {
        Some(b) => {
            let expected = format!("counts of at most {most}");
            let actual = format!("{} at batch entry {b}", counts[b]);
            Err(Error::value(operand, expected, actual))
        }
        None => Ok(()),
    }
}

pub(crate) fn check_alignment(
    options: &Options,
    offsets: Option<usize>,
    batch: usize,
) -> Result<()> {
    match (options.alignment, offsets) {
        (Alignment::PerSequence, None) => Err(Error::value(
            "offsets",
            "one offset a sequence (alignment is PerSequence)",
            "none",
        )),
        (Alignment::PerSequence, Some(n)) => check_len("offsets", n, batch),
        (alignment, Some(_)) => {
            let actual = format!("alignment {alignment:?} with offsets");
            Err(Error::value(
                "offsets",
                "none unless alignment is PerSequence",
                actual,
            ))
        }
        (_, None) => Ok(()),
    }
}

pub(crate) fn check_slopes(slopes: &[f32]) -> Result<()> {
    match slopes.iter().find(|s| !s.is_finite()) {
        Some(bad) => Err(Error::value("alibi_slopes", "finite numbers", bad)),
        None => Ok(()),
    }
}

pub(crate) fn check_sinks(sinks: &[f32]) -> Result<()> {
    match sinks
        .iter()
        .find(|s| !s.is_finite() && **s != f32::NEG_INFINITY)
    {
        Some(bad) => Err(Error::value("sinks", "finite numbers or -inf", bad)),
        None => Ok(()),
    }
}
