//! Plans as they print, and the numbers of their dispatches.

use super::check::{check, forward, plan};
use crate::noop::{Buffers, Lists, Noop, SMALL, Sizes};
use wgpu_attention::testing::dispatches;
use wgpu_attention::*;

fn printed(plan: &Plan) -> String {
    format!("\n{plan}\n")
}

#[test]
fn plans_print() {
    let noop = Noop::new();
    let caps = DeviceCaps::webgpu_default();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let problem = forward(&buffers.plain(), &Options::default());
    let by_default = Plan::new(&problem, &caps, &PlanOptions::default()).unwrap();
    let expected = "
problem: B 2 Hq 4 Hkv 2 Nq 5 Nk 7 Dqk 8 Dv 6, query F32, key and value F32, output F32
kernel: Tiled (unknown device: one pass, memory linear in the sequence length, judgement)
workspace: 0 bytes
  forward_tiled: 8 x 1 workgroups of 128
";
    assert_eq!(printed(&by_default), expected);

    let staged = plan(&problem, &caps, Kernel::Staged).unwrap();
    let expected = "
problem: B 2 Hq 4 Hkv 2 Nq 5 Nk 7 Dqk 8 Dv 6, query F32, key and value F32, output F32
kernel: Staged (forced by the caller)
workspace: 1120 bytes
  staged_scores: 8 x 1 workgroups of 128
  staged_softmax: 40 x 1 workgroups of 64
  staged_values: 8 x 1 workgroups of 128
";
    assert_eq!(printed(&staged), expected);

    let options = Options::default().alignment(Alignment::PerSequence);
    let operands = buffers.lists_on_device(buffers.plain());
    let gathered = plan(&forward(&operands, &options), &caps, Kernel::Staged).unwrap();
    // 2 lengths, 2 lengths, 2 offsets, 10 and 14 segments, 4 slopes, 4 sinks: 38 words.
    let expected = "
problem: B 2 Hq 4 Hkv 2 Nq 5 Nk 7 Dqk 8 Dv 6, query F32, key and value F32, output F32
kernel: Staged (forced by the caller)
workspace: 1376 bytes
  copy_words: 1 x 1 workgroups of 64
  copy_words: 1 x 1 workgroups of 64
  copy_words: 1 x 1 workgroups of 64
  copy_words: 1 x 1 workgroups of 64
  copy_words: 1 x 1 workgroups of 64
  copy_words: 1 x 1 workgroups of 64
  copy_words: 1 x 1 workgroups of 64
  staged_scores: 8 x 1 workgroups of 128
  staged_softmax: 40 x 1 workgroups of 64
  staged_values: 8 x 1 workgroups of 128
";
    assert_eq!(printed(&gathered), expected);

    let lists = Lists::new(SMALL);
    let on_host = forward(&lists.on_host(buffers.plain()), &options);
    let on_host = Plan::new(&on_host, &caps, &PlanOptions::default()).unwrap();
    assert_eq!((on_host.workspace_bytes(), on_host.dispatches()), (0, 1));
    assert_eq!(on_host.kernel(), Kernel::Tiled);
    assert_eq!(
        on_host.why(),
        "unknown device: one pass, memory linear in the sequence length, judgement"
    );

    let halves = Sizes { q_len: 0, ..SMALL };
    let buffers = Buffers::new(&noop, halves, DType::BF16);
    let nothing = forward(&buffers.plain(), &Options::default());
    let nothing = Plan::new(
        &nothing,
        &caps,
        &PlanOptions::default().shared_buffers(true),
    );
    let expected = "
problem: B 2 Hq 4 Hkv 2 Nq 0 Nk 7 Dqk 8 Dv 6, query BF16, key and value BF16, output F32
kernel: Tiled (unknown device: one pass, memory linear in the sequence length, judgement)
buffers: all bound read_write, inputs share a written buffer
workspace: 0 bytes
nothing to do: an axis is empty
";
    assert_eq!(printed(&nothing.unwrap()), expected);
}

