//! All heads on one sheet: small pictures, with the scores of each under it.

use std::ops::Range;

use crate::inspect::canvas::{
    Anchor, Canvas, FAINT, LINE as TICK, Place, Style, width, within_bounds,
};
use crate::inspect::colour::{Grid, Side};
use crate::inspect::legend::{self, Ends, MARGIN, decimals, two};
use crate::inspect::picture::{Title, labels};
use crate::inspect::scale::{Scale, short};
use crate::inspect::scores::HeadScores;
use crate::inspect::tips::{self, Names};
use crate::inspect::view::{HeadView, Tokens};

/// Width and height that one side of a head may take.
const SIDE: usize = 288;
/// What it takes where there are few keys.
const SMALL: usize = 180;
/// Between the sides of a head, and between heads.
const GAPS: [usize; 2] = [8, 24];
/// Left of a head's cells, for the numbers of its rows and the word for them.
const GUTTER: usize = 52;
/// Size of the numbers on the axes, and how far apart they are along each: rows, keys.
const NUMBERS: f64 = 9.0;
const PITCHES: [f64; 2] = [20.0, 30.0];
/// What a head is given at least, for the text under it.
const MIN_WIDTH: usize = 320;
/// Width that the heads of one line may take.
const LINE: usize = 1770;
/// Above and below the cells of a head.
const TITLE: usize = 62;
const TEXT: usize = 92;

/// What is kept of a head.
#[derive(Debug, Clone)]
pub struct Small {
    head: usize,
    sides: [Grid; 2],
    scale: Scale,
    scores: HeadScores,
    through: bool,
    /// The keys that are shown, of all that there are.
    shown: Range<usize>,
    keys: usize,
    /// Said instead of scores, where there are none.
    nothing: &'static str,
}

impl Small {
    pub fn of(view: &HeadView, scores: HeadScores) -> Small {
        let keys = view.seen();
        let block = [view.rows.len(), keys.len()].map(block);
        let sides =
            [Side::Weights, Side::Contributions].map(|side| Grid::of(view, side, &keys, block));
        Small {
            head: view.head,
            scale: Scale::fitting(&[&sides[0], &sides[1]]),
            sides,
            scores,
            through: view.through,
            shown: keys,
            keys: view.keys,
            nothing: view.why_no_scores(),
        }
    }

    /// Width and height of a cell.
    fn cell(&self) -> [usize; 2] {
        cell([self.sides[0].columns, self.sides[0].rows()])
    }

    fn side(&self) -> [usize; 2] {
        let [width, height] = self.cell();
        [self.sides[0].columns * width, self.sides[0].rows() * height]
    }
}

/// Queries or keys of a cell, of so many.
fn block(n: usize) -> usize {
    n.div_ceil(SIDE)
}

/// Width and height of a cell where there are so many columns and rows of them.
fn cell([columns, rows]: [usize; 2]) -> [usize; 2] {
    let side = |n: usize| (SMALL / n.max(1)).clamp(1, 24);
    let square = side(columns).min(side(rows));
    [columns, rows].map(|n| square.max(side(n).min(60 / n.max(1))))
}

/// What is said about a sheet.
#[derive(Debug, Clone)]
pub struct About<'a> {
    pub title: &'a Title,
    /// The heads of it, for instance "all heads".
    pub which: String,
    pub batch: usize,
    pub rows: Range<usize>,
    /// All queries, Nq.
    pub queries: usize,
    pub tokens: &'a Tokens,
    /// One scale for all heads; each has its own where none is given.
    pub scale: Option<Scale>,
}

/// Where the heads of a sheet stand.
struct Layout {
    /// Width of a head with its text, and height of a line of heads.
    slot: [usize; 2],
    across: usize,
    /// Width and height of the sheet.
    size: [usize; 2],
}

/// Above the first line of heads.
const TOP: usize = legend::HEIGHT + 12;

