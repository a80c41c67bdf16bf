//! Recording with other operands or a wrong workspace.

use super::bench::{Bench, judge};
use crate::noop::SMALL;
use wgpu_attention::*;

#[test]
fn workspaces() {
    judge(&[
        (
            "Layout",
            |b| b.workspace(b.good.plain(), &b.big, 4),
            "workspace: expected layout with an offset that is a multiple of 256, got offset 4",
        ),
        (
            "BufferTooSmall",
            |b| b.workspace(b.good.plain(), &b.noop.buffer(1116), 0),
            "workspace: the view needs 1120 bytes of its buffer, which has 1116",
        ),
        (
            "BufferTooSmall",
            |b| b.workspace(b.good.plain(), &b.big, u64::MAX - 255),
            "workspace: the view needs 18446744073709551615 bytes of its buffer, which has 65536",
        ),
        (
            "Usage",
            |b| b.workspace(b.good.plain(), &b.unusable, 0),
            "workspace: its buffer needs usage BufferUsages(STORAGE), it has BufferUsages(COPY_DST)",
        ),
        (
            "PlanMismatch",
            |b| {
                let mut operands = b.good.plain();
                operands.key = b.view([2, 2, 7, 8]);
                b.workspace(operands, &b.big, 4096)
            },
            "workspace: the plan was made for a buffer of its own (see PlanOptions::shared_buffers), got the buffer of key",
        ),
        (
            "Overlap",
            |b| {
                let mut operands = b.good.plain();
                operands.key = b.view([2, 2, 7, 8]);
                b.workspace(operands, &b.big, 768)
            },
            "workspace: is written and must not overlap key (768..1888 and 0..896)",
        ),
    ]);
}

/// What the errors of a replay say, where the numbers inside are many.
#[test]
fn replays_with_other_operands() {
    let b = Bench::new();
    let full = b.good.dense();
    let lists = &b.lists;
    let mut judged = 0;
    let mut judge = |before: Operands<'_>, after: Operands<'_>, operand: &str, parts: [&str; 2]| {
        let error = b.replay(before, after);
        assert!(matches!(error, Error::PlanMismatch { .. }), "{error}");
        assert!(error.is_input());
        let text = error.to_string();
        let (was, is) = text
            .split_once(", got ")
            .unwrap_or_else(|| panic!("{text}"));
        let start = format!("{operand}: the plan was made for ");
        assert!(was.starts_with(&start), "{text}");
        assert!(was.contains(parts[0]) && is.contains(parts[1]), "{text}");
        judged += 1;
    };
    let moved = |shape| TensorView::bhsd(&b.big, DType::F32, shape, 1).unwrap();
    let mut after = full;
    after.query = moved(SMALL.query());
    judge(
        full,
        after,
        "query",
        ["F32, shape [", "from byte 4 modulo 256"],
    );
    let mut after = full;
    after.key = moved(SMALL.key());
    judge(
        full,
        after,
        "key",
        ["F32, shape [", "from byte 4 modulo 256"],
    );
    let mut after = full;
    after.value = moved(SMALL.value());
    judge(
        full,
        after,
        "value",
        ["F32, shape [", "from byte 4 modulo 256"],
    );
    let mut after = full;
    after.output = moved(SMALL.output());
    judge(
        full,
        after,
        "output",
        ["F32, shape [", "from byte 4 modulo 256"],
    );
    let mut after = full;
    after.bias = None;
    judge(full, after, "bias", ["F32, shape [2, 4, 5, 7]", "none"]);
    let mut after = full;
    after.mask = Some(MaskView::bytes(&b.good.mask, SMALL.pairs(), 0, Polarity::Drop).unwrap());
    judge(full, after, "mask", ["Keep", "Drop"]);
    let mut after = full;
    after.stats = Some(StatsView::new(&b.good.stats, Stats::Lse, SMALL.rows(), 0).unwrap());
    judge(full, after, "stats", ["RowState", "Lse"]);
    let mut after = full;
    after.query = TensorView::bshd(&b.good.query, DType::F32, SMALL.query(), 0).unwrap();
    judge(full, after, "query", ["[160, 40, 8, 1]", "[160, 8, 32, 1]"]);
    let mut after = full;
    after.output = TensorView::bhsd(&b.good.output, DType::F16, SMALL.output(), 0).unwrap();
    judge(full, after, "output", ["F32, shape", "F16, shape"]);
    let mut after = full;
    (after.key, after.value) = (
        TensorView::bhsd(&b.good.key, DType::F16, SMALL.key(), 0).unwrap(),
        TensorView::bhsd(&b.good.value, DType::F16, SMALL.value(), 0).unwrap(),
    );
    judge(full, after, "key", ["F32, shape", "F16, shape"]);

    let lengths = full.kv_lengths(List::Host(&lists.kv_lengths));
    judge(lengths, full, "kv_lengths", ["2 host values", "no list"]);
    judge(full, lengths, "kv_lengths", ["no list", "2 host values"]);
    let others = full.kv_lengths(List::Host(&[7, 6]));
    judge(
        lengths,
        others,
        "kv_lengths",
        ["2 host values", "2 host values with other values"],
    );
    let slopes = full.alibi_slopes(List::Host(&lists.slopes));
    let other = slopes.alibi_slopes(List::Host(&[0.5, 0.5, 0.5, 0.25]));
    judge(
        slopes,
        other,
        "alibi_slopes",
        ["4 host values", "with other values"],
    );
    let buffered = full.sinks(b.on_device(0, 4));
    let sinks = full.sinks(List::Host(&lists.sinks));
    judge(
        sinks,
        buffered,
        "sinks",
        ["4 host values", "4 values in a buffer at byte 0 modulo 256"],
    );

    let mut after = b.good.plain();
    after.query = b.view(SMALL.query());
    after.output = TensorView::bhsd(&b.big, DType::F32, SMALL.output(), 64 * 64).unwrap();
    let parts = [
        "buffers that hold no input",
        "a buffer that also holds an input",
    ];
    judge(b.good.plain(), after, "output", parts);
    assert_eq!(judged, 16);

    // A shape that differs is the problem's own error.
    let mut after = full;
    after.query = b.view([2, 4, 5, 9]);
    assert!(matches!(b.replay(full, after), Error::Shape { .. }));
    assert!(b.noop.take_uncaptured().is_empty());
}

