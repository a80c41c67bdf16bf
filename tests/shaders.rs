//! Every shader that a plan can ask for, validated and linted without a GPU.

mod lints;

use std::collections::{BTreeMap, BTreeSet};

use lints::{beyond_f32, forbidden, parse, uniformity, validate, validate_with, workgroup_memory};
use naga::valid::Capabilities;
use wgpu_attention::shaders::{Loads, Shader, Specialization, all_pipelines, compose};
use wgpu_attention::{DeviceCaps, testing};

/// Every pipeline, parsed.
fn modules() -> Vec<(Shader, Specialization, String, naga::Module)> {
    let all = all_pipelines();
    assert!(!all.is_empty());
    let parsed = all.into_iter().map(|(shader, key)| {
        let text = compose(shader, key).text;
        let module = parse(&text).unwrap_or_else(|e| panic!("{shader:?} {key:?}: {e}"));
        (shader, key, text, module)
    });
    parsed.collect()
}

#[test]
fn every_pipeline_composes_and_validates() {
    let all = modules();
    // tiled with subgroups or without by key type, two kinds of loads and three widths;
    // scores and values by key type, softmax and copy by none; lanes by key type, query
    // type where chunks are loaded, subgroup, kind of loads and set of rules; times shared
    // or not. Projections like scores in tiles, but loaded in two ways, and like lanes
    // without rules.
    let lanes = 2 * (3 + 2 * (1 + 2 + 2));
    let forward = 2 * (2 * 3 * 2 * 3 + 2 * 3 + 2 + 4 * lanes);
    let projections = 2 * (3 * 2 + lanes);
    // Pairs like projections; norms by key type, summaries and keys by none.
    let inspection = projections + 2 * (3 + 2);
    let count = forward + projections + inspection;
    assert_eq!(all.len(), count, "the number of pipelines changed");
    assert!(forward < 300 && all.len() < 450);
    let texts: BTreeSet<_> = all.iter().map(|(_, _, text, _)| text).collect();
    assert_eq!(texts.len(), all.len(), "two pipelines have one text");
    for (shader, key, _, module) in &all {
        let mut more = Capabilities::empty();
        if shader.needs_subgroups() {
            assert!(validate(module).is_err(), "{shader:?} needs no subgroups");
            more |= Capabilities::SUBGROUP;
            let wide = key.loads == Loads::WideChunks;
            more.set(Capabilities::SHADER_INT64, wide);
        }
        validate_with(module, more).unwrap_or_else(|e| panic!("{shader:?} {key:?}: {e}"));
    }
}

#[test]
fn validation_rejects() {
    let rejected = [
        // A stride that does not exist, a type error, an extension that is not WebGPU's.
        "@compute @workgroup_size(1) fn main() { let x = params.stride; }",
        "@compute @workgroup_size(1) fn main() { let x: u32 = 1.0; }",
        "enable subgroups;\n@compute @workgroup_size(1) fn main() {}",
        "const X: f32 = 1e39;\n@compute @workgroup_size(1) fn main() {}",
        "@group(0) @binding(0) var<storage> a: array<u32>;\n@compute @workgroup_size(1) fn main() { a[0] = 1u; }",
    ];
    for text in rejected {
        let judged = parse(text).and_then(|module| validate(&module));
        assert!(judged.is_err(), "{text}");
    }
}

#[test]
fn the_limits_of_plain_webgpu_hold() {
    let caps = DeviceCaps::webgpu_default();
    let (mut most, mut lanes) = (0, 0);
    for (shader, key, _, module) in modules() {
        let name = shader.name();
        assert_eq!(module.entry_points.len(), 1, "{name}");
        let entry = &module.entry_points[0];
        assert_eq!(entry.name, "main");
        let invocations: u32 = entry.workgroup_size.iter().product();
        assert!(invocations <= caps.max_compute_invocations_per_workgroup);
        assert_eq!(invocations, shader.lanes(key), "{name}: what plans say");
        let is_storage = |(_, v): &(_, &naga::GlobalVariable)| {
            matches!(v.space, naga::AddressSpace::Storage { .. })
        };
        let buffers = module.global_variables.iter().filter(is_storage).count();
        assert!(buffers <= caps.max_storage_buffers_per_shader_stage as usize);
        assert_eq!(buffers, shader.slots().len(), "{name} {key:?}");
        let memory = workgroup_memory(&module);
        assert!(memory <= u64::from(caps.max_compute_workgroup_storage_size));
        let largest = match shader {
            Shader::ForwardLanes => &mut lanes,
            _ => &mut most,
        };
        *largest = memory.max(*largest);
    }
    assert_eq!(most, testing::WORKGROUP_MEMORY, "what the planner believes");
    assert_eq!(lanes, testing::LANE_MEMORY, "what the planner believes");
}

