//! What a measurement speaks for: classes of problems, and the kernel that was
//! the fastest for one.

use std::fmt;

use crate::plan::kernel::Kernel;
use crate::view::dtype::DType;

/// Problems alike enough that one measurement speaks for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "tune", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "tune", serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct ProblemClass {
    /// Storage type of the query.
    pub query: DType,
    /// Storage type of key and value.
    pub key_value: DType,
    /// The larger of Dqk and Dv, rounded up to 32, 64, 128, ...
    pub head_dim: u64,
    /// B * Hq, rounded up to a power of 4.
    pub heads: u64,
    /// Nq, rounded up to a power of 4.
    pub q_len: u64,
    /// Nk, rounded up to a power of 4.
    pub kv_len: u64,
    /// Causal, or with a window that is closed on the right.
    pub causal: bool,
    /// With a window that is closed on the left.
    pub window: bool,
    /// With a mask, a bias or segments: pairs are looked at one by one.
    pub pairwise: bool,
}

/// The kernel that was the fastest on a device for a class of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Tuned {
    /// The problems.
    pub problem: ProblemClass,
    /// The kernel family.
    pub kernel: Kernel,
}

impl Tuned {
    /// A choice.
    pub fn new(problem: ProblemClass, kernel: Kernel) -> Self {
        Tuned { problem, kernel }
    }
}

impl fmt::Display for ProblemClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "query {:?}, key and value {:?}, up to head_dim {}, {} heads, {} queries and {} keys",
            self.query, self.key_value, self.head_dim, self.heads, self.q_len, self.kv_len
        )?;
        for (is_set, what) in [
            (self.causal, ", causal"),
            (self.window, ", window"),
            (self.pairwise, ", masked pair by pair"),
        ] {
            if is_set {
                f.write_str(what)?;
            }
        }
        Ok(())
    }
}
