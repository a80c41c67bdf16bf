//! `inspect --stats` against a computation in f64, straight from the definition.

use std::path::Path;

use safetensors::tensor::Dtype;
use serde_json::Value;
use tempfile::TempDir;

use super::{CAUSAL, Row, SENTENCES, by_hand, inspect};
use crate::{Parts, data, stderr, stdout};

fn stats(file: &Path, flags: &[&str]) -> Value {
    let output = inspect(file, &[flags, &["--stats", "--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
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
    let mut sums = [(0.0, 0.0); 9];
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
        // The weight after earlier occurrences of the row's token, where it has a name.
        let own = (offset == 0 && got["token"].is_string()).then_some(&got["token"]);
        let earlier = (0..i).filter(|&j| own == Some(&given[j]["token"]));
        let after = earlier.map(|j| weights[j + 1]).reduce(|a, b| a + b);
        let of_row = [
            Some(entropy),
            Some(top),
            Some(f64::from(u8::from(top > 0.99))),
            before.copied(),
            Some(weights[0]),
            Some(distance.sum()),
            Some(apart / 2.0),
            Some(1.0 - total),
            after,
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
        "induction",
    ];
    for (name, (sum, rows)) in names.into_iter().zip(sums) {
        if name == "induction" && rows == 0.0 {
            assert_eq!(document[name], Value::Null);
            continue;
        }
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
        let text = document.to_string();
        assert!(
            !text.contains(":-0.0,") && !text.contains(":-0.0}"),
            "{text}"
        );
        assert!(document["sink"].as_f64() >= Some(0.0), "{document}");
        compare(document, &rows, -15, 1e-4);
    }
}

/// Padding has no token: its rows are left out unless they are asked for.
#[test]
fn rows_are_those_with_tokens() {
    let file = data(SENTENCES);
    let oracle = ["--head", "0", "--batch", "2", "--backend", "oracle"];
    let document = stats(&file, &oracle);
    assert_eq!(document["rows"], serde_json::json!([0, 9]));
    assert_eq!(document["queries"], 24);
    let all = [&oracle[..], &["--rows", "0..24"]].concat();
    let document = stats(&file, &all);
    assert_eq!(document["rows"], serde_json::json!([0, 24]));
    assert_eq!(document["heads"][0]["rows"][23]["token"], Value::Null);
    let table = stdout(&inspect(&file, &[&oracle[..], &["--stats"]].concat()));
    // Of rows that are left out a line tells, of those that are asked for none does.
    let rows = "\nrows     0..9 of 24, those with a token\n";
    assert!(table.contains(rows), "{table}");
    let chosen = stdout(&inspect(&file, &[&all[..], &["--stats"]].concat()));
    assert!(!chosen.contains("\nrows "), "{chosen}");
    // Behind what was understood: sizes, options, rows, backend.
    let lines: Vec<&str> = table.lines().skip(4).collect();
    assert!(
        lines[0].starts_with("head 0: 9 of 9 rows see a key"),
        "{table}"
    );
    assert_eq!(lines.len(), 5 + 2 + 9, "{table}");
    assert_eq!(
        lines[5],
        "contribution: W(i, j) |V(j)| as a share of its row's sum"
    );
    assert!(lines[8].starts_with("1 berlin "), "{table}");
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

/// Behind W_O: sizes of W(i, j) V_j W_O^(h), from the real layer's numbers in f64.
#[test]
fn contributions_behind_the_output_projection() {
    let file = data("real/minilm_layer0_multihead.safetensors");
    let mut parts = Parts::read(&file);
    let (tokens, width, dim, batch, head) = (24, 384, 32, 1, 7);
    let mut list = |name: &str| -> Vec<f64> { parts.f32(name).iter().map(|&x| x.into()).collect() };
    let x = list("X")[batch * tokens * width..][..tokens * width].to_vec();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut project = |which: &str| -> Vec<Vec<f64>> {
        let (w, b) = (list(&format!("W_{which}")), list(&format!("b_{which}")));
        let rows = x.chunks(width).map(|x| {
            let outputs = head * dim..(head + 1) * dim;
            outputs.map(|o| dot(x, &w[o * width..(o + 1) * width]) + b[o])
        });
        rows.map(Iterator::collect).collect()
    };
    let (q, k, v) = (project("q"), project("k"), project("v"));
    let w_o = list("W_o");
    // The second sentence has a token at every position.
    let sizes: Vec<f64> = (v.iter())
        .map(|v| {
            let rows = w_o.chunks(width);
            rows.map(|row| dot(&row[head * dim..(head + 1) * dim], v).powi(2))
                .sum::<f64>()
                .sqrt()
        })
        .collect();
    let rows: Vec<Row> = (q.iter())
        .map(|q| {
            let e: Vec<f64> = (k.iter())
                .map(|k| (dot(q, k) / (dim as f64).sqrt()).exp())
                .collect();
            let sum: f64 = e.iter().sum();
            let weights: Vec<f64> = e.iter().map(|e| e / sum).collect();
            let contributions = weights.iter().zip(&sizes).map(|(w, v)| w * v).collect();
            (weights, contributions)
        })
        .collect();
    let fixed = ["--head", "7", "--batch", "1"];
    for (flags, tolerance) in [(&["--backend", "oracle"][..], 4e-6), (&[], 1e-4)] {
        let through = [&fixed[..], &["--through"], flags].concat();
        let document = stats(&file, &through);
        assert_eq!(document["through_output_projection"], true);
        compare(&document["heads"][0], &rows, 0, tolerance);
        // Other numbers than without W_O.
        let without = stats(&file, &[&fixed[..], flags].concat());
        assert_ne!(without["heads"], document["heads"]);
    }
    let output = inspect(&data(SENTENCES), &["--head", "0", "--through", "--stats"]);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(
        text.contains("--through: expected a layer with W_O"),
        "{text}"
    );
}

/// Scores before and after the scale: what 1/sqrt(d) is for.
#[test]
fn the_scale_keeps_rows_from_saturating() {
    let file = data(CAUSAL);
    let mut parts = Parts::read(&file);
    let (n, dim, head) = (parts.shape("Q")[2], parts.shape("Q")[3], 7);
    let scale = 1.0 / (dim as f64).sqrt();
    let mut rows = |name: &str| parts.f32(name)[head * n * dim..][..n * dim].to_vec();
    let (q, k) = (rows("Q"), rows("K"));
    let dot = |i: usize, j: usize| -> f64 {
        let pairs = q[i * dim..][..dim].iter().zip(&k[j * dim..][..dim]);
        pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    let seen: Vec<Vec<f64>> = (0..40)
        .map(|i| (0..=i).map(|j| dot(i, j)).collect())
        .collect();
    let all = seen.concat();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let squares: f64 = all.iter().map(|s| (s - mean).powi(2)).sum();
    let deviation = (squares / all.len() as f64).sqrt();
    let is_saturated = |row: &&Vec<f64>| {
        let top = row.iter().copied().fold(f64::MIN, f64::max);
        row.iter().map(|s| (s - top).exp()).sum::<f64>() < 1.0 / 0.99
    };
    let saturated = seen.iter().filter(is_saturated).count() as f64 / 40.0;
    for flags in [&["--backend", "oracle"][..], &[]] {
        let asked = [&["--head", "7", "--rows", "0..40"], flags].concat();
        let document = &stats(&file, &asked)["heads"][0];
        let scores = &document["scores"];
        near(&scores["scale"], scale, 1e-7, "scale");
        near(&scores["mean"], mean * scale, 1e-4, "mean");
        near(&scores["deviation"], deviation * scale, 1e-4, "deviation");
        near(&scores["mean_before_scale"], mean, 1e-3, "mean before");
        near(
            &scores["deviation_before_scale"],
            deviation,
            1e-3,
            "deviation before",
        );
        near(
            &scores["saturated_with_scale_1"],
            saturated,
            1e-9,
            "saturated",
        );
        assert!(
            Some(saturated) > document["saturated"].as_f64(),
            "{document}"
        );
    }
}

/// The table says what is saturated, and under which of two scales.
#[test]
fn saturation_is_said_of_each_scale() {
    let oracle = ["--head", "7", "--rows", "0..40", "--backend", "oracle"];
    let scores = &stats(&data(CAUSAL), &oracle)["heads"][0];
    let percent = |x: &Value| format!("{:.1} %", x.as_f64().unwrap() * 100.0);
    let table = stdout(&inspect(
        &data(CAUSAL),
        &[&oracle[..], &["--stats"]].concat(),
    ));
    let line = |start: &str| table.lines().find(|line| line.starts_with(start));
    let dim = Parts::read(&data(CAUSAL)).shape("Q")[3];
    let scaled = format!(
        "  with the scale {:.4}, 1/sqrt({dim}): scores ",
        1.0 / (dim as f64).sqrt()
    );
    let rows = percent(&scores["saturated"]);
    let saturated =
        format!(", softmax saturated in {rows} of rows (one key has over 0.99 of the weight)");
    assert!(
        line(&scaled).is_some_and(|line| line.ends_with(&saturated)),
        "{table}"
    );
    let unscaled = "  the same queries and keys with the scale 1: scores ";
    let rows = percent(&scores["scores"]["saturated_with_scale_1"]);
    let saturated = format!(", softmax saturated in {rows} of rows");
    assert!(
        line(unscaled).is_some_and(|line| line.ends_with(&saturated)),
        "{table}"
    );
}

/// `--kernel` is heeded: a family that the device cannot run is refused.
#[test]
fn the_kernel_is_that_which_was_asked_for() {
    let file = data(CAUSAL);
    let asked = [
        "--head", "5", "--rows", "0..8", "--stats", "--json", "--kernel",
    ];
    for kernel in ["tiled", "staged"] {
        let output = inspect(&file, &[&asked[..], &[kernel]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    let lanes = [&asked[..], &["lane-broadcast", "--default-limits"]].concat();
    let output = inspect(&file, &lanes);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("SUBGROUP"), "{}", stderr(&output));
}
