//! `run`: options as flags, and what is left on the disk.

use std::path::Path;
use std::process::Output;

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use tempfile::TempDir;

use crate::{Parts, data, run, stderr};

fn run_case(input: &Path, output: &Path, flags: &[&str]) -> Output {
    let flags = flags.iter().map(Path::new);
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
        (&input, &input, &[], "is an input"),
        (&input, &same, &[], "is an input"),
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
fn a_stage_asked_for_twice_is_written_once() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out.safetensors");
    let input = data("sdpa_grads/causal_self_n17_d16_f32.safetensors");
    let done = run_case(
        &input,
        &out,
        &["--stage", "3", "--stage", "0", "--stage", "3"],
    );
    assert!(done.status.success(), "{}", stderr(&done));
    let bytes = std::fs::read(&out).unwrap();
    let written = SafeTensors::deserialize(&bytes).unwrap();
    let mut names = written.names();
    names.sort();
    assert_eq!(names, ["Y", "stage0", "stage3"]);
}

#[test]
fn a_stage_that_cannot_be_computed_is_refused_first() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out.safetensors");
    let input = data("sdpa_grads/causal_self_n17_d16_f32.safetensors");
    let words = ["run", "--backend", "cpu", "--stage", "3", "-o"].map(Path::new);
    let refused = run(words.into_iter().chain([out.as_path(), input.as_path()]));
    assert!(stderr(&refused).contains("--stage needs --backend gpu or oracle"));
    assert!(!out.exists());
}

/// Who has flags is told of flags, and not what to request of a device; and a file of
/// results that has none for the problem is not passed over without a word.
#[test]
fn the_kernels_line_speaks_of_flags() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out.safetensors");
    let input = data("onnx/attention_4d_causal.safetensors");
    let line = |flags: &[&str]| {
        let fixed = [Path::new("run"), &input, Path::new("-o"), &out];
        let output = run(fixed.into_iter().chain(flags.iter().map(Path::new)));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find(|line| line.starts_with("kernel   "));
        line.unwrap().to_owned()
    };
    let plain = line(&["--default-limits"]);
    assert!(
        !plain.contains("request") && !plain.contains("wgpu::"),
        "{plain}"
    );
    if line(&[]).starts_with("kernel   lane-broadcast") {
        assert!(plain.contains("without --default-limits"), "{plain}");
        assert!(plain.contains("the feature SUBGROUP"), "{plain}");
    }
    let tuning = folder.path().join("tuning.json");
    let tuning = tuning.to_str().unwrap();
    let sizes =
        "tune --q-len 20 --kv-len 20 --heads 1 --head-dim 8 --seconds 3 --kv-dtype f16 --out";
    let tuned = run(sizes.split(' ').chain([tuning]));
    assert_eq!(tuned.status.code(), Some(0), "{}", stderr(&tuned));
    let other = line(&["--tuning", tuning]);
    let why = "; --tuning has no result for problems of this class";
    assert!(other.contains(why), "{other}");
    let forced = line(&["--tuning", tuning, "--kernel", "tiled"]);
    assert!(
        forced.contains("; --kernel decides, not --tuning"),
        "{forced}"
    );
}

/// A name in small letters is told how it is written.
#[test]
fn names_of_operands_are_capitals() {
    let folder = TempDir::new().unwrap();
    let small = folder.path().join("small.safetensors");
    let mut parts = Parts::read(&data("onnx/attention_4d_causal.safetensors"));
    parts.metadata.clear();
    for (name, ..) in &mut parts.tensors {
        *name = name.to_lowercase();
    }
    parts.write(&small);
    let refused = run_case(&small, &folder.path().join("out.safetensors"), &[]);
    let told = stderr(&refused);
    assert!(
        told.contains("is not an operand, K is: names differ by their capitals"),
        "{told}"
    );
}
