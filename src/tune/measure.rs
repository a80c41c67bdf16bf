//! The tuner: measures a device's candidates on the problem at hand.

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::host::inputs::{Inputs, Outputs};
use crate::plan::kernel::Kernel;
use crate::plan::plan::PlanOptions;
use crate::plan::problem::Problem;
use crate::plan::tuned::ProblemClass;
use crate::record::attention::Attention;
use crate::reference::{self, Expected};
use crate::rules::options::Options;
use crate::slices::readback::poll_once;
use crate::slices::upload::Uploaded;
use crate::tune::data::Generated;
use crate::view::dtype::DType;

/// Rows of the output that are compared with float64 before a kernel counts.
const CHECKED_ROWS: usize = 48;

/// Rounds of timing, if the time allows.
const ROUNDS: usize = 20;

/// A kernel this many times slower than the best is not timed again.
const HOPELESS: u32 = 2;

/// How to tune.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct TuneOptions<'a> {
    /// Time after which nothing more is begun, compilation included; what has
    /// begun is finished. 20 s unless set.
    pub budget: Duration,
    /// Told of every step before it begins.
    pub progress: Option<&'a dyn Fn(&TuneStep)>,
    #[doc(hidden)]
    pub tamper: Option<fn(Kernel, &mut Outputs)>,
}

impl Default for TuneOptions<'_> {
    fn default() -> Self {
        TuneOptions {
            budget: Duration::from_secs(20),
            progress: None,
            tamper: None,
        }
    }
}

impl<'a> TuneOptions<'a> {
    /// Sets [`TuneOptions::budget`].
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// Sets [`TuneOptions::progress`].
    pub fn progress(mut self, progress: &'a dyn Fn(&TuneStep)) -> Self {
        self.progress = Some(progress);
        self
    }
}

/// What the tuner does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TuneStep {
    /// With this kernel.
    pub kernel: Kernel,
    /// 0: its pipelines are compiled and its results checked; from 1 on: it is
    /// timed, for the n-th time.
    pub round: usize,
    /// Since tuning began.
    pub elapsed: Duration,
}

/// What became of a candidate.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Its results lie within the oracle's bounds.
    Right,
    /// They don't: it is not chosen, however fast it is.
    Wrong(String),
    /// It could not run.
    Failed(Error),
    /// The time was up before its turn.
    OutOfTime,
}

/// One candidate.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Trial {
    /// The kernel family.
    pub kernel: Kernel,
    /// What became of it.
    pub outcome: Outcome,
    /// Time to make its pipelines and dispatch each once, idle; nothing is
    /// reused from earlier. Copying the operands is in it.
    pub compile: Duration,
    /// Times of its runs, on the GPU's clock where it has one.
    pub times: Vec<Duration>,
}

impl Trial {
    /// The best time, if there is any.
    pub fn best(&self) -> Option<Duration> {
        self.times.iter().min().copied()
    }
}

/// What tuning found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TuneReport {
    /// The adapter.
    pub adapter: wgpu::AdapterInfo,
    /// The problems that the result speaks for.
    pub problem: ProblemClass,
    /// The candidates, in the order of the device class.
    pub trials: Vec<Trial>,
    /// The fastest of those that are right. `None` if none is, or if the time
    /// was up before there were two to compare and others were left.
    pub chosen: Option<Kernel>,
    /// Time that it all took.
    pub elapsed: Duration,
}

impl TuneReport {
    /// The kernels whose results are right, with their best times.
    pub fn right(&self) -> impl Iterator<Item = (Kernel, Duration)> + '_ {
        let right = self.trials.iter().filter(|t| t.outcome == Outcome::Right);
        right.filter_map(|trial| Some((trial.kernel, trial.best()?)))
    }
}

impl Attention {
    /// Measures this device's candidates on a forward pass of a problem, on
    /// generated data laid out one tensor after the other: shapes, storage
    /// types, options, bias and mask shapes are the problem's, and so are the
    /// host's lists; lists from buffers count as full lengths and one segment.
    ///
    /// Blocks, submits and waits. Give the report to
    /// [`Tuning::record`](crate::Tuning::record) to use it.
    ///
    /// # Errors
    /// [`Error::Value`] for the problem of a stage; as [`Attention::tune_on`].
    pub fn tune(&self, problem: &Problem, options: &TuneOptions<'_>) -> Result<TuneReport> {
        if !problem.task.facts.is_forward {
            let expected = "a forward pass";
            return Err(Error::value("problem", expected, "another problem"));
        }
        let data = Generated::new(problem)?;
        let output = problem.task.output_dtype;
        self.tune_on(&data.inputs()?, &problem.task.options, output, options)
    }

