//! Finds what a reader would stumble over in a drawing: texts that overlap or are
//! cut off.

use crate::inspect::canvas::{Canvas, Style, width};

/// The value of an attribute of an element.
pub fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
    let start = element.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
    element[start..].split('"').next().unwrap()
}

fn number(element: &str, name: &str) -> f64 {
    attribute(element, name).parse().unwrap()
}

/// Corners of every text, in order around it, and what it says.
fn texts(svg: &str) -> Vec<([[f64; 2]; 4], String)> {
    let elements = svg.lines().filter(|line| line.starts_with("<text"));
    let text = |element: &str| {
        let content = element.split(['>', '<']).nth(2).unwrap();
        let size = number(element, "font-size");
        // Entities are measured as what they stand for.
        let plain = content
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&amp;", "&");
        let long = width(&plain, size);
        let [x, base] = [number(element, "x"), number(element, "y")];
        let left = match attribute(element, "text-anchor") {
            "start" => x,
            "middle" => x - long / 2.0,
            _ => x - long,
        };
        // From the descender to the height of a capital.
        let (top, bottom) = (base - 0.73 * size, base + 0.2 * size);
        let corners = [
            [left, top],
            [left + long, top],
            [left + long, bottom],
            [left, bottom],
        ];
        let (angle, middle) = match element.contains("rotate(") {
            false => (0.0f64, [0.0, 0.0]),
            true => {
                let turn = element.split("rotate(").nth(1).unwrap();
                let turn = turn.split(')').next().unwrap();
                let turn: Vec<f64> = turn.split(' ').map(|n| n.parse().unwrap()).collect();
                (turn[0].to_radians(), [turn[1], turn[2]])
            }
        };
        let turned = corners.map(|[x, y]| {
            let (x, y) = (x - middle[0], y - middle[1]);
            let (sin, cos) = angle.sin_cos();
            [x * cos - y * sin + middle[0], x * sin + y * cos + middle[1]]
        });
        (turned, plain)
    };
    elements.map(text).collect()
}

/// Whether two rectangles have no line between them.
fn overlap(a: &[[f64; 2]; 4], b: &[[f64; 2]; 4]) -> bool {
    let sides = [a, b].map(|r| [[r[0], r[1]], [r[1], r[2]]]);
    sides.iter().flatten().all(|[from, to]| {
        let normal = [from[1] - to[1], to[0] - from[0]];
        let span = |r: &[[f64; 2]; 4]| {
            let along = r.map(|p| p[0] * normal[0] + p[1] * normal[1]);
            let ends = |f: fn(f64, f64) -> f64, start| along.into_iter().fold(start, f);
            [
                ends(f64::min, f64::INFINITY),
                ends(f64::max, f64::NEG_INFINITY),
            ]
        };
        let ([a0, a1], [b0, b1]) = (span(a), span(b));
        a0 < b1 && b0 < a1
    })
}

/// What overlaps or is cut off.
pub fn faults(canvas: &Canvas) -> Vec<String> {
    let svg = canvas.svg();
    let root = svg.lines().next().unwrap();
    let (width, height) = (number(root, "width"), number(root, "height"));
    let texts = texts(&svg);
    let is_inside = |p: &[f64; 2]| p[0] >= 0.0 && p[1] >= 0.0 && p[0] <= width && p[1] <= height;
    let mut faults = Vec::new();
    for (at, (corners, text)) in texts.iter().enumerate() {
        if !corners.iter().all(is_inside) {
            faults.push(format!("{text:?} is cut off"));
        }
        let later = texts[at + 1..]
            .iter()
            .filter(|(other, _)| overlap(corners, other));
        faults.extend(later.map(|(_, other)| format!("{text:?} overlaps {other:?}")));
    }
    faults
}

#[test]
fn faults_are_found() {
    let mut canvas = Canvas::new(200, 100);
    let style = Style::size(12.0);
    canvas.text([20.0, 20.0], "one", style);
    canvas.text([20.0, 60.0], "two", style.turn(45.0));
    assert_eq!(faults(&canvas), [""; 0]);
    canvas.text([30.0, 24.0], "over one", style);
    canvas.text([190.0, 80.0], "outside", style);
    canvas.text([30.0, 50.0], "x", style);
    let found = faults(&canvas);
    let expected = [
        "\"one\" overlaps \"over one\"",
        "\"two\" overlaps \"x\"",
        "\"outside\" is cut off",
    ];
    assert_eq!(found, expected);
}
