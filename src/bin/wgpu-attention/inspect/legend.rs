//! The head of a picture: what it shows, and what its colours mean.

use crate::inspect::canvas::{
    Anchor, Canvas, Cells, FAINT, LINE, Place, Style, fit, fit_middle, width,
};
use crate::inspect::colour::{Grid, MASKED, MISSING, Value};
use crate::inspect::scale::{Scale, shade, short};

/// White around everything in a picture, in pixels.
pub const MARGIN: usize = 24;
/// Height of the head, margin included.
pub const HEIGHT: usize = MARGIN + 66;
/// Width of the colour scale and what stands beside it.
const WIDTH: usize = 400;
/// The lines and the scale need this much, margins included.
pub const LEAST_WIDTH: usize = 1180;

/// Writes a title, the name of a file and what is shown of it, with two lines under it;
/// and the colour scale of `grids`. A long name gives way to the rest.
pub fn head(
    canvas: &mut Canvas,
    [file, which]: [&str; 2],
    lines: [&str; 2],
    grids: &[&Grid],
    ends: Ends,
) -> Result<(), String> {
    let at = canvas.width() - MARGIN - WIDTH;
    let (left, top) = (MARGIN as f64, MARGIN as f64);
    let room = (at - MARGIN - 30) as f64;
    let large = Style::size(17.0);
    let file = fit_middle(file, 17.0, room - width(which, 17.0));
    canvas.text([left, top + 8.0], &(file + which), large);
    for (n, text) in lines.into_iter().enumerate() {
        let place = [left, top + 34.0 + 20.0 * n as f64];
        let small = Style::size(12.0).colour(FAINT);
        canvas.text(place, &fit(text, 12.0, room), small);
    }
    colours(canvas, [at, MARGIN], grids, ends)
}

/// Where the colours of a picture end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Ends {
    /// At the top of one scale for all that is shown.
    Together(Scale),
    /// At the top that stands above each head.
    Apart,
}

impl Ends {
    /// What stands below a part of the scale.
    fn tick(self, part: f64) -> String {
        match (self, part) {
            (_, 0.0) => "0".to_owned(),
            (Ends::Together(scale), 1.0) if scale.top() < 1.0 => {
                format!("{} and more", short(scale.top()))
            }
            (Ends::Together(scale), _) => short(part * scale.top()),
            (Ends::Apart, 1.0) => "top and more".to_owned(),
            (Ends::Apart, _) => format!("top / {}", (1.0 / part).round()),
        }
    }
}

fn colours(
    canvas: &mut Canvas,
    [x, y]: [usize; 2],
    grids: &[&Grid],
    ends: Ends,
) -> Result<(), String> {
    const STEPS: usize = 140;
    // Between two labels, in pixels.
    const APART: f64 = 10.0;
    let middle = |step: usize| (step as f64 + 0.5) / STEPS as f64;
    let cells = Cells {
        columns: STEPS,
        colours: (0..STEPS).map(|s| shade(middle(s))).collect(),
    };
    let (cell, bar) = ([2, 14], 2 * STEPS);
    canvas.frame([x, y + 2, bar, cell[1]]);
    canvas.heat(Place { x, y: y + 2, cell }, &cells, |_, _| String::new())?;
    let small = Style::size(10.5);
    let bottom = y as f64 + 17.0;
    // The most important first: what overlaps one before it is left out.
    let mut labels: Vec<[f64; 2]> = Vec::new();
    for part in [0.0, 1.0, 0.5, 0.2, 0.05, 0.1, 0.01] {
        let text = ends.tick(part);
        let half = width(&text, 10.5) / 2.0;
        // Equal steps of the scale are steps of the share's square root.
        let at = x as f64 + part.sqrt() * bar as f64;
        // The last ends not far behind the scale: there are the swatches.
        let middle = at.min((x + bar + 14) as f64 - half);
        let [start, end] = [middle - half - APART / 2.0, middle + half + APART / 2.0];
        if labels
            .iter()
            .any(|[first, last]| start < *last && *first < end)
        {
            continue;
        }
        labels.push([start, end]);
        canvas.line([at, bottom, at, bottom + 4.0], LINE);
        let style = small.anchor(Anchor::Middle);
        canvas.text([middle, bottom + 12.0], &text, style);
    }
    let under = match ends {
        Ends::Together(_) => "share, on a square-root scale, the same for all",
        Ends::Apart => "share, on a square-root scale; each head's top is above it",
    };
    canvas.text([x as f64, bottom + 30.0], under, small.colour(FAINT));
    let swatches = [
        (Value::Masked, MASKED, "excluded"),
        (Value::Missing, MISSING, "no number"),
    ];
    let present = |(value, ..): &(Value, _, _)| grids.iter().any(|grid| grid.has(*value));
    for (at, (_, fill, name)) in swatches.into_iter().filter(present).enumerate() {
        let (x, y) = ((x + bar + 24) as f64, y as f64 + 2.0 + 22.0 * at as f64);
        canvas.rectangle([x, y, 14.0, 14.0], fill);
        canvas.text([x + 20.0, y + 7.0], name, Style::size(11.0));
    }
    Ok(())
}

/// A number for people; a dash where there is none.
pub fn decimals(x: f64, places: usize) -> String {
    match x.is_nan() {
        true => "–".to_owned(),
        false => format!("{x:.places$}"),
    }
}

/// Two decimals.
pub fn two(x: f64) -> String {
    decimals(x, 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::faults::attribute;

    /// The numbers under the scale stand clear of one another, whatever the top is.
    #[test]
    fn labels_of_the_scale_stand_apart() {
        let tops = [
            1.0, 0.5, 0.3, 0.2, 0.12, 0.1, 0.05, 0.005, 0.123456, 0.000001,
        ];
        let mut all = vec![Ends::Apart];
        all.extend(tops.map(|top| Ends::Together(Scale::to(top))));
        for ends in all {
            let mut canvas = Canvas::new(LEAST_WIDTH, HEIGHT);
            colours(&mut canvas, [MARGIN, MARGIN], &[], ends).unwrap();
            let svg = canvas.svg();
            let texts = svg
                .lines()
                .filter(|line| line.contains("text-anchor=\"middle\""));
            let mut spans: Vec<[f64; 2]> = texts
                .map(|text| {
                    let said = text.split(['>', '<']).nth(2).unwrap();
                    let middle: f64 = attribute(text, "x").parse().unwrap();
                    let half = width(said, 10.5) / 2.0;
                    [middle - half, middle + half]
                })
                .collect();
            spans.sort_by(|a, b| a[0].total_cmp(&b[0]));
            assert!(spans.len() >= 3, "{ends:?}: {}", spans.len());
            for pair in spans.windows(2) {
                let free = pair[1][0] - pair[0][1];
                assert!(free >= 8.0, "{ends:?}: {free} pixels");
            }
        }
    }
}
