//! Where weights and contributions of a head disagree: a bar a row, and a list of
//! the worst.

use crate::inspect::canvas::{Anchor, Canvas, FAINT, INK, Style, fit};
use crate::inspect::colour::MARK;
use crate::inspect::legend::decimals;
use crate::inspect::scores::{RowScores, Top};
use crate::inspect::view::HeadView;

/// Rows that are listed.
pub const LISTED: usize = 6;
/// Width of the bars with their titles and numbers.
pub const STRIP: usize = 170;
/// Width of the list.
pub const LIST: usize = 1078;
/// A bar's full length.
const BAR: f64 = 100.0;
const LINE_HEIGHT: usize = 20;

/// Height of the list.
pub fn list_height(worst: &[RowScores]) -> usize {
    match worst.len() {
        0 => 20,
        n => 40 + n * LINE_HEIGHT,
    }
}

/// A bar a row: how far its weights and its contributions are apart. The worst
/// rows are coloured and numbered, as in the list. A bar is `height` pixels high and
/// stands for `block` rows.
pub fn bars(
    canvas: &mut Canvas,
    [x, y]: [usize; 2],
    [height, block]: [usize; 2],
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

/// The rows of the largest disagreement, the `worst` of `rows`, and who wins under each
/// side.
pub fn list(
    canvas: &mut Canvas,
    at: [usize; 2],
    view: &HeadView,
    rows: &[RowScores],
    worst: &[RowScores],
) {
    let [x, y] = at.map(|pixel| pixel as f64);
    if worst.is_empty() {
        let has = |number: fn(&RowScores) -> Option<f64>| rows.iter().any(|r| number(r).is_some());
        let text = match (has(|r| r.entropy), has(|r| r.disagreement)) {
            (_, true) => "weights and contributions agree in every row that has both",
            (true, false) => "no row shown has contributions other than 0 and NaN",
            (false, false) => view.why_no_scores(),
        };
        let (first, rest) = text.split_at(1);
        let text = format!("{}{rest}.", first.to_uppercase());
        return canvas.text([x, y], &text, Style::size(14.0));
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
        number(518.0, "share of weights"),
        number(668.0, "share of contributions"),
        names(708.0, "most contributed by"),
        number(928.0, "share of weights"),
        number(1078.0, "share of contributions"),
    ];
    let line = |at: usize| y + 26.0 + (LINE_HEIGHT * at) as f64;
    for (at, text, anchor) in columns {
        let style = Style::size(11.0).colour(FAINT).anchor(anchor);
        canvas.text([x + at, line(0)], text, style);
    }
    for (at, row) in worst.iter().enumerate() {
        let key = |top: Option<Top>| match top {
            Some(top) => [
                view.key_name(top.key),
                decimals(top.weight_share, 3),
                decimals(top.share, 3),
            ],
            None => ["", "", ""].map(str::to_owned),
        };
        let [weight, mut contribution] = [row.weight, row.contribution].map(key);
        let same = weight == contribution;
        if same {
            contribution = ["the same", "", ""].map(str::to_owned);
        }
        let first = [
            (at + 1).to_string(),
            view.query_name(row.row),
            decimals(row.disagreement.unwrap_or(f64::NAN), 3),
        ];
        let texts = first.into_iter().chain(weight).chain(contribution);
        for ((at_x, _, anchor), text) in columns.iter().zip(texts) {
            let colour = match text.as_str() {
                _ if *at_x == 0.0 => MARK,
                "the same" if same => FAINT,
                _ => INK,
            };
            let style = Style::size(12.0).anchor(*anchor).colour(colour);
            canvas.text([x + at_x, line(at + 1)], &fit(&text, 12.0, 148.0), style);
        }
    }
}
