//! Random damage to texts and data that are read from files.
#![cfg(feature = "tune")]

use rand::RngExt;
use rand::rngs::StdRng;
use wgpu_attention::Tuning;

use crate::{fuzz, pick};

/// A file of two results, as [`Tuning::save`] writes it.
fn tuning() -> String {
    include_str!("tuning.json").replace("VERSION", env!("CARGO_PKG_VERSION"))
}

/// The text with a few bytes replaced, removed, doubled or cut.
fn damaged(rng: &mut StdRng, text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..pick(rng, &[1, 1, 1, 3]) {
        if bytes.is_empty() {
            break;
        }
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..6) {
            0 => bytes[at] = rng.random(),
            1 => bytes[at] = pick(rng, b"{}[],:\"0189-.e nulltrue"),
            // Of a number, more often than not.
            2 if bytes[at].is_ascii_digit() => bytes[at] = b'0' + rng.random_range(0..10),
            2 => {
                bytes.remove(at);
            }
            3 => bytes.truncate(at),
            4 => {
                let end = (at + rng.random_range(1..40)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let to = rng.random_range(0..bytes.len());
                bytes.splice(to..to, part);
            }
            _ => {
                let end = (at + rng.random_range(1..40)).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
    bytes
}

/// Whatever became of a tuning file: it is read, or refused with a reason, and what is
/// read can be used and written again.
#[test]
fn damaged_tunings_are_read_or_refused() {
    let text = tuning();
    assert_eq!(Tuning::parse(&text).unwrap().len(), 2);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuning.json");
    fuzz(4000, |rng| {
        let bytes = damaged(rng, &text);
        let parsed = match std::str::from_utf8(&bytes) {
            Ok(text) => Tuning::parse(text),
            Err(_) => {
                std::fs::write(&path, &bytes).unwrap();
                let (tuning, warning) = Tuning::load(&path);
                assert!(tuning.is_empty());
                Err(warning.expect("a warning"))
            }
        };
        match parsed {
            Ok(tuning) => {
                tuning.save(&path).unwrap();
                let (again, warning) = Tuning::load(&path);
                assert_eq!(warning, None);
                assert_eq!(again.len(), tuning.len());
                true
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                false
            }
        }
    });
}
