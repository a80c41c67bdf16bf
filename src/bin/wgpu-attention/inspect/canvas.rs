//! A drawing: an SVG document, and the PNG that it renders to.
//!
//! There is one drawing for both formats: the PNG is what resvg, a renderer in
//! Rust, makes of the SVG. Its letters come from a font that is part of the
//! program (DejaVu Sans, licence beside it): no font library of the system is
//! needed to build or run, and a picture looks the same on every machine. An
//! SVG only names fonts; DejaVu Sans, in which everything is measured, is among
//! the widest, so text in another one has room too.

use std::fmt::Write as _;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use resvg::{tiny_skia, usvg};
use skrifa::instance::{LocationRef, Size};
use skrifa::{FontRef, MetadataProvider as _};

const FONT: &[u8] = include_bytes!("DejaVuSans.ttf");
const FAMILY: &str = "DejaVu Sans, Verdana, sans-serif";

static FACE: LazyLock<FontRef<'static>> =
    LazyLock::new(|| FontRef::new(FONT).expect("the embedded font is whole"));

/// Heat maps of up to this many cells are drawn as vectors, one rectangle a
/// cell, each with its numbers as a tooltip; larger ones as an image.
const VECTOR_CELLS: usize = 4096;
/// Cells of all heat maps that are drawn as vectors, at most.
const ALL_VECTOR_CELLS: usize = 16_384;

/// Bytes of a document for the titles above its images.
const TITLES: usize = 4 << 20;

/// Pixels of a picture, at most: 153 MiB of colours.
const MAX_PIXELS: usize = 40_000_000;

/// Red, green, blue.
pub type Rgb = [u8; 3];

pub const INK: Rgb = [0x22, 0x22, 0x22];
pub const FAINT: Rgb = [0x6b, 0x6b, 0x6b];
pub const LINE: Rgb = [0xb8, 0xb8, 0xb8];

/// Which end of a text stands at its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text looks. Its middle line, not its base line, goes through its point.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Pixels.
    pub size: f64,
    pub colour: Rgb,
    pub anchor: Anchor,
    /// Degrees, counterclockwise, about the point.
    pub turn: f64,
}

impl Style {
    /// Dark, level text that starts at its point.
    pub fn size(size: f64) -> Style {
        Style {
            size,
            colour: INK,
            anchor: Anchor::Start,
            turn: 0.0,
        }
    }

    pub fn colour(self, colour: Rgb) -> Style {
        Style { colour, ..self }
    }

    pub fn anchor(self, anchor: Anchor) -> Style {
        Style { anchor, ..self }
    }

    pub fn turn(self, turn: f64) -> Style {
        Style { turn, ..self }
    }
}

/// Coloured cells of one size, row by row.
#[derive(Debug, Clone, PartialEq)]
pub struct Cells {
    pub columns: usize,
    pub colours: Vec<Rgb>,
}

/// Where cells stand: the corner, and width and height of one, in whole pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    pub x: usize,
    pub y: usize,
    pub cell: [usize; 2],
}

/// A picture that is being drawn.
#[derive(Debug)]
pub struct Canvas {
    width: usize,
    height: usize,
    /// Heat maps that share what a document has room for.
    maps: usize,
    body: String,
    titles: String,
}

/// Refuses a picture of more pixels than can be drawn; `what` says what was asked for,
/// and `instead` what to do.
pub fn within_bounds([width, height]: [usize; 2], what: &str, instead: &str) -> Result<(), String> {
    match width.saturating_mul(height) {
        pixels if pixels <= MAX_PIXELS => Ok(()),
        _ => Err(format!(
            "{what}: expected a picture of at most {MAX_PIXELS} pixels, \
             got {width} x {height}; {instead}"
        )),
    }
}

impl Canvas {
    /// A white picture, in pixels.
    pub fn new(width: usize, height: usize) -> Canvas {
        Canvas {
            width,
            height,
            maps: 1,
            body: String::new(),
            titles: String::new(),
        }
    }

    /// The number of heat maps with titles that are going to be drawn: they share what
    /// a document has room for.
    pub fn for_maps(self, maps: usize) -> Canvas {
        Canvas {
            maps: maps.max(1),
            ..self
        }
    }

    /// Whether a heat map of so many cells is drawn as one rectangle a cell.
    pub fn draws_cells(&self, cells: usize) -> bool {
        cells <= VECTOR_CELLS.min(ALL_VECTOR_CELLS / self.maps)
    }

    /// Bytes for the titles of a heat map.
    pub fn title_bytes(&self) -> usize {
        TITLES / self.maps
    }

