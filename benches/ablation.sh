#!/usr/bin/env bash
# What the parts of the lane-broadcast kernel (or the tiled one) cost on a software
# adapter: its running time and its first dispatch, whole and with one part taken out.
#
#   benches/ablation.sh [BENCH FLAGS]       e.g. HEAD_DIM=128 ... --q-len 1024
#
# Writes out the shader (`wgpu-attention shaders`), edits it with sed and measures each
# text in a process of its own (`bench --shaders`), all in turns; the best of each
# figure counts. What is left without a part computes nothing of use. A part that
# hides behind another costs less than its own time: the parts don't add up.
#
# With COUNT=1 it counts instructions instead, by valgrind: those of a program that
# runs the kernel once, on 9 rows and keys, nearly all of them its compilation. A
# count is the same from run to run, where a first dispatch moves by a quarter.
#
# A run takes some minutes, a count 5 to 10.
#
#   DTYPE=f32  HEAD_DIM=64  RULE=(mask-bits|softcap|bias|...)  PROCESSES=5
#   KERNEL=lane-broadcast|tiled  COUNT=  BIN=wgpu-attention
set -euo pipefail
cd "$(dirname "$0")/.."

dtype=${DTYPE:-f32}
head_dim=${HEAD_DIM:-64}
kernel=${KERNEL:-lane-broadcast}
processes=${PROCESSES:-5}
rule=()
[ -z "${RULE:-}" ] || rule=(--rule "$RULE")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bin=${BIN:-}
if [ -z "$bin" ]; then
    cargo build --quiet --release --features cli
    bin=${CARGO_TARGET_DIR:-target}/release/wgpu-attention
fi
"$bin" shaders --out "$work/whole" --kernel "$kernel" --dtype "$dtype" \
    --head-dim "$head_dim" --adapter "" "${rule[@]}" >/dev/null

parts=(whole)
scripts=
# without NAME SED-SCRIPT: the shader with a part taken out.
without() {
    scripts+=$'\n'$2
    mkdir "$work/$1"
    for file in "$work"/whole/*.wgsl; do
        sed -E "$2" "$file" >"$work/$1/$(basename "$file")"
        if cmp -s "$file" "$work/$1/$(basename "$file")"; then
            echo "$1: nothing to take out" >&2
            exit 1
        fi
    done
    parts+=("$1")
}

lane_parts() {
    # Small numbers that the compiler doesn't know, in the place of what is loaded.
    number='return vec4<f32>(f32((row + chunk) \& 7u));'
    without query-and-key-loads "/^fn (query|key)_chunk/,/^}/s/return .*/$number/"
    without value-loads "/^fn value_chunk/,/^}/s/return .*/$number/"
    # The sums of the output end in a number that is kept.
    without output-loads-and-stores \
        's/narrow_cell\(wg_output\[slot.*\]\) \* shrink/sum * shrink/
         s/wg_output\[slot .*\] = to_cell\((o_[0-3])\)/sum += \1/'
    # Of the 4 elements of a chunk, the first is multiplied.
    without score-multiply-adds '/ s_[0-9]+_[0-9]+ = fma\(q_of_[1-3],/d'
    # Of the keys of a group, the first is multiplied.
    without value-multiply-adds '/ o_[0-3] = fma\(s_[0-9]+_[1-7],/d'
    without exponentials '/^fn exp_differences/,/^}/s/return exp2/return abs/'
    # Values that are no finite numbers.
    without care-for-NaN \
        '/^fn is_not_finite/,/^}/s/return .*/return vec4<bool>();/
         /^        for .*subgroupAny\(broken\)/,/^        }$/d'
    without output '/let output_row = /,/^            }$/d'
    # Rules on pairs and scores, where the text has them.
    if grep -q 'shown_by_mask_and_bias(masks' "$work"/whole/*; then
        without rules-on-pairs '/^        for .*PAIR_RULES/,/^        }$/d
            /^ +for .*has\(RULE_SEGMENTS\)\); [rk]\+\+/,/^ {4,8}}$/d'
    fi
    if grep -q 'modified(row_0' "$work"/whole/*; then
        without rules-on-scores '/^        for .*SCORE_RULES/,/^        }$/d'
    fi
}

# The parts of the tiled kernel, which is for GPUs: functions whose bodies go.
tiled_parts() {
    without loads '/^fn stage_(queries|keys|values)\(/,/^}/{/^fn |^}/!d}'
    without value-multiply-adds '/^fn add_step\(/,/^}/{/^fn |^}/!d}'
    without rules-on-pairs '/^fn visible_pairs\(/,/^}/{/^fn /s/$/ return first;/; /^fn |^}/!d}'
    without rules-on-scores '/^fn modify_scores\(/,/^}/{/^fn |^}/!d}'
    without output '/^fn store_output\(/,/^}/{/^fn |^}/!d}'
}

if [ "$kernel" = tiled ]; then
    tiled_parts
else
    lane_parts
fi
without all-of-these "$scripts"

# count PART: a line of the table.
count() {
    MESA_SHADER_CACHE_DISABLE=1 valgrind --tool=cachegrind --cache-sim=no \
        --cachegrind-out-file=/dev/null --log-file="$work/log.$1" \
        "$bin" bench --one-process --runs 0 --heads 1 --q-len 9 --kernel "$kernel" \
        --dtype "$dtype" --head-dim "$head_dim" "${rule[@]}" --shaders "$work/$1" >/dev/null
    awk -v part="${1//-/ }" '/I *refs:/ {
        gsub(",", "", $NF)
        printf "| %s | %d |\n", part == "whole" ? "(nothing)" : part, $NF / 1e6
    }' "$work/log.$1" >"$work/count.$1"
}
if [ -n "${COUNT:-}" ]; then
    [ $# = 0 ] || { echo "COUNT takes no flags of bench: $*" >&2; exit 2; }
    for part in "${parts[@]}"; do
        while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
        count "$part" &
    done
    while [ -n "$(jobs -p)" ]; do wait -n; done
    echo "| taken out | million instructions |"
    echo "| --- | --- |"
    for part in "${parts[@]}"; do cat "$work/count.$part"; done
    exit
fi
for _ in $(seq "$processes"); do
    for part in "${parts[@]}"; do
        "$bin" bench --kernel "$kernel" --dtype "$dtype" --head-dim "$head_dim" \
            "${rule[@]}" --shaders "$work/$part" "$@" >"$work/table"
        awk -v part="$part" -v kernel="$kernel" '$1 == kernel { print part, $2, $9 }' \
            "$work/table" >>"$work/figures"
    done
done
sed -n 1,2p "$work/table"
echo "best of $processes processes, shader caches off"
echo
echo "| taken out | ms | first dispatch, ms |"
echo "| --- | --- | --- |"
awk '
    !($1 in best) { best[$1] = $2; first[$1] = $3; order[++n] = $1 }
    $2 < best[$1] { best[$1] = $2 }
    $3 < first[$1] { first[$1] = $3 }
    END {
        for (i = 1; i <= n; i++) {
            part = order[i]
            name = part
            gsub("-", " ", name)
            if (part == "whole") name = "(nothing)"
            printf "| %s | %s | %d |\n", name, best[part], first[part]
        }
    }' "$work/figures"
