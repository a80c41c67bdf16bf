//! NumPy's files: .npy holds one array, .npz a ZIP archive of named ones.
//!
//! The header of an array is read here: it is one dictionary of three known keys, and
//! npyz, the crate for it, multiplies the axes of a hostile file without a check.

mod header;

use std::collections::BTreeSet;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};

use safetensors::tensor::{Dtype, TensorView, View};

use crate::array::Array;
use crate::case::File;
use crate::memory;
use crate::report::shown;
use header::{Header, header_end};

/// The forms of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Npy,
    Npz,
}

/// The name that the array of an .npy file gets.
pub const ONLY: &str = "QKV";

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
    // The archive keeps one entry of each name.
    if let Some(name) = twice(bytes, archive.central_directory_start()) {
        let name = shown(&name);
        return Err(format!("the .npz file: {name} is in it twice"));
    }
    for at in 0..archive.len() {
        let mut entry = archive.by_index(at).map_err(|e| foreign(&e))?;
        let name = entry.name().to_owned();
        let Some(name) = name.strip_suffix(".npy") else {
            let name = shown(&name);
            return Err(foreign(&format_args!("{name} in it is no .npy file")));
        };
        let named = |e: String| format!("array {}: {e}", shown(name));
        let array = entry_bytes(&mut entry).and_then(|bytes| array(&bytes, round_f64));
        file.tensors.insert(name.to_owned(), array.map_err(named)?);
    }
    Ok(file)
}

/// The first name that is a second time in an archive's central directory, which begins at
/// `start`.
fn twice(bytes: &[u8], start: u64) -> Option<String> {
    let mut rest = bytes.get(usize::try_from(start).ok()?..)?;
    let mut names = BTreeSet::new();
    while rest.starts_with(b"PK\x01\x02") {
        let length = |at: usize| Some(usize::from(u16::from_le_bytes([rest[at], rest[at + 1]])));
        let fixed = rest.get(..46).and(Some(46))?;
        let (name, extra, comment) = (length(28)?, length(30)?, length(32)?);
        let name = rest.get(fixed..fixed + name)?;
        if !names.insert(name) {
            return Some(String::from_utf8_lossy(name).into_owned());
        }
        rest = rest.get(fixed + name.len() + extra + comment..)?;
    }
    None
}

/// The bytes of an archive's entry: no more than its own header asks for, and one, so
/// that a longer entry is noticed. Compressed, they may be a thousand times as many as in
/// the file: memory is the bound, and without enough of it reading is an error.
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
    let mut to = Failing { to, failed: None };
    let written = archive(arrays, &mut to);
    to.failed.map_or(written, Err)
}

fn archive(arrays: &[(String, Array)], to: impl Write + Seek) -> io::Result<()> {
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

/// A file that keeps its first error and takes everything after it: an archive that is
/// dropped on an error goes on writing, and would tell stderr that it cannot.
struct Failing<W> {
    to: W,
    failed: Option<io::Error>,
}

impl<W> Failing<W> {
    fn keep<T: Copy>(
        &mut self,
        instead: T,
        call: impl FnOnce(&mut W) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.failed.is_some() {
            return Ok(instead);
        }
        call(&mut self.to).or_else(|error| {
            let kind = error.kind();
            self.failed = Some(error);
            match kind {
                // The caller tries again.
                io::ErrorKind::Interrupted => {
                    self.failed = None;
                    Err(kind.into())
                }
                _ => Ok(instead),
            }
        })
    }
}

impl<W: Write> Write for Failing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.keep(bytes.len(), |to| to.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.keep((), W::flush)
    }
}

impl<W: Seek> Seek for Failing<W> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        // Behind every start, as positions are subtracted.
        self.keep(u64::from(u32::MAX) << 16, |file| file.seek(to))
    }
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
    fn an_entry_that_is_there_twice_is_refused() {
        let arrays = ["Q", "K"].map(|name| (name.to_owned(), Array::f32(&[1], vec![0.5])));
        let mut bytes = Cursor::new(Vec::new());
        write_npz(&arrays, &mut bytes).unwrap();
        let mut bytes = bytes.into_inner();
        assert!(parse(Kind::Npz, &bytes, false).is_ok());
        let at = |bytes: &[u8]| bytes.windows(5).position(|w| w == b"K.npy");
        while let Some(at) = at(&bytes) {
            bytes[at] = b'Q';
        }
        let refused = parse(Kind::Npz, &bytes, false).unwrap_err();
        assert_eq!(refused, "the .npz file: Q.npy is in it twice");
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
        // Each element of the other order costs its axes.
        let ones = format!("(1048576,{})", "1,".repeat(20_000));
        let many = npy("|b1", "True", &ones, &[0; 1 << 20]);
        refused(&many, "at most 32");
        let twice = |text: &str| {
            let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
            bytes.extend((text.len() as u16).to_le_bytes());
            [&bytes, text.as_bytes(), &[0; 8]].concat()
        };
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)";
        assert!(parsed(&twice(&format!("{text}}} \n"))).is_ok());
        for more in ["descr': '<f4'", "fortran_order': True", "shape': (2,)"] {
            let why = format!("{} is in it twice", &more[..more.find('\'').unwrap()]);
            refused(&twice(&format!("{text}, '{more}}}")), &why);
        }
        refused(&twice(&format!("{text}}} or so")), "got \"or so\"");
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
