//! `inspect`: the numbers against a computation of its own in f64, the pictures
//! against the numbers, and what is refused.

use std::path::Path;
use std::process::Output;

use safetensors::tensor::Dtype;
use serde_json::Value;
use tempfile::TempDir;

use crate::{Parts, data, run, stderr, stdout};

const SENTENCES: &str = "real/minilm_layer0_three_sentences.safetensors";
const CAUSAL: &str = "real/minilm_layer4_passage_causal.safetensors";

fn inspect(file: &Path, flags: &[&str]) -> Output {
    let fixed = [Path::new("inspect"), file];
    run(fixed.into_iter().chain(flags.iter().map(Path::new)))
}

fn stats(file: &Path, flags: &[&str]) -> Value {
    let output = inspect(file, &[flags, &["--stats", "--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A row's weights and contributions, by key.
type Row = (Vec<f64>, Vec<f64>);

/// Weights and contributions of one head in f64 straight from the definition;
/// `visible(i, j)` says what a row may see. Scale 1/sqrt(d); sinks, grouped heads.
fn by_hand(
    parts: &mut Parts,
    [batch, head]: [usize; 2],
    visible: impl Fn(usize, usize) -> bool,
) -> Vec<Row> {
    let mut rows = |name| -> Vec<Vec<f64>> {
        let shape = parts.shape(name);
        let (heads, n, dim) = (shape[1], shape[2], shape[3]);
        let group = parts.shape("Q")[1] / heads;
        let slab = (batch * heads + head / group) * n * dim;
        let all = parts.f32(name);
        let rows = all[slab..slab + n * dim].chunks(dim);
        rows.map(|row| row.iter().map(|&x| f64::from(x)).collect())
            .collect()
    };
    let (q, k, v) = (rows("Q"), rows("K"), rows("V"));
    let has_sinks = parts.tensors.iter().any(|(name, ..)| name == "sinks");
    let sink = has_sinks.then(|| f64::from(parts.f32("sinks")[head]));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let row = |(i, q): (usize, &Vec<f64>)| {
        let score = |j: usize| dot(q, &k[j]) / (q.len() as f64).sqrt();
        let seen: Vec<usize> = (0..k.len()).filter(|&j| visible(i, j)).collect();
        let start = sink.unwrap_or(f64::NEG_INFINITY);
        let largest = seen.iter().map(|&j| score(j)).fold(start, f64::max);
        let sum: f64 = seen.iter().map(|&j| (score(j) - largest).exp()).sum();
        let sum = sum + sink.map_or(0.0, |sink| (sink - largest).exp());
        let mut weights = vec![0.0; k.len()];
        for j in seen {
            weights[j] = (score(j) - largest).exp() / sum;
        }
        let norms = v.iter().map(|v| dot(v, v).sqrt());
        let contributions = weights.iter().zip(norms).map(|(w, v)| w * v).collect();
        (weights, contributions)
    };
    q.iter().enumerate().map(row).collect()
}

fn largest(row: &[f64]) -> usize {
    (0..row.len())
        .max_by(|&a, &b| row[a].total_cmp(&row[b]))
        .unwrap()
}

fn near(got: &Value, expected: f64, tolerance: f64, what: &str) {
    let got = got.as_f64().unwrap_or_else(|| panic!("{what}: {got}"));
    assert!(
        (got - expected).abs() <= tolerance,
        "{what}: {got} for {expected}"
    );
}

/// Every number of a head's document against weights computed here; row i stands
/// at position i + offset.
fn compare(document: &Value, rows: &[Row], offset: i64, tolerance: f64) {
    let given = document["rows"].as_array().unwrap();
    assert_eq!(given.len(), rows.len());
    let shares = |row: &[f64]| -> Vec<f64> {
        let sum: f64 = row.iter().sum();
        row.iter().map(|x| x / sum).collect()
    };
    // Sums, and over how many rows.
    let mut sums = [(0.0, 0.0); 8];
    for (i, (got, (weights, contributions))) in given.iter().zip(rows).enumerate() {
        let total: f64 = weights.iter().sum();
        if total == 0.0 {
            for name in [
                "entropy",
                "effective_keys",
                "largest_weight",
                "disagreement",
            ] {
                assert_eq!(got[name], Value::Null, "row {i}, {name}");
            }
            continue;
        }
        let (p, c) = (shares(weights), shares(contributions));
        let entropy: f64 = p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
        let apart: f64 = p.iter().zip(&c).map(|(p, c)| (p - c).abs()).sum();
        near(&got["entropy"], entropy, tolerance, "entropy");
        near(
            &got["effective_keys"],
            entropy.exp(),
            300.0 * tolerance,
            "keys",
        );
        near(&got["disagreement"], apart / 2.0, tolerance, "disagreement");
        for (name, list) in [("largest_weight", weights), ("largest_contribution", &c)] {
            let (top, key) = (&got[name], largest(list));
            assert_eq!(top["key"], key, "row {i}, {name}");
            near(&top["weight"], weights[key], tolerance, name);
            near(&top["share"], c[key], tolerance, name);
        }
        let position = i as i64 + offset;
        let distances = p.iter().enumerate();
        let distance = distances.map(|(j, p)| p * (position - j as i64).abs() as f64);
        let top = weights[largest(weights)];
        let before = usize::try_from(position - 1)
            .ok()
            .and_then(|j| weights.get(j));
        let of_row = [
            Some(entropy),
            Some(top),
            Some(f64::from(u8::from(top > 0.99))),
            before.copied(),
            Some(weights[0]),
            Some(distance.sum()),
            Some(apart / 2.0),
            Some(1.0 - total),
        ];
        for ((sum, rows), x) in sums.iter_mut().zip(of_row) {
            *sum += x.unwrap_or(0.0);
            *rows += f64::from(u8::from(x.is_some()));
        }
    }
    assert_eq!(document["rows_that_see_a_key"], sums[0].1 as usize);
    let names = [
        "entropy",
        "largest_weight",
        "saturated",
        "previous_token",
        "first_key",
        "distance",
        "disagreement",
        "sink",
    ];
    for (name, (sum, rows)) in names.into_iter().zip(sums) {
        if name == "sink" && document[name] == Value::Null {
            assert!(
                sum.abs() < rows * tolerance,
                "no sink, and {sum} is missing"
            );
            continue;
        }
        near(&document[name], sum / rows, 300.0 * tolerance, name);
    }
}

#[test]
fn stats_are_what_the_definition_gives() {
    // On the oracle, f32 weights; on the adapter, the kernels' own.
    for (flags, tolerance) in [(&["--backend", "oracle"][..], 2e-6), (&[], 1e-4)] {
        let file = data(SENTENCES);
        let document = stats(&file, &[&["--all-heads", "--batch", "1"], flags].concat());
        let heads = document["heads"].as_array().unwrap();
        assert_eq!(heads.len(), 12);
        for (head, document) in heads.iter().enumerate() {
            assert_eq!(document["head"], head);
            let rows = by_hand(&mut Parts::read(&file), [1, head], |_, j| j < 24);
            compare(document, &rows, 0, tolerance);
        }
        let first = &heads[0]["rows"][6];
        assert_eq!(
            (&first["row"], &first["token"]),
            (&6.into(), &"look".into())
        );
        assert_eq!(document["picture"], Value::Null);
    }
    let file = data(CAUSAL);
    let document = stats(
        &file,
        &["--head", "7", "--rows", "0..50", "--backend", "oracle"],
    );
    let mut rows = by_hand(&mut Parts::read(&file), [0, 7], |i, j| j <= i);
    rows.truncate(50);
    compare(&document["heads"][0], &rows, 0, 2e-6);

    // Grouped heads, sinks, queries before the first key: offset 9 - 24.
    let file = data("sdpa_options/sink_emptyrows_causal_gqa4x2_nq24_nk9_d20_f32.safetensors");
    let document = stats(&file, &["--all-heads", "--batch", "1"]);
    for head in 0..4 {
        let rows = by_hand(&mut Parts::read(&file), [1, head], |i, j| j + 15 <= i);
        let document = &document["heads"][head];
        assert!(document["sink"].as_f64() >= Some(0.0), "{document}");
        compare(document, &rows, -15, 1e-4);
    }
}

/// Padding has no token: its rows are left out unless they are asked for.
#[test]
fn rows_are_those_with_tokens() {
    let file = data(SENTENCES);
    let oracle = ["--head", "0", "--batch", "2", "--backend", "oracle"];
    assert_eq!(stats(&file, &oracle)["rows"], serde_json::json!([0, 9]));
    let all = [&oracle[..], &["--rows", "0..24"]].concat();
    let document = stats(&file, &all);
    assert_eq!(document["rows"], serde_json::json!([0, 24]));
    assert_eq!(document["heads"][0]["rows"][23]["token"], Value::Null);
    let table = stdout(&inspect(&file, &[&oracle[..], &["--stats"]].concat()));
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[0].starts_with("head 0: 9 of 9 rows see a key"),
        "{table}"
    );
    assert_eq!(lines.len(), 3 + 1 + 9, "{table}");
    assert!(lines[5].starts_with("1 berlin "), "{table}");
    // The CPU path holds no weights: the oracle stands in for it.
    let cpu = ["--head", "0", "--batch", "2", "--backend", "cpu"];
    assert_eq!(stats(&file, &cpu)["heads"], stats(&file, &oracle)["heads"]);
}

/// A whole layer is looked at through its projections.
#[test]
fn a_multi_head_file_gives_what_its_projections_give() {
    let folder = TempDir::new().unwrap();
    let [n, width, heads] = [5, 6, 2];
    let number = |seed: usize, at: usize| ((seed * 37 + at * 101) % 97) as f32 / 40.0 - 1.2;
    let list = |seed: usize, count: usize| (0..count).map(|at| number(seed, at)).collect();
    let mut layer = Parts {
        metadata: Default::default(),
        tensors: Vec::new(),
    };
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut projected = Parts {
        metadata: Default::default(),
        tensors: Vec::new(),
    };
    let x: Vec<f32> = list(1, n * width);
    layer
        .tensors
        .push(("X".into(), Dtype::F32, vec![1, n, width], bytes(&x)));
    layer.tensors.push((
        "expected.Y".into(),
        Dtype::F32,
        vec![1, n, width],
        bytes(&x),
    ));
    for (seed, which) in ["q", "k", "v", "o"].into_iter().enumerate() {
        let (w, b): (Vec<f32>, Vec<f32>) = (list(seed + 2, width * width), list(seed + 9, width));
        let (name, shape) = (format!("W_{which}"), vec![width, width]);
        layer.tensors.push((name, Dtype::F32, shape, bytes(&w)));
        layer
            .tensors
            .push((format!("b_{which}"), Dtype::F32, vec![width], bytes(&b)));
        let mut split = Vec::new();
        for (head, row) in (0..heads).flat_map(|h| (0..n).map(move |i| (h, i))) {
            for out in head * width / heads..(head + 1) * width / heads {
                let x = x[row * width..(row + 1) * width]
                    .iter()
                    .map(|&x| f64::from(x));
                let w = w[out * width..(out + 1) * width]
                    .iter()
                    .map(|&w| f64::from(w));
                let y: f64 = x.zip(w).map(|(x, w)| x * w).sum::<f64>() + f64::from(b[out]);
                split.push(y as f32);
            }
        }
        if which != "o" {
            let shape = vec![1, heads, n, width / heads];
            projected
                .tensors
                .push((which.to_uppercase(), Dtype::F32, shape, bytes(&split)));
        }
    }
    layer.metadata.insert("heads".into(), "2".into());
    layer
        .metadata
        .insert("atol_wgsl".into(), r#"{"Y": 1}"#.into());
    for parts in [&mut layer, &mut projected] {
        let tokens = r#"[["a", "b", "c", "d", "e"]]"#;
        parts.metadata.insert("tokens".into(), tokens.into());
    }
    let paths = ["layer", "projected"].map(|name| folder.path().join(name));
    layer.write(&paths[0]);
    projected.write(&paths[1]);
    let flags = ["--all-heads", "--backend", "oracle"];
    let [whole, parts] = paths.each_ref().map(|path| stats(path, &flags));
    assert_eq!(whole["heads"].as_array().unwrap().len(), 2);
    assert_eq!(whole["heads"], parts["heads"]);
}

/// Red, green and blue of a PNG, and its width.
fn pixels(path: &Path) -> (Vec<[u8; 3]>, usize) {
    let file = std::io::BufReader::new(std::fs::File::open(path).unwrap());
    let mut reader = png::Decoder::new(file).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut bytes).unwrap();
    assert_eq!(frame.color_type, png::ColorType::Rgba);
    let pixels = bytes.chunks(4).map(|p| [p[0], p[1], p[2]]).collect();
    (pixels, frame.width as usize)
}

fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
    let start = element.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
    element[start..].split('"').next().unwrap()
}

/// Both formats hold the numbers of the file, cell by cell: the SVG says them and
/// has their colours, the PNG has the same colours at the same places.
#[test]
fn cells_show_the_numbers_of_the_file() {
    let folder = TempDir::new().unwrap();
    let [png, svg] = ["head.png", "head.svg"].map(|name| folder.path().join(name));
    let file = data(CAUSAL);
    for path in [&png, &svg] {
        let flags = [
            "--head",
            "5",
            "--rows",
            "0..12",
            "--backend",
            "oracle",
            "-o",
        ];
        let output = inspect(&file, &[&flags[..], &[path.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(stdout(&output), format!("{}: written\n", path.display()));
    }
    let rows = by_hand(&mut Parts::read(&file), [0, 5], |i, j| j <= i);
    let svg = std::fs::read_to_string(svg).unwrap();
    let cells: Vec<&str> = svg
        .lines()
        .filter(|line| line.contains("<title>"))
        .collect();
    // Keys that none of the 12 rows sees are left out.
    assert_eq!(cells.len(), 2 * 12 * 12);
    let (pixels, width) = pixels(&png);
    let mut fills = std::collections::BTreeMap::new();
    for (at, cell) in cells.iter().enumerate() {
        let (side, i, j) = (at / 144, at / 12 % 12, at % 12);
        let fill = attribute(cell, "fill");
        let [x, y, w, h] = ["x", "y", "width", "height"]
            .map(|name| attribute(cell, name).parse::<usize>().unwrap());
        let [r, g, b] = pixels[(y + h / 2) * width + x + w / 2];
        assert_eq!(format!("#{r:02x}{g:02x}{b:02x}"), fill, "{cell}");
        let tip = cell
            .split("<title>")
            .nth(1)
            .unwrap()
            .split("</title>")
            .next()
            .unwrap();
        let (pair, told) = tip.split_once(": ").unwrap();
        assert!(
            pair.starts_with(&format!("{i} ")) && pair.contains(&format!("→ {j} ")),
            "{pair}"
        );
        if j > i {
            assert_eq!((told, fill), ("excluded", "#e4e4e4"));
            continue;
        }
        let (weights, contributions) = &rows[i];
        let share = match side {
            0 => weights[j],
            _ => contributions[j] / contributions.iter().sum::<f64>(),
        };
        let told: f64 = told.parse().unwrap();
        assert!((told - share).abs() < 1e-4, "{cell}: {share}");
        fills.insert((told * 1e4) as u32, fill);
    }
    // Viridis from end to end: row 0 sees one key, with all its weight.
    assert_eq!(fills[&10000], "#fee825");
    // From dark to light, as the numbers grow.
    let lightness = |fill: &str| {
        let channel = |at: usize| u32::from_str_radix(&fill[at..at + 2], 16).unwrap();
        2126 * channel(1) + 7152 * channel(3) + 722 * channel(5)
    };
    let light: Vec<u32> = fills.values().map(|fill| lightness(fill)).collect();
    // One step of a channel may be lost to rounding.
    let ascends = light.windows(2).all(|pair| pair[1] + 10_000 > pair[0]);
    assert!(
        light.len() > 30 && ascends && light[0] * 5 < light[light.len() - 1],
        "{light:?}"
    );
}

/// The README shows what its command makes. After a change of the drawing, make it
/// again: the flags are below, the target is tests/pictures/head.png.
#[test]
fn the_picture_in_the_readme_is_the_one_that_is_made() {
    let folder = TempDir::new().unwrap();
    let made = folder.path().join("head.png");
    let flags = ["--head", "5", "--rows", "0..14"];
    let readme = include_str!("../../README.md");
    assert!(readme.contains(&format!("{CAUSAL} {} -o head.png", flags.join(" "))));
    let output = ["--backend", "oracle", "-o", made.to_str().unwrap()];
    let output = inspect(&data(CAUSAL), &[&flags[..], &output].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pictures/head.png");
    assert!(kept.metadata().unwrap().len() < 300_000);
    let (made, kept) = (pixels(&made), pixels(&kept));
    assert_eq!((made.1, made.0.len()), (kept.1, kept.0.len()));
    // The kept one was drawn from an adapter's weights: a shade may differ.
    let apart = |(a, b): (&[u8; 3], &[u8; 3])| (0..3).any(|c| a[c].abs_diff(b[c]) > 2);
    let differ = made
        .0
        .iter()
        .zip(&kept.0)
        .filter(|pair| apart(*pair))
        .count();
    assert_eq!(differ, 0, "of {} pixels", kept.0.len());
}

#[test]
fn sheets_and_long_sequences_are_drawn() {
    let folder = TempDir::new().unwrap();
    let file = data(CAUSAL);
    for (name, flags) in [
        ("long.png", &["--head", "2"][..]),
        ("sheet.png", &["--all-heads", "--rows", "0..64"]),
    ] {
        let path = folder.path().join(name);
        let output = [
            "--backend",
            "oracle",
            "--stats",
            "-o",
            path.to_str().unwrap(),
        ];
        let output = inspect(&file, &[flags, &output].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(stdout(&output).ends_with(&format!("{}: written\n", path.display())));
        let (pixels, width) = pixels(&path);
        assert!((1000..2200).contains(&width), "{name}: {width} wide");
        let colours: std::collections::HashSet<_> = pixels.iter().collect();
        assert!(colours.len() > 100, "{name}: {} colours", colours.len());
        let masked = pixels.iter().filter(|p| **p == [0xe4; 3]).count();
        assert!(masked > pixels.len() / 20, "{name}: {masked} masked");
    }
    let path = folder.path().join("long.svg");
    let flags = [
        "--head",
        "2",
        "--backend",
        "oracle",
        "-o",
        path.to_str().unwrap(),
    ];
    assert!(inspect(&file, &flags).status.success());
    let svg = std::fs::read_to_string(&path).unwrap();
    assert!(svg.len() < 2_000_000 && svg.contains("data:image/png;base64,"));
}

/// Without -o the picture has the file's name, in the current folder.
#[test]
fn the_picture_has_a_name_of_its_own() {
    let folder = TempDir::new().unwrap();
    let output = crate::program()
        .arg("inspect")
        .arg(data(SENTENCES))
        .args(["--head", "3", "--backend", "oracle"])
        .current_dir(&folder)
        .output()
        .unwrap();
    let name = "minilm_layer0_three_sentences.head3.png";
    assert_eq!(
        stdout(&output),
        format!("{name}: written\n"),
        "{}",
        stderr(&output)
    );
    assert!(pixels(&folder.path().join(name)).1 > 1000);
    // White space in tokens and names of any script are no obstacle.
    let mut odd = Parts::read(&data(SENTENCES));
    let tokens = r#"[["\n", " <b>", "日本語", "\u0000"], [], []]"#;
    odd.metadata.insert("tokens".into(), tokens.into());
    let file = folder.path().join("odd.safetensors");
    odd.write(&file);
    let picture = folder.path().join("odd.SVG");
    let flags = [
        "--head",
        "0",
        "--backend",
        "oracle",
        "-o",
        picture.to_str().unwrap(),
    ];
    assert!(inspect(&file, &flags).status.success());
    let svg = std::fs::read_to_string(picture).unwrap();
    assert!(svg.contains("␣&lt;b&gt;") && svg.contains("日本語"));
}

/// Whatever is wrong is said with its name, and nothing is written.
#[test]
fn a_refused_picture_leaves_nothing_behind() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let file = path("in.safetensors");
    std::fs::copy(data(SENTENCES), &file).unwrap();
    let changed = |name: &str, change: &dyn Fn(&mut Parts)| {
        let mut parts = Parts::read(&file);
        change(&mut parts);
        parts.write(&path(name));
        path(name)
    };
    let without = |parts: &mut Parts, name: &str| parts.tensors.retain(|t| t.0 != name);
    let keyless = changed("keyless", &|parts| without(parts, "K"));
    let empty = changed("empty", &|parts| {
        parts
            .tensors
            .retain(|t| ["Q", "K", "V"].contains(&t.0.as_str()));
        for (name, _, shape, bytes) in &mut parts.tensors {
            if name != "Q" {
                shape[2] = 0;
                bytes.clear();
            }
        }
    });
    let tokens = |name, json: &str| {
        changed(name, &|parts| {
            parts.metadata.insert("tokens".into(), json.into());
        })
    };
    let flat = tokens("flat", r#"["a", "b", "c"]"#);
    let few = tokens("few", r#"[["a"]]"#);
    let many = tokens("many", &format!("[[], [{}], []]", [r#""a""#; 25].join(",")));
    let broken = tokens("broken", "[[");
    let junk = path("junk");
    std::fs::write(&junk, "no tensors").unwrap();
    let old = path("old.png");
    std::fs::write(&old, "precious").unwrap();
    std::fs::create_dir(path("folder.png")).unwrap();
    std::fs::copy(&file, path("in.png")).unwrap();
    let before = || {
        let entries = folder.path().read_dir().unwrap();
        let mut files: Vec<_> = entries
            .map(|e| e.unwrap().path())
            .map(|path| (std::fs::read(&path).unwrap_or_default().len(), path))
            .collect();
        files.sort();
        files
    };
    let listing = before();
    let old = old.to_str().unwrap();
    let names = ["out.jpg", "out", "no/out.png", "folder.png", "in.png"].map(path);
    let [jpg, bare, absent, directory, input] = names.each_ref().map(|p| p.to_str().unwrap());
    let failures: [(&Path, &[&str], &str); 18] = [
        (
            &file,
            &["--head", "12", "-o", old],
            "--head: expected a number below 12, got 12",
        ),
        (
            &file,
            &["--head", "0", "--batch", "3", "-o", old],
            "--batch: expected a number below 3, got 3",
        ),
        (
            &file,
            &["--head", "0", "--rows", "20..25", "-o", old],
            "--rows 20..25: expected a range within 0..24",
        ),
        (
            &file,
            &["--head", "0", "--rows", "5..5", "-o", old],
            "expected A..B with A below B",
        ),
        (&file, &["-o", old], "--head <H>|--all-heads"),
        (
            &file,
            &["--head", "0", "--all-heads", "-o", old],
            "cannot be used with",
        ),
        (&file, &["--head", "0", "--json"], "--stats"),
        (
            &file,
            &["--head", "0", "-o", jpg],
            "expected the extension .png or .svg, got .jpg",
        ),
        (
            &file,
            &["--head", "0", "-o", bare],
            "expected the extension .png or .svg, got none",
        ),
        (&file, &["--head", "0", "-o", absent], "does not exist"),
        (
            &file,
            &["--head", "0", "-o", directory],
            "not a regular file",
        ),
        (
            names[4].as_path(),
            &["--head", "0", "-o", input],
            "is the input",
        ),
        (&keyless, &["--head", "0", "-o", old], "no tensor K"),
        (
            &empty,
            &["--head", "0", "-o", old],
            "K: expected a sequence of at least 1, got 0",
        ),
        (
            &flat,
            &["--head", "0", "-o", old],
            "metadata tokens: expected a list of lists of strings",
        ),
        (
            &few,
            &["--head", "0", "-o", old],
            "got 1 lists for 3 batch entries",
        ),
        (
            &many,
            &["--head", "0", "--batch", "1", "-o", old],
            "expected at most 24, one a key, got 25",
        ),
        (&broken, &["--head", "0", "-o", old], "metadata tokens: "),
    ];
    for (file, flags, why) in failures {
        let output = inspect(file, &[flags, &["--backend", "oracle"]].concat());
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {errors}");
        assert!(
            errors.starts_with("error: ") && errors.contains(why),
            "{flags:?}: {errors}"
        );
        assert_eq!(before(), listing, "{flags:?}");
    }
    assert!(
        stderr(&inspect(&junk, &["--head", "0", "-o", old])).contains("not a safetensors file")
    );
    assert!(
        stderr(&inspect(&path("none"), &["--head", "0", "-o", old])).contains("cannot be read")
    );
    assert_eq!(std::fs::read_to_string(old).unwrap(), "precious");

    // And a picture that goes well replaces the old one as a whole.
    let flags = ["--head", "0", "--backend", "oracle", "-o", old];
    assert!(inspect(&file, &flags).status.success());
    assert!(pixels(Path::new(old)).1 > 1000);
}
