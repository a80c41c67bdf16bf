//! What the system refuses or takes away: files without an end, memory, room on the
//! disk, the process itself.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{program, stderr, stdout};

/// The program under limits of the shell.
fn limited(limits: &str, args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_wgpu-attention");
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limits}; exec \"$0\" \"$@\""), program]);
    shell.args(args).output().unwrap()
}

/// A file of Q, K and V in F32, all zeros, that takes no room on the disk.
fn zeros(path: &Path, shapes: [[u64; 4]; 3]) {
    let mut end = 0;
    let entries = ["Q", "K", "V"].iter().zip(shapes).map(|(name, shape)| {
        let start = end;
        end += shape.iter().product::<u64>() * 4;
        format!(
            "\"{name}\":{{\"dtype\":\"F32\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}"
        )
    });
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    fs::write(path, &bytes).unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(bytes.len() as u64 + end).unwrap();
}

fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(sent.unwrap().success());
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        sleep(Duration::from_millis(1));
    }
}

/// Devices and pipes have no end: refused, and not waited for.
#[test]
fn what_is_no_regular_file_is_refused() {
    let folder = TempDir::new().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let out = folder.path().join("out");
    let (pipe, out) = (pipe.to_str().unwrap(), out.to_str().unwrap());
    for path in [pipe, "/dev/zero"] {
        for args in [
            &["run", path, "-o", out][..],
            &["inspect", path, "--head", "0"],
            &["check", path],
            &["layer", path, "--input", path],
            &["tune", "--out", path],
        ] {
            let mut timed = Command::new("timeout");
            let output = timed
                .arg("20")
                .arg(env!("CARGO_BIN_EXE_wgpu-attention"))
                .args(args);
            let output = output.output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{args:?}");
            assert!(
                stderr(&output).contains("regular file"),
                "{}",
                stderr(&output)
            );
        }
        let mut timed = Command::new("timeout");
        let program = env!("CARGO_BIN_EXE_wgpu-attention");
        let output = timed
            .args(["60", program, "info", "--tuning", path])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(
            stderr(&output).contains("regular file"),
            "{}",
            stderr(&output)
        );
    }
}

