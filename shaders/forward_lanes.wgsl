// Fused forward pass for software adapters, where a load costs as much as 60
// and more multiply-adds whatever its address, and spreading a lane's value
// over its subgroup costs nearly nothing.
//
// One workgroup is one subgroup of SUBGROUP lanes; a lane owns 4 query rows, the
// components of every vec4 here unless said otherwise. For each tile of KEYS
// keys, a lane loads the chunks of one key in SUBGROUP and all lanes use them by
// broadcast: one load feeds 4 * SUBGROUP rows. Scores and weights stay in
// registers; the output lies in workgroup memory, each lane's rows its own, so
// that no barrier is needed and the body does not depend on the head size.
// #for repeats its lines with $name counting from 0, #if keeps or drops them
// (src/shader.rs).

const ROWS: u32 = 4u * SUBGROUP;
const KEYS: u32 = GROUPS * SUBGROUP;
const OUTPUT_SLOTS: u32 = 1024u;
const COLUMNS: u32 = OUTPUT_SLOTS / SUBGROUP;

// The unnormalised output, [column][lane]: 16 KiB.
var<workgroup> wg_output: array<Cell, OUTPUT_SLOTS>;

// Bit k is set where first + k < end.
fn bits_before(end: vec4<u32>, first: u32) -> vec4<u32> {
    let count = max(end, vec4<u32>(first)) - first;
    let some = (vec4<u32>(1u) << min(count, vec4<u32>(31u))) - 1u;
    return select(some, vec4<u32>(0xffffffffu), count >= vec4<u32>(32u)) & vec4<u32>(ALL_KEYS);
}

const ALL_KEYS: u32 = 0xffffffffu >> (32u - KEYS);

// Which rows see key k of the tile.
fn seen_by(visible: vec4<u32>, k: u32) -> vec4<bool> {
    return (visible & vec4<u32>(1u << k)) != vec4<u32>();
}

// exp(a - b) row by row, as exp_difference.
fn exp_differences(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    let half = 0.5 * a - 0.5 * b;
    return exp2(select(half, vec4<f32>(-64.0), half < vec4<f32>(-64.0)) * (2.0 * LOG2_E));
}

fn is_not_finite(x: vec4<f32>) -> vec4<bool> {
    return (bitcast<vec4<u32>>(x) & vec4<u32>(EXPONENT_BITS)) == vec4<u32>(EXPONENT_BITS);
}

const EXPONENT_BITS: u32 = 0x7f800000u;

// The sum of a row's finite values plus those which are not: infinity if a key
// whose bit is in `above` is seen, -infinity for `below`, NaN for both.
fn add_not_finite(sum: vec4<f32>, visible: vec4<u32>, above: u32, below: u32) -> vec4<f32> {
    // WGSL has no constant for it.
    let top = bitcast<f32>(select(EXPONENT_BITS, 0u, params.workgroups == 0u));
    let x = select(sum, sum + top, (visible & vec4<u32>(above)) != vec4<u32>());
    return select(x, x - top, (visible & vec4<u32>(below)) != vec4<u32>());
}

@compute @workgroup_size(SUBGROUP)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let number = tile_number(workgroup, workgroups);
    if number >= params.workgroups {
        return;
    }
    let id = tile_id(number);
    let sequence = load_sequence(id.batch);
    let row_first = params.row_first + id.row * ROWS;
    let rows_end = min(row_first + ROWS, params.row_end);
    let keys = rows_interval(row_first, rows_end, sequence);
    let column = id.column * COLUMNS;
    let columns = min(COLUMNS, params.v_dim - column);
    let query_base = query_head(params.query, id);
    let key_base = key_head(params.key, id);
    let value_base = key_head(params.value, id) + column;
    let query_chunks = (params.qk_dim + DIMS - 1u) / DIMS;
    let value_chunks = (columns + DIMS - 1u) / DIMS;

    // Rows past the last one repeat it and store nothing.
    let rows = vec4<u32>(row_first + lane) + vec4<u32>(0u, SUBGROUP, 2u * SUBGROUP, 3u * SUBGROUP);
    let i = min(rows, vec4<u32>(params.row_end - 1u));
    let starts = vec4<u32>(query_base) + (i - params.row_first) * params.query.row;
#for r in 4
    var row_$r = bare_row(id.batch, id.head, i[$r], sequence);
