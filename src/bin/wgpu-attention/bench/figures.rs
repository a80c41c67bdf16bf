//! What was measured: kept, merged over processes, printed.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::case::Case;
use super::ceilings::Ceilings;
use super::clock::LEAST_PROCESSOR_TIME;

/// One case, in one process or over several.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    pub case: Case,
    pub adapter: String,
    /// The adapter is a program on the processor.
    pub software: bool,
    pub processor: String,
    pub clock: String,
    /// Unless only first dispatches were measured.
    pub ceilings: Option<Ceilings>,
    /// Operations counted.
    pub flops: f64,
    /// Bytes of the operands.
    pub bytes: f64,
    pub rows: Vec<Row>,
}

/// A contender of a case.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    /// It is what the planner chose.
    pub chosen: bool,
    /// It looks at the pairs of the case; rates don't count its operations.
    pub inspection: bool,
    pub outcome: Outcome,
}

/// Figures, or why there are none.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Outcome {
    Measured(Figures),
    Unsupported(String),
    /// The result was wrong, so its time says nothing.
    Wrong(String),
}

/// Times in seconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figures {
    /// Of the fastest run, if there was one besides the first.
    pub best: Option<f64>,
    pub median: Option<f64>,
    /// Of the processor, all threads, for one run on average.
    pub processor: Option<f64>,
    /// From nothing to the first result: pipelines made and run once.
    pub first: f64,
    /// The part of it before the submission.
    pub prepare: f64,
    /// The processor's time for it, all threads.
    pub first_processor: Option<f64>,
    /// Pipelines that were made for it.
    pub pipelines: usize,
    /// Bytes beside the operands.
    pub workspace: u64,
    pub plan: String,
}

impl Figures {
    pub fn of(runs: &[Duration], processor: Option<Duration>, first: Duration) -> Figures {
        let mut sorted: Vec<f64> = runs.iter().map(Duration::as_secs_f64).collect();
        sorted.sort_by(f64::total_cmp);
        let processor = processor.filter(|&time| time >= LEAST_PROCESSOR_TIME);
        Figures {
            best: sorted.first().copied(),
            median: sorted.get(sorted.len() / 2).copied(),
            processor: processor.map(|time| time.as_secs_f64() / runs.len() as f64),
            first: first.as_secs_f64(),
            prepare: 0.0,
            first_processor: None,
            pipelines: 0,
            workspace: 0,
            plan: String::new(),
        }
    }

    /// The better of each figure.
    fn merge(&mut self, other: &Figures) {
        let least = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.best = least(self.best, other.best);
        self.median = least(self.median, other.median);
        self.processor = least(self.processor, other.processor);
        self.first = self.first.min(other.first);
        self.prepare = self.prepare.min(other.prepare);
        self.first_processor = least(self.first_processor, other.first_processor);
    }
}

impl Measured {
    /// Takes the better of each figure; a fault of either process remains.
    pub fn merge(&mut self, other: &Measured) {
        self.ceilings = match (self.ceilings, other.ceilings) {
            (Some(a), Some(b)) => Some(a.best(b)),
            (a, b) => a.or(b),
        };
        for (mine, others) in self.rows.iter_mut().zip(&other.rows) {
            match (&mut mine.outcome, &others.outcome) {
                (Outcome::Measured(a), Outcome::Measured(b)) => a.merge(b),
                (Outcome::Wrong(_), _) | (_, Outcome::Measured(_)) => {}
                (mine, fault) => *mine = fault.clone(),
            }
        }
    }

    /// Whether any result was wrong.
    pub fn is_wrong(&self) -> bool {
        let wrong = |row: &Row| matches!(row.outcome, Outcome::Wrong(_));
        self.rows.iter().any(wrong)
    }

    /// The first contender: the planner's choice unless another was asked for.
    fn main(&self) -> Option<&Figures> {
        self.rows.first()?.figures()
    }

    /// Operations a second of the first contender.
    pub fn rate(&self) -> Option<f64> {
        Some(self.flops / self.main()?.best?)
    }

    fn plain(&self) -> Option<&Figures> {
        let plain = self.rows.iter().find(|row| row.name.starts_with("plain"))?;
        plain.figures()
    }

    /// How many times the plain attention's rate the first contender reaches.
    pub fn over_plain(&self) -> Option<f64> {
        Some(self.plain()?.best? / self.main()?.best?)
    }

    /// The same of processor time: for software adapters on a busy machine.
    pub fn over_plain_by_processor(&self) -> Option<f64> {
        Some(self.plain()?.processor? / self.main()?.processor?)
    }

    /// Share of the registers-only rate, both of processor time.
    fn share_by_processor(&self, figures: &Figures) -> Option<f64> {
        Some(self.flops / figures.processor? / self.ceilings?.flops_by_processor?)
    }

