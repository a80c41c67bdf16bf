//! The attention call of a file: its operands in one order of axes, its options, and
//! what to say of both.

use wgpu_attention::{Dims, Error, Inputs};

use crate::array::Array;
use crate::case::{File, Problem};
use crate::options::{CommonFlags, Layout, OptionArgs, Settled};
use crate::report::shown;
use crate::suites;

/// A call and who gave its options.
#[derive(Debug)]
pub struct Call {
    /// Operands in the layout bhsd.
    pub problem: Problem,
    pub settled: Settled,
}

/// What files of bare operands may hold.
const OPERANDS: [&str; 13] = [
    "Q",
    "K",
    "V",
    "QKV",
    "attn_bias",
    "attn_mask",
    "alibi_slopes",
    "sinks",
    "kv_lengths",
    "q_lengths",
    "offsets",
    "q_segments",
    "kv_segments",
];

/// What cases hold besides, which their suites read.
const OF_CASES: [&str; 5] = ["dY", "dLSE", "past_key", "past_value", "nonpad_kv_seqlen"];

impl Call {
    /// The call of `file`: a case's, by its suite, or that of bare operands, by the
    /// file's metadata; flags win over both.
    pub fn of(file: &File, common: CommonFlags, args: &OptionArgs) -> Result<Call, String> {
        let is_case = args.reads_metadata() && suites::is_case(file);
        if !(is_case && file.get("X").is_some()) {
            check_names(file)?;
        }
        if is_case {
            let mut problem = suites::case_call(file)?;
            let settled = args.of_case(common, problem.options)?;
            problem.options = settled.options;
            problem.polarity = settled.polarity;
            return Ok(Call { problem, settled });
        }
        let settled = args.of_operands(common, file)?;
        let laid_out = in_order(file, settled.layout)?;
        check_lists(file, &laid_out)?;
        let [query, key, value] = laid_out;
        let mut problem = Problem::new(query, key, value, settled.options);
        problem.take_rest(file)?;
        problem.polarity = settled.polarity;
        Ok(Call { problem, settled })
    }

    /// The sizes; where shapes do not fit, the message says if another layout does.
    pub fn dims(&self, inputs: &Inputs<'_>) -> Result<Dims, String> {
        let dims = inputs.validate(&self.problem.options);
        dims.map_err(|error| match (&error, self.swapped()) {
            (Error::Shape { .. }, Some(swapped)) if !self.settled.names_layout() => {
                format!(
                    "{error}\nhint: --layout bshd reads it as {}",
                    sizes(&swapped)
                )
            }
            _ => error.to_string(),
        })
    }

    /// What stderr is told where sizes look as if two axes were swapped.
    pub fn doubt(&self, dims: &Dims) -> Option<String> {
        if self.settled.names_layout() || dims.kv_heads <= dims.kv_len {
            return None;
        }
        let swapped = self.swapped()?;
        let Dims {
            kv_heads, kv_len, ..
        } = dims;
        Some(format!(
            "hint: {kv_heads} key heads for {kv_len} keys: read as (B,H,S,D); --layout bshd reads \
             it as {}, --layout bhsd silences this",
            sizes(&swapped)
        ))
    }

    /// The sizes if query, key and value were (B,S,H,D), if that is possible.
    fn swapped(&self) -> Option<Dims> {
        let shape = |array: &Array| {
            let shape: [usize; 4] = array.shape.as_slice().try_into().ok()?;
            let [batch, first, second, dim] = shape;
            Some([batch, second, first, dim])
        };
        let Problem {
            query, key, value, ..
        } = &self.problem;
        let dims = Dims::new(shape(query)?, shape(key)?, shape(value)?);
        dims.ok().filter(|dims| dims.kv_heads > 0)
    }
}

/// Sizes in a line.
pub fn sizes(dims: &Dims) -> String {
    let widths = match dims.qk_dim == dims.v_dim {
        true => format!("D {}", dims.qk_dim),
        false => format!("Dqk {} Dv {}", dims.qk_dim, dims.v_dim),
    };
    format!(
        "B {} Hq {} Hkv {} Nq {} Nk {} {widths}",
        dims.batch, dims.q_heads, dims.kv_heads, dims.q_len, dims.kv_len
    )
}

