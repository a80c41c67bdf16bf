//! `inspect`: pictures against the numbers of their file. The numbers themselves are
//! in `scores.rs`, what is refused in `refused.rs`.

mod refused;
mod scores;

use std::path::Path;
use std::process::Output;

use tempfile::TempDir;

use crate::{Parts, data, run, stderr, stdout};

const SENTENCES: &str = "real/minilm_layer0_three_sentences.safetensors";
const CAUSAL: &str = "real/minilm_layer4_passage_causal.safetensors";

fn inspect(file: &Path, flags: &[&str]) -> Output {
    let fixed = [Path::new("inspect"), file];
    run(fixed.into_iter().chain(flags.iter().map(Path::new)))
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
        let understood = "\
            problem  B 1 Hq 12 Hkv 12 Nq 277 Nk 277 D 32, F32\n\
            options  scale 0.17677669 (default), causal (the case), layout bhsd (default)\n\
            ran on   float64 oracle on the CPU, no adapter\n";
        let expected = format!("{understood}{}: written\n", path.display());
        assert_eq!(
            stdout(&output).replace(", alignment bottom-right (default)", ""),
            expected
        );
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
    assert!(svg.len() < 6_000_000 && svg.contains("data:image/png;base64,"));
}

/// Long pictures are bright where they have something to show, a title is at hand where
/// the pointer stands, and --scale-max ends the colours of all heads at one share.
#[test]
fn long_sequences_are_bright_and_keep_their_titles() {
    let folder = TempDir::new().unwrap();
    let file = data(CAUSAL);
    let draw = |name: &str, flags: &[&str]| {
        let path = folder.path().join(name);
        let output = ["--backend", "oracle", "-o", path.to_str().unwrap()];
        let output = inspect(&file, &[flags, &output].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        path
    };
    // Half of all shares at least are lighter than the darkest tenth of the colours.
    let dark = |path: &Path| {
        let (pixels, _) = pixels(path);
        let of_scale: Vec<_> = pixels.iter().filter(|[r, g, b]| r != g || g != b).collect();
        let dark = of_scale.iter().filter(|[_, g, _]| *g < 0x1e).count();
        dark as f64 / of_scale.len() as f64
    };
    let fitted = dark(&draw("fitted.png", &["--head", "2"]));
    let to_one = dark(&draw("to_one.png", &["--head", "2", "--scale-max", "1"]));
    assert!(fitted < 0.2 && to_one > 0.6, "{fitted} {to_one}");

    let svg = std::fs::read_to_string(draw("long.svg", &["--head", "2"])).unwrap();
    assert!(svg.contains(" and more<"));
    let titles: Vec<&str> = svg.lines().filter(|l| l.contains("<title>")).collect();
    assert!(titles.len() > 20_000, "{}", titles.len());
    // Both sides tell the whole weight of the first row.
    let first = titles
        .iter()
        .filter(|t| t.contains("<title>0 [CLS] → 0 [CLS]: 1.0000<"));
    assert_eq!(first.count(), 2);

    let flags = ["--head", "2..5", "--scale-max", "0.12"];
    let svg = std::fs::read_to_string(draw("sheet.svg", &flags)).unwrap();
    assert!(svg.contains(": heads 2..5, batch entry 0<") && svg.contains(">0.12 and more<"));
    let shown = |head: usize| svg.contains(&format!(">head {head}<"));
    assert_eq!([1, 2, 3, 4, 5].map(shown), [false, true, true, true, false]);
    assert!(svg.len() < 8_000_000 && svg.contains("→ 0 [CLS]: "));
}

/// With a sink, weights are what the sink leaves, as shares: the two sides compare.
#[test]
fn beside_a_sink_both_sides_are_shares() {
    let folder = TempDir::new().unwrap();
    let file = data("sdpa_options/sink_softcap_gqa6x2_nq15_nk27_d16_dlse_f32.safetensors");
    let picture = folder.path().join("sink.svg");
    let path = picture.to_str().unwrap();
    let flags = ["--head", "5", "--backend", "oracle", "--json", "-o", path];
    let output = inspect(&file, &flags);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // --json alone is enough for numbers.
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        document["heads"][0]["sink"].as_f64() > Some(0.9),
        "{document}"
    );
    let svg = std::fs::read_to_string(&picture).unwrap();
    let told: Vec<f64> = svg
        .lines()
        .filter_map(|line| {
            line.split_once("</title>")?
                .0
                .rsplit(": ")
                .next()?
                .parse()
                .ok()
        })
        .collect();
    assert_eq!(told.len(), 2 * 15 * 27);
    for (at, row) in told.chunks(27).enumerate() {
        let sum: f64 = row.iter().sum();
        assert!((sum - 1.0).abs() < 27.0 * 5e-5, "line {at}: {sum}");
    }
}

