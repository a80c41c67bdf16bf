//! What the driver compiled for a device, kept for a later process.

use crate::error::{Error, Result};
use crate::kernel::pipeline_cache::{create, key, open, seal};
use crate::kernel::scope::scoped;
use crate::record::attention::Attention;

impl Attention {
    /// What the driver has compiled so far, to be kept for a later process and
    /// given to [`Attention::load_pipeline_cache`] there.
    ///
    /// `None` unless the device has [`wgpu::Features::PIPELINE_CACHE`] (Vulkan;
    /// devices that this crate creates have it wherever the adapter does). Many
    /// desktop drivers keep a cache of their own and put next to nothing in here.
    pub fn pipeline_cache_data(&self) -> Option<Vec<u8>> {
        let data = self.shared.pipelines.saved()?.get_data()?;
        Some(seal(&key(&self.device().adapter_info())?, &data))
    }

    /// Has pipelines that are prepared from now on start from the data of an
    /// earlier process on the same adapter and driver.
    ///
    /// # Errors
    /// An error is a warning: the data was ignored, and everything works as if
    /// this had not been called. [`Error::Value`] if it is damaged, or from
    /// another adapter, driver or version of this crate; [`Error::Unsupported`]
    /// if the device lacks [`wgpu::Features::PIPELINE_CACHE`]; [`Error::Device`]
    /// if it refuses.
    ///
    /// # Safety
    /// Drivers trust this data. If its checksum holds, it has to come from
    /// [`Attention::pipeline_cache_data`]: damage is found here, forgery is not.
    /// Keep it where nobody else can write, as wgpu asks too.
    #[allow(unsafe_code)]
    pub unsafe fn load_pipeline_cache(&self, data: &[u8]) -> Result<()> {
        let key = self.pipeline_cache_key()?;
        let data = open(&key, data)?;
        let cache = scoped(self.device(), "loading pipeline cache data", || {
            // SAFETY: wgpu asks for data that `PipelineCache::get_data` returned.
            // `open` has found our magic, version, an intact checksum and this
            // adapter's key around it; such an envelope is only made by
            // `pipeline_cache_data`, around just that, or by a forger, and
            // there is none by this function's contract. wgpu compares the
            // driver's cache UUID before the driver sees the data, and starts
            // empty if it differs (`fallback`).
            unsafe { create(self.device(), Some(data)) }
        })?;
        self.shared.pipelines.save_in(cache);
        Ok(())
    }

    fn pipeline_cache_key(&self) -> Result<String> {
        let key = key(&self.device().adapter_info());
        let able = self.shared.pipelines.saved().and(key);
        able.ok_or_else(|| Error::Unsupported {
            reasons: vec![Error::value(
                "pipeline cache data",
                "a device with the feature PIPELINE_CACHE",
                "one without",
            )],
        })
    }
}
