//! What is fixed when a shader is composed, and every combination that a plan
//! can ask for.

use crate::kernel::uniform::{lane_tile, rules, tile};
use crate::view::dtype::DType;

/// What is fixed when a shader is composed; everything else is in the uniform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub struct Specialization {
    /// Storage type of key and value.
    pub kv_dtype: DType,
    /// Storage type of the query, where it is loaded in chunks.
    pub query_dtype: DType,
    /// Every buffer is bound read_write, because an input shares its buffer
    /// with something that is written (wgpu tracks usage per whole buffer).
    pub shared: bool,
    /// Lanes of a subgroup.
    pub lanes: Lanes,
    /// How rows of query, key and value are loaded.
    pub loads: Loads,
    /// The rules that the text knows.
    pub rules: RuleSet,
    /// Runs of 32 value columns of a tile: 1, 2 or 4.
    pub column_runs: u32,
    /// For tests: in the place of row states the tiled kernels store how many
    /// tiles of keys they computed for the row, and how many without mask code.
    pub count_tiles: bool,
}

/// The subgroup sizes that lane-broadcast kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Lanes {
    Four,
    Eight,
}

impl Lanes {
    /// Their number.
    pub fn count(self) -> u32 {
        match self {
            Lanes::Four => 4,
            Lanes::Eight => 8,
        }
    }
}

/// How a kernel loads query, key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Loads {
    /// Element by element, whatever the layout.
    Words,
    /// 4 elements at once: rows are aligned to 4 elements and multiples of 4
    /// long, the query is f32 or of the type of key and value.
    Chunks,
    /// The same in 64-bit words, which needs the feature `SHADER_INT64`.
    WideChunks,
}

/// Which rules a shader knows: a driver compiles what is left out in no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum RuleSet {
    /// Those that leave each row an interval of keys; sinks; statistics.
    Intervals,
    /// The same, masks and segments.
    Pairs,
    /// The same as the first, softcap and ALiBi.
    Scores,
    /// All; a bias may hide a pair and changes its score.
    All,
}

impl RuleSet {
    /// Every set.
    pub const ALL_SETS: [RuleSet; 4] = [
        RuleSet::Intervals,
        RuleSet::Pairs,
        RuleSet::Scores,
        RuleSet::All,
    ];

    /// `RULE_` bits.
    pub fn bits(self) -> u32 {
        match self {
            RuleSet::Intervals => rules::INTERVALS,
            RuleSet::Pairs => rules::INTERVALS | rules::PAIRS & !rules::SCORES,
            RuleSet::Scores => rules::INTERVALS | rules::SCORES & !rules::PAIRS,
            RuleSet::All => u32::MAX,
        }
    }

    /// The smallest set that has those of the bits.
    pub fn of(bits: u32) -> RuleSet {
        let sets = [RuleSet::Intervals, RuleSet::Pairs, RuleSet::Scores];
        let found = sets.into_iter().find(|set| bits & !set.bits() == 0);
        found.unwrap_or(RuleSet::All)
    }

    /// Whether it has rules that are decided pair by pair.
    pub fn knows_pairs(self) -> bool {
        matches!(self, RuleSet::Pairs | RuleSet::All)
    }

    /// Whether it has rules that change a score.
    pub fn knows_scores(self) -> bool {
        matches!(self, RuleSet::Scores | RuleSet::All)
    }
}

impl Specialization {
    /// Nothing that needs a condition to hold.
    pub const GENERAL: Specialization = Specialization {
        kv_dtype: DType::F32,
        query_dtype: DType::F32,
        shared: false,
        lanes: Lanes::Eight,
        loads: Loads::Words,
        rules: RuleSet::All,
        column_runs: tile::STAGED_COLUMN_RUNS,
        count_tiles: false,
    };

    /// Names that `#for` may count to and `#if` ask for, which are constants of the
    /// text too.
    pub(crate) fn counts(self) -> [(&'static str, u32); 6] {
        let dims = if self.loads == Loads::Words { 1 } else { 4 };
        [
            ("SUBGROUP", self.lanes.count()),
            ("QUADS", self.lanes.count() / 4),
            ("GROUPS", lane_tile::GROUPS),
            ("DIMS", dims),
            ("KNOWS_PAIR_RULES", u32::from(self.rules.knows_pairs())),
            ("KNOWS_SCORE_RULES", u32::from(self.rules.knows_scores())),
        ]
    }
}