/// With less and less memory a run ends with its result or an error, never by a signal.
#[test]
fn too_little_memory_is_an_error() {
    let folder = TempDir::new().unwrap();
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    // 32 MiB of queries, and as much of output.
    zeros(&input, [[1, 2, 1 << 16, 64], [1, 2, 1, 64], [1, 2, 1, 64]]);
    let (input, out) = (input.to_str().unwrap(), out.to_str().unwrap());
    let swapped = ["--layout", "bshd", "--output-dtype", "f16", "--lse"];
    let stage = ["--stage", "3", "--heads", "0..1"];
    let mut codes = Vec::new();
    for (backend, flags) in [("cpu", &[][..]), ("cpu", &swapped), ("oracle", &stage)] {
        for mebibytes in (50..=230).step_by(20) {
            let limit = format!("ulimit -v {}", mebibytes << 10);
            let fixed = ["run", input, "-o", out, "--backend", backend];
            // In the other layout 2 heads are 2 tokens of 65536 heads.
            let output = limited(&limit, &[&fixed[..], flags].concat());
            let errors = stderr(&output);
            let code = output.status.code();
            assert!(
                [Some(0), Some(2)].contains(&code),
                "{mebibytes} MiB, {flags:?}: {:?} {errors}",
                output.status
            );
            if code == Some(2) {
                assert!(errors.contains("memory"), "{errors}");
            }
            codes.push(code);
        }
    }
    assert!(
        codes.contains(&Some(0)) && codes.contains(&Some(2)),
        "{codes:?}"
    );
    let bench = [
        "bench", "--q-len", "40000", "--kv-len", "40000", "--heads", "1", "--rule",
    ];
    let output = limited("ulimit -v 3000000", &[&bench[..], &["bias"]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

/// A disk, or a limit on files, without room: no file, and no half of one.
#[test]
fn files_without_room_leave_nothing() {
    let folder = TempDir::new().unwrap();
    let shaders = folder.path().join("shaders");
    fs::create_dir(&shaders).unwrap();
    let old = shaders.join("staged_scores.f32.wgsl");
    for limits in ["trap '' XFSZ; ulimit -f 4", "ulimit -f 4"] {
        let args = ["shaders", "--no-adapter", "--kernel", "staged", "--out"];
        let args = [&args[..], &[shaders.to_str().unwrap()]].concat();
        let names = || -> Vec<_> {
            let entries = fs::read_dir(&shaders).unwrap();
            entries.map(|entry| entry.unwrap().file_name()).collect()
        };
        let output = limited(limits, &args);
        assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
        assert!(
            stderr(&output).contains("File too large"),
            "{}",
            stderr(&output)
        );
        assert!(names().is_empty(), "{:?}", names());
        assert!(!old.exists());
    }
}

/// A signal while a file is written removes what there is of it. One that comes when the
/// file is about to get its name may find the program done.
#[test]
fn a_signal_leaves_no_temporary_file() {
    let folder = TempDir::new().unwrap();
    let input = folder.path().join("in");
    zeros(&input, [[1, 1, 1 << 18, 1], [1, 1, 1, 1], [1, 1, 1, 64]]);
    let mut ended_early = 0;
    for _ in 0..6 {
        let target = TempDir::new().unwrap();
        let mut run = program();
        run.arg("run").arg(&input).args(["--backend", "cpu", "-o"]);
        run.arg(target.path().join("out.safetensors"));
        let mut child = run.stdout(Stdio::null()).spawn().unwrap();
        let names = || -> Vec<String> {
            let entries = fs::read_dir(target.path()).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.collect()
        };
        wait_until("a temporary file", || !names().is_empty());
        signal(child.id(), "-TERM");
        let ended = child.wait().unwrap();
        ended_early += u32::from(!ended.success());
        let left = match ended.success() {
            true => vec!["out.safetensors".to_owned()],
            false => Vec::new(),
        };
        assert_eq!(names(), left, "{ended}");
    }
    assert!(ended_early > 0);
}

/// What the caller has ignored stays ignored: `nohup`.
#[test]
fn an_ignored_signal_stays_ignored() {
    let folder = TempDir::new().unwrap();
    let input = folder.path().join("in");
    zeros(&input, [[1, 1, 1 << 18, 1], [1, 1, 1, 1], [1, 1, 1, 64]]);
    let out = folder.path().join("out.safetensors");
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]);
    shell
        .arg(env!("CARGO_BIN_EXE_wgpu-attention"))
        .arg("run")
        .arg(&input);
    let mut child = shell
        .args(["--backend", "cpu", "-o"])
        .arg(&out)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    sleep(Duration::from_millis(50));
    signal(child.id(), "-HUP");
    assert!(child.wait().unwrap().success() && out.exists());
}

/// The processes that `parent` began.
fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap();
    let numbers = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after = stat.rsplit(')').next().unwrap_or_default();
        after.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    numbers.filter(is_child).collect()
}

/// However `bench` ends, the process that measures for it ends too.
#[test]
fn bench_takes_its_process_along() {
    for name in ["-TERM", "-KILL"] {
        let mut bench = program();
        bench.args([
            "bench",
            "--heads",
            "1",
            "--q-len",
            "16",
            "--runs",
            "1000000000",
        ]);
        bench
            .args(["--seconds", "600"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child: Child = bench.spawn().unwrap();
        wait_until("a process of bench", || !children(child.id()).is_empty());
        let measuring = children(child.id())[0];
        // Until it is the program and at work.
        let names_it =
            || fs::read_to_string(format!("/proc/{measuring}/cmdline")).unwrap_or_default();
        wait_until("the program", || names_it().contains("--one-process"));
        sleep(Duration::from_millis(300));
        signal(child.id(), name);
        child.wait().unwrap();
        wait_until("the process is gone", || {
            !names_it().contains("--one-process")
        });
    }
}
