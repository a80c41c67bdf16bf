//! Files that are read: regular ones, as a whole.
//!
//! A device such as /dev/zero has no end, and a named pipe without a writer never
//! begins: both are refused before they are opened.

use std::fs;
use std::io::Read;
use std::path::Path;

use crate::memory;

/// Opens a regular file; also says how many bytes it has.
pub fn open(path: &Path) -> Result<(fs::File, u64), String> {
    let unreadable = |e| format!("cannot be read: {e}");
    let found = path.metadata().map_err(unreadable)?;
    if !found.is_file() {
        let what = match found.is_dir() {
            true => "is a folder",
            false => "is a device, a pipe or a socket",
        };
        return Err(format!("{what}, expected a regular file"));
    }
    Ok((fs::File::open(path).map_err(unreadable)?, found.len()))
}

/// The bytes of a regular file.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    let (file, length) = open(path)?;
    let count = usize::try_from(length).unwrap_or(usize::MAX);
    let mut bytes = memory::reserved("the file's bytes", count).map_err(|e| e.to_string())?;
    // What is appended meanwhile is not waited for.
    let read = file.take(length).read_to_end(&mut bytes);
    read.map_err(|e| format!("cannot be read: {e}"))?;
    Ok(bytes)
}

/// The text of a regular file.
pub fn text(path: &Path) -> Result<String, String> {
    String::from_utf8(read(path)?).map_err(|e| format!("not UTF-8: {e}"))
}
