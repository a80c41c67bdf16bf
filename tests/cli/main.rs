//! The program from outside: what it prints, how it exits, what it leaves on
//! the disk. Most of it runs on the oracle, which needs no adapter; the kernels
//! run the bundled cases in `check.rs` and the demo in `show.rs`, and
//! small shapes in `bench.rs` and `tune.rs`.
#![cfg(feature = "cli")]

mod bench;
mod check;
mod damaged;
mod hostile;
mod inspect;
mod layer;
mod limits;
mod numpy;
mod options;
mod run;
mod shaders;
mod show;
mod tune;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

fn data(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(path);
    assert!(path.exists(), "{}", path.display());
    path
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_wgpu-attention"))
}

fn run<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    let output = program().args(args).output().unwrap();
    let errors = stderr(&output);
    assert!(!errors.contains("panicked"), "{errors}");
    output
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file taken apart, so that it can be changed and written again.
struct Parts {
    metadata: HashMap<String, String>,
    tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
}

impl Parts {
    fn read(path: &Path) -> Parts {
        let bytes = std::fs::read(path).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let views = SafeTensors::deserialize(&bytes).unwrap();
        let part = |(name, view): (&str, TensorView)| {
            let (dtype, shape) = (view.dtype(), view.shape().to_vec());
            (name.to_owned(), dtype, shape, view.data().to_vec())
        };
        Parts {
            metadata: header.metadata().clone().unwrap_or_default(),
            tensors: views.iter().map(part).collect(),
        }
    }

    fn get(&mut self, name: &str) -> &mut Vec<u8> {
        let found = self.tensors.iter_mut().find(|(n, ..)| n == name);
        &mut found.unwrap_or_else(|| panic!("no {name}")).3
    }

    fn f32(&mut self, name: &str) -> Vec<f32> {
        let words = self.get(name).chunks_exact(4);
        words
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    fn shape(&self, name: &str) -> Vec<usize> {
        let found = self.tensors.iter().find(|(n, ..)| n == name);
        found.unwrap_or_else(|| panic!("no {name}")).2.clone()
    }

    fn write(&self, path: &Path) {
        let views = self.tensors.iter().map(|(name, dtype, shape, bytes)| {
            (
                name.clone(),
                TensorView::new(*dtype, shape.clone(), bytes).unwrap(),
            )
        });
        let metadata = Some(self.metadata.clone());
        let bytes = safetensors::serialize(views, metadata).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}
