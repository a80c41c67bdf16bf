//! Files that `layer` and `inspect` read stay as they are.

use std::path::Path;

use safetensors::tensor::Dtype;

use super::refused::{Desk, of, with};
use super::{layer, nothing};
use crate::{run, stderr};

/// Whatever is read, `layer` and `inspect` alike.
#[test]
fn nothing_that_is_read_is_overwritten() {
    let desk = Desk::new();
    let checkpoint = &of("bert").at(desk.path("model"));
    // Names that a picture could have.
    let [x, context, mask, other, tuning] =
        ["x", "context", "mask", "other", "tuning"].map(|n| desk.path(&format!("{n}.png")));
    std::fs::copy(&desk.x, &x).unwrap();
    std::fs::copy(&desk.x, &context).unwrap();
    let keep = with(nothing(), "keep", &[2, 7]);
    let keep = (
        "keep".to_owned(),
        Dtype::BOOL,
        keep.shape("keep"),
        vec![1; 14],
    );
    let mut of_mask = nothing();
    of_mask.tensors.push(keep);
    of_mask.write(&mask);
    let config = desk.path("config.json");
    for path in [&config, &other] {
        std::fs::write(path, r#"{"n_heads": 4}"#).unwrap();
    }
    std::fs::write(&tuning, "{}").unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let fixed = [text(checkpoint), "--input".to_owned(), text(&x)];
    let mut cases: Vec<(&Path, &[&str], &Path)> = vec![
        (&x, &[], &x),
        (&context, &["--context"], &context),
        (&mask, &["--mask"], &mask),
        (&other, &["--config"], &other),
        (&tuning, &["--tuning"], &tuning),
    ];
    // The config beside the checkpoint, under a name that a picture could have.
    let linked = desk.path("linked.png");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&config, &linked).unwrap();
    if linked.exists() {
        cases.push((&config, &[], &linked));
    }
    for (read, flag, output) in cases {
        let before = std::fs::read(read).unwrap();
        for command in [&["layer"][..], &["inspect", "--head", "0"]] {
            let mut words: Vec<String> = command.iter().map(|w| w.to_string()).collect();
            words.extend(fixed.clone());
            words.extend(flag.iter().flat_map(|flag| [flag.to_string(), text(read)]));
            words.extend(["-o".to_owned(), text(output)]);
            let output = run(&words);
            let errors = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{words:?}: {errors}");
            assert!(
                errors.contains("is an input; it is not"),
                "{words:?}: {errors}"
            );
            assert_eq!(std::fs::read(read).unwrap(), before, "{words:?}");
        }
    }
    for read in [checkpoint, &config] {
        let before = std::fs::read(read).unwrap();
        let output = layer(checkpoint, &x, &["-o", &text(read)]);
        assert_eq!(output.status.code(), Some(2));
        assert!(
            stderr(&output).contains("is an input"),
            "{}",
            stderr(&output)
        );
        assert_eq!(std::fs::read(read).unwrap(), before);
    }
    // With another config that beside the checkpoint is not read.
    let flags = [
        "--config",
        &text(&other),
        "--backend",
        "cpu",
        "-o",
        &text(&config),
    ];
    let written = layer(checkpoint, &x, &flags);
    assert!(written.status.success(), "{}", stderr(&written));
}