    /// The same on inputs of the caller's.
    ///
    /// # Errors
    /// As [`Inputs::validate`]; [`Error::Unsupported`] if no candidate can be
    /// planned. That one fails or is wrong is no error: the report says so.
    /// [`Error::DeviceLost`] if the device is lost meanwhile.
    pub fn tune_on(
        &self,
        inputs: &Inputs<'_>,
        options: &Options,
        output: DType,
        tune: &TuneOptions<'_>,
    ) -> Result<TuneReport> {
        let started = Instant::now();
        let dims = inputs.validate(options)?;
        let count = dims.rows();
        let mut rows: Vec<_> = (0..CHECKED_ROWS)
            .map(|n| n * count / CHECKED_ROWS)
            .collect();
        rows.push(count.saturating_sub(1));
        rows.retain(|&row| row < count);
        rows.dedup();
        let expected = reference::forward_rows(inputs, options, output, &rows)?;
        let bench = Bench {
            attention: self.without_pipelines()?,
            inputs,
            options,
            output,
            tune,
            rows,
            expected,
            v_dim: dims.v_dim,
            started,
        };
        bench.run()
    }
}

/// What all candidates have in common.
struct Bench<'a> {
    attention: Attention,
    inputs: &'a Inputs<'a>,
    options: &'a Options,
    output: DType,
    tune: &'a TuneOptions<'a>,
    rows: Vec<usize>,
    expected: Expected,
    v_dim: usize,
    started: Instant,
}

