//! Lints of WGSL that naga does not have. Each one is tested to reject.
#![allow(dead_code)]

pub mod uniformity;

use naga::valid::Capabilities;
use naga::{AddressSpace, Module};

pub fn parse(text: &str) -> Result<Module, String> {
    naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))
}

/// Validates against what plain WebGPU has, `unpack2x16float` included.
pub fn validate(module: &Module) -> Result<naga::valid::ModuleInfo, String> {
    validate_with(module, Capabilities::empty())
}

/// The same for a device that can do more.
pub fn validate_with(
    module: &Module,
    more: Capabilities,
) -> Result<naga::valid::ModuleInfo, String> {
    naga::valid::Validator::new(
        naga::valid::ValidationFlags::all(),
        Capabilities::SHADER_FLOAT16_IN_FLOAT32 | more,
    )
    .validate(module)
    .map_err(|error| format!("{error:?}"))
}

/// The text without comments.
pub fn code(text: &str) -> String {
    let lines = text.lines();
    let strip = |line: &str| line.split("//").next().unwrap_or("").to_owned();
    lines.map(strip).collect::<Vec<_>>().join("\n")
}

/// What is forbidden in the text of a shader, with the line it is on.
///
/// Infinities and NaN may be assumed absent by an implementation, and browsers
/// refuse them as constants; `x == x` is the same trap in other words; and an
/// extension would leave the plain kernels' promise to run everywhere.
pub fn forbidden(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in code(text).lines().enumerate() {
        let mut report = |what: &str| found.push(format!("line {}: {what}", index + 1));
        let first = line.split_whitespace().next();
        if matches!(first, Some("enable" | "requires")) {
            report("an extension");
        }
        let words = || line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let names = [
            "inf", "nan", "infinity", "isnan", "isinf", "is_nan", "is_inf",
        ];
        if words().any(|word| names.contains(&word.to_lowercase().as_str())) {
            report("an infinity or NaN by name");
        }
        if let Some((_, rest)) = line.split_once("bitcast<f32>(0x") {
            let digits: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
            let bits = u32::from_str_radix(&digits, 16).unwrap_or(u32::MAX);
            if !f32::from_bits(bits).is_finite() {
                report("an infinity or NaN by its bits");
            }
        }
        if compares_with_itself(line) {
            report("a comparison of a value with itself");
        }
    }
    found
}

fn compares_with_itself(line: &str) -> bool {
    let is_operand = |c: char| c.is_ascii_alphanumeric() || "_.[]".contains(c);
    ["==", "!="].iter().any(|operator| {
        line.match_indices(operator).any(|(at, _)| {
            let left = line[..at].trim_end();
            let right = line[at + 2..].trim_start();
            let start = left.rfind(|c| !is_operand(c)).map_or(0, |i| i + 1);
            let end = right.find(|c| !is_operand(c)).unwrap_or(right.len());
            let (left, right) = (&left[start..], &right[..end]);
            !left.is_empty() && left == right && !left.starts_with(|c: char| c.is_ascii_digit())
        })
    })
}

/// Literals whose magnitude exceeds f32's largest finite value as they are written, with
/// the line each is on. A compiler may refuse one that would round to that value.
pub fn beyond_f32(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in code(text).lines().enumerate() {
        for literal in number_literals(line) {
            let value = number(literal);
            if value.is_none_or(|value| value > f64::from(f32::MAX)) {
                found.push(format!("line {}: {literal}", index + 1));
            }
        }
    }
    found
}

/// Unsigned number literals of a line, with their suffixes.
fn number_literals(line: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut literals = Vec::new();
    let mut at = 0;
    while let Some(c) = line[at..].chars().next() {
        let rest = &line[at..];
        let fraction = rest.strip_prefix('.').unwrap_or("");
        let digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        let len = if digit(rest) || digit(fraction) {
            let exponents = if rest.starts_with("0x") || rest.starts_with("0X") {
                ['p', 'P']
            } else {
                ['e', 'E']
            };
            let mut before = ' ';
            let ends = |c: char| {
                let sign = matches!(c, '+' | '-') && exponents.contains(&before);
                before = c;
                !(is_word(c) || c == '.' || sign)
            };
            let len = rest.find(ends).unwrap_or(rest.len());
            literals.push(&rest[..len]);
            len
        } else if is_word(c) {
            // A name, digits included.
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else {
            c.len_utf8()
        };
        at += len;
    }
    literals
}

/// The value of a literal; `None` if it is not understood.
fn number(literal: &str) -> Option<f64> {
    let hex = literal.strip_prefix("0x").or(literal.strip_prefix("0X"));
    let Some(hex) = hex else {
        return literal.trim_end_matches(['f', 'h', 'i', 'u']).parse().ok();
    };
    let (digits, exponent) = match hex.split_once(['p', 'P']) {
        Some((digits, exponent)) => (digits, exponent.trim_end_matches(['f', 'h']).parse().ok()?),
        None => (hex.trim_end_matches(['i', 'u']), 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mantissa = u64::from_str_radix(&format!("{whole}{fraction}"), 16).ok()?;
    let exponent = exponent - 4 * i32::try_from(fraction.len()).ok()?;
    Some(mantissa as f64 * 2f64.powi(exponent))
}

/// Bytes of workgroup memory as WebGPU counts them: each variable rounded up to 16.
pub fn workgroup_memory(module: &Module) -> u64 {
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).unwrap();
    let variables = module.global_variables.iter();
    variables
        .filter(|(_, variable)| variable.space == AddressSpace::WorkGroup)
        .map(|(_, variable)| u64::from(layouter[variable.ty].size).next_multiple_of(16))
        .sum()
}
