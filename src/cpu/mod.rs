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

use crate::error::Result;
use crate::host::inputs::{Inputs, Outputs};
use crate::memory::filled;
use crate::rules::options::Options;
use head::Head;

/// Attention on all available threads (on one where there are no threads, as
/// on wasm32).
///
/// # Errors
/// As [`Inputs::validate`]; [`Error::HostMemory`](crate::Error::HostMemory) if there is none
/// for the results, or for keys and values widened to f32.
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
/// As [`forward`].
pub fn forward_on(threads: NonZeroUsize, inputs: &Inputs, options: &Options) -> Result<Outputs> {
    let dims = inputs.validate(options)?;
    let mut outputs = Outputs {
        output: filled("output", &[dims.rows(), dims.v_dim], 0.0)?,
        lse: filled("lse", &[dims.rows()], 0.0)?,
    };
    if dims.rows() == 0 {
        return Ok(outputs);
    }
    let of_head = outputs.output.chunks_mut(dims.q_len * dims.v_dim);
    let heads = of_head.zip(outputs.lse.chunks_mut(dims.q_len)).enumerate();
    let queue = Mutex::new(heads);
    let failure = Mutex::new(None);
    let work = || {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((index, (output, lse))) = next else {
                break;
            };
            let (b, h) = (index / dims.q_heads, index % dims.q_heads);
            let head = Head::new(inputs, options, dims, b, h);
            if let Err(error) = head.and_then(|head| head.forward(output, lse)) {
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                break;
            }
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
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(outputs),
    }
}
