//! Attention in f32 on the CPU, for people without an adapter.
//!
//! All options of the GPU path, the same formula, the same rules for excluded
//! pairs and empty rows (see [`reference`](crate::reference)), and memory linear
//! in the sequence length: keys are visited in blocks with an online softmax, and
//! blocks that a row cannot see are not visited. Work is shared out by (batch,
//! query head); a row's bits do not depend on the number of threads, on other
//! rows, or on keys that it does not see.

mod head;
mod row;

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use crate::error::{Result, no_memory};
use crate::host::{Inputs, Outputs};
use crate::options::Options;
use head::Head;

/// Attention on all available threads (on one where there are no threads, as
/// on wasm32).
///
/// # Errors
/// As [`Inputs::validate`].
pub fn forward(inputs: &Inputs, options: &Options) -> Result<Outputs> {
    let threads = match cfg!(target_family = "wasm") {
        true => NonZeroUsize::MIN,
        false => std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
    };
    forward_on(threads, inputs, options)
}

/// Attention on at most `threads` threads, the calling one included.
///
/// # Errors
/// As [`Inputs::validate`].
pub fn forward_on(threads: NonZeroUsize, inputs: &Inputs, options: &Options) -> Result<Outputs> {
    let dims = inputs.validate(options)?;
    let mut outputs = Outputs {
        output: zeros("output", dims.rows(), dims.v_dim)?,
        lse: zeros("lse", dims.rows(), 1)?,
    };
    if dims.rows() == 0 {
        return Ok(outputs);
    }
    let of_head = outputs.output.chunks_mut(dims.q_len * dims.v_dim);
    let heads = of_head.zip(outputs.lse.chunks_mut(dims.q_len)).enumerate();
    let queue = Mutex::new(heads);
    let work = || {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((index, (output, lse))) = next else {
                break;
            };
            let (b, h) = (index / dims.q_heads, index % dims.q_heads);
            Head::new(inputs, options, dims, b, h).forward(output, lse);
        }
    };
    let helpers = threads.get().min(dims.batch * dims.q_heads) - 1;
    if helpers == 0 {
        work();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..helpers {
                // Without one its heads are left to the others.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
    }
    Ok(outputs)
}

/// `rows * columns` zeros, or an error where the host has no memory for them.
fn zeros(what: &str, rows: usize, columns: usize) -> Result<Vec<f32>> {
    let count = rows.saturating_mul(columns);
    let mut zeros = Vec::new();
    match zeros.try_reserve_exact(count) {
        Ok(()) => {
            zeros.resize(count, 0.0);
            Ok(zeros)
        }
        Err(_) => Err(no_memory(what, count)),
    }
}
