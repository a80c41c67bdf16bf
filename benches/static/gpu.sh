#!/usr/bin/env bash
# What compilers for GPUs that are not in the machine say of the kernels.
#
#   benches/static/gpu.sh [TOOL]        (or GPU_STATIC=TOOL)
#
# Writes out the shaders of forward plans for head_dim 32 to 512, f32 and f16, and
# hands them to TOOL, which is called as
#
#   TOOL --isa DIR FILE.wgsl...
#
# and prints, for each file and GPU, "FILE ENTRY on NAME ..." and then lines
# "  STATISTIC  VALUE", and leaves in DIR the assembly as STEM.ENTRY.s; families are
# chosen by GPU_FAMILIES (one at a time, since their assembly bears one name). Without
# a tool it prints what the shaders need of a device and leaves it at that.
#
#   KERNELS="tiled tiled-subgroup"  DIMS="32 64 128 256 512"  DTYPES="f32 f16"  GPU_FAMILIES="navi21 vega20"
set -euo pipefail
cd "$(dirname "$0")/../.."

tool=${1:-${GPU_STATIC:-}}
kernels=${KERNELS:-tiled tiled-subgroup}
dims=${DIMS:-32 64 128 256 512}
dtypes=${DTYPES:-f32 f16}
families=${GPU_FAMILIES:-navi21 vega20}
if [ -n "$tool" ] && ! command -v "$tool" >/dev/null; then
    echo "no such tool: $tool" >&2
    exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo build --quiet --features cli
bin=${CARGO_TARGET_DIR:-target}/debug/wgpu-attention

# A shader serves several sizes: it is compiled once and shown for each of them.
declare -A sizes
for kernel in $kernels; do
    for dtype in $dtypes; do
        for dim in $dims; do
            "$bin" shaders --out "$work/one" --kernel "$kernel" --subgroup-size 32 \
                --head-dim "$dim" --dtype "$dtype" >"$work/table"
            for file in "$work"/one/*.wgsl; do
                name=$(basename "$file" .wgsl)
                sizes[$name]+=" $dim"
                mv "$file" "$work/$name.wgsl"
                grep -F "$name.wgsl " "$work/table" >"$work/$name.needs"
            done
        done
    done
done
if [ -z "$tool" ]; then
    for name in "${!sizes[@]}"; do
        echo "head_dim${sizes[$name]}: $(cat "$work/$name.needs")"
    done | sort
    echo "no tool given: nothing was compiled for a GPU"
    exit
fi

# The last three columns are benches/static/loops.awk's.
echo "| shader | head_dim | GPU | registers | spills, scratch | workgroup memory | subgroups a SIMD | multiply-adds a memory instruction | multiply-adds of vector instructions | both in edge tiles |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
for family in $families; do
    GPU_FAMILIES=$family "$tool" --isa "$work/isa" "$work"/*.wgsl >"$work/statistics" 2>"$work/errors" || {
        cat "$work/errors" >&2
        exit 1
    }
    for name in $(printf '%s\n' "${!sizes[@]}" | sort); do
        loops=$(awk -f benches/static/loops.awk "$work/isa/$name.main.s")
        awk -v file="/$name.wgsl main on" -v name="$name" -v dims="${sizes[$name]}" \
            -v family="$family" -v loops="$loops" '
            / main on / { ours = index($0, file) > 0 }
            ours && /^  / { value = $NF; sub(/^ +/, ""); sub(/ +[^ ]+$/, ""); of[$0] = value }
            END {
                if (!("VGPRs" in of)) { print "no statistics for " name > "/dev/stderr"; exit 1 }
                printf "| %s |%s | %s | %d | %d, %d | %d | %d | %s |\n", name, dims, family,
                    of["VGPRs"], of["Spilled VGPRs"] + of["Spilled SGPRs"], of["Scratch size"],
                    of["LDS size"], of["Subgroups per SIMD"], loops
            }' "$work/statistics"
    done
done
