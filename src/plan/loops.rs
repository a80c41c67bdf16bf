//! How many loop iterations one invocation may need, for drivers that end loops
//! after a fixed number of them.
//!
//! Mesa's llvmpipe (the CPU driver behind lavapipe) allows an invocation 65,535
//! iterations of all its loops together, then leaves every loop after one pass:
//! wrong results, and no error. A long row needs more than that.

use crate::error::Error;
use crate::kernel::specialization::Loads;
use crate::kernel::uniform::{LANES, lane_tile, rules, tile};
use crate::ops::inspect::rows::MOST_SUMMARY_ROWS;
use crate::plan::caps::DeviceCaps;
use crate::plan::family::Kernel;
use crate::plan::passes::rule_bits;
use crate::plan::problem::{Goal, Problem};
use crate::plan::tiling::{Tiling, loads};
use crate::rules::selection::DISTANCE_BINS;

/// An upper bound of the iterations of one invocation, with a few percent to
/// spare. A loop of n trips counts n + 1, as the last test is an iteration too.
pub(crate) fn loop_iterations(problem: &Problem, kernel: Kernel, caps: &DeviceCaps) -> u64 {
    let tiles = visited_keys(problem).div_ceil(u64::from(tile::KEYS)) + 1;
    let chunks = (problem.dims.qk_dim as u64).div_ceil(u64::from(tile::DEPTH));
    match kernel {
        _ if problem.goal == Goal::Norms => problem.dims.qk_dim as u64 + 8,
        _ if problem.goal.inspects() => inspection(problem, kernel, caps),
        Kernel::LaneBroadcast if problem.goal == Goal::Projection => lane_projection(problem, caps),
        _ if problem.goal == Goal::Projection => STORE + 26 * chunks,
        Kernel::LaneBroadcast => lane_broadcast(problem, caps),
        // Counted: 41 for the vote, 17 for modifiers, 9 for the maximum, 97 for
        // the four steps, 4 for segments, 24 a chunk of an element-wise load.
        Kernel::Tiled | Kernel::TiledSubgroup => STORE + tiles * (172 + 25 * chunks),
        Kernel::Staged => {
            // Three passes over the row and two reductions of 6 levels.
            let softmax = 3 * (problem.dims.kv_len as u64 / u64::from(LANES) + 2) + 14;
            // Counted: four steps of 24.
            let values = STORE + tiles * 104;
            let scores = STORE + 26 * chunks;
            scores.max(softmax).max(values)
        }
    }
}

/// For a chunk of depth and one of values its own iteration, for a column one more
/// where some value is not finite; for each run of 4 outputs 4 rows of 5 loads and
/// at most 4 words.
fn lane_broadcast(problem: &Problem, caps: &DeviceCaps) -> u64 {
    let tiling = Tiling::of(Kernel::LaneBroadcast, problem.dims.v_dim, caps);
    let (rows, keys) = (u64::from(lane_tile::ROWS), u64::from(tiling.keys));
    let dims = chunk_elements(problem, caps);
    let columns = problem.dims.v_dim.min(tiling.columns as usize) as u64;
    let depth_chunks = (problem.dims.qk_dim as u64).div_ceil(dims);
    let value_chunks = columns.div_ceil(dims);
    let ends = columns + rows * (columns.div_ceil(4) + 1) * 12 + rows + 1;
    let visited = visited_keys(problem).div_ceil(keys) + 2;
    let rules = lane_rules(problem, rows, keys);
    ends + visited * (8 + depth_chunks + value_chunks + columns + rules)
}

