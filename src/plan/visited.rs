//! How many tiles of keys the rows of one tile may visit at most.

use crate::plan::task::Task;
use crate::rules::options::Alignment;
use crate::view::lists::{ListKind, ListSource};

/// What is known before the run about the lengths and the position of an entry of the
/// batch: the least and the most.
#[derive(Debug, Clone, Copy)]
struct Entry {
    kv_len: i64,
    q_len: i64,
    offset: (i64, i64),
}

/// The most tiles of `tile_keys` keys that a kernel visits for one tile of `tile_rows`
/// rows, in whatever row the tile begins. What only the GPU will know counts with its
/// worst value.
pub(crate) fn most_tiles(task: &Task, tile_rows: u32, tile_keys: u32) -> u64 {
    let host = |kind| match task.list(kind) {
        Some(ListSource::Host(words)) => words.as_slice(),
        _ => &[],
    };
    let (kv_lengths, q_lengths) = (host(ListKind::KvLengths), host(ListKind::QLengths));
    let offsets = host(ListKind::Offsets);
    let all = task.dims.kv_len as i64;
    let rows = task.dims.q_len as i64;
    let is_unknown = |kind| matches!(task.list(kind), Some(ListSource::Buffer { .. }));
    let entry = |b: usize| {
        // More keys show no row less, wherever it stands: unknown lengths are the most.
        let kv_len = kv_lengths.get(b).map_or(all, |&n| i64::from(n).min(all));
        let q_len = q_lengths.get(b).map_or(rows, |&n| i64::from(n).min(rows));
        let least = if is_unknown(ListKind::QLengths) {
            0
        } else {
            q_len
        };
        let offset = match task.options.alignment {
            Alignment::TopLeft => (0, 0),
            Alignment::BottomRight => (kv_len - q_len, kv_len - least),
            Alignment::Offset(offset) => (i64::from(offset), i64::from(offset)),
            Alignment::PerSequence => match offsets.get(b) {
                Some(&word) => (i64::from(word as i32), i64::from(word as i32)),
                None => (i64::from(i32::MIN), i64::from(i32::MAX)),
            },
        };
        Entry {
            kv_len,
            q_len,
            offset,
        }
    };
    // Entries differ only by what the host's lists say.
    let entries = kv_lengths.len().max(q_lengths.len()).max(offsets.len());
    let tiles = |b| tiles_of(task, entry(b), i64::from(tile_rows), i64::from(tile_keys));
    (0..entries.max(1)).map(tiles).max().unwrap_or(0)
}

