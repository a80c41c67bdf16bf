//! Creation of objects in error scopes.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::error::{Error, Result};

/// Runs object creation inside error scopes, so that a refusal becomes our
/// error instead of the caller's uncaptured one.
pub(crate) fn scoped<T>(
    device: &wgpu::Device,
    action: impl fmt::Display,
    create: impl FnOnce() -> T,
) -> Result<T> {
    let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
    let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let made = create();
    let errors = [
        resolved(validation.pop()),
        resolved(internal.pop()),
        resolved(memory.pop()),
    ];
    match errors.into_iter().flatten().flatten().next() {
        Some(error) => Err(device_error(action.to_string(), &error)),
        None => Ok(made),
    }
}

fn device_error(action: String, error: &wgpu::Error) -> Error {
    let message = error.to_string();
    // wgpu reports a lost device as a validation error of whatever came next.
    if message.contains("lost") {
        return Error::DeviceLost { message };
    }
    Error::Device { action, message }
}

/// The value of a future that is ready at once: on native backends error
/// scopes are. In a browser they are not; there the error surfaces as an
/// uncaptured one of the device.
fn resolved<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
