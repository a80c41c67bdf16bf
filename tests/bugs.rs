//! The tests that BUGS.md names exist.

use std::collections::BTreeMap;
use std::path::Path;

/// The text of every Rust file that `file::name` may mean, by `file`: a file of
/// tests/, all files of a folder there, or a module of src/ with its own tests.
fn sources() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let mut folders = vec![(root.join("tests"), None), (root.join("src"), None)];
    while let Some((folder, target)) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                folders.push((path, Some(target.clone().unwrap_or(stem))));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let name = target.clone().unwrap_or(stem);
                found.entry(name).or_default().push_str(&text);
            }
        }
    }
    found
}

/// Every `file::name` in backquotes.
fn named(text: &str) -> Vec<(&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter_map(|code| code.split_once("::")).collect()
}

/// Whether the file has a test of that name: the attribute, then the function.
fn has_test(text: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    text.match_indices(&function).any(|(at, _)| {
        let before = text[..at].trim_end();
        before.ends_with("#[test]")
    })
}

fn missing(table: &str) -> Vec<String> {
    let sources = sources();
    let is_missing =
        |(file, name): &(&str, &str)| !sources.get(*file).is_some_and(|text| has_test(text, name));
    let absent = named(table).into_iter().filter(is_missing);
    absent
        .map(|(file, name)| format!("{file}::{name}"))
        .collect()
}

#[test]
fn every_test_that_is_named_exists() {
    let table = include_str!("BUGS.md");
    assert!(named(table).len() > 80, "{}", named(table).len());
    assert_eq!(missing(table), Vec::<String>::new());
}

#[test]
fn every_report_has_an_answer() {
    let rows: Vec<_> = include_str!("BUGS.md")
        .lines()
        .filter(|line| {
            line.starts_with("| ") && !line.starts_with("| report") && !line.contains("---")
        })
        .collect();
    assert!(rows.len() > 60, "{}", rows.len());
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        assert_eq!(cells.len(), 3, "{row}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{row}");
    }
}

#[test]
fn a_name_that_does_not_exist_is_found() {
    let table = "`bugs::every_report_has_an_answer`, `bugs::named`, `bugs::nothing`, `nowhere::at_all`, `no name`";
    assert_eq!(named(table).len(), 4);
    assert_eq!(
        missing(table),
        ["bugs::named", "bugs::nothing", "nowhere::at_all"]
    );
}
