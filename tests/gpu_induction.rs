//! The induction circuit of `examples/induction` on every adapter: its heads are found by
//! their scores, it predicts what comes next, and a circuit with a fault is not found.

#[path = "../examples/induction/circuit.rs"]
mod circuit;
mod common;
#[path = "common/gpu.rs"]
mod gpu;

use circuit::{Circuit, Head, Heads, Looks, Part, Run, Writes, heads};
use gpu::gpu;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use wgpu_attention::interpret::{Weights, rollout};

/// A beginning, then `period` of the other tokens in random order, twice.
fn repeated(rng: &mut StdRng, tokens: usize, period: usize) -> Vec<usize> {
    let mut half: Vec<usize> = (1..tokens).collect();
    half.shuffle(rng);
    half.truncate(period);
    [&[0], &half[..], &half[..]].concat()
}

fn run(heads: &Heads, tokens: usize, sequence: &[usize]) -> Run {
    let circuit = Circuit::new(heads.clone(), tokens, sequence.len());
    circuit.run(gpu(), sequence).unwrap()
}

/// Right predictions, of how many, in the second half.
fn right(run: &Run, sequence: &[usize], period: usize) -> [usize; 2] {
    run.right(sequence, period + 1..sequence.len())
}

/// Where a head is that looks so.
fn place(heads: &Heads, looks: Looks) -> (usize, usize) {
    let places = [0, 1].map(|layer| heads[layer].iter().position(|head| head.looks == looks));
    match places {
        [Some(head), None] => (0, head),
        [None, Some(head)] => (1, head),
        other => panic!("{looks:?} at {other:?}"),
    }
}

fn replace(heads: &Heads, old: Looks, new: Looks) -> Heads {
    let (layer, head) = place(heads, old);
    let mut heads = heads.clone();
    heads[layer][head].looks = new;
    heads
}

/// Wherever the heads are, whatever the sequence. (Not with a period of 3: a head that
/// looks two back is an induction head there.)
#[test]
fn heads_are_found_by_their_scores() {
    for (seed, tokens, period) in [(1, 32, 24), (2, 9, 8), (3, 40, 17), (4, 12, 4)] {
        let mut rng = StdRng::seed_from_u64(seed);
        let sequence = repeated(&mut rng, tokens, period);
        let mut heads = heads();
        heads.iter_mut().for_each(|layer| layer.shuffle(&mut rng));
        let run = run(&heads, tokens, &sequence);
        let previous = place(&heads, Looks::Back(1));
        let induction = place(&heads, Looks::AfterSameToken);
        assert_eq!(run.find(|s| s.previous), Some(previous), "seed {seed}");
        assert_eq!(run.find(|s| s.induction), Some(induction), "seed {seed}");
        for (layer, scores) in run.scores.iter().enumerate() {
            for (head, scores) in scores.iter().enumerate() {
                let what = format!("seed {seed}, {layer}.{head}: {scores:?}");
                let is = |found| found == (layer, head);
                let right = |found, score| if found { score > 0.9 } else { score < 0.5 };
                assert!(right(is(previous), scores.previous), "{what}");
                assert!(right(is(induction), scores.induction), "{what}");
            }
        }
        // Nothing follows the last token.
        let all = period - 1;
        assert_eq!(right(&run, &sequence, period), [all, all], "seed {seed}");
    }
}

/// What the layers put out is what their weights say, so that the scores are of the heads
/// that ran.
#[test]
fn weights_are_those_of_the_layers() {
    let (tokens, period) = (20, 16);
    let sequence = repeated(&mut StdRng::seed_from_u64(8), tokens, period);
    let heads = heads();
    let circuit = Circuit::new(heads.clone(), tokens, sequence.len());
    let run = circuit.run(gpu(), &sequence).unwrap();
    let mut compared = 0;
    for (layer, heads) in heads.iter().enumerate() {
        let mut expected = vec![0f64; sequence.len() * circuit.width()];
        for (head, Head { writes, .. }) in heads.iter().enumerate() {
            let first = circuit.part(Part::Written(*writes));
            for (i, row) in run.weights((layer, head)).unwrap().rows().enumerate() {
                // Values are one-hot tokens.
                for (&weight, token) in row.weights().iter().zip(&sequence) {
                    expected[i * circuit.width() + first + token] += f64::from(weight);
                }
            }
        }
        assert_eq!(run.outputs[layer].len(), expected.len());
        for (&got, expected) in run.outputs[layer].iter().zip(&expected) {
            // Sums of at most 4 heads of weights, which are at most 1.
            assert!((f64::from(got) - expected).abs() < 1e-5, "{got} {expected}");
            compared += 1;
        }
    }
    assert_eq!(compared, 2 * 33 * circuit.width());
}

