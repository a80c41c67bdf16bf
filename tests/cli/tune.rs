//! `tune`, and what other commands make of its file.

use crate::{run, stderr, stdout};

const SMALL: [&str; 11] = [
    "tune",
    "--heads",
    "2",
    "--q-len",
    "40",
    "--head-dim",
    "16",
    "--causal",
    "--seconds",
    "3",
    "--out",
];

#[test]
fn results_are_kept_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.json");
    let file = file.to_str().unwrap();
    let tuned = run(SMALL.into_iter().chain([file]));
    let text = stdout(&tuned);
    assert_eq!(tuned.status.code(), Some(0), "{text}{}", stderr(&tuned));
    assert!(
        text.contains("to compile") && text.contains("  chosen: "),
        "{text}"
    );
    assert!(text.contains("1 result;"), "{text}");

    // As JSON, over the same file: still one result.
    let again = run(SMALL.into_iter().chain([file, "--json"]));
    let json: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    let result = &json["results"][0];
    assert!(result["chosen"].is_string(), "{json}");
    assert!(result["trials"].as_array().unwrap().len() >= 2);
    let kept = std::fs::read_to_string(file).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    assert_eq!(kept["results"].as_array().unwrap().len(), 1);
    assert_eq!(kept["results"][0]["kernel"], result["chosen"]);

    let used = run(["info", "--tuning", file]);
    assert_eq!(used.status.code(), Some(0));
    assert!(!stderr(&used).contains("warning"), "{}", stderr(&used));
}

/// A file that is no tuning file warns and changes nothing, and `tune` does not
/// overwrite it.
#[test]
fn another_file_is_neither_believed_nor_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("letter.txt");
    std::fs::write(&file, "Dear Sir").unwrap();
    let path = file.to_str().unwrap();
    let info = run(["info", "--tuning", path]);
    assert_eq!(info.status.code(), Some(0));
    let warning = format!("warning: {path}: tuning: expected a tuning file");
    assert!(stderr(&info).contains(&warning), "{}", stderr(&info));
    assert_eq!(stdout(&info), stdout(&run(["info"])));
    let tune = run(SMALL.into_iter().chain([path]));
    assert_eq!(tune.status.code(), Some(2));
    assert!(stderr(&tune).contains("kept as it is"), "{}", stderr(&tune));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "Dear Sir");
    let absent = run(["info", "--tuning", "/no/such/file"]);
    assert!(stderr(&absent).contains("warning: /no/such/file: no such file"));
}
