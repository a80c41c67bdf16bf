use super::*;
use crate::inspect::colour::{MASKED, Value};
use crate::inspect::faults::{attribute, faults};
use crate::inspect::scale::short;
use crate::inspect::view::Tokens;

/// A causal head of `rows` over `keys` whose first value is short.
pub fn view(rows: usize, keys: usize, names: Option<&[&str]>) -> HeadView {
    let offset = keys as i64 - rows as i64;
    let pairs = (0..rows).flat_map(|i| (0..keys).map(move |j| (i as i64, j as i64)));
    let visible: Vec<bool> = pairs.map(|(i, j)| j <= (i + offset).max(0)).collect();
    let mut weights = Vec::new();
    for row in visible.chunks(keys) {
        let seen = row.iter().filter(|v| **v).count() as f32;
        // Half on the first key, the rest evenly.
        let weight = |j: usize| {
            if j == 0 {
                0.5
            } else {
                0.5 / (seen - 1.0).max(1.0)
            }
        };
        weights.extend(
            row.iter()
                .enumerate()
                .map(|(j, v)| if *v { weight(j) } else { 0.0 }),
        );
    }
    let norm = |j: usize| {
        if j == 0 {
            0.01
        } else {
            1.0 + j as f32 / keys as f32
        }
    };
    let contributions = weights.iter().enumerate();
    let contributions = contributions
        .map(|(pair, w)| w * norm(pair % keys))
        .collect();
    let name = |at: usize| names.map(|names| names[at % names.len()].to_owned());
    HeadView {
        through: false,
        scale: None,
        batch: 0,
        head: 3,
        rows: 0..rows,
        queries: rows,
        keys,
        offset,
        sink: false,
        tokens: Tokens {
            queries: (0..rows).map(name).collect(),
            keys: (0..keys).map(name).collect(),
        },
        weights,
        contributions,
        visible,
    }
}

fn drawn(view: &HeadView) -> Canvas {
    let title = Title {
        file: "a_rather_long_name_of_a_file_with_attention_in_it.safetensors".to_owned(),
        about: "layer 7 of a model whose description is long, too long even for this line"
            .repeat(3),
    };
    draw(view, &title, None).unwrap()
}

#[test]
fn labels_never_overlap_and_are_never_cut_off() {
    let words = [
        "[CLS]",
        "a",
        "attention",
        "##up",
        "Donaudampfschifffahrtsgesellschaft",
        "WWWWWWWWWW",
    ];
    for names in [None, Some(&words[..])] {
        for (rows, keys) in [
            (1, 1),
            (2, 2),
            (1, 300),
            (300, 1),
            (5, 40),
            (13, 13),
            (24, 24),
            (40, 277),
            (64, 64),
            (277, 277),
            (512, 512),
            (512, 8),
            (900, 900),
            (3, 2000),
        ] {
            let canvas = drawn(&view(rows, keys, names));
            assert_eq!(faults(&canvas), [""; 0], "{rows} x {keys}");
            let width = canvas.width();
            assert!(
                (1100..=2100).contains(&width),
                "{rows} x {keys}: {width} wide"
            );
        }
    }
}

/// By the numbers that the picture itself tells of each cell.
#[test]
fn cells_are_coloured_by_their_numbers() {
    let view = view(6, 6, Some(&["a", "b", "c", "d", "e", "f"]));
    let scale = Scale::to(1.0);
    let svg = drawn(&view).svg();
    let cells: Vec<&str> = svg.lines().filter(|l| l.contains("<title>")).collect();
    assert_eq!(cells.len(), 2 * 36);
    let hex = |[r, g, b]: [u8; 3]| format!("#{r:02x}{g:02x}{b:02x}");
    let shares = wgpu_attention::interpret::shares(view.row(&view.contributions, 2)).unwrap();
    for (side, expected) in [(0, view.weights[2 * 6 + 1]), (1, shares[1] as f32)] {
        let cell = cells[side * 36 + 2 * 6 + 1];
        assert!(
            cell.contains(&format!("2 c → 1 b: {expected:.4}<")),
            "{cell}"
        );
        assert_eq!(
            attribute(cell, "fill"),
            hex(scale.colour(f64::from(expected))),
            "{cell}"
        );
        let masked = cells[side * 36 + 2 * 6 + 3];
        assert!(masked.contains("2 c → 3 d: excluded<"), "{masked}");
        assert_eq!(attribute(masked, "fill"), hex(MASKED));
    }
    assert_ne!(hex(MASKED), hex(scale.colour(0.0)));
}

/// Where there are more pairs than pixels, the largest is seen.
#[test]
fn a_pixel_shows_its_largest_pair() {
    let (rows, keys) = (2000, 1700);
    let mut view = view(rows, keys, None);
    view.weights.fill(1.0 / 2048.0);
    view.visible.fill(true);
    // Three quarters of its row's sum, with the others' 1699/2048.
    view.weights[1201 * keys + 333] = 3.0 * 1699.0 / 2048.0;
    let grid = Grid::of(&view, Side::Weights, &(0..keys), [3, 3]);
    let at = grid
        .values
        .iter()
        .position(|v| matches!(v, Value::Share(s) if (s - 0.75).abs() < 1e-6))
        .unwrap();
    assert_eq!((at / grid.columns, at % grid.columns), (1201 / 3, 333 / 3));
    let others = grid
        .values
        .iter()
        .filter(|v| matches!(v, Value::Share(s) if *s > 0.01));
    assert_eq!((others.count(), grid.rows()), (1, 667));
}

