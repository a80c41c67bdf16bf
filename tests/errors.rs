//! Every way of giving bad input: the error's variant and its whole text.

mod noop;

use noop::{Buffers, Lists, Noop, SMALL};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::*;

/// Operands that are right, and a large buffer to make wrong ones in.
struct Bench {
    noop: Noop,
    good: Buffers,
    lists: Lists,
    big: wgpu::Buffer,
    unusable: wgpu::Buffer,
}

impl Bench {
    fn new() -> Self {
        let noop = Noop::new();
        Bench {
            good: Buffers::new(&noop, SMALL, DType::F32),
            lists: Lists::new(SMALL),
            big: noop.buffer(1 << 16),
            unusable: noop.buffer_with(1 << 16, wgpu::BufferUsages::COPY_DST),
            noop,
        }
    }

    fn view(&self, shape: [usize; 4]) -> TensorView<'_> {
        TensorView::bhsd(&self.big, DType::F32, shape, 0).unwrap()
    }

    fn strided(&self, shape: [usize; 4], strides: [usize; 4]) -> TensorView<'_> {
        TensorView::strided(&self.big, DType::F32, shape, strides, 0).unwrap()
    }

    fn forward(&self, operands: Operands<'_>) -> Error {
        Problem::forward(&operands, &Options::default()).unwrap_err()
    }

    /// The error of the good operands with one change.
    fn with<'a>(&'a self, change: impl FnOnce(&mut Operands<'a>)) -> Error {
        let mut operands = self.good.plain();
        change(&mut operands);
        self.forward(operands)
    }

    fn options(&self, options: Options) -> Error {
        Problem::forward(&self.good.plain(), &options).unwrap_err()
    }

    fn stage(&self, region: [[usize; 2]; 3], output: TensorView<'_>) -> Error {
        let [batches, heads, rows] = region.map(|[start, end]| std::ops::Range { start, end });
        let region = Region {
            batches,
            heads,
            rows,
        };
        let mut operands = self.good.plain();
        operands.output = output;
        Problem::stage(&operands, &Options::default(), Stage::Raw, region).unwrap_err()
    }

    /// Plans `before`, then records `after` with that plan.
    fn replay(&self, before: Operands<'_>, after: Operands<'_>) -> Error {
        let plan = self
            .noop
            .attention
            .plan(&before, &Options::default())
            .unwrap();
        self.noop.record(&plan, &before, None).unwrap();
        self.noop.record(&plan, &after, None).unwrap_err()
    }

    /// Records a plan that needs 1,120 bytes of workspace.
    fn workspace(&self, operands: Operands<'_>, buffer: &wgpu::Buffer, offset: u64) -> Error {
        let problem = Problem::forward(&operands, &Options::default()).unwrap();
        let chosen = PlanOptions::default().kernel(Kernel::Staged);
        let plan = Plan::new(&problem, self.noop.attention.caps(), &chosen).unwrap();
        assert_eq!(plan.workspace_bytes(), 1120);
        let workspace = Some(Workspace { buffer, offset });
        self.noop.record(&plan, &operands, workspace).unwrap_err()
    }

    fn on_device<T>(&self, offset: usize, len: usize) -> List<'_, T> {
        List::Buffer {
            buffer: &self.big,
            offset,
            len,
        }
    }
}

type Row = (&'static str, fn(&Bench) -> Error, &'static str);