    /// For people.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            String::new(),
            format!("{}: {}", self.case.name, self.case.describe()),
        ];
        if let Some(ceilings) = &self.ceilings {
            lines.push(format!(
                "  adapter's ceilings: {:.1} GFLOP/s in registers, {:.2} GB/s copied (read and written)",
                ceilings.flops / 1e9,
                ceilings.copy / 1e9,
            ));
        }
        lines.push(cells(
            "",
            [
                "best ms", "median", "GFLOP/s", "of peak", "GB/s", "of copy", "CPU ms", "first ms",
            ],
        ));
        for row in &self.rows {
            lines.push(match &row.outcome {
                Outcome::Unsupported(reason) => format!("  {:<17} not run: {reason}", row.name),
                Outcome::Wrong(fault) => format!("  {:<17} WRONG RESULT {fault}", row.name),
                Outcome::Measured(figures) => self.line(row, figures),
            });
        }
        if let Some(share) = self.main().and_then(|f| self.share_by_processor(f)) {
            let share = share * 100.0;
            lines.push(format!("  by processor time {share:.1}% of peak"));
        }
        if let Some(ratio) = self.over_plain() {
            let by_processor = self.over_plain_by_processor();
            let note = by_processor.map(|ratio| format!(", {ratio:.1} times by processor time"));
            let note = note.unwrap_or_default();
            lines.push(format!(
                "  {ratio:.1} times the plain attention's rate{note}"
            ));
        }
        for (name, ratio, by_processor) in self.inspections() {
            let note = by_processor.map(|ratio| format!(", {ratio:.2} by processor time"));
            let note = note.unwrap_or_default();
            lines.push(format!(
                "  {name}: {ratio:.2} times the forward pass of the same rows{note}"
            ));
        }
        if let Some(figures) = self.main() {
            lines.extend(figures.plan.lines().map(|line| format!("  plan  {line}")));
        }
        lines
    }

    /// Each inspection's time as a multiple of the first contender's, and the same of
    /// processor time.
    fn inspections(&self) -> Vec<(&str, f64, Option<f64>)> {
        let Some(main) = self.main() else {
            return Vec::new();
        };
        let rows = self.rows.iter().filter(|row| row.inspection);
        rows.filter_map(|row| {
            let figures = row.figures()?;
            let by_processor = figures.processor.zip(main.processor);
            let by_processor = by_processor.map(|(this, main)| this / main);
            Some((row.name.as_str(), figures.best? / main.best?, by_processor))
        })
        .collect()
    }

    fn line(&self, row: &Row, figures: &Figures) -> String {
        let told = |x: Option<f64>, decimals: usize, unit: &str| match x {
            Some(x) => format!("{x:.decimals$}{unit}"),
            None => "-".to_owned(),
        };
        let of = |ceiling: fn(&Ceilings) -> f64, rate: Option<f64>| {
            Some(rate? / ceiling(self.ceilings.as_ref()?) * 100.0)
        };
        // Its operations are not counted.
        let time = figures.best.filter(|_| !row.inspection);
        let rate = time.map(|time| self.flops / time);
        let moved = time.map(|time| self.bytes / time);
        let figures = [
            told(figures.best.map(|time| time * 1e3), 3, ""),
            told(figures.median.map(|time| time * 1e3), 3, ""),
            told(rate.map(|rate| rate / 1e9), 2, ""),
            told(of(|c| c.flops, rate), 1, "%"),
            told(moved.map(|rate| rate / 1e9), 2, ""),
            told(of(|c| c.copy, moved), 1, "%"),
            told(figures.processor.map(|time| time * 1e3), 1, ""),
            told(Some(figures.first * 1e3), 0, ""),
        ];
        cells(&row.name, figures.each_ref().map(String::as_str))
    }

    /// For machines.
    pub fn json(&self) -> Value {
        let share = |counted: f64, figures: &Figures, ceiling: fn(&Ceilings) -> f64| {
            Some(counted / figures.best? / ceiling(self.ceilings.as_ref()?))
        };
        let rows = self.rows.iter().map(|row| match &row.outcome {
            Outcome::Unsupported(reason) => {
                json!({"kernel": row.name, "chosen": row.chosen, "unsupported": reason})
            }
            Outcome::Wrong(fault) => {
                json!({"kernel": row.name, "chosen": row.chosen, "wrong": fault})
            }
            Outcome::Measured(f) if row.inspection => json!({
                "inspection": row.name,
                "best_ms": f.best.map(|time| time * 1e3),
                "median_ms": f.median.map(|time| time * 1e3),
                "processor_ms": f.processor.map(|time| time * 1e3),
                "over_forward": self.main().and_then(|main| Some(f.best? / main.best?)),
                "over_forward_by_processor": self
                    .main()
                    .and_then(|main| Some(f.processor? / main.processor?)),
                "first_dispatch_ms": f.first * 1e3,
                "pipelines": f.pipelines,
                "workspace_bytes": f.workspace,
            }),
            Outcome::Measured(f) => json!({
                "kernel": row.name,
                "chosen": row.chosen,
                "best_ms": f.best.map(|time| time * 1e3),
                "median_ms": f.median.map(|time| time * 1e3),
                "processor_ms": f.processor.map(|time| time * 1e3),
                "gflops": f.best.map(|time| self.flops / time / 1e9),
                "share_of_multiply_add": share(self.flops, f, |c| c.flops),
                "share_of_multiply_add_by_processor": self.share_by_processor(f),
                "gbytes_per_second": f.best.map(|time| self.bytes / time / 1e9),
                "share_of_copy": share(self.bytes, f, |c| c.copy),
                "first_dispatch_ms": f.first * 1e3,
                "prepare_ms": f.prepare * 1e3,
                "first_dispatch_processor_ms": f.first_processor.map(|time| time * 1e3),
                "pipelines": f.pipelines,
                "workspace_bytes": f.workspace,
                "plan": f.plan,
            }),
        });
        json!({
            "case": self.case,
            "flop": self.flops,
            "operand_bytes": self.bytes,
            "multiply_add_gflops": self.ceilings.map(|c| c.flops / 1e9),
            "multiply_add_gflops_by_processor":
                self.ceilings.and_then(|c| Some(c.flops_by_processor? / 1e9)),
            "copy_gbytes_per_second": self.ceilings.map(|c| c.copy / 1e9),
            "over_plain": self.over_plain(),
            "over_plain_by_processor": self.over_plain_by_processor(),
            "kernels": rows.collect::<Vec<_>>(),
        })
    }
}

