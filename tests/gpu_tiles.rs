//! Which tiles of keys the fused kernels compute, counted by the kernels
//! themselves, against brute force over all pairs: none in which no pair is
//! visible, and none without mask code in which a pair is excluded.

mod common;
#[path = "common/gpu.rs"]
mod gpu;

use common::{Feature, MaskBits, OwnedCase, OwnedMask, Shape, cases, generate, random_case};
use gpu::guest::{Guest, Setup};
use gpu::{Report, kernels};
use wgpu_attention::{Kernel, PlanOptions, Polarity, Stats, Window, testing};

/// Tiles that hold a visible pair, and tiles that hold no other, for the rows of
/// each tile of rows: (batch, head, tile of rows).
fn brute_force(case: &OwnedCase, [tile_rows, tile_keys]: [usize; 2]) -> Vec<[usize; 2]> {
    let dims = case.dims;
    let mut counts = Vec::new();
    for b in 0..dims.batch {
        // Rows past the sequence's length see nothing and cost nothing.
        let lengths = case.q_lengths.as_ref();
        let q_len = lengths.map_or(dims.q_len, |lengths| lengths[b] as usize);
        for h in 0..dims.q_heads {
            for row in (0..dims.q_len).step_by(tile_rows) {
                let rows = row..(row + tile_rows).min(q_len);
                let mut count = [0, 0];
                for key in (0..dims.kv_len).step_by(tile_keys) {
                    let keys = key..(key + tile_keys).min(dims.kv_len);
                    let pairs = rows.len() * keys.len();
                    let visible = rows
                        .clone()
                        .flat_map(|i| keys.clone().map(move |j| [b, h, i, j]))
                        .filter(|&pair| case.visible(pair))
                        .count();
                    count[0] += usize::from(visible > 0);
                    count[1] +=
                        usize::from(visible == pairs && pairs > 0 && keys.len() == tile_keys);
                }
                counts.push(count);
            }
        }
    }
    counts
}

/// Counts of tiles, as above.
type Counts = Vec<[usize; 2]>;

/// What the kernel counted, in the same order, and the size of its tiles.
fn counted(case: &OwnedCase, kernel: Kernel) -> Result<(Counts, [usize; 2]), String> {
    let gpu = gpu::gpu();
    let setup = Setup {
        plan: PlanOptions::default().kernel(kernel),
        stats: Some(Stats::RowState),
        ..Setup::default()
    };
    let mut guest = Guest::new(gpu, case, &setup)?;
    let plan = testing::counting_tiles(guest.prepared.plan());
    let tile = testing::tile_of(&plan, gpu.caps());
    guest.prepared = gpu.prepare(&plan).map_err(|e| e.to_string())?;
    let mut encoder = gpu.device().create_command_encoder(&Default::default());
    guest
        .record(&guest.prepared, &mut encoder)
        .map_err(|e| e.to_string())?;
    gpu.queue().submit([encoder.finish()]);
    let stats = guest.read()?.stats;
    let mut counts = Vec::new();
    for rows in stats.chunks(2 * case.dims.q_len) {
        for of_tile in rows.chunks(2 * tile[0]) {
            let same = of_tile.chunks(2).all(|pair| pair == &of_tile[..2]);
            if !same {
                return Err(format!("rows of one tile disagree: {of_tile:?}"));
            }
            counts.push([of_tile[0] as usize, of_tile[1] as usize]);
        }
    }
    Ok((counts, tile))
}

/// The families whose kernels count.
fn fused() -> impl Iterator<Item = Kernel> {
    let is_fused = |kernel: &Kernel| *kernel != Kernel::Staged;
    kernels().into_iter().filter(is_fused)
}

/// Compares both counts; `masks` says that pairs are excluded one by one, where
/// a kernel need not notice that none is.
fn check(report: &mut Report, case: &OwnedCase, masks: bool) {
    for kernel in fused() {
        let what = format!("{kernel:?}: {}", case.name);
        let Some((counts, tile)) = report.expect_ok(&what, counted(case, kernel)) else {
            continue;
        };
        let expected = brute_force(case, tile);
        // The lane-broadcast kernel has no tile without mask code.
        let masks = masks || kernel == Kernel::LaneBroadcast;
        report.expect(counts.len() == expected.len(), &what);
        for (n, (got, want)) in counts.iter().zip(&expected).enumerate() {
            let interior = if masks {
                got[1] <= want[1]
            } else {
                got[1] == want[1]
            };
            report.expect(
                got[0] == want[0] && interior,
                format!("{what}: tile {n}: {got:?}, expected {want:?}"),
            );
        }
    }
}

fn shape(q_len: usize, kv_len: usize) -> Shape {
    Shape::f32([2, 4, q_len, 4], 2, kv_len, 4)
}

