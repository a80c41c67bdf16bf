// Fused forward pass: O = softmax(scale * Q K^T + ...) V and its log-sum-exp,
// without ever holding Nq x Nk.
//
// One workgroup per 64 rows x TILE_COLUMNS value columns of one (batch, head).
// For each tile of 64 keys that some row may see: scores in registers, 4 rows by
// 8 keys a lane; modifiers and online softmax on them; then P V, 16 keys at a time
// through workgroup memory. Tiles in which no pair is visible are not computed,
// tiles in which every pair is visible run without mask code. A root
// adds `row_maximum` and `row_sum` over the 8 lanes that share rows; both pass a
// barrier, and the first may use wg_left.

// State of the online softmax between tiles: the maxima of 4 rows; a lane's share
// of their sums, that of its keys. In registers it would cost a third of the
// workgroups that fit on a GPU.
var<workgroup> wg_maxima: array<vec4<f32>, 16>;
var<workgroup> wg_sums: array<vec4<f32>, LANES>;
// A bit a row: whether it sees a key of the tile, and of any tile with mask code.
var<workgroup> wg_votes: array<atomic<u32>, 2>;
var<workgroup> wg_seen: array<u32, 2>;
var<workgroup> wg_live: u32;

// The smallest and the largest segment id of a run of rows or keys, of even and
// of odd lanes: where all lanes meet in one word, compilers reduce it in
// registers that the kernel needs.
var<workgroup> wg_smallest: array<atomic<u32>, 2>;
var<workgroup> wg_largest: array<atomic<u32>, 2>;
var<workgroup> wg_ids: vec2<u32>;

// Of the `count` ids from aux[list] on.
fn segment_ids(lane: u32, list: u32, count: u32) -> vec2<u32> {
    if lane < 2u {
        atomicStore(&wg_smallest[lane], 0xffffffffu);
        atomicStore(&wg_largest[lane], 0u);
    }
    workgroupBarrier(); // both are empty
    for (var n = lane; n < count; n += LANES) {
        let id = aux[list + n];
        atomicMin(&wg_smallest[lane & 1u], id);
        atomicMax(&wg_largest[lane & 1u], id);
    }
    workgroupBarrier(); // every id has been compared
    if lane == 0u {
        wg_ids = vec2<u32>(
            min(atomicLoad(&wg_smallest[0]), atomicLoad(&wg_smallest[1])),
            max(atomicLoad(&wg_largest[0]), atomicLoad(&wg_largest[1])),
        );
    }
    return workgroupUniformLoad(&wg_ids);
}

// What a lane needs to find its rows.
struct Place {
    batch: u32,
    head: u32,
    // First of the lane's 4 rows.
    row: u32,
    sequence: Sequence,
}

// Row r of the lane. Rows past the last one repeat it and store nothing.
fn place_row(place: Place, r: u32) -> Row {
    return load_row(place.batch, place.head, min(place.row + r, params.row_end - 1u), place.sequence);
}

// Bit 8 r + k: row r of the lane sees its key k.
fn visible_pairs(place: Place, lane: u32, first: u32) -> u32 {
    var bits = 0u;
    for (var r = 0u; r < params.trips_rows / 2u; r++) {
        let row = place_row(place, r);
        for (var k = 0u; k < params.trips_rows; k++) {
            bits |= select(0u, 1u << (r * 8u + k), is_visible(row, first + lane_key(lane, k)));
        }
    }
    return bits;
}

// A bit a row of the lane: whether it sees any of the lane's keys.
fn seeing_rows(visible: u32) -> u32 {
    let rows = (vec4<u32>(visible) & vec4<u32>(0xffu, 0xff00u, 0xff0000u, 0xff000000u)) != vec4<u32>();
    let bits = select(vec4<u32>(), vec4<u32>(1u, 2u, 4u, 8u), rows);
    return bits.x | bits.y | bits.z | bits.w;
}

// Softcap, bias and ALiBi, one run of scores after the other in `a0`.
fn modify_scores(s: ptr<function, Scores>, place: Place, lane: u32, first: u32) {
    for (var r = 0u; r < params.trips_rows / 2u; r++) {
        let row = place_row(place, r);
        for (var half = 0u; half < params.trips_rows; half += 4u) {
            let j = first + lane_key(lane, half);
            let raw = (*s).a0;
            let x = vec4<f32>(
                modified(row, j, raw.x),
                modified(row, j + 1u, raw.y),
                modified(row, j + 2u, raw.z),
                modified(row, j + 3u, raw.w),
            );
            turn(s, x);
        }
    }
}

