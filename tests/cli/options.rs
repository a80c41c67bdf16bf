//! One rule for options in `run` and `inspect`: flags, then metadata, then defaults; and
//! the layouts.

use std::path::{Path, PathBuf};
use std::process::Output;

use safetensors::tensor::Dtype;
use tempfile::TempDir;

use crate::{Parts, data, run, stderr, stdout};

/// Numbers without a pattern.
fn numbers(shape: &[usize], seed: usize) -> Vec<u8> {
    let count: usize = shape.iter().product();
    let number = |n: usize| (((n + 1) * (seed * 7919 + 104_729)) % 2003) as f32 / 1001.0 - 1.0;
    (0..count).flat_map(|n| number(n).to_le_bytes()).collect()
}

fn parts(tensors: &[(&str, &[usize])]) -> Parts {
    let named = tensors.iter().enumerate();
    let tensors = named.map(|(seed, (name, shape))| {
        let bytes = numbers(shape, seed);
        ((*name).to_owned(), Dtype::F32, shape.to_vec(), bytes)
    });
    Parts {
        metadata: Default::default(),
        tensors: tensors.collect(),
    }
}

fn attend(input: &Path, output: &Path, flags: &[&str]) -> Output {
    let fixed = ["run", "--backend", "oracle", "-o"].map(Path::new);
    let files = [output, input];
    run(fixed
        .into_iter()
        .chain(files)
        .chain(flags.iter().map(Path::new)))
}

fn y(output: &Output, path: &Path) -> Vec<f32> {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    Parts::read(path).f32("Y")
}

/// (a, b, c, 4 bytes d) with b and c in the other order.
fn swapped(bytes: &[u8], [a, b, c, d]: [usize; 4]) -> Vec<u8> {
    let row = |i: usize, j: usize, k: usize| ((i * b + j) * c + k) * d * 4;
    let rows = (0..a * b * c).map(|n| (n / b / c, n % b, n / b % c));
    rows.flat_map(|(i, j, k)| bytes[row(i, j, k)..][..d * 4].to_vec())
        .collect()
}

/// The three layouts of the same numbers give the same result, in their own order, and
/// say what they were understood as.
#[test]
fn layouts_are_the_same_call() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| -> PathBuf { folder.path().join(name) };
    let (shape, turned) = ([2, 3, 5, 4], [2, 5, 3, 4]);
    let mut bhsd = parts(&[("Q", &shape), ("K", &shape), ("V", &shape)]);
    bhsd.write(&at("bhsd"));
    let mut bshd = parts(&[("Q", &turned), ("K", &turned), ("V", &turned)]);
    let mut packed = parts(&[("QKV", &[2, 5, 3, 3, 4])]);
    let rows: Vec<Vec<u8>> = ["Q", "K", "V"]
        .map(|name| {
            let bytes = swapped(bhsd.get(name), shape);
            bshd.get(name).clone_from(&bytes);
            bytes
        })
        .into();
    bshd.write(&at("bshd"));
    // A token's three times 3 heads of 4 floats stand behind each other.
    let token = 3 * 4 * 4;
    let tokens = (0..2 * 5).flat_map(|t| rows.iter().map(move |r| &r[t * token..][..token]));
    *packed.get("QKV") = tokens.flatten().copied().collect();
    packed.write(&at("packed"));
    let out = at("out.safetensors");
    let flags = ["--causal", "--window-left", "2"];
    let right = y(&attend(&at("bhsd"), &out, &flags), &out);
    let right: Vec<u8> = right.iter().flat_map(|x| x.to_le_bytes()).collect();
    let right = swapped(&right, shape);
    for (file, layout) in [
        ("bshd", Some("bshd")),
        ("packed", Some("packed")),
        ("packed", None),
    ] {
        let mut all = flags.to_vec();
        all.extend(layout.iter().flat_map(|layout| ["--layout", layout]));
        let output = attend(&at(file), &out, &all);
        let got: Vec<u8> = y(&output, &out)
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        assert_eq!(got, right, "{file}");
        assert_eq!(Parts::read(&out).shape("Y"), turned, "{file}");
        let text = stdout(&output);
        assert!(
            text.contains("problem  B 2 Hq 3 Hkv 3 Nq 5 Nk 5 D 4, F32\n"),
            "{text}"
        );
        let from = layout.map_or("tensor QKV", |_| "--layout");
        assert!(
            text.contains(&format!("layout {file} ({from})\n")),
            "{text}"
        );
        let flags = [&["--head", "1", "--stats", "--backend", "oracle"], &all[..]].concat();
        let path = at(file);
        let shown = ["inspect", path.to_str().unwrap()];
        let shown = stdout(&run(shown.iter().chain(&flags)));
        assert!(
            shown.contains("Hq 3 Hkv 3 Nq 5 Nk 5 D 4") && shown.contains("head 1:"),
            "{shown}"
        );
    }
    let mixed = attend(&at("packed"), &out, &["--layout", "bhsd"]);
    assert!(
        stderr(&mixed).contains("QKV: the layout bhsd takes Q, K, V"),
        "{}",
        stderr(&mixed)
    );
    let odd = parts(&[("QKV", &[2, 3, 5, 3, 4])]);
    odd.write(&at("odd"));
    let odd = attend(&at("odd"), &out, &[]);
    assert!(stderr(&odd).contains("QKV: expected shape (B,S,3,H,D), got [2, 3, 5, 3, 4]"));
}

