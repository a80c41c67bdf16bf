//! The adapter that the GPU tests share, and a report that collects what went
//! wrong before it fails.
#![allow(dead_code)]

#[path = "guest.rs"]
pub mod guest;
#[path = "memory.rs"]
pub mod memory;

use std::fmt::Display;
use std::sync::OnceLock;

use wgpu_attention::reference::{self, Comparison, Expected, compare};
use wgpu_attention::wgpu::Features;
use wgpu_attention::{Attention, Kernel, PlanOptions};

use crate::common::OwnedCase;
use guest::{Guest, Ran, Setup};

/// Every family of kernels that the adapter can run.
pub fn kernels() -> Vec<Kernel> {
    gpu().caps().kernels().collect()
}

/// The default adapter's device, one for all the tests of a file.
///
/// # Panics
/// Without an adapter: a test that does not run has not passed.
pub fn gpu() -> &'static Attention {
    static SHARED: OnceLock<Attention> = OnceLock::new();
    SHARED.get_or_init(|| {
        let attention = Attention::on_default_adapter().unwrap_or_else(|error| {
            panic!(
                "{error}\nThese tests need an adapter. tests/run.sh installs one where it can; by hand, \
                 on Debian or Ubuntu: apt-get install libvulkan1 mesa-vulkan-drivers"
            )
        });
        println!("adapter: {}", attention.adapter_line());
        attention
    })
}

/// A device with limits of our choice on the same adapter.
pub fn limited(change: impl FnOnce(&mut wgpu::Limits)) -> Attention {
    let adapters = Attention::adapters();
    let adapter = adapters.first().expect("an adapter, as gpu() found one");
    let mut limits = adapter.limits();
    change(&mut limits);
    let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor {
        required_limits: limits,
        required_features: adapter.features() & (Features::SUBGROUP | Features::SHADER_INT64),
        ..Default::default()
    }))
    .expect("a device with lowered limits");
    Attention::new(&device, &queue).unwrap()
}

/// Collects runs, counts what was compared, fails with everything at the end.
#[must_use = "a report that is not finished proves nothing"]
pub struct Report {
    runs: usize,
    compared: usize,
    worst: f64,
    failures: Vec<String>,
}

impl Report {
    pub fn new() -> Self {
        gpu();
        Report {
            runs: 0,
            compared: 0,
            worst: 0.0,
            failures: Vec::new(),
        }
    }

    /// Both kernels against the oracle.
    pub fn case(&mut self, case: &OwnedCase) {
        self.case_with(case, &Setup::default());
    }

    /// Both kernels against the oracle, the operands laid out as `setup` says.
    pub fn case_with(&mut self, case: &OwnedCase, setup: &Setup) {
        self.case_on(gpu(), case, setup);
    }

    /// Both kernels on a device of its own.
    pub fn case_on(&mut self, gpu: &Attention, case: &OwnedCase, setup: &Setup) {
        let expected = oracle(case);
        for kernel in gpu.caps().kernels() {
            let setup = Setup {
                plan: PlanOptions::default().kernel(kernel),
                ..setup.clone()
            };
            let what = format!("{kernel:?}: {} {setup:?}", case.name);
            match Guest::run(gpu, case, &setup) {
                Ok(ran) => self.judge(&what, &expected, &ran),
                Err(error) => self.failures.push(format!("{what}: {error}")),
            }
        }
    }

    /// A run's output and log-sum-exp against the oracle's.
    pub fn judge(&mut self, what: &str, expected: &Expected, ran: &Ran) {
        self.runs += 1;
        let output = compare(&ran.output, &expected.output, &expected.output_bound);
        self.record(what, "output", expected.output.len(), output);
        let lse = compare(&ran.stats, &expected.lse, &expected.lse_bound);
        self.record(what, "lse", expected.lse.len(), lse);
    }

    /// A comparison of exactly `count` elements.
    pub fn record(
        &mut self,
        what: &str,
        name: &str,
        count: usize,
        comparison: wgpu_attention::Result<Comparison>,
    ) {
        let found = match comparison {
            Ok(found) => found,
            Err(error) => return self.failures.push(format!("{what}: {name}: {error}")),
        };
        self.compared += found.compared;
        self.worst = self.worst.max(found.worst.map_or(0.0, |worst| worst.ratio));
        if found.compared != count || found.failed > 0 {
            self.failures
                .push(format!("{what}: {name}: of {count} {found}"));
        }
    }

    /// Two runs have to agree bit for bit.
    pub fn same_bits(&mut self, what: &str, left: &Ran, right: &Ran) {
        self.runs += 1;
        self.compared += left.output.len() + left.stats.len();
        let differ = |a: &[f32], b: &[f32]| {
            let pairs = a.iter().zip(b);
            let first = pairs
                .clone()
                .position(|(a, b)| a.to_bits() != b.to_bits())?;
            Some(format!("at {first}: {:e} and {:e}", a[first], b[first]))
        };
        for (name, a, b) in [
            ("output", &left.output, &right.output),
            ("stats", &left.stats, &right.stats),
        ] {
            if a.len() != b.len() {
                let text = format!("{what}: {name}: {} and {} elements", a.len(), b.len());
                self.failures.push(text);
            }
            if let Some(at) = differ(a, b) {
                self.failures
                    .push(format!("{what}: {name} differs in bits {at}"));
            }
        }
    }

    /// Notes a failure unless `holds`.
    pub fn expect(&mut self, holds: bool, what: impl Display) {
        self.runs += 1;
        if !holds {
            self.failures.push(what.to_string());
        }
    }

    /// Notes an error as a failure.
    pub fn expect_ok<T, E: Display>(&mut self, what: &str, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.failures.push(format!("{what}: {error}"));
                None
            }
        }
    }

    /// Fails if anything failed or fewer than `least` elements were compared.
    pub fn finish(self, least: usize) {
        println!(
            "{} runs, {} elements compared, largest error {:.3} of its bound",
            self.runs, self.compared, self.worst
        );
        let count = self.failures.len();
        assert!(
            count == 0,
            "{count} failed:\n{}",
            self.failures[..count.min(20)].join("\n")
        );
        assert!(self.compared >= least, "only {} compared", self.compared);
    }
}

/// What the oracle expects of a case.
pub fn oracle(case: &OwnedCase) -> Expected {
    reference::forward(&case.inputs(), &case.options, case.out).unwrap()
}
