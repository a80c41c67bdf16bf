//! Files with random damage: each command that reads a case answers with a result or an
//! error, and never with a panic, an abort or a wait.
//!
//! Bounded by default. `WGPU_ATTENTION_FUZZ=20` makes 20 times as many files.

use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use safetensors::tensor::Dtype;

use crate::{Parts, data, run, stdout};

/// Small cases of every form: attention, ONNX, options.
const CASES: [&str; 4] = [
    "sdpa_grads/causal_self_n17_d1_f32.safetensors",
    "onnx/attention_4d_gqa_with_past_and_present_fp16.safetensors",
    "onnx/attention_3d_causal_bf16.safetensors",
    "sdpa_options/poison_kvlen_b3_nq9_nk40_d16_f16.safetensors",
];

/// A copy with damage in the length of its header, its header, its data or its end.
fn damage(rng: &mut StdRng, whole: &[u8]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for _ in 0..rng.random_range(1..4) {
        if bytes.len() <= header {
            break;
        }
        match rng.random_range(0..6) {
            0 => bytes[rng.random_range(0..8)] = rng.random(),
            1 => bytes[rng.random_range(8..header)] = rng.random(),
            2 => {
                // Of a shape, an offset or an attribute, more often than not.
                let digits: Vec<usize> = (8..header)
                    .filter(|&at| bytes[at].is_ascii_digit())
                    .collect();
                let at = digits[rng.random_range(0..digits.len())];
                bytes[at] = b'0' + rng.random_range(0..10);
            }
            3 => bytes.truncate(rng.random_range(0..bytes.len())),
            4 => bytes.extend_from_slice(&[0xff; 7]),
            _ => {
                let at = rng.random_range(header..bytes.len());
                bytes[at] = rng.random();
            }
        }
    }
    bytes
}

/// Writes `count` damaged files and gives their names.
fn write(folder: &Path, seed: u64, whole: &[PathBuf], count: usize) -> Vec<PathBuf> {
    let mut rng = StdRng::seed_from_u64(seed);
    let whole: Vec<_> = whole
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect();
    let write = |n: usize| {
        let path = folder.join(format!("{n:05}.safetensors"));
        std::fs::write(&path, damage(&mut rng, &whole[n % whole.len()])).unwrap();
        path
    };
    (0..count).map(write).collect()
}

fn factor() -> usize {
    std::env::var("WGPU_ATTENTION_FUZZ").map_or(1, |text| text.parse().unwrap())
}

#[test]
fn damaged_cases_are_judged_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let files = write(folder.path(), 9, &CASES.map(data), 400 * factor());
    for backend in ["oracle", "cpu"] {
        let mut args = vec!["check", "--backend", backend];
        args.push(folder.path().to_str().unwrap());
        let checked = run(args);
        let text = stdout(&checked);
        assert_eq!(checked.status.code(), Some(1), "{text}");
        let named = |path: &&PathBuf| text.contains(path.file_stem().unwrap().to_str().unwrap());
        assert_eq!(files.iter().filter(named).count(), files.len(), "{text}");
        // Some damage is harmless, and most of it is seen.
        let passed = text.lines().filter(|line| line.starts_with("PASS")).count();
        assert!(
            passed * 20 > files.len() && passed * 2 < files.len(),
            "{passed} passed"
        );
    }
}

/// One layer in torch's names, and its input in the same file.
fn checkpoint(path: &Path) {
    let tensor = |name: &str, shape: &[usize]| {
        let count: usize = shape.iter().product();
        let numbers: Vec<f32> = (0..count).map(|n| (n as f32).sin()).collect();
        let bytes = bytemuck::cast_slice(&numbers).to_vec();
        (name.to_owned(), Dtype::F32, shape.to_vec(), bytes)
    };
    let tensors = vec![
        tensor("a.in_proj_weight", &[12, 4]),
        tensor("a.in_proj_bias", &[12]),
        tensor("a.out_proj.weight", &[4, 4]),
        tensor("a.out_proj.bias", &[4]),
        tensor("X", &[1, 3, 4]),
    ];
    let metadata = [("num_heads".to_owned(), "2".to_owned())].into();
    Parts { metadata, tensors }.write(path);
}

#[test]
fn damaged_inputs_are_computed_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out").to_str().unwrap().to_owned();
    let layer = folder.path().join("layer.safetensors");
    checkpoint(&layer);
    let cases: Vec<_> = CASES.map(data).into_iter().collect();
    let commands: [(&[PathBuf], &str); 4] = [
        (&cases, "run FILE -o OUT.safetensors --backend cpu"),
        (&cases, "inspect FILE --head 0 -o OUT.svg --backend oracle"),
        (&cases, "inspect FILE --head 0 --stats --backend oracle"),
        (
            &[layer],
            "layer FILE --prefix a --input FILE:X -o OUT.safetensors --backend oracle",
        ),
    ];
    for (seed, (whole, command)) in commands.into_iter().enumerate() {
        let mut succeeded = 0;
        let files = write(folder.path(), seed as u64, whole, 24 * factor());
        for path in &files {
            let path = path.to_str().unwrap();
            let line = command.replace("FILE", path).replace("OUT", &out);
            let ran = run(line.split(' '));
            let code = ran.status.code();
            assert!(matches!(code, Some(0..=2)), "{line}: {code:?}");
            succeeded += usize::from(code == Some(0));
        }
        let part = 0..files.len();
        assert!(
            part.contains(&succeeded) && succeeded > 0,
            "{command}: {succeeded}"
        );
    }
}
