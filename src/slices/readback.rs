//! Copies results to the host: the one place that maps buffers and waits.

use std::sync::mpsc;
use std::time::Duration;

use futures_intrusive::channel::shared::oneshot_channel;

use crate::error::{Error, Result};
use crate::kernel::scope::{is_lost, scoped};
use crate::memory::room;
use crate::record::attention::Attention;

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
    let staging = scoped(device, "creating a readback buffer", || {
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
    scoped(device, "mapping a readback buffer", || {
        staging.map_async(wgpu::MapMode::Read, .., move |result| {
            // Fails only if the receiver is gone, and then nobody waits.
            let _ = sender.send(result);
        });
    })?;
    poll_once(device)?;
    let mapped = receiver.receive().await;
    mapped
        .ok_or_else(|| failed(device, "the device dropped the request".to_owned()))?
        .map_err(|error| failed(device, error.to_string()))?;
    let view = staging
        .get_mapped_range(..)
        .map_err(|error| failed(device, error.to_string()))?;
    let bytes = room("bytes of a result", &[view.len()]).map(|mut bytes: Vec<u8>| {
        bytes.extend_from_slice(&view);
        bytes
    });
    drop(view);
    staging.unmap();
    bytes
}

impl Attention {
    /// Asked before anything is submitted over slices; a guest's owner submits.
    pub(crate) fn check_queue(&self) -> Result<()> {
        let known = &self.shared.queue_is_own;
        if known.get().is_none() {
            check_queue(self.device(), self.queue())?;
            known.get_or_init(|| ());
        }
        Ok(())
    }
}

/// Whether a queue is the device's own, asked before the first submission that is ours.
///
/// wgpu does not tell whose a queue is, and what is submitted to another device's is
/// refused to that device's owner. But a queue calls back when its own device is polled,
/// and not when another one is. (In a browser it calls back later than this returns.)
fn check_queue(device: &wgpu::Device, queue: &wgpu::Queue) -> Result<()> {
    if cfg!(target_family = "wasm") {
        return Ok(());
    }
    let (sender, receiver) = mpsc::channel();
    queue.on_submitted_work_done(move || {
        // Fails only if the time below is up.
        let _ = sender.send(());
    });
    poll_once(device)?;
    // Another thread that polls may be about to call it.
    match receiver.recv_timeout(CALL_BACK) {
        Ok(()) => Ok(()),
        Err(_) => Err(Error::value(
            "queue",
            "the queue of the device",
            "that of another device",
        )),
    }
}

/// How long a thread that polls may take to call back.
const CALL_BACK: Duration = Duration::from_secs(5);

/// Waits on native backends until everything submitted is done; nothing in a
/// browser, where the event loop does that.
pub(crate) fn poll_once(device: &wgpu::Device) -> Result<()> {
    if cfg!(target_family = "wasm") {
        return Ok(());
    }
    match device.poll(wgpu::PollType::wait_indefinitely()) {
        Ok(_) => Ok(()),
        Err(error) => Err(failed(device, error.to_string())),
    }
}

/// Why nothing comes back.
fn failed(device: &wgpu::Device, message: String) -> Error {
    match is_lost(device) {
        true => Error::DeviceLost { message },
        false => Error::Readback { message },
    }
}