/// Keys that none of the rows sees are left out, the others are not.
#[test]
fn only_seen_keys_are_shown() {
    let mut view = view(3, 9, None);
    view.visible.fill(false);
    assert_eq!(view.seen(), 0..9);
    view.visible[9 + 4] = true;
    view.visible[18 + 6] = true;
    assert_eq!(view.seen(), 4..7);
}

/// A sink takes half of every row: both sides are shares of what is left, as values of
/// one size make them alike.
#[test]
fn a_sink_is_no_disagreement() {
    let mut view = view(6, 6, None);
    view.weights.iter_mut().for_each(|w| *w /= 2.0);
    view.contributions = view.weights.clone();
    view.sink = true;
    let keys = 0..view.keys;
    let [weights, contributions] =
        [Side::Weights, Side::Contributions].map(|side| Grid::of(&view, side, &keys, [1, 1]));
    assert_eq!(weights.values, contributions.values);
    assert_eq!(weights.values[0], Value::Share(1.0));
    let canvas = drawn(&view);
    assert_eq!(faults(&canvas), [""; 0]);
    let svg = canvas.svg();
    for text in [
        ">W(i, j), a sink's 0.54 aside, as shares of their row's sum<",
        ">Weights and contributions agree in every row that has both.<",
    ] {
        assert!(svg.contains(text), "{text} in {svg}");
    }
    // In the list, both columns are shares.
    view.contributions[1 + 6 * 3] *= 3.0;
    let svg = drawn(&view).svg();
    let of = |name: &str| svg.matches(&format!(">share of {name}<")).count();
    assert_eq!((of("weights"), of("contributions")), (2, 2));
    assert!(svg.contains(">0.500<") && !svg.contains(">0.250<"), "{svg}");
}

/// Rows without a number to compare are not said to agree.
#[test]
fn rows_that_see_nothing_do_not_agree() {
    let mut view = view(3, 4, None);
    view.contributions.fill(0.0);
    let svg = drawn(&view).svg();
    assert!(
        svg.contains(">No row shown has contributions other than 0 and NaN.<"),
        "{svg}"
    );
    view.weights.fill(0.0);
    view.visible.fill(false);
    let canvas = drawn(&view);
    assert_eq!(faults(&canvas), [""; 0]);
    let svg = canvas.svg();
    assert!(svg.contains(">no row shown sees a key<"), "{svg}");
    assert!(svg.contains(">No row shown sees a key.<"), "{svg}");
    assert!(
        !svg.contains("agree in every") && !svg.contains("entropy"),
        "{svg}"
    );
    let scores = scores::head(&view, &scores::rows(&view));
    let small = crate::inspect::sheet::Small::of(&view, scores);
    let title = Title {
        file: "a".to_owned(),
        about: String::new(),
    };
    let about = crate::inspect::sheet::About {
        title: &title,
        which: "all heads".to_owned(),
        batch: 0,
        rows: 0..3,
        queries: 12,
        tokens: &view.tokens,
        scale: None,
    };
    let sheet = crate::inspect::sheet::draw(&[small], &about).unwrap();
    let svg = sheet.svg();
    assert!(
        svg.contains(">no row shown sees a key<") && !svg.contains(">entropy"),
        "{svg}"
    );
}

/// However long a file's name is, head and batch entry are told.
#[test]
fn a_long_name_gives_way_to_what_is_shown() {
    let title = Title {
        file: "model-".repeat(40) + "00001.safetensors",
        about: String::new(),
    };
    let svg = draw(&view(4, 4, None), &title, None).unwrap().svg();
    assert!(svg.contains(">model-model-"), "{svg}");
    assert!(
        svg.contains("-00001.safetensors: head 3, batch entry 0<"),
        "{svg}"
    );
}

/// The legend names the top of the scale; what is above has its colour, and --scale-max
/// chooses it. Both sides have the same.
#[test]
fn the_legend_says_where_the_scale_ends() {
    let title = Title {
        file: "a".to_owned(),
        about: String::new(),
    };
    let view = view(12, 12, None);
    let svg = |top: Option<f64>| {
        let canvas = draw(&view, &title, top.map(Scale::to)).unwrap();
        assert_eq!(faults(&canvas), [""; 0], "{top:?}");
        canvas.svg()
    };
    assert!(svg(Some(1.0)).contains(">1<") && !svg(Some(1.0)).contains("and more"));
    for top in [0.12, 0.3, 0.000001, 0.123456, 0.00567] {
        let svg = svg(Some(top));
        assert!(svg.contains(&format!(">{} and more<", short(top))), "{svg}");
    }
    let svg = svg(Some(0.12));
    let colour_of = |tip: &str| {
        let cells = svg.lines().filter(|line| line.contains(tip));
        let fills: Vec<&str> = cells.map(|cell| attribute(cell, "fill")).collect();
        fills[0]
    };
    // Of the weights, half of a row is on its first key; all of the first row.
    assert_eq!(
        colour_of("<title>0 → 0: 1.0000"),
        colour_of("<title>9 → 0: 0.5000")
    );
    assert_ne!(
        colour_of("<title>9 → 0: 0.5000"),
        colour_of("<title>9 → 4: 0.0556")
    );
}
