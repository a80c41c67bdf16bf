//! A plain attention in three passes, to compare with: `plain.wgsl`.

use wgpu_attention::{Error, wgpu};

use super::case::Case;
use super::clock::Clock;

/// Its pipelines and buffers for one case.
pub struct Plain {
    passes: Vec<(wgpu::ComputePipeline, wgpu::BindGroup, [u32; 3])>,
    pub output: wgpu::Buffer,
    /// Bytes of its scores.
    pub scores: u64,
}

/// An open side of a window; sums with a position fit i32.
const OPEN: i32 = 1 << 30;

/// Iterations after which Mesa's llvmpipe ends an invocation's loops.
const MOST_KEYS: usize = 65_535 / 3;

impl Plain {
    /// Why the device cannot run it, if it can't.
    pub fn misfit(case: &Case, limits: &wgpu::Limits) -> Option<String> {
        if case.projection {
            return Some("it is attention, not a projection".to_owned());
        }
        if let Some(rule) = case.rules.first() {
            return Some(format!("it has no {}", rule.name()));
        }
        let bytes = Plain::score_bytes(case);
        let most = limits
            .max_storage_buffer_binding_size
            .min(limits.max_buffer_size);
        if bytes > most {
            return Some(format!(
                "its scores take {bytes} bytes, the device binds {most}"
            ));
        }
        if case.kv_len > MOST_KEYS {
            return Some(format!("its loops are for at most {MOST_KEYS} keys"));
        }
        let most = limits.max_compute_workgroups_per_dimension as usize;
        let grid = [case.kv_len, case.v_dim, case.q_len].map(|n| n.div_ceil(8));
        let heads = case.batch * case.heads;
        (grid.iter().any(|&n| n > most) || heads > most)
            .then(|| format!("more than {most} workgroups in one dimension"))
    }

    fn score_bytes(case: &Case) -> u64 {
        [case.batch, case.heads, case.q_len, case.kv_len]
            .iter()
            .map(|&n| n as u64)
            .product::<u64>()
            * 4
    }

    /// Buffers and pipelines for query, key and value in f32.
    pub fn new(clock: &Clock<'_>, case: &Case, inputs: &[Vec<f32>; 3]) -> Result<Plain, Error> {
        let window = case.options()?.window;
        let side = |keys: Option<u32>| keys.map_or(OPEN, |n| n.min(OPEN as u32) as i32);
        let right = match case.causal {
            true => 0,
            false => side(window.right),
        };
        let uniform = clock.uniform(&[
            case.q_len as u32,
            case.kv_len as u32,
            case.head_dim as u32,
            case.v_dim as u32,
            (case.heads / case.kv_heads) as u32,
            (case.kv_len as i32 - case.q_len as i32) as u32,
            side(window.left) as u32,
            right as u32,
            case.options()?.scale_for(case.head_dim).to_bits(),
            0,
            0,
            0,
        ]);
        let [query, key, value] = ["plain query", "plain key", "plain value"];
        let [query, key, value] = [(query, 0), (key, 1), (value, 2)]
            .map(|(label, n)| clock.filled(label, bytemuck::cast_slice(&inputs[n])));
        let scores = Plain::score_bytes(case);
        let score_buffer = clock.buffer("plain scores", scores);
        let count: usize = case.output_shape().iter().product();
        let output = clock.buffer("plain output", count as u64 * 4);
        let module = clock.module("plain attention", include_str!("plain.wgsl"));
        let heads = (case.batch * case.heads) as u32;
        let [rows, row_tiles, key_tiles, column_tiles] = [
            case.q_len.div_ceil(64),
            case.q_len.div_ceil(8),
            case.kv_len.div_ceil(8),
            case.v_dim.div_ceil(8),
        ]
        .map(|n| n as u32);
        let buffers = [&uniform, &query, &key, &value, &score_buffer, &output];
        let pass = |entry: &str, bound: &[u32], grid: [u32; 3]| {
            let pipeline = clock.pipeline(&module, entry);
            let bound: Vec<_> = bound.iter().map(|&n| (n, buffers[n as usize])).collect();
            let group = clock.bind(&pipeline, &bound);
            (pipeline, group, grid)
        };
        Ok(Plain {
            passes: vec![
                pass(
                    "scores_of_pairs",
                    &[0, 1, 2, 4],
                    [key_tiles, row_tiles, heads],
                ),
                pass("softmax_of_rows", &[0, 4], [rows, heads, 1]),
                pass(
                    "sums_of_values",
                    &[0, 3, 4, 5],
                    [column_tiles, row_tiles, heads],
                ),
            ],
            output,
            scores,
        })
    }

    pub fn record(&self, pass: &mut wgpu::ComputePass<'_>) {
        for (pipeline, group, [x, y, z]) in &self.passes {
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, group, &[]);
            pass.dispatch_workgroups(*x, *y, *z);
        }
    }

    pub fn dispatches(&self) -> usize {
        self.passes.len()
    }
}
