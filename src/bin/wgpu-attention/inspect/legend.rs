//! The head of a picture: what it shows, and what its colours mean.

use crate::inspect::canvas::{
    Anchor, Canvas, Cells, FAINT, LINE, Place, Style, fit, fit_middle, width,
};
use crate::inspect::colour::{Grid, MASKED, MISSING, Value, colour, position};

/// White around everything in a picture, in pixels.
pub const MARGIN: usize = 24;
/// Height of the head, margin included.
pub const HEIGHT: usize = MARGIN + 66;
/// Width of the colour scale and what stands beside it.
const WIDTH: usize = 400;
/// The lines and the scale need this much, margins included.
pub const LEAST_WIDTH: usize = 1180;

/// Writes a title, the name of a file and what is shown of it, with two lines under it;
/// and the colour scale, which all of `grids` share. A long name gives way to the rest.
pub fn head(
    canvas: &mut Canvas,
    [file, which]: [&str; 2],
    lines: [&str; 2],
    grids: &[&Grid],
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
    scale(canvas, [at, MARGIN], grids)
}

fn scale(canvas: &mut Canvas, [x, y]: [usize; 2], grids: &[&Grid]) -> Result<(), String> {
    const STEPS: usize = 140;
    let middle = |step: usize| (step as f64 + 0.5) / STEPS as f64;
    let cells = Cells {
        columns: STEPS,
        // Equal steps of the scale are steps of the share's square root.
        colours: (0..STEPS).map(|s| colour(middle(s).powi(2))).collect(),
    };
    let (cell, bar) = ([2, 14], 2 * STEPS);
    canvas.frame([x, y + 2, bar, cell[1]]);
    canvas.heat(Place { x, y: y + 2, cell }, &cells, |_, _| String::new())?;
    let small = Style::size(10.5);
    let bottom = y as f64 + 17.0;
    for tick in [0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0] {
        let at = x as f64 + position(tick) * bar as f64;
        canvas.line([at, bottom, at, bottom + 4.0], LINE);
        let text = tick.to_string();
        canvas.text([at, bottom + 12.0], &text, small.anchor(Anchor::Middle));
    }
    let under = "share, on a square-root scale, the same for all";
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
