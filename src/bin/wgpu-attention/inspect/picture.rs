//! The picture of one head: weights beside contributions, and where they disagree.

use std::ops::Range;

use crate::inspect::canvas::{Anchor, Canvas, FAINT, INK, LINE, Place, Style, fit, width};
use crate::inspect::colour::{Grid, MARK, MASKED, MISSING, Side, Value, colour, position};
use crate::inspect::scores::{self, HeadScores, RowScores, Top};
use crate::inspect::view::{HeadView, token};

/// White around everything, in pixels.
const MARGIN: usize = 24;
/// Width and height that the cells of a panel may take.
const PANEL: usize = 832;
/// What a panel is given at least, so that its title has room.
const MIN_PANEL: usize = 330;
/// A cell's largest side.
const MAX_CELL: usize = 36;
/// Room of a token beside a row and below a column.
const LABEL: f64 = 104.0;
const LABEL_SIZE: f64 = 11.0;
/// Between the panels.
const GAP: usize = 44;
/// The bars of disagreement: full length, and with their titles and numbers.
const BAR: f64 = 100.0;
const STRIP: usize = 170;
/// Rows that are listed below.
const LISTED: usize = 6;
const LINE_HEIGHT: f64 = 20.0;

/// What is said about the file.
#[derive(Debug, Clone)]
pub struct Title {
    pub file: String,
    /// For instance the layer and the model.
    pub about: Option<String>,
}

/// Draws `view`.
pub fn draw(view: &HeadView, title: &Title) -> Result<Canvas, String> {
    let keys = view.seen();
    let counts = [view.rows.len(), keys.len()];
    let block = counts.map(|n| n.div_ceil(PANEL));
    let [weights, contributions] =
        [Side::Weights, Side::Contributions].map(|side| Grid::of(view, side, &keys, block));
    let cell = cell(weights.columns, weights.rows());
    let [panel_width, panel_height] = [weights.columns * cell[0], weights.rows() * cell[1]];
    let rows = scores::rows(view);
    let worst = scores::worst(&rows, LISTED);

    // From the left: the word "queries", their names, weights, contributions, bars.
    let row_labels = labels(
        view.rows.clone(),
        block[0],
        cell[1],
        14.0,
        &view.tokens.queries,
    );
    let column_labels = labels(keys.clone(), block[1], cell[0], 16.0, &view.tokens.keys);
    let name_width = widest(&row_labels).ceil() as usize;
    let slot = panel_width.max(MIN_PANEL);
    let left = MARGIN + 22 + name_width + 10;
    let right = left + slot + GAP;
    let strip = right + slot.min(panel_width.max(MIN_PANEL)) + 14;
    let total = strip + STRIP + MARGIN;
    let top = MARGIN + 124;
    let below = top + panel_height + 10 + (widest(&column_labels) * 0.72).ceil() as usize + 18;
    let list_top = below + 34;
    let list_height = 28.0 + LINE_HEIGHT * (worst.len().max(1) + 1) as f64;
    let mut canvas = Canvas::new(total, list_top + list_height.ceil() as usize + MARGIN);

    let missing = contributions.has(Value::Missing) || weights.has(Value::Missing);
    header(
        &mut canvas,
        view,
        title,
        &keys,
        &scores::head(view, &rows),
        total,
        missing,
    )?;
    let panels = [
        (
            left,
            &weights,
            "Weights",
            "W(i, j), the softmax of the scores",
        ),
        (
            right,
            &contributions,
            "Contributions",
            "W(i, j) |V(j)|, as shares of their row's sum",
        ),
    ];
    for (x, grid, name, what) in panels {
        let (at, title) = (x as f64, Style::size(14.0));
        canvas.text([at, top as f64 - 34.0], name, title);
        let what = match block {
            [1, 1] => what.to_owned(),
            [rows, keys] => format!("{what}; a pixel: the largest of {rows} x {keys} pairs"),
        };
        let what = fit(&what, 11.0, slot as f64);
        canvas.text(
            [at, top as f64 - 15.0],
            &what,
            Style::size(11.0).colour(FAINT),
        );
        let tip = |row: usize, column: usize| tip(view, &keys, grid, row, column);
        canvas.frame([x, top, panel_width, panel_height]);
        canvas.heat(Place { x, y: top, cell }, &grid.cells(), tip)?;
        let bottom = (top + panel_height) as f64;
        for (at, text) in &column_labels {
            let x = x as f64 + at;
            canvas.line([x, bottom + 1.0, x, bottom + 5.0], LINE);
            let style = Style::size(LABEL_SIZE).anchor(Anchor::End).turn(45.0);
            canvas.text([x + 2.0, bottom + 9.0], text, style);
        }
        let caption = Style::size(11.0).colour(FAINT).anchor(Anchor::Middle);
        let middle = at + panel_width as f64 / 2.0;
        canvas.text([middle, below as f64], "keys", caption);
    }
    for (at, text) in &row_labels {
        let (x, y) = (left as f64, top as f64 + at);
        canvas.line([x - 5.0, y, x - 1.0, y], LINE);
        canvas.text(
            [x - 9.0, y],
            text,
            Style::size(LABEL_SIZE).anchor(Anchor::End),
        );
    }
    let caption = Style::size(11.0)
        .colour(FAINT)
        .anchor(Anchor::Middle)
        .turn(90.0);
    let middle = top as f64 + panel_height as f64 / 2.0;
    canvas.text([MARGIN as f64 + 6.0, middle], "queries", caption);

    let bars = right + panel_width + 14;
    disagreement(
        &mut canvas,
        [bars, top],
        cell[1],
        block[0],
        view,
        &rows,
        &worst,
    );
    list(&mut canvas, [MARGIN as f64, list_top as f64], view, &worst);
    Ok(canvas)
}

