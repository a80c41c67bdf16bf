//! Random calls, most of them close to valid, some of them nonsense: each one either is
//! recorded without a word from wgpu, or is refused with an error; nothing panics.
//!
//! Bounded by default. `WGPU_ATTENTION_FUZZ=20 cargo test --release --test fuzz` runs 20
//! times as many, from other seeds.

#[path = "../noop/mod.rs"]
mod noop;

mod calls;
mod layers;
mod text;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// How many times as many rounds as by default.
fn factor() -> u64 {
    match std::env::var("WGPU_ATTENTION_FUZZ") {
        Ok(text) => text
            .parse()
            .expect("WGPU_ATTENTION_FUZZ: expected a whole number"),
        Err(_) => 1,
    }
}

/// Runs `round` with a generator of its own for each of `rounds` seeds; a panic is
/// reported with its seed. `round` says whether its call was accepted.
///
/// # Panics
/// Where fewer than a twentieth of the calls are accepted, or fewer than a twentieth
/// refused: then the fuzz tries one side only.
fn fuzz(rounds: u64, mut round: impl FnMut(&mut StdRng) -> bool) {
    let rounds = rounds * factor();
    let mut accepted = 0;
    for seed in 0..rounds {
        let mut rng = StdRng::seed_from_u64(seed);
        let result = catch_unwind(AssertUnwindSafe(|| round(&mut rng)));
        match result {
            Ok(taken) => accepted += u64::from(taken),
            Err(panic) => {
                eprintln!("seed {seed} panics");
                resume_unwind(panic)
            }
        }
    }
    println!("{accepted} of {rounds} accepted");
    let refused = rounds - accepted;
    assert!(accepted * 20 > rounds, "{accepted} of {rounds} accepted");
    assert!(refused * 20 > rounds, "{refused} of {rounds} refused");
}

fn pick<T: Copy>(rng: &mut StdRng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}

/// `usual`, or once in `one_in` something from `odd`.
fn mostly<T: Copy>(rng: &mut StdRng, usual: T, one_in: u32, odd: &[T]) -> T {
    match rng.random_ratio(1, one_in) {
        true => pick(rng, odd),
        false => usual,
    }
}