    /// A title for the pointer over a rectangle of whole pixels; only an SVG has it.
    pub fn title(&mut self, [x, y, width, height]: [usize; 4], text: &str) {
        let text = escaped(text);
        // Writing to a string cannot fail.
        let _ = writeln!(
            self.titles,
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}"><title>{text}</title></rect>"#
        );
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn rectangle(&mut self, [x, y, width, height]: [f64; 4], fill: Rgb) {
        let fill = hex(fill);
        self.put(format_args!(
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}"/>"#
        ));
    }

    /// A thin frame around a rectangle of whole pixels.
    pub fn frame(&mut self, [x, y, width, height]: [usize; 4]) {
        let (x, y) = (x as f64 - 0.5, y as f64 - 0.5);
        let (width, height, line) = (width + 1, height + 1, hex(LINE));
        self.put(format_args!(
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="none" stroke="{line}"/>"#
        ));
    }

    pub fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], colour: Rgb) {
        let colour = hex(colour);
        self.put(format_args!(
            r#"<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"/>"#
        ));
    }

    pub fn text(&mut self, [x, y]: [f64; 2], text: &str, style: Style) {
        let Style { size, turn, .. } = style;
        let anchor = match style.anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let turned = match turn {
            0.0 => String::new(),
            degrees => format!(r#" transform="rotate({} {x} {y})""#, -degrees),
        };
        // Half the height of a lower-case letter with an ascender.
        let base = y + 0.36 * size;
        let (fill, text) = (hex(style.colour), escaped(text));
        self.put(format_args!(
            r#"<text x="{x}" y="{base:.2}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{turned}>{text}</text>"#
        ));
    }

    /// Cells at `place`; `tip` says what the cell of a row and a column holds.
    pub fn heat(
        &mut self,
        place: Place,
        cells: &Cells,
        tip: impl Fn(usize, usize) -> String,
    ) -> Result<(), String> {
        let Place {
            x,
            y,
            cell: [width, height],
        } = place;
        let columns = cells.columns.max(1);
        let rows = cells.colours.len() / columns;
        if !self.draws_cells(cells.colours.len()) {
            let image = BASE64.encode(image(cells, rows)?);
            let (width, height) = (columns * width, rows * height);
            // Neighbouring cells are not to be blended. (resvg hears it in a style only.)
            self.put(format_args!(
                r#"<image x="{x}" y="{y}" width="{width}" height="{height}" preserveAspectRatio="none" style="image-rendering:pixelated" href="data:image/png;base64,{image}"/>"#
            ));
            return Ok(());
        }
        self.put(format_args!(r#"<g shape-rendering="crispEdges">"#));
        let gap = usize::from(width.min(height) >= 12);
        for (at, &colour) in cells.colours.iter().enumerate() {
            let (row, column) = (at / columns, at % columns);
            let (left, top) = (x + column * width, y + row * height);
            let (width, height, fill) = (width - gap, height - gap, hex(colour));
            let tip = match tip(row, column) {
                tip if tip.is_empty() => tip,
                tip => format!("<title>{}</title>", escaped(&tip)),
            };
            self.put(format_args!(
                r#"<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="{fill}">{tip}</rect>"#
            ));
        }
        self.put(format_args!("</g>"));
        Ok(())
    }

    /// The document.
    pub fn svg(&self) -> String {
        match self.titles.as_str() {
            "" => self.document(""),
            titles => self.document(&format!(
                "<g fill=\"none\" pointer-events=\"all\">\n{titles}</g>\n"
            )),
        }
    }

    fn document(&self, titles: &str) -> String {
        let Canvas {
            width,
            height,
            body,
            ..
        } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"{FAMILY}\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}{titles}</svg>\n"
        )
    }

    /// The document, rendered.
    pub fn png(&self) -> Result<Vec<u8>, String> {
        within_bounds([self.width, self.height], "PNG", "show less of the file")?;
        let mut options = usvg::Options::default();
        options.fontdb_mut().load_font_data(FONT.to_vec());
        let tree = usvg::Tree::from_str(&self.document(""), &options).map_err(|e| e.to_string())?;
        let size = tree.size().to_int_size();
        let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height())
            .ok_or_else(|| format!("{} x {} pixels are too many", self.width, self.height))?;
        let whole = tiny_skia::Transform::identity();
        resvg::render(&tree, whole, &mut pixels.as_mut());
        pixels.encode_png().map_err(|e| e.to_string())
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }
}

/// An image with a pixel a cell.
fn image(cells: &Cells, rows: usize) -> Result<Vec<u8>, String> {
    let side = |n: usize| u32::try_from(n).map_err(|e| e.to_string());
    let mut pixels = tiny_skia::Pixmap::new(side(cells.columns)?, side(rows)?)
        .ok_or_else(|| format!("{rows} x {} cells are too many", cells.columns))?;
    for (pixel, &[red, green, blue]) in pixels.pixels_mut().iter_mut().zip(&cells.colours) {
        *pixel = tiny_skia::ColorU8::from_rgba(red, green, blue, 255).premultiply();
    }
    pixels.encode_png().map_err(|e| e.to_string())
}

/// Width of a text in pixels.
pub fn width(text: &str, size: f64) -> f64 {
    let (unscaled, default) = (Size::unscaled(), LocationRef::default());
    let glyphs = FACE.charmap();
    let metrics = FACE.glyph_metrics(unscaled, default);
    let advance = |c: char| {
        let glyph = glyphs.map(c).unwrap_or_default();
        f64::from(metrics.advance_width(glyph).unwrap_or_default())
    };
    let units: f64 = text.chars().map(advance).sum();
    units * size / f64::from(FACE.metrics(unscaled, default).units_per_em)
}

/// The text, or its beginning with an ellipsis, in at most `room` pixels.
pub fn fit(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let mut short = String::new();
    for c in text.chars() {
        short.push(c);
        if width(&short, size) + width("…", size) > room {
            short.pop();
            break;
        }
    }
    short + "…"
}

/// The text, or its beginning and its end around an ellipsis, in at most `room` pixels.
pub fn fit_middle(text: &str, size: f64, room: f64) -> String {
    let all: Vec<char> = text.chars().collect();
    let kept = |n: usize| -> String {
        let (first, last) = (&all[..n.div_ceil(2)], &all[all.len() - n / 2..]);
        first.iter().chain(&['…']).chain(last).collect()
    };
    if width(text, size) <= room {
        return text.to_owned();
    }
    let fits = |n: &usize| width(&kept(*n), size) <= room;
    kept((0..all.len()).rev().find(fits).unwrap_or(0))
}

fn hex([red, green, blue]: Rgb) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Text in XML; what XML cannot hold is replaced.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