/// Sides of a cell in pixels: square where both counts are large, and no thinner
/// than can be seen where one is small.
fn cell(columns: usize, rows: usize) -> [usize; 2] {
    let side = |n: usize| (PANEL / n.max(1)).clamp(1, MAX_CELL);
    let square = side(columns).min(side(rows));
    let stretched = |n: usize| square.max(side(n).min(240 / n.max(1)));
    [stretched(columns), stretched(rows)]
}

/// Names along an axis of cells of `block` elements, `cell` pixels wide: where
/// each stands, and its text. Every one where `pitch` pixels a name allow it,
/// else a round number apart and with their numbers.
fn labels(
    range: Range<usize>,
    block: usize,
    cell: usize,
    pitch: f64,
    names: &Option<Vec<String>>,
) -> Vec<(f64, String)> {
    let apart = (pitch * block as f64 / cell as f64).ceil() as usize;
    let step = match apart {
        0 | 1 => 1,
        // 2, 5, 10, 20, 50, ...
        n => (0..)
            .flat_map(|e| [1, 2, 5].map(|m: usize| m * 10usize.pow(e)))
            .find(|&s| s >= n)
            .unwrap_or(n),
    };
    let first = range.start.next_multiple_of(step);
    (first..range.end)
        .step_by(step)
        .map(|at| {
            let text = match token(names, at) {
                Some(token) if step == 1 => token,
                Some(token) => format!("{at} {token}"),
                None => at.to_string(),
            };
            let middle = ((at - range.start) / block) as f64 + 0.5;
            (middle * cell as f64, fit(&text, LABEL_SIZE, LABEL))
        })
        .collect()
}

fn widest(labels: &[(f64, String)]) -> f64 {
    let widths = labels.iter().map(|(_, text)| width(text, LABEL_SIZE));
    widths.fold(0.0, f64::max)
}

/// What a cell holds, for the reader's pointer.
fn tip(view: &HeadView, keys: &Range<usize>, grid: &Grid, row: usize, column: usize) -> String {
    let (i, j) = (
        view.rows.start + row * grid.block[0],
        keys.start + column * grid.block[1],
    );
    let what = match grid.values[row * grid.columns + column] {
        Value::Masked => "excluded".to_owned(),
        Value::Missing => "no number".to_owned(),
        Value::Share(share) => format!("{share:.4}"),
    };
    format!("{} → {}: {what}", view.query_name(i), view.key_name(j))
}