/// A browser refuses writable bindings that overlap after alignment: the error
/// is ours, before anything is recorded.
#[test]
fn writable_bindings_that_meet() {
    let b = Bench::new();
    let browser = testing::as_in_a_browser(&b.noop.attention).unwrap();
    let refused = |operands: Operands<'_>| {
        let plan = browser.plan(&operands, &Options::default()).unwrap();
        b.noop.record(&plan, &operands, None).unwrap();
        let prepared = browser.prepare(&plan).unwrap();
        let mut encoder = b.noop.device.create_command_encoder(&Default::default());
        let recorded = prepared.record(&mut encoder, &operands, None);
        recorded.err().map(|error| error.to_string())
    };
    let at = |buffer, shape, offset| TensorView::bhsd(buffer, DType::F32, shape, offset).unwrap();
    let mut operands = b.good.plain();
    // Statistics beside the output: 960 bytes, then 160.
    let pool = b.noop.buffer(4096);
    operands.output = at(&pool, SMALL.output(), 0);
    let stats = |offset| StatsView::new(&pool, Stats::Lse, SMALL.rows(), offset).unwrap();
    let expected = "output: is written and must not overlap stats (0..960 and 768..1120 after \
        alignment, both bound read_write; a browser refuses this)";
    assert_eq!(
        refused(operands.stats(stats(240))).as_deref(),
        Some(expected)
    );
    assert_eq!(refused(operands.stats(stats(256))), None);
    // Packed projections overlap each other, which is fine while they are only read.
    let [query, key, value] =
        TensorView::packed_qkv(&b.big, DType::F32, 2, 5, (4, 2), 6, 0).unwrap();
    let mut packed = Operands::new(query, key, value, operands.output);
    assert_eq!(refused(packed), None);
    packed.output = at(&b.big, SMALL.output(), 8192);
    let text = refused(packed).unwrap();
    assert!(
        text.starts_with("query: is written and must not overlap key ("),
        "{text}"
    );
    assert!(b.noop.take_uncaptured().is_empty());
}
