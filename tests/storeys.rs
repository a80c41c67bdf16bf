//! The storeys of the library: a module knows those of its own storey and of the storeys
//! below it, and no two modules know each other, over whatever ways round.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// From the ground up. What stands in one row does not know one another.
const STOREYS: &[&[&str]] = &[
    &["error"],
    &["memory", "semantics", "structure"],
    &["view"],
    &["rules"],
    &["host"],
    &["cpu", "interpret", "kernel", "reference"],
    &["plan"],
    &["record"],
    &["ops"],
    &["slices"],
    &["tune"],
];

/// The crate's root re-exports, and what tests look at looks everywhere.
const OUTSIDE: [&str; 2] = ["", "testing"];

/// Modules by path, `plan::chunk`, with the modules that each names.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The paths that a file names, each from the crate's root.
struct Paths {
    module: Vec<String>,
    found: Vec<Vec<String>>,
}

impl Paths {
    fn add(&mut self, path: &[String]) {
        let rest = |from: usize| path[from..].iter().cloned();
        let supers = path.iter().take_while(|part| *part == "super").count();
        let full: Vec<String> = match path.first().map(String::as_str) {
            Some("crate") => rest(1).collect(),
            Some("self") => self.module.iter().cloned().chain(rest(1)).collect(),
            Some("super") => {
                let up = self.module.len().saturating_sub(supers);
                self.module[..up]
                    .iter()
                    .cloned()
                    .chain(rest(supers))
                    .collect()
            }
            _ => return,
        };
        self.found.push(full);
    }

    fn add_tree(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.add_tree(&path.tree, &with(&path.ident)),
            syn::UseTree::Name(name) => self.add(&with(&name.ident)),
            syn::UseTree::Rename(name) => self.add(&with(&name.ident)),
            syn::UseTree::Glob(_) => self.add(before),
            syn::UseTree::Group(group) => {
                for item in &group.items {
                    self.add_tree(item, before);
                }
            }
        }
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let mut cfg = attributes.iter().filter(|a| a.path().is_ident("cfg"));
    cfg.any(|a| matches!(&a.meta, syn::Meta::List(list) if list.tokens.to_string() == "test"))
}

impl<'a> Visit<'a> for Paths {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.add_tree(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.add(&parts);
        visit::visit_path(self, path);
    }

    /// What a macro is given is no syntax tree.
    fn visit_macro(&mut self, call: &'a syn::Macro) {
        let text = call.tokens.to_string().replace(' ', "");
        for (at, _) in text.match_indices("crate::") {
            let end = |c: char| !(c.is_alphanumeric() || c == '_' || c == ':');
            let path = text[at..].split(end).next().unwrap_or_default();
            let parts: Vec<String> = path.split("::").map(str::to_owned).collect();
            self.add(&parts);
        }
        visit::visit_macro(self, call);
    }
}

/// Modules and their texts to a graph. `lib` is the root.
fn graph(files: &BTreeMap<String, String>) -> Graph {
    let module_of = |path: &[String]| {
        let lens = (1..=path.len()).rev();
        let names = lens.map(|len| path[..len].join("::"));
        names.into_iter().find(|name| files.contains_key(name))
    };
    let mut graph = Graph::new();
    for (module, text) in files {
        let file = syn::parse_file(text).unwrap_or_else(|e| panic!("{module}: {e}"));
        let parts = module.split("::").filter(|part| !part.is_empty());
        let mut paths = Paths {
            module: parts.map(str::to_owned).collect(),
            found: Vec::new(),
        };
        paths.visit_file(&file);
        let named = paths.found.iter().filter_map(|path| module_of(path));
        let others = named.filter(|other| other != module);
        graph.insert(module.clone(), others.collect());
    }
    graph
}

fn storey(module: &str) -> Option<usize> {
    let root = module.split("::").next().unwrap_or_default();
    STOREYS.iter().position(|names| names.contains(&root))
}

