//! `info` and `demo`.

use crate::{data, program, run, stderr, stdout};

#[test]
fn info_names_adapters_limits_and_kernels() {
    let output = run(["info"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for word in [
        "adapter ",
        "max_storage_buffer_binding_size: ",
        "subgroup_size: ",
        "LaneBroadcast",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let json: serde_json::Value = serde_json::from_slice(&run(["info", "--json"]).stdout).unwrap();
    let class = json["class"].as_str().unwrap();
    assert!(
        text.contains(&format!("{class}, its kernels, best first")),
        "{text}"
    );
    let rows = json["candidates"].as_array().unwrap();
    assert!(rows.len() >= 2);
    for row in rows {
        let [kernel, evidence, source] =
            ["kernel", "evidence", "source"].map(|key| row[key].as_str().unwrap());
        assert!(
            text.contains(&format!("{kernel}: {source} ({evidence})")),
            "{text}"
        );
    }
    assert!(json["adapters"][0]["max_compute_workgroup_storage_size"].as_u64() >= Some(16384));
    assert!(!json["kernels"].as_array().unwrap().is_empty());
}

/// A machine can be described without an adapter; one that was named has to be there.
#[test]
fn info_knows_when_it_found_nothing() {
    let output = run(["info", "--adapter", "no such adapter"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stdout(&output).contains("none matches"),
        "{}",
        stdout(&output)
    );
    let output = run(["info", "--json", "--adapter", "no such adapter"]);
    assert_eq!(output.status.code(), Some(2));
    let output = program()
        .arg("info")
        .env("WGPU_BACKEND", "metal")
        .output()
        .unwrap();
    if cfg!(target_os = "linux") {
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}

#[test]
fn flags_of_an_adapter_need_one() {
    let file = data("onnx/attention_4d_causal.safetensors");
    let file = file.to_str().unwrap();
    for flags in [
        &["--kernel", "staged"][..],
        &["--tuning", "tuning.json"],
        &["--adapter", "llvmpipe"],
        &["--default-limits"],
        &["--strict-webgpu"],
    ] {
        for backend in ["cpu", "oracle"] {
            let args = [&["check", file, "--backend", backend], flags].concat();
            let output = run(args);
            let errors = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{flags:?}: {errors}");
            let expected = format!(
                "{}: expected --backend gpu, got --backend {backend}",
                flags[0]
            );
            assert!(errors.contains(&expected), "{errors}");
        }
    }
}

/// The demo's last lines name a picture, which is there.
fn shows_a_picture(text: &str) {
    let line = text.lines().find_map(|l| l.strip_prefix("picture   "));
    let path = std::path::Path::new(line.unwrap_or_else(|| panic!("{text}")));
    let bytes = std::fs::read(path).unwrap();
    assert!(bytes.starts_with(b"\x89PNG"), "{}", path.display());
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
    shows_a_picture(&text);
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
    shows_a_picture(&text);
}

#[cfg(target_os = "linux")]
#[test]
fn check_without_an_adapter_is_an_error_with_advice() {
    let output = program()
        .arg("check")
        .arg(data("onnx"))
        .env("WGPU_BACKEND", "metal")
        .output()
        .unwrap();
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.starts_with("error: no adapter: "), "{errors}");
    assert!(errors.to_lowercase().contains("vulkan"), "{errors}");
    assert!(output.stdout.is_empty());
}

#[test]
fn info_says_what_it_was_told() {
    let text = stdout(&run(["info", "--backend", "cpu"]));
    let line = "\nused with --backend cpu: plain f32 path on the CPU";
    assert!(text.contains(line) && !text.contains("unless"), "{text}");
}

#[test]
fn demo_writes_its_picture_where_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("head.png");
    let picture = picture.to_str().unwrap();
    let output = run(["demo", "--backend", "cpu", "-o", picture]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(text.contains(&format!("picture   {picture}\n")), "{text}");
    shows_a_picture(&text);
    for wrong in ["head.svg", "/no/such/folder/head.png"] {
        let output = run(["demo", "--backend", "cpu", "-o", wrong]);
        assert_eq!(output.status.code(), Some(2), "{wrong}");
        assert_eq!(stdout(&output), "", "{wrong}");
    }
    let help = stdout(&run(["demo", "--help"]));
    assert!(help.contains("temporary folder"), "{help}");
}
