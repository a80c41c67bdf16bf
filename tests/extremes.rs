//! Extreme scores and values: the CPU path against the oracle's bounds where
//! rounding errors are larger than the gaps between scores, and memory that no
//! host has.

use wgpu_attention::reference::{compare, forward, stage};
use wgpu_attention::{Alignment, DType, Error, Inputs, Options, Stage, Tensor, cpu};

fn agree(inputs: &Inputs<'_>, options: &Options) {
    let got = cpu::forward(inputs, options).unwrap();
    let want = forward(inputs, options, DType::F32).unwrap();
    let output = compare(&got.output, &want.output, &want.output_bound).unwrap();
    let lse = compare(&got.lse, &want.lse, &want.lse_bound).unwrap();
    assert_eq!(output.failed, 0, "{output:?} {:?}", got.output);
    assert_eq!(lse.failed, 0, "{lse:?} {:?}", got.lse);
}

#[test]
fn a_score_error_above_one_reaches_the_lse() {
    let (q, k) = ([1e19f32, 1e19], [0.3f32, -0.299]);
    let (q, k) = (Tensor::f32(&q, [1, 1, 1, 2]), Tensor::f32(&k, [1, 1, 1, 2]));
    let v = Tensor::f32(&[2.0], [1, 1, 1, 1]).unwrap();
    agree(&Inputs::new(q.unwrap(), k.unwrap(), v), &Options::default());
}

#[test]
fn scores_that_tie_in_f32_may_tie() {
    let zero = Tensor::f32(&[0.0], [1, 1, 1, 1]).unwrap();
    let zeros = Tensor::f32(&[0.0, 0.0], [1, 1, 2, 1]).unwrap();
    let v = Tensor::f32(&[1.0, 2.0], [1, 1, 2, 1]).unwrap();
    let bias = Tensor::f32(&[f32::MAX, f32::MAX], [1, 1, 1, 2]).unwrap();
    let inputs = Inputs::new(zero, zeros, v).bias(bias).alibi_slopes(&[9e30]);
    agree(&inputs, &Options::default().alignment(Alignment::TopLeft));
}

#[test]
fn an_infinite_value_may_meet_an_overflow() {
    let zero = Tensor::f32(&[0.0], [1, 1, 1, 1]).unwrap();
    let zeros = Tensor::f32(&[0.0; 3], [1, 1, 3, 1]).unwrap();
    let values = [3e38, 3e38, f32::NEG_INFINITY];
    let v = Tensor::f32(&values, [1, 1, 3, 1]).unwrap();
    agree(&Inputs::new(zero, zeros, v), &Options::default());
}

#[test]
fn memory_that_no_host_has_is_an_error() {
    // 2^16 rows of 2^30 columns: 256 TiB of output from inputs of 256 KiB.
    let queries = vec![0.0; 1 << 16];
    let many = Tensor::f32(&queries, [1 << 16, 1, 1, 1]).unwrap();
    let k = Tensor::f32(&[], [1 << 16, 1, 0, 1]).unwrap();
    let v = Tensor::f32(&[], [1 << 16, 1, 0, 1 << 30]).unwrap();
    let inputs = Inputs::new(many, k, v);
    // 2^46 pairs from inputs of 2^23 numbers each.
    let long = vec![0.0; 1 << 23];
    let long = Tensor::f32(&long, [1, 1, 1 << 23, 1]).unwrap();
    let pairs = Inputs::new(long, long, long);
    for error in [
        cpu::forward(&inputs, &Options::default()).unwrap_err(),
        forward(&inputs, &Options::default(), DType::F32).unwrap_err(),
        stage(
            &pairs,
            &Options::default(),
            Stage::Raw,
            0..1,
            0..1,
            0..1 << 23,
        )
        .unwrap_err(),
    ] {
        assert!(matches!(error, Error::HostMemory { .. }), "{error}");
    }
}