fn root(module: &str) -> &str {
    module.split("::").next().unwrap_or_default()
}

/// Everything that is wrong with a graph.
fn faults(graph: &Graph) -> Vec<String> {
    let mut faults = Vec::new();
    let inside = |module: &&String| !OUTSIDE.contains(&module.as_str());
    for (module, others) in graph.iter().filter(|(module, _)| inside(module)) {
        let Some(own) = storey(module) else {
            faults.push(format!("{module} is in no storey"));
            continue;
        };
        for other in others.iter().filter(inside) {
            match storey(other) {
                Some(there) if there > own => {
                    faults.push(format!("upwards: {module} knows {other}"));
                }
                Some(there) if there == own && root(module) != root(other) => {
                    faults.push(format!("across: {module} knows {other}"));
                }
                _ => {}
            }
        }
    }
    // What is left when modules that know no other one that is left are taken away.
    let mut left: Graph = graph.clone();
    left.retain(|module, _| !OUTSIDE.contains(&module.as_str()));
    loop {
        let names: BTreeSet<String> = left.keys().cloned().collect();
        let before = left.len();
        left.retain(|_, others| others.intersection(&names).next().is_some());
        if left.len() == before {
            break;
        }
    }
    // And those that nobody left knows: they only lead to a cycle.
    loop {
        let known: BTreeSet<String> = left.values().flatten().cloned().collect();
        let before = left.len();
        left.retain(|module, _| known.contains(module));
        if left.len() == before {
            break;
        }
    }
    if !left.is_empty() {
        let names: Vec<&str> = left.keys().map(String::as_str).collect();
        faults.push(format!("a cycle among {}", names.join(", ")));
    }
    faults
}

/// The library's files by module, the program's left out.
fn library() -> BTreeMap<String, String> {
    fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("bin") {
                walk(&path, files);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    walk(&source, &mut files);
    let name = |path: &Path| {
        let inner = path.strip_prefix(&source).unwrap().with_extension("");
        let parts = inner.iter().map(|part| part.to_str().unwrap());
        let parts: Vec<&str> = parts
            .filter(|part| !["mod", "lib"].contains(part))
            .collect();
        parts.join("::")
    };
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    files.iter().map(|path| (name(path), read(path))).collect()
}

#[test]
fn modules_know_what_is_below_them() {
    let graph = graph(&library());
    let arrows: usize = graph.values().map(BTreeSet::len).sum();
    println!("{} modules, {arrows} arrows", graph.len());
    assert!(graph.len() > 60 && arrows > 300);
    let faults = faults(&graph);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The check sees what it is for.
#[test]
fn wrong_arrows_are_found() {
    let faults_with = |module: &str, line: &str| {
        let mut files = library();
        let text = files.get_mut(module).unwrap();
        text.push_str(line);
        faults(&graph(&files)).join("\n")
    };
    for (module, line, fault) in [
        (
            "view::extent",
            "use crate::plan::plan::Plan;",
            "upwards: view::extent knows plan::plan",
        ),
        (
            "plan::caps",
            "fn f() { let _ = crate::record::attention::Attention::new; }",
            "upwards: plan::caps knows record::attention",
        ),
        (
            "plan::caps",
            "fn f() { println!(\"{}\", crate::record::attention::N); }",
            "upwards: plan::caps knows record::attention",
        ),
        (
            "kernel::compose",
            "use crate::cpu;",
            "across: kernel::compose knows cpu",
        ),
        (
            "plan::chunk",
            "use super::{plan::{Plan as P}, caps};",
            "a cycle among plan::",
        ),
        (
            "rules::options",
            "mod a { use crate::rules::dims::*; }",
            "a cycle among rules::",
        ),
    ] {
        let found = faults_with(module, line);
        assert!(found.contains(fault), "{line}: {found}");
    }
    // Tests of a module may look around.
    let test = "#[cfg(test)] mod t { use crate::plan::plan::Plan; }";
    assert_eq!(faults_with("view::extent", test), "");
}
