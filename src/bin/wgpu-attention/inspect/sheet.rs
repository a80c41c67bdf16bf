//! All heads on one sheet: small pictures, with the scores of each under it.

use std::ops::Range;

use crate::inspect::canvas::{Canvas, FAINT, Place, Style};
use crate::inspect::colour::{Grid, Side};
use crate::inspect::legend::{self, MARGIN, decimals, two};
use crate::inspect::picture::Title;
use crate::inspect::scores::HeadScores;
use crate::inspect::view::HeadView;

/// Width and height that one side of a head may take.
const SIDE: usize = 288;
/// What it takes where there are few keys.
const SMALL: usize = 180;
/// Between the sides of a head, and between heads.
const GAPS: [usize; 2] = [8, 36];
/// What a head is given at least, for the text under it.
const MIN_WIDTH: usize = 320;
/// Width that the heads of one line may take.
const LINE: usize = 1770;
/// Above and below the cells of a head.
const TITLE: usize = 44;
const TEXT: usize = 66;

/// What is kept of a head.
#[derive(Debug, Clone)]
pub struct Small {
    head: usize,
    sides: [Grid; 2],
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
        let block = [view.rows.len(), keys.len()].map(|n| n.div_ceil(SIDE));
        let sides = [Side::Weights, Side::Contributions];
        Small {
            head: view.head,
            sides: sides.map(|side| Grid::of(view, side, &keys, block)),
            scores,
            through: view.through,
            shown: keys,
            keys: view.keys,
            nothing: view.why_no_scores(),
        }
    }

    /// Width and height of a cell.
    fn cell(&self) -> [usize; 2] {
        let side = |n: usize| (SMALL / n.max(1)).clamp(1, 24);
        let [columns, rows] = [self.sides[0].columns, self.sides[0].rows()];
        let square = side(columns).min(side(rows));
        [columns, rows].map(|n| square.max(side(n).min(60 / n.max(1))))
    }

    fn side(&self) -> [usize; 2] {
        let [width, height] = self.cell();
        [self.sides[0].columns * width, self.sides[0].rows() * height]
    }
}

/// Draws `heads` with what each looks at from the query rows `rows`.
pub fn draw(
    heads: &[Small],
    title: &Title,
    batch: usize,
    rows: &Range<usize>,
) -> Result<Canvas, String> {
    let largest = |axis: usize| heads.iter().map(|h| h.side()[axis]).max().unwrap_or(0);
    let slot = (2 * largest(0) + GAPS[0]).max(MIN_WIDTH);
    let across = ((LINE + GAPS[1]) / (slot + GAPS[1])).clamp(1, heads.len().max(1));
    let down = heads.len().div_ceil(across);
    let line = TITLE + largest(1) + TEXT;
    let width = across * (slot + GAPS[1]) - GAPS[1] + 2 * MARGIN;
    let top = legend::HEIGHT + 12;
    let end = top + down * line + MARGIN;
    let mut canvas = Canvas::new(width.max(legend::LEAST_WIDTH), end);

    let which = format!(": all heads, batch entry {batch}");
    let shown = format!("queries {rows:?}, {}", keys_shown(heads));
    let about = [&title.about, &shown].map(String::as_str);
    let about = about.into_iter().filter(|text| !text.is_empty());
    let about = about.collect::<Vec<_>>().join("  ·  ");
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
    legend::head(&mut canvas, [&title.file, &which], [&about, &what], &grids)?;
    for (at, small) in heads.iter().enumerate() {
        let x = MARGIN + at % across * (slot + GAPS[1]);
        let y = top + at / across * line + TITLE;
        one_head(&mut canvas, small, [x, y])?;
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

fn one_head(canvas: &mut Canvas, small: &Small, [x, y]: [usize; 2]) -> Result<(), String> {
    let [width, height] = small.side();
    let left = x as f64;
    let title = format!("head {}", small.head);
    canvas.text([left, y as f64 - 13.0], &title, Style::size(14.0));
    for (at, side) in small.sides.iter().enumerate() {
        let x = x + at * (width + GAPS[0]);
        canvas.frame([x, y, width, height]);
        let place = Place {
            x,
            y,
            cell: small.cell(),
        };
        canvas.heat(place, &side.cells(), |_, _| String::new())?;
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
        let y = (y + height + 14 + 16 * at) as f64;
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
            let canvas = draw(&smalls, &title, 0, &(0..rows)).unwrap();
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
                svg.contains(&format!("queries 0..{rows}, keys 0..{keys} of {keys}<")),
                "{what}"
            );
            assert!(svg.contains("of their row's sum beside the sink"), "{what}");
            for head in 0..heads {
                assert!(svg.contains(&format!(">head {head}<")), "{what}");
            }
            assert_eq!(svg.matches(">entropy ").count(), heads, "{what}");
        }
    }
}
