//! `check`: what passes, what fails and how it says so.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;

use crate::{Parts, data, program, run, stderr, stdout};

/// A whole multi-head layer.
const LAYER: &str = "real/minilm_layer0_multihead.safetensors";

const ORACLE: [&str; 3] = ["check", "--backend", "oracle"];

fn check(paths: &[&Path]) -> (i32, String) {
    let paths = paths.iter().map(|p| p.as_os_str());
    let output = run(ORACLE.iter().map(std::ffi::OsStr::new).chain(paths));
    (output.status.code().unwrap(), stdout(&output))
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
        LAYER,
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
    // Gradients and the merging of parts are passed over, and that is said.
    let last = lines.last().unwrap();
    let tail = last
        .strip_prefix("8 passed, 0 failed, 0 unsupported; ")
        .unwrap();
    assert!(tail.ends_with(" outputs unsupported"), "{last}");
    assert!(!tail.starts_with("0 "), "{last}");
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
    assert!(last.contains(" passed, 0 failed, 0 unsupported"), "{text}");
    assert!(!last.starts_with("0 "), "{text}");
}

/// The real layer passes on every backend and by every kernel that the adapter has, and
/// fails on each with one number wrong in a weight or a bias. (One of b_k would be no
/// fault: it adds the same to every score of a row.)
#[test]
fn a_layer_with_a_fault_fails_wherever_it_runs() {
    let folder = TempDir::new().unwrap();
    let faults = [("W_o", 0.1), ("b_o", 1e-3), ("b_v", 0.01), ("b_q", 0.5)];
    let mut files = vec![data(LAYER)];
    for (name, by) in faults {
        let mut wrong = Parts::read(&files[0]);
        let first = &mut wrong.get(name)[..4];
        let changed = f32::from_le_bytes(first.try_into().unwrap()) + by;
        first.copy_from_slice(&changed.to_le_bytes());
        files.push(folder.path().join(format!("{name}.safetensors")));
        wrong.write(files.last().unwrap());
    }
    let kernels = wgpu_attention::Kernel::ALL.iter().map(|k| k.name());
    let on_gpu: Vec<_> = kernels.map(|name| ["--kernel", name]).collect();
    let elsewhere = [["--backend", "cpu"], ["--backend", "oracle"]];
    let mut kernels = 0;
    for flags in on_gpu.iter().chain(&elsewhere) {
        let flags = ["check", "--strict", flags[0], flags[1]].map(Path::new);
        let files = files.iter().map(PathBuf::as_path);
        let output = run(flags.into_iter().chain(files));
        let text = stdout(&output);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        if lines[0].starts_with("UNSUPPORTED ") {
            assert!(lines[0].contains("subgroup"), "{}", lines[0]);
            continue;
        }
        kernels += 1;
        assert!(lines[0].starts_with("PASS "), "{text}");
        assert_eq!(
            lines[0].contains("projections on the host"),
            flags[3] == Path::new("cpu"),
            "{text}"
        );
        for line in &lines[1..=faults.len()] {
            assert!(line.starts_with("FAIL "), "{line}");
            assert!(line.contains(": Y ") && line.contains(" outside"), "{line}");
        }
        assert_eq!(output.status.code(), Some(1));
    }
    assert!(kernels >= 2 + elsewhere.len(), "{kernels}");
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
                text.contains("\n0 passed, 1 failed, 0 unsupported"),
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

/// By name a file that is no case is a mistake, which is told before anything runs; in a
/// folder it is a case that fails. All kinds alike.
#[test]
fn what_is_no_case_is_refused_by_name_and_fails_in_a_folder() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let case = data("onnx/attention_4d.safetensors");
    let mut plain = Parts::read(&case);
    plain.metadata.clear();
    plain
        .tensors
        .retain(|(name, ..)| ["Q", "K", "V"].contains(&&name[..]));
    plain.write(&at("plain.safetensors"));
    std::fs::write(at("text.safetensors"), "Dear Sir, this is a letter.").unwrap();
    let fixed = ["check", "--backend", "oracle", "--json"].map(PathBuf::from);
    let named = [
        case.clone(),
        at("text.safetensors"),
        at("plain.safetensors"),
    ];
    let output = run(fixed.iter().chain(&named));
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout(&output), "");
    let told = stderr(&output);
    assert!(
        told.contains("text.safetensors: not a safetensors file\n"),
        "{told}"
    );
    assert!(told.contains("plain.safetensors: not a case: "), "{told}");
    assert!(
        told.contains("`run` computes the attention of plain tensors"),
        "{told}"
    );

    let output = run(fixed.iter().chain([&case, &folder.path().to_owned()]));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stdout(&output);
    let totals: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&totals["passed"], &totals["failed"]),
        (&1.into(), &2.into())
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
    // The same result has the same bits, another has others.
    let bits = |line: &serde_json::Value, at: usize| line["outputs"][at]["bits"].clone();
    assert_eq!(bits(good, 0).as_str().map(str::len), Some(16));
    assert_eq!(bits(good, 0), bits(bad, 0));
    assert_ne!(bits(good, 0), bits(good, 1));
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