/// torch's layout read as the other: valid or not, the other reading is named.
#[test]
fn sizes_that_look_swapped_earn_a_hint() {
    let folder = TempDir::new().unwrap();
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    let (q, kv) = ([2, 24, 8, 4], [2, 24, 2, 4]);
    parts(&[("Q", &q), ("K", &kv), ("V", &kv)]).write(&input);
    let output = attend(&input, &out, &[]);
    y(&output, &out);
    let (text, errors) = (stdout(&output), stderr(&output));
    assert!(text.contains("B 2 Hq 24 Hkv 24 Nq 8 Nk 2 D 4"), "{text}");
    let hint = "hint: 24 key heads for 2 keys: read as (B,H,S,D); --layout bshd reads it as \
                B 2 Hq 8 Hkv 2 Nq 24 Nk 24 D 4";
    assert!(errors.starts_with(hint), "{errors}");
    for layout in ["bhsd", "bshd"] {
        let output = attend(&input, &out, &["--layout", layout]);
        assert_eq!(
            (output.status.code(), stderr(&output)),
            (Some(0), String::new())
        );
    }
    // One query beside a cache: no such reading is possible with the axes as they are.
    parts(&[
        ("Q", &[2, 1, 8, 4]),
        ("K", &[2, 24, 2, 4]),
        ("V", &[2, 24, 2, 4]),
    ])
    .write(&input);
    let output = attend(&input, &out, &[]);
    assert_eq!(output.status.code(), Some(2));
    let errors = stderr(&output);
    assert!(
        errors.contains("\nhint: --layout bshd reads it as B 2 Hq 8 Hkv 2 Nq 1 Nk 24 D 4"),
        "{errors}"
    );
    // Sizes that fit, and another mistake: no layout helps.
    parts(&[
        ("Q", &[1, 2, 8, 4]),
        ("K", &[1, 2, 8, 4]),
        ("V", &[1, 2, 8, 4]),
    ])
    .write(&input);
    let output = attend(&input, &out, &["--softcap", "1e-40"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!stderr(&output).contains("hint"), "{}", stderr(&output));
    // Few tokens of a decoding step are nothing odd.
    parts(&[
        ("Q", &[2, 8, 1, 4]),
        ("K", &[2, 2, 24, 4]),
        ("V", &[2, 2, 24, 4]),
    ])
    .write(&input);
    let output = attend(&input, &out, &[]);
    assert_eq!(stderr(&output), "");
}

/// `run` obeys the metadata as `inspect` does; flags win; both say who decided.
#[test]
fn metadata_counts_and_flags_win() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| -> PathBuf { folder.path().join(name) };
    let (input, out) = (at("in"), at("out"));
    let shape = [1, 2, 6, 4];
    let mut file = parts(&[("Q", &shape), ("K", &shape), ("V", &shape)]);
    file.write(&input);
    let expected = |flags: &[&str]| y(&attend(&input, &out, flags), &out);
    let plain = expected(&[]);
    let causal = expected(&["--causal"]);
    let windowed = expected(&[
        "--causal",
        "--window-left",
        "1",
        "--scale",
        "2",
        "--softcap",
        "3",
    ]);
    assert!(plain != causal && causal != windowed);
    let told = at("told");
    let with = |metadata: &[(&str, &str)], flags: &[&str]| {
        let mut file = parts(&[("Q", &shape), ("K", &shape), ("V", &shape)]);
        let entries = metadata
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        file.metadata.extend(entries);
        file.write(&told);
        let output = attend(&told, &out, flags);
        (y(&output, &out), stdout(&output))
    };
    let all = [
        ("causal", "bottom_right"),
        ("window_left", "1"),
        ("scale", "2.0"),
        ("softcap", "3"),
        ("format", "pt"),
        ("author", "\u{1b}[31mred"),
    ];
    let (got, text) = with(&all, &[]);
    assert_eq!(got, windowed);
    let line = "options  scale 2 (metadata), softcap 3 (metadata), causal (metadata), 1 keys before \
                the own position (metadata), alignment bottom-right (metadata), layout bhsd (default)\n\
                unread   metadata author, format\n";
    assert!(text.contains(line), "{text}");
    let over = ["--window-left", "-1", "--scale", "0.5", "--softcap", "0"];
    let (got, text) = with(&all, &over);
    assert_eq!(got, causal);
    assert!(
        text.contains("scale 0.5 (--scale), causal (metadata)"),
        "{text}"
    );
    let (got, text) = with(&all[..1], &["--bidirectional"]);
    assert_eq!(got, plain);
    assert!(text.contains("not causal (--bidirectional)"), "{text}");
    assert_eq!(with(&all, &["--ignore-metadata"]).0, plain);
    // As JSON in the output's own metadata.
    with(&all, &[]);
    let about = &Parts::read(&out).metadata["wgpu-attention"];
    let about: serde_json::Value = serde_json::from_str(about).unwrap();
    let options = &about["options"];
    assert_eq!(options["causal"], true, "{about}");
    assert_eq!(options["window_left"], 1);
    assert_eq!(options["from"]["softcap"], "metadata");
    assert_eq!(about["stages_of"]["rows"], serde_json::json!([0, 6]));
    // The same words in `inspect`, and flags without --input.
    let path = told.to_str().unwrap();
    let flags = ["--head", "0", "--stats", "--backend", "oracle"];
    let shown = stdout(&run(["inspect", path].iter().chain(&flags)));
    assert!(shown.contains(line), "{shown}");
    let wide = ["--bidirectional", "--scale", "1"];
    let wide = &wide[1..];
    let shown = stdout(&run(["inspect", path].iter().chain(&flags).chain(wide)));
    assert!(shown.contains("scale 1 (--scale)"), "{shown}");
    for (key, value, why) in [
        (
            "casual",
            "1",
            "metadata casual is not read; is causal meant?",
        ),
        (
            "is_causal",
            "1",
            "metadata is_causal is not read here, but causal: true or false; ",
        ),
        (
            "causal",
            "yes",
            "metadata causal: expected true, false, 1, 0, none, bottom_right or",
        ),
        (
            "layout",
            "sbhd",
            "metadata layout: expected bhsd, bshd or packed, got \"sbhd\"",
        ),
    ] {
        file.metadata = [(key.to_owned(), value.to_owned())].into();
        file.write(&told);
        let refused = attend(&told, &out, &[]);
        let inspected = run(["inspect", path].iter().chain(&flags));
        for output in [refused, inspected] {
            assert_eq!(output.status.code(), Some(2), "{key}");
            assert!(stderr(&output).contains(why), "{}", stderr(&output));
        }
        assert_eq!(y(&attend(&told, &out, &["--ignore-metadata"]), &out), plain);
    }
}

