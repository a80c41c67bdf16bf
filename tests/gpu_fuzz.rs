//! Random calls on the adapter by kernels that look at each of their indices, between
//! guard bands; devices that are lost midway; many threads.
//!
//! Bounded by default. `WGPU_ATTENTION_FUZZ=20` makes 20 times as many rounds.

mod common;
#[path = "common/gpu.rs"]
mod gpu;
#[path = "common/indices.rs"]
mod indices;

use common::{OwnedCase, Shape, generate, random_case};
use gpu::guest::{Guest, Setup};
use gpu::memory::Layout;
use gpu::{Report, gpu, kernels, oracle};
use indices::{checked, instrumented};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::shaders::{all_pipelines, compose};
use wgpu_attention::{
    Attention, DType, HostLinear, Inspection, MultiHeadInputs, Options, Pairs, PlanOptions,
    Quantity, Region, Result, Rows, Stage, Tensor, testing,
};

fn factor() -> u64 {
    std::env::var("WGPU_ATTENTION_FUZZ").map_or(1, |text| text.parse().unwrap())
}

/// Each dynamic index of an array in the texts goes through a check.
#[test]
fn every_index_is_looked_at() {
    use naga::{Expression, TypeInner};
    let mut seen = 0;
    for (shader, key) in all_pipelines() {
        let text = instrumented(&compose(shader, key).text);
        let module = naga::front::wgsl::parse_str(&text)
            .unwrap_or_else(|error| panic!("{}\n{text}", error.emit_to_string(&text)));
        let all = naga::valid::Capabilities::all();
        let info = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), all)
            .validate(&module)
            .unwrap_or_else(|error| panic!("{error:?}\n{text}"));
        for (handle, function) in module.functions.iter() {
            let types = &info[handle];
            for (_, expression) in function.expressions.iter() {
                let Expression::Access { base, index } = *expression else {
                    continue;
                };
                let pointed = match types[base].ty.inner_with(&module.types) {
                    TypeInner::Pointer { base, .. } => &module.types[*base].inner,
                    other => other,
                };
                if !matches!(pointed, TypeInner::Array { .. }) {
                    continue;
                }
                let called = match &function.expressions[index] {
                    Expression::CallResult(called) => module.functions[*called].name.clone(),
                    _ => None,
                };
                let checked = called.is_some_and(|name| name.starts_with("checked_"));
                assert!(
                    checked,
                    "{}: an index in {:?}",
                    shader.name(),
                    function.name
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 5000, "{seen} indices");
}

/// An index that is one too large is seen, in a buffer and in workgroup memory.
#[test]
fn an_index_out_of_range_is_seen() {
    let case = generate(3, Shape::f32([1, 2, 40, 16], 2, 70, 16), &[]);
    let expected = oracle(&case);
    for (array, kernel) in [
        ("value[", wgpu_attention::Kernel::Tiled),
        ("wg_left[", wgpu_attention::Kernel::Tiled),
        ("key[", wgpu_attention::Kernel::Staged),
    ] {
        let mut planted = 0;
        let texts = all_pipelines().into_iter().map(|(shader, key)| {
            let text = compose(shader, key).text;
            let wrong = text.replace(array, &format!("{array}1000000u + "));
            planted += usize::from(wrong != text);
            (key.file_stem(shader), instrumented(&wrong))
        });
        let attention = testing::with_texts(gpu(), texts.collect()).unwrap();
        assert!(planted > 0, "{array} is nowhere");
        let setup = Setup {
            plan: PlanOptions::default().kernel(kernel),
            ..Setup::default()
        };
        let seen = match Guest::run(&attention, &case, &setup) {
            // Bytes were spoiled that nobody may write.
            Err(_) => true,
            Ok(ran) => ran
                .output
                .iter()
                .zip(&expected.output)
                .any(|(y, expected)| y.is_nan() && !expected.is_nan()),
        };
        assert!(seen, "{array} by {kernel}");
    }
}

fn random_setup(rng: &mut StdRng, case: &OwnedCase) -> Setup {
    let kernels = kernels();
    let layouts = [Layout::HeadMajor, Layout::TokenMajor, Layout::Padded];
    let mut setup = Setup {
        plan: PlanOptions::default().kernel(kernels[rng.random_range(0..kernels.len())]),
        layout: layouts[rng.random_range(0..3)],
        one_buffer: rng.random_ratio(1, 3),
        shift: rng.random_range(0..4),
        device_lists: rng.random(),
        ..Setup::default()
    };
    if case.dims.q_len == case.dims.kv_len
        && case.dims.qk_dim == case.dims.v_dim
        && case.query.dtype() == case.key.dtype()
        && rng.random()
    {
        setup.layout = Layout::Packed;
    }
    setup
}

#[test]
fn random_calls_stay_in_range() {
    let checked = checked(gpu());
    let mut report = Report::new();
    let mut rng = StdRng::seed_from_u64(7);
    let rounds = 20 * factor();
    for seed in 0..rounds {
        let case = random_case(1000 + seed);
        let setup = random_setup(&mut rng, &case);
        let what = format!("{}: {setup:?}", case.name);
        match Guest::run(&checked, &case, &setup) {
            Ok(ran) => report.judge(&what, &oracle(&case), &ran),
            Err(error) => report.expect(false, format!("{what}: {error}")),
        }
    }
    report.finish(rounds as usize);
}

/// Weights, contributions, summaries and masses of a case, by one family.
fn inspected(attention: &Attention, case: &OwnedCase, plan: PlanOptions) -> Result<String> {
    let inspection = Inspection {
        plan,
        ..Inspection::default()
    };
    let seen = attention.upload_inspection(&case.inputs(), &case.options, &inspection)?;
    let region = Region {
        batches: 0..case.dims.batch,
        heads: case.dims.q_heads / 2..case.dims.q_heads,
        rows: case.dims.q_len / 2..case.dims.q_len,
    };
    let pairs = |quantity| {
        let pairs = Pairs {
            quantity,
            region: region.clone(),
            keys: case.dims.kv_len / 3..case.dims.kv_len,
        };
        let found = seen.pairs(&pairs)?;
        Ok(found.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
    };
    let weights = pairs(Quantity::Stage(Stage::Probabilities))?;
    let contributions = pairs(Quantity::Contribution)?;
    let rows = seen.rows(&Rows {
        region: region.clone(),
        top: 2,
        first_keys: 1,
    })?;
    let received = seen.received(&region)?;
    Ok(format!("{weights:?}{contributions:?}{rows:?}{received:?}"))
}

/// Inspections by kernels that look at their indices are those of the usual kernels.
#[test]
fn random_inspections_stay_in_range() {
    let checked = checked(gpu());
    let mut report = Report::new();
    for seed in 0..2 * factor() {
        let case = random_case(2000 + seed);
        for kernel in kernels() {
            let plan = PlanOptions::default().kernel(kernel);
            let found = [gpu(), &checked].map(|on| inspected(on, &case, plan));
            let what = format!("{kernel}: {}", case.name);
            report.expect(found[0].is_ok(), format!("{what}: {:?}", found[0]));
            report.expect(found[0] == found[1], what);
        }
    }
    report.finish(0);
}

/// Y of a random layer, as bits.
fn layer(attention: &Attention, seed: u64, plan: PlanOptions) -> Result<Vec<u32>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let (kv_heads, group) = (rng.random_range(1..4), rng.random_range(1..3));
    let heads = kv_heads * group;
    let [batch, tokens, width, dim, out] =
        [3, 70, 40, 20, 60].map(|n: usize| rng.random_range(1..=n));
    let mut numbers =
        |count: usize| -> Vec<f32> { (0..count).map(|_| rng.random_range(-1.0..1.0)).collect() };
    let outputs = [heads * dim, kv_heads * dim, kv_heads * dim, out];
    let inputs = [width, width, width, heads * dim];
    let x = numbers(batch * tokens * width);
    let weights = [0, 1, 2, 3].map(|n| numbers(outputs[n] * inputs[n]));
    let biases = outputs.map(&mut numbers);
    let linear = |n: usize| -> Result<HostLinear<'_>> {
        Ok(HostLinear {
            weight: Tensor::f32(&weights[n], [1, 1, outputs[n], inputs[n]])?,
            bias: Some(Tensor::f32(&biases[n], [1, 1, 1, outputs[n]])?),
        })
    };
    let linears = [linear(0)?, linear(1)?, linear(2)?, linear(3)?];
    let input = Tensor::f32(&x, [batch, 1, tokens, width])?;
    let inputs = MultiHeadInputs::new(input, heads, linears).kv_heads(kv_heads);
    let options = Options::default().causal(seed.is_multiple_of(2));
    let dtype = [DType::F32, DType::F16, DType::BF16][seed as usize % 3];
    let uploaded = attention.upload_multi_head(&inputs, &options, dtype, &plan)?;
    uploaded.submit()?;
    Ok(uploaded.read()?.iter().map(|y| y.to_bits()).collect())
}

