// Fused forward pass: O = softmax(scale * Q K^T + ...) V and its log-sum-exp,
// without ever holding Nq x Nk.
//
// One workgroup of 64 lanes per 64 rows x 64 value columns of one (batch,
// head). For each tile of 32 keys that some row may see: scores by all lanes;
// then lane r owns row r (visibility, modifiers, online softmax); then all
// lanes add P V. Tiles in which no pair is visible are not computed, tiles in
// which every pair is visible run without mask code. Plain WebGPU: no
// subgroups, default limits.

var<workgroup> wg_sequence: Sequence;
var<workgroup> wg_any: atomic<u32>;
var<workgroup> wg_live: u32;

// Bit k: the row may see key first + k.
fn visible_word(row: Row, first: u32, trips: u32) -> u32 {
    var word = 0u;
    for (var k = 0u; k < trips; k++) {
        word |= select(0u, 1u << k, is_visible(row, first + k));
    }
    return word;
}

// Which of the four keys of group g the row sees.
fn sees(visible: u32, g: u32) -> vec4<bool> {
    return (vec4<u32>(visible >> (g * 4u)) & vec4<u32>(1u, 2u, 4u, 8u)) != vec4<u32>();
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
    let id = tile_id(number);
    if lane == 0u {
        wg_sequence = load_sequence(id.batch);
        atomicStore(&wg_any, 0u);
    }
    let sequence = workgroupUniformLoad(&wg_sequence);

    let row_first = params.row_first + id.row * TILE_ROWS;
    let column = id.column * TILE_COLUMNS;
    let i = row_first + lane;
    // Lanes past the last row repeat it and store nothing.
    let row = load_row(id.batch, id.head, min(i, params.row_end - 1u), sequence);
    let rows_end = min(row_first + TILE_ROWS, params.row_end);
    let keys = rows_interval(row_first, rows_end, sequence);
    let shared_keys = rows_common_interval(row_first, rows_end, sequence);
    let query_base = query_head(params.query, id);
    let key_base = key_head(params.key, id);
    let value_base = key_head(params.value, id);
    let depth_chunks = (params.qk_dim + TILE_DEPTH - 1u) / TILE_DEPTH;
    let own = lane * SCORE_STRIDE;

    var acc: Accumulator;
    var state = SOFTMAX_EMPTY;
    for (var first = keys.x & ~31u; first < keys.y; first += TILE_KEYS) {
        let interior = !has(PAIR_RULES) && shared_keys.x <= first && first + TILE_KEYS <= shared_keys.y;

        // Who sees whom. An interior tile needs no look at pairs.
        let word = visible_word(row, first, select(params.trips_keys, 0u, interior));
        let visible = select(word, 0xffffffffu, interior);
        atomicOr(&wg_any, visible);
        workgroupBarrier(); // every row has voted
        if lane == 0u {
            wg_live = atomicExchange(&wg_any, 0u);
        }
        let live = workgroupUniformLoad(&wg_live) != 0u;

        scores_tile(lane, query_base, row_first, rows_end, key_base, first, keys.y, select(0u, depth_chunks, live));

        // This lane's row: modifiers, maximum, weights.
        let key_trips = select(0u, params.trips_rows, live);
        for (var g = 0u; g < select(0u, key_trips, has(SCORE_RULES)); g++) {
            let s = wg_scores[own + g];
            let j = first + g * 4u;
            wg_scores[own + g] = vec4<f32>(
                modified(row, j, s.x),
                modified(row, j + 1u, s.y),
                modified(row, j + 2u, s.z),
                modified(row, j + 3u, s.w),
            );
        }
        var top = vec4<f32>(state.maximum);
        for (var g = 0u; g < key_trips; g++) {
            top = select(top, max(top, wg_scores[own + g]), sees(visible, g));
        }
        let maximum = max(max(top.x, top.y), max(top.z, top.w));
        let shrink = softmax_shrink(state, maximum);
        var sum = vec4<f32>();
        for (var g = 0u; g < key_trips; g++) {
            let p = exp_difference4(wg_scores[own + g], maximum);
            wg_scores[own + g] = select(vec4<f32>(-1.0), p, sees(visible, g));
            sum += select(vec4<f32>(), p, sees(visible, g));
        }
        let total = state.sum * shrink + ((sum.x + sum.y) + (sum.z + sum.w));
        state = SoftmaxState(maximum, total, state.seen || visible != 0u);
        wg_factors[lane] = shrink;
        workgroupBarrier(); // weights and factors are complete

        shrink_rows(&acc, lane);
        values_tile(&acc, lane, value_base, column, first, keys.y, select(0u, 2u, live), !interior);
    }

    let sink = load_sink(id.head);
    var end = softmax_finish(state, sink);
    // Rows past the sequence's length are empty even where a tile was interior.
    if i >= sequence.q_len {
        end = softmax_finish(SOFTMAX_EMPTY, sink);
    }
    workgroupBarrier(); // the last readers of wg_factors are done
    wg_factors[lane] = end.factor;
    if has(RULE_STATS) && id.column == 0u && i < params.row_end {
        store_stats(query_head(params.stats, id) + (i - params.row_first) * params.stats.row, end, sink);
    }
    workgroupBarrier(); // factors are complete
    store_output(&acc, lane, query_head(params.output, id), row_first, column);
}
