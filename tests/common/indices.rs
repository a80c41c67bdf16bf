//! Shaders that look at each of their indices: an index of an array that is not below the
//! array's length spoils every output of its workgroup's dispatch, so that no comparison
//! of results passes.
#![allow(dead_code)]

use std::collections::HashMap;

use wgpu_attention::shaders::{all_pipelines, compose};
use wgpu_attention::{Attention, testing};

/// What a spoiled output holds: a NaN as f32, and a word that no kernel writes.
const MARK: &str = "0x7fedcba9u";

/// Attention on the same device whose kernels look at each index.
pub fn checked(attention: &Attention) -> Attention {
    let text = |(shader, key): (_, wgpu_attention::shaders::Specialization)| {
        (
            key.file_stem(shader),
            instrumented(&compose(shader, key).text),
        )
    };
    let texts: HashMap<String, String> = all_pipelines().into_iter().map(text).collect();
    testing::with_texts(attention, texts).unwrap()
}

/// An array of a shader: its name, its element type, its length as WGSL, and whether it
/// is a buffer that may be written.
#[derive(Debug)]
struct Array {
    name: String,
    element: String,
    length: String,
    writable: bool,
}

/// The arrays that a text declares outside of functions.
fn arrays(text: &str) -> Vec<Array> {
    let mut all = Vec::new();
    for line in text.lines() {
        let Some(at) = line.find("var<") else {
            continue;
        };
        let (space, rest) = line[at + 4..].split_once('>').unwrap();
        let (name, of) = rest.trim_end_matches(';').split_once(':').unwrap();
        let Some(inner) = of.trim().strip_prefix("array<") else {
            continue;
        };
        let inner = inner.strip_suffix('>').unwrap();
        let name = name.trim().to_owned();
        let (element, length) = match inner.rsplit_once(',') {
            Some((element, length)) => (element, format!("u32({})", length.trim())),
            None => (inner, format!("arrayLength(&{name})")),
        };
        all.push(Array {
            element: element.trim().to_owned(),
            length,
            writable: space.contains("read_write"),
            name,
        });
    }
    all
}

/// The text with each `array[index]` as `array[checked_array(index)]`.
fn with_checked_indices(text: &str, arrays: &[Array]) -> String {
    let mut out = String::new();
    let mut rest = text;
    // A word before a bracket is an array's name, a vector's or a matrix's.
    while let Some(open) = rest.find('[') {
        let before = &rest[..open];
        let word = before
            .rsplit(|c: char| !(c.is_alphanumeric() || c == '_'))
            .next()
            .unwrap_or_default();
        let is_member = before[..open - word.len()].ends_with('.');
        let close = closing(&rest[open..]) + open;
        let index = with_checked_indices(&rest[open + 1..close], arrays);
        let known = !is_member && arrays.iter().any(|array| array.name == word);
        out.push_str(before);
        out.push_str(&match known {
            true => format!("[checked_{word}(u32({index}))]"),
            false => format!("[{index}]"),
        });
        rest = &rest[close + 1..];
    }
    out + rest
}

/// Where the bracket that `text` begins with is closed.
fn closing(text: &str) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    panic!("no closing bracket: {text}")
}

/// A shader's text with checks of its indices.
pub fn instrumented(text: &str) -> String {
    // Comments have brackets of their own.
    let bare = |line: &str| line.split("//").next().unwrap_or_default().to_owned() + "\n";
    let text: String = text.lines().map(bare).collect();
    let arrays = arrays(&text);
    let (before, entry) = text.split_once("@compute").expect("an entry point");
    let (workgroup, rest) = entry.split_once("fn main(").expect("fn main");
    let (parameters, body) = rest.split_once(") {").expect("a body");
    let bare: Vec<&str> = parameters.split("@builtin(").skip(1).collect();
    let bare: Vec<&str> = bare
        .iter()
        .map(|part| part.split_once(')').unwrap().1.trim().trim_end_matches(','))
        .collect();
    let names: Vec<&str> = bare
        .iter()
        .map(|part| part.split(':').next().unwrap().trim())
        .collect();
    let code = format!("{before}fn unchecked_main({}) {{{body}", bare.join(", "));
    let mut out = with_checked_indices(&code, &arrays);
    out.push_str(
        "var<private> out_of_range: bool;\nvar<workgroup> wg_out_of_range: atomic<u32>;\n",
    );
    for Array { name, length, .. } in &arrays {
        out.push_str(&format!(
            "fn checked_{name}(index: u32) -> u32 {{
    if index >= {length} {{
        out_of_range = true;
        return 0u;
    }}
    return index;
}}\n"
        ));
    }
    let mut spoil = String::new();
    for Array { name, element, .. } in arrays.iter().filter(|array| array.writable) {
        let store = match element.as_str() {
            "atomic<u32>" => format!("atomicStore(&{name}[n], {MARK})"),
            "f32" => format!("{name}[n] = bitcast<f32>({MARK})"),
            "vec4<f32>" => format!("{name}[n] = bitcast<vec4<f32>>(vec4<u32>({MARK}))"),
            "vec2<u64>" => format!("{name}[n] = vec2<u64>(u64({MARK}) * 0x100000001lu)"),
            _ => format!("{name}[n] = {element}({MARK})"),
        };
        spoil.push_str(&format!(
            "        for (var n = 0u; n < arrayLength(&{name}); n++) {{ {store}; }}\n"
        ));
    }
    // The last invocation of the workgroup that ends sees the mark and spoils what the
    // others may have written after it was set.
    out.push_str(&format!(
        "@compute{workgroup}fn main(
    {}
    @builtin(local_invocation_id) checked_id: vec3<u32>,
) {{
    if all(checked_id == vec3<u32>()) {{
        atomicStore(&wg_out_of_range, 0u);
    }}
    workgroupBarrier();
    unchecked_main({});
    if out_of_range {{
        atomicStore(&wg_out_of_range, 1u);
    }}
    if atomicLoad(&wg_out_of_range) != 0u {{
{spoil}    }}
}}\n",
        parameters.trim().trim_end_matches(',').to_owned() + ",",
        names.join(", "),
    ));
    out
}
