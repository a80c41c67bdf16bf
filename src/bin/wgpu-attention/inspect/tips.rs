//! What a heat map of an SVG tells the reader's pointer.

use std::ops::Range;

use crate::inspect::canvas::{Canvas, Place};
use crate::inspect::colour::{Grid, Value};
use crate::inspect::scale::Scale;
use crate::inspect::view::Tokens;

/// Characters of a name, at most.
const NAME: usize = 40;
/// Bytes of an element beside its text, about.
const ELEMENT: usize = 64;

/// Names of a heat map's rows and columns.
#[derive(Debug, Clone)]
pub struct Names<'a> {
    pub tokens: &'a Tokens,
    pub rows: Range<usize>,
    pub keys: Range<usize>,
}

/// Draws `grid` with a title for each cell that the pointer may stand on.
///
/// A large grid is an image with titles above it: as many as there is room for in the
/// document, the largest shares first, and one for the rest of each row.
pub fn heat(
    canvas: &mut Canvas,
    place: Place,
    grid: &Grid,
    scale: Scale,
    names: &Names<'_>,
) -> Result<(), String> {
    let tip = |row, column| names.tip(grid, [row, column]);
    canvas.heat(place, &grid.cells(scale), tip)?;
    if canvas.draws_cells(grid.values.len()) {
        return Ok(());
    }
    let mut order: Vec<usize> = (0..grid.values.len())
        .filter(|&at| grid.values[at] != Value::Masked)
        .collect();
    let share = |at: usize| match grid.values[at] {
        Value::Share(share) => share,
        Value::Masked | Value::Missing => 0.0,
    };
    order.sort_by(|&a, &b| share(b).total_cmp(&share(a)).then(a.cmp(&b)));
    let strips = names.strips(grid);
    let strip_bytes: usize = strips.iter().map(|(_, text)| text.len() + ELEMENT).sum();
    let Some(mut room) = canvas.title_bytes().checked_sub(strip_bytes) else {
        return Ok(());
    };
    let fits = |&at: &usize| {
        let tip = names.tip(grid, [at / grid.columns, at % grid.columns]);
        let left = room.checked_sub(tip.len() + ELEMENT);
        room = left.unwrap_or(0);
        left.is_some()
    };
    let mut largest: Vec<usize> = order.iter().copied().take_while(fits).collect();
    let rest = order.get(largest.len()).map(|&at| share(at));
    largest.sort_unstable();

    let [width, height] = place.cell;
    let corner = |row: usize, column: usize| [place.x + column * width, place.y + row * height];
    if let Some(most) = rest {
        for (row, (columns, name)) in strips.iter().enumerate() {
            let [x, y] = corner(row, columns.start);
            let text = format!("{name}: {} or less each", number(most));
            canvas.title([x, y, columns.len() * width, height], &text);
        }
    }
    for at in largest {
        let (row, column) = (at / grid.columns, at % grid.columns);
        let [x, y] = corner(row, column);
        canvas.title([x, y, width, height], &tip(row, column));
    }
    Ok(())
}

impl Names<'_> {
    /// What a cell holds.
    fn tip(&self, grid: &Grid, [row, column]: [usize; 2]) -> String {
        let what = match grid.values[row * grid.columns + column] {
            Value::Masked => "excluded".to_owned(),
            Value::Missing => "no number".to_owned(),
            Value::Share(share) if grid.block != [1, 1] => format!("largest {}", number(share)),
            Value::Share(share) => number(share),
        };
        let [row, key] = [self.row(grid, row), self.key(grid, column)];
        format!("{row} → {key}: {what}")
    }

    fn row(&self, grid: &Grid, row: usize) -> String {
        several(&self.rows, grid.block[0], row, |at| self.tokens.query(at))
    }

    fn key(&self, grid: &Grid, column: usize) -> String {
        several(&self.keys, grid.block[1], column, |at| self.tokens.key(at))
    }

    /// Of every row of cells the columns from its first to its last number, and a name
    /// for them.
    fn strips(&self, grid: &Grid) -> Vec<(Range<usize>, String)> {
        let rows = grid.values.chunks(grid.columns.max(1)).enumerate();
        let strip = |(row, values): (usize, &[Value])| {
            let is_shown = |value: &Value| *value != Value::Masked;
            let first = values.iter().position(is_shown).unwrap_or(0);
            let end = values.iter().rposition(is_shown).map_or(0, |last| last + 1);
            (first..end, format!("{} → other keys", self.row(grid, row)))
        };
        rows.map(strip).collect()
    }
}

