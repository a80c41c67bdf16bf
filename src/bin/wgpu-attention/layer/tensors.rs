//! A safetensors file of any size, of which only what is asked for is read.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use safetensors::tensor::{Metadata, TensorView};

use crate::array::Array;
use crate::report::{listed, shown};
use crate::{input, json, memory};

/// The longest header that the format allows, in bytes.
const MAX_HEADER: u64 = 100_000_000;

/// The longest name that is compared with another, in bytes, and how many are: the time
/// that takes grows with the product of their lengths.
const MAX_NAME: usize = 256;
const MAX_NAMES: usize = 1_000;

/// An open file and its header.
#[derive(Debug)]
pub struct Tensors {
    file: fs::File,
    header: Metadata,
    /// Where the elements begin.
    start: u64,
}

impl Tensors {
    /// Opens a file and reads its header.
    pub fn open(path: &Path) -> Result<Tensors, String> {
        let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let foreign =
            |e: &dyn std::fmt::Display| named(&format_args!("not a safetensors file: {e}"));
        let (mut file, size) = input::open(path).map_err(|e| named(&e))?;
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|e| foreign(&e))?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER.min(size) {
            return Err(foreign(&format_args!("a header of {length} bytes")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(|e| foreign(&e))?;
        let header: Metadata = json::read(&header).map_err(|e| foreign(&e))?;
        let (start, elements) = (8 + length, header.data_len() as u64);
        if size.checked_sub(start) != Some(elements) {
            let (has, needed) = (size - start, elements);
            return Err(foreign(&format_args!("{has} bytes of {needed} elements")));
        }
        Ok(Tensors {
            file,
            header,
            start,
        })
    }

    /// Every name, sorted; numbers between dots by their value.
    pub fn names(&self) -> Vec<String> {
        let mut names = self.header.offset_keys();
        names.sort_by_cached_key(|name| by_number(name));
        names
    }

    /// Whether there is such a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.header.info(name).is_some()
    }

    /// The attributes of the file.
    pub fn metadata(&self) -> HashMap<String, String> {
        self.header.metadata().clone().unwrap_or_default()
    }

    /// Reads a tensor.
    pub fn read(&self, name: &str) -> Result<Array, String> {
        let named = |e: &dyn std::fmt::Display| format!("{}: {e}", shown(name));
        let Some(info) = self.header.info(name) else {
            return Err(format!("no tensor {}; {}", shown(name), self.near(name)));
        };
        let (first, end) = info.data_offsets;
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.start + first as u64))
            .map_err(|e| named(&e))?;
        let mut bytes =
            memory::reserved("the tensor's bytes", end - first).map_err(|e| named(&e))?;
        bytes.resize(end - first, 0);
        file.read_exact(&mut bytes).map_err(|e| named(&e))?;
        let view = TensorView::new(info.dtype, info.shape.clone(), &bytes);
        let view = view.map_err(|e| named(&e))?;
        Array::from_view(&view).map_err(|e| named(&e))
    }

    /// The names most like one that is not there.
    fn near(&self, name: &str) -> String {
        let names = self.names();
        match names.is_empty() {
            true => "there is none".to_owned(),
            false => nearest(name, names),
        }
    }
}

/// Of several names those most like another, for a message. Only names up to
/// [`MAX_NAME`] are compared, and of those the [`MAX_NAMES`] that begin most like it.
fn nearest(name: &str, mut names: Vec<String>) -> String {
    if name.len() > MAX_NAME {
        return format!("its names are {}", listed(&names, 4));
    }
    names.retain(|other| other.len() <= MAX_NAME);
    let common = |other: &str| {
        name.bytes()
            .zip(other.bytes())
            .take_while(|(a, b)| a == b)
            .count()
    };
    names.sort_by_cached_key(|other| std::cmp::Reverse(common(other)));
    names.truncate(MAX_NAMES);
    names.sort_by_cached_key(|other| strsim::damerau_levenshtein(name, other));
    match names.is_empty() {
        true => format!("all its names are longer than {MAX_NAME} bytes"),
        false => format!("nearest are {}", listed(&names, 4)),
    }
}

/// A tensor of a file, on the command line.
#[derive(Debug, Clone)]
pub struct TensorPath {
    pub file: PathBuf,
    tensor: Option<String>,
}

impl FromStr for TensorPath {
    type Err = String;

    /// FILE:TENSOR, or the name of a file that there is.
    fn from_str(text: &str) -> Result<TensorPath, String> {
        let of = |file: &str, tensor: Option<&str>| TensorPath {
            file: PathBuf::from(file),
            tensor: tensor.map(str::to_owned),
        };
        Ok(match text.rsplit_once(':') {
            Some((file, tensor)) if !Path::new(text).exists() => of(file, Some(tensor)),
            _ => of(text, None),
        })
    }
}

impl TensorPath {
    /// The attributes of its file.
    pub fn metadata(&self) -> Result<HashMap<String, String>, String> {
        Ok(Tensors::open(&self.file)?.metadata())
    }

    /// The tensor and its name: the one named, the first of `usual` that there is,
    /// or the only one.
    pub fn read(&self, usual: &[&str]) -> Result<(String, Array), String> {
        let tensors = Tensors::open(&self.file)?;
        let names = tensors.names();
        let name = match (&self.tensor, &names[..]) {
            (Some(name), _) => name.clone(),
            (None, [only]) => only.clone(),
            (None, []) => {
                let file = self.file.display();
                return Err(format!("{file}: expected a tensor, got a file without any"));
            }
            (None, names) => match usual.iter().find(|name| tensors.has(name)) {
                Some(name) => (*name).to_owned(),
                None => {
                    let (file, names) = (self.file.display(), listed(names, 8));
                    return Err(format!("{file}: expected {file}:TENSOR, one of {names}"));
                }
            },
        };
        let array = tensors.read(&name);
        let array = array.map_err(|e| format!("{}: {e}", self.file.display()))?;
        Ok((name, array))
    }
}

/// So that layer 2 comes before layer 10.
fn by_number(name: &str) -> Vec<(Option<u64>, String)> {
    let parts = name.split('.');
    parts.map(|p| (p.parse().ok(), p.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::{MAX_NAME, nearest, shown};

    #[test]
    fn a_name_is_compared_with_short_ones_alone() {
        let long = |end: &str| format!("{}{end}", "a".repeat(MAX_NAME));
        let names = || vec![long("b"), "key".to_owned(), "quey".to_owned()];
        assert_eq!(nearest("query", names()), "nearest are quey, key");
        let all = format!("its names are {}, key, quey", shown(&long("b")));
        assert_eq!(nearest(&long("c"), names()), all);
        let none = nearest("query", vec![long("b")]);
        assert_eq!(
            none,
            format!("all its names are longer than {MAX_NAME} bytes")
        );
    }

    #[test]
    fn the_nearest_of_very_many_names_is_found() {
        let mut names: Vec<String> = (0..50_000).map(|n| format!("model.layers.{n}.x")).collect();
        names.push("model.layers.7.self.kye".to_owned());
        let near = nearest("model.layers.7.self.key", names);
        assert!(
            near.starts_with("nearest are model.layers.7.self.kye, "),
            "{near}"
        );
    }
}
