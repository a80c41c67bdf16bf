//! Numbers about a head: what each row's weights are like, and the head as a whole.

use wgpu_attention::interpret::{Mean, RankBy, Row, SATURATED, shares};

use crate::inspect::view::HeadView;

/// A key, what a row gives it, and its share of what the row takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Top {
    pub key: usize,
    /// W(i, j).
    pub weight: f64,
    /// W(i, j) as a share of its sum over j, which a sink makes less than 1.
    pub weight_share: f64,
    /// W(i, j) |V_j| as a share of its sum over j; NaN where there is none.
    pub share: f64,
}

/// One row. Every number but `row` is missing for a row that sees no key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowScores {
    pub row: usize,
    /// Entropy of the weights over the keys, -sum p ln p, in nats. The weights
    /// are divided by their sum first: a sink's part does not count.
    pub entropy: Option<f64>,
    /// The key of the largest weight.
    pub weight: Option<Top>,
    /// The key of the largest contribution; missing too where contributions are
    /// not finite, or all 0.
    pub contribution: Option<Top>,
    /// Half the sum over j of |p_j - c_j|, p the weights and c the contributions,
    /// each as shares of its row's sum: their total variation distance, 0 to 1.
    pub disagreement: Option<f64>,
    /// 1 - the sum of the weights: what a sink takes.
    pub sink: f64,
    largest: Option<f64>,
    previous: Option<f64>,
    induction: Option<f64>,
    first: Option<f64>,
    distance: Option<f64>,
}

/// Means over the rows that see a key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadScores {
    /// The rows that see a key.
    pub rows: usize,
    /// Mean entropy in nats.
    pub entropy: f64,
    /// Mean of exp(entropy): over how many keys, as if evenly, a row looks.
    pub effective_keys: f64,
    /// Mean of the largest weight.
    pub largest: f64,
    /// Share of rows whose largest weight is over 0.99.
    pub saturated: f64,
    /// Mean weight on the key before the row's own position, over rows that have one.
    pub previous: f64,
    /// Mean weight on the keys after earlier occurrences of the row's token, over rows
    /// whose token occurred before; missing where tokens have no names or none did.
    pub induction: Option<f64>,
    /// Mean weight on key 0.
    pub first: f64,
    /// Mean distance |i + offset - j| of a key from the row's position, weighted.
    pub distance: f64,
    /// Mean disagreement of weights and contributions.
    pub disagreement: f64,
    /// Mean weight of the sink, where there is one.
    pub sink: Option<f64>,
}

/// One row of `view`.
pub fn row(view: &HeadView, row: usize) -> RowScores {
    let weights = view.row(&view.weights, row);
    let contributions = view.row(&view.contributions, row);
    let of = Row::new(weights, row as i64 + view.offset);
    let p = of.shares();
    // A row that sees no key has no contributions either.
    let c = shares(contributions);
    let top = |by: RankBy| {
        let top = of.top(contributions, by, 1).ok()?;
        top.first().map(|top| Top {
            key: top.key,
            weight: top.weight,
            weight_share: p.as_ref().map_or(f64::NAN, |p| p[top.key]),
            share: c.as_ref().map_or(f64::NAN, |c| c[top.key]),
        })
    };
    let tokens = view.tokens.keys.as_deref();
    RowScores {
        row,
        entropy: of.entropy(),
        weight: top(RankBy::Weight),
        contribution: c.as_ref().and_then(|_| top(RankBy::Contribution)),
        disagreement: p.as_ref().zip(c.as_ref()).map(|(p, c)| {
            let apart = p.iter().zip(c).map(|(p, c)| (p - c).abs());
            apart.sum::<f64>() / 2.0
        }),
        // Rounding may bring the sum over 1.
        sink: of.mass().map_or(0.0, |mass| (1.0 - mass).max(0.0)),
        largest: of.largest(),
        previous: of.previous_token(),
        induction: tokens.and_then(|tokens| of.induction(tokens)),
        first: of.first_keys(1),
        distance: of.distance(),
    }
}

/// Every row of `view`.
pub fn rows(view: &HeadView) -> Vec<RowScores> {
    view.rows.clone().map(|i| row(view, i)).collect()
}

/// The head as a whole, from the scores of its rows. A mean over no row is NaN.
pub fn head(view: &HeadView, rows: &[RowScores]) -> HeadScores {
    let rows: Vec<_> = rows.iter().filter(|r| r.entropy.is_some()).collect();
    let mean = |of: fn(&RowScores) -> Option<f64>| Mean::of(rows.iter().map(|r| of(r)));
    let induction = mean(|r| r.induction);
    HeadScores {
        rows: rows.len(),
        entropy: mean(|r| r.entropy).value,
        effective_keys: mean(|r| r.entropy.map(f64::exp)).value,
        largest: mean(|r| r.largest).value,
        saturated: mean(|r| r.largest.map(|w| f64::from(u8::from(w > SATURATED)))).value,
        previous: mean(|r| r.previous).value,
        induction: (induction.rows > 0).then_some(induction.value),
        first: mean(|r| r.first).value,
        distance: mean(|r| r.distance).value,
        disagreement: mean(|r| r.disagreement).value,
        sink: view.sink.then(|| mean(|r| Some(r.sink)).value),
    }
}

