#!/usr/bin/env bash
# Compares this checkout with another commit, for changes that move code and must
# not change what it computes:
#
#     tests/same.sh COMMIT
#
# - every composed text, and what naga makes of it in HLSL and MSL;
# - the plans of the bundled cases: bindings, uniforms and grids;
# - plans as they print, for sizes, types, rules and kernels;
# - the result of every case (those under ../shared too, where that is), bit for bit,
#   by every kernel on the default adapter and by the oracle and the CPU path.
#
# The first difference is printed, and makes the script fail. COMMIT is checked out and built
# below `target/same`, which takes a few minutes; COMMIT and later ones have to print the
# bits of results (`check --json`).
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD
base=$(git rev-parse --verify "${1:?usage: tests/same.sh COMMIT}^{commit}")
work=${CARGO_TARGET_DIR:-$here/target}/same
mkdir -p "$work"

die() { echo "tests/same.sh: $*" >&2; exit 1; }

# record CHECKOUT NAME: builds a checkout and writes down what it does.
record() {
    local checkout=$1 target=$work/target-$2 out=$work/$2 bin kernel dtype rule shape
    bin=$target/release/wgpu-attention
    rm -rf "$out"
    mkdir -p "$out/plans" "$out/results"
    (cd "$checkout" && CARGO_TARGET_DIR=$target cargo test --quiet --features cli --test compilers)
    (cd "$checkout" && CARGO_TARGET_DIR=$target cargo build --quiet --release --features cli)
    mv "$target/tmp/compilers" "$out/compilers"

    for kernel in tiled tiled-subgroup lane-broadcast staged; do
        for dtype in f32 f16 bf16; do
            for rule in '' '--rule mask-bits' '--rule softcap' '--rule bias' '--shared-buffers'; do
                for shape in '' '--head-dim 63' '--head-dim 256 --v-dim 17 --q-len 3 --kv-len 70000' \
                    '--batch 3 --kv-heads 2 --int64'; do
                    # shellcheck disable=SC2086
                    "$bin" shaders --subgroup-size 8 --kernel "$kernel" --dtype "$dtype" $rule $shape \
                        --out "$work/scratch" >>"$out/plans/$kernel.$dtype" 2>&1 ||
                        echo "exit $?" >>"$out/plans/$kernel.$dtype"
                done
            done
        done
    done

    local cases=(tests/data)
    [ ! -d "$here/../shared" ] || cases+=("$here"/../shared/{conformance,options,real})
    for kernel in tiled tiled-subgroup lane-broadcast staged; do
        results "$out" "$kernel" --kernel "$kernel"
    done
    results "$out" cpu --backend cpu
    results "$out" oracle --backend oracle
}

# results FOLDER NAME OPTIONS...: names and bits of all results, and what is refused.
# The cases are this checkout's for both.
results() {
    local out=$1 name=$2 status=0
    shift 2
    "$bin" check --json "$@" "${cases[@]}" >"$work/check.json" || status=$?
    # 1: a case fails, the same one in both or the files differ.
    [ "$status" -le 1 ] || die "check $* ends with $status"
    grep -o '"bits":"[0-9a-f]*"' "$work/check.json" >/dev/null || die "check $* prints no bits"
    cp "$work/check.json" "$out/results/$name"
}

rm -rf "$work/base"
git worktree prune
git worktree add --quiet --detach "$work/base" "$base"
trap 'git -C "$here" worktree remove --force "$work/base"' EXIT
echo "tests/same.sh: $base"
record "$work/base" before
echo "tests/same.sh: this checkout"
record "$here" after

for part in compilers/texts compilers/recordings plans results; do
    count=$(find "$work/before/$part" -type f | wc -l)
    [ "$count" -gt 0 ] || die "nothing to compare in $part"
    diff -r "$work/before/$part" "$work/after/$part" >"$work/difference" || {
        head -n 20 "$work/difference"
        die "$part differ: $work/difference"
    }
    echo "$part: $count files, equal"
done
echo "results: $(cat "$work"/after/results/* | grep -o '"bits":"[0-9a-f]*"' | wc -l), equal bit for bit"