#[test]
fn random_layers_stay_in_range() {
    let checked = checked(gpu());
    let mut report = Report::new();
    for seed in 0..2 * factor() {
        for kernel in kernels() {
            let plan = PlanOptions::default().kernel(kernel);
            let found = [gpu(), &checked].map(|on| layer(on, seed, plan));
            report.expect(found[0].is_ok(), format!("{kernel}: {:?}", found[0]));
            report.expect(found[0] == found[1], format!("{kernel}: layer {seed}"));
        }
    }
    report.finish(0);
}

/// Threads share an attention: plans, pipelines, buffers and submissions of all of them
/// are at work at once, and each gets its own results.
#[test]
fn sixteen_threads_at_once() {
    let attention = Attention::new(gpu().device(), gpu().queue()).unwrap();
    let cases: Vec<OwnedCase> = (0..4).map(|n| random_case(3000 + n)).collect();
    let expected: Vec<_> = cases.iter().map(oracle).collect();
    let reports = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16u64)
            .map(|thread| {
                let (attention, cases, expected) = (&attention, &cases, &expected);
                scope.spawn(move || {
                    let mut report = Report::new();
                    let mut rng = StdRng::seed_from_u64(thread);
                    for n in 0..4 {
                        let at = (n + thread as usize) % cases.len();
                        let setup = random_setup(&mut rng, &cases[at]);
                        let what = format!("thread {thread}: {}", cases[at].name);
                        match Guest::run(attention, &cases[at], &setup) {
                            Ok(ran) => report.judge(&what, &expected[at], &ran),
                            Err(error) => report.expect(false, format!("{what}: {error}")),
                        }
                    }
                    report
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    assert_eq!(reports.len(), 16);
    reports.into_iter().for_each(|report| report.finish(4));
}