/// The sizes, and the storage types of query, key and value.
pub fn describe(dims: &Dims, problem: &Problem) -> String {
    let (query, key) = (problem.query.type_name(), problem.key.type_name());
    let types = match query == key {
        true => query.to_owned(),
        false => format!("{query} with {key} keys and values"),
    };
    format!("problem  {}, {types}", sizes(dims))
}

/// A misspelt operand would be ignored without a word; what the case files hold
/// besides operands is known.
fn check_names(file: &File) -> Result<(), String> {
    for name in file.tensors.keys() {
        let is_part = name.strip_prefix("part").is_some_and(|rest| {
            let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            digits.len() < rest.len() && digits.starts_with('.')
        });
        let beside = is_part || ["expected.", "jax."].iter().any(|p| name.starts_with(p));
        let is_known = [&OPERANDS[..], &OF_CASES].concat().contains(&&name[..]);
        if !beside && !is_known {
            let meant = OPERANDS
                .iter()
                .find(|known| known.eq_ignore_ascii_case(name));
            let meant = meant.map_or(String::new(), |meant| {
                format!(", {meant} is: names differ by their capitals")
            });
            let (name, known) = (shown(name), OPERANDS.join(" "));
            return Err(format!(
                "tensor {name} is not an operand{meant}; known are {known}; options are flags or metadata"
            ));
        }
    }
    Ok(())
}

/// Query, key and value as (B,H,S,D).
fn in_order(file: &File, layout: Layout) -> Result<[Array; 3], String> {
    const NAMES: [&str; 3] = ["Q", "K", "V"];
    let is_packed = layout == Layout::Packed;
    let (own, other) = match is_packed {
        true => (&["QKV"][..], &NAMES[..]),
        false => (&NAMES[..], &["QKV"][..]),
    };
    if let Some(name) = other.iter().find(|name| file.get(name).is_some()) {
        let (layout, own) = (layout.name(), own.join(", "));
        return Err(format!(
            "tensor {name}: the layout {layout} takes {own} and not {name}"
        ));
    }
    if is_packed {
        let packed = file.need("QKV")?;
        let &[batch, len, 3, heads, dim] = packed.shape.as_slice() else {
            let shape = &packed.shape;
            return Err(format!("QKV: expected shape (B,S,3,H,D), got {shape:?}"));
        };
        let third = |which: usize| {
            let shape = [batch, heads, len, dim];
            packed.rows_from(NAMES[which], shape, |b, h, s| {
                ((b * len + s) * 3 + which) * heads + h
            })
        };
        return Ok([third(0)?, third(1)?, third(2)?]);
    }
    let operand = |name: &str| {
        let array = file.need(name)?;
        if array.shape.len() != 4 {
            let shape = &array.shape;
            return Err(format!("{name}: expected four axes, got shape {shape:?}"));
        }
        match layout {
            Layout::Bshd => array.middle_swapped(name),
            _ => array.copied(name),
        }
    };
    let [query, key, value] = NAMES;
    Ok([operand(query)?, operand(key)?, operand(value)?])
}

/// Lists are read in order, so a transposed one would be taken for another.
fn check_lists(file: &File, [query, key, _]: &[Array; 3]) -> Result<(), String> {
    let (batch, q_heads, q_len) = (query.shape[0], query.shape[1], query.shape[2]);
    let kv_len = key.shape[2];
    for (name, expected) in [
        ("kv_lengths", vec![batch]),
        ("q_lengths", vec![batch]),
        ("offsets", vec![batch]),
        ("q_segments", vec![batch, q_len]),
        ("kv_segments", vec![batch, kv_len]),
        ("alibi_slopes", vec![q_heads]),
        ("sinks", vec![q_heads]),
    ] {
        let Some(array) = file.get(name) else {
            continue;
        };
        if array.shape != expected {
            let got = &array.shape;
            return Err(format!("{name}: expected shape {expected:?}, got {got:?}"));
        }
    }
    Ok(())
}
