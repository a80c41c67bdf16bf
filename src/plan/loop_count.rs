//! How many loop iterations one invocation may need, for drivers that end loops
//! after a fixed number of them.
//!
//! Mesa's llvmpipe (the CPU driver behind lavapipe) allows an invocation 65,535
//! iterations of all its loops together, then leaves every loop after one pass:
//! wrong results, and no error. A long row needs more than that.
//!
//! What follows mirrors the loops of the shaders, file by file. Nothing is counted by
//! hand: trips come from the sizes, and the rest from two rules of llvmpipe. A loop
//! goes once more through its body, all lanes idle, to find that it ends; and both
//! sides of every branch are executed, so that each loop in a body counts one where
//! the body is idle. tests/gpu_loops compares the loops of each text with the idle
//! count here, and the bound with what the driver has used up.

use std::ops::Add;

use crate::kernel::specialization::{Loads, Specialization};
use crate::kernel::uniform::{LANES, lane_tile, rules, tile};
use crate::plan::rule_bits::rule_bits;
use crate::plan::task::Task;
use crate::plan::tiling::Tiling;
use crate::plan::visited::most_tiles;
use crate::rules::selection::DISTANCE_BINS;

/// Iterations of the loops of a piece of a shader, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loops {
    /// Where it does its work.
    pub run: u64,
    /// Where all lanes are idle: the number of loops in its text, with those of the
    /// functions that it calls.
    pub idle: u64,
}

pub(crate) const NONE: Loops = Loops { run: 0, idle: 0 };

impl Add for Loops {
    type Output = Loops;

    fn add(self, other: Loops) -> Loops {
        Loops {
            run: self.run.saturating_add(other.run),
            idle: self.idle + other.idle,
        }
    }
}

/// A loop, whether it tests before each trip or after it.
pub(crate) fn repeat(trips: u64, body: Loops) -> Loops {
    let last = 1 + body.idle;
    Loops {
        run: trips.saturating_mul(1 + body.run).saturating_add(last),
        idle: last,
    }
}

/// What happens only under a condition.
pub(crate) fn only_if(condition: bool, body: Loops) -> Loops {
    Loops {
        run: if condition { body.run } else { body.idle },
        ..body
    }
}

/// What the loops of a shader's text depend on.
pub(crate) struct Shape<'a> {
    pub task: &'a Task,
    pub key: Specialization,
    pub tiling: Tiling,
}

/// A sum or maximum over the 64 lanes of a workgroup: widths of 32 to 1.
pub(crate) fn reduce() -> Loops {
    repeat(6, NONE)
}

/// At most 4 words, of f32.
pub(crate) fn store_run() -> Loops {
    repeat(4, NONE)
}

