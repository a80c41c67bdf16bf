//! Adapters and devices that are not there, and the error type itself.

use crate::noop::{Buffers, Noop, SMALL};
use wgpu_attention::*;

#[test]
fn a_device_that_is_gone_is_reported() {
    let noop = Noop::new();
    let buffers = Buffers::new(&noop, SMALL, DType::F32);
    let plan = noop
        .attention
        .plan(&buffers.plain(), &Options::default())
        .unwrap();
    noop.device.destroy();
    let error = noop.attention.prepare(&plan).unwrap_err();
    assert!(error.is_device() && !error.is_input(), "{error:?}");
    assert!(error.to_string().contains("lost"), "{error}");
    assert!(matches!(error, Error::DeviceLost { .. }), "{error:?}");
}

#[test]
fn an_adapter_that_is_not_there_is_reported() {
    let options = AdapterOptions::default().name("no adapter has this name");
    let error = Attention::with_adapter(&options).unwrap_err();
    assert!(matches!(error, Error::NoAdapter { .. }), "{error:?}");
    assert!(error.is_device() && !error.is_input() && !error.is_unsupported());
    let text = error.to_string();
    let none = text == "no adapter: none of Vulkan, Metal, DX12 or WebGPU is available";
    let other =
        text.starts_with("no adapter: none matches \"no adapter has this name\"; there are: ");
    assert!(none || other, "{text}");
}

#[test]
fn predicates() {
    let limit = Error::Limit {
        what: "grid".to_owned(),
        needed: 2,
        limit_name: "max",
        limit: 1,
    };
    let message = || "gone".to_owned();
    let groups = [
        (
            [true, false, false],
            vec![
                Error::Unsupported {
                    reasons: vec![limit.clone()],
                },
                limit,
            ],
        ),
        (
            [false, false, true],
            vec![
                Error::NoAdapter { detail: message() },
                Error::Device {
                    action: message(),
                    message: message(),
                },
                Error::DeviceLost { message: message() },
                Error::Readback { message: message() },
            ],
        ),
    ];
    let mut texts = Vec::new();
    for (expected, errors) in groups {
        for error in errors {
            let found = [error.is_unsupported(), error.is_input(), error.is_device()];
            assert_eq!(found, expected, "{error:?}");
            let source: &dyn std::error::Error = &error;
            texts.push(source.to_string());
        }
    }
    let expected = [
        "not supported on this device:\n  - grid: 2 needed, the device's max is 1",
        "grid: 2 needed, the device's max is 1",
        "no adapter: gone",
        "gone: gone",
        "the device was lost: gone",
        "reading a result back: gone",
    ];
    assert_eq!(texts, expected);
}

#[test]
fn public_types_cross_threads() {
    fn assert<T: Send + Sync>() {}
    assert::<Attention>();
    assert::<Prepared>();
    assert::<Plan>();
    assert::<PlanOptions>();
    assert::<Problem>();
    assert::<Region>();
    assert::<DeviceCaps>();
    assert::<Options>();
    assert::<Operands<'static>>();
    assert::<TensorView<'static>>();
    assert::<MaskView<'static>>();
    assert::<StatsView<'static>>();
    assert::<List<'static, f32>>();
    assert::<Workspace<'static>>();
    assert::<Uploaded>();
    assert::<Inputs<'static>>();
    assert::<Outputs>();
    assert::<AdapterOptions>();
    assert::<Error>();
}