/// A case's own suite says what its metadata means, in `run` too.
#[test]
fn cases_run_as_their_suites_have_them() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    for name in [
        "sdpa_grads/causal_topleft_nq9_nk24_d64_f16",
        "sdpa_options/window_left_causal_n65_d16_f32",
        "onnx/attention_4d_causal",
        "real/minilm_layer4_passage_causal",
    ] {
        let case = data(&format!("{name}.safetensors"));
        let output = attend(&case, &out, &["--output-dtype", "f32"]);
        let got = y(&output, &out);
        let expected = Parts::read(&case).f32("expected.Y");
        let apart = got.iter().zip(&expected).map(|(g, e)| (g - e).abs());
        assert!(apart.fold(0.0, f32::max) < 1e-4, "{name}");
        assert!(
            stdout(&output).contains("causal (the case)"),
            "{}",
            stdout(&output)
        );
    }
    let layer = data("real/minilm_layer0_multihead.safetensors");
    let refused = attend(&layer, &out, &[]);
    assert!(stderr(&refused).contains("holds a whole multi-head layer"));
    // And the other way round: operands that expect nothing are no case.
    let plain = folder.path().join("plain.safetensors");
    parts(&[
        ("Q", &[1, 1, 2, 4]),
        ("K", &[1, 1, 2, 4]),
        ("V", &[1, 1, 2, 4]),
    ])
    .write(&plain);
    let refused = run(["check", "--backend", "oracle", plain.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2), "{}", stdout(&refused));
    assert!(
        stderr(&refused).contains("`run` computes"),
        "{}",
        stderr(&refused)
    );
}

