//! NumPy's files: .npy holds one array, .npz a ZIP archive of named ones.
//!
//! The header of an array is read here: it is one dictionary of three known keys, and
//! npyz, the crate for it, multiplies the axes of a hostile file without a check.

use std::io::{self, Cursor, Read, Seek, Write};

use safetensors::tensor::{Dtype, TensorView, View};

use crate::array::{Array, not_read};
use crate::case::File;
use crate::memory;
use crate::report::shown;

/// The forms of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Npy,
    Npz,
}

/// The name that the array of an .npy file gets.
pub const ONLY: &str = "QKV";

/// The longest header of an array that is read, in bytes. NumPy itself stops at 10,000.
const MAX_HEADER: usize = 1 << 16;

/// Which form the bytes have, if any.
pub fn kind(bytes: &[u8]) -> Option<Kind> {
    match bytes {
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Some(Kind::Npy),
        // The second is that of an empty archive.
        [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Some(Kind::Npz),
        _ => None,
    }
}

/// Parses a file. It has no metadata; one array gets the name [`ONLY`].
pub fn parse(kind: Kind, bytes: &[u8], round_f64: bool) -> Result<File, String> {
    let mut file = File::default();
    if kind == Kind::Npy {
        let array = array(bytes, round_f64).map_err(|e| format!("the .npy file: {e}"))?;
        file.tensors.insert(ONLY.to_owned(), array);
        return Ok(file);
    }
    let foreign = |e: &dyn std::fmt::Display| format!("not an .npz file: {e}");
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).map_err(|e| foreign(&e))?;
    for at in 0..archive.len() {
        let mut entry = archive.by_index(at).map_err(|e| foreign(&e))?;
        let name = entry.name().to_owned();
        let Some(name) = name.strip_suffix(".npy") else {
            let name = shown(&name);
            return Err(foreign(&format_args!("{name} in it is no .npy file")));
        };
        let named = |e: String| format!("array {}: {e}", shown(name));
        let array = entry_bytes(&mut entry).and_then(|bytes| array(&bytes, round_f64));
        let array = array.map_err(named)?;
        if file.tensors.insert(name.to_owned(), array).is_some() {
            return Err(named("is in the file twice".to_owned()));
        }
    }
    Ok(file)
}

/// The bytes of an archive's entry: no more than its own header asks for, and one, so
/// that a longer entry is noticed.
fn entry_bytes(entry: &mut impl Read) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut until = |bytes: &mut Vec<u8>, end: usize| {
        let missing = end.saturating_sub(bytes.len()) as u64;
        let read = entry.by_ref().take(missing).read_to_end(bytes);
        read.map(|_| ()).map_err(|e| e.to_string())
    };
    until(&mut bytes, 12)?;
    let start = header_end(&bytes)?;
    until(&mut bytes, start)?;
    let end = start.saturating_add(Header::of(&bytes)?.size()?);
    until(&mut bytes, end.saturating_add(1))?;
    Ok(bytes)
}

/// Where the text of the header begins, by the version of the format.
fn text_start(bytes: &[u8]) -> usize {
    if bytes.get(6) == Some(&1) { 10 } else { 12 }
}

