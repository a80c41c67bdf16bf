//! From shares to colours: where the scale of a picture ends.

use std::sync::LazyLock;

use colorgrad::Gradient;

use crate::inspect::canvas::Rgb;
use crate::inspect::colour::{Grid, Value};

/// Viridis: perceptually uniform, monotone in lightness, made for readers with
/// any kind of colour vision.
static VIRIDIS: LazyLock<colorgrad::BasisGradient> = LazyLock::new(colorgrad::preset::viridis);

/// The part of the cells beside sinks whose shares lie above the top of the scale. Cells
/// are counted as they are drawn: one that shows the largest of several pairs counts once.
const ABOVE: f64 = 0.01;
/// The top is at least this part of the share that a unit of the mass lies on, on average:
/// where a head looks at single keys, what it hardly looks at stays dark.
const LEAST: f64 = 0.05;
/// A key is a sink if it takes at least this part of all mass, and this many times
/// its even part.
const SINK: [f64; 2] = [0.1, 3.0];
/// Over fewer rows of cells than this, a key that takes much is not a sink: there are few
/// cells, and each can be looked at.
const SINK_ROWS: usize = 32;
/// The lowest top.
pub const LOWEST: f64 = 1e-6;

/// Colours of the shares from 0 to a top; larger shares have the colour of the top.
///
/// The scale goes by the square root: most weights are small, and a row that
/// looks at 100 keys evenly would otherwise be as dark as one that looks elsewhere.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    top: f64,
}

impl Scale {
    /// A scale up to `top`, which lies between [`LOWEST`] and 1.
    pub fn to(top: f64) -> Scale {
        Scale {
            top: top.clamp(LOWEST, 1.0),
        }
    }

    /// A scale for all of `grids`: 99 of 100 of the cells that they show beside sinks lie
    /// below its top, which is rounded up to a 1, 2, 3 or 5 with zeros. In a long sequence
    /// a sink and the first rows have large shares, and all others are far smaller.
    pub fn fitting(grids: &[&Grid]) -> Scale {
        let mut shares: Vec<f64> = grids.iter().flat_map(|grid| beside_sinks(grid)).collect();
        if shares.is_empty() {
            shares = grids.iter().flat_map(|grid| numbers(grid)).collect();
        }
        shares.sort_by(|a, b| b.total_cmp(a));
        let Some(percentile) = shares.get((ABOVE * shares.len() as f64) as usize) else {
            return Scale::to(1.0);
        };
        let mass: f64 = shares.iter().sum();
        let squares: f64 = shares.iter().map(|share| share * share).sum();
        Scale::to(round_up(percentile.max(LEAST * squares / mass)))
    }

    /// Where the scale ends.
    pub fn top(self) -> f64 {
        self.top
    }

    /// Where a share stands on the scale, 0 to 1.
    pub fn position(self, share: f64) -> f64 {
        (share / self.top).clamp(0.0, 1.0).sqrt()
    }

    /// The colour of a share.
    pub fn colour(self, share: f64) -> Rgb {
        shade(self.position(share))
    }
}

/// The colour at a position between 0 and 1.
pub fn shade(position: f64) -> Rgb {
    let [red, green, blue, _] = VIRIDIS.at(position as f32).to_rgba8();
    [red, green, blue]
}

/// A share for people, to three digits.
pub fn short(share: f64) -> String {
    let rounded = format!("{share:.2e}").parse().unwrap_or(share);
    let rounded: f64 = rounded;
    rounded.to_string()
}

fn round_up(share: f64) -> f64 {
    let steps = (-6..0).flat_map(|e| [1.0, 2.0, 3.0, 5.0].map(|m: f64| m * 10f64.powi(e)));
    // The smallest is not lost to the rounding of a step.
    let step = steps.into_iter().find(|step| *step >= share * (1.0 - 1e-9));
    step.unwrap_or(1.0)
}

/// All numbers of a grid but 0.
fn numbers(grid: &Grid) -> Vec<f64> {
    let shares = grid.values.iter().filter_map(|value| match value {
        Value::Share(share) if *share > 0.0 => Some(*share),
        _ => None,
    });
    shares.collect()
}