/// Title, scores and colour scale.
fn header(
    canvas: &mut Canvas,
    view: &HeadView,
    title: &Title,
    keys: &Range<usize>,
    head: &HeadScores,
    total: usize,
    missing: bool,
) -> Result<(), String> {
    let legend_at = total - MARGIN - LEGEND;
    let (left, room) = (MARGIN as f64, (legend_at - MARGIN - 30) as f64);
    let mut name = format!(
        "{}: head {}, batch entry {}",
        title.file, view.head, view.batch
    );
    if let Some(about) = &title.about {
        name = format!("{name} ({about})");
    }
    let top = MARGIN as f64;
    canvas.text(
        [left, top + 8.0],
        &fit(&name, 17.0, room),
        Style::size(17.0),
    );
    let faint = Style::size(12.0).colour(FAINT);
    let shown = format!("queries {:?}, keys {keys:?} of {}", view.rows, view.keys);
    canvas.text([left, top + 33.0], &fit(&shown, 12.0, room), faint);
    canvas.text([left, top + 53.0], &fit(&summary(head), 12.0, room), faint);
    legend(canvas, [legend_at, MARGIN], missing)
}

/// The head's scores in a line.
pub fn summary(head: &HeadScores) -> String {
    let mut parts = vec![
        format!(
            "entropy {} nats, as over {} keys evenly",
            two(head.entropy),
            one(head.effective_keys)
        ),
        format!("previous token {}", two(head.previous)),
        format!("first key {}", two(head.first)),
        format!("disagreement {}", two(head.disagreement)),
    ];
    if let Some(sink) = head.sink {
        parts.push(format!("sink {}", two(sink)));
    }
    parts.join("  ·  ")
}

/// Two decimals; a dash where there is no number.
pub fn two(x: f64) -> String {
    if x.is_nan() {
        "–".to_owned()
    } else {
        format!("{x:.2}")
    }
}

/// One decimal; a dash where there is no number.
pub fn one(x: f64) -> String {
    if x.is_nan() {
        "–".to_owned()
    } else {
        format!("{x:.1}")
    }
}

/// Width of the legend.
pub const LEGEND: usize = 400;

/// The colour scale, which all panels share, and the colours beside it.
pub fn legend(canvas: &mut Canvas, [x, y]: [usize; 2], missing: bool) -> Result<(), String> {
    const STEPS: usize = 140;
    let cells = crate::inspect::canvas::Cells {
        columns: STEPS,
        colours: (0..STEPS)
            .map(|at| ((at as f64 + 0.5) / STEPS as f64).powi(2))
            .map(colour)
            .collect(),
    };
    let bar = 2 * STEPS;
    let place = Place {
        x,
        y: y + 2,
        cell: [2, 14],
    };
    canvas.frame([x, y + 2, bar, 14]);
    canvas.heat(place, &cells, |_, _| String::new())?;
    let small = Style::size(10.5).anchor(Anchor::Middle);
    for tick in [0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0] {
        let at = x as f64 + position(tick) * bar as f64;
        let bottom = y as f64 + 17.0;
        canvas.line([at, bottom, at, bottom + 4.0], LINE);
        canvas.text([at, bottom + 12.0], &tick.to_string(), small);
    }
    let under = "share, on a square-root scale; both sides alike";
    canvas.text(
        [x as f64, y as f64 + 47.0],
        under,
        Style::size(10.5).colour(FAINT),
    );
    let beside = (x + bar + 24) as f64;
    let mut swatches = vec![(MASKED, "excluded")];
    if missing {
        swatches.push((MISSING, "no number"));
    }
    for (at, (fill, name)) in swatches.into_iter().enumerate() {
        let y = y as f64 + 2.0 + 22.0 * at as f64;
        canvas.rectangle([beside, y, 14.0, 14.0], fill);
        canvas.text([beside + 20.0, y + 7.0], name, Style::size(11.0));
    }
    Ok(())
}

