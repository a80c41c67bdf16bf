//! What the host has no memory for is an error that says how much was asked for: an
//! allocator that refuses large requests, wherever they come from, ends no process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::num::NonZeroUsize;

use wgpu_attention::interpret::{
    Contributions, Histogram, RankBy, Row, Weights, mean_over_heads, rollout,
};
use wgpu_attention::{
    DType, Error, HostLinear, Inputs, MultiHeadInputs, Options, Pairs, Quantity, Region, Rows,
    Stage, Stats, Tensor, cpu, gram_matrices, reference,
};

thread_local! {
    /// The largest request of this thread that is granted, in bytes.
    static LARGEST: Cell<usize> = const { Cell::new(usize::MAX) };
}

struct Limited;

fn is_granted(bytes: usize) -> bool {
    LARGEST
        .try_with(|largest| bytes <= largest.get())
        .unwrap_or(true)
}

// SAFETY: every granted call goes to the system's allocator with the same arguments,
// so that its promises are kept; null is how an allocator refuses a request.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_granted(layout.size()) {
            // SAFETY: the caller keeps the contract for this layout.
            true => unsafe { System.alloc(layout) },
            false => std::ptr::null_mut(),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_granted(layout.size()) {
            // SAFETY: as above.
            true => unsafe { System.alloc_zeroed(layout) },
            false => std::ptr::null_mut(),
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match is_granted(size) {
            // SAFETY: as above; `at` came from the system's allocator.
            true => unsafe { System.realloc(at, layout, size) },
            false => std::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Limited = Limited;

/// Calls with less and less memory, down to lists of 16 KiB; how often it is refused.
fn refusals<T>(what: &str, call: impl Fn() -> Result<T, Error>) -> usize {
    if let Err(error) = call() {
        panic!("{what}: {error}");
    }
    let mut refused = 0;
    for bits in (14..24).rev() {
        LARGEST.set(1 << bits);
        let result = call();
        LARGEST.set(usize::MAX);
        match result {
            Ok(_) => {}
            Err(Error::HostMemory { count, .. }) => {
                // Of 128 bytes at most each.
                assert!(
                    count as usize * 128 > 1 << bits,
                    "{what}: {count} of 2^{bits}"
                );
                refused += 1;
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
    refused
}

/// The same where 16 KiB are not enough.
fn refused<T>(what: &str, call: impl Fn() -> Result<T, Error>) {
    assert!(refusals(what, call) > 0, "{what}: 16 KiB are enough");
}

fn zeros(shape: [usize; 4]) -> Vec<f32> {
    vec![0.0; shape.iter().product()]
}

/// (queries, keys, Dqk, Dv), one of them large.
const SHAPES: [[usize; 4]; 6] = [
    [1, 2, 1 << 15, 2],
    [1, 2, 2, 1 << 15],
    [1, 0, 2, 1 << 15],
    [1, 1 << 14, 1, 1],
    [1 << 14, 1, 1, 1],
    [200, 200, 3, 30],
];

#[test]
fn of_the_oracle_and_the_cpu_path() {
    let mut refusals_of_parts = 0;
    for [queries, keys, qk_dim, v_dim] in SHAPES {
        let shapes = [
            [1, 1, queries, qk_dim],
            [1, 1, keys, qk_dim],
            [1, 1, keys, v_dim],
        ];
        let [q, k, v] = shapes.map(zeros);
        let tensor = |data, n: usize| Tensor::f32(data, shapes[n]).unwrap();
        let inputs = Inputs::new(tensor(&q, 0), tensor(&k, 1), tensor(&v, 2));
        let (inputs, options) = (&inputs, &Options::default());
        let what = |name: &str| format!("{name} of {shapes:?}");
        refused(&what("oracle"), || {
            reference::forward(inputs, options, DType::F16)
        });
        let one = NonZeroUsize::MIN;
        refused(&what("cpu"), || cpu::forward_on(one, inputs, options));
        let rows = 0..queries;
        let region = Region {
            batches: 0..1,
            heads: 0..1,
            rows: rows.clone(),
        };
        let pairs = Pairs {
            quantity: Quantity::Stage(Stage::Probabilities),
            region: region.clone(),
            keys: 0..keys,
        };
        let wanted = Rows {
            region: region.clone(),
            top: 1,
            first_keys: 1,
        };
        let (stats, out) = (Stats::Lse, DType::F32);
        refusals_of_parts += Stage::ALL
            .map(|stage| {
                refusals(&what("stage"), || {
                    reference::stage(inputs, options, stage, 0..1, 0..1, rows.clone())
                })
            })
            .iter()
            .sum::<usize>();
        refusals_of_parts += refusals(&what("pairs"), || {
            reference::pairs(inputs, options, stats, None, &pairs, out)
        });
        refusals_of_parts += refusals(&what("rows"), || {
            reference::rows(inputs, options, stats, None, &wanted)
        });
        refusals_of_parts += refusals(&what("received"), || {
            reference::received(inputs, options, stats, &region)
        });
        refusals_of_parts += refusals(&what("norms"), || reference::value_norms(&inputs.value));
    }
    assert!(refusals_of_parts > 80, "{refusals_of_parts}");
}

#[test]
fn of_layers_and_projections() {
    for [rows, width, inner] in [[2, 1 << 13, 4], [600, 8, 4], [2, 4, 1 << 12]] {
        let (input, q, o) = (
            zeros([1, 1, rows, width]),
            zeros([1, 1, inner, width]),
            zeros([1, 1, width, inner]),
        );
        let input = Tensor::f32(&input, [1, 1, rows, width]).unwrap();
        let inward = Tensor::f32(&q, [1, 1, inner, width]).unwrap();
        let outward = Tensor::f32(&o, [1, 1, width, inner]).unwrap();
        let linear = |weight| HostLinear { weight, bias: None };
        let linears = [inward, inward, inward, outward].map(linear);
        let layer = MultiHeadInputs::new(input, 2, linears);
        refused(&format!("layer {rows} {width} {inner}"), || {
            reference::multi_head(&layer, &Options::default(), DType::F32)
        });
        refused(&format!("project {rows} {width} {inner}"), || {
            reference::project(&input, &inward, None, DType::F32)
        });
    }
    let (value, gram) = (zeros([1, 1, 64, 64]), zeros([1, 1, 64, 64]));
    let value = Tensor::f32(&value, [1, 1, 64, 64]).unwrap();
    let gram = Tensor::f32(&gram, [1, 1, 64, 64]).unwrap();
    refused("norms through", || {
        reference::value_norms_through(&value, &gram)
    });
    refused("gram matrices", || gram_matrices(&value, 1, 64));
}

#[test]
fn of_what_weights_say() {
    let weights = vec![1e-5f32; 1 << 14];
    let wide = Weights::new(&weights, [1, 1 << 14]).unwrap();
    refused("by distance", || wide.by_distance(1 << 14));
    refused("received", || wide.received());
    refused("mean over heads", || {
        mean_over_heads(&weights, [2, 1, 1 << 13])
    });
    let square = Weights::new(&weights, [128, 128]).unwrap();
    refused("rollout", || rollout(&[square]));
    refused("ranking", || {
        Row::new(&weights, 0).top(&weights, RankBy::Weight, 5)
    });
    let edges: Vec<f64> = (0..1 << 14).map(f64::from).collect();
    refused("histogram", || Histogram::of(&weights, &edges));
    refused("contributions", || {
        Contributions::new(&[0.5], &weights, 1 << 14)
    });
    // From nothing at all.
    refused("contributions of no key", || {
        Contributions::new(&[], &[], 1 << 14).map(|found| found.output().len())
    });
    let none = Contributions::new(&[], &[], 1).unwrap();
    refused("contributions of no key through", || {
        none.through(&weights, [1 << 14, 1], 0)
    });
}
