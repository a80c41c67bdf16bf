//! The program from outside: what it prints, how it exits, what it leaves on
//! the disk. Most of it runs on the oracle, which needs no adapter; the kernels
//! run the bundled cases in `bundled_cases_pass_on_the_adapter`.
#![cfg(feature = "cli")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

const ORACLE: [&str; 3] = ["check", "--backend", "oracle"];

fn data(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(path);
    assert!(path.exists(), "{}", path.display());
    path
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_wgpu-attention"))
}

fn run<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    let output = program().args(args).output().unwrap();
    let errors = stderr(&output);
    assert!(!errors.contains("panicked"), "{errors}");
    output
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn check(paths: &[&Path]) -> (i32, String) {
    let paths = paths.iter().map(|p| p.as_os_str());
    let output = run(ORACLE.iter().map(std::ffi::OsStr::new).chain(paths));
    (output.status.code().unwrap(), stdout(&output))
}

/// A file taken apart, so that it can be changed and written again.
struct Parts {
    metadata: HashMap<String, String>,
    tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
}

impl Parts {
    fn read(path: &Path) -> Parts {
        let bytes = std::fs::read(path).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let views = SafeTensors::deserialize(&bytes).unwrap();
        let part = |(name, view): (&str, TensorView)| {
            let (dtype, shape) = (view.dtype(), view.shape().to_vec());
            (name.to_owned(), dtype, shape, view.data().to_vec())
        };
        Parts {
            metadata: header.metadata().clone().unwrap_or_default(),
            tensors: views.iter().map(part).collect(),
        }
    }

    fn get(&mut self, name: &str) -> &mut Vec<u8> {
        let found = self.tensors.iter_mut().find(|(n, ..)| n == name);
        &mut found.unwrap_or_else(|| panic!("no {name}")).3
    }

