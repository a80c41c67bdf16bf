//! Files made to cost much or to say two things: refused at once, with what is wrong.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{run, stderr};

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