/// Of a row that sees no key it is not said that anything agrees.
#[test]
fn a_picture_of_rows_that_see_nothing_says_so() {
    let folder = TempDir::new().unwrap();
    let file = data("sdpa_options/sink_emptyrows_causal_gqa4x2_nq24_nk9_d20_f32.safetensors");
    for (name, flags) in [
        ("head.svg", ["--head", "0"].as_slice()),
        ("sheet.svg", &["--all-heads"]),
    ] {
        let path = folder.path().join(name);
        let fixed = ["--rows", "0..15", "--backend", "oracle", "-o"];
        let output = inspect(&file, &[flags, &fixed, &[path.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let svg = std::fs::read_to_string(path).unwrap();
        assert!(svg.contains(">no row shown sees a key<"), "{svg}");
        assert!(
            !svg.contains("agree in every") && !svg.contains("entropy"),
            "{svg}"
        );
    }
}

/// The sheet says which keys it shows.
#[test]
fn a_sheet_names_the_keys_that_it_shows() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("sheet.svg");
    let flags = [
        "--all-heads",
        "--backend",
        "oracle",
        "-o",
        path.to_str().unwrap(),
    ];
    let output = inspect(&data("real/minilm_layer0_multihead.safetensors"), &flags);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let svg = std::fs::read_to_string(path).unwrap();
    assert!(
        svg.contains("queries 0..13 of 24, keys 0..13 of 24<"),
        "{svg}"
    );
}

/// A misspelt option is refused, and nothing else is.
#[test]
fn metadata_that_is_nearly_an_option_is_refused() {
    let folder = TempDir::new().unwrap();
    let mut parts = Parts::read(&data(SENTENCES));
    parts
        .tensors
        .retain(|t| ["Q", "K", "V"].contains(&&t.0[..]));
    parts.metadata = [
        ("casual", "bottom_right"),
        ("is_causal", "1"),
        ("source", "a model"),
        ("note", "free"),
        ("layer", "0"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    let file = folder.path().join("bare.safetensors");
    parts.write(&file);
    let output = inspect(&file, &["--head", "0", "--backend", "oracle", "--stats"]);
    assert_eq!(output.status.code(), Some(2));
    let path = file.display();
    let expected = format!("error: {path}: metadata casual is not read; is causal meant?; options");
    assert!(
        stderr(&output).starts_with(&expected),
        "{}",
        stderr(&output)
    );
    for key in ["casual", "is_causal"] {
        parts.metadata.remove(key);
    }
    parts.write(&file);
    let output = inspect(&file, &["--head", "0", "--backend", "oracle", "--stats"]);
    assert_eq!(
        (output.status.code(), stderr(&output)),
        (Some(0), String::new())
    );
    assert!(stdout(&output).contains("unread   metadata layer, note, source\n"));
    let output = inspect(
        &data(CAUSAL),
        &["--head", "0", "--backend", "oracle", "--stats"],
    );
    assert_eq!(stderr(&output), "");
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
    let text = stdout(&output);
    let written = format!("\n{name}: written\n");
    assert!(text.ends_with(&written), "{text}{}", stderr(&output));
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

/// A flag of pictures beside numbers alone would be ignored.
#[test]
fn a_scale_needs_a_picture() {
    let flags = ["--head", "0", "--stats", "--scale-max", "0.2"];
    let output = inspect(&data(SENTENCES), &flags);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("--scale-max: expected -o"),
        "{}",
        stderr(&output)
    );
}
