//! Composes a shader: a prelude of constants and bindings, then plain WGSL files.

use std::fmt::Write as _;

use crate::kernel::{Access, Shader, Specialization, canonical, dtype_code};

/// A composed shader and where its lines come from.
#[derive(Debug, Clone)]
#[doc(hidden)]
pub struct Composed {
    /// The WGSL text.
    pub text: String,
    /// First line (1-based) of each file within `text`.
    starts: Vec<(u32, &'static str)>,
}

impl Composed {
    /// The file and line that line `line` (1-based) of the text came from.
    pub fn locate(&self, line: u32) -> (&'static str, u32) {
        let at = self.starts.partition_point(|&(start, _)| start <= line);
        match at.checked_sub(1).and_then(|i| self.starts.get(i)) {
            Some(&(start, name)) => (name, line - start + 1),
            None => ("prelude", line),
        }
    }
}

/// The text of `shader` for `specialization`.
#[doc(hidden)]
pub fn compose(shader: Shader, specialization: Specialization) -> Composed {
    let key = canonical(shader, specialization);
    let mut text = String::new();
    if shader.reads_keys_or_values() {
        let code = dtype_code(key.kv_dtype);
        let _ = writeln!(text, "const KV_DTYPE: u32 = {code}u;");
    }
    for (index, (slot, access)) in shader.slots().iter().enumerate() {
        let mode = match access {
            Access::Read if !key.shared => "read",
            _ => "read_write",
        };
        let _ = writeln!(
            text,
            "@group(0) @binding({}) var<storage, {mode}> {}: {};",
            index + 1,
            slot.name(),
            slot.wgsl_type()
        );
    }
    let mut starts = Vec::new();
    for module in shader.modules().iter().chain([&shader.root()]) {
        starts.push((text.lines().count() as u32 + 1, module.name));
        text.push_str(module.text);
    }
    Composed { text, starts }
}
