//! The picture of one head: weights beside contributions, and where they disagree.

use std::ops::Range;

use crate::inspect::apart;
use crate::inspect::canvas::{Anchor, Canvas, FAINT, LINE, Place, Style, fit, width};
use crate::inspect::colour::{Grid, Side};
use crate::inspect::legend::{self, Ends, MARGIN, decimals, two};
use crate::inspect::scale::Scale;
use crate::inspect::scores::{self, HeadScores};
use crate::inspect::tips::{self, Names};
use crate::inspect::view::{HeadView, token};

/// Width and height that the cells of a panel may take.
const PANEL: usize = 832;
/// What a panel is given at least, so that its title has room.
const LEAST_PANEL: usize = 330;
/// A cell's largest side.
const LARGEST_CELL: usize = 36;
/// Room of a token beside a row and below a column.
const LABEL: f64 = 104.0;
const LABEL_SIZE: f64 = 11.0;
/// Room that a label takes along its axis: level beside rows, slanted below columns.
const PITCHES: [f64; 2] = [14.0, 18.0];
/// So many times as far apart are labels where not every element has one.
const THINNED: f64 = 1.8;
/// Between the panels.
const GAP: usize = 44;

/// What is said about the file.
#[derive(Debug, Clone)]
pub struct Title {
    pub file: String,
    /// For instance the layer and the model; may be empty.
    pub about: String,
}

/// A text at a distance from the beginning of an axis.
pub type Label = (f64, String);

/// One of the two heat maps.
struct Panel<'a> {
    name: &'static str,
    what: String,
    grid: &'a Grid,
    left: usize,
}

/// Draws `view` in the colours of `scale`, or of one that fits what is there.
pub fn draw(view: &HeadView, title: &Title, scale: Option<Scale>) -> Result<Canvas, String> {
    let keys = view.seen();
    let block = [view.rows.len(), keys.len()].map(|n| n.div_ceil(PANEL));
    let [weights, contributions] =
        [Side::Weights, Side::Contributions].map(|side| Grid::of(view, side, &keys, block));
    let grids = [&weights, &contributions];
    let scale = scale.unwrap_or_else(|| Scale::fitting(&grids));
    let cell = cell(weights.columns, weights.rows());
    let [wide, high] = [weights.columns * cell[0], weights.rows() * cell[1]];
    let rows = scores::rows(view);
    let worst = scores::worst(&rows, apart::LISTED);

    let row_axis = (view.rows.clone(), block[0], cell[1]);
    let row_labels = labels(row_axis, PITCHES[0], &view.tokens.queries);
    let key_axis = (keys.clone(), block[1], cell[0]);
    let key_labels = labels(key_axis, PITCHES[1], &view.tokens.keys);

    // From the left: the word "queries", their names, weights, contributions, bars.
    let slot = wide.max(LEAST_PANEL);
    // The names of keys are slanted: they reach to the left as far as down.
    let slanted = (widest(&key_labels) * 0.71 + 8.0).ceil() as usize;
    let named = 32 + widest(&row_labels).ceil() as usize;
    let left = MARGIN + named.max(slanted);
    let right = left + slot + GAP;
    let bars = right + slot + 14;
    let total = (bars + apart::STRIP).max(MARGIN + apart::LIST) + MARGIN;
    // From the top: head, titles, cells, names of keys, the word "keys", list.
    let top = legend::HEIGHT + 58;
    let bottom = top + high;
    let below = bottom + 14 + slanted;
    let list = below + 36;
    let end = list + apart::list_height(&worst) + MARGIN;
    let mut canvas = Canvas::new(total.max(legend::LEAST_WIDTH), end).for_maps(grids.len());

    let HeadView { head, batch, .. } = view;
    let which = format!(": head {head}, batch entry {batch}");
    let HeadView {
        rows: of,
        queries,
        keys: all,
        ..
    } = view;
    let shown = format!("queries {of:?} of {queries}, keys {keys:?} of {all}");
    let about = [&title.about, &shown].map(String::as_str);
    let about = about.into_iter().filter(|text| !text.is_empty());
    let about = about.collect::<Vec<_>>().join("  ·  ");
    let scores = scores::head(view, &rows);
    let summary = summary(view, &scores);
    legend::head(
        &mut canvas,
        [&title.file, &which],
        [&about, &summary],
        &grids,
        Ends::Together(scale),
    )?;

    let panels = [
        Panel {
            name: "Weights",
            what: match scores.sink {
                None => "W(i, j), the softmax of the scores".to_owned(),
                // The contributions beside it have no part of a sink's either.
                Some(sink) => {
                    let sink = two(sink);
                    format!("W(i, j), a sink's {sink} aside, as shares of their row's sum")
                }
            },
            grid: &weights,
            left,
        },
        Panel {
            name: "Contributions",
            what: match view.through {
                false => "W(i, j) |V(j)|, as shares of their row's sum".to_owned(),
                true => "W(i, j) |V(j) W_O|, as shares of their row's sum".to_owned(),
            },
            grid: &contributions,
            left: right,
        },
    ];
    let faint = Style::size(11.0).colour(FAINT);
    let middle = faint.anchor(Anchor::Middle);
    let names = Names {
        tokens: &view.tokens,
        rows: view.rows.clone(),
        keys: keys.clone(),
    };
    for panel in &panels {
        let (x, y) = (panel.left as f64, top as f64);
        canvas.text([x, y - 34.0], panel.name, Style::size(14.0));
        let what = match block {
            [1, 1] => panel.what.clone(),
            [rows, keys] => format!("{}; the largest of {rows} x {keys}", panel.what),
        };
        canvas.text([x, y - 15.0], &fit(&what, 11.0, slot as f64), faint);
        canvas.frame([panel.left, top, wide, high]);
        let place = Place {
            x: panel.left,
            y: top,
            cell,
        };
        tips::heat(&mut canvas, place, panel.grid, scale, &names)?;
        for (at, text) in &key_labels {
            let (x, y) = (x + at, bottom as f64);
            canvas.line([x, y + 1.0, x, y + 5.0], LINE);
            let style = Style::size(LABEL_SIZE).anchor(Anchor::End).turn(45.0);
            canvas.text([x + 2.0, y + 9.0], text, style);
        }
        canvas.text([x + wide as f64 / 2.0, below as f64], "keys", middle);
    }
    for (at, text) in &row_labels {
        let (x, y) = (left as f64, top as f64 + at);
        canvas.line([x - 5.0, y, x - 1.0, y], LINE);
        let style = Style::size(LABEL_SIZE).anchor(Anchor::End);
        canvas.text([x - 9.0, y], text, style);
    }
    let centre = [MARGIN as f64 + 6.0, top as f64 + high as f64 / 2.0];
    canvas.text(centre, "queries", middle.turn(90.0));
    let axis = [cell[1], block[0]];
    apart::bars(&mut canvas, [bars, top], axis, view, &rows, &worst);
    apart::list(&mut canvas, [MARGIN, list], view, &rows, &worst);
    Ok(canvas)
}

