//! What a layer writes lies apart from all that it reads, and from what else it writes.

use crate::gpu::gpu;
use crate::layer::storage;
use wgpu_attention::{
    DType, Error, InProjections, Linear, List, MaskView, MultiHeadOperands, MultiHeadPlan, Options,
    PlanOptions, Polarity, Stats, StatsView, TensorView, Workspace,
};

/// Everything that has a place; each gets a slot of its own in one buffer.
const PLACED: [&str; 20] = [
    "output",
    "stats",
    "input",
    "context",
    "query weight",
    "query bias",
    "key weight",
    "key bias",
    "value weight",
    "value bias",
    "packed weight",
    "packed bias",
    "output weight",
    "output bias",
    "bias",
    "mask",
    "kv_lengths",
    "q_segments",
    "kv_segments",
    "sinks",
];

/// Elements of a slot.
const SLOT: usize = 512;

/// A layer whose operand `moved` lies where `onto` does.
fn layer<'a>(buffer: &'a wgpu::Buffer, packed: bool, moved: [&str; 2]) -> MultiHeadOperands<'a> {
    let at = |name: &str| {
        let name = if name == moved[0] { moved[1] } else { name };
        SLOT * PLACED.iter().position(|placed| *placed == name).unwrap()
    };
    let f32 = DType::F32;
    let linear = |rows: usize, weight: &str, bias: &str| {
        let bias = TensorView::bhsd(buffer, f32, [1, 1, 1, rows], at(bias)).unwrap();
        let weight = TensorView::matrix(buffer, f32, [rows, 8], at(weight)).unwrap();
        Linear::new(weight).bias(bias)
    };
    let projections = match packed {
        true => InProjections::Packed(linear(24, "packed weight", "packed bias")),
        false => InProjections::Separate {
            query: linear(8, "query weight", "query bias"),
            key: linear(8, "key weight", "key bias"),
            value: linear(8, "value weight", "value bias"),
        },
    };
    let tokens = |name, rows| TensorView::tokens(buffer, f32, [2, rows, 8], at(name)).unwrap();
    let list = |name, len| List::Buffer {
        buffer,
        offset: at(name),
        len,
    };
    let output_projection = linear(8, "output weight", "output bias");
    let (input, output) = (tokens("input", 5), tokens("output", 5));
    MultiHeadOperands::new(input, 2, projections, output_projection, output)
        .context(tokens("context", 7))
        .attention(|a| {
            let stats = StatsView::new(buffer, Stats::RowState, [2, 2, 5], at("stats"));
            let bias = TensorView::bhsd(buffer, f32, [1, 1, 5, 7], at("bias"));
            let mask = MaskView::bytes(buffer, [2, 1, 1, 7], 4 * at("mask"), Polarity::Keep);
            a.stats(stats.unwrap())
                .bias(bias.unwrap())
                .mask(mask.unwrap())
                .kv_lengths(list("kv_lengths", 2))
                .segments(list("q_segments", 10), list("kv_segments", 14))
                .sinks(List::Buffer {
                    buffer,
                    offset: at("sinks"),
                    len: 2,
                })
        })
}

#[test]
fn what_is_written_overlaps_nothing() {
    let device = gpu().device();
    let buffer = storage((4 * SLOT * PLACED.len()) as u64);
    let options = PlanOptions::default().shared_buffers(true);
    let plan = |operands: &MultiHeadOperands<'_>| {
        MultiHeadPlan::new(operands, &Options::default(), gpu().caps(), &options)
    };
    let mut refused = 0;
    for packed in [false, true] {
        let apart = layer(&buffer, packed, ["output", "output"]);
        let planned = plan(&apart).unwrap();
        let prepared = gpu().prepare_multi_head(&planned).unwrap();
        let workspace = storage(planned.workspace_bytes());
        let record = |operands: &MultiHeadOperands<'_>| {
            let mut encoder = device.create_command_encoder(&Default::default());
            let recorded = prepared.record(&mut encoder, operands, Workspace::new(&workspace));
            recorded.map(|()| gpu().queue().submit([encoder.finish()]))
        };
        record(&apart).unwrap();
        let absent = |name: &str| {
            let separate = ["query ", "key ", "value "];
            match packed {
                true => separate.iter().any(|start| name.starts_with(start)),
                false => name.starts_with("packed "),
            }
        };
        for moved in ["output", "stats"] {
            for onto in PLACED {
                if onto == moved || absent(onto) {
                    continue;
                }
                let operands = layer(&buffer, packed, [moved, onto]);
                let errors = [
                    plan(&operands).map(|_| ()).unwrap_err(),
                    record(&operands).map(|_| ()).unwrap_err(),
                ];
                for error in errors {
                    let Error::Overlap { written, other, .. } = error else {
                        panic!("{moved} onto {onto}: {error}");
                    };
                    let found = [written, other];
                    assert!(
                        found == [moved, onto] || (onto != "input" && found == [onto, moved]),
                        "{moved} onto {onto}: {written} and {other}"
                    );
                    refused += 1;
                }
            }
        }
        // Reading the same from several places is fine.
        let together = layer(&buffer, packed, ["context", "input"]);
        plan(&together).unwrap();
        record(&together).unwrap();
    }
    assert_eq!(refused, 2 * 2 * (17 + 13));
}

/// The four tensors of attention are the layer's own, whatever `attention` does to them.
#[test]
fn placeholders_are_ignored() {
    let device = gpu().device();
    let buffer = storage((4 * SLOT * PLACED.len()) as u64);
    let nowhere = [""; 2];
    let plain = layer(&buffer, false, nowhere);
    let output = plain.output;
    let changed = plain.attention(|mut a| {
        (a.query, a.key, a.value) = (output, output, output);
        a
    });
    let plan = gpu().plan_multi_head(&plain, &Options::default()).unwrap();
    let same = gpu().plan_multi_head(&changed, &Options::default());
    assert_eq!(same.unwrap(), plan);
    // A workspace may lie where nothing but a placeholder does.
    let workspace = storage(plan.workspace_bytes());
    let rows = TensorView::tokens(&workspace, DType::F32, [2, 5, 8], 0).unwrap();
    let changed = plain.attention(|mut a| {
        a.query = rows;
        a
    });
    let prepared = gpu().prepare_multi_head(&plan).unwrap();
    let mut encoder = device.create_command_encoder(&Default::default());
    prepared
        .record(&mut encoder, &changed, Workspace::new(&workspace))
        .unwrap();
}
