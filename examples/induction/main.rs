//! Builds an induction circuit by hand, runs it on the default adapter over a random
//! sequence that is repeated, and finds its heads by their scores:
//!
//!     cargo run --release --example induction [SEED]

mod circuit;

use circuit::{Circuit, heads};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use wgpu_attention::Attention;
use wgpu_attention::interpret::RankBy;

/// Different tokens, and how many of them are drawn for one period.
const TOKENS: usize = 32;
const PERIOD: usize = 24;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seed = std::env::args().nth(1).map(|seed| seed.parse());
    let mut rng = StdRng::seed_from_u64(seed.transpose()?.unwrap_or(1));
    // A token that only begins, for there is none before it, then the period twice.
    let mut period: Vec<usize> = (1..TOKENS).collect();
    period.shuffle(&mut rng);
    period.truncate(PERIOD);
    let sequence = [&[0], &period[..], &period[..]].concat();

    let attention = Attention::on_default_adapter()?;
    println!("{}", attention.adapter_line());
    println!("sequence: {sequence:?}\n");
    let heads = heads();
    let circuit = Circuit::new(heads.clone(), TOKENS, sequence.len());
    let run = circuit.run(&attention, &sequence)?;

    println!("layer.head  previous token  induction  entropy  built to look");
    for (layer, scores) in run.scores.iter().enumerate() {
        for (head, scores) in scores.iter().enumerate() {
            println!(
                "{layer}.{head}         {:>14.3}  {:>9.3}  {:>7.3}  {:?}",
                scores.previous, scores.induction, scores.entropy, heads[layer][head].looks
            );
        }
    }
    println!();
    for (name, head) in [
        ("previous-token head", run.find(|s| s.previous)),
        ("induction head", run.find(|s| s.induction)),
    ] {
        let Some((layer, head)) = head else {
            println!("{name}: none");
            continue;
        };
        // A token in the middle of the second half, and the key it gives most weight to.
        let at = 3 * PERIOD / 2 + 1;
        let weights = run.weights((layer, head))?;
        let row = weights.row(at).ok_or("no such row")?;
        for key in row.top(row.weights(), RankBy::Weight, 1)? {
            let (from, to) = (sequence[at], sequence[key.key]);
            let (j, weight) = (key.key, key.weight);
            println!(
                "{name}: {layer}.{head}; token {from} at {at} looks at token {to} at {j}, weight {weight:.3}"
            );
        }
    }

    // The last token of the first half has not been seen before either.
    for (half, range) in [
        ("first", 0..PERIOD + 1),
        ("second", PERIOD + 1..sequence.len()),
    ] {
        let [right, all] = run.right(&sequence, range);
        println!("next token right in the {half} half: {right} of {all}");
    }
    Ok(())
}
