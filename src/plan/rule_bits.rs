//! The rules that a task has, as the bits that the shaders read.

use crate::kernel::specialization::RuleSet;
use crate::kernel::uniform::rules;
use crate::plan::task::Task;
use crate::view::dtype::Polarity;
use crate::view::lists::ListKind;
use crate::view::tensor::Stats;

/// The rules that the kernels for a problem have to know.
pub(crate) fn rule_set(task: &Task) -> RuleSet {
    // The window's sides are among the intervals.
    RuleSet::of(rule_bits(task))
}

pub(crate) fn rule_bits(task: &Task) -> u32 {
    let has = |kind| task.list(kind).is_some();
    let mut bits = 0;
    let mut set = |rule: u32, on: bool| bits |= if on { rule } else { 0 };
    set(rules::CAUSAL, task.options.causal);
    set(rules::KV_LENGTHS, has(ListKind::KvLengths));
    set(rules::Q_LENGTHS, has(ListKind::QLengths));
    // Without keys (or queries) there is nothing that segments could hide.
    set(
        rules::SEGMENTS,
        has(ListKind::QSegments) && has(ListKind::KvSegments),
    );
    set(rules::ALIBI, has(ListKind::Slopes));
    set(rules::SINKS, has(ListKind::Sinks));
    set(rules::SOFTCAP, task.options.softcap.is_some());
    set(rules::BIAS, task.bias.is_some());
    set(rules::NORMS, task.norms.is_some());
    set(rules::NORMS_BY_QUERY, task.norms_by_query());
    if let Some(mask) = &task.mask {
        set(rules::MASK_BITS, mask.bits);
        set(rules::MASK_BYTES, !mask.bits);
        set(rules::MASK_DROP, mask.polarity == Polarity::Drop);
    }
    if let Some((_, kind)) = &task.stats {
        set(rules::STATS, task.facts.is_forward);
        set(rules::STATS_PAIRS, *kind == Stats::RowState);
    }
    bits
}
