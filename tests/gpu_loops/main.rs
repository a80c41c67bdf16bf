//! The bound of loop iterations against the count of the driver that has a limit.
//!
//! Mesa's llvmpipe counts the iterations of an invocation down from its limit. Here
//! every kernel ends with a loop that goes on until the driver ends it: how often it
//! goes round is what the kernel has left over. On adapters without such a limit there
//! is nothing to compare.

#[path = "../common/mod.rs"]
mod common;
mod counts;
#[path = "../common/gpu.rs"]
mod gpu;
mod operations;

use common::{Feature, OwnedCase, Shape, generate};
use counts::{Count, Counts, counting, limit, loop_key};
use gpu::guest::{Guest, Setup};
use gpu::kernels;
use wgpu_attention::shaders::{Shader, all_pipelines};
use wgpu_attention::{Attention, DType, Kernel, PlanOptions, Region, Stage};

const RULES: [&[Feature]; 5] = [
    &[],
    &[Feature::Segments, Feature::MaskBytes],
    &[Feature::Softcap, Feature::Alibi],
    &[Feature::MaskBits, Feature::KvLengths],
    &[
        Feature::Bias,
        Feature::Segments,
        Feature::MaskBits,
        Feature::Softcap,
        Feature::Alibi,
    ],
];

/// A case of 8 rows in which every tile is visited and partly hidden, and some value is
/// not finite in each.
fn case(shape: Shape, features: &[Feature]) -> OwnedCase {
    let mut case = generate(7, shape, features);
    let keys = shape.dims.kv_len;
    if let Some((_, segments)) = &mut case.segments {
        for (j, segment) in segments.iter_mut().enumerate() {
            *segment = (j % 3) as u32;
        }
    }
    if let Some(lengths) = &mut case.kv_lengths {
        lengths.fill(keys as u32);
    }
    if let Some(mask) = &mut case.mask {
        mask.shape = [1, 1, 1, keys];
        mask.data = match &mask.data {
            common::MaskBits::Bytes(_) => {
                common::MaskBits::Bytes((0..keys).map(|j| (j % 2) as u8).collect())
            }
            common::MaskBits::Bits(_) => {
                common::MaskBits::Bits(vec![0x5555_5555; keys.div_ceil(32)])
            }
        };
    }
    let columns = shape.dims.v_dim;
    let values: Vec<f32> = (0..keys * columns)
        .map(|n| {
            if n % (8 * columns) == 0 {
                f32::NAN
            } else {
                0.5
            }
        })
        .collect();
    case.value = common::Elements::new(&values, shape.key_value);
    case
}

/// Every family, load, width of values, set of rules and storage type.
#[test]
fn forward_passes_stay_below_the_bound() {
    let Some(limit) = limit() else { return };
    let mut counts = Counts::new(limit);
    let widths = [(5, 65), (33, 33), (49, 20), (8, 20), (48, 64), (64, 128)];
    let dtypes = [DType::F32, DType::F16, DType::BF16];
    for kernel in kernels() {
        let shader = match kernel {
            Kernel::Tiled => Shader::ForwardTiled,
            Kernel::TiledSubgroup => Shader::ForwardTiledSubgroup,
            Kernel::LaneBroadcast => Shader::ForwardLanes,
            _ => Shader::StagedValues,
        };
        let attention = counting(&[shader]);
        for (n, (qk_dim, v_dim)) in widths.into_iter().enumerate() {
            // One workgroup alone writes counts.
            if kernel == Kernel::Staged && v_dim > 64 {
                continue;
            }
            for (m, features) in RULES.into_iter().enumerate() {
                let dtype = dtypes[(n + m) % 3];
                let setup = Setup {
                    plan: PlanOptions::default().kernel(kernel),
                    ..Setup::default()
                };
                let what = format!("{kernel}: {qk_dim} {v_dim} {dtype:?} {features:?}");
                let [short, long] = [79, 1999].map(|keys| {
                    let shape = Shape {
                        query: dtype,
                        key_value: dtype,
                        ..Shape::f32([1, 1, 8, qk_dim], 1, keys, v_dim)
                    };
                    let what = format!("{what}: {keys} keys");
                    let case = case(shape, features);
                    forward(&mut counts, &attention, shader, &case, &setup, &what)
                });
                counts.judge_growth(&what, short, long);
            }
        }
        // Nothing is left out that a plan could ask for, the staged kernel's widest aside.
        for (s, key) in all_pipelines() {
            let is_counted = counts.seen.contains(&loop_key(s, key));
            let is_wide = s == Shader::StagedValues && key.column_runs > 2;
            if s == shader && !is_counted && !is_wide {
                let text = format!("no count of {}", key.file_stem(s));
                counts.failures.push(text);
            }
        }
    }
    counts.finish(160);
}

fn forward(
    counts: &mut Counts,
    attention: &Attention,
    shader: Shader,
    case: &OwnedCase,
    setup: &Setup,
    what: &str,
) -> Count {
    let guest = Guest::new(attention, case, setup).unwrap();
    let plan = guest.prepared.plan();
    let ran = Guest::run(attention, case, setup).unwrap();
    // A mask of bytes may be found at an odd place; segments skip tiles.
    counts.judge(what, plan, shader, &ran.output, 0.4)
}

/// The three passes of the staged family, and all rows of a stage.
#[test]
fn stages_stay_below_the_bound() {
    let Some(limit) = limit() else { return };
    let mut counts = Counts::new(limit);
    for (stage, shader) in [
        (Stage::Raw, Shader::StagedScores),
        (Stage::Probabilities, Shader::StagedSoftmax),
    ] {
        let attention = counting(&[shader]);
        for features in RULES {
            for qk_dim in [5, 48, 1000] {
                // Scores of 64 keys are one workgroup's.
                let keys = if stage == Stage::Raw { 64 } else { 999 };
                let case = case(Shape::f32([1, 1, 8, qk_dim], 1, keys, 4), features);
                let region = Region {
                    batches: 0..1,
                    heads: 0..1,
                    rows: 0..8,
                };
                let setup = Setup {
                    stage: Some((stage, region)),
                    ..Setup::default()
                };
                let what = format!("{stage:?} {qk_dim} {features:?}");
                forward(&mut counts, &attention, shader, &case, &setup, &what);
            }
        }
    }
    counts.finish(30);
}