/// A bar a row: how far its weights and its contributions are apart. The worst
/// rows are coloured and numbered, as in the list.
fn disagreement(
    canvas: &mut Canvas,
    [x, y]: [usize; 2],
    height: usize,
    block: usize,
    view: &HeadView,
    rows: &[RowScores],
    worst: &[RowScores],
) {
    let (left, top) = (x as f64, y as f64);
    let cells = rows.len().div_ceil(block);
    let bottom = top + (cells * height) as f64;
    canvas.text([left, top - 34.0], "Disagreement", Style::size(14.0));
    let what = "0: alike, 1: nothing shared";
    canvas.text([left, top - 15.0], what, Style::size(11.0).colour(FAINT));
    for tick in [0.0, 0.5, 1.0] {
        let at = left + tick * BAR;
        canvas.line([at + 0.5, top, at + 0.5, bottom + 5.0], [0xe8, 0xe8, 0xe8]);
        let style = Style::size(10.5).anchor(Anchor::Middle);
        canvas.text([at, bottom + 13.0], &tick.to_string(), style);
    }
    let place = |row: usize| (row - view.rows.start) / block;
    let gap = if height >= 12 { 3.0 } else { 0.0 };
    let marked = |at: usize| worst.iter().any(|w| place(w.row) == at);
    for (at, rows) in rows.chunks(block).enumerate() {
        let longest = rows
            .iter()
            .filter_map(|r| r.disagreement)
            .fold(0.0, f64::max);
        let fill = if marked(at) { MARK } else { [0xa0, 0xa0, 0xa0] };
        let y = top + (at * height) as f64 + gap;
        canvas.rectangle([left, y, longest * BAR, height as f64 - 2.0 * gap], fill);
    }
    // Numbers of neighbouring rows are pushed apart, each with a line to its bar.
    let mut numbers: Vec<(usize, f64)> = worst
        .iter()
        .enumerate()
        .map(|(rank, w)| (rank + 1, top + (place(w.row) as f64 + 0.5) * height as f64))
        .collect();
    numbers.sort_by(|a, b| a.1.total_cmp(&b.1));
    let wanted: Vec<f64> = numbers.iter().map(|n| n.1).collect();
    for ((rank, row), at) in numbers
        .iter()
        .zip(spread(&wanted, 15.0, [top + 6.0, bottom - 6.0]))
    {
        let bar = worst[rank - 1].disagreement.unwrap_or(0.0) * BAR;
        let column = left + BAR + 26.0;
        canvas.line([left + bar + 3.0, *row, column - 16.0, *row], MARK);
        canvas.line([column - 16.0, *row, column - 4.0, at], MARK);
        let style = Style::size(12.0).colour(MARK);
        canvas.text([column, at], &rank.to_string(), style);
    }
}

/// The nearest places to `wanted`, which ascend, that are `apart` from one
/// another; within `limits`, if they fit.
fn spread(wanted: &[f64], apart: f64, [first, last]: [f64; 2]) -> Vec<f64> {
    let mut at = wanted.to_vec();
    let mut free = first;
    for y in &mut at {
        *y = y.max(free);
        free = *y + apart;
    }
    let mut free = last.max(first + apart * at.len().saturating_sub(1) as f64);
    for y in at.iter_mut().rev() {
        *y = y.min(free);
        free = *y - apart;
    }
    at
}

/// The rows of the largest disagreement, and who wins under each side.
fn list(canvas: &mut Canvas, [x, y]: [f64; 2], view: &HeadView, worst: &[RowScores]) {
    if worst.is_empty() {
        let text = "Weights and contributions agree in every row.";
        return canvas.text([x, y], text, Style::size(14.0));
    }
    let title = "Where weights and contributions disagree most";
    canvas.text([x, y], title, Style::size(14.0));
    // Where each column starts, and its head; numbers end there.
    let names = |at: f64, text: &'static str| (at, text, Anchor::Start);
    let number = |at: f64, text: &'static str| (at, text, Anchor::End);
    let columns = [
        names(0.0, "#"),
        names(28.0, "query"),
        number(278.0, "disagreement"),
        names(318.0, "most weight on"),
        number(518.0, "weight"),
        number(578.0, "share"),
        names(618.0, "most contributed by"),
        number(818.0, "weight"),
        number(878.0, "share"),
    ];
    let line = |at: usize| y + 26.0 + LINE_HEIGHT * at as f64;
    for (at, text, anchor) in columns {
        let style = Style::size(11.0).colour(FAINT).anchor(anchor);
        canvas.text([x + at, line(0)], text, style);
    }
    for (at, row) in worst.iter().enumerate() {
        let key = |top: Option<Top>| match top {
            Some(top) => [view.key_name(top.key), two(top.weight), two(top.share)],
            None => ["", "", ""].map(str::to_owned),
        };
        let [weight, contribution] = [row.weight, row.contribution].map(key);
        let first = [
            (at + 1).to_string(),
            view.query_name(row.row),
            two(row.disagreement.unwrap_or(f64::NAN)),
        ];
        let texts = first.into_iter().chain(weight).chain(contribution);
        for ((at_x, _, anchor), text) in columns.iter().zip(texts) {
            let colour = if *at_x == 0.0 { MARK } else { INK };
            let style = Style::size(12.0).anchor(*anchor).colour(colour);
            canvas.text([x + at_x, line(at + 1)], &fit(&text, 12.0, 148.0), style);
        }
    }
}
