//! What compilers other than naga are given, written to a folder for the checks in
//! `tests/compilers/run`: every text in WGSL, HLSL and MSL, and recordings of bundled
//! cases (bindings, uniforms and dispatches of real plans, and what is expected).
//!
//! The folder is `compilers` in cargo's temporary folder of tests.

#[path = "../lints/mod.rs"]
mod lints;

#[path = "../noop/mod.rs"]
mod noop;

mod case;
mod recording;
mod texts;

use std::path::PathBuf;

use wgpu_attention::Kernel;

/// An empty folder to write to.
fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join("compilers")
        .join(name);
    match std::fs::remove_dir_all(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => panic!("{}: {e}", path.display()),
        _ => {}
    }
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn every_text_is_written_in_three_languages() {
    let folder = folder("texts");
    let list = texts::write_all(&folder);
    assert!(list.len() > 400, "{} texts", list.len());
    // A list, and three files for each text: no two have one name.
    let files = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(files, 1 + 3 * list.len());
}

/// The suites whose metadata says all about a call, with the kernels that need no
/// subgroups. Plans are those for a device with WebGPU's default limits.
#[test]
fn cases_are_recorded() {
    let folder = folder("recordings");
    let device = noop::Noop::new();
    let mut recordings = recording::Recordings::default();
    for suite in ["sdpa_grads", "sdpa_options"] {
        let path = format!("{}/tests/data/{suite}", env!("CARGO_MANIFEST_DIR"));
        let mut files: Vec<_> = std::fs::read_dir(path)
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        files.sort();
        for file in files {
            let name = file.file_stem().unwrap().to_str().unwrap();
            let case = case::Case::parse(&std::fs::read(&file).unwrap());
            for kernel in [Kernel::Tiled, Kernel::Staged] {
                recordings.add(&device.attention, name, &case, kernel);
            }
        }
    }
    assert!(recordings.len() >= 80, "{}", recordings.len());
    recordings.write(&folder);
}
