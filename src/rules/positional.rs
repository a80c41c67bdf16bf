//! The definition of positional visibility: causal mask, window, lengths.
//!
//! This file is the definition that the oracle and the planner share with the
//! kernels; its WGSL twin is `shaders/lib/sequence.wgsl`. For one row these
//! rules leave one interval of keys, which is what makes tile skipping exact.

use std::ops::Range;

use crate::rules::options::{Alignment, Options};

/// Positional visibility within one batch entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visibility {
    /// `j <= p` only.
    pub causal: bool,
    /// `j >= p - left`, if given.
    pub left: Option<u32>,
    /// `j <= p + right`, if given.
    pub right: Option<u32>,
    /// `p = i + offset`.
    pub offset: i64,
    /// Keys `j >= kv_len` are excluded.
    pub kv_len: u32,
    /// Rows `i >= q_len` see nothing.
    pub q_len: u32,
}

impl Visibility {
    /// The visibility of one batch entry: `kv_len` and `q_len` are its own
    /// lengths, `per_sequence` its own offset where the alignment asks for one.
    pub fn new(options: &Options, kv_len: u32, q_len: u32, per_sequence: Option<i32>) -> Self {
        let offset = match options.alignment {
            Alignment::TopLeft => 0,
            Alignment::BottomRight => i64::from(kv_len) - i64::from(q_len),
            Alignment::Offset(offset) => i64::from(offset),
            Alignment::PerSequence => i64::from(per_sequence.unwrap_or(0)),
        };
        Visibility {
            causal: options.causal,
            left: options.window.left,
            right: options.window.right,
            offset,
            kv_len,
            q_len,
        }
    }

    /// Whether row `i` may see key `j`: the definition, rule by rule.
    pub fn allows(&self, i: u32, j: u32) -> bool {
        let position = i64::from(i) + self.offset;
        let key = i64::from(j);
        i < self.q_len
            && j < self.kv_len
            && (!self.causal || key <= position)
            && self
                .left
                .is_none_or(|left| key >= position - i64::from(left))
            && self
                .right
                .is_none_or(|right| key <= position + i64::from(right))
    }

    /// The interval of keys that row `i` may see, derived from the definition.
    pub fn keys_of_row(&self, i: u32) -> Range<u32> {
        if i >= self.q_len {
            return 0..0;
        }
        let position = i64::from(i) + self.offset;
        let first = self.left.map_or(0, |left| position - i64::from(left));
        let mut end = i64::from(self.kv_len);
        if self.causal {
            end = end.min(position + 1);
        }
        if let Some(right) = self.right {
            end = end.min(position + i64::from(right) + 1);
        }
        let end = end.max(0);
        first.clamp(0, end) as u32..end as u32
    }

    /// Distance `|i + offset - j|` that ALiBi multiplies with the slope.
    pub fn distance(&self, i: u32, j: u32) -> u64 {
        (i64::from(i) + self.offset - i64::from(j)).unsigned_abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::options::Window;

    fn brute(v: &Visibility, i: u32, nk: u32) -> Vec<u32> {
        (0..nk).filter(|&j| v.allows(i, j)).collect()
    }

    #[test]
    fn interval_is_the_definition() {
        let sides = [None, Some(0), Some(1), Some(3), Some(u32::MAX)];
        let offsets = [i64::from(i32::MIN), -9, -1, 0, 1, 4, i64::from(i32::MAX)];
        let mut compared = 0;
        for causal in [false, true] {
            for left in sides {
                for right in sides {
                    for offset in offsets {
                        for (q_len, kv_len) in [(7, 9), (0, 9), (7, 0), (3, 5)] {
                            let v = Visibility {
                                causal,
                                left,
                                right,
                                offset,
                                kv_len,
                                q_len,
                            };
                            for i in 0..8 {
                                let interval: Vec<u32> = v.keys_of_row(i).collect();
                                assert_eq!(interval, brute(&v, i, 12), "{v:?} row {i}");
                                compared += 1;
                            }
                        }
                    }
                }
            }
        }
        assert_eq!(compared, 2 * 5 * 5 * 7 * 4 * 8);
    }

    #[test]
    fn causal_shows_the_diagonal_and_nothing_after_it() {
        let options = Options::default()
            .causal(true)
            .alignment(Alignment::TopLeft);
        let v = Visibility::new(&options, 6, 6, None);
        for i in 0..6 {
            assert_eq!(brute(&v, i, 6), (0..=i).collect::<Vec<_>>());
        }
    }

    #[test]
    fn bottom_right_follows_the_lengths() {
        let options = Options::default().causal(true);
        let v = Visibility::new(&options, 5, 2, None);
        assert_eq!(v.keys_of_row(0), 0..4);
        assert_eq!(v.keys_of_row(1), 0..5);
    }

    #[test]
    fn last_counts_the_own_position() {
        let options = Options::default()
            .window(Window::last(2).unwrap())
            .alignment(Alignment::TopLeft);
        let v = Visibility::new(&options, 6, 6, None);
        assert_eq!(v.keys_of_row(0), 0..1);
        assert_eq!(v.keys_of_row(4), 3..5);
        assert!(Window::last(0).is_err());
    }
}
