//! The numbers as text and as JSON.

use serde_json::{Value, json};
use wgpu_attention::interpret::{SATURATED, ScoreStatistics};

use crate::inspect::legend::{decimals, two};
use crate::inspect::scores::{HeadScores, RowScores, Top};
use crate::inspect::view::{HeadView, token};

/// One head in a few lines.
pub fn head(view: &HeadView, scores: &HeadScores) -> Vec<String> {
    let sink = match scores.sink {
        Some(sink) => format!(", sink {}", two(sink)),
        None => String::new(),
    };
    let induction = match scores.induction {
        Some(induction) => format!(", after its token's earlier occurrences {}", two(induction)),
        None => String::new(),
    };
    let share = |x: f64| match x.is_nan() {
        true => two(x),
        false => format!("{:.1} %", x * 100.0),
    };
    let mut lines = vec![
        format!(
            "head {}: {} of {} rows see a key; means over them:",
            view.head,
            scores.rows,
            view.rows.len()
        ),
        format!(
            "  entropy {} nats (as over {} keys evenly), largest weight {}{sink}",
            two(scores.entropy),
            decimals(scores.effective_keys, 1),
            two(scores.largest),
        ),
        format!(
            "  weight on the previous token {}{induction}, on the first key {}; distance {} keys; disagreement {}",
            two(scores.previous),
            two(scores.first),
            decimals(scores.distance, 1),
            two(scores.disagreement),
        ),
    ];
    if let Some(effect) = &view.scale {
        let ScoreStatistics {
            mean, deviation, ..
        } = effect.unscaled;
        let of_scale = |scale: f64, saturated: f64| {
            format!(
                "scores {} ± {}, softmax saturated in {} of rows",
                two(mean * scale),
                two(deviation * scale.abs()),
                share(saturated),
            )
        };
        let root = effect.root_of.map(|dim| format!(", 1/sqrt({dim})"));
        lines.push(format!(
            "  with the scale {}{}: {} (one key has over {SATURATED} of the weight)",
            decimals(effect.scale, 4),
            root.unwrap_or_default(),
            of_scale(effect.scale, scores.saturated),
        ));
        if effect.scale != 1.0 {
            lines.push(format!(
                "  the same queries and keys with the scale 1: {}",
                of_scale(1.0, effect.saturated_unscaled),
            ));
        }
    }
    lines
}

/// A line a row, under two lines that say what is in them.
pub fn rows(view: &HeadView, rows: &[RowScores]) -> Vec<String> {
    let name = |i: usize| view.query_name(i);
    let wide = |texts: &mut dyn Iterator<Item = String>, least: usize| {
        texts
            .map(|t| t.chars().count())
            .max()
            .unwrap_or(0)
            .max(least)
    };
    let queries = wide(&mut view.rows.clone().map(name), 5);
    let keys = wide(&mut (0..view.keys).map(|j| view.key_name(j)), 6);
    let top = |top: Option<Top>| match top {
        Some(t) => format!(
            "{:<keys$} {:>6} {:>12}",
            view.key_name(t.key),
            decimals(t.weight, 3),
            decimals(t.share, 3)
        ),
        None => format!("{:<keys$} {:>6} {:>12}", "–", "–", "–"),
    };
    let number = |x: Option<f64>| decimals(x.unwrap_or(f64::NAN), 3);
    let norm = match view.through {
        false => "|V(j)|",
        true => "|V(j) W_O|",
    };
    let explained = format!("contribution: W(i, j) {norm} as a share of its row's sum");
    let mut lines = vec![
        explained,
        format!(
            "{:<queries$}  {:>7} {:>6}  {:<keys$} {:>6} {:>12}  {:<keys$} {:>6} {:>12}  {:>12}",
            "query",
            "entropy",
            "keys",
            "most weight on",
            "weight",
            "contribution",
            "most contributed by",
            "weight",
            "contribution",
            "disagreement",
        ),
    ];
    lines.extend(rows.iter().map(|r| {
        format!(
            "{:<queries$}  {:>7} {:>6}  {}  {}  {:>12}",
            name(r.row),
            number(r.entropy),
            decimals(r.entropy.map_or(f64::NAN, f64::exp), 1),
            top(r.weight),
            top(r.contribution),
            number(r.disagreement),
        )
    }));
    lines
}

/// One head and its rows.
pub fn json(view: &HeadView, scores: &HeadScores, rows: &[RowScores]) -> Value {
    let top = |top: Option<Top>| {
        top.map(|top| {
            json!({
                "key": top.key,
                "token": token(&view.tokens.keys, top.key),
                "weight": finite(top.weight),
                "share": finite(top.share),
            })
        })
    };
    let rows = rows.iter().map(|r| {
        json!({
            "row": r.row,
            "token": token(&view.tokens.queries, r.row),
            "entropy": r.entropy.and_then(finite),
            "effective_keys": r.entropy.map(f64::exp).and_then(finite),
            "largest_weight": top(r.weight),
            "largest_contribution": top(r.contribution),
            "disagreement": r.disagreement.and_then(finite),
        })
    });
    json!({
        "head": view.head,
        "rows_that_see_a_key": scores.rows,
        "entropy": finite(scores.entropy),
        "effective_keys": finite(scores.effective_keys),
        "largest_weight": finite(scores.largest),
        "saturated": finite(scores.saturated),
        "previous_token": finite(scores.previous),
        "induction": scores.induction.and_then(finite),
        "first_key": finite(scores.first),
        "distance": finite(scores.distance),
        "disagreement": finite(scores.disagreement),
        "sink": scores.sink.and_then(finite),
        "scores": view.scale.map(|effect| json!({
            "scale": effect.scale,
            "mean": finite(effect.unscaled.mean * effect.scale),
            "deviation": finite(effect.unscaled.deviation * effect.scale.abs()),
            "mean_before_scale": finite(effect.unscaled.mean),
            "deviation_before_scale": finite(effect.unscaled.deviation),
            "saturated_with_scale_1": finite(effect.saturated_unscaled),
        })),
        "rows": rows.collect::<Vec<_>>(),
    })
}

/// A number that JSON has; null for the others.
fn finite(x: f64) -> Option<f64> {
    x.is_finite().then_some(x)
}