    fn f32(&mut self, name: &str) -> Vec<f32> {
        let words = self.get(name).chunks_exact(4);
        words
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    fn shape(&self, name: &str) -> Vec<usize> {
        let found = self.tensors.iter().find(|(n, ..)| n == name);
        found.unwrap_or_else(|| panic!("no {name}")).2.clone()
    }

    fn write(&self, path: &Path) {
        let views = self.tensors.iter().map(|(name, dtype, shape, bytes)| {
            (
                name.clone(),
                TensorView::new(*dtype, shape.clone(), bytes).unwrap(),
            )
        });
        let metadata = Some(self.metadata.clone());
        let bytes = safetensors::serialize(views, metadata).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

/// The suites' features on a few small files.
fn samples() -> Vec<PathBuf> {
    [
        "onnx/attention_3d_causal_bf16.safetensors",
        "onnx/attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal.safetensors",
        "onnx/attention_local_window_ext_cache_rank3_head_mask.safetensors",
        "sdpa_grads/everything_b3_gqa8x2_nq11_nk27_dqk40_dv24_f32.safetensors",
        "sdpa_options/merge3_everything_b3_gqa6x2_nq17_nk60_dqk24_dv12_f16.safetensors",
        "sdpa_options/poison_kvlen_b3_nq9_nk40_d16_f32.safetensors",
        "real/minilm_layer0_three_sentences.safetensors",
    ]
    .map(data)
    .to_vec()
}

#[test]
fn good_cases_pass_and_are_counted() {
    let samples = samples();
    let paths: Vec<&Path> = samples.iter().map(PathBuf::as_path).collect();
    let (code, text) = check(&paths);
    assert_eq!(code, 0, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), samples.len() + 2, "{text}");
    assert_eq!(*lines.last().unwrap(), "7 passed, 0 failed, 0 unsupported");
    for (line, path) in lines[1..].iter().zip(&paths) {
        assert!(
            line.starts_with(&format!("PASS {}: ", path.display())),
            "{line}"
        );
    }
    for output in ["present_key", "present_value", "qk_matmul_output"] {
        assert!(lines[2].contains(output), "{}", lines[2]);
    }
    assert!(lines[4].contains("unsupported outputs: "), "{}", lines[4]);
    assert!(
        lines[4].contains("the backward pass does not exist yet"),
        "{}",
        lines[4]
    );
    assert!(lines[5].contains("part2.lse"), "{}", lines[5]);
    assert!(lines[7].contains("weights_row0"), "{}", lines[7]);
}

#[test]
fn folders_are_searched_and_sorted() {
    let (code, text) = check(&[&data("onnx")]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(
        text.lines().last().unwrap(),
        "57 passed, 0 failed, 0 unsupported"
    );
    let names: Vec<&str> = text.lines().filter(|l| l.starts_with("PASS ")).collect();
    assert!(names.is_sorted(), "{text}");
}

#[test]
fn bundled_cases_pass_on_the_adapter() {
    let output = run([Path::new("check"), &data("")]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    let last = text.lines().last().unwrap();
    assert!(last.ends_with(" passed, 0 failed, 0 unsupported"), "{text}");
    assert!(!last.starts_with("0 "), "{text}");
}

/// One wrong element in any expected output is found, and where it is.
#[test]
fn a_wrong_expectation_fails() {
    let folder = TempDir::new().unwrap();
    let mut planted = 0;
    for sample in samples() {
        let good = Parts::read(&sample);
        let names = good.tensors.iter().map(|(name, ..)| name.clone());
        let outputs = names.filter(|n| {
            let gradient = n.starts_with("expected.d");
            (n.starts_with("expected.") && !gradient) || n.starts_with("part")
        });
        for name in outputs {
            let mut bad = Parts::read(&sample);
            let bytes = bad.get(&name);
            // The sign of the largest element, in the high byte of little-endian floats.
            let size = good
                .tensors
                .iter()
                .find(|(n, ..)| *n == name)
                .unwrap()
                .1
                .bitsize()
                / 8;
            let magnitude = |element: &[u8]| {
                let high = element[size - 1] & 0x7f;
                let finite = high < if size == 4 { 0x7f } else { 0x7c };
                (
                    finite,
                    if size == 4 {
                        [high, element[2]]
                    } else {
                        [high, element[0]]
                    },
                )
            };
            let elements = bytes.chunks(size).enumerate();
            let (index, _) = elements.max_by_key(|(_, e)| magnitude(e)).unwrap();
            bytes[index * size + size - 1] ^= 0x80;
            let path = folder.path().join("wrong.safetensors");
            bad.write(&path);
            let (code, text) = check(&[&path]);
            assert_eq!(code, 1, "{name} of {}: {text}", sample.display());
            let line = text.lines().nth(1).unwrap();
            assert!(line.starts_with("FAIL "), "{line}");
            let short = name.trim_start_matches("expected.");
            let place = format!("{short} 1 of ");
            assert!(
                line.contains(&place) && line.contains("worst at ["),
                "{line}"
            );
            assert!(
                text.ends_with("0 passed, 1 failed, 0 unsupported\n"),
                "{text}"
            );
            planted += 1;
        }
    }
    assert!(planted >= 17, "{planted}");
}

/// NaN, a wrong shape, and an expectation nobody knows do not slip through.
#[test]
fn odd_expectations_fail() {
    let folder = TempDir::new().unwrap();
    let sample = data("sdpa_options/poison_kvlen_b3_nq9_nk40_d16_f32.safetensors");
    let fails = |why: &str, change: &dyn Fn(&mut Parts)| {
        let mut parts = Parts::read(&sample);
        change(&mut parts);
        let path = folder.path().join("odd.safetensors");
        parts.write(&path);
        let (code, text) = check(&[&path]);
        assert_eq!(code, 1, "{text}");
        assert!(text.contains(why), "expected {why:?} in {text}");
    };
    fails("expected NaN", &|parts| {
        parts.get("expected.Y")[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    fails("has shape", &|parts| {
        let y = parts
            .tensors
            .iter_mut()
            .find(|(n, ..)| n == "expected.Y")
            .unwrap();
        y.2.swap(2, 3);
    });
    fails("is not an output known", &|parts| {
        let y = parts
            .tensors
            .iter_mut()
            .find(|(n, ..)| n == "expected.Y")
            .unwrap();
        y.0 = "expected.Z".to_owned();
    });
    fails("no tolerance for Y", &|parts| {
        parts
            .metadata
            .insert("atol_wgsl".to_owned(), "{}".to_owned());
    });
    fails("softcap", &|parts| {
        parts.metadata.insert("softcap".to_owned(), "-1".to_owned());
    });
    fails("kv_lengths", &|parts| {
        parts.get("kv_lengths")[..4].copy_from_slice(&(-1i32).to_le_bytes());
    });
    fails("suite \"nobody's\" is not known", &|parts| {
        parts
            .metadata
            .insert("suite".to_owned(), "nobody's".to_owned());
    });
    fails("no tensor K", &|parts| {
        parts.tensors.retain(|(n, ..)| n != "K")
    });
}

#[test]
fn files_that_are_no_cases_fail_by_name() {
    let folder = TempDir::new().unwrap();
    let good = std::fs::read(data("onnx/attention_4d.safetensors")).unwrap();
    let header = "{\"Q\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}";
    let mut doubles = (header.len() as u64).to_le_bytes().to_vec();
    doubles.extend_from_slice(header.as_bytes());
    doubles.extend_from_slice(&[0; 8]);
    let files: [(&str, &[u8]); 7] = [
        ("empty.safetensors", b""),
        ("text.safetensors", b"this is no safetensors file at all"),
        ("huge_header.safetensors", &[0xff; 64]),
        ("cut_header.safetensors", &good[..40]),
        ("cut_data.safetensors", &good[..good.len() - 1]),
        ("longer.safetensors", &[&good[..], b"more"].concat()),
        ("doubles.safetensors", &doubles),
    ];
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let mut foreign = Parts::read(&data("onnx/attention_4d.safetensors"));
    foreign.metadata.clear();
    foreign.tensors.retain(|(n, ..)| n == "Q");
    foreign.write(&folder.path().join("foreign.safetensors"));

    let (code, text) = check(&[folder.path()]);
    assert_eq!(code, 1, "{text}");
    for (name, _) in files.iter().chain(&[("foreign.safetensors", &b""[..])]) {
        let line = text.lines().find(|l| l.contains(name)).unwrap();
        assert!(
            line.starts_with("FAIL ") && line.contains("error: "),
            "{line}"
        );
    }
    assert!(
        text.ends_with("0 passed, 8 failed, 0 unsupported\n"),
        "{text}"
    );
}

#[test]
fn usage_errors_exit_with_2() {
    let empty = TempDir::new().unwrap();
    let missing = empty.path().join("missing.safetensors");
    let case = data("onnx/attention_4d.safetensors");
    let (case, missing) = (case.to_str().unwrap(), missing.to_str().unwrap());
    let folder = empty.path().to_str().unwrap();
    let cases: [&[&str]; 12] = [
        &[],
        &["frobnicate"],
        &["check"],
        &["check", "--backend", "oracle", missing],
        &["check", "--backend", "oracle", folder],
        &["check", "--backend", "abacus", case],
        &["check", "--no-such-flag", case],
        &["check", "--adapter", "no adapter has this name", case],
        &["run", case],
        &["run", case, "-o", missing, "--stage", "4"],
        &["run", case, "-o", missing, "--alignment", "sideways"],
        &["run", case, "-o", missing, "--rows", "3..2", "--stage", "0"],
    ];
    for args in cases {
        let output = run(args);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(output.stdout.is_empty(), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
    let named = stderr(&run(["check", "--backend", "oracle", missing]));
    assert!(
        named.starts_with("error: ") && named.contains("missing.safetensors"),
        "{named}"
    );
}

#[test]
fn json_is_one_object_a_case_and_the_totals() {
    let folder = TempDir::new().unwrap();
    let sample = data("sdpa_options/poison_kvlen_b3_nq9_nk40_d16_f32.safetensors");
    let mut wrong = Parts::read(&sample);
    wrong.get("expected.lse")[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let path = folder.path().join("wrong.safetensors");
    wrong.write(&path);
    let args = ["check", "--backend", "oracle", "--strict", "--json"].map(PathBuf::from);
    let output = run(args.iter().chain([&sample, &path]));
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<serde_json::Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [good, bad, totals] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(good["outcome"], "pass");
    assert_eq!(good["outputs"][0]["name"], "Y");
    assert!(good["outputs"][0]["worst"]["share"].as_f64().unwrap() <= 1.0);
    assert_eq!(
        good["unsupported"][0]["outputs"],
        serde_json::json!(["dK", "dQ", "dV"])
    );
    assert_eq!(bad["outcome"], "fail");
    assert_eq!(bad["case"], path.to_str().unwrap());
    let lse = &bad["outputs"][1];
    assert_eq!(
        (lse["passed"].as_bool(), lse["outside"].as_u64()),
        (Some(false), Some(1))
    );
    assert_eq!(lse["worst"]["at"], serde_json::json!([0, 0, 0]));
    assert_eq!(lse["worst"]["expected"], "NaN");
    assert_eq!(
        (totals["passed"].as_u64(), totals["failed"].as_u64()),
        (Some(1), Some(1))
    );
    assert_eq!(
        (&totals["unsupported"], &totals["strict"]),
        (&0.into(), &true.into())
    );
}

#[test]
fn a_closed_pipe_is_no_crash() {
    let mut child = program()
        .args(["check", "--backend", "oracle"])
        .arg(data("onnx"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(141));
}

fn run_case(input: &Path, output: &Path, flags: &[&str]) -> Output {
    let flags = flags.iter().map(|f| Path::new(f));
    let fixed = [Path::new("run"), input, Path::new("-o"), output];
    let backend = ["--backend", "oracle"].map(Path::new);
    run(fixed.into_iter().chain(backend).chain(flags))
}

#[test]
fn run_gives_what_the_case_expects() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out.safetensors");
    let flags: [(&str, &[&str], f32); 4] = [
        (
            "sdpa_grads/causal_self_n17_d16_f32.safetensors",
            &["--causal"],
            2e-6,
        ),
        (
            "sdpa_grads/causal_topleft_nq9_nk24_d64_f16.safetensors",
            &[
                "--causal",
                "--alignment",
                "top-left",
                "--output-dtype",
                "f32",
            ],
            1e-4,
        ),
        (
            "sdpa_grads/scale_negative_n17_d40_f16.safetensors",
            &["--output-dtype", "f32"],
            1e-4,
        ),
        (
            "sdpa_options/window_left_causal_n65_d16_f32.safetensors",
            &["--causal"],
            2e-5,
        ),
    ];
    for (name, flags, tolerance) in flags {
        let input = data(name);
        let mut case = Parts::read(&input);
        let scale = &case.metadata["scale"].clone();
        let window = case
            .metadata
            .get("window_left")
            .cloned()
            .unwrap_or_default();
        let mut flags = [flags, &["--lse", "--scale", scale]].concat();
        if !window.is_empty() {
            flags.extend(["--window-left", &window]);
        }
        let output = run_case(&input, &out, &flags);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", stderr(&output));
        let mut written = Parts::read(&out);
        for (got, expected) in [("Y", "expected.Y"), ("lse", "expected.lse")] {
            assert_eq!(written.shape(got), case.shape(expected), "{name}");
            let (got, expected) = (written.f32(got), case.f32(expected));
            for (g, e) in got.iter().zip(&expected) {
                assert!(g == e || (g - e).abs() <= tolerance, "{name}: {g} for {e}");
            }
        }
    }
}

#[test]
fn run_writes_stages_of_a_region_and_halves() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out.safetensors");
    let input = data("sdpa_grads/gqa6x1_full_n17_d40_f16.safetensors");
    let flags = [
        "--stage", "3", "--stage", "0", "--rows", "2..7", "--heads", "1..3",
    ];
    let output = run_case(&input, &out, &flags);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let mut written = Parts::read(&out);
    let batch = Parts::read(&input).shape("Q")[0];
    assert_eq!(written.shape("stage3"), [batch, 2, 5, 17]);
    assert_eq!(written.shape("stage0"), [batch, 2, 5, 17]);
    for row in written.f32("stage3").chunks(17) {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6, "{row:?}");
    }
    let (_, dtype, shape, _) = written.tensors.iter().find(|(n, ..)| n == "Y").unwrap();
    assert_eq!(
        (*dtype, shape),
        (Dtype::F16, &Parts::read(&input).shape("expected.Y"))
    );
    assert!(!written.tensors.iter().any(|(n, ..)| n == "lse"));
    assert!(written.metadata.contains_key("wgpu-attention"));
}

/// Keep and Drop are opposites: the inverted mask with Drop is the mask with Keep.
#[test]
fn polarity_is_what_the_flag_says() {
    let folder = TempDir::new().unwrap();
    let input = data("sdpa_grads/boolmask_keypad_b3_nq9_nk31_d16_f32.safetensors");
    let mut inverted = Parts::read(&input);
    inverted.get("attn_mask").iter_mut().for_each(|b| *b ^= 1);
    let other = folder.path().join("inverted.safetensors");
    inverted.write(&other);
    let [a, b, c] = ["a", "b", "c"].map(|n| folder.path().join(n));
    for (input, out, polarity) in [
        (&input, &a, "keep"),
        (&other, &b, "drop"),
        (&input, &c, "drop"),
    ] {
        let output = run_case(input, out, &["--mask-polarity", polarity]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    let y = |path: &Path| Parts::read(path).f32("Y");
    assert_eq!(y(&a), y(&b));
    assert_ne!(y(&a), y(&c));
}

/// Whatever goes wrong, the target is as before and no temporary file stays.
#[test]
fn a_failed_run_leaves_nothing_behind() {
    let folder = TempDir::new().unwrap();
    let input = folder.path().join("in.safetensors");
    std::fs::copy(
        data("sdpa_grads/causal_self_n17_d1_f32.safetensors"),
        &input,
    )
    .unwrap();
    let mut misspelt = Parts::read(&input);
    misspelt.tensors[0].0 = "attn_biass".to_owned();
    let odd = folder.path().join("odd.safetensors");
    misspelt.write(&odd);
    let old = folder.path().join("old.safetensors");
    std::fs::write(&old, "precious").unwrap();
    let before = std::fs::read(&input).unwrap();
    let listing = || {
        let entries = folder.path().read_dir().unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let names = listing();
    let absent = folder.path().join("no/such/folder/out.safetensors");
    let same = folder.path().join(".").join("in.safetensors");
    let failures: [(&Path, &Path, &[&str], &str); 8] = [
        (&input, &input, &[], "is the input"),
        (&input, &same, &[], "is the input"),
        (&input, &absent, &[], "does not exist"),
        (&input, folder.path(), &[], "not a regular file"),
        (&input, &old, &["--softcap", "-1"], "softcap"),
        (
            &input,
            &old,
            &["--rows", "0..99", "--stage", "1"],
            "--rows 0..99",
        ),
        (&input, &old, &["--alignment", "per-sequence"], "offsets"),
        (&odd, &old, &[], "attn_biass is not an operand"),
    ];
    for (input, out, flags, why) in failures {
        let output = run_case(input, out, flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        let errors = stderr(&output);
        assert!(
            errors.starts_with("error: ") && errors.contains(why),
            "{errors}"
        );
        assert_eq!(listing(), names, "{flags:?}");
    }
    assert_eq!(std::fs::read(&input).unwrap(), before);
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "precious");

    // And a run that goes well replaces the old file as a whole.
    let output = run_case(&input, &old, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(listing(), names);
    assert!(SafeTensors::deserialize(&std::fs::read(&old).unwrap()).is_ok());
}

#[test]
fn info_names_adapters_limits_and_kernels() {
    let output = run(["info"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for word in [
        "adapter ",
        "max_storage_buffer_binding_size: ",
        "subgroup_size: ",
        "Fused",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let json: serde_json::Value = serde_json::from_slice(&run(["info", "--json"]).stdout).unwrap();
    assert!(json["adapters"][0]["max_compute_workgroup_storage_size"].as_u64() >= Some(16384));
    assert!(!json["kernels"].as_array().unwrap().is_empty());
}

#[test]
fn demo_passes_on_the_adapter() {
    let output = run(["demo"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert_eq!(text.matches("result    PASS").count(), 3, "{text}");
    assert!(
        text.contains("all-MiniLM-L6-v2") && text.contains("GFLOP/s"),
        "{text}"
    );
}

/// A machine without an adapter is told what to install, and gets the CPU.
#[cfg(target_os = "linux")]
#[test]
fn demo_without_an_adapter_says_what_to_do() {
    let output = program()
        .arg("demo")
        .env("WGPU_BACKEND", "metal")
        .output()
        .unwrap();
    let (text, errors) = (stdout(&output), stderr(&output));
    assert!(!errors.contains("panicked"), "{errors}");
    assert_eq!(output.status.code(), Some(0), "{text}{errors}");
    assert!(text.starts_with("no adapter: "), "{text}");
    assert!(text.contains("vulkan"), "{text}");
    assert!(text.contains("runs on the CPU"), "{text}");
    assert_eq!(text.matches("result    PASS").count(), 3, "{text}");
}