#[test]
fn tiles_outside_causal_masks_windows_and_lengths_are_not_computed() {
    let mut report = Report::new();
    let sets: [&[Feature]; 8] = [
        &[],
        &[Feature::Causal],
        &[Feature::WindowLeft],
        &[Feature::WindowBoth],
        &[Feature::Causal, Feature::WindowLeft],
        &[Feature::KvLengths],
        &[Feature::KvLengths, Feature::QLengths, Feature::Causal],
        &[Feature::Alibi, Feature::Softcap, Feature::Sinks],
    ];
    for (q_len, kv_len) in [(200, 200), (130, 400), (300, 70), (1, 333), (64, 128)] {
        for features in sets {
            let mut case = generate(7, shape(q_len, kv_len), features);
            check(&mut report, &case, false);
            for (left, right) in [(0, 0), (64, 64), (3, 100)] {
                if features == [Feature::WindowBoth] {
                    let window = Window {
                        left: Some(left),
                        right: Some(right),
                    };
                    case.options = case.options.window(window);
                    case.name = format!("{q_len} x {kv_len}, {window:?}");
                    check(&mut report, &case, false);
                }
            }
        }
    }
    report.finish(0);
}

#[test]
fn tiles_between_segments_are_not_computed() {
    let mut report = Report::new();
    // Documents of several lengths, one after the other, and ids in disorder.
    for lengths in [&[64, 64, 128][..], &[10, 100, 1, 145], &[256], &[200, 56]] {
        let ids: Vec<u32> = (3u32..)
            .zip(lengths)
            .flat_map(|(id, &n)| std::iter::repeat_n(id, n))
            .collect();
        for features in [
            &[Feature::Segments][..],
            &[Feature::Segments, Feature::Causal],
            &[Feature::Segments, Feature::KvLengths],
        ] {
            let mut case = generate(3, shape(ids.len(), ids.len()), features);
            let both = [&ids[..], &ids].concat();
            case.segments = Some((both.clone(), both));
            case.name = format!("documents of {lengths:?}, {features:?}");
            check(&mut report, &case, true);
            if features == [Feature::Segments] {
                // Tiles of one document need no mask code, and get none.
                for kernel in fused().filter(|k| *k != Kernel::LaneBroadcast) {
                    let (counts, tile) = counted(&case, kernel).unwrap();
                    let least = brute_force(&case, tile)
                        .iter()
                        .map(|count| count[1])
                        .sum::<usize>();
                    let got = counts.iter().map(|count| count[1]).sum::<usize>();
                    report.expect(
                        got == least,
                        format!("{kernel:?} {}: {got} of {least}", case.name),
                    );
                }
            }
        }
    }
    for seed in 0..4 {
        check(
            &mut report,
            &generate(seed, shape(150, 200), &[Feature::Segments]),
            true,
        );
    }
    report.finish(0);
}

/// Masks and -inf in the bias hide blocks of several sizes.
#[test]
fn tiles_that_a_mask_hides_are_not_computed() {
    let mut report = Report::new();
    for feature in [Feature::MaskBits, Feature::MaskBytes] {
        for block in [32, 64, 96] {
            let mut case = generate(1, shape(160, 320), &[feature]);
            let hidden = |row: usize, j: usize| (row % 160 / block + j / block).is_multiple_of(2);
            let words = 320usize.div_ceil(32);
            let data = match feature {
                Feature::MaskBits => MaskBits::Bits(
                    (0..2 * 4 * 160 * words)
                        .map(|n| {
                            let (row, word) = (n / words, n % words);
                            (0..32).fold(0, |bits, k| {
                                bits | u32::from(hidden(row, word * 32 + k)) << k
                            })
                        })
                        .collect(),
                ),
                _ => MaskBits::Bytes(
                    (0..2 * 4 * 160 * 320)
                        .map(|n| u8::from(hidden(n / 320, n % 320)))
                        .collect(),
                ),
            };
            case.mask = Some(OwnedMask {
                data,
                shape: [2, 4, 160, 320],
                polarity: Polarity::Drop,
            });
            case.name = format!("{feature:?}, blocks of {block}");
            check(&mut report, &case, true);
        }
    }
    report.finish(0);
}

#[test]
fn tiles_of_any_mixture_of_options_are_counted() {
    let mut report = Report::new();
    for case in cases(0) {
        check(&mut report, &case, true);
    }
    for seed in 5000..5030 {
        check(&mut report, &random_case(seed), true);
    }
    report.finish(0);
}

/// The comparison would see a tile too many, one too few, and mask code left out.
#[test]
fn brute_force_tells_masks_apart() {
    let case = generate(7, shape(130, 130), &[Feature::Causal]);
    let counts = brute_force(&case, [64, 64]);
    assert_eq!(counts.len(), 2 * 4 * 3);
    assert_eq!(counts[..3], [[1, 0], [2, 1], [3, 2]]);
    let open = brute_force(&generate(7, shape(130, 130), &[]), [64, 64]);
    assert_eq!(open[..3], [[3, 2]; 3]);
}
