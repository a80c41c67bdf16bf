//! NumPy's files: .npy holds one array, .npz a ZIP archive of named ones.

use std::io::{self, Cursor, Read, Seek, Write};

use npyz::{DType, Endianness, NpyHeader, Order, TypeChar, WriterBuilder};
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

/// The bytes of an archive's entry, which is no longer than its own header says.
fn entry_bytes(entry: &mut impl Read) -> Result<Vec<u8>, String> {
    let failed = |e: io::Error| e.to_string();
    let mut bytes = Vec::new();
    entry.take(12).read_to_end(&mut bytes).map_err(failed)?;
    let text = header_end(&bytes)?.saturating_sub(bytes.len());
    entry
        .take(text as u64)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    let header = NpyHeader::from_reader(&bytes[..]).map_err(failed)?;
    let length = (size(&header)? + header_end(&bytes)?).saturating_sub(bytes.len());
    // One more, so that a longer entry is noticed.
    let rest = (length as u64).saturating_add(1);
    entry.take(rest).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Where the elements begin.
fn header_end(bytes: &[u8]) -> Result<usize, String> {
    let (prefix, length) = match bytes {
        [_, _, _, _, _, _, 1, _, low, high, ..] => {
            (10, usize::from(u16::from_le_bytes([*low, *high])))
        }
        [_, _, _, _, _, _, _, _, a, b, c, d, ..] => {
            (12, u32::from_le_bytes([*a, *b, *c, *d]) as usize)
        }
        _ => return Err("is no array of NumPy's".to_owned()),
    };
    match length <= MAX_HEADER {
        true => Ok(prefix + length),
        false => Err(format!("a header of {length} bytes, at most {MAX_HEADER}")),
    }
}

/// Bytes of the elements.
fn size(header: &NpyHeader) -> Result<usize, String> {
    let shape = header.shape();
    let axes = shape.iter().map(|&n| usize::try_from(n).ok());
    let count = axes.fold(Some(1usize), |count, n| count?.checked_mul(n?));
    count
        .and_then(|count| count.checked_mul(header.dtype().num_bytes()?))
        .ok_or_else(|| format!("shape {shape:?} is too large"))
}

/// One array, row-major and little-endian whatever the file has.
fn array(bytes: &[u8], round_f64: bool) -> Result<Array, String> {
    let start = header_end(bytes)?;
    let header = NpyHeader::from_reader(bytes).map_err(|e| e.to_string())?;
    let (dtype, is_big) = element(&header)?;
    let (size, shape) = (size(&header)?, header.shape());
    let data = bytes.get(start..).unwrap_or_default();
    if data.len() != size {
        let got = data.len();
        return Err(format!("shape {shape:?} has {size} bytes, got {got}"));
    }
    let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
    let width = dtype.bitsize() / 8;
    let is_column_major = header.order() == Order::Fortran && shape.len() > 1;
    if !is_big && !is_column_major {
        return of(dtype, &shape, data, round_f64);
    }
    let mut turned = memory::reserved("its elements", size).map_err(|e| e.to_string())?;
    match is_column_major {
        false => turned.extend_from_slice(data),
        true => {
            let mut place = vec![0; shape.len()];
            for _ in 0..size / width {
                let at = place.iter().zip(&shape).rev();
                let at = at.fold(0, |flat, (index, axis)| flat * axis + index);
                turned.extend_from_slice(&data[at * width..][..width]);
                for (index, axis) in place.iter_mut().zip(&shape).rev() {
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
    of(dtype, &shape, &turned, round_f64)
}

fn of(dtype: Dtype, shape: &[usize], data: &[u8], round_f64: bool) -> Result<Array, String> {
    let view = TensorView::new(dtype, shape.to_vec(), data).map_err(|e| e.to_string())?;
    Array::from_view_with(&view, round_f64)
}

/// The element type, and whether its bytes are big-endian.
fn element(header: &NpyHeader) -> Result<(Dtype, bool), String> {
    let DType::Plain(plain) = header.dtype() else {
        return Err("expected numbers, got a structured array".to_owned());
    };
    let dtype = match (plain.type_char(), plain.size_field()) {
        (TypeChar::Bool, 1) => Dtype::BOOL,
        (TypeChar::Float, 2) => Dtype::F16,
        (TypeChar::Float, 4) => Dtype::F32,
        (TypeChar::Float, 8) => Dtype::F64,
        (TypeChar::Int, 4) => Dtype::I32,
        (TypeChar::Int, 8) => Dtype::I64,
        (TypeChar::Uint, 4) => Dtype::U32,
        (TypeChar::RawData, 2) => {
            return Err("raw data of 2 bytes; bfloat16 is read from safetensors files".to_owned());
        }
        _ => return Err(not_read(&format!("'{plain}'"))),
    };
    Ok((dtype, plain.endianness() == Endianness::Big))
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
    let dtype = type_of(array).map_err(io::Error::other)?;
    let dtype = dtype.parse().map_err(io::Error::other)?;
    let shape: Vec<u64> = array.shape.iter().map(|&n| n as u64).collect();
    npyz::WriteOptions::new_header_only()
        .dtype(DType::Plain(dtype))
        .shape(&shape)
        .writer(&mut to)
        .write_header_only()?;
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
        refused(&npy("|O", "False", "(1,)", &[0; 8]), "");
        let mut long = b"\x93NUMPY\x02\x00\xff\xff\xff\x7f".to_vec();
        long.extend([b'('; 100]);
        refused(&long, "a header of 2147483647 bytes");
        refused(&npy("<f4", "False", &"(".repeat(50_000), &[]), "");
    }
}
