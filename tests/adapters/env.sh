#!/usr/bin/env bash
# Fetches a second or third software adapter into a folder and prints the
# environment that makes the Vulkan loader use it and nothing else:
#
#     eval "$(tests/adapters/env.sh mesa25 target/adapters)"
#     eval "$(tests/adapters/env.sh swiftshader target/adapters)"
#
# mesa25       lavapipe of bookworm-backports (Mesa 25.0): a newer JIT than Debian 12's own
# swiftshader  the Vulkan library inside Debian's chromium: subgroups of 4, no f16
#
# Nothing is installed and root is not needed: packages are unpacked in the
# folder, and apt keeps its lists and archives there too. Debian 12 only.
set -euo pipefail

adapter=${1:?usage: env.sh mesa25|swiftshader FOLDER}
mkdir -p "${2:?usage: env.sh mesa25|swiftshader FOLDER}"
folder=$(cd "$2" && pwd)
root=$folder/$adapter
apt_dir=$folder/apt-$adapter

die() { echo "tests/adapters/env.sh: $*" >&2; exit 1; }

# shellcheck disable=SC1091
codename=$(. /etc/os-release && echo "${ID:-}-${VERSION_CODENAME:-}")
[ "$codename" = debian-bookworm ] || die "written for debian-bookworm, this is $codename"
suite=bookworm

# The machine's own Debian sources, and the archive of `$suite` once more with
# its backports. Other archives that the machine knows are left out.
write_sources() {
    mkdir -p "$apt_dir"/{parts,lists/partial,archives/partial}
    local file
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -e "$file" ] || continue
        # Stanzas, with an empty line between them.
        awk -v RS= -v suite="$suite" '
            /Suites:/ && $0 ~ suite { print $0 "\n" }
            $0 ~ "Suites:([^\n]* )?" suite "( |\n|$)" {
                sub(/Suites:[^\n]*/, "Suites: " suite "-backports")
                print $0 "\n"
            }' "$file" >>"$apt_dir/parts/debian.sources"
    done
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -e "$file" ] || continue
        awk -v suite="$suite" '
            /^deb / && $0 ~ suite { print }
            /^deb / && sub(" " suite " ", " " suite "-backports ") { print }
            ' "$file" >>"$apt_dir/parts/debian.list"
    done
    grep -q -- "$suite-backports" "$apt_dir"/parts/* ||
        die "no Debian archive with the suite $suite in /etc/apt"
}

# apt-get on the folder's own sources, lists and archives. The machine's dpkg
# status is read, so that a download leaves out what is installed already.
private_apt() {
    apt-get -qq -y \
        -o Dir::Etc::SourceList="$apt_dir/parts/debian.list" \
        -o Dir::Etc::SourceParts="$apt_dir/parts" \
        -o Dir::State::Lists="$apt_dir/lists" \
        -o Dir::Cache::Archives="$apt_dir/archives" \
        -o Dir::Cache::PkgCache= -o Dir::Cache::SrcPkgCache= \
        -o APT::Sandbox::User="$(id -un)" \
        -o Debug::NoLocking=1 \
        "$@" >&2
}

unpack() {
    local deb
    mkdir -p "$root.new"
    for deb in "$apt_dir"/archives/*.deb; do
        dpkg -x "$deb" "$root.new"
    done
}

fetch() {
    echo "fetching $adapter into $root" >&2
    rm -rf "$apt_dir" "$root" "$root.new"
    write_sources
    private_apt update
    case $adapter in
    mesa25)
        # The libdrm of $suite is too old for it; apt adds what else the machine lacks.
        private_apt install --download-only --no-install-recommends -t "$suite-backports" \
            mesa-vulkan-drivers libdrm2 libdrm-amdgpu1
        ;;
    swiftshader)
        (cd "$apt_dir/archives" && private_apt download chromium-common)
        ;;
    esac
    local deb
    mkdir "$root.new" "$apt_dir/files"
    for deb in "$apt_dir"/archives/*.deb; do
        dpkg -x "$deb" "$apt_dir/files"
    done
    case $adapter in
    mesa25) find "$apt_dir/files" \( -name '*.so*' -o -name 'lvp_icd*.json' \) -exec mv -t "$root.new" {} + ;;
    swiftshader) find "$apt_dir/files" -name '*vk_swiftshader*' -exec mv -t "$root.new" {} + ;;
    esac
    mv "$root.new" "$root" # last, so that a broken download is done anew
    rm -rf "$apt_dir"
}

case $adapter in
mesa25) so=$root/libvulkan_lvp.so ;;
swiftshader) so=$root/libvk_swiftshader.so ;;
*) die "unknown adapter '$adapter'" ;;
esac
[ -d "$root" ] || fetch

missing=$(LD_LIBRARY_PATH=$root ldd "$so" | grep 'not found' || true)
[ -z "$missing" ] || die "$so needs"$'\n'"$missing"

# The packages' own ICD file, with the library's full path.
icd=$root/icd.json
sed "s|\"library_path\": *\"[^\"]*\"|\"library_path\": \"$so\"|" "$root"/*_icd*.json >"$icd"

echo "export VK_DRIVER_FILES='$icd' VK_ICD_FILENAMES='$icd'"
echo "export LD_LIBRARY_PATH='$root'"
