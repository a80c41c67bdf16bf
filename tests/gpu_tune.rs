//! The tuner on the adapter, and its file: what is kept, used, and not believed.
#![cfg(feature = "tune")]

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use std::cell::RefCell;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use common::{Feature, OwnedCase, Shape, generate};
use gpu::guest::{Guest, Setup};
use gpu::{gpu, kernels};
use wgpu_attention::{
    Attention, DType, Error, Kernel, Outcome, Outputs, Plan, PlanOptions, Problem, ProblemClass,
    Region, Stage, TuneOptions, TuneReport, TuneStep, Tuning,
};

fn case() -> OwnedCase {
    generate(1, Shape::f32([1, 2, 70, 16], 1, 90, 16), &[Feature::Causal])
}

fn problem(case: &OwnedCase, setup: &Setup) -> Problem {
    let guest = Guest::new(gpu(), case, setup).unwrap();
    guest.prepared.plan().problem().clone()
}

/// The problem of most tests.
fn usual() -> &'static Problem {
    static SHARED: OnceLock<Problem> = OnceLock::new();
    SHARED.get_or_init(|| problem(&case(), &Setup::default()))
}

fn tune(options: &TuneOptions<'_>) -> TuneReport {
    gpu().tune(usual(), options).unwrap()
}

/// One report for all tests that need any.
fn report() -> &'static TuneReport {
    static SHARED: OnceLock<TuneReport> = OnceLock::new();
    // Far more than it takes: a loaded machine compiles for half a minute.
    SHARED.get_or_init(|| tune(&TuneOptions::default().budget(Duration::from_secs(120))))
}

fn planned(attention: &Attention) -> Plan {
    Plan::new(usual(), attention.caps(), &PlanOptions::default()).unwrap()
}

/// A value that is off in the last row, which any check of some rows looks at.
fn spoil(outputs: &mut Outputs) {
    *outputs.output.last_mut().unwrap() += 0.01;
}

#[test]
fn the_fastest_right_kernel_is_chosen_and_used() {
    let report = report();
    println!("{report}");
    let able = kernels();
    let rows = gpu().caps().class.candidates().iter();
    let candidates = rows.filter(|row| able.contains(&row.kernel)).count();
    assert!(candidates >= 2);
    assert_eq!(report.trials.len(), candidates);
    for trial in &report.trials {
        assert_eq!(trial.outcome, Outcome::Right);
        assert!(!trial.times.is_empty() && trial.compile > Duration::ZERO);
    }
    let best = report
        .trials
        .iter()
        .min_by_key(|t| t.best())
        .unwrap()
        .kernel;
    assert_eq!(report.chosen, Some(best));

    let mut tuning = Tuning::default();
    tuning.record(report);
    let (tuned, warning) = gpu().with_tuning(&tuning);
    assert_eq!(warning, None);
    let plan = planned(&tuned);
    assert_eq!(plan.kernel(), best);
    assert!(plan.why().starts_with("measured on this device"), "{plan}");
    // Other problems, and whoever does not ask for it, keep to the table.
    let long = generate(
        1,
        Shape::f32([1, 2, 70, 16], 1, 300, 16),
        &[Feature::Causal],
    );
    let long = problem(&long, &Setup::default());
    let long = Plan::new(&long, tuned.caps(), &PlanOptions::default()).unwrap();
    for plan in [long, planned(gpu())] {
        assert!(!plan.why().contains("measured on this device"), "{plan}");
    }
}

/// A wrong kernel is not chosen even if it is the fastest, and if all are wrong
/// none is.
#[test]
fn a_wrong_kernel_is_never_chosen() {
    let mut options = TuneOptions::default();
    // Every kernel but one that hardly ever is the fastest.
    options.tamper = Some(|kernel, outputs| {
        if kernel != Kernel::Staged {
            spoil(outputs);
        }
    });
    let report = tune(&options);
    println!("{report}");
    for trial in &report.trials {
        let is_wrong = matches!(trial.outcome, Outcome::Wrong(_));
        assert_eq!(is_wrong, trial.kernel != Kernel::Staged, "{report}");
        // What is wrong is not timed any further.
        assert!(!is_wrong || trial.times.len() == 1);
    }
    assert_eq!(report.chosen, Some(Kernel::Staged));
    let mut tuning = Tuning::default();
    tuning.record(&report);
    let (tuned, _) = gpu().with_tuning(&tuning);
    assert_eq!(planned(&tuned).kernel(), Kernel::Staged);

    for tamper in [
        (|_, outputs| spoil(outputs)) as fn(Kernel, &mut Outputs),
        |_, outputs| outputs.output.fill(f32::NAN),
        |_, outputs| outputs.lse[0] += 0.1,
    ] {
        options.tamper = Some(tamper);
        let report = tune(&options);
        assert_eq!(report.chosen, None, "{report}");
        tuning.record(&report);
        assert_eq!(tuning.len(), 1);
    }
}