impl Shape<'_> {
    pub fn has(&self, rule: u32) -> bool {
        rule_bits(self.task) & rule != 0
    }

    pub fn column_runs(&self) -> u64 {
        u64::from(self.key.column_runs)
    }

    /// Keys of a row, 64 at a time.
    pub fn steps(&self) -> u64 {
        (self.task.dims.kv_len as u64).div_ceil(u64::from(LANES))
    }

    pub fn tiles(&self) -> u64 {
        most_tiles(self.task, self.tiling.rows, self.tiling.keys)
    }

    /// lib/scores_tile.wgsl: 16 depths at a time, staged by 128 lanes.
    pub fn scores_tile(&self) -> Loops {
        let chunks = (self.task.dims.qk_dim as u64).div_ceil(u64::from(tile::DEPTH));
        let staged = match self.key.loads {
            // 256 vectors of the queries, 256 of the keys.
            Loads::Words => repeat(2, NONE) + repeat(2, NONE),
            Loads::Chunks | Loads::WideChunks => repeat(1, NONE),
        };
        repeat(chunks, staged + repeat(u64::from(tile::DEPTH), NONE))
    }

    /// lib/values_*.wgsl: 16 keys of 8 vectors a run of columns, by 128 lanes.
    pub fn stage_values(&self) -> Loops {
        repeat(self.column_runs(), NONE)
    }

    /// lib/values_tile.wgsl: either of two loops over 16 keys.
    pub fn add_step(&self) -> Loops {
        repeat(u64::from(tile::DEPTH), NONE) + repeat(0, NONE)
    }

    /// lib/output_tile.wgsl: 4 rows of each run of columns.
    pub fn store_output(&self) -> Loops {
        repeat(4 * self.column_runs(), store_run())
    }

    /// lib/forward_tile.wgsl, with the root's own loops.
    pub fn forward_tile(&self, row_maximum: Loops, row_sum: Loops) -> Loops {
        // At most 64 ids for 128 lanes.
        let segment_ids = only_if(self.has(rules::SEGMENTS), repeat(1, NONE));
        let visible_pairs = repeat(4, repeat(8, NONE));
        let modify_scores = only_if(self.has(rules::SCORES), repeat(4, repeat(2, NONE)));
        let steps = repeat(4, self.stage_values() + self.add_step());
        let of_tile =
            segment_ids + visible_pairs + self.scores_tile() + modify_scores + row_maximum + steps;
        let end = row_sum + repeat(4, NONE) + self.store_output();
        segment_ids + repeat(self.tiles(), of_tile) + end
    }

    pub fn staged_values(&self) -> Loops {
        // 16 keys, 8 at a time.
        let weights = repeat(2, NONE);
        let step = weights + self.stage_values() + self.add_step();
        repeat(self.tiles(), repeat(4, step)) + self.store_output()
    }

    /// Elements of a chunk of the lane-broadcast kernels.
    pub fn chunk(&self) -> u64 {
        match self.key.loads {
            Loads::Words => 1,
            Loads::Chunks | Loads::WideChunks => 4,
        }
    }

    /// Trips of a loop over the depth, of which there is one even if none is needed.
    pub fn depth_chunks(&self) -> u64 {
        (self.task.dims.qk_dim as u64).div_ceil(self.chunk()).max(1)
    }

    pub fn forward_lanes(&self) -> Loops {
        let keys = u64::from(self.tiling.keys);
        let rows = u64::from(lane_tile::ROWS);
        let columns = self.task.dims.v_dim.min(self.tiling.columns as usize) as u64;
        let knows = self.key.rules;
        let trips = |rule: u32, trips: u64| if self.has(rule) { trips } else { 0 };
        let mut begin = NONE;
        let mut of_tile = NONE;
        if knows.knows_pairs() {
            begin = repeat(trips(rules::SEGMENTS, rows), NONE);
            let of_row = repeat(self.shown_trips(keys), NONE);
            of_tile = repeat(trips(rules::PAIRS & !rules::SEGMENTS, rows), of_row)
                + repeat(trips(rules::SEGMENTS, keys), NONE);
        }
        of_tile = of_tile + repeat(self.depth_chunks(), NONE);
        if knows.knows_scores() {
            of_tile = of_tile + repeat(trips(rules::SCORES, keys + 1), NONE);
        }
        // The last where some value is not finite.
        of_tile = of_tile + repeat(columns.div_ceil(self.chunk()), NONE) + repeat(columns, NONE);
        let of_run = repeat(rows, NONE) + store_run();
        let end = repeat(rows, repeat(columns.div_ceil(4), of_run));
        begin + repeat(columns, NONE) + repeat(self.tiles(), of_tile) + end
    }

    /// lib/visibility_bits.wgsl: trips for `keys` keys of a row. Without a bias one for
    /// a word of bits, one for 4 bytes where all rows begin with a word, one a key else.
    pub fn shown_trips(&self, keys: u64) -> u64 {
        match &self.task.mask {
            _ if self.has(rules::BIAS) => keys,
            Some(mask) if mask.bits && mask.key_stride == 1 => 1,
            Some(mask) if mask.key_stride == 1 && mask.rows_begin_words() => keys / 4,
            Some(_) => keys,
            None => 0,
        }
    }

    /// lib/pairs.wgsl.
    pub fn shown(&self) -> Loops {
        let has_rules = self.has(rules::PAIRS | rules::SCORES);
        repeat(if has_rules { 4 } else { 0 }, NONE)
    }

    pub fn inspect_rows(&self) -> Loops {
        let top = self.task.facts.top as u64;
        let keys = repeat(self.steps(), NONE);
        let sums = |count: u64| Loops {
            run: count * reduce().run,
            idle: count * reduce().idle,
        };
        // The bins share out the keys; each rounds up, before and after the position.
        let bin = repeat(1, NONE) + repeat(1, NONE) + reduce();
        let mut bins = repeat(DISTANCE_BINS as u64, bin);
        bins.run = bins.run.saturating_add(self.steps());
        let moments = keys + sums(2) + keys + sums(4) + keys + sums(1);
        moments + bins + repeat(top, keys + reduce())
    }
}
