//! What to install where no adapter was found.

use std::collections::BTreeMap;

/// Advice for the system this runs on.
pub fn how_to_get_an_adapter() -> String {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    advice(std::env::consts::OS, &release)
}

/// `release` is the text of /etc/os-release.
fn advice(os: &str, release: &str) -> String {
    let text = match os {
        "macos" | "ios" => {
            "Metal is part of the system: nothing to install, but it needs a Mac with a Metal \
             device (a virtual machine often has none)."
        }
        "windows" => {
            "Direct3D 12 and its software adapter are part of Windows 10 and 11: install the \
             graphics card's driver, and Windows updates."
        }
        "linux" => return linux(release),
        _ => "Install a Vulkan loader and a driver for your graphics card, or Mesa's lavapipe.",
    };
    text.to_owned()
}

fn linux(release: &str) -> String {
    let fields: BTreeMap<&str, &str> = release
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key, value.trim_matches('"')))
        .collect();
    let name = fields.get("PRETTY_NAME").copied().unwrap_or("this Linux");
    let id = fields.get("ID").copied().unwrap_or_default();
    let like = fields.get("ID_LIKE").copied().unwrap_or_default();
    let command = std::iter::once(id)
        .chain(like.split_whitespace())
        .find_map(|id| match id {
            "debian" | "ubuntu" => Some("apt-get install mesa-vulkan-drivers libvulkan1"),
            "fedora" | "rhel" => Some("dnf install mesa-vulkan-drivers vulkan-loader"),
            "arch" => Some("pacman -S vulkan-swrast vulkan-icd-loader"),
            "alpine" => Some("apk add mesa-vulkan-swrast vulkan-loader"),
            "suse" | "opensuse" => Some("zypper install libvulkan_lvp libvulkan1"),
            _ => None,
        });
    match command {
        Some(command) => format!(
            "On {name}, as root:\n    {command}\ngives Mesa's Vulkan drivers, lavapipe (software, runs \
             everywhere) among them. For a graphics card its vendor's Vulkan driver is faster."
        ),
        None => format!(
            "On {name}: install the Vulkan loader (libvulkan.so.1) and Mesa's Vulkan drivers, \
             lavapipe (software, runs everywhere) among them, or your graphics card's own driver."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_system_gets_its_own_command() {
        let debian = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n";
        let text = advice("linux", debian);
        assert!(text.contains("Debian GNU/Linux 12 (bookworm)"), "{text}");
        assert!(
            text.contains("apt-get install mesa-vulkan-drivers"),
            "{text}"
        );
        let mint = advice("linux", "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n");
        assert!(mint.contains("apt-get"), "{mint}");
        assert!(advice("linux", "ID=fedora\n").contains("dnf install"));
        assert!(advice("linux", "ID=arch\n").contains("pacman -S"));
        assert!(advice("linux", "").contains("libvulkan.so.1"));
        assert!(advice("macos", "").contains("Metal"));
        assert!(advice("windows", "").contains("Direct3D 12"));
    }
}