#[test]
fn workgroup_memory_is_counted_as_webgpu_does() {
    let text = "var<workgroup> a: u32;\nvar<workgroup> b: array<vec3<f32>, 3>;\nvar<private> c: array<u32, 99>;\n@compute @workgroup_size(1) fn main() { a = 1u; b[0] = vec3<f32>(); c[0] = 1u; }";
    assert_eq!(workgroup_memory(&parse(text).unwrap()), 16 + 48);
}

#[test]
fn constants_agree_with_rust() {
    let mut seen = BTreeMap::new();
    for (name, text) in testing::files() {
        for line in lints::code(text).lines() {
            let Some(rest) = line.trim().strip_prefix("const ") else {
                continue;
            };
            let (constant, value) = rest.split_once('=').unwrap();
            let constant = constant.split(':').next().unwrap().trim();
            let value = value.trim().trim_end_matches(';').trim_end_matches('u');
            // Sums and floats have no twin in Rust.
            if let Ok(value) = value.parse::<u32>() {
                let before = seen.insert(constant.to_owned(), value);
                assert_eq!(before, None, "{constant} again in {name}");
            }
        }
    }
    let rust: BTreeMap<_, _> = testing::constants()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    assert_eq!(rust.len(), testing::constants().len(), "a name comes twice");
    assert!(rust.len() >= 27);
    assert_eq!(seen, rust);
}

/// The same numbers as naga understands them, where it keeps the constants.
#[test]
fn constants_agree_with_rust_by_reflection() {
    let rust: BTreeMap<_, _> = testing::constants().into_iter().collect();
    let mut compared = BTreeSet::new();
    for (shader, _, _, module) in modules() {
        for (_, constant) in module.constants.iter() {
            let Some(name) = &constant.name else { continue };
            let value = &module.global_expressions[constant.init];
            let naga::Expression::Literal(naga::Literal::U32(value)) = value else {
                continue;
            };
            if let Some(expected) = rust.get(name.as_str()) {
                assert_eq!(value, expected, "{name} in {}", shader.name());
                compared.insert(name.clone());
            }
        }
    }
    assert!(compared.len() >= 20, "{compared:?}");
}

#[test]
fn nothing_forbidden_is_in_any_file() {
    let files = testing::files();
    assert!(files.len() >= 15, "{} files", files.len());
    for (name, text) in &files {
        assert_eq!(forbidden(text), Vec::<String>::new(), "{name}");
        let lines = text.lines().count();
        assert!(lines <= 450, "{name} has {lines} lines");
        assert!(text.ends_with('\n'), "{name}");
    }
}

#[test]
fn every_file_belongs_to_a_shader() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/shaders");
    let mut on_disk = BTreeSet::new();
    for (folder, prefix) in [(root.to_owned(), ""), (format!("{root}/lib"), "lib/")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                on_disk.insert(format!("{prefix}{}", entry.file_name().to_str().unwrap()));
            }
        }
    }
    let used: BTreeSet<_> = testing::files()
        .into_iter()
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(on_disk, used);
}

#[test]
fn the_lint_rejects() {
    let cases = [
        ("enable subgroups;", "an extension"),
        ("  enable f16;", "an extension"),
        ("let x = -inf;", "by name"),
        ("if isNan(x) {", "by name"),
        ("let x = bitcast<f32>(0xff800000u);", "by its bits"),
        ("let x = bitcast<f32>(0x7fc00000u);", "by its bits"),
        ("if x != x {", "with itself"),
        ("let nothing = s.x == s.x;", "with itself"),
        ("return select(a, b, scores[i]!=scores[i]);", "with itself"),
    ];
    for (line, what) in cases {
        let text = format!("// a shader\n{line}\n");
        let found = forbidden(&text);
        assert_eq!(found.len(), 1, "{line}: {found:?}");
        assert!(
            found[0].starts_with("line 2: ") && found[0].contains(what),
            "{found:?}"
        );
    }
}

#[test]
fn the_lint_accepts() {
    let text = "// -inf, NaN and x == x in a comment; enable f16;\n\
        const NEGATIVE_INFINITY_BITS: u32 = 0xff800000u;\n\
        let one = bitcast<f32>(0x3f800000u);\n\
        let info = nano == nano_second && a.x != b.x && 1u == 1u;\n";
    assert_eq!(forbidden(text), Vec::<String>::new());
}

