//! What `inspect` refuses, and that it leaves nothing behind.

use std::path::Path;

use tempfile::TempDir;

use super::{SENTENCES, inspect, pixels};
use crate::{Parts, data, stderr};

/// Whatever is wrong is said with its name, and nothing is written.
#[test]
fn a_refused_picture_leaves_nothing_behind() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let file = path("in.safetensors");
    std::fs::copy(data(SENTENCES), &file).unwrap();
    let changed = |name: &str, change: &dyn Fn(&mut Parts)| {
        let mut parts = Parts::read(&file);
        change(&mut parts);
        parts.write(&path(name));
        path(name)
    };
    let without = |parts: &mut Parts, name: &str| parts.tensors.retain(|t| t.0 != name);
    let keyless = changed("keyless", &|parts| without(parts, "K"));
    let empty = changed("empty", &|parts| {
        parts
            .tensors
            .retain(|t| ["Q", "K", "V"].contains(&t.0.as_str()));
        for (name, _, shape, bytes) in &mut parts.tensors {
            if name != "Q" {
                shape[2] = 0;
                bytes.clear();
            }
        }
    });
    let tokens = |name, json: &str| {
        changed(name, &|parts| {
            parts.metadata.insert("tokens".into(), json.into());
        })
    };
    let flat = tokens("flat", r#"["a", "b", "c"]"#);
    let few = tokens("few", r#"[["a"]]"#);
    let many = tokens("many", &format!("[[], [{}], []]", [r#""a""#; 25].join(",")));
    let broken = tokens("broken", "[[");
    let many_heads = changed("many_heads", &|parts| {
        parts
            .tensors
            .retain(|t| ["Q", "K", "V"].contains(&t.0.as_str()));
        parts.metadata.clear();
        for (_, _, shape, bytes) in &mut parts.tensors {
            *shape = vec![1, 12_000, 1, 1];
            *bytes = vec![0; 4 * 12_000];
        }
    });
    let junk = path("junk");
    std::fs::write(&junk, "no tensors").unwrap();
    let old = path("old.png");
    std::fs::write(&old, "precious").unwrap();
    std::fs::create_dir(path("folder.png")).unwrap();
    std::fs::copy(&file, path("in.png")).unwrap();
    let before = || {
        let entries = folder.path().read_dir().unwrap();
        let mut files: Vec<_> = entries
            .map(|e| e.unwrap().path())
            .map(|path| (std::fs::read(&path).unwrap_or_default().len(), path))
            .collect();
        files.sort();
        files
    };
    let listing = before();
    let old = old.to_str().unwrap();
    let names = ["out.jpg", "out", "no/out.png", "folder.png", "in.png"].map(path);
    let [jpg, bare, absent, directory, input] = names.each_ref().map(|p| p.to_str().unwrap());
    let failures: [(&Path, &[&str], &str); 24] = [
        (
            &file,
            &["--head", "12", "-o", old],
            "--head: expected a number below 12, got 12",
        ),
        (
            &file,
            &["--head", "18446744073709551615", "-o", old],
            "--head 18446744073709551615..18446744073709551615: expected a range within 0..12",
        ),
        (
            &file,
            &["--head", "7..13", "-o", old],
            "--head 7..13: expected a range within 0..12",
        ),
        (
            &file,
            &["--head", "five", "-o", old],
            "expected H or A..B, got five",
        ),
        (
            &file,
            &["--head", "0", "--scale-max", "0", "-o", old],
            "expected a share from 0.000001 to 1",
        ),
        (
            &file,
            &["--head", "0", "--scale-max", "1.5", "-o", old],
            "expected a share from 0.000001 to 1",
        ),
        (
            &file,
            &["--head", "0", "--scale-max", "NaN", "-o", old],
            "expected a share from 0.000001 to 1",
        ),
        (
            &many_heads,
            &["--all-heads", "-o", old],
            "12000 heads on one sheet: expected a picture of at most 40000000 pixels, got ",
        ),
        (
            &file,
            &["--head", "0", "--batch", "3", "-o", old],
            "--batch: expected a number below 3, got 3",
        ),
        (
            &file,
            &["--head", "0", "--rows", "20..25", "-o", old],
            "--rows 20..25: expected a range within 0..24",
        ),
        (
            &file,
            &["--head", "0", "--rows", "5..5", "-o", old],
            "expected A..B with A below B",
        ),
        (&file, &["-o", old], "--head <H|A..B>|--all-heads"),
        (
            &file,
            &["--head", "0", "--all-heads", "-o", old],
            "cannot be used with",
        ),
        (
            &file,
            &["--head", "0", "-o", jpg],
            "expected the extension .png or .svg, got .jpg",
        ),
        (
            &file,
            &["--head", "0", "-o", bare],
            "expected the extension .png or .svg, got none",
        ),
        (&file, &["--head", "0", "-o", absent], "does not exist"),
        (
            &file,
            &["--head", "0", "-o", directory],
            "not a regular file",
        ),
        (
            names[4].as_path(),
            &["--head", "0", "-o", input],
            "is an input",
        ),
        (&keyless, &["--head", "0", "-o", old], "no tensor K"),
        (
            &empty,
            &["--head", "0", "-o", old],
            "K: expected a sequence of at least 1, got 0",
        ),
        (
            &flat,
            &["--head", "0", "-o", old],
            "metadata tokens: expected a list of lists of strings",
        ),
        (
            &few,
            &["--head", "0", "-o", old],
            "got 1 lists for 3 batch entries",
        ),
        (
            &many,
            &["--head", "0", "--batch", "1", "-o", old],
            "expected at most 24, one a key, got 25",
        ),
        (&broken, &["--head", "0", "-o", old], "metadata tokens: "),
    ];
    for (file, flags, why) in failures {
        let output = inspect(file, &[flags, &["--backend", "oracle"]].concat());
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {errors}");
        // After a hint, where the sizes earn one.
        let error = errors.lines().any(|line| line.starts_with("error: "));
        assert!(error && errors.contains(why), "{flags:?}: {errors}");
        assert_eq!(before(), listing, "{flags:?}");
    }
    assert!(
        stderr(&inspect(&junk, &["--head", "0", "-o", old])).contains("not a safetensors file")
    );
    assert!(
        stderr(&inspect(&path("none"), &["--head", "0", "-o", old])).contains("cannot be read")
    );
    let mut layer = Parts::read(&data("real/minilm_layer0_multihead.safetensors"));
    for (name, _, shape, _) in &mut layer.tensors {
        if name == "attn_mask" {
            shape.remove(1);
        }
    }
    let flat = path("flat_mask");
    layer.write(&flat);
    let why = "attn_mask: expected four axes, got shape [3, 1, 24]";
    let errors = stderr(&inspect(&flat, &["--head", "0", "-o", old]));
    assert!(errors.contains(why), "{errors}");
    assert_eq!(std::fs::read_to_string(old).unwrap(), "precious");

    // And a picture that goes well replaces the old one as a whole.
    let flags = ["--head", "0", "--backend", "oracle", "-o", old];
    assert!(inspect(&file, &flags).status.success());
    assert!(pixels(Path::new(old)).1 > 1000);
}
