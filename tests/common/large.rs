//! Cases whose scores f32 rounds by more than they differ, and cases whose scores
//! overflow to -inf or meet infinities.
#![allow(dead_code)]

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::{Alignment, DType};

use crate::common::{Elements, OwnedCase, Shape, generate};

/// What makes the scores large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Large {
    /// This bias on every pair of a row.
    WholeRows(i32),
    /// On some pairs of a row, and on all of some rows.
    PartOfRows(i32),
    /// The same with the bias of the given index of [`HUGE`].
    Huge(usize),
    /// Positions from 2^30 on.
    Alibi,
    /// Queries of large amplitude.
    Peaked,
}

/// Biases that no i32 holds.
pub const HUGE: [f32; 3] = [-3e38, f32::MIN, -1e30];

impl Large {
    pub const ALL: [Large; 11] = [
        Large::WholeRows(-1_000_000_000),
        Large::WholeRows(-10_000),
        Large::WholeRows(-1_000_000),
        Large::PartOfRows(-1_000_000_000),
        Large::PartOfRows(-10_000),
        Large::PartOfRows(1_000_000_000),
        Large::Huge(0),
        Large::Huge(1),
        Large::Huge(2),
        Large::Alibi,
        Large::Peaked,
    ];

    /// A case of 18 rows of each of 2 heads.
    pub fn case(self, seed: u64) -> OwnedCase {
        let rng = &mut StdRng::seed_from_u64(seed);
        let (rows, keys) = (18, rng.random_range(2..40));
        let shape = Shape::f32([1, 2, rows, 6], 1, keys, 3);
        let mut case = generate(seed, shape, &[]);
        case.name = format!("{self:?} {}", case.name);
        if rng.random_bool(0.3) {
            let sinks = [-1e9, -1e9 + 64.0, -3.0, 2.0];
            case.sinks = Some((0..2).map(|_| sinks[rng.random_range(0..4)]).collect());
        }
        if rng.random_bool(0.2) {
            case.options.softcap = Some(3.0);
        }
        let part = matches!(self, Large::PartOfRows(_)) || rng.random_bool(0.3);
        let amount = match self {
            Large::WholeRows(amount) | Large::PartOfRows(amount) => amount as f32,
            Large::Huge(index) => HUGE[index],
            Large::Alibi => {
                let offset = (1 << 30) - rng.random_range(0..3 * keys) as i32;
                case.options.alignment = Alignment::Offset(offset);
                case.alibi_slopes = Some(vec![0.5, 2f32.powi(-rng.random_range(3..9))]);
                return case;
            }
            Large::Peaked => {
                for n in 0..case.query.len() {
                    let q = case.query.data().get(n);
                    case.query.set(n, q * 1e7);
                }
                return case;
            }
        };
        let mut bias = vec![amount; rows * keys];
        for row in bias.chunks_mut(keys) {
            if part && rng.random_bool(0.7) {
                row.iter_mut()
                    .filter(|_| rng.random_bool(0.4))
                    .for_each(|b| *b = 0.5);
            }
        }
        case.bias = Some((Elements::new(&bias, DType::F32), [1, 1, rows, keys]));
        case
    }
}

/// A row of width 1, and how many of its two results (output, lse) are determined.
pub struct Edge {
    pub case: OwnedCase,
    pub determined: [bool; 2],
}