/// Where the elements begin.
fn header_end(bytes: &[u8]) -> Result<usize, String> {
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
struct Header {
    /// Byte order, kind and size: '<f4'.
    descr: Option<String>,
    column_major: Option<bool>,
    shape: Option<Vec<usize>>,
}

impl Header {
    fn of(bytes: &[u8]) -> Result<Header, String> {
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
            match key {
                "descr" => header.descr = Some(text.string()?.to_owned()),
                "fortran_order" => header.column_major = Some(text.truth()?),
                "shape" => header.shape = Some(text.axes()?),
                other => {
                    return Err(format!(
                        "expected descr, fortran_order, shape, got {other:?}"
                    ));
                }
            }
            if !text.skip(',') {
                text.expect('}')?;
                break;
            }
        }
        Ok(header)
    }

    fn shape(&self) -> Result<&[usize], String> {
        self.shape.as_deref().ok_or_else(|| "no shape".to_owned())
    }

    /// Bytes of the elements.
    fn size(&self) -> Result<usize, String> {
        let shape = self.shape()?;
        let width = self.element()?.0.bitsize() / 8;
        let size = shape.iter().try_fold(width, |size, &n| size.checked_mul(n));
        size.ok_or_else(|| format!("shape {shape:?} is too large"))
    }

    /// The element type, and whether its bytes are big-endian.
    fn element(&self) -> Result<(Dtype, bool), String> {
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
            _ => return Err(not_read(&format!("'{descr}'"))),
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

/// One array, row-major and little-endian whatever the file has.
fn array(bytes: &[u8], round_f64: bool) -> Result<Array, String> {
    let header = Header::of(bytes)?;
    let (dtype, is_big) = header.element()?;
    let (size, shape) = (header.size()?, header.shape()?);
    let data = bytes.get(header_end(bytes)?..).unwrap_or_default();
    if data.len() != size {
        let got = data.len();
        return Err(format!("shape {shape:?} has {size} bytes, got {got}"));
    }
    let width = dtype.bitsize() / 8;
    let column_major = header.column_major.ok_or("no fortran_order")? && shape.len() > 1;
    if !is_big && !column_major {
        return of(dtype, shape, data, round_f64);
    }
    let mut turned = memory::reserved("its elements", size).map_err(|e| e.to_string())?;
    match column_major {
        false => turned.extend_from_slice(data),
        true => {
            let mut place = vec![0; shape.len()];
            for _ in 0..size / width {
                let at = place.iter().zip(shape).rev();
                let at = at.fold(0, |flat, (index, axis)| flat * axis + index);
                turned.extend_from_slice(&data[at * width..][..width]);
                for (index, axis) in place.iter_mut().zip(shape).rev() {
                    *index = (*index + 1) % axis;
                    if *index > 0 {
                        break;
                    }
                }
            }
        }
    }
    if is_big {
        turned.chunks_mut(width).for_each(<[u8]>::reverse);
    }
    of(dtype, shape, &turned, round_f64)
}

fn of(dtype: Dtype, shape: &[usize], data: &[u8], round_f64: bool) -> Result<Array, String> {
    let view = TensorView::new(dtype, shape.to_vec(), data).map_err(|e| e.to_string())?;
    Array::from_view_with(&view, round_f64)
}

/// Whether NumPy has the array's element type.
pub fn check(name: &str, array: &Array) -> Result<(), String> {
    type_of(array)
        .map(|_| ())
        .map_err(|e| format!("{name}: {e}"))
}

fn type_of(array: &Array) -> Result<&'static str, String> {
    match View::dtype(&array) {
        Dtype::F32 => Ok("<f4"),
        Dtype::F16 => Ok("<f2"),
        Dtype::I32 => Ok("<i4"),
        Dtype::I64 => Ok("<i8"),
        Dtype::BOOL => Ok("|b1"),
        other => Err(format!(
            "NumPy has no {other}: --output-dtype f32, or a .safetensors file"
        )),
    }
}

/// Writes an .npy file.
pub fn write_npy(array: &Array, mut to: impl Write) -> io::Result<()> {
    let descr = type_of(array).map_err(io::Error::other)?;
    let axes: String = array.shape.iter().map(|n| format!("{n}, ")).collect();
    let axes = match array.shape.len() {
        1 => axes.trim_end(),
        _ => axes.trim_end_matches(", "),
    };
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({axes}), }}");
    // Elements begin at a multiple of 64 bytes.
    let length = (10 + text.len() + 1).next_multiple_of(64) - 10;
    to.write_all(b"\x93NUMPY\x01\x00")?;
    to.write_all(&(length as u16).to_le_bytes())?;
    writeln!(to, "{text:<width$}", width = length - 1)?;
    to.write_all(&View::data(&array))
}

