//! Files that are written: complete or not at all.

use std::io::Write as _;
use std::path::{Path, PathBuf};

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
    let folder = target.parent().unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".wgpu-attention-").suffix(".tmp");
    // An ordinary new file, as the umask has it, and not one for the owner alone.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder).map_err(|e| e.to_string())?;
    file.write_all(bytes).map_err(|e| e.to_string())?;
    file.as_file().sync_all().map_err(|e| e.to_string())?;
    file.persist(target).map_err(|e| e.error.to_string())?;
    Ok(())
}