fn select_run(x: vec4<f32>, hidden: f32, visible: u32, shift: u32) -> vec4<f32> {
    let bits = vec4<u32>(1u, 2u, 4u, 8u) << vec4<u32>(shift);
    return select(vec4<f32>(hidden), x, (vec4<u32>(visible) & bits) != vec4<u32>());
}

// Puts `hidden` in the place of every excluded pair.
fn replace_hidden(s: ptr<function, Scores>, visible: u32, hidden: f32) {
    (*s).a0 = select_run((*s).a0, hidden, visible, 0u);
    (*s).b0 = select_run((*s).b0, hidden, visible, 4u);
    (*s).a1 = select_run((*s).a1, hidden, visible, 8u);
    (*s).b1 = select_run((*s).b1, hidden, visible, 12u);
    (*s).a2 = select_run((*s).a2, hidden, visible, 16u);
    (*s).b2 = select_run((*s).b2, hidden, visible, 20u);
    (*s).a3 = select_run((*s).a3, hidden, visible, 24u);
    (*s).b3 = select_run((*s).b3, hidden, visible, 28u);
}

fn largest(a: vec4<f32>, b: vec4<f32>) -> f32 {
    let m = max(a, b);
    return max(max(m.x, m.y), max(m.z, m.w));
}

fn sum_of(a: vec4<f32>, b: vec4<f32>) -> f32 {
    let m = a + b;
    return (m.x + m.y) + (m.z + m.w);
}

// Two keys of a row, those of `step`.
fn step_pair(a: vec4<f32>, b: vec4<f32>, step: u32) -> vec2<f32> {
    let run = select(a, b, step >= 2u);
    return select(run.xy, run.zw, (step & 1u) == 1u);
}

