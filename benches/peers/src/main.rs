//! burn's attention and ours on one device in one run.
//!
//!     cd benches/peers
//!     MESA_SHADER_CACHE_DISABLE=1 cargo run --release -- [RUNS] [CASE]
//!
//! burn makes the device, ours is a guest on it. Both are timed the same way:
//! from the call to the output in host memory, the runs taking turns, the best
//! of each counting (default 6 runs of `prefill-64` and `prefill-128`). The
//! first run, with compilation and burn's autotuning, is shown apart. Results
//! that differ end the run. Operations are counted as 4 H Nq Nk D.

use std::error::Error;
use std::time::{Duration, Instant};

use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Tensor as BurnTensor, TensorData};
use wgpu_attention::{Attention, DType, Inputs, Options, PlanOptions, Tensor};

/// Name, and (B, H, N, D).
const CASES: [(&str, [usize; 4]); 2] = [
    ("prefill-64", [1, 8, 512, 64]),
    ("prefill-128", [1, 8, 1024, 128]),
];

/// Furthest that two outputs, averages of numbers in -1..1, may be apart.
const FURTHEST: f32 = 1e-3;

type Run<'a> = &'a mut dyn FnMut() -> Result<Vec<f32>, Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let runs = args.next().map_or(Ok(6), |text| text.parse::<usize>())?;
    let wanted = args.next();
    let (device, setup) = Device::wgpu_options().init_with_setup()?;
    let ours = Attention::new(&setup.device, &setup.queue)?;
    println!("adapter: {}", ours.adapter_line());
    for (name, shape) in CASES {
        if wanted.as_deref().is_none_or(|wanted| wanted == name) {
            case(name, shape, runs, &device, &ours)?;
        }
    }
    Ok(())
}

fn case(
    name: &str,
    shape: [usize; 4],
    runs: usize,
    device: &Device,
    ours: &Attention,
) -> Result<(), Box<dyn Error>> {
    let data = [1u32, 2, 3].map(|seed| numbers(seed, shape.iter().product()));
    let [query, key, value] = data
        .each_ref()
        .map(|data| BurnTensor::<4>::from_data(TensorData::new(data.clone(), shape), device));
    let mut burn = || -> Result<Vec<f32>, Box<dyn Error>> {
        let options = AttentionModuleOptions::default();
        let (query, key, value) = (query.clone(), key.clone(), value.clone());
        let output = attention(query, key, value, None, None, options);
        output
            .into_data()
            .try_to_vec()
            .map_err(|error| format!("{error:?}").into())
    };
    let [query, key, value] = data.each_ref().map(|data| Tensor::f32(data, shape));
    let inputs = Inputs::new(query?, key?, value?);
    let started = Instant::now();
    let plan = PlanOptions::default();
    let uploaded = ours.upload(&inputs, &Options::default(), DType::F32, &plan)?;
    let prepare = started.elapsed();
    let kernel = uploaded.plan().kernel();
    let mut own = || -> Result<Vec<f32>, Box<dyn Error>> {
        uploaded.submit()?;
        Ok(uploaded.read()?.output)
    };

    let (burn_first, expected) = timed(&mut burn)?;
    let (own_first, got) = timed(&mut own)?;
    let apart = expected.iter().zip(&got).map(|(a, b)| (a - b).abs());
    let furthest = apart.fold(
        0f32,
        |most, x| if x > most || x.is_nan() { x } else { most },
    );
    let agree = expected.len() == got.len() && furthest <= FURTHEST;
    if !agree {
        return Err(format!("{name}: the results are {furthest} apart").into());
    }
    let mut best = [Duration::MAX; 2];
    for _ in 0..runs {
        best[0] = best[0].min(timed(&mut burn)?.0);
        best[1] = best[1].min(timed(&mut own)?.0);
    }
    let [_, heads, n, dim] = shape;
    let flop = 4.0 * (heads * n * n * dim) as f64;
    let rate = |time: Duration| flop / time.as_secs_f64() / 1e9;
    println!("{name}: heads {heads}, queries and keys {n}, head_dim {dim}, f32; best of {runs}");
    for (who, first, best) in [
        ("burn".to_owned(), burn_first, best[0]),
        (format!("ours ({kernel})"), own_first + prepare, best[1]),
    ] {
        let (first, milliseconds) = (first.as_secs_f64(), best.as_secs_f64() * 1e3);
        println!(
            "  {who:<24}{milliseconds:>10.2} ms {:>8.2} GFLOP/s, first run {first:.2} s",
            rate(best)
        );
    }
    let ratio = best[0].as_secs_f64() / best[1].as_secs_f64();
    println!("  ours is {ratio:.2} times as fast; outputs at most {furthest:.1e} apart");
    Ok(())
}

fn timed(run: Run<'_>) -> Result<(Duration, Vec<f32>), Box<dyn Error>> {
    let started = Instant::now();
    let output = run()?;
    Ok((started.elapsed(), output))
}

/// Numbers in -1..1 of a linear congruential generator.
fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