#[test]
fn no_literal_exceeds_f32() {
    for (shader, key, text, _) in modules() {
        assert_eq!(
            beyond_f32(&text),
            Vec::<String>::new(),
            "{shader:?} {key:?}"
        );
    }
    let plain = include_str!("../src/bin/wgpu-attention/bench/plain.wgsl");
    assert_eq!(beyond_f32(plain), Vec::<String>::new());
}

#[test]
fn the_literal_lint_rejects() {
    // The third is how Rust prints the largest value.
    for literal in [
        "3.4028235e38",
        "3.4028235e38f",
        "340282350000000000000000000000000000000.0",
        "34028235.e31",
        ".34028235E+39",
        "1e39f",
        "0x1.fffffe8p127",
        "0x1p+128f",
        "0X0.1P132",
        "0xffffff8p100f",
        "1e",
    ] {
        let text = format!("// 1e39\nlet x1e39 = y.xy + {literal};\n");
        let found = beyond_f32(&text);
        assert_eq!(found, [format!("line 2: {literal}")]);
    }
}

#[test]
fn the_literal_lint_accepts() {
    let text = "let a = 3.4028234e38 - -0x1.fffffep+127f; // 1e39\n\
        let b = vec2(0xff800000u, 4294967295u).x + .5 * 1.f - 1e-39 + 0x1p-149f + e38 + x1e39;\n\
        let c = d.x1 + 2-1 + 0xe+3 + 9223372036854775807i + 0h + 0x.8p0;\n";
    assert_eq!(beyond_f32(text), Vec::<String>::new());
}

/// The floats that shaders and Rust both have, as naga understands them.
#[test]
fn float_constants_agree_with_rust() {
    let expected = [("LOWEST", f32::MIN), ("LOG2_E", std::f32::consts::LOG2_E)];
    let mut compared = BTreeSet::new();
    for (shader, _, _, module) in modules() {
        for (_, constant) in module.constants.iter() {
            let Some(name) = &constant.name else { continue };
            let value = &module.global_expressions[constant.init];
            let naga::Expression::Literal(naga::Literal::F32(value)) = value else {
                continue;
            };
            let rust = expected.iter().find(|(known, _)| known == name);
            let (_, rust) = rust.unwrap_or_else(|| panic!("{name} has no twin in Rust"));
            assert_eq!(
                value.to_bits(),
                rust.to_bits(),
                "{name} in {}",
                shader.name()
            );
            compared.insert(name.clone());
        }
    }
    assert_eq!(compared.len(), expected.len(), "{compared:?}");
}

#[test]
fn barriers_are_in_uniform_control_flow() {
    let mut barriers = 0;
    for (shader, key, text, module) in modules() {
        barriers += text.matches("workgroupBarrier()").count();
        let composed = compose(shader, key);
        let lines = uniformity::violations(&module, &text);
        let places: Vec<_> = lines.iter().map(|&line| composed.locate(line)).collect();
        assert_eq!(places, Vec::<(&str, u32)>::new(), "{shader:?} {key:?}");
    }
    assert!(barriers > 100, "{barriers}");
}

const BARRIERS: &str = "
@group(0) @binding(0) var<uniform> n: u32;
@group(0) @binding(1) var<storage, read> list: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;
var<workgroup> shared_word: u32;
fn synchronise(x: u32) -> u32 { workgroupBarrier(); return x + 1u; }
fn first(a: u32) -> u32 { if a > n { return 1u; } return 2u; }
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>) {
    BODY
}
";

fn barrier_violations(body: &str) -> Vec<u32> {
    let text = BARRIERS.replace("BODY", body);
    let module = parse(&text).unwrap_or_else(|e| panic!("{e}"));
    validate(&module).unwrap();
    uniformity::violations(&module, &text)
}