fn forward(workgroup: vec3<u32>, workgroups: vec3<u32>, lane: u32) {
    let number = tile_number(workgroup, workgroups);
    if number >= params.workgroups {
        return;
    }
    let id = tile_id(number);
    let sequence = uniform_sequence(lane, id.batch);
    if lane == 0u {
        wg_seen[0] = 0u;
        wg_seen[1] = 0u;
        atomicStore(&wg_votes[0], 0u);
        atomicStore(&wg_votes[1], 0u);
    }
    wg_sums[lane] = vec4<f32>();
    wg_maxima[lane >> 3u] = vec4<f32>(LOWEST);
    workgroupBarrier(); // the votes and states are empty

    let row_first = params.row_first + id.row * TILE_ROWS;
    let rows_end = min(row_first + TILE_ROWS, params.row_end);
    let keys = rows_interval(row_first, rows_end, sequence);
    let shared_keys = rows_common_interval(row_first, rows_end, sequence);
    let column = id.column * TILE_COLUMNS;
    let query_base = query_head(params.query, id);
    let key_base = key_head(params.key, id);
    let value_base = key_head(params.value, id);
    let depth_chunks = (params.qk_dim + TILE_DEPTH - 1u) / TILE_DEPTH;
    let rows = lane >> 3u;
    let place = Place(id.batch, id.head, row_first + rows * 4u, sequence);

    var acc: Accumulator;
    var any_interior = false;
    var visited = 0u;
    var interiors = 0u;
    var row_ids = vec2<u32>();
    if has(RULE_SEGMENTS) {
        let count = subtract_saturated(min(rows_end, sequence.q_len), row_first);
        row_ids = segment_ids(lane, params.aux_q_segments + id.batch * params.q_len + row_first, count);
    }
    for (var first = keys.x & ~63u; first < keys.y; first += TILE_KEYS) {
        var interior = !has(PAIR_RULES & ~RULE_SEGMENTS) && shared_keys.x <= first && first + TILE_KEYS <= shared_keys.y;
        if has(RULE_SEGMENTS) {
            let list = params.aux_kv_segments + id.batch * params.kv_len + first;
            let key_ids = segment_ids(lane, list, min(TILE_KEYS, keys.y - first));
            if key_ids.x > row_ids.y || key_ids.y < row_ids.x {
                continue;
            }
            interior &= key_ids.x == key_ids.y && row_ids.x == row_ids.y;
        }

        // Who sees whom. An interior tile needs no look at pairs.
        var visible = 0xffffffffu;
        if !interior {
            visible = visible_pairs(place, lane, first);
            atomicOr(&wg_votes[rows >> 3u], seeing_rows(visible) << ((rows & 7u) * 4u));
            workgroupBarrier(); // every row has voted
            if lane == 0u {
                let low = atomicExchange(&wg_votes[0], 0u);
                let high = atomicExchange(&wg_votes[1], 0u);
                wg_seen[0] |= low;
                wg_seen[1] |= high;
                wg_live = low | high;
            }
            if workgroupUniformLoad(&wg_live) == 0u {
                continue;
            }
        }
        any_interior |= interior;
        visited += 1u;
        interiors += select(0u, 1u, interior);

        var s = scores_tile(lane, query_base, row_first, rows_end, key_base, first, keys.y, depth_chunks);
        if has(SCORE_RULES) {
            modify_scores(&s, place, lane, first);
        }

        // The maxima of the rows, and by how much the old sums shrink.
        if !interior {
            replace_hidden(&s, visible, LOWEST);
        }
        let top = vec4<f32>(largest(s.a0, s.b0), largest(s.a1, s.b1), largest(s.a2, s.b2), largest(s.a3, s.b3));
        let before = wg_maxima[rows];
        let maximum = max(before, row_maximum(lane, top));
        if (lane & 7u) == 0u {
            wg_maxima[rows] = maximum;
        }
        let shrink = vec4<f32>(
            exp_difference(before.x, maximum.x),
            exp_difference(before.y, maximum.y),
            exp_difference(before.z, maximum.z),
            exp_difference(before.w, maximum.w),
        );
        multiply_rows(&acc, shrink);
        wg_sums[lane] *= shrink;
        workgroupBarrier(); // every lane has its maximum

        // Weights.
        s.a0 = exp_difference4(s.a0, maximum.x);
        s.b0 = exp_difference4(s.b0, maximum.x);
        s.a1 = exp_difference4(s.a1, maximum.y);
        s.b1 = exp_difference4(s.b1, maximum.y);
        s.a2 = exp_difference4(s.a2, maximum.z);
        s.b2 = exp_difference4(s.b2, maximum.z);
        s.a3 = exp_difference4(s.a3, maximum.w);
        s.b3 = exp_difference4(s.b3, maximum.w);
        if !interior {
            replace_hidden(&s, visible, 0.0);
        }
        wg_sums[lane] += vec4<f32>(sum_of(s.a0, s.b0), sum_of(s.a1, s.b1), sum_of(s.a2, s.b2), sum_of(s.a3, s.b3));
        if !interior {
            replace_hidden(&s, visible, -1.0);
        }
        for (var step = 0u; step < params.trips_rows / 2u; step++) {
            let p0 = step_pair(s.a0, s.b0, step);
            let p1 = step_pair(s.a1, s.b1, step);
            let p2 = step_pair(s.a2, s.b2, step);
            let p3 = step_pair(s.a3, s.b3, step);
            let n = (lane & 7u) * 2u;
            wg_left[weight_index(n, rows)] = vec4<f32>(p0.x, p1.x, p2.x, p3.x);
            wg_left[weight_index(n + 1u, rows)] = vec4<f32>(p0.y, p1.y, p2.y, p3.y);
            stage_values(lane, value_base, column, first, keys.y, step);
            workgroupBarrier(); // the step is complete
            add_step(&acc, lane, !interior);
            workgroupBarrier(); // its last readers are done
        }
    }

    let total = row_sum(lane, wg_sums[lane]);
    let maximum = wg_maxima[rows];
    let seen = wg_seen[rows >> 3u] >> ((rows & 7u) * 4u);
    let sink = load_sink(id.head);
    let stats_base = query_head(params.stats, id);
    var factors: vec4<f32>;
    for (var r = 0u; r < params.trips_rows / 2u; r++) {
        let i = place.row + r;
        // Rows past the sequence's length are empty even where a tile was interior.
        let is_seen = any_interior || ((seen >> r) & 1u) != 0u;
        let end = softmax_finish(SoftmaxState(component(maximum, r), component(total, r), is_seen && i < sequence.q_len), sink);
        factors = select(factors, vec4<f32>(end.factor), vec4<u32>(r) == vec4<u32>(0u, 1u, 2u, 3u));
        if has(RULE_STATS) && id.column == 0u && (lane & 7u) == 0u && i < params.row_end {
            let at = stats_base + (i - params.row_first) * params.stats.row;
            store_stats(at, end, sink);
            if COUNT_TILES == 1u {
                stats[at] = bitcast<u32>(f32(visited));
                stats[at + 1u] = bitcast<u32>(f32(interiors));
            }
        }
    }
    store_output(&acc, lane, query_head(params.output, id), row_first, column, factors);
}