/// Sides of a cell in pixels: square where both counts are large, and no thinner
/// than can be seen where one is small.
fn cell(columns: usize, rows: usize) -> [usize; 2] {
    let side = |n: usize| (PANEL / n.max(1)).clamp(1, LARGEST_CELL);
    let square = side(columns).min(side(rows));
    let stretched = |n: usize| square.max(side(n).min(240 / n.max(1)));
    [stretched(columns), stretched(rows)]
}

/// Names along an axis (its range, elements and pixels a cell): every one where
/// `pitch` pixels a name allow it, else a round number apart and with their numbers.
pub fn labels(
    (range, block, cell): (Range<usize>, usize, usize),
    pitch: f64,
    names: &Option<Vec<String>>,
) -> Vec<Label> {
    let every = pitch * block as f64 / cell as f64;
    let apart = match every > 1.0 {
        true => (every * THINNED).ceil() as usize,
        false => 1,
    };
    // 1, 2, 5, 10, 20, 50, ...
    let mut round = (0..10).flat_map(|e| [1, 2, 5].map(|m: usize| m * 10usize.pow(e)));
    let step = round.find(|&step| step >= apart).unwrap_or(apart);
    let numbers = (range.start.next_multiple_of(step)..range.end).step_by(step);
    let label = |at: usize| {
        let text = match token(names, at) {
            Some(token) if step == 1 => token,
            Some(token) => format!("{at} {token}"),
            None => at.to_string(),
        };
        let middle = ((at - range.start) / block) as f64 + 0.5;
        (middle * cell as f64, fit(&text, LABEL_SIZE, LABEL))
    };
    numbers.map(label).collect()
}

fn widest(labels: &[Label]) -> f64 {
    let widths = labels.iter().map(|(_, text)| width(text, LABEL_SIZE));
    widths.fold(0.0, f64::max)
}

/// The head's scores in a line.
fn summary(view: &HeadView, head: &HeadScores) -> String {
    if head.rows == 0 {
        return view.why_no_scores().to_owned();
    }
    let (entropy, keys) = (two(head.entropy), decimals(head.effective_keys, 1));
    let mut parts = vec![
        format!("entropy {entropy} nats, as over {keys} keys evenly"),
        format!("previous token {}", two(head.previous)),
        format!("first key {}", two(head.first)),
        format!("disagreement {}", two(head.disagreement)),
    ];
    parts.extend(head.sink.map(|sink| format!("sink {}", two(sink))));
    parts.join("  ·  ")
}

#[cfg(test)]
pub mod tests;
