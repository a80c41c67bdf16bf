//! What stands before the elements of an array: one dictionary of three known keys.

use safetensors::tensor::Dtype;

use super::{Kind, kind};
use crate::array::{MAX_AXES, not_read, too_many_axes};
use crate::report::shown;

/// The longest header of an array that is read, in bytes. NumPy itself stops at 10,000.
const MAX_HEADER: usize = 1 << 16;

/// Where the text of the header begins, by the version of the format.
fn text_start(bytes: &[u8]) -> usize {
    if bytes.get(6) == Some(&1) { 10 } else { 12 }
}

/// Where the elements begin.
pub fn header_end(bytes: &[u8]) -> Result<usize, String> {
    let start = text_start(bytes);
    let length = match bytes.get(8..start) {
        Some(&[low, high]) => usize::from(u16::from_le_bytes([low, high])),
        Some(&[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]) as usize,
        _ => return Err("is no array of NumPy's".to_owned()),
    };
    match length <= MAX_HEADER {
        true => Ok(start + length),
        false => Err(format!("a header of {length} bytes, at most {MAX_HEADER}")),
    }
}

/// What stands before the elements.
#[derive(Debug, Default)]
pub struct Header {
    /// Byte order, kind and size: '<f4'.
    descr: Option<String>,
    pub column_major: Option<bool>,
    shape: Option<Vec<usize>>,
}

impl Header {
    pub fn of(bytes: &[u8]) -> Result<Header, String> {
        if kind(bytes) != Some(Kind::Npy) {
            return Err("is no array of NumPy's".to_owned());
        }
        let text = bytes.get(text_start(bytes)..header_end(bytes)?);
        let text = text.and_then(|text| std::str::from_utf8(text).ok());
        let header = Header::parse(&mut Text(text.ok_or("its header is cut or no text")?));
        header.map_err(|e| format!("its header: {e}"))
    }

    /// A dictionary of three keys in any order.
    fn parse(text: &mut Text<'_>) -> Result<Header, String> {
        let mut header = Header::default();
        text.expect('{')?;
        while !text.skip('}') {
            let key = text.string()?;
            text.expect(':')?;
            let is_twice = match key {
                "descr" => header.descr.is_some(),
                "fortran_order" => header.column_major.is_some(),
                _ => header.shape.is_some() && key == "shape",
            };
            if is_twice {
                return Err(format!("{key} is in it twice"));
            }
            match key {
                "descr" => header.descr = Some(text.string()?.to_owned()),
                "fortran_order" => header.column_major = Some(text.truth()?),
                "shape" => header.shape = Some(text.axes()?),
                other => {
                    return Err(format!(
                        "expected descr, fortran_order, shape, got {}",
                        shown(other)
                    ));
                }
            }
            if !text.skip(',') {
                text.expect('}')?;
                break;
            }
        }
        match text.0.trim().is_empty() {
            true => Ok(header),
            false => text.wrong("nothing after the dictionary"),
        }
    }

    pub fn shape(&self) -> Result<&[usize], String> {
        self.shape.as_deref().ok_or_else(|| "no shape".to_owned())
    }

    /// Bytes of the elements.
    pub fn size(&self) -> Result<usize, String> {
        let shape = self.shape()?;
        let width = self.element()?.0.bitsize() / 8;
        let size = shape.iter().try_fold(width, |size, &n| size.checked_mul(n));
        size.ok_or_else(|| format!("shape {shape:?} is too large"))
    }

    /// The element type, and whether its bytes are big-endian.
    pub fn element(&self) -> Result<(Dtype, bool), String> {
        let descr = self.descr.as_deref().ok_or("no descr")?;
        let (order, element) = match descr.strip_prefix(['<', '>', '|', '=']) {
            Some(element) => (&descr[..1], element),
            None => ("", descr),
        };
        let dtype = match element {
            "b1" | "?" => Dtype::BOOL,
            "f2" => Dtype::F16,
            "f4" => Dtype::F32,
            "f8" => Dtype::F64,
            "i4" => Dtype::I32,
            "i8" => Dtype::I64,
            "u4" => Dtype::U32,
            "V2" => {
                let what = "raw data of 2 bytes; bfloat16 is read from safetensors files";
                return Err(what.to_owned());
            }
            _ => return Err(not_read(&format!("'{}'", shown(descr)))),
        };
        Ok((dtype, order == ">"))
    }
}

/// What is left of a header's text.
struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    /// Whether it goes on with `c`, which is taken.
    fn skip(&mut self, c: char) -> bool {
        self.0 = self.0.trim_start();
        match self.0.strip_prefix(c) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn wrong<T>(&self, expected: &str) -> Result<T, String> {
        let next: String = self.0.trim_start().chars().take(12).collect();
        Err(format!("expected {expected}, got {next:?}"))
    }

    fn expect(&mut self, c: char) -> Result<(), String> {
        match self.skip(c) {
            true => Ok(()),
            false => self.wrong(&format!("{c:?}")),
        }
    }

    fn string(&mut self) -> Result<&'a str, String> {
        for quote in ['\'', '"'] {
            if self.skip(quote)
                && let Some((string, rest)) = self.0.split_once(quote)
            {
                self.0 = rest;
                return Ok(string);
            }
        }
        self.wrong("a string (no structured array)")
    }

    fn truth(&mut self) -> Result<bool, String> {
        self.0 = self.0.trim_start();
        for (word, truth) in [("True", true), ("False", false)] {
            if let Some(rest) = self.0.strip_prefix(word) {
                self.0 = rest;
                return Ok(truth);
            }
        }
        self.wrong("True or False")
    }

    /// A tuple of axes.
    fn axes(&mut self) -> Result<Vec<usize>, String> {
        let mut axes = Vec::new();
        self.expect('(')?;
        while !self.skip(')') {
            self.0 = self.0.trim_start();
            let end = self
                .0
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(self.0.len());
            let (digits, rest) = self.0.split_at(end);
            match digits.parse() {
                // Before their number costs anything.
                Ok(_) if axes.len() == MAX_AXES => return Err(too_many_axes("more")),
                Ok(axis) => axes.push(axis),
                Err(_) => return self.wrong("an axis"),
            }
            // Python 2's long numbers.
            self.0 = rest.strip_prefix('L').unwrap_or(rest);
            if !self.skip(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(axes)
    }
}
