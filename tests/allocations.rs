//! A warm recording allocates what wgpu allocates for the same calls by hand,
//! and nothing else.

mod noop;

use std::process::Command;

use allocation_counter::measure;
use noop::bare::Bare;
use noop::{Buffers, Lists, Noop, SMALL};
use wgpu_attention::{
    Alignment, DType, Kernel, Operands, Options, Plan, PlanOptions, Problem, Workspace, wgpu,
};

/// Allocations of a run once everything that is kept has been made: the least of
/// several, because what wgpu keeps grows now and then.
fn warm(noop: &Noop, mut record: impl FnMut(&mut wgpu::CommandEncoder)) -> u64 {
    let runs = (0..8).map(|_| {
        let mut encoder = noop.device.create_command_encoder(&Default::default());
        measure(|| record(&mut encoder)).count_total
    });
    runs.min().unwrap()
}

/// Allocations of a recording, and of the same wgpu calls by hand.
fn counts(noop: &Noop, buffers: &Buffers, operands: &Operands<'_>, kernel: Kernel) -> [u64; 2] {
    let mut options = Options::default().causal(true);
    if operands.offsets.is_some() {
        options = options.alignment(Alignment::PerSequence);
    }
    let problem = Problem::forward(operands, &options).unwrap();
    let chosen = PlanOptions::default().kernel(kernel);
    let plan = Plan::new(&problem, noop.attention.caps(), &chosen).unwrap();
    let prepared = noop.attention.prepare(&plan).unwrap();
    let workspace = noop.buffer(plan.workspace_bytes().max(4));
    let workspace = Workspace::new(&workspace);
    let ours = warm(noop, |encoder| {
        prepared.record(encoder, operands, Some(workspace)).unwrap();
    });
    let bare = Bare::new(noop, &plan, buffers);
    let by_hand = warm(noop, |encoder| bare.record(encoder, true));
    assert!(noop.take_uncaptured().is_empty(), "{plan}");
    assert!(by_hand > 0);
    [ours, by_hand]
}

/// Runs this test in a process of its own and returns true where wgpu takes a call
/// stack at every lock (RUST_BACKTRACE is set, in debug builds): how often a stack
/// allocates depends on its depth, which is not ours to count.
fn counted_elsewhere(test: &str) -> bool {
    if std::env::var_os("RUST_LIB_BACKTRACE").is_some_and(|value| value == "0") {
        return false;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env("RUST_LIB_BACKTRACE", "0")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("1 passed"), "{printed}");
    true
}

#[test]
fn recording_allocates_nothing_of_its_own() {
    if counted_elsewhere("recording_allocates_nothing_of_its_own") {
        return;
    }
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let lists = Lists::new(SMALL);
    let mut compared = 0;
    for kernel in noop.attention.caps().kernels() {
        let mut cases = vec![
            buffers.plain(),
            buffers.dense(),
            lists.on_host(buffers.dense()),
        ];
        // The staged path's scores lie beside the gathered lists, which binds
        // everything read_write; that is not done by hand here.
        if kernel != Kernel::Staged {
            cases.push(buffers.lists_on_device(buffers.dense()));
        }
        for operands in &cases {
            let [ours, by_hand] = counts(&noop, &buffers, operands, kernel);
            assert_eq!(ours, by_hand, "{kernel}");
            compared += 1;
        }
    }
    assert!(compared >= 7);
}

/// The count sees a single allocation, and a refused call is free to make text.
#[test]
fn the_count_sees_one_allocation() {
    if counted_elsewhere("the_count_sees_one_allocation") {
        return;
    }
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let plain = buffers.plain();
    let plan = noop.attention.plan(&plain, &Options::default()).unwrap();
    let bare = Bare::new(&noop, &plan, &buffers);
    let mut kept = Vec::new();
    let count = warm(&noop, |encoder| bare.record(encoder, true));
    let one_more = warm(&noop, |encoder| {
        bare.record(encoder, true);
        kept = Vec::<u8>::with_capacity(17);
    });
    assert_eq!(one_more, count + 1);
    let prepared = noop.attention.prepare(&plan).unwrap();
    let other = buffers.dense();
    let refused = warm(&noop, |encoder| {
        prepared.record(encoder, &other, None).unwrap_err();
    });
    assert!(refused > 0);
}