/// Without one of its two heads the circuit does not work, and the scores tell which one is
/// missing.
#[test]
fn broken_circuits_are_not_found() {
    let (tokens, period) = (32, 24);
    let sequence = repeated(&mut StdRng::seed_from_u64(5), tokens, period);
    let whole = heads();
    let (layer, induction) = place(&whole, Looks::AfterSameToken);
    let previous = place(&whole, Looks::Back(1));

    // The previous-token head looks two back: the induction head, as it was, finds what
    // comes two later.
    let shifted = replace(&whole, Looks::Back(1), Looks::Back(2));
    let found = run(&shifted, tokens, &sequence);
    assert_eq!(found.find(|s| s.previous), None, "{:?}", found.scores);
    assert_eq!(found.find(|s| s.induction), None, "{:?}", found.scores);
    assert_eq!(right(&found, &sequence, period), [0, period - 1]);

    // It looks one back and tells nobody.
    let mut silent = whole.clone();
    silent[previous.0][previous.1].writes = Writes::Scratch;
    let found = run(&silent, tokens, &sequence);
    assert_eq!(found.find(|s| s.previous), Some(previous));
    assert_eq!(found.find(|s| s.induction), None, "{:?}", found.scores);
    assert!(right(&found, &sequence, period)[0] < period / 4);

    // There is no induction head.
    let same = replace(&whole, Looks::AfterSameToken, Looks::First);
    let found = run(&same, tokens, &sequence);
    assert_eq!(found.find(|s| s.previous), Some(previous));
    assert_eq!(found.find(|s| s.induction), None, "{:?}", found.scores);
    assert_eq!(right(&found, &sequence, period), [0, period - 1]);

    // A sequence that does not repeat gives an induction head nothing to score.
    let once = &sequence[..period + 1];
    let found = run(&whole, tokens, once);
    assert_eq!(found.find(|s| s.previous), Some(previous));
    assert!(found.scores[layer][induction].induction.is_nan());
    assert_eq!(found.find(|s| s.induction), None);
}

/// Rolled out, the circuit's two heads lead from a token to what followed the earlier one,
/// and from there to the earlier one itself: a quarter each way of two steps that both
/// have a residual.
#[test]
fn rollout_follows_both_heads() {
    let (tokens, period) = (32, 24);
    let sequence = repeated(&mut StdRng::seed_from_u64(6), tokens, period);
    let heads = heads();
    let run = run(&heads, tokens, &sequence);
    let n = sequence.len();
    let previous = run.weights(place(&heads, Looks::Back(1))).unwrap();
    let induction = run.weights(place(&heads, Looks::AfterSameToken)).unwrap();
    let found = rollout(&[previous, induction]).unwrap();
    for i in period + 1..n {
        let row = &found[i * n..(i + 1) * n];
        for j in [i, i - 1, i - period, i - period + 1] {
            assert!((row[j] - 0.25).abs() < 0.01, "{i} {j}: {}", row[j]);
        }
    }
    // By period the score is the same, the beginning left out: row and key 0.
    let values: Vec<f32> = induction
        .rows()
        .skip(1)
        .flat_map(|row| row.weights()[1..].to_vec())
        .collect();
    let rest = Weights::new(&values, [n - 1, n - 1]).unwrap();
    let by_period = rest.induction_of_period(period).unwrap();
    let by_tokens = induction.induction(&sequence).unwrap();
    assert_eq!(by_period, by_tokens);
    assert_eq!(by_tokens.rows, period);
}
