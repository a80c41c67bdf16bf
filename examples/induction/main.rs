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
    let found = |name: &str, head: Option<(usize, usize)>| match head {
        Some((layer, head)) => println!("{name}: {layer}.{head}"),
        None => println!("{name}: none"),
    };
    println!();
    found("previous-token head", run.find(|s| s.previous));
    found("induction head", run.find(|s| s.induction));

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