impl Layout {
    /// So many heads, whose sides are `side` at most.
    fn of(heads: usize, side: [usize; 2]) -> Layout {
        let wide = GUTTER + (2 * side[0] + GAPS[0]).max(MIN_WIDTH);
        let high = TITLE + side[1] + TEXT;
        let across = ((LINE + GAPS[1]) / (wide + GAPS[1])).clamp(1, heads.max(1));
        let width = across * (wide + GAPS[1]) - GAPS[1] + 2 * MARGIN;
        let down = heads.div_ceil(across).saturating_mul(high);
        Layout {
            slot: [wide, high],
            across,
            size: [
                width.max(legend::LEAST_WIDTH),
                down.saturating_add(TOP + MARGIN),
            ],
        }
    }

    /// Refuses what is too large.
    fn check(&self, heads: usize) -> Result<(), String> {
        let what = format!("{heads} heads on one sheet");
        within_bounds(self.size, &what, "choose fewer, as --head A..B")
    }
}

/// Refuses a sheet that would be too large, from what is known before anything is
/// computed: its query rows and all keys.
pub fn check(heads: usize, rows: usize, keys: usize) -> Result<(), String> {
    let [columns, rows] = [keys, rows].map(|n| n.div_ceil(block(n).max(1)));
    let [width, height] = cell([columns, rows]);
    Layout::of(heads, [columns * width, rows * height]).check(heads)
}

/// Draws `heads` with what each looks at.
pub fn draw(heads: &[Small], about: &About<'_>) -> Result<Canvas, String> {
    let About {
        title,
        rows,
        queries,
        ..
    } = about;
    let largest = |axis: usize| heads.iter().map(|h| h.side()[axis]).max().unwrap_or(0);
    let layout = Layout::of(heads.len(), [largest(0), largest(1)]);
    // A mask may leave fewer keys than there are, which may be drawn larger.
    layout.check(heads.len())?;
    let [width, height] = layout.size;
    let mut canvas = Canvas::new(width, height).for_maps(2 * heads.len());

    let which = format!(": {}, batch entry {}", about.which, about.batch);
    let shown = format!("queries {rows:?} of {queries}, {}", keys_shown(heads));
    let lines = [&title.about, &shown].map(String::as_str);
    let lines = lines.into_iter().filter(|text| !text.is_empty());
    let lines = lines.collect::<Vec<_>>().join("  ·  ");
    let block = heads.first().map_or([1, 1], |head| head.sides[0].block);
    let norm = match heads.iter().any(|head| head.through) {
        false => "|V(j)|",
        true => "|V(j) W_O|",
    };
    let mut what = format!(
        "left weights W(i, j), right contributions W(i, j) {norm}, both as shares of their row's sum"
    );
    if heads.iter().any(|head| head.scores.sink.is_some()) {
        what += " beside the sink";
    }
    if block != [1, 1] {
        what += &format!("; the largest of {} x {}", block[0], block[1]);
    }
    let grids: Vec<&Grid> = heads.iter().flat_map(|head| &head.sides).collect();
    let ends = about.scale.map_or(Ends::Apart, Ends::Together);
    let texts = [&title.file, &which];
    legend::head(
        &mut canvas,
        texts.map(|text| text.as_str()),
        [&lines, &what],
        &grids,
        ends,
    )?;
    for (at, small) in heads.iter().enumerate() {
        let x = MARGIN + at % layout.across * (layout.slot[0] + GAPS[1]) + GUTTER;
        let y = TOP + at / layout.across * layout.slot[1] + TITLE;
        one_head(&mut canvas, small, about, [x, y])?;
    }
    Ok(canvas)
}

/// Which keys are drawn; a mask may leave each head others.
fn keys_shown(heads: &[Small]) -> String {
    let Some(Small { shown, keys, .. }) = heads.first() else {
        return String::new();
    };
    match heads.iter().all(|head| head.shown == *shown) {
        true => format!("keys {shown:?} of {keys}"),
        false => format!("keys that a head's queries see, of {keys}"),
    }
}

