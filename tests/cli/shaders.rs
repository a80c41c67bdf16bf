//! `shaders`: what a plan emits, written out.

use std::collections::BTreeSet;

use crate::{run, stderr, stdout};

fn files(folder: &std::path::Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn shaders_of_a_plan_are_written_and_valid() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("a/b");
    for (kernel, dtype, count) in [("tiled", "f16", 1), ("staged", "f32", 3)] {
        let output = run([
            "shaders",
            "--out",
            out.to_str().unwrap(),
            "--kernel",
            kernel,
            "--dtype",
            dtype,
            "--no-adapter",
            "--json",
        ]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        let shaders = json["shaders"].as_array().unwrap();
        assert_eq!(shaders.len(), count, "{json}");
        for shader in shaders {
            let file = shader["file"].as_str().unwrap();
            let text = std::fs::read_to_string(out.join(file)).unwrap();
            naga::front::wgsl::parse_str(&text).unwrap();
            let reads_keys = text.contains("> key: ") || text.contains("> value: ");
            assert_eq!(file.contains(dtype), reads_keys, "{file}");
            let bindings = shader["bindings"].as_array().unwrap();
            assert_eq!(bindings.len(), text.matches("@binding(").count(), "{file}");
            let memory = shader["workgroup_memory_bytes"].as_u64().unwrap();
            assert!(memory <= 16384 && memory % 16 == 0, "{file}: {memory}");
            assert_eq!(memory > 0, text.contains("var<workgroup>"), "{file}");
        }
    }
    assert_eq!(files(&out).len(), 4, "{:?}", files(&out));
}

#[test]
fn shaders_of_no_plan_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    for (flag, value, word) in [
        ("--head-dim", "0", "Dqk > 0"),
        ("--kv-heads", "3", "multiple of the 3 kv heads"),
        ("--q-len", "2000000000", "2^30"),
        ("--batch", "1073741824", "at most 65536 dispatches"),
    ] {
        let output = run(["shaders", "--out", out, flag, value]);
        assert_eq!(output.status.code(), Some(2), "{flag} {value}");
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
    assert!(files(folder.path()).is_empty());
    let output = run(["shaders", "--out", "/dev/null/x"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/dev/null"), "{}", stderr(&output));
}

/// Kernels that need subgroups are written for a device that has them.
#[test]
fn shaders_for_subgroups_need_their_size() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    for (kernel, size, code) in [
        ("tiled-subgroup", None, 2),
        ("tiled-subgroup", Some("32"), 0),
        ("lane-broadcast", None, 2),
        ("lane-broadcast", Some("32"), 0),
        ("lane-broadcast", Some("8"), 0),
    ] {
        let mut args = vec!["shaders", "--no-adapter", "--out", out, "--kernel", kernel];
        if let Some(size) = size {
            args.extend(["--subgroup-size", size]);
        }
        let output = run(args);
        assert_eq!(output.status.code(), Some(code), "{kernel} {size:?}");
        assert_eq!(
            stderr(&output).contains("SUBGROUP"),
            code == 2,
            "{kernel} {size:?}"
        );
    }
    assert_eq!(files(folder.path()).len(), 2);
    let wide = [
        "--kernel",
        "lane-broadcast",
        "--subgroup-size",
        "8",
        "--int64",
    ];
    let output = run([&["shaders", "--out", out][..], &wide].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let file = folder
        .path()
        .join("forward_lanes.f32.wide.8lanes.intervals.wgsl");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains("array<vec2<u64>>"), "{text}");
    assert!(!text.contains("modified(row_0"), "{text}");
    // Planned as `bench` plans it: loops end too early for that many keys on llvmpipe.
    let long = [
        "--rule", "bias", "--q-len", "2", "--kv-len", "15000", "--heads", "1",
    ];
    let planned = |extra: &[&str]| {
        let args = ["shaders", "--out", out];
        stdout(&run(args.iter().chain(&long[2..]).chain(extra)))
    };
    let bench = run(["bench", "--runs", "0"].iter().chain(&long));
    let kernel = |text: &str| -> String {
        let line = text.lines().find(|line| line.contains("kernel: "));
        line.unwrap_or(text)
            .trim_start_matches("  plan  ")
            .to_owned()
    };
    assert_eq!(kernel(&planned(&long[..2])), kernel(&stdout(&bench)));
    let many = [
        "--rule",
        "segments",
        "--batch",
        "100000000",
        "--q-len",
        "1000000",
    ];
    let output = run(["shaders", "--no-adapter", "--out", out]
        .iter()
        .chain(&many));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("segments: 100000000000000 ids"));
    for (rules, stem, pairs, scores) in [
        (&["segments"][..], ".pairs", true, false),
        (&["softcap", "alibi"], ".scores", false, true),
        (&["softcap", "mask-bits"], "", true, true),
        (&["bias"], "", true, true),
    ] {
        let rules = rules.iter().flat_map(|rule| ["--rule", rule]);
        let args = ["shaders", "--out", out]
            .into_iter()
            .chain(wide)
            .chain(rules);
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let name = format!("forward_lanes.f32.wide.8lanes{stem}.wgsl");
        let text = std::fs::read_to_string(folder.path().join(&name)).unwrap();
        std::fs::remove_file(folder.path().join(name)).unwrap();
        assert_eq!(text.contains("shown_by_mask_and_bias(masks"), pairs);
        assert_eq!(text.contains("modified(row_0"), scores);
    }
}

/// The table names the plan and every file.
#[test]
fn shaders_prints_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let output = run(["shaders", "--out", out, "--shared-buffers"]);
    let text = stdout(&output);
    for file in files(folder.path()) {
        assert!(text.contains(&file) && file.contains("shared"), "{text}");
    }
    assert!(text.starts_with("problem: B 1 Hq 8"), "{text}");
    assert!(text.contains("params:uniform query:read_write"), "{text}");
}

/// Whatever shape `bench` takes, `shaders` with the same flags writes a file that
/// `bench --shaders` finds in the plan.
#[test]
fn shaders_are_written_for_every_shape_of_bench() {
    for (flags, in_name) in [
        (&["--case", "f16-kv"][..], "f16"),
        (&["--kv-dtype", "bf16", "--q-len", "20", "--causal"], "bf16"),
        (
            &["--kv-dtype", "f16", "--q-len", "20", "--window", "8"],
            "f16",
        ),
        (
            &["--projection", "--q-len", "20", "--head-dim", "24"],
            "project",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().to_str().unwrap();
        let output = run(["shaders", "--out", out].iter().chain(flags));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let written = files(folder.path());
        let is_named = |file: &String| file.contains(in_name);
        assert!(written.iter().any(is_named), "{flags:?}: {written:?}");
        let own = ["bench", "--runs", "0", "--shaders", out];
        let output = run(own.iter().chain(flags));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}