#[test]
fn the_uniformity_lint_rejects() {
    let cases = [
        "if lane == 0u { workgroupBarrier(); }",
        "if lane == 0u { return; } workgroupBarrier();",
        "if out[0] == 0u { workgroupBarrier(); }",
        "for (var i = 0u; i < lane; i++) { workgroupBarrier(); }",
        "for (var i = lane; i < 64u; i += 64u) { workgroupBarrier(); }",
        "for (var i = 0u; i < n; i++) { if lane == i { continue; } workgroupBarrier(); }",
        "for (var i = 0u; i < n; i++) { workgroupBarrier(); if out[i] == 1u { break; } }",
        "for (var i = 0u; i < n; i++) { workgroupBarrier(); if lane == i { return; } }",
        "var x = n; if lane == 0u { x = 2u; } if x == 2u { workgroupBarrier(); }",
        "if first(lane) == 1u { workgroupBarrier(); }",
        "if lane < 32u { out[0] = synchronise(1u); }",
        "if shared_word == 1u { workgroupBarrier(); }",
        "if lane < 32u { out[0] = workgroupUniformLoad(&shared_word); }",
        "switch lane { case 0u: { workgroupBarrier(); } default: {} }",
    ];
    for body in cases {
        assert!(!barrier_violations(body).is_empty(), "{body}");
    }
}

#[test]
fn the_uniformity_lint_accepts() {
    let cases = [
        "workgroupBarrier();",
        "if group.x > n { return; } workgroupBarrier();",
        "if lane == 0u { out[0] = 1u; } workgroupBarrier();",
        "for (var i = 0u; i < n; i++) { workgroupBarrier(); }",
        "for (var i = list[group.x]; i < n; i++) { if i == 3u { break; } workgroupBarrier(); }",
        "for (var i = lane; i < n; i += 64u) { if out[i] == 1u { break; } } workgroupBarrier();",
        "if workgroupUniformLoad(&shared_word) == 1u { workgroupBarrier(); }",
        "if first(group.y) == 1u { out[0] = synchronise(lane); }",
        "let x = select(0u, 4u, lane < n); out[x] = 1u; storageBarrier();",
    ];
    for body in cases {
        assert_eq!(barrier_violations(body), Vec::<u32>::new(), "{body}");
    }
}

/// What stands between `#if` and `#end` is left out where its count is 0.
#[test]
fn rules_that_a_kernel_does_not_know_are_not_in_its_text() {
    let mut seen = BTreeSet::new();
    for (shader, key) in all_pipelines() {
        let text = compose(shader, key).text;
        assert!(!text.lines().any(|line| line.starts_with('#')));
        if shader == Shader::ForwardLanes {
            let pairs = "= shown_by_mask_and_bias(";
            let scores = "modified(row_3,";
            let known = [key.rules.knows_pairs(), key.rules.knows_scores()];
            assert_eq!(
                [pairs, scores].map(|line| text.contains(line)),
                known,
                "{key:?}"
            );
            seen.insert(known);
        }
    }
    assert_eq!(seen.len(), 4);
}

#[test]
fn every_pipeline_has_a_file_name_of_its_own() {
    let mut names = BTreeSet::new();
    for (shader, key) in all_pipelines() {
        let name = key.file_stem(shader);
        assert!(names.insert(name.clone()), "{name}: {key:?}");
    }
}

#[test]
fn lines_are_found_again() {
    let mut compared = 0;
    for (shader, key) in all_pipelines() {
        let composed = compose(shader, key);
        let files: BTreeMap<_, _> = testing::files().into_iter().collect();
        let mut names = BTreeSet::new();
        for (index, line) in composed.text.lines().enumerate() {
            let (name, at) = composed.locate(index as u32 + 1);
            if name == "prelude" {
                assert_eq!(at as usize, index + 1);
                assert!(line.starts_with("@group(0)") || line.starts_with("const "));
                continue;
            }
            names.insert(name);
            let source = files[name].lines().nth(at as usize - 1).unwrap();
            // A line of a `#for` has numbers in place of names.
            let fixed = source.split('$').next().unwrap();
            assert!(line.starts_with(fixed), "{name}:{at}");
            assert!(source.contains('$') || line == source, "{name}:{at}");
            compared += 1;
        }
        assert!(names.contains(format!("{}.wgsl", shader.name()).as_str()));
    }
    assert!(compared > 5000, "{compared}");
}

/// A text that runs without runtime checks is the one whose proof was read.
#[test]
fn proofs_were_read_beside_the_texts_that_run() {
    let mut changed = Vec::new();
    let mut proofs = 0;
    for shader in Shader::ALL {
        let (texts, read) = testing::texts_of(shader);
        let Some(read) = read else { continue };
        proofs += 1;
        if texts != read {
            changed.push(format!(
                "shaders/{}.wgsl or a file of lib/ that it uses has changed: read the proof in it \
                 again, then write 0x{texts:016x} into its row in src/kernel/rows.rs",
                shader.name()
            ));
        }
    }
    assert!(changed.is_empty(), "{}", changed.join("\n"));
    assert_eq!(proofs, 10);
}
