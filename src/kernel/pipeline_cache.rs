//! Saving what the driver compiled, and loading it in a later process: wgpu's
//! pipeline cache data in an envelope that finds damage and strangers.
//!
//! ```text
//! magic, 8 bytes | checksum, u64 | version, u32 | key length, u32 | key | data
//! ```
//!
//! Little endian; the checksum is over everything after it; the key names
//! adapter, driver and the version of this crate.

use crate::error::{Error, Result};
use crate::kernel::scope::scoped;

const MAGIC: &[u8; 8] = b"WGATTNPC";
const VERSION: u32 = 1;

/// A cache that holds nothing yet, where the device has the feature.
#[allow(unsafe_code)]
pub(crate) fn empty(device: &wgpu::Device) -> Result<Option<wgpu::PipelineCache>> {
    if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
        return Ok(None);
    }
    // SAFETY: there is no data to come from anywhere.
    scoped(device, "creating a pipeline cache", || unsafe {
        create(device, None)
    })
    .map(Some)
}

/// # Safety
/// `data` was returned by [`wgpu::PipelineCache::get_data`].
#[allow(unsafe_code)]
pub(crate) unsafe fn create(device: &wgpu::Device, data: Option<&[u8]>) -> wgpu::PipelineCache {
    // SAFETY: the caller's promise is the one that wgpu asks for.
    unsafe {
        device.create_pipeline_cache(&wgpu::PipelineCacheDescriptor {
            label: Some("attention"),
            data,
            fallback: true,
        })
    }
}

/// Names adapter, driver and crate; `None` where there is no such cache.
pub(crate) fn key(info: &wgpu::AdapterInfo) -> Option<String> {
    let adapter = wgpu::util::pipeline_cache_key(info)?;
    let (driver, version) = (&info.driver, &info.driver_info);
    let own = env!("CARGO_PKG_VERSION");
    Some(format!(
        "{adapter}, {driver} {version}, wgpu-attention {own}"
    ))
}

/// The envelope around `data`.
pub(crate) fn seal(key: &str, data: &[u8]) -> Vec<u8> {
    let mut body = VERSION.to_le_bytes().to_vec();
    body.extend((key.len() as u32).to_le_bytes());
    body.extend(key.as_bytes());
    body.extend(data);
    let checksum = checksum(&body).to_le_bytes();
    [&MAGIC[..], &checksum, &body].concat()
}

/// What is in an envelope for `key`.
pub(crate) fn open<'a>(key: &str, sealed: &'a [u8]) -> Result<&'a [u8]> {
    let refused = |actual: String| {
        let expected = format!("the data of Attention::pipeline_cache_data on {key}");
        Error::value("pipeline cache data", expected, actual)
    };
    let short = || refused(format!("{} bytes, too few", sealed.len()));
    let (magic, rest) = sealed.split_first_chunk::<8>().ok_or_else(short)?;
    let (recorded, body) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    if magic != MAGIC {
        return Err(refused("something else".to_owned()));
    }
    if u64::from_le_bytes(*recorded) != checksum(body) {
        return Err(refused("damaged data: its checksum differs".to_owned()));
    }
    let (version, rest) = body.split_first_chunk::<4>().ok_or_else(short)?;
    if u32::from_le_bytes(*version) != VERSION {
        let version = u32::from_le_bytes(*version);
        return Err(refused(format!("data in version {version} of its form")));
    }
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (found, data) = rest.split_at_checked(length).ok_or_else(short)?;
    if found != key.as_bytes() {
        let found = String::from_utf8_lossy(found);
        return Err(refused(format!("that of {found}")));
    }
    Ok(data)
}

/// FNV-1a, 64 bits: a changed byte always changes it.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
