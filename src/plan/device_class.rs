//! Kinds of devices.

use std::fmt;

/// A kind of device, as far as the choice of a kernel goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceClass {
    /// Mesa's llvmpipe (lavapipe), a driver on the CPU, before Mesa 23.
    OldLlvmpipe,
    /// Mesa's llvmpipe from Mesa 23 on.
    Llvmpipe,
    /// Google's SwiftShader, a driver on the CPU.
    SwiftShader,
    /// Any other driver on the CPU (WARP).
    Software,
    /// A GPU by AMD.
    Amd,
    /// A GPU by Apple.
    Apple,
    /// A GPU by Intel.
    Intel,
    /// A Mali GPU by Arm.
    Mali,
    /// A GPU by NVIDIA.
    Nvidia,
    /// An Adreno GPU by Qualcomm.
    Qualcomm,
    /// Whatever a browser has: it does not tell.
    Browser,
    /// Anything else.
    Unknown,
}

impl DeviceClass {
    /// Every class.
    pub const ALL: &[DeviceClass] = &[
        DeviceClass::OldLlvmpipe,
        DeviceClass::Llvmpipe,
        DeviceClass::SwiftShader,
        DeviceClass::Software,
        DeviceClass::Amd,
        DeviceClass::Apple,
        DeviceClass::Intel,
        DeviceClass::Mali,
        DeviceClass::Nvidia,
        DeviceClass::Qualcomm,
        DeviceClass::Browser,
        DeviceClass::Unknown,
    ];

    /// The class of an adapter.
    pub fn of(info: &wgpu::AdapterInfo) -> Self {
        if info.backend == wgpu::Backend::BrowserWebGpu {
            return DeviceClass::Browser;
        }
        if is_llvmpipe(info) {
            return match mesa_version(&info.driver_info) {
                Some(..23) => DeviceClass::OldLlvmpipe,
                _ => DeviceClass::Llvmpipe,
            };
        }
        let names = format!("{} {}", info.name, info.driver).to_lowercase();
        if names.contains("swiftshader") {
            return DeviceClass::SwiftShader;
        }
        if info.device_type == wgpu::DeviceType::Cpu {
            return DeviceClass::Software;
        }
        match info.vendor {
            0x1002 => DeviceClass::Amd,
            0x106b => DeviceClass::Apple,
            0x10de => DeviceClass::Nvidia,
            0x13b5 => DeviceClass::Mali,
            0x5143 => DeviceClass::Qualcomm,
            0x8086 => DeviceClass::Intel,
            // Metal gives no number, only a name.
            _ if names.starts_with("apple") => DeviceClass::Apple,
            _ if names.starts_with("amd") => DeviceClass::Amd,
            _ if names.starts_with("intel") => DeviceClass::Intel,
            _ => DeviceClass::Unknown,
        }
    }

    /// What it is called in a plan.
    pub fn name(self) -> &'static str {
        match self {
            DeviceClass::OldLlvmpipe => "llvmpipe before Mesa 23",
            DeviceClass::Llvmpipe => "llvmpipe",
            DeviceClass::SwiftShader => "SwiftShader",
            DeviceClass::Software => "driver on the CPU",
            DeviceClass::Amd => "AMD GPU",
            DeviceClass::Apple => "Apple GPU",
            DeviceClass::Intel => "Intel GPU",
            DeviceClass::Mali => "Mali GPU",
            DeviceClass::Nvidia => "NVIDIA GPU",
            DeviceClass::Qualcomm => "Qualcomm GPU",
            DeviceClass::Browser => "device in a browser",
            DeviceClass::Unknown => "unknown device",
        }
    }
}

pub(crate) fn is_llvmpipe(info: &wgpu::AdapterInfo) -> bool {
    info.driver == "llvmpipe" || info.name.starts_with("llvmpipe")
}

/// The number after "Mesa ".
fn mesa_version(driver_info: &str) -> Option<u32> {
    let (_, version) = driver_info.split_once("Mesa ")?;
    let digits = version.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

impl fmt::Display for DeviceClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
