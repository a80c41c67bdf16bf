//! What a signal leaves behind: no temporary file, and no process of `bench`.

use std::io::Read;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Temporary files that exist now.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Runs `change`, which makes, renames or removes temporary files and keeps the list of
/// them, while no signal ends the process.
pub fn guarded<T>(change: impl FnOnce(&mut Vec<PathBuf>) -> T) -> T {
    change(&mut TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Has the signals that end a process remove the temporary files first. A signal that
/// the caller has the process ignore (`nohup`) stays ignored. A file larger than the
/// limit of the shell (`ulimit -f`) becomes an error of the write.
#[cfg(unix)]
pub fn handle() -> std::io::Result<()> {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU, SIGXFSZ};
    use signal_hook::iterator::Signals;
    use signal_hook::{flag, low_level};

    let ignored = ignored();
    let ends = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU];
    let ends = ends
        .into_iter()
        .filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(ends)?;
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                guarded(|files| {
                    for file in files.iter() {
                        let _ = std::fs::remove_file(file);
                    }
                    // Ends the process, as the signal does by itself; no file is made
                    // meanwhile.
                    let _ = low_level::emulate_default_handler(signal);
                });
            }
        })?;
    Ok(())
}

/// On other systems the defaults stay.
#[cfg(not(unix))]
pub fn handle() -> std::io::Result<()> {
    Ok(())
}

/// The signals that are ignored, bit n - 1 for signal n, where the system tells.
#[cfg(unix)]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .unwrap_or(0)
}

/// Ends this process when its standard input ends: when whoever holds the other side of
/// the pipe is gone, however it went.
pub fn end_with_stdin() -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(|| {
            let mut byte = [0];
            while std::io::stdin().read(&mut byte).is_ok_and(|n| n > 0) {}
            // Without the exit handlers of a driver that is at work.
            #[cfg(unix)]
            signal_hook::low_level::exit(1);
            #[cfg(not(unix))]
            std::process::exit(1);
        })?;
    Ok(())
}