/// Nothing that a file is named reaches the terminal raw.
#[test]
fn names_from_files_are_escaped() {
    let folder = TempDir::new().unwrap();
    let evil = "x\u{1b}[2J\r\u{9b}31m\u{202e}\nPASS";
    let path = (folder.path()).join(format!("{}.safetensors", evil.replace('\n', " ")));
    let out = folder.path().join("out");
    let mut file = parts(&[
        ("Q", &[1, 1, 2, 4]),
        ("K", &[1, 1, 2, 4]),
        ("V", &[1, 1, 2, 4]),
    ]);
    file.metadata.insert(evil.to_owned(), evil.to_owned());
    file.write(&path);
    let good = attend(&path, &out, &[]);
    file.tensors[0].0 = evil.to_owned();
    let bad = folder.path().join("bad.safetensors");
    file.write(&bad);
    file.tensors[0].0 = format!("expected.{evil}");
    file.metadata.insert("suite".to_owned(), evil.to_owned());
    let case = folder.path().join("case.safetensors");
    file.write(&case);
    let words = |words: &[&str], path: &Path| {
        let words = words.iter().map(Path::new);
        run(words.chain([path]))
    };
    let flags = ["--head", "0", "--backend", "oracle", "--json"];
    let outputs = [
        good,
        attend(&bad, &out, &[]),
        words(&["check", "--backend", "oracle"], folder.path()),
        words(&["check", "--backend", "oracle"], &case),
        words(&[&["inspect"][..], &flags].concat(), &path),
        words(&[&["inspect"][..], &flags].concat(), &bad),
        words(&["layer", "--backend", "oracle", "--input"], &bad),
        words(
            &[
                "layer",
                "--backend",
                "oracle",
                bad.to_str().unwrap(),
                "--input",
            ],
            &bad,
        ),
        words(&["info", "--tuning"], &path),
    ];
    for output in &outputs {
        for text in [stdout(output), stderr(output)] {
            let raw = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
            assert!(!text.contains(raw), "{text:?}");
            assert!(!text.lines().any(|line| line.starts_with("PASS")), "{text}");
        }
    }
    assert!(
        stdout(&outputs[0])
            .contains("unread   metadata x\\u001b[2J\\u000d\\u009b31m\\u202e\\u000aPASS")
    );
    let json: serde_json::Value = serde_json::from_str(&stdout(&outputs[4])).unwrap();
    assert_eq!(json["file"], path.display().to_string());
}
