//! Copies results to the host: the one place that maps buffers and waits.

use futures_intrusive::channel::shared::oneshot_channel;

use crate::error::{Error, Result};
use crate::memory::room;

/// Reads bytes `0..size` of a `COPY_SRC` buffer, `size` a multiple of 4.
///
/// On native backends the device has to be polled meanwhile (the blocking
/// layer does); in a browser the event loop does it.
pub(crate) async fn read_bytes(
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    buffer: &wgpu::Buffer,
    size: u64,
) -> Result<Vec<u8>> {
    if size == 0 {
        return Ok(Vec::new());
    }
    let staging = crate::kernel::scope::scoped(device, "creating a readback buffer", || {
        device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("attention readback"),
            size,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        })
    })?;
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor {
        label: Some("attention readback"),
    });
    encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, size);
    queue.submit([encoder.finish()]);
    let (sender, receiver) = oneshot_channel();
    // No error scope tells that a device is lost when a buffer is made; a buffer
    // just made is invalid for no other reason.
    crate::kernel::scope::scoped(device, "mapping a readback buffer", || {
        staging.map_async(wgpu::MapMode::Read, .., move |result| {
            // Fails only if the receiver is gone, and then nobody waits.
            let _ = sender.send(result);
        });
    })
    .map_err(|error| Error::DeviceLost {
        message: error.to_string(),
    })?;
    poll_once(device)?;
    let mapped = receiver.receive().await;
    let message = |text: String| Error::Readback { message: text };
    mapped
        .ok_or_else(|| message("the device dropped the request".to_owned()))?
        .map_err(|error| message(error.to_string()))?;
    let view = staging
        .get_mapped_range(..)
        .map_err(|error| message(error.to_string()))?;
    let bytes = room("bytes of a result", &[view.len()]).map(|mut bytes: Vec<u8>| {
        bytes.extend_from_slice(&view);
        bytes
    });
    drop(view);
    staging.unmap();
    bytes
}

/// Waits on native backends until everything submitted is done; nothing in a
/// browser, where the event loop does that.
pub(crate) fn poll_once(device: &wgpu::Device) -> Result<()> {
    if cfg!(target_family = "wasm") {
        return Ok(());
    }
    match device.poll(wgpu::PollType::wait_indefinitely()) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::Readback {
            message: error.to_string(),
        }),
    }
}
