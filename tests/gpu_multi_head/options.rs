//! Layers with everything that attention takes, with few and many heads, in every
//! storage type: against the oracle, by every family.

use std::collections::BTreeMap;

use crate::common::{Feature, MaskBits, OwnedCase, generate};
use crate::gpu::{Report, kernels};
use crate::layer::{Layer, judge};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_attention::reference;
use wgpu_attention::{Alignment, DType, Inputs, MultiHeadInputs, Options};

/// The layer whose attention takes what the case does besides query, key and value.
fn with<'a>(inputs: MultiHeadInputs<'a>, case: &'a OwnedCase) -> MultiHeadInputs<'a> {
    inputs.attention(|own| {
        let Inputs {
            query, key, value, ..
        } = own;
        Inputs {
            query,
            key,
            value,
            ..case.inputs()
        }
    })
}

/// What a case asks of attention: read from what it holds, not from what was asked of
/// the generator.
fn asked(case: &OwnedCase) -> Vec<&'static str> {
    let o = &case.options;
    let mask = case.mask.as_ref().map(|mask| &mask.data);
    let bias = case.bias.as_ref().map(|(bias, _)| bias.to_f32());
    let aligned = |alignment| o.alignment == alignment;
    let all = [
        ("scale", o.scale.is_some()),
        ("softcap", o.softcap.is_some()),
        ("bias", bias.is_some()),
        (
            "bias of -inf",
            bias.is_some_and(|bias| bias.contains(&f32::NEG_INFINITY)),
        ),
        ("alibi", case.alibi_slopes.is_some()),
        ("mask of bytes", matches!(mask, Some(MaskBits::Bytes(_)))),
        ("mask of bits", matches!(mask, Some(MaskBits::Bits(_)))),
        ("causal", o.causal),
        ("window to the left", o.window.left.is_some()),
        ("window to the right", o.window.right.is_some()),
        ("kv_lengths", case.kv_lengths.is_some()),
        ("q_lengths", case.q_lengths.is_some()),
        ("segments", case.segments.is_some()),
        ("sinks", case.sinks.is_some()),
        ("top left", aligned(Alignment::TopLeft)),
        ("offset", matches!(o.alignment, Alignment::Offset(_))),
        (
            "offsets",
            aligned(Alignment::PerSequence) && case.offsets.is_some(),
        ),
    ];
    let given = all.into_iter().filter(|(_, given)| *given);
    given.map(|(name, _)| name).collect()
}

/// What [`asked`] can name.
const OPTIONS: usize = 17;

#[test]
fn layers_take_every_option_of_attention() {
    let mut report = Report::new();
    let mut rng = StdRng::seed_from_u64(29);
    let mut met: BTreeMap<&str, usize> = BTreeMap::new();
    // Those that change query, key and value are not for a layer: it makes its own.
    let own = |feature: &Feature| !matches!(feature, Feature::Poison | Feature::Peaked);
    for feature in Feature::ALL.into_iter().filter(own) {
        for others in [0.0, 0.15] {
            let mut features: Vec<Feature> = Feature::ALL.into_iter().filter(own).collect();
            features.retain(|_| rng.random_bool(others));
            // The last one counts.
            features.push(feature);
            let positional = [Feature::TopLeft, Feature::Offset, Feature::PerSequence];
            // Without a rule of position an alignment says nothing, nor do some with as
            // many keys as queries.
            let aligned = positional.contains(&feature);
            if aligned {
                features.push(Feature::Causal);
            }
            let seed = rng.random();
            let layer = Layer::of(seed, |layer| {
                if aligned {
                    layer.context = Some([layer.q_len + 9, layer.width]);
                }
            });
            let out = [DType::F32, DType::F16, DType::BF16][rng.random_range(0..3)];
            let case = generate(rng.random(), layer.shape(out), &features);
            let inputs = with(layer.inputs(), &case);
            let what = format!("layer {seed}, {features:?}");
            let expected = judge(&mut report, &what, &inputs, &case.options, out);
            if others == 0.0 {
                let without = Options::default().causal(aligned);
                let without = reference::multi_head(&layer.inputs(), &without, out).unwrap();
                let heeded = expected.values != without.values;
                report.expect(heeded, format!("{what}: Y is the same without"));
            }
            for name in asked(&case) {
                *met.entry(name).or_default() += 1;
            }
        }
    }
    assert_eq!(met.len(), OPTIONS, "{met:?}");
    assert!(met.values().all(|&cases| cases >= 2), "{met:?}");
    report.finish(42 * 20 * kernels().len());
}

#[test]
fn one_head_and_many_are_layers() {
    let mut report = Report::new();
    for (seed, heads) in [[1, 1], [32, 32], [32, 8], [32, 1]].into_iter().enumerate() {
        for context in [None, Some([37, 10])] {
            let layer = Layer::of(seed as u64, |layer| {
                layer.heads = heads;
                layer.context = context;
                layer.q_len = 21;
            });
            let dims = layer.inputs().dims().unwrap().attention;
            assert_eq!([dims.q_heads, dims.kv_heads], heads);
            let what = format!("{heads:?} heads, context {context:?}");
            let causal = Options::default().causal(context.is_none());
            judge(&mut report, &what, &layer.inputs(), &causal, DType::F32);
        }
    }
    report.finish(8 * 21 * kernels().len());
}

/// Input and weights in each storage type, an f32 result between the projections.
#[test]
fn layers_are_stored_in_every_type() {
    let mut report = Report::new();
    let types = [DType::F32, DType::F16, DType::BF16];
    for input in types {
        for weight in types {
            for (seed, context) in [(7, None), (8, Some([19, 12]))] {
                let layer = Layer::of(seed, |layer| {
                    layer.stored = [input, weight];
                    layer.context = context;
                });
                let inputs = layer.inputs();
                assert_eq!(inputs.input.dtype(), input);
                assert_eq!(inputs.output.weight.dtype(), weight);
                let what = format!("input {input:?}, weights {weight:?}, seed {seed}");
                judge(&mut report, &what, &inputs, &Options::default(), input);
            }
        }
    }
    report.finish(18 * 10 * kernels().len());
}
