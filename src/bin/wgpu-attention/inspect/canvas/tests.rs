use super::*;

/// Colours of the middles of all cells of a picture that holds `cells` alone.
fn drawn(cells: &Cells, place: Place) -> Vec<Rgb> {
    let rows = cells.colours.len() / cells.columns;
    let [width, height] = place.cell;
    let size = [place.x + cells.columns * width, place.y + rows * height];
    let mut canvas = Canvas::new(size[0] + 5, size[1] + 5);
    canvas.heat(place, cells, |_, _| String::new()).unwrap();
    let pixels = tiny_skia::Pixmap::decode_png(&canvas.png().unwrap()).unwrap();
    let colour = |x: usize, y: usize| {
        let pixel = pixels.pixel(x as u32, y as u32).unwrap();
        [pixel.red(), pixel.green(), pixel.blue()]
    };
    assert_eq!(colour(size[0] + 2, size[1] + 2), [255; 3]);
    let middle = |n: usize| {
        let (column, row) = (n % cells.columns, n / cells.columns);
        let at = [place.x + column * width, place.y + row * height];
        colour(at[0] + width / 2, at[1] + height / 2)
    };
    (0..cells.colours.len()).map(middle).collect()
}

/// As rectangles and as an image, large and of one pixel.
#[test]
fn cells_have_their_colours() {
    for (columns, rows, cell) in [
        (3, 2, [14, 20]),
        (64, 64, [2, 3]),
        (65, 64, [3, 2]),
        (100, 77, [1, 1]),
        (1, 4097, [5, 1]),
    ] {
        let colour = |n: usize| [n % 251, n * 7 % 256, n / 256].map(|x| x as u8);
        let cells = Cells {
            columns,
            colours: (0..columns * rows).map(colour).collect(),
        };
        let place = Place { x: 7, y: 11, cell };
        let drawn = drawn(&cells, place);
        let wrong = (0..columns * rows).find(|&n| drawn[n] != cells.colours[n]);
        assert_eq!(
            (drawn.len(), wrong),
            (columns * rows, None),
            "{columns} x {rows}"
        );
    }
}

#[test]
fn texts_fit_and_say_that_they_were_cut() {
    let long = "a token that is far too long for its place";
    for room in [0.0, 10.0, 60.0, 200.0] {
        let short = fit(long, 11.0, room);
        assert!(short.ends_with('…') && long.starts_with(short.trim_end_matches('…')));
        assert!(width(&short, 11.0) <= room.max(width("…", 11.0)));
    }
    assert_eq!(fit("[CLS]", 11.0, 60.0), "[CLS]");
    for room in [0.0, 10.0, 60.0, 200.0] {
        let short = fit_middle(long, 11.0, room);
        let (first, last) = short.split_once('…').unwrap();
        assert!(long.starts_with(first) && long.ends_with(last), "{short}");
        assert!(first.chars().count().abs_diff(last.chars().count()) <= 1);
        assert!(width(&short, 11.0) <= room.max(width("…", 11.0)), "{short}");
        assert!(room < 60.0 || width(&short, 11.0) > room - 15.0, "{short}");
    }
    assert_eq!(fit_middle("[CLS]", 11.0, 60.0), "[CLS]");
}

/// A picture of the text, measured, is as wide as was said.
#[test]
fn text_is_as_wide_as_measured() {
    let mut canvas = Canvas::new(400, 40);
    canvas.text([10.0, 20.0], "|averaged Ġhello ##up|", Style::size(20.0));
    let pixels = tiny_skia::Pixmap::decode_png(&canvas.png().unwrap()).unwrap();
    let is_dark = |x: &u32| (0..40).any(|y| pixels.pixel(*x, y).unwrap().red() < 200);
    let (first, last) = ((0..400).find(is_dark), (0..400).rfind(is_dark));
    let seen = f64::from(last.unwrap() - first.unwrap());
    let said = width("|averaged Ġhello ##up|", 20.0);
    assert!((said - seen).abs() < 10.0, "{said} for {seen}");
}

#[test]
fn any_text_makes_a_document() {
    let mut canvas = Canvas::new(300, 60);
    let text = "<script>&\"\u{0}\u{1b}\u{ffff}]]>日本語";
    canvas.text([5.0, 30.0], text, Style::size(12.0).turn(45.0));
    let cells = Cells {
        columns: 1,
        colours: vec![[1, 2, 3]],
    };
    let place = Place {
        x: 0,
        y: 0,
        cell: [9, 9],
    };
    canvas.heat(place, &cells, |_, _| text.to_owned()).unwrap();
    assert!(canvas.png().is_ok());
    assert!(canvas.svg().contains("&lt;script&gt;&amp;"));
}