/// Runs a table: variant, how to provoke it, text.
fn judge(table: &[Row]) {
    let bench = Bench::new();
    let mut wrong = Vec::new();
    for (variant, provoke, text) in table {
        let error = provoke(&bench);
        let found = format!("{error:?}");
        let found = found.split([' ', '(']).next().unwrap();
        if found != *variant || error.to_string() != *text {
            wrong.push(format!(
                "expected {variant}: {text}\ngot      {found}: {error}"
            ));
        }
        assert!(error.is_input(), "{error}");
        assert!(!error.is_device() && !error.is_unsupported(), "{error}");
    }
    assert!(bench.noop.take_uncaptured().is_empty());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn shapes() {
    judge(&[
        (
            "Shape",
            |b| {
                b.with(|o| {
                    o.query = b.view([2, 4, 5, 0]);
                    o.key = b.view([2, 2, 7, 0]);
                })
            },
            "query: expected shape (B, Hq, Nq, Dqk) with Dqk > 0, got [2, 4, 5, 0]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.key = b.view([2, 0, 7, 8])),
            "key: expected shape (B, Hkv, Nk, Dqk) with Hkv > 0, got [2, 0, 7, 8]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.key = b.view([3, 2, 7, 8])),
            "key: expected shape [2, Hkv, Nk, 8] (from query), got [3, 2, 7, 8]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.key = b.view([2, 2, 7, 9])),
            "key: expected shape [2, Hkv, Nk, 8] (from query), got [2, 2, 7, 9]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.query = b.view([2, 3, 5, 8])),
            "query: expected shape a multiple of the 2 kv heads as query heads, got [2, 3, 5, 8]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.value = b.view([2, 2, 6, 6])),
            "value: expected shape [2, 2, 7, Dv] with Dv > 0 (from key), got [2, 2, 6, 6]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.value = b.view([2, 4, 7, 6])),
            "value: expected shape [2, 2, 7, Dv] with Dv > 0 (from key), got [2, 4, 7, 6]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.value = b.view([2, 2, 7, 0])),
            "value: expected shape [2, 2, 7, Dv] with Dv > 0 (from key), got [2, 2, 7, 0]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.query = b.strided([2, 4, (1 << 30) + 1, 8], [0, 0, 0, 1])),
            "query: expected shape every axis at most 2^30, got [2, 4, 1073741825, 8]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.output = b.view([2, 4, 5, 7])),
            "output: expected shape [2, 4, 5, 6], got [2, 4, 5, 7]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.output = b.view([4, 2, 5, 6])),
            "output: expected shape [2, 4, 5, 6], got [4, 2, 5, 6]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.bias = Some(b.view([2, 4, 5, 6]))),
            "bias: expected shape broadcastable to [2, 4, 5, 7] (each axis equal or 1), got [2, 4, 5, 6]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.bias = Some(b.view([1, 0, 1, 1]))),
            "bias: expected shape broadcastable to [2, 4, 5, 7] (each axis equal or 1), got [1, 0, 1, 1]",
        ),
        (
            "Shape",
            |b| {
                let mask = MaskView::bits(&b.big, [2, 2, 5, 7], 0, Polarity::Keep).unwrap();
                b.with(|o| o.mask = Some(mask))
            },
            "mask: expected shape broadcastable to [2, 4, 5, 7] (each axis equal or 1), got [2, 2, 5, 7]",
        ),
        (
            "Shape",
            |b| {
                let stats = StatsView::new(&b.big, Stats::Lse, [2, 4, 6], 0).unwrap();
                b.with(|o| o.stats = Some(stats))
            },
            "stats: expected shape [2, 4, 5], got [2, 4, 6]",
        ),
        (
            "Value",
            |b| {
                let half = TensorView::bhsd(&b.big, DType::F16, [2, 2, 7, 6], 0).unwrap();
                b.with(|o| o.value = half)
            },
            "value: expected the key's storage type F32, got F16",
        ),
    ]);
}

#[test]
fn layouts_and_buffers() {
    judge(&[
        (
            "Layout",
            |b| b.with(|o| o.query = b.strided([2, 4, 5, 8], [640, 160, 32, 2])),
            "query: expected layout with a contiguous last axis (stride 1), got strides [640, 160, 32, 2]",
        ),
        (
            "Layout",
            |b| b.with(|o| o.key = b.strided([2, 2, 7, 8], [1, 2, 4, 28])),
            "key: expected layout with a contiguous last axis (stride 1), got strides [1, 2, 4, 28]",
        ),
        (
            "Layout",
            |b| b.with(|o| o.value = b.strided([2, 2, 7, 6], [0, 0, 0, 0])),
            "value: expected layout with a contiguous last axis (stride 1), got strides [0, 0, 0, 0]",
        ),
        (
            "Layout",
            |b| b.with(|o| o.output = b.strided([2, 4, 5, 6], [120, 30, 6, 2])),
            "output: expected layout with a contiguous last axis (stride 1), got strides [120, 30, 6, 2]",
        ),
        (
            "Layout",
            |b| b.with(|o| o.output = b.strided([2, 4, 5, 6], [120, 30, 5, 1])),
            "output: expected layout with strides under which no two elements coincide, got shape [2, 4, 5, 6], strides [120, 30, 5, 1]",
        ),
        (
            "Layout",
            |b| b.with(|o| o.output = b.strided([2, 4, 5, 6], [0, 30, 6, 1])),
            "output: expected layout with strides under which no two elements coincide, got shape [2, 4, 5, 6], strides [0, 30, 6, 1]",
        ),
        (
            "BufferTooSmall",
            |b| TensorView::bhsd(&b.big, DType::F32, [1, 1, 128, 129], 0).unwrap_err(),
            "tensor: the view needs 66048 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| TensorView::bhsd(&b.big, DType::F32, [1, 1, 128, 128], 1).unwrap_err(),
            "tensor: the view needs 65540 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| TensorView::bshd(&b.big, DType::F16, [1, 2, 128, 128], 1).unwrap_err(),
            "tensor: the view needs 65540 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| TensorView::packed_qkv(&b.big, DType::F32, 1, 64, (3, 1), 64, 0).unwrap_err(),
            "tensor: the view needs 81408 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| TensorView::bhsd(&b.big, DType::F32, [1, 1, 1, 1], 1 << 32).unwrap_err(),
            "tensor: the view needs 17179869188 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| TensorView::bhsd(&b.big, DType::F32, [1, 1, 65_536, 65_536], 0).unwrap_err(),
            "tensor: the view needs 17179869184 bytes of its buffer, which has 65536",
        ),
        (
            "Layout",
            |b| TensorView::bhsd(&b.big, DType::F32, [1, 1, 1, 1], usize::MAX).unwrap_err(),
            "tensor: expected layout with a last element below 2^64 bytes, got shape [1, 1, 1, 1], strides [1, 1, 1, 1], offset 18446744073709551615",
        ),
        (
            "Layout",
            |b| b_strided_overflow(b),
            "tensor: expected layout with a last element below 2^64 bytes, got shape [3, 1, 1, 1], strides [9223372036854775808, 0, 0, 1], offset 0",
        ),
        (
            "BufferTooSmall",
            |b| MaskView::bytes(&b.big, [1, 1, 256, 257], 0, Polarity::Keep).unwrap_err(),
            "mask: the view needs 65792 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| MaskView::bits(&b.big, [1, 1, 16_384, 32], 1, Polarity::Drop).unwrap_err(),
            "mask: the view needs 65540 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| StatsView::new(&b.big, Stats::RowState, [1, 1, 8193], 0).unwrap_err(),
            "stats: the view needs 65544 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| b.with(|o| o.kv_lengths = Some(b.on_device(16_383, 2))),
            "kv_lengths: the view needs 65540 bytes of its buffer, which has 65536",
        ),
        (
            "BufferTooSmall",
            |b| b.with(|o| o.sinks = Some(b.on_device(usize::MAX, 4))),
            "sinks: the view needs 18446744073709551615 bytes of its buffer, which has 65536",
        ),
        (
            "Usage",
            |b| {
                let view = TensorView::bhsd(&b.unusable, DType::F32, [2, 2, 7, 8], 0).unwrap();
                b.with(|o| o.key = view)
            },
            "key: its buffer needs usage BufferUsages(STORAGE), it has BufferUsages(COPY_DST)",
        ),
        (
            "Usage",
            |b| {
                let view = TensorView::bhsd(&b.unusable, DType::F32, [2, 4, 5, 6], 0).unwrap();
                b.with(|o| o.output = view)
            },
            "output: its buffer needs usage BufferUsages(STORAGE), it has BufferUsages(COPY_DST)",
        ),
        (
            "Usage",
            |b| {
                let list = List::Buffer {
                    buffer: &b.unusable,
                    offset: 0,
                    len: 2,
                };
                b.with(|o| o.q_lengths = Some(list))
            },
            "q_lengths: its buffer needs usage BufferUsages(STORAGE), it has BufferUsages(COPY_DST)",
        ),
        (
            "Overlap",
            |b| {
                b.with(|o| {
                    o.output = b.view([2, 4, 5, 6]);
                    o.query = b.view([2, 4, 5, 8]);
                })
            },
            "output: is written and must not overlap query (0..960 and 0..1280)",
        ),
        (
            "Overlap",
            |b| {
                let stats = StatsView::new(&b.big, Stats::Lse, [2, 4, 5], 239).unwrap();
                b.with(|o| {
                    o.output = b.view([2, 4, 5, 6]);
                    o.stats = Some(stats);
                })
            },
            "output: is written and must not overlap stats (0..960 and 956..1116)",
        ),
        (
            "Overlap",
            |b| {
                let stats = StatsView::new(&b.big, Stats::RowState, [2, 4, 5], 1).unwrap();
                b.with(|o| {
                    o.stats = Some(stats);
                    o.kv_lengths = Some(b.on_device(80, 2));
                })
            },
            "stats: is written and must not overlap kv_lengths (4..324 and 320..328)",
        ),
    ]);
}

fn b_strided_overflow(b: &Bench) -> Error {
    TensorView::strided(&b.big, DType::F32, [3, 1, 1, 1], [1 << 63, 0, 0, 1], 0).unwrap_err()
}

#[test]
fn lists() {
    judge(&[
        (
            "Shape",
            |b| b.with(|o| o.kv_lengths = Some(List::Host(&[1, 2, 3]))),
            "kv_lengths: expected shape [2], got [3]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.q_lengths = Some(List::Host(&[]))),
            "q_lengths: expected shape [2], got [0]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.kv_lengths = Some(b.on_device(0, 1))),
            "kv_lengths: expected shape [2], got [1]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.alibi_slopes = Some(List::Host(&[1.0; 2]))),
            "alibi_slopes: expected shape [4], got [2]",
        ),
        (
            "Shape",
            |b| b.with(|o| o.sinks = Some(List::Host(&[1.0; 5]))),
            "sinks: expected shape [4], got [5]",
        ),
        (
            "Shape",
            |b| {
                let (queries, keys) = (List::Host(&[0; 9]), List::Host(&[0; 14]));
                b.forward(b.good.plain().segments(queries, keys))
            },
            "q_segments: expected shape [10], got [9]",
        ),
        (
            "Shape",
            |b| {
                let (queries, keys) = (List::Host(&[0; 10]), List::Host(&[0; 7]));
                b.forward(b.good.plain().segments(queries, keys))
            },
            "kv_segments: expected shape [14], got [7]",
        ),
        (
            "Value",
            |b| b.with(|o| o.q_segments = Some(List::Host(&[0; 10]))),
            "kv_segments: expected ids beside q_segments, got none",
        ),
        (
            "Value",
            |b| b.with(|o| o.kv_segments = Some(List::Host(&[0; 14]))),
            "q_segments: expected ids beside kv_segments, got none",
        ),
        (
            "Value",
            |b| b.with(|o| o.kv_lengths = Some(List::Host(&[7, 8]))),
            "kv_lengths: expected counts of at most 7, got 8 at batch entry 1",
        ),
        (
            "Value",
            |b| b.with(|o| o.q_lengths = Some(List::Host(&[u32::MAX, 1]))),
            "q_lengths: expected counts of at most 5, got 4294967295 at batch entry 0",
        ),
        (
            "Value",
            |b| b.options(Options::default().alignment(Alignment::PerSequence)),
            "offsets: expected one offset a sequence (alignment is PerSequence), got none",
        ),
        (
            "Value",
            |b| b.with(|o| o.offsets = Some(List::Host(&[0, 0]))),
            "offsets: expected none unless alignment is PerSequence, got alignment BottomRight with offsets",
        ),
        (
            "Shape",
            |b| {
                let options = Options::default().alignment(Alignment::PerSequence);
                let operands = b.good.plain().offsets(List::Host(&[0, 0, 0]));
                Problem::forward(&operands, &options).unwrap_err()
            },
            "offsets: expected shape [2], got [3]",
        ),
        (
            "Value",
            |b| b.with(|o| o.sinks = Some(List::Host(&[0.0, f32::NEG_INFINITY, 1.0, f32::NAN]))),
            "sinks: expected finite numbers or -inf, got NaN",
        ),
        (
            "Value",
            |b| b.with(|o| o.sinks = Some(List::Host(&[0.0, 1.0, f32::INFINITY, 1.0]))),
            "sinks: expected finite numbers or -inf, got inf",
        ),
        (
            "Value",
            |b| b.with(|o| o.alibi_slopes = Some(List::Host(&[0.0, -1.0, f32::NEG_INFINITY, 1.0]))),
            "alibi_slopes: expected finite numbers, got -inf",
        ),
        (
            "Value",
            |b| b.with(|o| o.alibi_slopes = Some(List::Host(&[f32::NAN; 4]))),
            "alibi_slopes: expected finite numbers, got NaN",
        ),
    ]);
}

#[test]
fn options_and_regions() {
    judge(&[
        (
            "Value",
            |b| b.options(Options::default().softcap(0.0)),
            "softcap: expected a finite number above 0, got 0",
        ),
        (
            "Value",
            |b| b.options(Options::default().softcap(-1.0)),
            "softcap: expected a finite number above 0, got -1",
        ),
        (
            "Value",
            |b| b.options(Options::default().softcap(f32::NAN)),
            "softcap: expected a finite number above 0, got NaN",
        ),
        (
            "Value",
            |b| b.options(Options::default().softcap(f32::INFINITY)),
            "softcap: expected a finite number above 0, got inf",
        ),
        (
            "Value",
            |b| b.options(Options::default().scale(f32::NAN)),
            "scale: expected a finite number, got NaN",
        ),
        (
            "Value",
            |b| b.options(Options::default().scale(f32::NEG_INFINITY)),
            "scale: expected a finite number, got -inf",
        ),
        (
            "Value",
            |_| Window::last(0).unwrap_err(),
            "window: expected at least 1 key, got 0",
        ),
        (
            "Value",
            |b| b.stage([[1, 3], [0, 1], [0, 1]], b.view([2, 1, 1, 7])),
            "region batches: expected a range within 0..2, got 1..3",
        ),
        (
            "Value",
            |b| b.stage([[0, 1], [4, usize::MAX], [0, 1]], b.view([1, 1, 1, 7])),
            "region heads: expected a range within 0..4, got 4..18446744073709551615",
        ),
        (
            "Value",
            |b| b.stage([[0, 1], [0, 1], [3, 1]], b.view([1, 1, 2, 7])),
            "region rows: expected a range within 0..5, got 3..1",
        ),
        (
            "Shape",
            |b| b.stage([[0, 1], [1, 3], [0, 5]], b.view([2, 4, 5, 7])),
            "output: expected shape [1, 2, 5, 7], got [2, 4, 5, 7]",
        ),
        (
            "Value",
            |b| {
                let halves = TensorView::bhsd(&b.big, DType::BF16, [1, 1, 1, 7], 0).unwrap();
                b.stage([[0, 1], [0, 1], [0, 1]], halves)
            },
            "output: expected F32 for a stage, got BF16",
        ),
        (
            "Value",
            |b| {
                let shape = [1, 1, 3, 7];
                let mut operands = b.good.plain();
                operands.output = b.view(shape);
                let region = Region {
                    batches: 0..1,
                    heads: 0..1,
                    rows: 0..3,
                };
                let options = Options::default();
                let problem = Problem::stage(&operands, &options, Stage::Raw, region).unwrap();
                let chosen = PlanOptions::default().kernel(Kernel::Fused);
                Plan::new(&problem, b.noop.attention.caps(), &chosen).unwrap_err()
            },
            "kernel: expected Staged, the only one that writes scores, got Fused",
        ),
    ]);
}

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
    judge(full, after, "query", ["phase: 0", "phase: 4"]);
    let mut after = full;
    after.key = moved(SMALL.key());
    judge(full, after, "key", ["phase: 0", "phase: 4"]);
    let mut after = full;
    after.value = moved(SMALL.value());
    judge(full, after, "value", ["phase: 0", "phase: 4"]);
    let mut after = full;
    after.output = moved(SMALL.output());
    judge(full, after, "output", ["phase: 0", "phase: 4"]);
    let mut after = full;
    after.bias = None;
    judge(full, after, "bias", ["Some", "None"]);
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
    judge(
        full,
        after,
        "output",
        ["element_size: 4", "element_size: 2"],
    );
    let mut after = full;
    (after.key, after.value) = (
        TensorView::bhsd(&b.good.key, DType::F16, SMALL.key(), 0).unwrap(),
        TensorView::bhsd(&b.good.value, DType::F16, SMALL.value(), 0).unwrap(),
    );
    judge(full, after, "key", ["element_size: 4", "element_size: 2"]);

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

#[test]
fn host_tensors() {
    judge(&[
        (
            "Shape",
            |_| Tensor::f32(&[0.0; 23], [1, 2, 3, 4]).unwrap_err(),
            "tensor: expected shape [1, 2, 3, 4] (24 elements), got 23 elements",
        ),
        (
            "Shape",
            |_| Tensor::f32(&[], [usize::MAX, 2, 1, 1]).unwrap_err(),
            "tensor: expected shape [18446744073709551615, 2, 1, 1] (too many elements), got 0 elements",
        ),
        (
            "Shape",
            |_| BoolMask::new(MaskData::Bytes(&[1; 5]), [1, 1, 2, 3], Polarity::Keep).unwrap_err(),
            "mask: expected shape [1, 1, 2, 3] (6 bytes), got 5 bytes",
        ),
        (
            "Shape",
            |_| BoolMask::new(MaskData::Bits(&[1; 3]), [1, 1, 2, 33], Polarity::Keep).unwrap_err(),
            "mask: expected shape [1, 1, 2, 33] (4 words), got 3 words",
        ),
        (
            "Shape",
            |b| host(b, |i| i.kv_lengths(&[1])),
            "kv_lengths: expected shape [2], got [1]",
        ),
        (
            "Value",
            |b| host(b, |i| i.q_lengths(&[1, 6])),
            "q_lengths: expected counts of at most 5, got 6 at batch entry 1",
        ),
        (
            "Shape",
            |b| host(b, |i| i.segments(&[0; 10], &[0; 13])),
            "kv_segments: expected shape [14], got [13]",
        ),
        (
            "Value",
            |b| host(b, |i| i.offsets(&[0, 0])),
            "offsets: expected none unless alignment is PerSequence, got alignment BottomRight with offsets",
        ),
        (
            "Value",
            |b| host(b, |i| i.sinks(&[f32::NAN; 4])),
            "sinks: expected finite numbers or -inf, got NaN",
        ),
        (
            "Shape",
            |b| host(b, |i| i.alibi_slopes(&[1.0; 3])),
            "alibi_slopes: expected shape [4], got [3]",
        ),
        (
            "Shape",
            |b| host(b, |i| i.bias(Tensor::f32(&[0.0; 3], [3, 1, 1, 1]).unwrap())),
            "bias: expected shape broadcastable to [2, 4, 5, 7] (each axis equal or 1), got [3, 1, 1, 1]",
        ),
    ]);
}

/// The error of host inputs with one change, from the upload.
fn host(b: &Bench, change: fn(Inputs<'static>) -> Inputs<'static>) -> Error {
    static ZEROS: [f32; 320] = [0.0; 320];
    let of = |shape: [usize; 4]| Tensor::f32(&ZEROS[..shape.iter().product()], shape).unwrap();
    let inputs = Inputs::new(of(SMALL.query()), of(SMALL.key()), of(SMALL.value()));
    let chosen = PlanOptions::default();
    let uploaded =
        b.noop
            .attention
            .upload(&change(inputs), &Options::default(), DType::F32, &chosen);
    uploaded.unwrap_err()
}

/// Sizes at which products overflow: whatever comes of them, it is no panic.
#[test]
fn no_size_panics() {
    let bench = Bench::new();
    let mut rng = StdRng::seed_from_u64(5);
    let extremes = [
        0,
        1,
        2,
        3,
        31,
        33,
        1 << 30,
        (1 << 30) + 1,
        1 << 32,
        1 << 62,
        1 << 63,
        usize::MAX - 1,
        usize::MAX,
    ];
    let mut some = |small: bool| {
        let most = if small { 6 } else { extremes.len() };
        extremes[rng.random_range(0..most)]
    };
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..30_000 {
        let small = round % 2 == 0;
        let shape = [some(small), some(small), some(small), some(small)];
        let strides = [some(small), some(small), some(small), some(small)];
        let offset = some(true);
        let far = some(false);
        let b = &bench.big;
        let views = [
            TensorView::strided(b, DType::F32, shape, strides, offset),
            TensorView::strided(b, DType::F16, shape, [0, 0, 0, 1], offset),
            TensorView::bhsd(b, DType::BF16, shape, far),
            TensorView::bshd(b, DType::F32, shape, offset),
        ];
        let [batch, heads, rows, dim] = shape;
        let packed =
            TensorView::packed_qkv(b, DType::F16, batch, rows, (heads, strides[0]), dim, offset);
        let masks = [
            MaskView::bytes(b, shape, offset, Polarity::Keep),
            MaskView::bytes_strided(b, shape, strides, far, Polarity::Keep),
            MaskView::bits(b, shape, offset, Polarity::Drop),
            MaskView::bits_strided(b, shape, [far, 1, far], offset, Polarity::Drop),
        ];
        let stats = StatsView::new(b, Stats::RowState, [batch, heads, rows], far);
        let _ = Dims::new(shape, strides, shape);
        let _ = Tensor::f32(&[], shape);
        let _ = BoolMask::new(MaskData::Bits(&[]), shape, Polarity::Keep);
        let key = TensorView::strided(b, DType::F32, [batch, 1, rows, dim], [0, 0, 0, 1], 0);
        let lists = List::Buffer {
            buffer: b,
            offset: far,
            len: batch,
        };
        for query in views
            .into_iter()
            .chain(packed.into_iter().flatten().map(Ok))
            .flatten()
        {
            let Ok(key) = key else { continue };
            let (good, options) = (&bench.good, Options::default());
            let mut operands = Operands::new(query, key, key, good.plain().output);
            operands.mask = masks[round % 4].as_ref().ok().copied();
            operands.stats = stats.as_ref().ok().copied();
            if round % 3 == 0 {
                operands.kv_lengths = Some(lists);
            }
            let region = Region {
                batches: 0..batch.min(2),
                heads: 0..heads.min(4),
                rows: 0..rows.min(5),
            };
            let [x, y, z] = region.lens();
            let output = TensorView::bhsd(&good.stats, DType::F32, [x, y, z, rows], 0);
            let mut of_stage = operands;
            of_stage.stats = None;
            if let Ok(output) = output {
                of_stage.output = output;
            }
            let problems = [
                Problem::forward(&operands, &options),
                Problem::stage(&of_stage, &options, Stage::Masked, region),
            ];
            for problem in problems {
                match problem {
                    Ok(problem) => {
                        let _ = (problem.flops(), problem.to_string());
                        for kernel in [Kernel::Fused, Kernel::Staged] {
                            let chosen = PlanOptions::default().kernel(kernel);
                            let caps = DeviceCaps::webgpu_default();
                            let _ = Plan::new(&problem, &caps, &chosen).map(|p| p.to_string());
                        }
                        accepted += 1;
                    }
                    Err(error) => {
                        assert!(error.is_input() && !error.to_string().is_empty());
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(accepted > 100 && refused > 1_000, "{accepted} {refused}");
}

#[test]
fn a_device_that_is_gone_is_reported() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let plan = noop
        .attention
        .plan(&buffers.plain(), &Options::default())
        .unwrap();
    noop.device.destroy();
    let error = noop.attention.prepare(&plan).unwrap_err();
    assert!(error.is_device() && !error.is_input(), "{error:?}");
    assert!(error.to_string().contains("lost"), "{error}");
    assert!(matches!(error, Error::DeviceLost { .. }), "{error:?}");
}

#[test]
fn an_adapter_that_is_not_there_is_reported() {
    let options = AdapterOptions::default().name("no adapter has this name");
    let error = Attention::with_adapter(&options).unwrap_err();
    assert!(matches!(error, Error::NoAdapter { .. }), "{error:?}");
    assert!(error.is_device() && !error.is_input() && !error.is_unsupported());
    let text = error.to_string();
    let none = text == "no adapter: none of Vulkan, Metal, DX12 or WebGPU is available";
    let other = text
        .starts_with("no adapter: none matches Some(\"no adapter has this name\"); there are: ");
    assert!(none || other, "{text}");
}

#[test]
fn predicates() {
    let limit = Error::Limit {
        what: "grid".to_owned(),
        needed: 2,
        limit_name: "max",
        limit: 1,
    };
    let message = || "gone".to_owned();
    let groups = [
        (
            [true, false, false],
            vec![
                Error::Unsupported {
                    reasons: vec![limit.clone()],
                },
                limit,
            ],
        ),
        (
            [false, false, true],
            vec![
                Error::NoAdapter { detail: message() },
                Error::Device {
                    action: message(),
                    message: message(),
                },
                Error::DeviceLost { message: message() },
                Error::Readback { message: message() },
            ],
        ),
    ];
    let mut texts = Vec::new();
    for (expected, errors) in groups {
        for error in errors {
            let found = [error.is_unsupported(), error.is_input(), error.is_device()];
            assert_eq!(found, expected, "{error:?}");
            let source: &dyn std::error::Error = &error;
            texts.push(source.to_string());
        }
    }
    let expected = [
        "not supported on this device:\n  - grid: 2 needed, the device's max is 1",
        "grid: 2 needed, the device's max is 1",
        "no adapter: gone",
        "gone: gone",
        "the device was lost: gone",
        "reading a result back: gone",
    ];
    assert_eq!(texts, expected);
}

#[test]
fn public_types_cross_threads() {
    fn assert<T: Send + Sync>() {}
    assert::<Attention>();
    assert::<Prepared>();
    assert::<Plan>();
    assert::<PlanOptions>();
    assert::<Problem>();
    assert::<Region>();
    assert::<DeviceCaps>();
    assert::<Options>();
    assert::<Operands<'static>>();
    assert::<TensorView<'static>>();
    assert::<MaskView<'static>>();
    assert::<StatsView<'static>>();
    assert::<List<'static, f32>>();
    assert::<Workspace<'static>>();
    assert::<Uploaded>();
    assert::<Inputs<'static>>();
    assert::<Outputs>();
    assert::<AdapterOptions>();
    assert::<Error>();
}
