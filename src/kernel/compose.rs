//! Composes a shader: a prelude of constants and bindings, then WGSL files, in
//! which `#for` repeats lines.
//!
//! WGSL has no macros, and a kernel that keeps a tile in registers needs their
//! names written out:
//!
//! ```text
//! #for d in DIMS
//!     sum += q_$d * k[$du];
//! #end
//! ```
//!
//! repeats the lines between with `$d` replaced by 0, 1, ... The count is a
//! number or one of [`Specialization::counts`]. Lines from `#if COUNT` to `#end`
//! are left out where the count is 0.

use std::fmt::Write as _;

use crate::kernel::module::Module;
use crate::kernel::pipelines::canonical;
use crate::kernel::shader::{Shader, dtype_code};
use crate::kernel::specialization::Specialization;
use crate::kernel::uniform::tile;

/// A composed shader and where its lines come from.
#[derive(Debug, Clone)]
#[doc(hidden)]
pub struct Composed {
    /// The WGSL text.
    pub text: String,
    /// File and line (1-based) of each line of `text`.
    origins: Vec<(&'static str, u32)>,
}

impl Composed {
    /// The file and line that line `line` (1-based) of the text came from.
    pub fn locate(&self, line: u32) -> (&'static str, u32) {
        let found = self.origins.get((line as usize).wrapping_sub(1));
        found.copied().unwrap_or(("prelude", line))
    }

    fn push(&mut self, line: &str, file: &'static str, number: u32) {
        self.text.push_str(line);
        self.text.push('\n');
        self.origins.push((file, number));
    }
}

/// The text of `shader` for `specialization`.
#[doc(hidden)]
pub fn compose(shader: Shader, specialization: Specialization) -> Composed {
    let key = canonical(shader, specialization);
    let mut composed = Composed {
        text: String::new(),
        origins: Vec::new(),
    };
    for (index, line) in prelude(shader, key).lines().enumerate() {
        composed.push(line, "prelude", index as u32 + 1);
    }
    let modules = shader.modules(key);
    for module in modules.iter().chain([&shader.root()]) {
        let lines = numbered(module);
        expand(&mut composed, module.name, &lines, key, &mut Vec::new());
    }
    composed
}

fn prelude(shader: Shader, key: Specialization) -> String {
    let mut text = String::new();
    let mut constant = |name: &str, value: u32| {
        let _ = writeln!(text, "const {name}: u32 = {value}u;");
    };
    constant("RULES", key.rules.bits());
    if shader.reads_keys_or_values() {
        constant("KV_DTYPE", dtype_code(key.kv_dtype));
    }
    if shader.lanes(key) == tile::LANES {
        constant("COLUMN_RUNS", key.column_runs);
    }
    if shader.axes().count_tiles {
        constant("COUNT_TILES", u32::from(key.count_tiles));
    }
    if shader.broadcasts() {
        for (name, count) in key.counts() {
            constant(name, count);
        }
    }
    for (index, (slot, access)) in shader.slots().iter().enumerate() {
        let mode = key.mode(*access);
        let _ = writeln!(
            text,
            "@group(0) @binding({}) var<storage, {mode}> {}: array<{}>;",
            index + 1,
            slot.name(),
            shader.element(*slot, key),
        );
    }
    text
}

fn numbered(module: &Module) -> Vec<(u32, &'static str)> {
    (1..).zip(module.text.lines()).collect()
}

/// Appends `lines`, their loops unrolled; `bound` holds the names of the loops
/// around them.
fn expand<'a>(
    composed: &mut Composed,
    file: &'static str,
    lines: &[(u32, &'a str)],
    key: Specialization,
    bound: &mut Vec<(&'a str, u32)>,
) {
    let mut at = 0;
    while let Some(&(number, line)) = lines.get(at) {
        at += 1;
        let Some((name, count)) = block_head(line, key) else {
            let text = bound.iter().fold(line.to_owned(), |text, (name, value)| {
                text.replace(&format!("${name}"), &value.to_string())
            });
            composed.push(&text, file, number);
            continue;
        };
        let body = &lines[at..at + body_len(&lines[at..])];
        at += body.len() + 1;
        let Some(name) = name else {
            if count > 0 {
                expand(composed, file, body, key, bound);
            }
            continue;
        };
        for value in 0..count {
            bound.push((name, value));
            expand(composed, file, body, key, bound);
            bound.pop();
        }
    }
}

/// Name and count of a line `#for NAME in COUNT`, count alone of a line `#if COUNT`.
fn block_head(line: &str, key: Specialization) -> Option<(Option<&str>, u32)> {
    let (name, count) = match line.strip_prefix("#for ") {
        Some(head) => head.split_once(" in ").map(|(name, n)| (Some(name), n))?,
        None => (None, line.strip_prefix("#if ")?),
    };
    let named = key.counts().into_iter().find(|(n, _)| *n == count);
    let count = named.map_or_else(|| count.parse().ok(), |(_, value)| Some(value))?;
    Some((name, count))
}

/// Lines before the `#end` that closes a block.
fn body_len(lines: &[(u32, &str)]) -> usize {
    let mut depth = 1;
    let closes = |(_, line): &(u32, &str)| {
        if line.starts_with("#for ") || line.starts_with("#if ") {
            depth += 1;
        } else if *line == "#end" {
            depth -= 1;
        }
        depth == 0
    };
    let end = lines.iter().position(closes);
    // A block without an end reaches to the file's end; naga then rejects it.
    end.unwrap_or(lines.len().saturating_sub(1))
}
