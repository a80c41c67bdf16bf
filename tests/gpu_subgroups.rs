//! The tiled kernel with subgroups where the lanes of a workgroup are not those of a
//! subgroup in order, which nothing promises: other numbers for them, as a driver
//! might give.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use std::collections::HashMap;

use common::{Feature, Shape, generate};
use gpu::guest::{Guest, Setup};
use gpu::{Report, gpu, oracle};
use wgpu_attention::shaders::{Shader, all_pipelines, compose};
use wgpu_attention::{DType, Kernel, PlanOptions, testing};

const NUMBER: &str = "@builtin(local_invocation_index) lane: u32,";
const LOOK: &str = "    look_at_quads(";

/// Lanes by their numbers, and whether quads stay whole.
const ORDERS: [(&str, bool); 3] = [
    ("127u - index", true),
    ("(index * 5u + 3u) & 127u", false),
    // Two lanes change places across two quads: the others' are whole.
    (
        "select(index, 7u - index, index == 3u || index == 4u)",
        false,
    ),
];

#[test]
fn any_order_of_lanes_gives_the_right_result() {
    let mut report = Report::new();
    if !gpu().caps().kernels().any(|k| k == Kernel::TiledSubgroup) {
        return println!("the adapter has no subgroups");
    }
    let cases = [
        generate(
            2,
            Shape::f32([1, 2, 67, 5], 1, 131, 40),
            &[Feature::Causal, Feature::Bias, Feature::Sinks],
        ),
        generate(
            3,
            Shape {
                key_value: DType::F16,
                ..Shape::f32([1, 1, 64, 8], 1, 150, 24)
            },
            &[Feature::Peaked, Feature::Segments],
        ),
    ];
    for (order, is_whole) in ORDERS {
        let keys = all_pipelines().into_iter();
        let keys = keys.filter(|(shader, _)| *shader == Shader::ForwardTiledSubgroup);
        let texts: HashMap<_, _> = keys
            .map(|(shader, key)| {
                let text = compose(shader, key).text;
                assert_eq!(text.matches(NUMBER).count(), 1);
                assert_eq!(text.matches(LOOK).count(), 1);
                let text = text.replace(NUMBER, "@builtin(local_invocation_index) index: u32,");
                let numbered = format!("    let lane = {order};\n{LOOK}");
                (key.file_stem(shader), text.replace(LOOK, &numbered))
            })
            .collect();
        let attention = testing::with_texts(gpu(), texts).unwrap();
        let setup = Setup {
            plan: PlanOptions::default().kernel(Kernel::TiledSubgroup),
            ..Setup::default()
        };
        for case in &cases {
            let what = format!("{order}: {}", case.name);
            let ran = Guest::run(&attention, case, &setup);
            let Some(ran) = report.expect_ok(&what, ran) else {
                continue;
            };
            report.judge(&what, &oracle(case), &ran);
            if is_whole {
                let plain = Guest::run(gpu(), case, &setup).unwrap();
                report.same_bits(&what, &plain, &ran);
            }
        }
    }
    // Each order's run, and where quads are whole its bits.
    let elements = 134 * 41 + 64 * 25;
    report.finish(4 * elements);
}
