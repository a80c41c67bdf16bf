//! Files made to cost much or to say two things: refused at once, with what is wrong.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{run, stderr, stdout};

/// A safetensors file of any header.
fn raw(path: &Path, header: &str, elements: usize) {
    let length = (header.len() as u64).to_le_bytes();
    fs::write(
        path,
        [&length, header.as_bytes(), &vec![0; elements]].concat(),
    )
    .unwrap();
}

/// The message for a file that `run` refuses.
fn refused(path: &Path, flags: &[&str]) -> String {
    let out = path.with_file_name("never");
    let (path, out) = (path.to_str().unwrap(), out.to_str().unwrap());
    let output = run([&["run", "--backend", "oracle", path, "-o", out], flags].concat());
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(!Path::new(out).exists());
    errors
}

fn tensor(name: &str, shape: &str, [start, end]: [usize; 2]) -> String {
    format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}")
}

#[test]
fn more_axes_than_any_operand_has() {
    let folder = TempDir::new().unwrap();
    let started = Instant::now();
    let file = folder.path().join("axes.safetensors");
    let ones = format!("[{}1]", "1,".repeat(30_000));
    raw(&file, &format!("{{{}}}", tensor("Q", &ones, [0, 4])), 4);
    let why = "tensor Q: expected at most 32 axes, got 30001\n";
    assert!(refused(&file, &[]).contains(why));
    let file = folder.path().join("axes.npy");
    let text = format!(
        "{{'descr':'|b1','fortran_order':True,'shape':(1048576,{})}}",
        "1,".repeat(20_000)
    );
    let length = (text.len() as u16).to_le_bytes();
    let parts = [
        b"\x93NUMPY\x01\x00",
        &length[..],
        text.as_bytes(),
        &vec![0; 1 << 20],
    ];
    fs::write(&file, parts.concat()).unwrap();
    let why = "its header: expected at most 32 axes, got more\n";
    assert!(refused(&file, &[]).contains(why));
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn what_is_said_twice_is_refused() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("twice.safetensors");
    let (q, k) = (tensor("Q", "[1]", [0, 4]), tensor("K", "[1]", [4, 8]));
    let twice = tensor("Q", "[1]", [4, 8]);
    let metadata = |entries: &str| format!("\"__metadata__\":{{{entries}}}");
    for (header, name) in [
        (format!("{{{q},{k},{q}}}"), "Q"),
        (format!("{{{q},{twice}}}"), "Q"),
        (
            format!("{{{},{q},{k}}}", metadata(r#""scale":"1","scale":"2""#)),
            "scale",
        ),
    ] {
        raw(&file, &header, 8);
        let error = refused(&file, &[]);
        assert!(error.contains(&format!("{name} is in it twice")), "{error}");
        // Where only the header is read.
        let path = file.to_str().unwrap();
        let output = run(["layer", path, "--input", path, "--backend", "oracle"]);
        let error = stderr(&output);
        assert!(error.contains(&format!("{name} is in it twice")), "{error}");
    }
}

/// Q, K and V of one head of one token, and metadata.
fn operands(path: &Path, metadata: &str) {
    let shape = "[1,1,1,1]";
    let all = ["Q", "K", "V"].iter().enumerate();
    let all: Vec<String> = all
        .map(|(n, name)| tensor(name, shape, [4 * n, 4 * n + 4]))
        .collect();
    let metadata = format!("\"__metadata__\":{{{metadata}}}");
    raw(path, &format!("{{{metadata},{}}}", all.join(",")), 12);
}

#[test]
fn a_hint_about_the_layout_is_for_shapes() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("x.safetensors");
    operands(&file, "");
    for flags in [
        &["--scale", "nan"][..],
        &["--softcap", "-1"],
        &["--alignment", "per-sequence"],
    ] {
        let errors = refused(&file, flags);
        assert!(!errors.contains("hint"), "{errors}");
    }
    operands(&file, r#""softcap":"-1""#);
    let errors = refused(&file, &[]);
    assert!(!errors.contains("hint"), "{errors}");
}

#[test]
fn a_number_that_only_reads_as_0() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("x.safetensors");
    operands(&file, "");
    for flag in ["--scale", "--softcap"] {
        let errors = refused(&file, &[flag, "1e-50"]);
        assert!(errors.contains("too small for F32"), "{errors}");
    }
    for key in ["scale", "softcap"] {
        operands(&file, &format!("\"{key}\":\"1e-50\""));
        let errors = refused(&file, &[]);
        assert!(
            errors.contains(&format!("metadata {key}: expected")),
            "{errors}"
        );
    }
}

#[test]
fn messages_have_an_end() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("x.safetensors");
    let long = "n".repeat(100_000);
    raw(&file, &format!("{{{}}}", tensor(&long, "[1]", [0, 4])), 4);
    assert!(refused(&file, &[]).len() < 2_000);
    for metadata in [
        format!("\"scalex\":\"1\",\"{long}\":\"1\""),
        format!("\"scale\":\"{long}\""),
    ] {
        operands(&file, &metadata);
        assert!(refused(&file, &[]).len() < 5_000);
    }
    let keys: Vec<String> = (0..100_000).map(|n| format!("\"k{n:06}\":\"\"")).collect();
    operands(&file, &keys.join(","));
    let (path, out) = (file.to_str().unwrap(), folder.path().join("out"));
    let done = run([
        "run",
        "--backend",
        "oracle",
        path,
        "-o",
        out.to_str().unwrap(),
    ]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    let printed = stdout(&done);
    assert!(printed.contains("k000015 and 99984 more\n"), "{printed}");
    assert!(printed.len() < 2_000);
}

#[test]
fn what_is_no_file_or_folder_to_write_to() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("x.safetensors");
    operands(&file, "");
    let path = file.to_str().unwrap();
    let mut run_here = crate::program();
    run_here.args(["run", "--backend", "oracle", path, "-o", "-"]);
    let output = run_here.current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("-: is no file; "));
    assert!(!folder.path().join("-").exists());
    let output = run(["shaders", "--no-adapter", "--out", path]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).ends_with("x.safetensors: is no folder\n"));
}

/// One error, and nothing of the library that writes archives.
#[cfg(target_os = "linux")]
#[test]
fn an_archive_without_room() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("x.safetensors");
    let (q, kv) = ("[1,1,65536,1]", "[1,1,1,1]");
    let (end, part) = (65536 * 4, 4);
    let header = [
        tensor("Q", q, [0, end]),
        tensor("K", kv, [end, end + part]),
        tensor("V", kv, [end + part, end + 2 * part]),
    ];
    raw(&file, &format!("{{{}}}", header.join(",")), end + 2 * part);
    let out = folder.path().join("out.npz");
    for blocks in [0, 1, 20, 100] {
        let mut shell = std::process::Command::new("sh");
        let limits = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        shell.args(["-c", &limits, env!("CARGO_BIN_EXE_wgpu-attention"), "run"]);
        shell.args(["--backend", "cpu", "-o"]).arg(&out).arg(&file);
        let output = shell.output().unwrap();
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        let is_one = errors.starts_with("error: ") && errors.lines().count() == 1;
        assert!(is_one && errors.contains("File too large"), "{errors}");
        assert!(!out.exists());
    }
}