fn one_head(
    canvas: &mut Canvas,
    small: &Small,
    about: &About<'_>,
    [x, y]: [usize; 2],
) -> Result<(), String> {
    let [wide, high] = small.side();
    let left = x as f64;
    let title = format!("head {}", small.head);
    let above = y as f64 - 34.0;
    canvas.text([left, above], &title, Style::size(14.0));
    if about.scale.is_none() {
        let top = match small.scale.top() {
            top if top < 1.0 => format!("top: {} and more", short(top)),
            _ => "top: 1".to_owned(),
        };
        let beside = left + width(&title, 14.0) + 12.0;
        canvas.text([beside, above], &top, Style::size(11.5).colour(FAINT));
    }
    let scale = about.scale.unwrap_or(small.scale);
    let names = Names {
        tokens: about.tokens,
        rows: about.rows.clone(),
        keys: small.shown.clone(),
    };
    let axis = Style::size(10.0).colour(FAINT).anchor(Anchor::Middle);
    let middle = y as f64 + high as f64 / 2.0;
    let room = GUTTER as f64;
    canvas.text([left - room + 6.0, middle], "queries", axis.turn(90.0));
    let number = Style::size(NUMBERS).colour(FAINT);
    let (cell, [of_rows, of_keys]) = (small.cell(), small.sides[0].block);
    for (at, text) in labels((about.rows.clone(), of_rows, cell[1]), PITCHES[0], &None) {
        if width(&text, NUMBERS) > room - 18.0 {
            continue;
        }
        let y = y as f64 + at;
        canvas.line([left - 4.0, y, left - 1.0, y], TICK);
        canvas.text([left - 6.0, y], &text, number.anchor(Anchor::End));
    }
    let key_numbers = labels((small.shown.clone(), of_keys, cell[0]), PITCHES[1], &None);
    for (at, (side, name)) in (small.sides.iter().zip(["weights", "contributions"])).enumerate() {
        let x = x + at * (wide + GAPS[0]);
        let centre = (x + wide / 2) as f64;
        // Narrow sides have room for neither.
        if wide as f64 > width("contributions", 11.5) {
            let style = Style::size(11.5).colour(FAINT);
            canvas.text([x as f64, y as f64 - 11.0], name, style);
            let below = (y + high) as f64;
            canvas.text([centre, below + 22.0], "keys", axis);
            for (at, text) in &key_numbers {
                canvas.line(
                    [x as f64 + at, below + 1.0, x as f64 + at, below + 4.0],
                    TICK,
                );
                // Within the side: the other one begins close by.
                let half = width(text, NUMBERS) / 2.0;
                let middle = at.max(half - 3.0).min(wide as f64 - half + 3.0);
                let style = number.anchor(Anchor::Middle);
                canvas.text([x as f64 + middle, below + 10.0], text, style);
            }
        }
        canvas.frame([x, y, wide, high]);
        let place = Place {
            x,
            y,
            cell: small.cell(),
        };
        tips::heat(canvas, place, side, scale, &names)?;
    }
    let HeadScores {
        entropy,
        effective_keys,
        largest,
        previous,
        induction,
        first,
        distance,
        disagreement,
        sink,
        ..
    } = small.scores;
    let named = |name: &str, score: Option<f64>| {
        score.map_or(String::new(), |score| format!(", {name} {}", two(score)))
    };
    let (induction, sink) = (named("induction", induction), named("sink", sink));
    let lines = [
        format!(
            "entropy {} ({} keys), largest weight {}",
            two(entropy),
            decimals(effective_keys, 1),
            two(largest)
        ),
        format!(
            "previous token {}, first key {}, distance {}",
            two(previous),
            two(first),
            decimals(distance, 1)
        ),
        format!("disagreement {}{induction}{sink}", two(disagreement)),
    ];
    let lines = match small.scores.rows {
        0 => &[small.nothing.to_owned()][..],
        _ => &lines,
    };
    for (at, text) in lines.iter().enumerate() {
        let y = (y + high + 40 + 16 * at) as f64;
        canvas.text([left, y], text, Style::size(11.5).colour(FAINT));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::faults::faults;
    use crate::inspect::picture::tests::view;
    use crate::inspect::scores;

    /// However many heads there are: what is accepted is what can be drawn.
    #[test]
    fn a_sheet_is_refused_before_it_is_too_large() {
        for (rows, keys) in [
            (1, 1),
            (24, 24),
            (288, 288),
            (300, 300),
            (4096, 4096),
            (1, 300),
        ] {
            let is_accepted = |heads: &usize| check(*heads, rows, keys).is_ok();
            let most = (1..=1024).rfind(is_accepted).unwrap();
            assert!(most >= 128, "{rows} x {keys}: {most}");
            assert!(
                (1..=most).all(|heads| is_accepted(&heads)),
                "{rows} x {keys}"
            );
            let error = check(12_000, rows, keys).unwrap_err();
            assert!(
                error.starts_with("12000 heads on one sheet: expected"),
                "{error}"
            );
            assert!(error.ends_with("; choose fewer, as --head A..B"), "{error}");
            assert!(check(usize::MAX, rows, keys).is_err());
        }
        // What is drawn is as large as was counted before.
        let title = Title {
            file: String::new(),
            about: String::new(),
        };
        let small = |rows: usize, keys: usize| {
            let view = view(rows, keys, None);
            Small::of(&view, scores::head(&view, &scores::rows(&view)))
        };
        let about = About {
            title: &title,
            which: String::new(),
            batch: 0,
            rows: 0..24,
            queries: 24,
            tokens: &Tokens::default(),
            scale: Some(Scale::to(0.12)),
        };
        let many = vec![small(2, 300); 2_000];
        let error = draw(&many, &about).unwrap_err();
        assert_eq!(error, check(2_000, 2, 300).unwrap_err());
        let svg = draw(&[small(24, 24)], &about).unwrap().svg();
        assert!(
            svg.contains(">0.12 and more<") && !svg.contains("top"),
            "{svg}"
        );
    }

    #[test]
    fn sheets_are_legible() {
        let title = Title {
            file: "a_name.safetensors".repeat(9),
            about: "layer 3 of a model".to_owned(),
        };
        for (heads, rows, keys) in [
            (1, 1, 1),
            (2, 3, 2),
            (12, 24, 24),
            (12, 277, 277),
            (40, 20, 64),
            (5, 700, 700),
            (3, 1, 300),
            (3, 300, 2),
        ] {
            let small = |head: usize| {
                let mut view = view(rows, keys, None);
                view.head = head;
                view.sink = true;
                let mut scores = scores::head(&view, &scores::rows(&view));
                scores.induction = Some(0.25);
                Small::of(&view, scores)
            };
            let smalls: Vec<Small> = (0..heads).map(small).collect();
            let about = About {
                title: &title,
                which: "all heads".to_owned(),
                batch: 0,
                rows: 0..rows,
                queries: rows,
                tokens: &Tokens::default(),
                scale: None,
            };
            let canvas = draw(&smalls, &about).unwrap();
            let what = format!("{heads} heads, {rows} x {keys}");
            assert_eq!(faults(&canvas), [""; 0], "{what}");
            assert!(
                (1100..=2000).contains(&canvas.width()),
                "{what}: {}",
                canvas.width()
            );
            let svg = canvas.svg();
            assert!(
                svg.contains(".safetensors: all heads, batch entry 0<"),
                "{what}"
            );
            assert!(
                svg.contains(&format!(
                    "queries 0..{rows} of {rows}, keys 0..{keys} of {keys}<"
                )),
                "{what}"
            );
            assert!(svg.contains("of their row's sum beside the sink"), "{what}");
            for head in 0..heads {
                assert!(svg.contains(&format!(">head {head}<")), "{what}");
            }
            assert_eq!(svg.matches(">entropy ").count(), heads, "{what}");
            assert_eq!(svg.matches(">top: ").count(), heads, "{what}");
            assert_eq!(svg.matches(">queries<").count(), heads, "{what}");
            let axes = svg.matches(r#"font-size="9""#).count();
            assert!((heads..=40 * heads).contains(&axes), "{what}: {axes}");
            let named = if keys <= 2 { 0 } else { 2 * heads };
            assert_eq!(svg.matches(">keys<").count(), named, "{what}");
        }
    }
}
