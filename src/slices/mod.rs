//! For people who have numbers in host memory: a device, uploads, readback, timing.

#[cfg(all(feature = "blocking", not(target_family = "wasm")))]
pub mod blocking;
pub mod device;
pub mod inspection;
pub mod layer;
pub mod readback;
pub mod timing;
pub mod upload;