#[test]
fn a_stage_is_staged_and_says_why() {
    let noop = Noop::new();
    let caps = DeviceCaps::webgpu_default();
    let buffers = Buffers::new(&noop, SMALL, DType::F16);
    let scores = noop.buffer(4 * 2 * 3 * 7);
    let mut operands = buffers.plain();
    operands.output = TensorView::bhsd(&scores, DType::F32, [1, 2, 3, 7], 0).unwrap();
    let region = Region {
        batches: 1..2,
        heads: 1..3,
        rows: 2..5,
    };
    let options = Options::default();
    let problem = Problem::stage(&operands, &options, Stage::Masked, region.clone()).unwrap();
    let staged = Plan::new(&problem, &caps, &PlanOptions::default()).unwrap();
    let expected = "
problem: B 2 Hq 4 Hkv 2 Nq 5 Nk 7 Dqk 8 Dv 6, query F16, key and value F16, output F32; Masked of batches 1..2, heads 1..3, rows 2..5
kernel: Staged (scores are asked for)
workspace: 0 bytes
  staged_scores: 2 x 1 workgroups of 128
  staged_softmax: 6 x 1 workgroups of 64
";
    assert_eq!(printed(&staged), expected);
    for dispatch in dispatches(&staged) {
        assert_eq!(dispatch.covers, Some([1..2, 1..3, 2..5]));
    }
    let raw = Problem::stage(&operands, &options, Stage::Raw, region).unwrap();
    let raw = Plan::new(&raw, &caps, &PlanOptions::default()).unwrap();
    assert_eq!(raw.dispatches(), 1);
    let fused = plan(&problem, &caps, Kernel::Tiled).unwrap_err();
    let text = "kernel: expected Staged, the only one that writes scores, got Tiled";
    assert_eq!(fused.to_string(), text);
}

#[test]
fn tile_edges() {
    let noop = Noop::new();
    let caps = DeviceCaps::webgpu_default();
    let mut compared = 0;
    let edges = |tile: usize| [tile - 1, tile, tile + 1, 2 * tile, 2 * tile + 1];
    for q_len in [1].into_iter().chain(edges(64)) {
        for v_dim in [1, 32, 33, 64, 65].into_iter().chain(edges(128)) {
            for kv_len in [0, 1].into_iter().chain(edges(64)) {
                let sizes = Sizes {
                    batch: 1,
                    q_heads: 2,
                    kv_heads: 1,
                    q_len,
                    kv_len,
                    qk_dim: 1,
                    v_dim,
                };
                let buffers = Buffers::new(&noop, sizes, DType::F16);
                let problem = forward(&buffers.plain(), &Options::default());
                let up = |n: usize, tile: usize| n.div_ceil(tile) as u64;
                let heads = 2;
                let fused = plan(&problem, &caps, Kernel::Tiled).unwrap();
                // The fused kernel takes up to 128 value columns at a time.
                let columns = match v_dim {
                    0..=32 => 32,
                    33..=64 => 64,
                    _ => 128,
                };
                let tiles = heads * up(q_len, 64) * up(v_dim, columns);
                assert_eq!(dispatches(&fused)[0].workgroups, tiles);
                check(&fused, &caps, sizes.rows());
                let staged = plan(&problem, &caps, Kernel::Staged).unwrap();
                check(&staged, &caps, sizes.rows());
                let mut workgroups = dispatches(&staged).into_iter().map(|d| d.workgroups);
                if kv_len > 0 {
                    let tiles = heads * up(q_len, 64) * up(kv_len, 64);
                    assert_eq!(workgroups.next(), Some(tiles));
                }
                let tiles = heads * up(q_len, 64) * up(v_dim, 64);
                assert_eq!(workgroups.next(), Some(heads * q_len as u64));
                assert_eq!(workgroups.next(), Some(tiles));
                assert_eq!(workgroups.next(), None);
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 6 * 10 * 7);
}