/// Nothing is begun once the time is up, save the first candidate.
#[test]
fn the_time_box_holds() {
    let steps = RefCell::new(Vec::new());
    let note = |step: &TuneStep| steps.borrow_mut().push(*step);
    let none = tune(
        &TuneOptions::default()
            .budget(Duration::ZERO)
            .progress(&note),
    );
    println!("{none}");
    assert_eq!(steps.take().len(), 1);
    assert_eq!(none.trials[0].outcome, Outcome::Right);
    for trial in &none.trials[1..] {
        assert_eq!(trial.outcome, Outcome::OutOfTime);
    }
    // One measured, others not: no comparison, no choice.
    assert_eq!(none.chosen, None);

    for milliseconds in [50, 400, 1500] {
        let budget = Duration::from_millis(milliseconds);
        let report = tune(&TuneOptions::default().budget(budget).progress(&note));
        let steps = steps.take();
        assert!(
            steps[1..].iter().all(|step| step.elapsed < budget),
            "{steps:?}"
        );
        let timed: usize = report.trials.iter().map(|t| t.times.len()).sum();
        assert_eq!(timed, steps.len());
        let last = steps.last().unwrap();
        let trial = report
            .trials
            .iter()
            .find(|t| t.kernel == last.kernel)
            .unwrap();
        let longest = trial.compile + *trial.times.iter().max().unwrap();
        // Reading and checking the results is not much.
        let most = last.elapsed + longest + Duration::from_secs(2);
        assert!(report.elapsed < most, "{report}");
    }
}

/// Made-up inputs stand for every operand that a problem can have.
#[test]
fn every_kind_of_problem_can_be_tuned() {
    let dense = [Feature::Bias, Feature::MaskBits, Feature::Softcap];
    let bytes = [Feature::MaskBytes, Feature::Segments, Feature::PerSequence];
    let lists = [
        Feature::KvLengths,
        Feature::QLengths,
        Feature::Alibi,
        Feature::Sinks,
    ];
    for (n, features) in [&dense[..], &bytes, &lists, &[Feature::WindowBoth]]
        .iter()
        .enumerate()
    {
        let dtype = [DType::F32, DType::F16, DType::BF16][n % 3];
        let shape = Shape {
            query: dtype,
            key_value: dtype,
            out: dtype,
            ..Shape::f32([2, 2, 9, 8], 1, 40, 5)
        };
        let case = generate(n as u64, shape, features);
        let setup = Setup {
            device_lists: n % 2 == 0,
            ..Setup::default()
        };
        let problem = problem(&case, &setup);
        let budget = TuneOptions::default().budget(Duration::from_millis(1));
        let report = gpu().tune(&problem, &budget).unwrap();
        assert_eq!(report.trials[0].outcome, Outcome::Right, "{report}");
        assert_eq!(report.problem, ProblemClass::of(&problem));
    }
    let whole = Region {
        batches: 0..1,
        heads: 0..2,
        rows: 0..70,
    };
    let stage = Setup {
        stage: Some((Stage::Raw, whole)),
        ..Setup::default()
    };
    let error = gpu().tune(&problem(&case(), &stage), &TuneOptions::default());
    assert!(matches!(error.unwrap_err(), Error::Value { .. }));
}

/// A file with one result of this adapter.
fn saved(folder: &Path) -> (std::path::PathBuf, Tuning) {
    let mut tuning = Tuning::default();
    tuning.record(report());
    let path = folder.join("tuning.json");
    tuning.save(&path).unwrap();
    (path, tuning)
}