/// Rows with visible keys whose scores are infinite.
pub fn edges() -> Vec<Edge> {
    const INF: f32 = f32::INFINITY;
    let (both, output, neither) = ([true; 2], [true, false], [false; 2]);
    let edge = |name: &str, query: &[f32], keys: &[f32], determined| {
        let (dim, n) = (query.len(), keys.len() / query.len());
        let mut case = generate(3, Shape::f32([1, 1, 1, dim], 1, n, 2), &[]);
        case.name = name.to_owned();
        case.query = Elements::new(query, DType::F32);
        case.key = Elements::new(keys, DType::F32);
        case.options.scale = Some(1.0);
        Edge { case, determined }
    };
    let change = |mut edge: Edge, change: &dyn Fn(&mut OwnedCase)| {
        change(&mut edge.case);
        edge
    };
    let bias = |values: &[f32]| {
        let shape = [1, 1, 1, values.len()];
        Some((Elements::new(values, DType::F32), shape))
    };
    let low = [-1e20, 0.0, 1e-20, 2e-20, -1e20];
    let mut all = vec![
        edge("q k overflows", &[1e20], &low, both),
        edge("one key is left", &[1e20], &[-1e20, -1e19, 1e-20], both),
        edge("every key is -inf", &[1e20], &[-1e20, -2e20], neither),
        edge("an infinite key", &[1.0], &[-INF, 0.5, 1.0], both),
        edge("an infinite query", &[INF], &[-1.0, -2.0, -0.5], neither),
        edge("+inf", &[1.0], &[INF, 0.5, 1.0], output),
        edge("+inf by overflow", &[1e20], &[1e20, 0.5, 1.0], output),
        edge("+inf and -inf", &[1.0], &[INF, -INF, 1.0], output),
        edge("infinity times 0", &[0.0], &[-INF, 0.5, 1.0], both),
        edge(
            "infinities of both signs",
            &[1.0, 1.0],
            &[INF, -INF, 0.0, 1.0],
            both,
        ),
        edge(
            "a sum overflows",
            &[1.0, 1.0],
            &[-3e38, -3e38, 0.5, 1.0, 1.0, 0.0],
            both,
        ),
        edge(
            "both ways",
            &[1e20, 1e20],
            &[1e20, -1e20, 0.0, 1e-20],
            neither,
        ),
    ];
    // Whether it overflows depends on where the scale is; it has no weight either way.
    let halved = edge("may overflow", &[1.0, 1.0], &[-3e38, -3e38, 0.5, 1.0], both);
    all.push(change(halved, &|case| case.options.scale = Some(0.25)));
    let alone = edge("may overflow, alone", &[1.0, 1.0], &[-3e38, -3e38], neither);
    all.push(change(alone, &|case| case.options.scale = Some(0.25)));
    let negative = edge("a negative scale", &[1e20], &[1e20, 0.0, 1e-20], both);
    all.push(change(negative, &|case| case.options.scale = Some(-1.0)));
    let capped = edge("softcap of -inf", &[1e20], &low, both);
    all.push(change(capped, &|case| case.options.softcap = Some(2.0)));
    let capped = edge("softcap of +inf", &[1e20], &[1e20, 0.0, 1e-20], both);
    all.push(change(capped, &|case| case.options.softcap = Some(2.0)));
    let sink = edge(
        "every key is -inf, and a sink",
        &[1e20],
        &[-1e20, -2e20],
        both,
    );
    all.push(change(sink, &|case| case.sinks = Some(vec![1.5])));
    let biased = edge("a bias of +inf", &[1.0], &[0.1, 0.2, 0.3], output);
    all.push(change(biased, &|case| case.bias = bias(&[0.0, INF, 1.0])));
    let biased = edge("a bias of +inf at -inf", &[1.0], &[-INF, 0.2, 0.3], both);
    all.push(change(biased, &|case| case.bias = bias(&[INF, 0.0, 1.0])));
    let biased = edge("bias and ALiBi overflow", &[1.0], &[0.1, 0.2, 0.3], both);
    all.push(change(biased, &|case| {
        case.bias = bias(&[-3e38, 0.0, 0.0]);
        case.alibi_slopes = Some(vec![1e38]);
    }));
    // -slope * distance alone is -4e38; with a bias of 3e38 the sum is -1e38 or -inf.
    let cancelled = edge("a bias cancels ALiBi", &[1.0], &[0.1, 0.2, 0.3], both);
    all.push(change(cancelled, &|case| {
        case.bias = bias(&[3e38, 0.0, 0.0]);
        case.alibi_slopes = Some(vec![2e38]);
    }));
    let cancelled = edge(
        "a bias cancels ALiBi, alone",
        &[1.0],
        &[0.1, 0.2, 0.3],
        neither,
    );
    all.push(change(cancelled, &|case| {
        case.bias = bias(&[3e38, 3e38, 3e38]);
        case.alibi_slopes = Some(vec![2e38]);
        case.options.alignment = Alignment::Offset(-3);
    }));
    all
}