#end
    let keys_first = vec4<u32>(row_0.keys_first, row_1.keys_first, row_2.keys_first, row_3.keys_first);
    let keys_end = vec4<u32>(row_0.keys_end, row_1.keys_end, row_2.keys_end, row_3.keys_end);
#if KNOWS_PAIR_RULES
    let masks = vec4<u32>(row_0.mask, row_1.mask, row_2.mask, row_3.mask);
    let biases = vec4<u32>(row_0.bias, row_1.bias, row_2.bias, row_3.bias);
    var segments = vec4<u32>();
    for (var r = 0u; r < select(0u, params.trips_rows, has(RULE_SEGMENTS)); r++) {
        let segment = aux[params.aux_q_segments + id.batch * params.q_len + i[r]];
        segments = select(segments, vec4<u32>(segment), vec4<u32>(r) == vec4<u32>(0u, 1u, 2u, 3u));
    }
#end
#if KNOWS_SCORE_RULES
    let slope = load_slope(id.head);
#for r in 4
    row_$r.slope = slope;
#end
#end

    for (var c = 0u; c < columns; c++) {
        wg_output[c * SUBGROUP + lane] = to_cell(vec4<f32>());
    }
    var maximum = vec4<f32>(LOWEST);
    var sum = vec4<f32>();
    var seen = vec4<bool>();
    var computed = 0u;
    for (var first = keys.x - keys.x % KEYS; first < keys.y; first += KEYS) {
        // Who sees whom: bit k of a row's word is key first + k.
        var visible = bits_before(keys_end, first) & ~bits_before(keys_first, first);
#if KNOWS_PAIR_RULES
        for (var r = 0u; r < select(0u, params.trips_rows, has(PAIR_RULES & ~RULE_SEGMENTS)); r++) {
            let shown = shown_by_mask_and_bias(masks[r], biases[r], first, params.trips_keys);
            visible &= select(vec4<u32>(ALL_KEYS), vec4<u32>(shown), vec4<u32>(r) == vec4<u32>(0u, 1u, 2u, 3u));
        }
        for (var k = 0u; k < select(0u, params.trips_keys, has(RULE_SEGMENTS)); k++) {
            let segment = aux[row_0.kv_segments + min(first + k, params.kv_len - 1u)];
            visible &= select(vec4<u32>(ALL_KEYS), ~vec4<u32>(1u << k), segments != vec4<u32>(segment));
        }
#end
        let live = subgroupAny(any(visible != vec4<u32>()));
        computed += select(0u, 1u, live);

        // Scores: lane l of group g loads key g * SUBGROUP + l.
#for g in GROUPS
        let j_$g = min(first + $gu * SUBGROUP + lane, params.kv_len - 1u);
        let key_$g = key_base + j_$g * params.key.row;
        let value_$g = value_base + j_$g * params.value.row;
#for l in SUBGROUP
        var s_$g_$l = vec4<f32>();
#end
#end
        let depth_trips = select(1u, query_chunks, live);
        var c = 0u;
        loop {
#for r in 4
            let q_$r = query_chunk(starts[$r], c);
#end
#for g in GROUPS
            let k_$g = key_chunk(key_$g, c);
#end
#for d in DIMS
            let q_of_$d = vec4<f32>(q_0[$d], q_1[$d], q_2[$d], q_3[$d]);
#end
#for g in GROUPS
#for l in SUBGROUP
#for d in DIMS
            s_$g_$l = fma(q_of_$d, vec4<f32>(subgroupBroadcast(k_$g[$d], $lu)), s_$g_$l);
#end
#end
#end
            continuing {
                c++;
                break if c >= depth_trips;
            }
        }
#for g in GROUPS
#for l in SUBGROUP
        s_$g_$l *= params.scale;
#end
#end
#if KNOWS_SCORE_RULES
        // Modifiers: each trip the last score goes out of the registers, and the one
        // that the trip before carried out comes in at the first, modified. After
        // KEYS + 1 trips all are at their places again.
        var carried = vec4<f32>();
        for (var k = 0u; k < select(0u, params.trips_keys + 1u, live && has(SCORE_RULES)); k++) {
            let j = first + params.trips_keys - k;
            var moved = vec4<f32>(
                modified(row_0, j, carried.x),
                modified(row_1, j, carried.y),
                modified(row_2, j, carried.z),
                modified(row_3, j, carried.w),
            );
#for g in GROUPS
#for l in SUBGROUP
            let out_$g_$l = s_$g_$l;
            s_$g_$l = moved;
            moved = out_$g_$l;
#end
#end
            carried = moved;
        }
#end

        // Online softmax of 4 rows; what a row does not see gets weight 0.
        var top = maximum;
#for g in GROUPS
#for l in SUBGROUP
        top = select(top, max(top, s_$g_$l), seen_by(visible, $gu * SUBGROUP + $lu));
#end
#end
        let shrink = select(vec4<f32>(1.0), exp_differences(maximum, top), seen & (maximum != top));
        var total = vec4<f32>();
#for g in GROUPS
#for l in SUBGROUP
        s_$g_$l = select(vec4<f32>(), exp_differences(s_$g_$l, top), seen_by(visible, $gu * SUBGROUP + $lu));
        total += s_$g_$l;
#end
#end
        maximum = top;
        sum = sum * shrink + total;
        seen |= visible != vec4<u32>();

        // Values: lane l of group g loads row g * SUBGROUP + l. What is not finite
        // is left out of the sums, as 0 * NaN is NaN.
        let column_trips = select(1u, value_chunks, live);
        var broken = false;
        c = 0u;
        loop {
            let slot = c * DIMS * SUBGROUP + lane;
#for g in GROUPS
            let v_$g = value_chunk(value_$g, c);
            let broken_$g = is_not_finite(v_$g);
            let finite_$g = select(v_$g, vec4<f32>(), broken_$g);
            broken |= any(broken_$g);
#end
#for d in DIMS
            var o_$d = narrow_cell(wg_output[slot + $du * SUBGROUP]) * shrink;
#end
#for g in GROUPS
#for l in SUBGROUP
#for d in DIMS
            o_$d = fma(s_$g_$l, vec4<f32>(subgroupBroadcast(finite_$g[$d], $lu)), o_$d);
#end
#end
#end
#for d in DIMS
            wg_output[slot + $du * SUBGROUP] = to_cell(o_$d);
#end
            continuing {
                c++;
                break if c >= column_trips;
            }
        }
        // It is added to the rows that see it, column by column: text costs more
        // than time here, and iterations are counted (src/loops.rs).
        for (c = 0u; c < select(0u, columns, subgroupAny(broken)); c++) {
            var above = 0u;
            var below = 0u;
#for g in GROUPS
            let bits_$g = bitcast<u32>(value_chunk(value_$g, c / DIMS)[c % DIMS]);
            let is_nan_$g = (bits_$g & 0x7fffffffu) > EXPONENT_BITS;
            above |= subgroupBallot(is_nan_$g || bits_$g == EXPONENT_BITS).x << ($gu * SUBGROUP);
            below |= subgroupBallot(is_nan_$g || bits_$g == NEGATIVE_INFINITY_BITS).x << ($gu * SUBGROUP);
#end
            let slot = c * SUBGROUP + lane;
            let old = narrow_cell(wg_output[slot]);
            wg_output[slot] = to_cell(add_not_finite(old, visible, above, below));
        }
    }

    let sink = load_sink(id.head);
    for (var r = 0u; r < params.trips_rows; r++) {
        var end = softmax_finish(SoftmaxState(maximum[r], sum[r], seen[r]), sink);
        if rows[r] < params.row_end {
            if has(RULE_STATS) && id.column == 0u {
                let at = query_head(params.stats, id) + (rows[r] - params.row_first) * params.stats.row;
                store_stats(at, end, sink);
                if COUNT_TILES == 1u {
                    stats[at] = bitcast<u32>(f32(computed));
                    stats[at + 1u] = 0u; // none is without mask code
                }
            }
            let output_row = query_head(params.output, id) + (rows[r] - params.row_first) * params.output.row + column;
            for (var c = 0u; c < columns; c += 4u) {
                var x = vec4<f32>();
                for (var n = 0u; n < params.trips_rows; n++) {
                    let cell = narrow_cell(wg_output[min(c + n, columns - 1u) * SUBGROUP + lane]);
                    x = select(x, vec4<f32>(cell[r]), vec4<u32>(n) == vec4<u32>(0u, 1u, 2u, 3u));
                }
                let o = x * end.factor;
                // No -0, whose sign could tell what was hidden.
                store_run(output_row + c, min(4u, columns - c), select(o, vec4<f32>(), vec4<bool>(end.factor < 0.0) | (o == vec4<f32>())));
            }
        }
    }
}
