//! What a device that this crate created reports on its own: that it was lost,
//! and errors outside of any scope. A guest installs no handlers.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};

/// The first loss and the first uncaptured error of a device.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults(Arc<Mutex<[Option<String>; 2]>>);

const LOST: usize = 0;
const UNCAPTURED: usize = 1;

impl Faults {
    /// Listens to a device of our own.
    pub fn listen(device: &wgpu::Device) -> Self {
        let faults = Faults::default();
        let teller = faults.clone();
        device.set_device_lost_callback(move |reason, message| {
            // wgpu has no message for a device that was destroyed.
            let message = match message.is_empty() {
                true => format!("{reason:?}"),
                false => format!("{reason:?}: {message}"),
            };
            teller.note(LOST, message);
        });
        let teller = faults.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            teller.note(UNCAPTURED, error.to_string());
        }));
        faults
    }

    /// The fault that was reported, if any. An uncaptured error is told once.
    pub fn check(&self) -> Result<()> {
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(message) = &faults[LOST] {
            let message = message.clone();
            return Err(Error::DeviceLost { message });
        }
        match faults[UNCAPTURED].take() {
            Some(message) => Err(Error::Device {
                action: "running commands".to_owned(),
                message,
            }),
            None => Ok(()),
        }
    }

    fn note(&self, which: usize, message: String) {
        let mut faults = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        faults[which].get_or_insert(message);
    }
}
