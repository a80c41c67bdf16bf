//! What a problem's kernels have to know.

use super::check::{forward, plan};
use crate::noop::{Buffers, Lists, Noop, SMALL};
use wgpu_attention::shaders::{RuleSet, emitted};
use wgpu_attention::*;

/// A pipeline has the rules that its problem has, and no more: what is in its text is
/// compiled.
#[test]
fn kernels_know_the_rules_of_their_problem() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let lists = Lists::new(SMALL);
    let plain = buffers.plain();
    let dense = buffers.dense();
    let none = Options::default();
    let mut masked = plain;
    masked.mask = dense.mask;
    let segments = plain.segments(
        List::Host(&lists.q_segments),
        List::Host(&lists.kv_segments),
    );
    let alibi = plain.alibi_slopes(List::Host(&lists.slopes));
    let mut masked_alibi = alibi;
    masked_alibi.mask = dense.mask;
    let mut biased = plain;
    biased.bias = dense.bias;
    let interval = plain
        .kv_lengths(List::Host(&lists.kv_lengths))
        .sinks(List::Host(&lists.sinks));
    let mut caps = DeviceCaps::webgpu_default();
    (caps.subgroup_size, caps.min_subgroup_size) = (Some(8), Some(8));
    for (operands, options, expected) in [
        (plain, none.causal(true), RuleSet::Intervals),
        (
            interval,
            none.window(Window::last(2).unwrap()),
            RuleSet::Intervals,
        ),
        (masked, none.causal(true), RuleSet::Pairs),
        (segments, none, RuleSet::Pairs),
        (plain, none.softcap(2.0), RuleSet::Scores),
        (alibi, none, RuleSet::Scores),
        (masked_alibi, none, RuleSet::All),
        (masked, none.softcap(2.0), RuleSet::All),
        (biased, none, RuleSet::All),
    ] {
        let problem = forward(&operands, &options);
        let plan = plan(&problem, &caps, Kernel::LaneBroadcast).unwrap();
        let known: Vec<_> = emitted(&plan).iter().map(|(_, key)| key.rules).collect();
        assert_eq!(known, [expected], "{plan}");
    }
}
