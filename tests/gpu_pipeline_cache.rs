//! Pipeline cache data: saved, loaded, damaged, foreign.

mod common;
#[path = "common/gpu.rs"]
mod gpu;
mod noop;

use common::{Feature, OwnedCase, Shape, generate};
use gpu::guest::{Guest, Setup};
use gpu::{gpu, oracle};
use noop::Noop;
use wgpu_attention::reference::compare;
use wgpu_attention::{Attention, Error, testing, wgpu};

fn case() -> OwnedCase {
    generate(1, Shape::f32([1, 2, 9, 8], 1, 33, 5), &[Feature::Causal])
}

/// Attention with no pipelines, on the tests' device.
fn fresh() -> Attention {
    Attention::new(gpu().device(), gpu().queue()).unwrap()
}

/// Pipelines made by `attention` compute what is right.
fn works(attention: &Attention) {
    let case = case();
    let expected = oracle(&case);
    let ran = Guest::run(attention, &case, &Setup::default()).unwrap();
    let found = compare(&ran.output, &expected.output, &expected.output_bound).unwrap();
    assert!(found.passed(), "{found}");
}

/// The adapter's data after one run, or `None` where it has none to give.
fn saved() -> Option<Vec<u8>> {
    let first = fresh();
    works(&first);
    let has = gpu()
        .device()
        .features()
        .contains(wgpu::Features::PIPELINE_CACHE);
    // A device of our own has the feature wherever its adapter does.
    let could = Attention::adapters()[0]
        .features()
        .contains(wgpu::Features::PIPELINE_CACHE);
    assert_eq!(has, could);
    let data = first.pipeline_cache_data();
    assert_eq!(data.is_some(), has);
    println!("{:?} bytes of data", data.as_ref().map(Vec::len));
    data
}

/// Loads data that is damaged, foreign, or that `pipeline_cache_data` gave.
fn load(attention: &Attention, data: &[u8]) -> Result<(), Error> {
    // SAFETY: nothing here is forged: the driver sees data of its own or none.
    unsafe { attention.load_pipeline_cache(data) }
}

#[test]
fn data_goes_round() {
    let Some(data) = saved() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipelines");
    std::fs::write(&path, &data).unwrap();
    let second = fresh();
    load(&second, &std::fs::read(&path).unwrap()).unwrap();
    works(&second);
    assert!(second.pipeline_cache_data().unwrap().len() >= data.len());
    // And from an `Attention` that has pipelines already.
    load(&second, &data).unwrap();
    works(&second);
}

/// Whatever happens to a file: the data is ignored, the error says why, and the
/// attention works as before.
#[test]
fn damaged_data_is_ignored() {
    let Some(data) = saved() else { return };
    let attention = fresh();
    let refused = |data: &[u8]| {
        let error = load(&attention, data).unwrap_err();
        assert!(matches!(error, Error::Value { .. }), "{error:?}");
        error.to_string()
    };
    for length in 0..data.len() {
        refused(&data[..length]);
    }
    for at in 0..data.len() {
        for bit in [1, 0x80] {
            let mut damaged = data.clone();
            damaged[at] ^= bit;
            refused(&damaged);
        }
    }
    let longer = [&data[..], &[0]].concat();
    assert!(refused(&longer).contains("damaged"));
    assert!(refused(&[0; 200]).contains("something else"));
    assert!(refused(b"").contains("0 bytes"));
    works(&attention);
}

#[test]
fn foreign_data_is_ignored() {
    let Some(data) = saved() else { return };
    let attention = fresh();
    let foreign = testing::foreign_pipeline_cache(&attention, &data).unwrap();
    let text = load(&attention, &foreign).unwrap_err().to_string();
    assert!(text.contains("of another year"), "{text}");
    works(&attention);
}

#[test]
fn a_device_without_the_feature_says_so() {
    let noop = Noop::new();
    assert!(noop.attention.pipeline_cache_data().is_none());
    let error = load(&noop.attention, &[]).unwrap_err();
    assert!(error.is_unsupported(), "{error:?}");
    assert!(error.to_string().contains("PIPELINE_CACHE"), "{error}");
}
