//! Creation of objects in error scopes.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::error::{Error, Result};

/// Runs object creation inside error scopes, so that a refusal becomes our
/// error instead of the caller's uncaptured one; then asks whether the device
/// is lost.
///
/// In a browser scopes answer later than this returns. There none is made: a
/// refusal is the device's uncaptured error, which its owner hears of (we do
/// of a device that we created: `Faults`), and a loss is its owner's
/// to hear of too.
pub(crate) fn scoped<T>(
    device: &wgpu::Device,
    action: impl fmt::Display,
    create: impl FnOnce() -> T,
) -> Result<T> {
    if cfg!(target_family = "wasm") {
        return Ok(create());
    }
    let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
    let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let made = create();
    let errors = [
        resolved(validation.pop()),
        resolved(internal.pop()),
        resolved(memory.pop()),
    ];
    let error = errors.into_iter().flatten().flatten().next();
    if is_lost(device) {
        let message = format!("noticed when {action}");
        return Err(Error::DeviceLost { message });
    }
    match error {
        Some(error) => Err(Error::Device {
            action: action.to_string(),
            message: error.to_string(),
        }),
        None => Ok(made),
    }
}

/// Whether a device is lost, as far as its guests are told: not in a browser.
///
/// A lost device tells no scope of any error, as WebGPU has it, and makes every
/// object as if nothing were wrong. So it is lost if a buffer without usages,
/// which nothing is allocated for, is not refused.
pub(crate) fn is_lost(device: &wgpu::Device) -> bool {
    if cfg!(target_family = "wasm") {
        return false;
    }
    let refusal = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let _ = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 0,
        usage: wgpu::BufferUsages::empty(),
        mapped_at_creation: false,
    });
    matches!(resolved(refusal.pop()), Some(None))
}

/// The value of a future that is ready at once, as those of error scopes are on
/// native backends.
fn resolved<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