/// The rows where weights and contributions disagree most, worst first: at most
/// `count`, and none where they agree.
pub fn worst(rows: &[RowScores], count: usize) -> Vec<RowScores> {
    let apart = |r: &RowScores| r.disagreement.filter(|d| *d >= 0.005);
    let mut worst: Vec<RowScores> = rows
        .iter()
        .copied()
        .filter(|r| apart(r).is_some())
        .collect();
    worst.sort_by(|a, b| {
        let by = |r: &RowScores| r.disagreement.unwrap_or(0.0);
        by(b).total_cmp(&by(a)).then(a.row.cmp(&b.row))
    });
    worst.truncate(count);
    worst
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::view::Tokens;

    /// Values of the sizes `norms`, and no mask.
    fn view(weights: &[&[f32]], norms: &[f32]) -> HeadView {
        let pairs: Vec<f32> = weights.concat();
        HeadView {
            through: false,
            scale: None,
            batch: 0,
            head: 0,
            rows: 0..weights.len(),
            queries: weights.len(),
            keys: norms.len(),
            offset: 0,
            sink: false,
            tokens: Tokens::default(),
            contributions: (pairs.iter().zip(norms.iter().cycle()))
                .map(|(w, v)| w * v)
                .collect(),
            visible: vec![true; pairs.len()],
            weights: pairs,
        }
    }

    #[test]
    fn uniform_attention_has_the_entropy_ln_n() {
        let view = view(&[&[0.25; 4], &[0.25; 4]], &[1.0; 4]);
        let rows = rows(&view);
        let head = head(&view, &rows);
        assert!((head.entropy - 4f64.ln()).abs() < 1e-12);
        assert!((head.effective_keys - 4.0).abs() < 1e-12);
        assert_eq!(
            (head.rows, head.disagreement, head.saturated),
            (2, 0.0, 0.0)
        );
        // Position 1 has key 0 before it; position 0 has nothing before it.
        assert_eq!((head.previous, head.first), (0.25, 0.25));
        assert!((head.distance - (1.5 + 1.0) / 2.0).abs() < 1e-12);
        assert!(worst(&rows, 8).is_empty());
    }

    #[test]
    fn the_largest_weight_may_be_the_smallest_contribution() {
        let view = view(&[&[0.5, 0.3, 0.2], &[0.0, 1.0, 0.0]], &[0.1, 1.0, 2.0]);
        let scores = rows(&view);
        let (weight, contribution) = (scores[0].weight.unwrap(), scores[0].contribution.unwrap());
        assert_eq!((weight.key, contribution.key), (0, 2));
        assert!((weight.share - 0.05 / 0.75).abs() < 1e-6);
        assert!((contribution.share - 0.4 / 0.75).abs() < 1e-6);
        // 0.5 - 0.0667 of the mass moves.
        assert!((scores[0].disagreement.unwrap() - (0.5 - 0.05 / 0.75)).abs() < 1e-6);
        assert_eq!(
            (scores[1].entropy, scores[1].disagreement),
            (Some(0.0), Some(0.0))
        );
        assert_eq!(head(&view, &scores).saturated, 0.5);
        let worst = worst(&scores, 8);
        assert_eq!(worst.iter().map(|r| r.row).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn induction_needs_tokens_that_occur_again() {
        let mut view = view(
            &[&[1.0, 0.0, 0.0], &[0.5, 0.5, 0.0], &[0.0, 0.75, 0.25]],
            &[1.0; 3],
        );
        let induction = |view: &HeadView| head(view, &rows(view)).induction;
        assert_eq!(induction(&view), None);
        let names = |names: [&str; 3]| Some(names.map(str::to_owned).to_vec());
        view.tokens.keys = names(["a", "b", "a"]);
        assert_eq!(induction(&view), Some(0.75));
        view.tokens.keys = names(["a", "b", "c"]);
        assert_eq!(induction(&view), None);
    }

    #[test]
    fn rows_without_numbers_have_none() {
        let mut view = view(&[&[0.0, 0.0], &[0.5, 0.5]], &[1.0, f32::INFINITY]);
        view.contributions[1] = 0.0;
        let scores = rows(&view);
        assert_eq!((scores[0].entropy, scores[0].disagreement), (None, None));
        assert!(scores[1].entropy.is_some() && scores[1].disagreement.is_none());
        assert!(scores[1].weight.unwrap().share.is_nan() && scores[1].contribution.is_none());
        assert_eq!(head(&view, &scores).rows, 1);
    }
}
