// What a row looks at, in a few numbers: from its raw scores in `scores`, which
// are replaced by its weights (-1 at excluded pairs).
//
//   mass          sum of the weights p over the keys; 1, less what a sink takes
//   sink mass     exp(sink - lse)
//   entropy       of the weights w = p / mass: -sum w ln w = ln mass - sum p ln p / mass,
//                 where ln p is the exponent that p was made from
//   contributions sum of p * norm
//   first mass    sum of p over the first keys
//   visible       number of visible keys
//   mean, squares mean of the visible raw scores, sum of the squares around it
//
// then the mass by distance |i + offset - j|, of 0, 1, 2 to 3, 4 to 7, ..., and the
// largest weights: key, weight, contribution; the lower key first among equals.
//
// One workgroup of 64 lanes per row.

const SUMMARY_FIELDS: u32 = 8u;
const DISTANCE_BINS: u32 = 16u;
const NO_KEY: u32 = 0xffffffffu;

var<workgroup> wg_key: atomic<u32>;

// Distances of a bin: [x, y).
fn distances(bin: u32) -> vec2<u32> {
    let first = select(1u << (bin - min(bin, 1u)), 0u, bin == 0u);
    return vec2<u32>(first, select(1u << bin, NO_KEY, bin == DISTANCE_BINS - 1u));
}

// A lane's part of the weights of the keys [first, end).
fn mass_of(base: u32, lane: u32, first: u32, end: u32) -> f32 {
    var sum = 0.0;
    let last = min(end, params.kv_len);
    for (var j = add_saturated(first, lane); j < last; j += 64u) {
        let p = bitcast<f32>(scores[base + j]);
        sum = select(sum + p, sum, p < 0.0);
    }
    return sum;
}

fn put(index: u32, x: f32) {
    atomicStore(&output[index], bitcast<u32>(x));
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let number = tile_number(workgroup, workgroups);
    if number >= params.workgroups {
        return;
    }
    let id = tile_id(number); // a row tile is one row
    let i = params.row_first + id.row;
    let row = load_row(id.batch, id.head, i, load_sequence(id.batch));
    let base = query_head(params.scores, id) + id.row * params.scores.row;
    let out = query_head(params.output, id) + id.row * params.output.row;
    let state = load_state(query_head(params.stats, id) + id.row * params.stats.row);
    let norms_base = norms_head(id.batch, id.head);

    var sum = 0.0;
    var count = 0u;
    for (var j = lane; j < params.kv_len; j += 64u) {
        if is_visible(row, j) {
            sum += bitcast<f32>(scores[base + j]);
            count += 1u;
        }
    }
    // Exact: counts are below 2^24 a lane, and where they are not, 1 in 2^24 off.
    let visible = reduce(lane, f32(count), true);
    let mean = reduce(lane, sum, true) / max(visible, 1.0);

    var squares = 0.0;
    var mass = 0.0;
    var logs = 0.0;
    var contributions = 0.0;
    for (var j = lane; j < params.kv_len; j += 64u) {
        let raw = bitcast<f32>(scores[base + j]);
        var stored = -1.0;
        if is_visible(row, j) {
            let s = modified(row, j, raw);
            let half = 0.5 * s - 0.5 * state.maximum;
            // One adapter's exp2() makes a number of NaN.
            let no_number = (bitcast<u32>(s) & 0x7fffffffu) > 0x7f800000u;
            let p = select(exp_difference(s, state.maximum) * state.factor, s, no_number);
            squares += (raw - mean) * (raw - mean);
            mass += p;
            logs += p * (2.0 * select(half, -64.0, half < -64.0) - state.log_sum);
            if has(RULE_NORMS) {
                contributions += p * norm_at(norms_base, j);
            }
            stored = p;
        }
        scores[base + j] = bitcast<u32>(stored);
    }
    squares = reduce(lane, squares, true);
    mass = reduce(lane, mass, true);
    logs = reduce(lane, logs, true);
    contributions = reduce(lane, contributions, true);
    storageBarrier(); // other lanes read the weights from here on
    let first_mass = reduce(lane, mass_of(base, lane, 0u, params.first_keys), true);

    let sink_bits = load_sink(id.head);
    let has_sink = sink_bits != NEGATIVE_INFINITY_BITS;
    let sink = bitcast<f32>(select(0u, sink_bits, has_sink));
    let entropy = log(mass) - logs / mass;
    if lane == 0u {
        put(out, mass);
        put(out + 1u, select(0.0, exp_difference(sink, state.maximum) * state.factor, has_sink));
        put(out + 2u, select(entropy, 0.0, entropy < 0.0 || mass <= 0.0));
        put(out + 3u, contributions);
        put(out + 4u, first_mass);
        put(out + 5u, visible);
        put(out + 6u, mean);
        put(out + 7u, squares);
    }

    let position = row.position;
    // DISTANCE_BINS trips.
    for (var bin = 0u; bin < params.trips_depth; bin++) {
        let d = distances(bin);
        // Keys at such a distance after the position, and before it.
        let after = select(
            vec2<u32>(add_saturated(position, d.x), add_saturated(position, d.y)),
            vec2<u32>(subtract_saturated(d.x, position), select(subtract_saturated(d.y, position), NO_KEY, d.y == NO_KEY)),
            row.before,
        );
        let before = select(
            vec2<u32>(subtract_saturated(position + 1u, d.y), subtract_saturated(position + 1u, max(d.x, 1u))),
            vec2<u32>(),
            row.before,
        );
        let part = mass_of(base, lane, after.x, after.y) + mass_of(base, lane, before.x, before.y);
        let total = reduce(lane, part, true);
        if lane == 0u {
            put(out + SUMMARY_FIELDS + bin, total);
        }
    }

    // The largest of those after the last one, in the order of weights.
    var last = 0.0;
    var last_key = 0u;
    for (var n = 0u; n < params.top; n++) {
        var best = -1.0;
        var key = NO_KEY;
        for (var j = lane; j < params.kv_len; j += 64u) {
            let p = bitcast<f32>(scores[base + j]);
            let is_after = n == 0u || p < last || (p == last && j > last_key);
            if is_after && p > best && p >= 0.0 {
                best = p;
                key = j;
            }
        }
        last = reduce(lane, best, false);
        if lane == 0u {
            atomicStore(&wg_key, NO_KEY);
        }
        workgroupBarrier(); // wg_key is ready
        if best == last {
            atomicMin(&wg_key, key);
        }
        workgroupBarrier(); // every lane has spoken
        last_key = atomicLoad(&wg_key);
        if lane == 0u {
            let at = out + SUMMARY_FIELDS + DISTANCE_BINS + 3u * n;
            let found = last >= 0.0;
            var norm = 0.0;
            if has(RULE_NORMS) && found {
                norm = norm_at(norms_base, last_key);
            }
            atomicStore(&output[at], last_key);
            put(at + 1u, select(0.0, last, found));
            put(at + 2u, select(0.0, last * norm, found));
        }
    }
}
