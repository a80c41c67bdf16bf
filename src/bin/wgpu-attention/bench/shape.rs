//! A case's shape as flags.

use clap::Args;

use super::case::{Case, Storage};
use crate::report::Stop;

/// A shape of one's own. What is not given is that of prefill-64.
#[derive(Debug, Default, PartialEq, Args)]
#[group(id = "shape", multiple = true)]
pub struct Shape {
    /// Batch entries [default: 1].
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Query heads [default: 8].
    #[arg(long, value_name = "N")]
    heads: Option<usize>,
    /// Key and value heads [default: as many as query heads].
    #[arg(long, value_name = "N")]
    kv_heads: Option<usize>,
    /// Queries [default: 512].
    #[arg(long, value_name = "N")]
    q_len: Option<usize>,
    /// Keys [default: as many as queries].
    #[arg(long, value_name = "N")]
    kv_len: Option<usize>,
    /// Width of a query and a key [default: 64].
    #[arg(long, value_name = "N")]
    head_dim: Option<usize>,
    /// Width of a value [default: that of a key].
    #[arg(long, value_name = "N")]
    v_dim: Option<usize>,
    /// Storage type of query and output [default: f32].
    #[arg(long)]
    dtype: Option<Storage>,
    /// Storage type of key and value [default: that of the query].
    #[arg(long)]
    kv_dtype: Option<Storage>,
    /// Query i sees keys up to its own position only; the last query stands at
    /// the last key.
    #[arg(long)]
    causal: bool,
    /// A query sees the last N keys up to its own position, itself included.
    #[arg(long, value_name = "N")]
    window: Option<u32>,
    /// Not attention but a projection, X W^T: q-len rows, head-dim inputs, kv-len
    /// outputs.
    #[arg(long, conflicts_with_all = ["causal", "window", "heads", "kv_heads", "v_dim"])]
    projection: bool,
}

impl Shape {
    /// Whether any flag was given.
    pub fn is_given(&self) -> bool {
        *self != Shape::default()
    }

    /// The case that the flags give, of sizes that can be measured.
    pub fn case(&self) -> Result<Case, Stop> {
        let case = self.of_any_size()?;
        let axes = [
            ("batch", case.batch),
            ("heads", case.heads),
            ("kv-heads", case.kv_heads),
            ("q-len", case.q_len),
            ("kv-len", case.kv_len),
            ("head-dim", case.head_dim),
            ("v-dim", case.v_dim),
        ];
        for (flag, n) in axes {
            // 2^30 is the library's own limit of an axis.
            if n == 0 || n > wgpu_attention::MAX_SEQUENCE {
                let most = wgpu_attention::MAX_SEQUENCE;
                return Err(format!("--{flag}: expected 1 to {most}, got {n}").into());
            }
        }
        case.check_size()?;
        case.options()?;
        Ok(case)
    }

    /// The case that the flags give.
    pub fn of_any_size(&self) -> Result<Case, Stop> {
        let base = Case::named("prefill-64").ok_or("no base case")?;
        let base_heads = if self.projection { 1 } else { base.heads };
        let heads = self.heads.unwrap_or(base_heads);
        let q_len = self.q_len.unwrap_or(base.q_len);
        let head_dim = self.head_dim.unwrap_or(base.head_dim);
        let dtype = self.dtype.unwrap_or(base.dtype);
        Ok(Case {
            name: "shape".to_owned(),
            batch: self.batch.unwrap_or(base.batch),
            heads,
            kv_heads: self.kv_heads.unwrap_or(heads),
            q_len,
            kv_len: self.kv_len.unwrap_or(q_len),
            head_dim,
            v_dim: self.v_dim.unwrap_or(head_dim),
            dtype,
            kv_dtype: self.kv_dtype.unwrap_or(dtype),
            causal: self.causal,
            window: self.window,
            rules: Vec::new(),
            projection: self.projection,
        })
    }
}
