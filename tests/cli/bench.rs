//! `bench`: what it prints for a small shape, and what it refuses.

use serde_json::Value;

use crate::{run, stderr, stdout};

/// Grouped heads, odd sizes, two storage types, causal with a window.
const SHAPE: [&str; 17] = [
    "--batch",
    "2",
    "--heads",
    "4",
    "--kv-heads",
    "2",
    "--q-len",
    "19",
    "--kv-len",
    "35",
    "--head-dim",
    "24",
    "--v-dim",
    "12",
    "--causal",
    "--window",
    "9",
];

const SHORT: [&str; 5] = ["bench", "--runs", "2", "--seconds", "0.1"];

fn documents(args: &[&str]) -> Value {
    let output = run(SHORT.iter().chain(["--json"].iter()).chain(args));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_shape_is_measured_against_ceilings_and_plain_attention() {
    let shape = [&SHAPE[..], &["--dtype", "bf16", "--kv-dtype", "f16"]].concat();
    let document = documents(&[&shape[..], &["--compare", "--processes", "2"]].concat());
    assert!(
        document["adapter"]
            .as_str()
            .is_some_and(|name| !name.is_empty())
    );
    assert!(
        document["processor"]
            .as_str()
            .is_some_and(|name| name.contains("threads"))
    );
    assert_eq!(document["processes"], 2);
    let cases = document["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 1);
    let case = &cases[0];
    // Rows 16 to 34 of the last 19 see 9 keys each.
    assert_eq!(
        case["flop"],
        2.0 * (24.0 + 12.0) * f64::from(2 * 4 * 19 * 9)
    );
    assert!(case["multiply_add_gflops"].as_f64() > Some(0.0));
    assert!(case["copy_gbytes_per_second"].as_f64() > Some(0.0));
    let kernels = case["kernels"].as_array().unwrap();
    let names: Vec<_> = kernels
        .iter()
        .map(|k| k["kernel"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 3);
    assert_eq!(names[1..], ["staged", "plain three-pass"]);
    assert_eq!(kernels[0]["chosen"], true);
    for kernel in kernels {
        let figure = |name: &str| kernel[name].as_f64().unwrap_or(f64::NAN);
        let (best, median, first) = (
            figure("best_ms"),
            figure("median_ms"),
            figure("first_dispatch_ms"),
        );
        assert!(0.0 < best && best <= median && best < first, "{kernel}");
        assert!(
            figure("gflops") > 0.0 && figure("share_of_copy") > 0.0,
            "{kernel}"
        );
        assert!(figure("share_of_multiply_add") < 1.0, "{kernel}");
        assert!(kernel["pipelines"].as_u64() > Some(0), "{kernel}");
    }
    let ratio = figure_of(&kernels[2], "best_ms") / figure_of(&kernels[0], "best_ms");
    assert!((case["over_plain"].as_f64().unwrap() / ratio - 1.0).abs() < 1e-9);
}

fn figure_of(kernel: &Value, name: &str) -> f64 {
    kernel[name].as_f64().unwrap()
}

#[test]
fn a_table_is_printed_for_people() {
    // A file that is not there is told once, and changes nothing.
    let extra = [
        "--kernel",
        "tiled",
        "--processes",
        "2",
        "--tuning",
        "no such file",
    ];
    let output = run(SHORT.iter().chain(&SHAPE).chain(&extra));
    let text = stdout(&output);
    let warnings = stderr(&output).matches("warning: no such file: ").count();
    assert_eq!(warnings, 1, "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    for word in [
        "adapter ",
        "processor ",
        "GFLOP/s",
        "first ms",
        "  tiled ",
        "plan  kernel: Tiled",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert!(text.contains("heads 4 over 2 kv heads, queries 19, keys 35, head_dim 24 and 12"));
}

#[test]
fn projections_are_measured() {
    let args = ["--projection", "--q-len", "33", "--head-dim", "20"];
    let document = documents(&[&args[..], &["--kv-len", "17", "--compare"]].concat());
    let case = &document["cases"][0];
    assert_eq!(case["flop"], 2.0 * f64::from(33 * 20 * 17));
    assert_eq!(
        case["operand_bytes"],
        4.0 * f64::from(33 * 20 + 17 * 20 + 33 * 17)
    );
    let kernels = case["kernels"].as_array().unwrap();
    assert!(kernels[0]["gflops"].as_f64() > Some(0.0), "{document}");
    let plan = kernels[0]["plan"].as_str().unwrap();
    assert!(plan.contains("in 20 out 17"), "{plan}");
    // There is no plain projection to compare with.
    assert!(kernels[2]["unsupported"].is_string(), "{document}");
}

/// Without runs after the first there are no rates, and the adapter's are not measured.
#[test]
fn a_first_dispatch_is_measured_alone() {
    let shape = ["--q-len", "9", "--heads", "1"];
    let args = [&["bench", "--runs", "0"][..], &shape].concat();
    let output = run(&args);
    let table = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(table.contains("head_dim 64, f32\n"), "{table}");
    assert!(!table.contains("ceilings"), "{table}");
    let compared = ["--compare", "--inspect", "--json"];
    let output = run(args.iter().chain(&compared));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let case = &document["cases"][0];
    assert_eq!(case["multiply_add_gflops"], Value::Null);
    let kernels = case["kernels"].as_array().unwrap();
    for kernel in kernels {
        assert!(figure_of(kernel, "first_dispatch_ms") > 0.0, "{kernel}");
        assert_eq!(kernel["best_ms"], Value::Null, "{kernel}");
        assert_eq!(kernel["gflops"], Value::Null, "{kernel}");
    }
    assert_eq!(kernels.len(), 6, "{document}");
}

/// Every rule is compared with float64 before its time is told, together and alone.
#[test]
fn rules_are_measured() {
    const RULES: [&str; 5] = ["softcap", "alibi", "mask-bits", "bias", "segments"];
    let together = RULES.map(|rule| ["--rule", rule]).concat();
    let shape = ["--q-len", "37", "--heads", "2", "--causal", "--compare"];
    let document = documents(&[&shape[..], &together].concat());
    let kernels = document["cases"][0]["kernels"].as_array().unwrap();
    assert!(figure_of(&kernels[0], "gflops") > 0.0, "{document}");
    assert!(figure_of(&kernels[1], "gflops") > 0.0, "{document}");
    assert_eq!(kernels[2]["unsupported"], "it has no softcap");
    let pairs = 37.0 * 37.0;
    assert_eq!(
        document["cases"][0]["operand_bytes"],
        // A row of bits takes two words.
        4.0 * 2.0 * 37.0 * 64.0 * 4.0 + 37.0 * 8.0 + pairs * 4.0
    );
    let bytes = ["--rule", "mask-bytes", "--q-len", "37", "--heads", "2"];
    let twice = [&bytes[..], &["--rule", "mask-bytes"]].concat();
    let document = documents(&twice);
    let rules = document["cases"][0]["case"]["rules"].as_array().unwrap();
    assert_eq!(rules, &["mask-bytes"]);
    assert!(document["cases"][0]["kernels"][0]["gflops"].is_f64());
}

/// Kernels of one's own run in the place of the library's, compared with nothing.
#[test]
fn shaders_of_ones_own_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let output = run([
        "shaders",
        "--out",
        out,
        "--kernel",
        "tiled",
        "--adapter",
        "",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap();
    let file = file.unwrap().path();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("exp2("), "{text}");

    let shape = ["--kernel", "tiled", "--heads", "1", "--q-len", "70"];
    let args = [&SHORT[..], &shape, &["--shaders", out]].concat();
    // A wrong softmax has a time too.
    std::fs::write(&file, text.replace("exp2(", "abs(")).unwrap();
    let output = run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let table = stdout(&output);
    assert!(table.contains("their results not compared"), "{table}");
    assert!(table.contains("\n  tiled  "), "{table}");
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(table.contains(&format!("own shaders: {name}")), "{table}");
    assert_eq!(
        documents(&[&shape[..], &["--shaders", out]].concat())["shaders"],
        out
    );

    // What runs is that text, and the whole of the plan's or nothing.
    std::fs::write(&file, "no WGSL").unwrap();
    let output = run(&args);
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("no WGSL") && errors.contains(name),
        "{errors}"
    );
    let output = run([&args[..], &["--dtype", "f16"]].concat());
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("tiled runs forward_tiled.f16"), "{errors}");
    // The command that it names gives what is missing.
    let advice = errors.split('`').nth(1).unwrap().replace("DIR", out);
    let written = run(advice.split(' '));
    assert_eq!(written.status.code(), Some(0), "{}", stderr(&written));
    let output = run([&args[..], &["--dtype", "f16"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn folders_without_shaders_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let refused = |message: &str| {
        let output = run(["bench", "--shaders", out]);
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(message), "{errors}");
        assert!(output.stdout.is_empty());
    };
    refused("no WGSL file");
    std::fs::write(folder.path().join("mine.wgsl"), "").unwrap();
    refused("mine.wgsl: `shaders --out` writes no file of that name");
    drop(std::fs::remove_dir_all(folder.path()));
    refused(out);
}

#[test]
fn mistakes_are_refused() {
    for (args, message) in [
        (&["--case", "prefill"][..], "prefill-64"),
        (&["--case", "causal", "--q-len", "3"], "cannot be used with"),
        (&["--q-len", "0"], "--q-len: expected 1 to"),
        (&["--projection", "--causal"], "cannot be used with"),
        (&["--shaders", ".", "--compare"], "cannot be used with"),
        (&["--projection", "--heads", "2"], "cannot be used with"),
        (&["--window", "0"], "window: expected at least 1 key"),
        (&["--rule", "bias", "--projection"], "cannot be used with"),
        (&["--rule", "bias", "--case", "project-512"], "has no pairs"),
        (
            &["--rule", "bias", "--q-len", "1000000", "--heads", "1"],
            "16 GiB",
        ),
        (
            &["--rule", "bias", "--q-len", "9000", "--default-limits"],
            "bias: 324000000 bytes, the device's buffers take 268435456",
        ),
        (
            &["--rule", "mask-bits", "--rule", "mask-bytes"],
            "expected one mask",
        ),
        (&["--seconds", "nan"], "a finite number"),
        (
            &["--heads", "3", "--kv-heads", "2"],
            "a multiple of the 2 kv heads",
        ),
        (
            &["--adapter", "no such adapter"],
            "no adapter: none matches",
        ),
        (
            &["--q-len", "1000000000", "--kv-len", "1000000000"],
            "16 GiB",
        ),
    ] {
        let output = run(["bench"].iter().chain(args));
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(message), "{args:?}: {errors}");
        assert!(output.stdout.is_empty());
    }
}