/// The element at `at` of `range` in blocks, by its name; the range where it is several.
fn several(
    range: &Range<usize>,
    block: usize,
    at: usize,
    name: impl Fn(usize) -> String,
) -> String {
    let first = range.start + at * block;
    let end = (first + block).min(range.end);
    if end - first > 1 {
        return format!("{first}..{end}");
    }
    let name = name(first);
    match name.char_indices().nth(NAME) {
        Some((cut, _)) => format!("{}…", &name[..cut]),
        None => name,
    }
}

fn number(share: f64) -> String {
    match share < 0.001 {
        true => format!("{share:.6}"),
        false => format!("{share:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::faults::attribute;

    fn drawn(grid: &Grid, rows: usize, cell: usize) -> (String, usize) {
        let names: Vec<String> = (0..rows)
            .map(|n| format!("tok{n}{}", "x".repeat(99)))
            .collect();
        let tokens = Tokens {
            queries: Some(names.clone()),
            keys: Some(names),
        };
        let names = Names {
            tokens: &tokens,
            rows: 0..rows,
            keys: 0..rows,
        };
        let side = grid.columns * cell;
        let mut canvas = Canvas::new(side, side).for_maps(2);
        let place = Place {
            x: 0,
            y: 0,
            cell: [cell, cell],
        };
        heat(&mut canvas, place, grid, Scale::to(1.0), &names).unwrap();
        assert!(canvas.png().is_ok());
        (canvas.svg(), canvas.title_bytes())
    }

    /// A causal head: the larger a key's number, the larger its share.
    fn grid(cells: usize, block: usize) -> Grid {
        let share = |at: usize| match (at / cells, at % cells) {
            (i, j) if j > i => Value::Masked,
            (_, j) => Value::Share((j + 1) as f64 / (2 * cells) as f64),
        };
        Grid {
            columns: cells,
            values: (0..cells * cells).map(share).collect(),
            block: [block, block],
        }
    }

    /// Titles of large pictures: the largest shares have theirs, the others one a row, and
    /// the document stays within its bounds.
    #[test]
    fn large_pictures_keep_their_titles() {
        for (rows, cells, block, cell) in [(300, 300, 1, 2), (1600, 800, 2, 1)] {
            let (svg, bytes) = drawn(&grid(cells, block), rows, cell);
            assert!(svg.len() < 2 * bytes, "{} bytes", svg.len());
            let titles: Vec<&str> = svg.lines().filter(|l| l.contains("<title>")).collect();
            let rest: Vec<&&str> = titles
                .iter()
                .filter(|t| t.contains("other keys: "))
                .collect();
            assert_eq!(rest.len(), cells);
            let cells_with_titles = titles.len() - rest.len();
            assert!(
                cells_with_titles > 8_000,
                "{cells_with_titles} of {rows} rows"
            );
            // What stands over the last cell, and over one of the smallest.
            let last = titles.last().unwrap();
            let of_last = match block {
                1 => "299 tok299",
                _ => "1598..1600 → 1598..1600: largest ",
            };
            assert!(last.contains(of_last) && last.contains(": "), "{last}");
            assert!(last.contains("0.5000<"), "{last}");
            assert_eq!(attribute(last, "x"), ((cells - 1) * cell).to_string());
            // A title for the rest of a row begins at its first key, and no cell without a
            // title of its own is larger than it says.
            assert_eq!(attribute(rest[7], "x"), "0");
            assert_eq!(attribute(rest[7], "width"), (8 * cell).to_string());
            let most = rest[7].split("other keys: ").nth(1).unwrap();
            let most: f64 = most.split(' ').next().unwrap().parse().unwrap();
            let smallest = titles[rest.len()..].iter().map(|title| {
                let share = title.split("</title>").next().unwrap().rsplit(' ').next();
                share.unwrap().parse().unwrap()
            });
            let smallest = smallest.fold(f64::INFINITY, f64::min);
            assert!(smallest >= most, "{smallest} below {most}");
        }
    }

    /// A small picture has a title at each cell.
    #[test]
    fn small_pictures_have_all_titles() {
        let (svg, _) = drawn(&grid(20, 1), 20, 10);
        assert_eq!(svg.matches("<title>").count(), 400);
        assert!(
            svg.contains("→ 19 tok19") && svg.contains(": excluded<"),
            "{svg}"
        );
        // Long names are cut.
        assert!(!svg.contains(&"x".repeat(41)), "{svg}");
    }
}
