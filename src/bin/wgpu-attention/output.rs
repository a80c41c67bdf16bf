//! Files that are written: complete or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::signals::guarded;

/// Where the output goes, links followed; refuses what could lose data. `inputs` are all
/// the files that are read.
pub fn target<'a>(
    inputs: impl IntoIterator<Item = &'a Path>,
    output: &Path,
) -> Result<PathBuf, String> {
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", output.display());
    let Some(file) = output.file_name() else {
        return Err(named(&"is no name of a file"));
    };
    if output == Path::new("-") {
        return Err(named(
            &"is no file; what is written does not go to stdout (./- is a file)",
        ));
    }
    if output.is_symlink() || output.exists() {
        let real = output.canonicalize().map_err(|e| named(&e))?;
        if !real.is_file() {
            return Err(named(&"exists and is not a regular file"));
        }
        let is_output = |input: &Path| input.canonicalize().is_ok_and(|input| input == real);
        if inputs.into_iter().any(is_output) {
            return Err(named(&"is an input; it is not overwritten"));
        }
        return Ok(real);
    }
    let parent = match output.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    if !parent.is_dir() {
        return Err(named(&format!(
            "the folder {} does not exist",
            parent.display()
        )));
    }
    Ok(parent.join(file))
}

/// Writes a temporary file in the target's folder and renames it.
pub fn write(target: &Path, bytes: &[u8]) -> Result<(), String> {
    Draft::new(target, bytes)?.keep()
}

/// The same with what `fill` writes.
pub fn write_with(
    target: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<(), String> {
    let draft = Draft::empty(target)?;
    draft.fill(|file| {
        let mut writer = BufWriter::new(file.as_file());
        fill(&mut writer).and_then(|()| writer.flush())
    })?;
    draft.keep()
}

/// A file under a temporary name; dropped, it is removed. A signal that ends the process
/// removes it too.
pub struct Draft {
    file: Option<NamedTempFile>,
    target: PathBuf,
}

impl Draft {
    /// `bytes` under a temporary name in the folder of `target`.
    pub fn new(target: &Path, bytes: &[u8]) -> Result<Draft, String> {
        let draft = Draft::empty(target)?;
        draft.fill(|file| file.as_file().write_all(bytes))?;
        Ok(draft)
    }

    fn empty(target: &Path) -> Result<Draft, String> {
        let folder = target.parent().filter(|f| !f.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        builder.prefix(".wgpu-attention-").suffix(".tmp");
        // An ordinary new file, as the umask has it, and not one for the owner alone.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = guarded(|files| {
            let file = builder.tempfile_in(folder)?;
            files.push(file.path().to_owned());
            Ok(file)
        });
        Ok(Draft {
            file: Some(file.map_err(|e: io::Error| e.to_string())?),
            target: target.to_owned(),
        })
    }

    /// Has `fill` write, and waits until it is on the disk.
    fn fill(&self, fill: impl FnOnce(&NamedTempFile) -> io::Result<()>) -> Result<(), String> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let filled = fill(file).and_then(|()| file.as_file().sync_all());
        filled.map_err(|e| e.to_string())
    }

    /// Gives the file its name, in place of an older one.
    pub fn keep(mut self) -> Result<(), String> {
        let Some(file) = self.file.take() else {
            return Ok(());
        };
        guarded(|files| {
            let path = file.path().to_owned();
            let kept = file.persist(&self.target);
            files.retain(|other| *other != path);
            kept.map(|_| ()).map_err(|e| e.error.to_string())
        })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            guarded(|files| {
                let path = file.path().to_owned();
                drop(file);
                files.retain(|other| *other != path);
            });
        }
    }
}