/// Writes an .npz file, not compressed, as `numpy.savez` does.
pub fn write_npz(arrays: &[(String, Array)], to: impl Write + Seek) -> io::Result<()> {
    let mut archive = zip::ZipWriter::new(to);
    for (name, array) in arrays {
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored)
            .large_file(true);
        archive.start_file(format!("{name}.npy"), options)?;
        write_npy(array, &mut archive)?;
    }
    archive.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Values;

    fn npy(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let text =
            format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn parsed(bytes: &[u8]) -> Result<Array, String> {
        let mut file = parse(kind(bytes).unwrap(), bytes, true)?;
        Ok(file.tensors.remove(ONLY).unwrap())
    }

    #[test]
    fn orders_of_elements_and_bytes_are_read() {
        // [[0, 1, 2], [3, 4, 5]], column by column, big-endian.
        let data: Vec<u8> = [0f64, 3.0, 1.0, 4.0, 2.0, 5.0]
            .iter()
            .flat_map(|x| x.to_be_bytes())
            .collect();
        let array = parsed(&npy(">f8", "True", "(2, 3)", &data)).unwrap();
        assert_eq!(array.shape, [2, 3]);
        let Values::F32(values) = array.values else {
            panic!("{array:?}");
        };
        assert_eq!(values, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let empty = parsed(&npy("<f4", "True", "(0, 3)", &[])).unwrap();
        assert_eq!(empty.shape, [0, 3]);
        let scalar = parsed(&npy("|b1", "False", "()", &[1])).unwrap();
        assert_eq!((scalar.shape.len(), scalar.len()), (0, 1));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let arrays = [
            (
                "Y".to_owned(),
                Array::f32(&[2, 1, 3], vec![0.5, -1.0, f32::NAN, 3.0, 4.0, 5.0]),
            ),
            (
                "lse".to_owned(),
                Array {
                    shape: vec![2],
                    values: Values::F16([1.5f32, -2.0].map(half::f16::from_f32).to_vec()),
                },
            ),
        ];
        let mut bytes = Cursor::new(Vec::new());
        write_npz(&arrays, &mut bytes).unwrap();
        let bytes = bytes.into_inner();
        let file = parse(kind(&bytes).unwrap(), &bytes, false).unwrap();
        for (name, array) in &arrays {
            // By their bits: one is NaN.
            assert_eq!(View::data(&&file.tensors[name]), View::data(&array));
            assert_eq!(file.tensors[name].shape, array.shape);
        }
    }

    #[test]
    fn damaged_files_are_errors() {
        let whole = npy("<f4", "False", "(2,)", &[0; 8]);
        assert!(parsed(&whole).is_ok());
        for cut in 6..whole.len() {
            parsed(&whole[..cut]).unwrap_err();
        }
        let refused = |bytes: &[u8], why: &str| {
            let error = parsed(bytes).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        refused(&npy("<f4", "False", "(2,)", &[0; 9]), "has 8 bytes, got 9");
        let huge = "(4294967296, 4294967296, 4294967296)";
        refused(&npy("<f4", "False", huge, &[]), "is too large");
        refused(&npy("<c8", "False", "(1,)", &[0; 8]), "'<c8' is not read");
        refused(&npy("|V2", "False", "(1,)", &[0; 2]), "bfloat16");
        refused(&npy("|O", "False", "(1,)", &[0; 8]), "'|O' is not read");
        for shape in ["(-1,)", "(1 2)", "(1,", "1", "(99999999999999999999,)"] {
            refused(&npy("<f4", "False", shape, &[]), "its header: expected ");
        }
        refused(
            &npy("<f4", "Maybe", "(2,)", &[0; 8]),
            "expected True or False",
        );
        let records = b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (0,), }";
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((records.len() as u16).to_le_bytes());
        bytes.extend(records);
        refused(&bytes, "no structured array");
        let mut long = b"\x93NUMPY\x02\x00\xff\xff\xff\x7f".to_vec();
        long.extend([b'('; 100]);
        refused(&long, "a header of 2147483647 bytes");
        refused(
            &npy("<f4", "False", &"(".repeat(50_000), &[]),
            "expected an axis",
        );
    }
}