/// What mask and bias hide is looked at row by row: without a bias one trip for a word
/// of bits, one for each 4 bytes where all rows begin with a word, one a key else;
/// segments and scores take one a key.
fn lane_rules(problem: &Problem, rows: u64, keys: u64) -> u64 {
    let has = |rule: u32| rule_bits(problem) & rule != 0;
    let row = match &problem.mask {
        _ if has(rules::BIAS) => keys,
        Some(mask) if mask.bits && mask.key_stride == 1 => 1,
        Some(mask) if mask.key_stride == 1 && mask.rows_begin_words() => keys / 4,
        Some(_) => keys,
        None => 0,
    };
    let pairs = if row > 0 { rows * (row + 2) } else { 0 };
    let segments = if has(rules::SEGMENTS) { keys } else { 0 };
    let scores = if has(rules::SCORES) { keys + 1 } else { 0 };
    // The last test of each.
    pairs + segments + scores + 3
}

/// For a chunk of depth its own iteration; for each run of 4 outputs 4 rows of at
/// most 4 words.
fn lane_projection(problem: &Problem, caps: &DeviceCaps) -> u64 {
    let tiling = Tiling::of(Kernel::LaneBroadcast, problem.dims.v_dim, caps);
    let depth = problem.dims.qk_dim as u64;
    let runs = u64::from(tiling.keys / 4);
    runs * (2 + 4 * 6) + depth.div_ceil(chunk_elements(problem, caps)) + 8
}

/// Runs of 4 keys, each at most 4 words of 4 rows, whose rules take 5 more; then
/// the passes over a row: moments, weights, bins of distance, each of the largest;
/// 7 for each sum over the lanes. A key's mass is summed over 2^15 rows.
fn inspection(problem: &Problem, kernel: Kernel, caps: &DeviceCaps) -> u64 {
    let tiling = Tiling::of(kernel, problem.dims.v_dim, caps);
    let depth = problem.dims.qk_dim as u64;
    let pairs = match kernel {
        Kernel::LaneBroadcast => {
            let runs = u64::from(tiling.keys / 4);
            runs * (2 + 4 * 12) + depth.div_ceil(chunk_elements(problem, caps)) + 8
        }
        _ => STORE + 8 * 6 + 26 * depth.div_ceil(u64::from(tile::DEPTH)),
    };
    let Goal::Rows(rows) = &problem.goal else {
        return pairs;
    };
    let steps = problem.dims.kv_len as u64 / u64::from(LANES) + 2;
    let sums = 8 + DISTANCE_BINS as u64 + rows.top as u64;
    let summary = (4 + rows.top as u64) * steps + 4 * DISTANCE_BINS as u64 + 8 * sums;
    let keys = match problem.received {
        Some(_) => rows.region.rows.len().min(MOST_SUMMARY_ROWS) as u64 + 2,
        None => 0,
    };
    pairs.max(summary).max(keys)
}

/// Elements of a chunk of the lane-broadcast kernels.
fn chunk_elements(problem: &Problem, caps: &DeviceCaps) -> u64 {
    match loads(problem, caps) {
        Loads::Words => 1,
        Loads::Chunks | Loads::WideChunks => 4,
    }
}

/// 16 runs, each of at most 4 words; what else happens once.
const STORE: u64 = 16 * 6 + 20;

/// The most keys that the rows of one tile may see: all, or those within a
/// window that is closed on both sides.
fn visited_keys(problem: &Problem) -> u64 {
    let all = problem.dims.kv_len as u64;
    let window = problem.options.window;
    let right = if problem.options.causal {
        Some(0)
    } else {
        window.right
    };
    match (window.left, right) {
        (Some(left), Some(right)) => {
            all.min(u64::from(tile::ROWS) + u64::from(left) + u64::from(right))
        }
        _ => all,
    }
}

/// Why the driver would end the loops too early, if it would.
pub(crate) fn check_loops(problem: &Problem, kernel: Kernel, caps: &DeviceCaps) -> Option<Error> {
    let limit = u64::from(caps.max_loop_iterations?);
    let needed = loop_iterations(problem, kernel, caps);
    (needed > limit).then(|| Error::Limit {
        what: format!("loop iterations of one invocation of the {kernel:?} kernels"),
        needed,
        limit_name: "max_loop_iterations (a limit of Mesa's llvmpipe)",
        limit,
    })
}
