//! The README's samples that the documentation has too: there they are compiled and run.

/// The lines of the first Rust block behind `title`; hidden ones are left out.
fn sample(text: &str, title: &str) -> Vec<String> {
    let behind = text.lines().skip_while(|line| *line != title);
    let block = behind.skip_while(|line| !line.starts_with("```")).skip(1);
    let lines = block.take_while(|line| !line.starts_with("```"));
    let shown = lines.filter(|line| *line != "#" && !line.starts_with("# "));
    shown.map(str::to_owned).collect()
}

#[test]
fn decoding_over_a_cache_is_shown_as_it_is_tested() {
    let readme = sample(include_str!("../README.md"), "### Decoding over a cache");
    let source = include_str!("../src/lib.rs").lines();
    let page = source.map_while(|line| line.strip_prefix("//!"));
    let page: Vec<&str> = page
        .map(|line| line.strip_prefix(' ').unwrap_or(line))
        .collect();
    let tested = sample(&page.join("\n"), "# Over a cache");
    let has = |what: &str| readme.iter().any(|line| line.contains(what));
    assert!(has("List::Buffer") && has("Workspace::new"), "{readme:?}");
    assert_eq!(readme, tested);
}