impl Bench<'_> {
    fn run(&self) -> Result<TuneReport> {
        let caps = self.attention.caps();
        let able: Vec<_> = caps.kernels().collect();
        let rows = caps.class.candidates().iter().map(|row| row.kernel);
        let candidates = rows.filter(|kernel| able.contains(kernel));
        let mut problem = None;
        let mut entered: Vec<(Trial, Option<Uploaded>)> = Vec::new();
        for kernel in candidates {
            let mut trial = Trial {
                kernel,
                outcome: Outcome::OutOfTime,
                compile: Duration::ZERO,
                times: Vec::new(),
            };
            // The first is measured in any case.
            let is_first = entered.is_empty();
            let uploaded = match is_first || self.left() > Duration::ZERO {
                true => self.enter(&mut trial)?,
                false => None,
            };
            if let Some(uploaded) = &uploaded {
                problem.get_or_insert_with(|| ProblemClass::of(uploaded.plan().problem()));
            }
            entered.push((trial, uploaded));
        }
        let Some(problem) = problem else {
            let failures = entered
                .into_iter()
                .filter_map(|(trial, _)| match trial.outcome {
                    Outcome::Failed(error) => Some(error),
                    _ => None,
                });
            let reasons = failures.collect();
            return Err(Error::Unsupported { reasons });
        };
        self.time(&mut entered)?;
        let trials: Vec<_> = entered.into_iter().map(|(trial, _)| trial).collect();
        let mut report = TuneReport {
            adapter: self.attention.adapter_info(),
            problem,
            trials,
            chosen: None,
            elapsed: self.started.elapsed(),
        };
        let is_left_out = |trial: &Trial| trial.outcome == Outcome::OutOfTime;
        if report.right().count() >= 2 || !report.trials.iter().any(is_left_out) {
            let best = report.right().min_by_key(|&(_, time)| time);
            report.chosen = best.map(|(kernel, _)| kernel);
        }
        Ok(report)
    }

    /// Compiles and checks a candidate; it is kept if it is right.
    fn enter(&self, trial: &mut Trial) -> Result<Option<Uploaded>> {
        self.tell(trial.kernel, 0);
        match self.first_run(trial) {
            Ok((uploaded, found)) => {
                trial.outcome = found.map_or(Outcome::Right, Outcome::Wrong);
                Ok(Some(uploaded))
            }
            Err(error) => {
                trial.outcome = failed(error)?;
                Ok(None)
            }
        }
    }

    /// The candidate with its operands, and what is wrong with its results.
    fn first_run(&self, trial: &mut Trial) -> Result<(Uploaded, Option<String>)> {
        let start = Instant::now();
        let plan = PlanOptions::default().kernel(trial.kernel);
        let uploaded = self
            .attention
            .upload(self.inputs, self.options, self.output, &plan)?;
        uploaded.prepared().warm_up()?;
        poll_once(self.attention.device())?;
        trial.compile = start.elapsed();
        trial.times.push(uploaded.run()?);
        let mut outputs = uploaded.read()?;
        if let Some(tamper) = self.tune.tamper {
            tamper(trial.kernel, &mut outputs);
        }
        let found = self.judge(&outputs)?;
        Ok((uploaded, found))
    }

    /// What is wrong with the checked rows, if anything.
    fn judge(&self, outputs: &Outputs) -> Result<Option<String>> {
        let rows = self.rows.iter();
        let output: Vec<f32> = rows
            .clone()
            .flat_map(|&row| &outputs.output[row * self.v_dim..][..self.v_dim])
            .copied()
            .collect();
        let lse: Vec<f32> = rows.map(|&row| outputs.lse[row]).collect();
        let expected = &self.expected;
        for (name, values, wanted, bound) in [
            ("output", &output, &expected.output, &expected.output_bound),
            ("lse", &lse, &expected.lse, &expected.lse_bound),
        ] {
            let found = reference::compare(values, wanted, bound)?;
            if !found.passed() {
                return Ok(Some(format!("{name}: {found}")));
            }
        }
        Ok(None)
    }

    /// Times what is right, round after round, so that a disturbance falls on
    /// all alike.
    fn time(&self, entered: &mut [(Trial, Option<Uploaded>)]) -> Result<()> {
        let best = |entered: &[(Trial, Option<Uploaded>)]| {
            let right = entered.iter().filter(|(t, _)| t.outcome == Outcome::Right);
            right.filter_map(|(trial, _)| trial.best()).min()
        };
        for round in 1..=ROUNDS {
            let Some(fastest) = best(entered) else { break };
            for (trial, uploaded) in entered.iter_mut() {
                let (Outcome::Right, Some(uploaded)) = (&trial.outcome, uploaded) else {
                    continue;
                };
                let Some(own) = trial.best() else { continue };
                if own > fastest * HOPELESS || own > self.left() {
                    continue;
                }
                self.tell(trial.kernel, round);
                match uploaded.run() {
                    Ok(time) => trial.times.push(time),
                    Err(error) => trial.outcome = failed(error)?,
                }
            }
        }
        Ok(())
    }

    fn left(&self) -> Duration {
        self.tune.budget.saturating_sub(self.started.elapsed())
    }

    fn tell(&self, kernel: Kernel, round: usize) {
        if let Some(progress) = self.tune.progress {
            progress(&TuneStep {
                kernel,
                round,
                elapsed: self.started.elapsed(),
            });
        }
    }
}

/// What an error makes of a trial. A lost device ends them all.
fn failed(error: Error) -> Result<Outcome> {
    match error {
        Error::DeviceLost { .. } => Err(error),
        _ => Ok(Outcome::Failed(error)),
    }
}

impl fmt::Display for TuneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.problem)?;
        for trial in &self.trials {
            write!(f, "  {:<15} ", trial.kernel.name())?;
            let compile = trial.compile.as_secs_f64();
            match (&trial.outcome, trial.best()) {
                (Outcome::Right, Some(best)) => writeln!(
                    f,
                    "{:.3} ms, best of {}; {compile:.2} s to compile",
                    best.as_secs_f64() * 1e3,
                    trial.times.len()
                )?,
                (Outcome::Wrong(what), _) => writeln!(f, "WRONG RESULTS, not considered: {what}")?,
                (Outcome::Failed(error), _) => writeln!(f, "failed: {error}")?,
                _ => writeln!(f, "not measured, the time was up")?,
            }
        }
        match self.chosen {
            Some(kernel) => write!(f, "  chosen: {kernel}"),
            None => write!(f, "  nothing chosen"),
        }?;
        write!(f, " ({:.1} s)", self.elapsed.as_secs_f64())
    }
}
