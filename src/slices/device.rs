//! Devices of our own, for people who have none: adapter choice, limits, and
//! what to say when there is no adapter.

use crate::error::{Error, Result};
use crate::record::attention::Attention;
use crate::record::faults::Faults;

/// Which adapter to use, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdapterOptions {
    /// Part of the adapter's name, driver or backend, upper or lower case
    /// alike; `None` takes the fastest one.
    pub name: Option<String>,
    /// Check WebGPU's rules as a browser would
    /// ([`wgpu::InstanceFlags::STRICT_WEBGPU_COMPLIANCE`]).
    pub strict_webgpu: bool,
    /// Ask for WebGPU's default limits and no feature, whatever the adapter has.
    pub default_limits: bool,
}

impl AdapterOptions {
    /// Sets the part of the name to look for.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets strict WebGPU rules.
    pub fn strict_webgpu(mut self, strict: bool) -> Self {
        self.strict_webgpu = strict;
        self
    }

    /// Sets default limits.
    pub fn default_limits(mut self, default: bool) -> Self {
        self.default_limits = default;
        self
    }

    fn instance(&self) -> wgpu::Instance {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        // GL has no storage buffers worth the name on most systems.
        descriptor.backends = wgpu::Backends::PRIMARY;
        if self.strict_webgpu {
            descriptor.flags |= wgpu::InstanceFlags::STRICT_WEBGPU_COMPLIANCE;
        }
        one_instance(self.strict_webgpu, || {
            wgpu::Instance::new(descriptor.with_env())
        })
    }
}

/// One instance for all devices of the process (one more under strict rules):
/// wgpu tells buffers of different devices apart within an instance, but not
/// between two of them.
#[cfg(not(target_family = "wasm"))]
fn one_instance(strict: bool, make: impl FnOnce() -> wgpu::Instance) -> wgpu::Instance {
    static INSTANCES: [std::sync::OnceLock<wgpu::Instance>; 2] =
        [const { std::sync::OnceLock::new() }; 2];
    INSTANCES[usize::from(strict)].get_or_init(make).clone()
}

/// In a browser there is one GPU object anyway.
#[cfg(target_family = "wasm")]
fn one_instance(_strict: bool, make: impl FnOnce() -> wgpu::Instance) -> wgpu::Instance {
    make()
}

/// Faster kinds first.
fn rank(info: &wgpu::AdapterInfo) -> u32 {
    match info.device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    }
}

fn describe(info: &wgpu::AdapterInfo) -> String {
    format!(
        "{} ({:?}, {:?}, driver {} {})",
        info.name, info.backend, info.device_type, info.driver, info.driver_info
    )
}

fn matches(info: &wgpu::AdapterInfo, part: &str) -> bool {
    describe(info).to_lowercase().contains(&part.to_lowercase())
}

impl Attention {
    /// Adapters that can run this crate, the fastest kind first.
    pub async fn adapters_async() -> Vec<wgpu::Adapter> {
        let instance = AdapterOptions::default().instance();
        list(&instance).await
    }

    /// The features, of those that the adapter has, that make a difference here: ask for
    /// them, and for `adapter.limits()`, when you make the device that you pass to
    /// [`Attention::new`]. Without them everything works, by other kernels: some adapters
    /// have one that needs `SUBGROUP` and is several times as fast.
    ///
    /// They are `SUBGROUP`, `SHADER_INT64` (wide loads on lavapipe), `TIMESTAMP_QUERY`
    /// (times of the `tune` feature) and `PIPELINE_CACHE`.
    pub fn features(adapter: &wgpu::Adapter) -> wgpu::Features {
        let wanted = wgpu::Features::TIMESTAMP_QUERY
            | wgpu::Features::PIPELINE_CACHE
            | wgpu::Features::SUBGROUP
            | wgpu::Features::SHADER_INT64;
        adapter.features() & wanted
    }

    /// Creates a device on the adapter that `options` names, of an instance of this
    /// crate's own: buffers of a caller's instance cannot be used with it
    /// ([`Attention::on_adapter_async`] takes an adapter of the caller's,
    /// [`Attention::new`] a device).
    ///
    /// # Errors
    /// [`Error::NoAdapter`] with what there was; [`Error::Device`] if the
    /// adapter gives no device.
    pub async fn with_adapter_async(options: &AdapterOptions) -> Result<Attention> {
        let instance = options.instance();
        let adapters = list(&instance).await;
        let wanted = options.name.as_deref().unwrap_or("");
        let found = adapters
            .iter()
            .find(|adapter| matches(&adapter.get_info(), wanted));
        let Some(adapter) = found else {
            let names: Vec<_> = adapters.iter().map(|a| describe(&a.get_info())).collect();
            let detail = match (names.is_empty(), &options.name) {
                (true, _) => "none of Vulkan, Metal, DX12 or WebGPU is available".to_owned(),
                (false, _) => format!("none matches {wanted:?}; there are: {}", names.join("; ")),
            };
            return Err(Error::NoAdapter { detail });
        };
        match options.default_limits {
            true => request(adapter, wgpu::Limits::default(), wgpu::Features::empty()).await,
            false => Attention::on_adapter_async(adapter).await,
        }
    }

    /// Creates a device on an adapter of the caller's, with all limits of the adapter and
    /// [`Attention::features`]. Its buffers and those of other devices of the caller's
    /// instance are then told apart, which they are not between two instances.
    ///
    /// # Errors
    /// [`Error::Device`] if the adapter gives no device.
    pub async fn on_adapter_async(adapter: &wgpu::Adapter) -> Result<Attention> {
        request(adapter, adapter.limits(), Attention::features(adapter)).await
    }

    /// What is known of the adapter.
    pub fn adapter_info(&self) -> wgpu::AdapterInfo {
        self.device().adapter_info()
    }

    /// The adapter in a line: name, backend, kind, driver.
    pub fn adapter_line(&self) -> String {
        describe(&self.adapter_info())
    }
}

async fn request(
    adapter: &wgpu::Adapter,
    required_limits: wgpu::Limits,
    required_features: wgpu::Features,
) -> Result<Attention> {
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("wgpu-attention"),
        required_features,
        required_limits,
        ..Default::default()
    };
    let made = adapter.request_device(&descriptor).await;
    let (device, queue) = made.map_err(|error| Error::Device {
        action: format!("creating a device on {}", describe(&adapter.get_info())),
        message: error.to_string(),
    })?;
    Attention::with_faults(&device, &queue, Faults::listen(&device))
}

async fn list(instance: &wgpu::Instance) -> Vec<wgpu::Adapter> {
    let mut adapters = instance.enumerate_adapters(wgpu::Backends::all()).await;
    // Not every backend can enumerate (a browser cannot); all can be asked.
    if adapters.is_empty() {
        let request = instance.request_adapter(&wgpu::RequestAdapterOptions::default());
        adapters.extend(request.await.ok());
    }
    adapters.retain(|adapter| {
        let flags = adapter.get_downlevel_capabilities().flags;
        flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS)
            && adapter.get_info().backend != wgpu::Backend::Noop
    });
    adapters.sort_by_key(|adapter| rank(&adapter.get_info()));
    adapters
}