#[test]
fn files_go_round() {
    let folder = tempfile::tempdir().unwrap();
    let absent = Tuning::load(folder.path().join("absent.json"));
    assert_eq!(absent, (Tuning::default(), None));
    let (path, tuning) = saved(folder.path());
    assert_eq!(tuning.len(), 1);
    assert_eq!(Tuning::load(&path), (tuning.clone(), None));
    // Over an existing file, and a result over an earlier one of its class.
    let mut again = tuning.clone();
    again.record(report());
    assert_eq!(again.len(), 1);
    again.save(&path).unwrap();
    assert_eq!(Tuning::load(&path), (again, None));
    // Nothing is left beside it, not even where saving fails.
    assert!(
        tuning
            .save(folder.path().join("no folder/tuning.json"))
            .is_err()
    );
    assert!(tuning.save(folder.path()).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Whatever is in the file: a warning and an empty tuning, or results that hold
/// together; never a panic, never another kernel than the device can run.
#[test]
fn a_damaged_file_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = saved(folder.path());
    let text = std::fs::read_to_string(&path).unwrap();
    let ignored = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let (tuning, warning) = Tuning::load(&path);
        let warning = warning.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(bytes)));
        assert!(tuning.is_empty() && warning.is_input(), "{warning}");
        let (attention, warning_of_device) = gpu().with_tuning(&tuning);
        assert_eq!(warning_of_device, None);
        assert!(
            !planned(&attention)
                .why()
                .contains("measured on this device")
        );
        warning.to_string()
    };
    for length in 0..text.trim_end().len() {
        ignored(&text.as_bytes()[..length]);
    }
    for at in 0..text.len() {
        let mut bytes = text.clone().into_bytes();
        bytes[at] ^= 0x10;
        std::fs::write(&path, bytes).unwrap();
        let (tuning, warning) = Tuning::load(&path);
        assert!(warning.is_none() || tuning.is_empty());
        let (attention, _) = gpu().with_tuning(&tuning);
        assert!(kernels().contains(&planned(&attention).kernel()));
    }
    for bytes in [
        &[0xff; 300][..],
        b"{}",
        b"[]",
        b"null",
        &b"[".repeat(100_000),
        &vec![b' '; 2 << 20],
    ] {
        ignored(bytes);
    }
    let chosen = gpu_choice(&text);
    let other = kernels().into_iter().find(|k| k.name() != chosen).unwrap();
    let kernel_line = format!("\"kernel\": \"{chosen}\"");
    assert!(text.contains(&kernel_line), "{text}");
    let results = text.split_once("\"results\": [").unwrap().1;
    let results = results.rsplit_once(']').unwrap().0;
    for (what, changed) in [
        ("missing field", text.replace("\"problem\"", "\"riddle\"")),
        (
            "unknown field",
            text.replacen("\"form\"", "\"extra\": 1, \"form\"", 1),
        ),
        (
            "one of",
            text.replace(&format!("\"{chosen}\""), "\"magic\""),
        ),
        (
            "not the fastest",
            text.replace(&kernel_line, &format!("\"kernel\": \"{other}\"")),
        ),
        ("form 2", text.replace("\"form\": 1", "\"form\": 2")),
        (
            "by wgpu-attention 99.0.0",
            text.replace(env!("CARGO_PKG_VERSION"), "99.0.0"),
        ),
        (
            "two results",
            text.replace("\"results\": [", &format!("\"results\": [{results},")),
        ),
    ] {
        assert_ne!(changed, text, "{what}");
        let warning = ignored(changed.as_bytes());
        // serde names the first of two faults.
        let named = warning.contains(what) || what == "missing field" && warning.contains("riddle");
        assert!(named, "{what}: {warning}");
    }
    // A folder is no file.
    let (tuning, warning) = Tuning::load(folder.path());
    assert!(tuning.is_empty() && warning.is_some());
}

/// The kernel that a file with one result names.
fn gpu_choice(text: &str) -> String {
    let file: serde_json::Value = serde_json::from_str(text).unwrap();
    file["results"][0]["kernel"].as_str().unwrap().to_owned()
}

/// Results of another adapter, driver or driver version are kept and not used.
#[test]
fn foreign_results_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let (path, tuning) = saved(folder.path());
    let text = std::fs::read_to_string(&path).unwrap();
    for field in ["name", "backend", "driver", "driver_version"] {
        let mut file: serde_json::Value = serde_json::from_str(&text).unwrap();
        file["results"][0]["adapter"][field] = "of another machine".into();
        std::fs::write(&path, file.to_string()).unwrap();
        let (foreign, warning) = Tuning::load(&path);
        assert_eq!((foreign.len(), warning), (1, None));
        let (attention, warning) = gpu().with_tuning(&foreign);
        assert!(warning.unwrap().is_input());
        assert!(
            !planned(&attention)
                .why()
                .contains("measured on this device")
        );
        // Beside a result of our own it does no harm.
        let mut both = foreign;
        both.record(report());
        assert_eq!(both.len(), 2);
        let (attention, warning) = gpu().with_tuning(&both);
        assert_eq!(warning, None);
        assert!(
            planned(&attention)
                .why()
                .contains("measured on this device")
        );
    }
    assert_eq!(gpu().with_tuning(&tuning).1, None);
}