/// A line of the table.
fn cells(
    name: &str,
    [best, median, rate, peak, moved, copy, processor, first]: [&str; 8],
) -> String {
    format!(
        "  {name:<17}{best:>10}{median:>10}{rate:>10}{peak:>9}{moved:>8}{copy:>8}{processor:>9}{first:>10}"
    )
}

impl Row {
    pub fn figures(&self) -> Option<&Figures> {
        match &self.outcome {
            Outcome::Measured(figures) => Some(figures),
            _ => None,
        }
    }
}

/// Rates of one case as a share of another's, where both were measured: what
/// an option or a length costs.
pub fn ratios(all: &[Measured]) -> Vec<(String, f64)> {
    let rate = |name: &str| {
        let found = all.iter().find(|measured| measured.case.name == name)?;
        found.rate()
    };
    let pairs = [
        ("f16-kv", "prefill-64"),
        ("causal", "prefill-64"),
        ("window-256", "dense-4096"),
        ("long", "long-2048"),
    ];
    let both = pairs.into_iter().filter_map(|(name, base)| {
        let share = rate(name)? / rate(base)?;
        Some((format!("rate of {name} over that of {base}"), share))
    });
    both.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(outcome: Outcome) -> Measured {
        Measured {
            case: Case::named("causal").unwrap(),
            adapter: String::new(),
            software: true,
            processor: String::new(),
            clock: String::new(),
            ceilings: Some(Ceilings {
                flops: 8e9,
                flops_by_processor: None,
                copy: 1e9,
            }),
            flops: 2e9,
            bytes: 1e6,
            rows: vec![Row {
                name: "tiled".to_owned(),
                chosen: true,
                inspection: false,
                outcome,
            }],
        }
    }

    fn taking(milliseconds: &[u64]) -> Outcome {
        let runs: Vec<_> = milliseconds
            .iter()
            .map(|&n| Duration::from_millis(n))
            .collect();
        Outcome::Measured(Figures::of(&runs, None, Duration::from_millis(9)))
    }

    #[test]
    fn the_best_of_each_figure_is_kept() {
        let mut all = measured(taking(&[5, 2, 4]));
        all.merge(&measured(taking(&[3, 3, 3])));
        let figures = all.rows[0].figures().unwrap();
        assert_eq!((figures.best, figures.median), (Some(0.002), Some(0.003)));
        assert_eq!(all.rate(), Some(1e12));
    }

    #[test]
    fn a_wrong_result_of_one_process_stays() {
        let wrong = || Outcome::Wrong("off".to_owned());
        for (first, second) in [(taking(&[1]), wrong()), (wrong(), taking(&[1]))] {
            let mut all = measured(first);
            all.merge(&measured(second));
            assert!(all.is_wrong());
            assert_eq!(all.rate(), None);
            assert!(all.lines().iter().any(|line| line.contains("WRONG RESULT")));
        }
    }
}
