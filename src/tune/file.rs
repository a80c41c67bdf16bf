//! Tuning results in a file: small JSON, written whole or not at all, and
//! believed only where it holds together.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::plan::kernel::Kernel;
use crate::plan::tuned::{ProblemClass, Tuned};
use crate::record::attention::Attention;
use crate::tune::measure::TuneReport;

/// The form of the file; another one is not read.
const FORM: u32 = 1;

/// More than any file of ours has.
const MAX_BYTES: u64 = 1 << 20;

/// Tuning results of any number of adapters, in memory or in a file.
///
/// A result belongs to an adapter, its driver and the driver's version, to this
/// version of the crate, and to a [`ProblemClass`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    form: u32,
    /// Version of the crate whose kernels were measured.
    version: String,
    results: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    adapter: AdapterKey,
    problem: ProblemClass,
    /// The fastest of `seconds`.
    kernel: String,
    /// Best time of each kernel whose results were right.
    seconds: Vec<(String, f64)>,
}

/// The adapter and driver that a result belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdapterKey {
    name: String,
    backend: String,
    driver: String,
    driver_version: String,
}

impl AdapterKey {
    fn of(info: &wgpu::AdapterInfo) -> Self {
        AdapterKey {
            name: info.name.clone(),
            backend: info.backend.to_string(),
            driver: info.driver.clone(),
            driver_version: info.driver_info.clone(),
        }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            form: FORM,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            results: Vec::new(),
        }
    }
}

impl Tuning {
    /// Reads a file. What cannot be believed is ignored as a whole, and the
    /// error says why: it is a warning, the tuning is empty and harmless then.
    /// A file that is not there is an empty one, without a warning.
    pub fn load(path: impl AsRef<Path>) -> (Tuning, Option<Error>) {
        let read = || -> io::Result<String> {
            let mut text = String::new();
            let file = File::open(path.as_ref())?;
            file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
            Ok(text)
        };
        match read() {
            Ok(text) => match Tuning::parse(&text) {
                Ok(tuning) => (tuning, None),
                Err(error) => (Tuning::default(), Some(error)),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Tuning::default(), None),
            Err(error) => {
                let error = Error::value("tuning", "a file that can be read", error);
                (Tuning::default(), Some(error))
            }
        }
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`Error::Value`] if it is no such file, holds impossible or contradictory
    /// results, or was written by another version of this crate.
    pub fn parse(text: &str) -> Result<Tuning> {
        let refused = |actual: String| Error::value("tuning", "a tuning file", actual);
        if text.len() as u64 > MAX_BYTES {
            return Err(refused(format!("more than {MAX_BYTES} bytes")));
        }
        // Before the rest, which another form may have changed.
        #[derive(Deserialize)]
        struct Head {
            form: u32,
            version: String,
        }
        let head: Head = serde_json::from_str(text).map_err(|e| refused(e.to_string()))?;
        let own = env!("CARGO_PKG_VERSION");
        if (head.form, head.version.as_str()) != (FORM, own) {
            let Head { form, version } = head;
            let expected = format!("form {FORM}, by wgpu-attention {own}");
            let actual = format!("form {form}, by wgpu-attention {version}");
            return Err(Error::value("tuning", expected, actual));
        }
        let tuning: Tuning = serde_json::from_str(text).map_err(|e| refused(e.to_string()))?;
        for (at, entry) in tuning.results.iter().enumerate() {
            entry.check().map_err(refused)?;
            let same =
                |other: &Entry| other.adapter == entry.adapter && other.problem == entry.problem;
            if tuning.results[..at].iter().any(same) {
                return Err(refused(format!("two results for {}", entry.problem)));
            }
        }
        Ok(tuning)
    }

    /// Writes the file: into one beside it, which then takes its name, so that
    /// whoever reads it finds the old or the new one and never half of it.
    ///
    /// # Errors
    /// What the file system says.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
        serde_json::to_writer_pretty(&mut file, self)?;
        file.write_all(b"\n")?;
        file.persist(path)?;
        Ok(())
    }

    /// Takes a report's choice in, in place of an earlier one for the same
    /// adapter and problems. A report that chose nothing changes nothing.
    pub fn record(&mut self, report: &TuneReport) {
        let Some(kernel) = report.chosen else { return };
        let adapter = AdapterKey::of(&report.adapter);
        let problem = report.problem;
        let other = |e: &Entry| e.adapter != adapter || e.problem != problem;
        self.results.retain(other);
        self.results.push(Entry {
            adapter,
            problem,
            kernel: kernel.name().to_owned(),
            seconds: report
                .right()
                .map(|(kernel, best)| (kernel.name().to_owned(), best.as_secs_f64()))
                .collect(),
        });
    }

    /// Number of results, of all adapters.
    pub fn len(&self) -> usize {
        self.results.len()
    }

    /// True if there is no result.
    pub fn is_empty(&self) -> bool {
        self.results.is_empty()
    }

    /// What was found on an adapter.
    pub fn choices(&self, info: &wgpu::AdapterInfo) -> Vec<Tuned> {
        let adapter = AdapterKey::of(info);
        let own = self.results.iter().filter(|entry| entry.adapter == adapter);
        own.filter_map(|entry| Some(Tuned::new(entry.problem, entry.kernel.parse().ok()?)))
            .collect()
    }
}

impl Entry {
    fn check(&self) -> std::result::Result<(), String> {
        let mut best = f64::INFINITY;
        for (at, (name, seconds)) in self.seconds.iter().enumerate() {
            name.parse::<Kernel>().map_err(|e| e.to_string())?;
            if !seconds.is_finite() || *seconds <= 0.0 {
                return Err(format!("{seconds} seconds for {name}"));
            }
            if self.seconds[..at].iter().any(|(other, _)| other == name) {
                return Err(format!("two times of {name} for {}", self.problem));
            }
            best = best.min(*seconds);
        }
        let chosen = self.seconds.iter().find(|(name, _)| *name == self.kernel);
        match chosen {
            Some((_, seconds)) if *seconds == best => Ok(()),
            _ => Err(format!(
                "{}, not the fastest for {}",
                self.kernel, self.problem
            )),
        }
    }
}

impl Attention {
    /// The same attention, whose plans use what was measured on this adapter
    /// and driver for problems of the same class. It shares the pipelines.
    ///
    /// The error is a warning: there are results, and none belongs to this
    /// adapter, driver and driver version, so the table of device classes
    /// decides as before. Whatever a file says, a kernel that the device cannot
    /// run for a problem is not planned, and every kernel computes the same.
    pub fn with_tuning(&self, tuning: &Tuning) -> (Attention, Option<Error>) {
        let info = self.device().adapter_info();
        let choices = tuning.choices(&info);
        let foreign = choices.is_empty() && !tuning.is_empty();
        let warning = foreign.then(|| {
            let key = |k: &AdapterKey| format!("{} ({} {})", k.name, k.driver, k.driver_version);
            let mut found: Vec<_> = tuning.results.iter().map(|e| key(&e.adapter)).collect();
            found.dedup();
            let expected = format!("results of {}", key(&AdapterKey::of(&info)));
            Error::value("tuning", expected, format!("those of {}", found.join(", ")))
        });
        (self.with_choices(choices), warning)
    }
}
