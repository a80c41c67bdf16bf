//! One row of weights.

use crate::error::{Error, Result};
use crate::memory::room;

/// The weights that one query gives to the keys, and where it stands among them.
///
/// Scores are `None` for a row that [has no numbers](super).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row<'a> {
    weights: &'a [f32],
    position: i64,
}

/// What keys are ranked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RankBy {
    /// W(i, j).
    Weight,
    /// What key j adds to the output, W(i, j) |V_j| for instance.
    Contribution,
}

/// A key of a row's ranking.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    /// The key.
    pub key: usize,
    /// W(i, j).
    pub weight: f64,
    /// Its contribution, as given.
    pub contribution: f64,
}

/// Numbers over their sum, (keys): `None` if one is not finite or below 0, or if the
/// sum is 0.
pub fn shares<T: Copy + Into<f64>>(values: &[T]) -> Option<Vec<f64>> {
    let sum = sum(values)?;
    Some(values.iter().map(|&x| x.into() / sum).collect())
}

/// The sum of numbers that have shares.
fn sum<T: Copy + Into<f64>>(values: &[T]) -> Option<f64> {
    let mut sum = 0.0;
    for &x in values {
        let x: f64 = x.into();
        // False for NaN too.
        if !(x >= 0.0 && x.is_finite()) {
            return None;
        }
        sum += x;
    }
    (sum > 0.0 && sum.is_finite()).then_some(sum)
}

impl<'a> Row<'a> {
    /// Weights by key, (keys), of a query at `position` = i + offset among the keys.
    pub fn new(weights: &'a [f32], position: i64) -> Row<'a> {
        Row { weights, position }
    }

    /// The weights, (keys).
    pub fn weights(self) -> &'a [f32] {
        self.weights
    }

    /// Where the query stands among the keys.
    pub fn position(self) -> i64 {
        self.position
    }

    /// The sum of the weights: 1, less what a sink takes.
    pub fn mass(self) -> Option<f64> {
        sum(self.weights)
    }

    /// The weights over their sum, (keys).
    pub fn shares(self) -> Option<Vec<f64>> {
        shares(self.weights)
    }

    /// Entropy of the shares in nats, -sum p ln p: ln n for n keys looked at evenly, 0
    /// for one. Its exp is over how many keys, as if evenly, a row looks.
    pub fn entropy(self) -> Option<f64> {
        let sum = self.mass()?;
        let share = |&w: &f32| f64::from(w) / sum;
        let plogp = |p: f64| if p > 0.0 { p * p.ln() } else { 0.0 };
        // A row that looks at one key alone has entropy 0, not -0.
        Some(0.0 - self.weights.iter().map(share).map(plogp).sum::<f64>())
    }

    /// The largest weight.
    pub fn largest(self) -> Option<f64> {
        self.mass()?;
        Some(self.weights.iter().map(|&w| w.into()).fold(0.0, f64::max))
    }

    /// Weight on the key before the row's own position; `None` too where there is no
    /// such key.
    pub fn previous_token(self) -> Option<f64> {
        self.mass()?;
        let before = usize::try_from(self.position.checked_sub(1)?).ok()?;
        self.weights.get(before).map(|&w| w.into())
    }

    /// Weight on the first `count` keys together: where models park weight that they
    /// have no use for (Xiao et al. 2024, *Efficient Streaming Language Models with
    /// Attention Sinks*).
    pub fn first_keys(self, count: usize) -> Option<f64> {
        self.mass()?;
        let first = &self.weights[..count.min(self.weights.len())];
        Some(first.iter().map(|&w| f64::from(w)).sum())
    }

    /// Mean distance |i + offset - j| of the keys, by their shares.
    pub fn distance(self) -> Option<f64> {
        let sum = self.mass()?;
        let keys = self.weights.iter().enumerate();
        let away = keys.map(|(j, &w)| f64::from(w) * self.distance_to(j) as f64);
        Some(away.sum::<f64>() / sum)
    }

    /// |i + offset - j|.
    pub(super) fn distance_to(self, j: usize) -> u64 {
        self.position.abs_diff(j as i64)
    }

    /// Weight on the keys that follow an earlier occurrence of the row's own token: what
    /// an induction head looks at, which has seen `[A][B]` and is now at `[A]` (Olsson et
    /// al. 2022, *In-context Learning and Induction Heads*).
    ///
    /// `tokens` are those of the keys. If the token occurred several times before, the
    /// keys after all of them count. `None` too where it did not, and where the row's
    /// position has no token.
    pub fn induction<T: PartialEq>(self, tokens: &[T]) -> Option<f64> {
        let position = self.own_key()?;
        let own = tokens.get(position)?;
        self.after((0..position).filter(|&j| tokens[j] == *own))
    }