/// The numbers of a grid but those of keys that are sinks.
fn beside_sinks(grid: &Grid) -> Vec<f64> {
    if grid.rows() < SINK_ROWS {
        return numbers(grid);
    }
    let mut mass = vec![0.0; grid.columns];
    for row in grid.values.chunks(grid.columns) {
        for (mass, value) in mass.iter_mut().zip(row) {
            if let Value::Share(share) = value {
                *mass += share;
            }
        }
    }
    let [part, times] = SINK;
    let least = mass.iter().sum::<f64>() * part.max(times / grid.columns as f64);
    let beside = grid.values.iter().enumerate().filter_map(|(at, value)| {
        let share = match value {
            Value::Share(share) if *share > 0.0 => *share,
            _ => return None,
        };
        (mass[at % grid.columns] < least).then_some(share)
    });
    beside.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A causal head of `n` rows with `sink` on the first key, `previous` on the key before
    /// and the rest evenly on all.
    fn grid(n: usize, sink: f64, previous: f64) -> Grid {
        let mut values = vec![Value::Masked; n * n];
        for i in 0..n {
            let even = (1.0 - sink - previous) / (i + 1) as f64;
            let mut row = vec![even; i + 1];
            row[0] += sink;
            row[i.saturating_sub(1)] += previous;
            for (j, share) in row.into_iter().enumerate() {
                values[i * n + j] = Value::Share(share);
            }
        }
        Grid {
            columns: n,
            values,
            block: [1, 1],
        }
    }

    /// What most of a long picture shows is seen, whatever a sink takes.
    #[test]
    fn the_scale_ends_near_what_is_there() {
        for n in [100, 300, 1000] {
            for sink in [0.0, 0.5, 0.9] {
                // A row in the middle, evenly over n / 2 keys beside the sink.
                let typical = (1.0 - sink) / (n / 2) as f64;
                let seen = Scale::fitting(&[&grid(n, sink, 0.0)]).position(typical);
                assert!((0.25..1.0).contains(&seen), "{n} {sink}: {seen}");
                // To a scale up to 1 it would be dark.
                assert!(Scale::to(1.0).position(typical) < 0.7 * seen, "{n} {sink}");
                // Where a row is on one key, that key is bright, and the others are dark.
                let previous = 0.9 * (1.0 - sink);
                let scale = Scale::fitting(&[&grid(n, sink, previous)]);
                let [most, others] = [previous, 0.1 * typical].map(|s| scale.position(s));
                assert!(most > 0.9 && others < 0.4, "{n} {sink}: {most} {others}");
            }
        }
    }

    /// Of what is drawn hardly anything is above the top, however many pairs share a cell:
    /// the largest of many are far above the usual pair, of noise too.
    #[test]
    fn few_cells_are_above_the_top_of_the_scale() {
        use rand::SeedableRng;
        use rand_distr::{Distribution, Exp1};
        let mut random = rand::rngs::StdRng::seed_from_u64(7);
        for block in [1, 2, 3, 7] {
            let mut cell = || {
                let pairs = (0..block * block).map(|_| Exp1.sample(&mut random));
                Value::Share(pairs.fold(0.0, f64::max) / 3450.0)
            };
            let grid = Grid {
                columns: 200,
                values: (0..200 * 200).map(|_| cell()).collect(),
                block: [block, block],
            };
            let top = Scale::fitting(&[&grid]).top();
            let above = |value: &&Value| matches!(value, Value::Share(share) if *share > top);
            let above = grid.values.iter().filter(above).count();
            assert!(above <= 400, "{block}: {above} of 40000 above {top}");
        }
    }

    /// Where there are few cells, the scale goes on to the largest.
    #[test]
    fn short_sequences_have_the_whole_scale() {
        for sink in [0.0, 0.5, 0.8] {
            for n in [1, 2, 6, 14] {
                let top = Scale::fitting(&[&grid(n, sink, 0.1)]).top();
                assert_eq!(top, 1.0, "{n} {sink}");
            }
        }
    }

    #[test]
    fn a_scale_is_for_all_its_grids() {
        let [low, high] = [grid(300, 0.0, 0.0), grid(20, 0.0, 0.9)];
        let [low_top, high_top] = [&low, &high].map(|grid| Scale::fitting(&[grid]).top());
        let both = Scale::fitting(&[&low, &high]).top();
        assert!(
            low_top <= both && both < high_top,
            "{low_top} {both} {high_top}"
        );
    }

    #[test]
    fn without_numbers_the_scale_ends_at_1() {
        let mut none = grid(9, 0.0, 0.0);
        assert_eq!(Scale::fitting(&[]).top(), 1.0);
        none.values.fill(Value::Missing);
        assert_eq!(Scale::fitting(&[&none]).top(), 1.0);
        none.values.fill(Value::Share(0.0));
        assert_eq!(Scale::fitting(&[&none]).top(), 1.0);
        // All mass is on sinks: they are what there is.
        assert_eq!(Scale::fitting(&[&grid(300, 1.0, 0.0)]).top(), 1.0);
    }

    #[test]
    fn tops_are_round_and_shares_above_have_its_colour() {
        let tops = [0.0004, 0.011, 0.2, 0.31, 0.6, 1e-9].map(round_up);
        let expected = [5e-4, 0.02, 0.2, 0.5, 1.0, 1e-6];
        for (top, expected) in tops.iter().zip(expected) {
            assert!((top / expected - 1.0).abs() < 1e-12, "{top} {expected}");
        }
        let scale = Scale::to(0.2);
        assert_eq!(scale.position(0.05), 0.5);
        assert_eq!(scale.colour(0.2), scale.colour(0.9));
        assert_ne!(scale.colour(0.2), scale.colour(0.15));
        assert_eq!(
            [0.3 * 0.2, 0.00002, 1.0].map(short),
            ["0.06", "0.00002", "1"]
        );
    }
}
