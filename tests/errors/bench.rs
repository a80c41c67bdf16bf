//! Good operands to spoil, and the table's judge.

use crate::noop::{Buffers, Lists, Noop, SMALL};
use wgpu_attention::*;

/// Operands that are right, and a large buffer to make wrong ones in.
pub struct Bench {
    pub noop: Noop,
    pub good: Buffers,
    pub lists: Lists,
    pub big: wgpu::Buffer,
    pub unusable: wgpu::Buffer,
}

impl Bench {
    pub fn new() -> Self {
        let noop = Noop::new();
        Bench {
            good: Buffers::new(&noop, SMALL, DType::F32),
            lists: Lists::new(SMALL),
            big: noop.buffer(1 << 16),
            unusable: noop.buffer_with(1 << 16, wgpu::BufferUsages::COPY_DST),
            noop,
        }
    }

    pub fn view(&self, shape: [usize; 4]) -> TensorView<'_> {
        TensorView::bhsd(&self.big, DType::F32, shape, 0).unwrap()
    }

    pub fn strided(&self, shape: [usize; 4], strides: [usize; 4]) -> TensorView<'_> {
        TensorView::strided(&self.big, DType::F32, shape, strides, 0).unwrap()
    }

    pub fn forward(&self, operands: Operands<'_>) -> Error {
        Problem::forward(&operands, &Options::default()).unwrap_err()
    }

    /// The error of the good operands with one change.
    pub fn with<'a>(&'a self, change: impl FnOnce(&mut Operands<'a>)) -> Error {
        let mut operands = self.good.plain();
        change(&mut operands);
        self.forward(operands)
    }

    pub fn options(&self, options: Options) -> Error {
        Problem::forward(&self.good.plain(), &options).unwrap_err()
    }

    pub fn stage(&self, region: [[usize; 2]; 3], output: TensorView<'_>) -> Error {
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
    pub fn replay(&self, before: Operands<'_>, after: Operands<'_>) -> Error {
        let plan = self
            .noop
            .attention
            .plan(&before, &Options::default())
            .unwrap();
        self.noop.record(&plan, &before, None).unwrap();
        self.noop.record(&plan, &after, None).unwrap_err()
    }

    /// Records a plan that needs 1,120 bytes of workspace.
    pub fn workspace(&self, operands: Operands<'_>, buffer: &wgpu::Buffer, offset: u64) -> Error {
        let problem = Problem::forward(&operands, &Options::default()).unwrap();
        let chosen = PlanOptions::default().kernel(Kernel::Staged);
        let plan = Plan::new(&problem, self.noop.attention.caps(), &chosen).unwrap();
        assert_eq!(plan.workspace_bytes(), 1120);
        let workspace = Some(Workspace { buffer, offset });
        self.noop.record(&plan, &operands, workspace).unwrap_err()
    }

    pub fn on_device<T>(&self, offset: usize, len: usize) -> List<'_, T> {
        List::Buffer {
            buffer: &self.big,
            offset,
            len,
        }
    }
}

pub type Row = (&'static str, fn(&Bench) -> Error, &'static str);

/// Runs a table: variant, how to provoke it, text.
pub fn judge(table: &[Row]) {
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
