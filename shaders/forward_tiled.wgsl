// The fused forward pass (lib/forward_tile.wgsl) in plain WebGPU: no subgroups,
// default limits.
//
// In range, with staged_softmax's argument for the box: queries are loaded from
// element 0 unless row < rows_end <= row_end and depth < qk_dim, keys unless
// j < keys.y <= kv_len, values unless column < v_dim too; wide loads take elements
// up to depth + 1 or column + 3, below sizes that are multiples of 4. load_row
// clamps its row, is_visible looks at keys of the row's interval only, a bias is
// read at min(j, kv_len - 1). Segment ids: rows up to q_len, keys up to keys.y.
// store_output is guarded by i < row_end and c < v_dim, store_stats by
// i < row_end. wg_left, wg_right: 15 * 16 + 15 < 256; a step's values are 16 keys of
// COLUMN_QUADS, read up to run 7 + 8 (COLUMN_RUNS - 1) < COLUMN_QUADS. Lanes are
// below 128, so rows are below 16 and wg_votes has a bit for each. Loops: the
// trips of the uniform (8, 16, 64; src/passes.rs), ceil(qk_dim / 16), and `first`,
// which starts at or below kv_len or not at all and grows by 64 to
// kv_len <= 2^30. Divisors as in staged_scores, and COLUMN_QUADS.

// The largest of what the 8 lanes of a group of rows bring, in each of 4 rows.
fn row_maximum(lane: u32, x: vec4<f32>) -> vec4<f32> {
    wg_left[lane] = x;
    workgroupBarrier(); // every lane has written
    var top = x;
    for (var k = 0u; k < params.trips_rows; k++) {
        // Groups start at different lanes, so that they read different banks.
        top = max(top, wg_left[(lane & ~7u) + ((k + (lane >> 3u)) & 7u)]);
    }
    return top;
}

// Their sum, in the order of the lanes.
fn row_sum(lane: u32, x: vec4<f32>) -> vec4<f32> {
    workgroupBarrier(); // every lane has written its share
    var sum = vec4<f32>();
    for (var k = 0u; k < params.trips_rows; k++) {
        sum += wg_sums[(lane & ~7u) + k];
    }
    return sum;
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    forward(workgroup, workgroups, lane);
}
