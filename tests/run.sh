#!/usr/bin/env bash
# Runs every test of the crate on the default adapter; extra arguments go to cargo:
#
#     tests/run.sh
#     tests/run.sh --release --test gpu_forward -- causal
#
# The tests need an adapter and fail without one. On Debian or Ubuntu, as root,
# a machine without a Vulkan driver gets Mesa's lavapipe, which runs on the CPU;
# anywhere else this script says what to install. VK_DRIVER_FILES, the Vulkan
# loader's own variable, selects another driver (see tests/adapters/env.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "tests/run.sh: $*" >&2; }
has() { command -v "$1" >/dev/null; }

# True if the Vulkan loader is installed and knows a driver.
vulkan_found() {
    # Not grep -q: it would stop reading, and ldconfig fail for it.
    { ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | grep 'libvulkan\.so\.1' >/dev/null || return 1
    compgen -G '/usr/share/vulkan/icd.d/*.json' >/dev/null ||
        compgen -G '/usr/local/share/vulkan/icd.d/*.json' >/dev/null ||
        compgen -G '/etc/vulkan/icd.d/*.json' >/dev/null
}

# Installs Debian or Ubuntu packages if that is possible, else says what to do and fails.
need() {
    local reason=$1
    shift
    if has apt-get && [ "$(id -u)" = 0 ]; then
        say "$reason; installing $*"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
        return
    fi
    say "$reason. Install it, then run this again:"
    if has apt-get; then
        say "    sudo apt-get update && sudo apt-get install -y $*"
    else
        say "    a graphics driver with Vulkan and the Vulkan loader; on the CPU alone, Mesa's lavapipe:"
        say "    Fedora: sudo dnf install vulkan-loader mesa-vulkan-drivers"
        say "    Arch:   sudo pacman -S vulkan-icd-loader vulkan-swrast"
        say "    Alpine: sudo apk add vulkan-loader mesa-vulkan-swrast"
    fi
    exit 1
}

if ! has cargo && [ -r "$HOME/.cargo/env" ]; then
    # shellcheck disable=SC1091
    . "$HOME/.cargo/env"
fi
has cargo || { say "no cargo: install the Rust toolchain (rustup) first"; exit 1; }

case $(uname -s) in
Linux)
    has cc || need "no C compiler, which Rust links with" gcc libc6-dev
    drivers=${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-}}
    if [ -n "$drivers" ]; then
        # Somebody's choice: never replaced by another driver.
        IFS=: read -ra files <<<"$drivers"
        for file in "${files[@]}"; do
            [ -r "$file" ] || { say "VK_DRIVER_FILES names $file, which is not there"; exit 1; }
        done
        say "Vulkan driver: $drivers (from the environment)"
    else
        vulkan_found || need "no Vulkan driver" libvulkan1 mesa-vulkan-drivers
        vulkan_found || { say "still no Vulkan driver"; exit 1; }
        say "Vulkan driver: the system's"
    fi
    ;;
*) ;; # Metal and Direct3D 12 belong to their systems.
esac

# The Vulkan loader's window-system layer complains on stderr where this is not set.
export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-${TMPDIR:-/tmp}}

exec cargo test --features cli "$@"