    /// The same for a sequence that repeats itself every `period` tokens, which are all
    /// different. `None` too for the first `period` positions and for a period of 0.
    pub fn induction_of_period(self, period: usize) -> Option<f64> {
        let position = self.own_key()?;
        let first = position.checked_rem(period)?;
        self.after((first..position).step_by(period))
    }

    /// The row's position, if it is one of the keys'.
    fn own_key(self) -> Option<usize> {
        let position = usize::try_from(self.position).ok();
        position.filter(|&p| p < self.weights.len())
    }

    /// Weight on the keys after those of `earlier`, which are before the row's own.
    fn after(self, earlier: impl Iterator<Item = usize>) -> Option<f64> {
        self.mass()?;
        earlier
            .map(|j| f64::from(self.weights[j + 1]))
            .reduce(|sum, weight| sum + weight)
    }

    /// The first `count` keys by weight or by contribution, largest first, the lower key
    /// first among equals. Keys of 0 or NaN in what ranks them are left out; a row that
    /// has no numbers has no keys here.
    ///
    /// `contributions` are (keys): W(i, j) |V_j|, W(i, j) |V_j W_O^(h)|, or
    /// [`Contributions::sizes`](super::Contributions::sizes).
    ///
    /// # Errors
    /// [`Error::Shape`] if there are not as many contributions as weights,
    /// [`Error::HostMemory`] if there is none for the ranking.
    pub fn top<T: Copy + Into<f64>>(
        self,
        contributions: &[T],
        by: RankBy,
        count: usize,
    ) -> Result<Vec<Ranked>> {
        if contributions.len() != self.weights.len() {
            let expected = format!("[{}], one a weight", self.weights.len());
            return Err(Error::shape(
                "contributions",
                expected,
                [contributions.len()],
            ));
        }
        if self.mass().is_none() {
            return Ok(Vec::new());
        }
        let rank = |key: &Ranked| match by {
            RankBy::Weight => key.weight,
            RankBy::Contribution => key.contribution,
        };
        let pairs = self.weights.iter().zip(contributions).enumerate();
        let ranked = pairs
            .map(|(key, (&weight, &contribution))| Ranked {
                key,
                weight: weight.into(),
                contribution: contribution.into(),
            })
            .filter(|key| rank(key) > 0.0);
        let mut keys: Vec<Ranked> = room("ranking of keys", &[ranked.clone().count()])?;
        keys.extend(ranked);
        let order = |a: &Ranked, b: &Ranked| {
            let by_rank = rank(b).total_cmp(&rank(a));
            by_rank.then(a.key.cmp(&b.key))
        };
        if count < keys.len() {
            // All that come before it are in front of it then.
            keys.select_nth_unstable_by(count, order);
            keys.truncate(count);
        }
        keys.sort_unstable_by(order);
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_what_a_hand_calculates() {
        // 1/2, 1/4, 1/8, 1/8 at position 2.
        let row = Row::new(&[0.5, 0.25, 0.125, 0.125], 2);
        assert_eq!(row.mass(), Some(1.0));
        assert!((row.entropy().unwrap() - 1.75 * 2f64.ln()).abs() < 1e-15);
        assert_eq!(
            (row.largest(), row.previous_token()),
            (Some(0.5), Some(0.25))
        );
        let first = [0, 1, 3, 9].map(|count| row.first_keys(count).unwrap());
        assert_eq!(first, [0.0, 0.5, 0.875, 1.0]);
        // 2/2 + 1/4 + 0/8 + 1/8.
        assert_eq!(row.distance(), Some(1.375));
    }

    #[test]
    fn a_sink_takes_from_the_mass_and_not_from_the_shares() {
        let (row, whole) = (Row::new(&[0.25, 0.25], 1), Row::new(&[0.5, 0.5], 1));
        assert_eq!((row.mass(), row.previous_token()), (Some(0.5), Some(0.25)));
        assert_eq!(row.shares(), Some(vec![0.5, 0.5]));
        assert_eq!(row.entropy(), whole.entropy());
        assert_eq!(row.distance(), whole.distance());
    }

    #[test]
    fn rows_without_numbers_have_no_scores() {
        let nothing: [&[f32]; 5] = [
            &[],
            &[0.0, -0.0],
            &[0.5, f32::NAN],
            &[f32::INFINITY, 0.5],
            &[1.5, -0.5],
        ];
        for weights in nothing {
            let row = Row::new(weights, 1);
            let scores = [
                row.mass(),
                row.entropy(),
                row.largest(),
                row.previous_token(),
                row.first_keys(1),
                row.distance(),
                row.induction(&["a", "a"]),
                row.induction_of_period(1),
            ];
            assert_eq!(scores, [None; 8], "{weights:?}");
            assert_eq!(row.shares(), None);
            let top = row.top(&vec![1f32; weights.len()], RankBy::Contribution, 9);
            assert_eq!(top.unwrap(), []);
        }
    }

    #[test]
    fn the_key_before_depends_on_the_position() {
        let weights = [0.5, 0.25, 0.25];
        let previous = [-5, 0, 1, 3, 4, i64::MIN, i64::MAX]
            .map(|position| Row::new(&weights, position).previous_token());
        let none = None;
        assert_eq!(
            previous,
            [none, none, Some(0.5), Some(0.25), none, none, none]
        );
    }

    #[test]
    fn induction_counts_every_earlier_occurrence() {
        // a b a c a: the row is at the last a, before it are two.
        let row = Row::new(&[0.125, 0.25, 0.0625, 0.5, 0.0625], 4);
        assert_eq!(row.induction(&["a", "b", "a", "c", "a"]), Some(0.75));
        // What comes later, and what has not been seen, does not count.
        assert_eq!(row.induction(&["a", "b", "c", "d", "e"]), None);
        assert_eq!(Row::new(&[0.5; 4], 1).induction(&[1, 2, 2, 2]), None);
        // A token that follows itself: the key after the earlier one is the row's own.
        assert_eq!(Row::new(&[0.25, 0.75], 1).induction(&[7, 7]), Some(0.75));
        // No token, no score: padding has none.
        assert_eq!(row.induction(&["a", "b", "a"]), None);
        assert_eq!(Row::new(&[0.5; 3], 3).induction(&[1, 1, 1, 1]), None);
        assert_eq!(Row::new(&[0.5; 3], -1).induction(&[1, 1, 1]), None);
    }

    #[test]
    fn induction_by_period() {
        let weights = [0.0, 0.125, 0.0, 0.25, 0.5, 0.125];
        let at = |position, period| Row::new(&weights, position).induction_of_period(period);
        assert_eq!(at(3, 3), Some(0.125));
        assert_eq!(at(5, 3), Some(0.25));
        // Every 2: positions 0 and 2 are before 4.
        assert_eq!(at(4, 2), Some(0.375));
        assert_eq!([at(2, 3), at(3, 0), at(6, 3), at(-1, 3)], [None; 4]);
    }

    #[test]
    fn the_largest_weight_may_be_the_smallest_contribution() {
        let row = Row::new(&[0.5, 0.25, 0.0, 0.25], 3);
        let contributions = [0.05f32, 0.25, 0.0, 1.0];
        let keys = |by, count| -> Vec<usize> {
            let top = row.top(&contributions, by, count).unwrap();
            top.iter().map(|key| key.key).collect()
        };
        assert_eq!(keys(RankBy::Weight, 9), [0, 1, 3]);
        assert_eq!(keys(RankBy::Contribution, 9), [3, 1, 0]);
        assert_eq!(keys(RankBy::Contribution, 1), [3]);
        assert_eq!(keys(RankBy::Weight, 2), [0, 1]);
        assert_eq!(keys(RankBy::Weight, 0), [0; 0]);
        let [first] = row.top(&contributions, RankBy::Weight, 1).unwrap()[..] else {
            panic!("one key");
        };
        assert_eq!(
            (first.weight, first.contribution),
            (0.5, f64::from(0.05f32))
        );
    }

    #[test]
    fn contributions_that_are_not_numbers_do_not_rank() {
        let row = Row::new(&[0.5, 0.25, 0.25], 0);
        let contributions = [f64::NAN, 1.0, f64::INFINITY];
        let top = row.top(&contributions, RankBy::Contribution, 3).unwrap();
        assert_eq!(top.iter().map(|key| key.key).collect::<Vec<_>>(), [2, 1]);
        let top = row.top(&contributions, RankBy::Weight, 1).unwrap();
        assert!(top[0].key == 0 && top[0].contribution.is_nan());
        let refused = row.top(&contributions[..2], RankBy::Weight, 1);
        assert_eq!(
            refused.unwrap_err().to_string(),
            "contributions: expected shape [3], one a weight, got [2]"
        );
    }
}