/// The same of one entry. Both ends of a row's interval of keys grow with the row, so
/// the first row has the first key and the last row the last one; where both sides
/// are bounded, the rows of one tile are no further apart than the tile is high.
fn tiles_of(task: &Task, entry: Entry, tile_rows: i64, tile_keys: i64) -> u64 {
    let region = task.facts.region.as_ref().map(|region| &region.rows);
    let (start, end) = region.map_or((0, entry.q_len), |rows| {
        (rows.start as i64, entry.q_len.min(rows.end as i64))
    });
    if start >= end {
        return 0;
    }
    let left = task.options.window.left.map(i64::from);
    let right = match task.options.causal {
        true => Some(0),
        false => task.options.window.right.map(i64::from),
    };
    let (least, most) = entry.offset;
    let first = left.map_or(0, |left| (start + least - left).max(0));
    let keys_end = right.map_or(entry.kv_len, |right| {
        entry.kv_len.min(end - 1 + most + right + 1)
    });
    let mut keys = (keys_end - first).max(0);
    if let (Some(left), Some(right)) = (left, right) {
        keys = keys.min(tile_rows.min(end - start) + left + right);
    }
    let tiles = match keys {
        // An interval that ends before it begins may do so within a tile.
        0 => 1,
        // From key 0 on.
        _ if left.is_none() => (keys as u64).div_ceil(tile_keys as u64),
        // Wherever they begin within a tile.
        _ => (keys as u64 - 1).div_ceil(tile_keys as u64) + 1,
    };
    tiles.min((entry.kv_len as u64).div_ceil(tile_keys as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::problem::Problem;
    use crate::rules::dims::Dims;
    use crate::rules::options::{Options, Window};
    use crate::rules::positional::Visibility;
    use crate::rules::region::Region;
    use crate::view::dtype::DType;

    const NK: usize = 23;
    const NQ: usize = 9;
    const BATCH: usize = 2;
    const ROWS: u32 = 4;
    const KEYS: u32 = 4;

    /// The most tiles of keys that a tile of rows visits: from the first key that any row
    /// sees to the last, by the definition; as the shaders go, which look into one tile
    /// where an interval is empty.
    fn visited(visibility: &Visibility, rows: std::ops::Range<u32>, q_len: u32) -> u64 {
        let mut most = 0;
        for first in rows.clone().step_by(ROWS as usize) {
            let tile = first..(first + ROWS).min(rows.end).min(q_len);
            let mut shown =
                (0..NK as u32).filter(|&j| tile.clone().any(|i| visibility.allows(i, j)));
            if let Some(low) = shown.next() {
                let high = shown.next_back().unwrap_or(low);
                most = most.max(u64::from(high / KEYS - low / KEYS + 1));
            }
            if let Some(last) = tile.clone().last() {
                let start = visibility.keys_of_row(first).start & !(KEYS - 1);
                let end = visibility.keys_of_row(last).end;
                most = most.max((start..end).step_by(KEYS as usize).count() as u64);
            }
        }
        most
    }

    fn task(options: Options) -> Task {
        let dims = Dims {
            batch: BATCH,
            q_heads: 1,
            kv_heads: 1,
            q_len: NQ,
            kv_len: NK,
            qk_dim: 1,
            v_dim: 1,
        };
        let made = options.alignment(Alignment::TopLeft);
        let problem = Problem::contiguous(&dims, DType::F32, DType::F32, &made).unwrap();
        Task {
            options,
            ..problem.task
        }
    }

    fn some_options() -> Vec<Options> {
        let sides = [None, Some(0), Some(3), Some(11), Some(u32::MAX)];
        let offsets = [i32::MIN, -12, -3, 5, 30, i32::MAX].map(Alignment::Offset);
        let named = [
            Alignment::TopLeft,
            Alignment::BottomRight,
            Alignment::PerSequence,
        ];
        let mut all = Vec::new();
        for causal in [false, true] {
            for left in sides {
                for right in sides {
                    for alignment in named.into_iter().chain(offsets) {
                        let options = Options::default().causal(causal).alignment(alignment);
                        all.push(options.window(Window { left, right }));
                    }
                }
            }
        }
        all
    }

    /// The bound against brute force: never below what some tile of rows visits, with
    /// lists that the host knows and lists that it does not; where everything is known,
    /// above it by one tile at most.
    #[test]
    fn bounds_what_brute_force_visits() {
        let device = |len| ListSource::Buffer { len, phase: 0 };
        let kv_values = [0, 1, 7, 16, NK as u32];
        let q_values = [0, 1, 5, NQ as u32];
        let offsets: [i32; 6] = [i32::MIN, -20, 0, 3, 19, i32::MAX];
        let mut compared = 0;
        for options in some_options() {
            for region in [0..NQ, 3..NQ, 2..6] {
                for lists in 0..8 {
                    let is_own = options.alignment == Alignment::PerSequence;
                    if lists >= 4 && !is_own {
                        continue;
                    }
                    let mut task = task(options);
                    task.facts.region = Some(Region {
                        batches: 0..BATCH,
                        heads: 0..1,
                        rows: region.clone(),
                    });
                    // A list that is there is the host's here and the device's there.
                    let has = |bit: u32| lists & bit != 0;
                    let mut brute = 0;
                    for kv in if has(1) { &kv_values[..] } else { &[NK as u32] } {
                        for q in if has(2) { &q_values[..] } else { &[NQ as u32] } {
                            for offset in offsets.into_iter().take(if is_own { 6 } else { 1 }) {
                                let rows = region.start as u32..region.end as u32;
                                let of_entry = |kv, q, offset| {
                                    let v = Visibility::new(&options, kv, q, Some(offset));
                                    visited(&v, rows.clone(), q)
                                };
                                let second = of_entry(*kv, *q, offset);
                                let of_list = |bit, n| if has(bit) { 0 } else { n };
                                let first =
                                    of_entry(of_list(1, NK as u32), of_list(2, NQ as u32), 0);
                                let one = first.max(second);
                                brute = brute.max(second);
                                // The lists that are there begin with 0.
                                task.lists.clear();
                                let mut list = |kind, word: u32, on: bool| {
                                    let words = vec![0, word];
                                    on.then(|| task.lists.push((kind, ListSource::Host(words))))
                                };
                                list(ListKind::KvLengths, *kv, has(1));
                                list(ListKind::QLengths, *q, has(2));
                                list(ListKind::Offsets, offset as u32, has(4));
                                if is_own && !has(4) {
                                    continue;
                                }
                                let bound = most_tiles(&task, ROWS, KEYS);
                                assert!(
                                    (one..=one + 1).contains(&bound),
                                    "{one} of {bound}: {task:?}"
                                );
                                compared += 1;
                            }
                        }
                    }
                    task.lists.clear();
                    let mut list =
                        |kind, on: bool| on.then(|| task.lists.push((kind, device(BATCH))));
                    list(ListKind::KvLengths, has(1));
                    list(ListKind::QLengths, has(2));
                    list(ListKind::Offsets, true);
                    let bound = most_tiles(&task, ROWS, KEYS);
                    assert!(bound >= brute, "{brute} of {bound}: {task:?}");
                    compared += 1;
                }
            }
        }
        assert!(compared > 50_000);
    }

    /// A window on one side is enough where positions are known: the last of 65,537 keys
    /// sees 101 of them.
    #[test]
    fn a_window_on_the_left_bounds_the_last_rows() {
        let dims = Dims {
            batch: 1,
            q_heads: 1,
            kv_heads: 1,
            q_len: 1,
            kv_len: 65_537,
            qk_dim: 64,
            v_dim: 64,
        };
        let window = Window {
            left: Some(100),
            right: None,
        };
        let options = Options::default().window(window);
        let problem = Problem::contiguous(&dims, DType::F32, DType::F32, &options).unwrap();
        let mut task = problem.task;
        assert_eq!(most_tiles(&task, 64, 64), 3);
        // Whatever lengths a buffer will hold.
        let unknown = ListSource::Buffer { len: 1, phase: 0 };
        task.lists = vec![(ListKind::KvLengths, unknown.clone())];
        assert_eq!(most_tiles(&task, 64, 64), 3);
        task.options.alignment = Alignment::PerSequence;
        task.lists.push((ListKind::Offsets, unknown));
        assert_eq!(most_tiles(&task, 64, 64), 1025);
    }
}
