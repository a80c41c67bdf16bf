// The fused forward pass (lib/forward_tile.wgsl) on devices with subgroups of 4
// lanes or more, whatever their size: quads of lanes reduce rows among
// themselves, and only pairs of quads meet in workgroup memory.
//
// Nothing promises that lanes that are neighbours in the workgroup are neighbours
// in a subgroup, or that subgroups are full. So the workgroup looks once: where some
// quad is not whole within a subgroup, all 8 lanes of each group of rows meet in
// workgroup memory. Lanes are numbered in the workgroup, below 128 in any case.
//
// In range as forward_tiled is; lane ^ 4 and lane ^ k with k below 8 are below 128
// where lane is, and so is (lane & ~7) + k. A ballot has 4 words. Loops: k grows by
// at least 1 to trips_rows, which is 8.

// Whether a lane's quad is not whole.
var<workgroup> wg_split: atomic<u32>;
var<private> quads_are_whole: bool;

// Ends with a barrier.
fn look_at_quads(lane: u32, invocation: u32) {
    if lane == 0u {
        atomicStore(&wg_split, 0u);
    }
    workgroupBarrier(); // wg_split is ready
    let first = invocation & ~3u;
    let ballot = subgroupBallot(true);
    let quad = (ballot[(first >> 5u) & 3u] >> (first & 31u)) & 15u;
    // What an inactive lane would bring is not defined; all 4 are active or the
    // numbers say nothing.
    let beside = subgroupShuffleXor(lane, 1u);
    let across = subgroupShuffleXor(lane, 2u);
    if quad != 15u || beside != (lane ^ 1u) || across != (lane ^ 2u) {
        atomicStore(&wg_split, 1u);
    }
    workgroupBarrier(); // every lane has looked
    quads_are_whole = atomicLoad(&wg_split) == 0u;
}

// The larger or the sum of what the 4 lanes of a quad bring.
fn quad_maximum(x: vec4<f32>) -> vec4<f32> {
    let pair = max(x, subgroupShuffleXor(x, 1u));
    return max(pair, subgroupShuffleXor(pair, 2u));
}

fn quad_sum(x: vec4<f32>) -> vec4<f32> {
    let pair = x + subgroupShuffleXor(x, 1u);
    return pair + subgroupShuffleXor(pair, 2u);
}

// The largest of what the 8 lanes of a group of rows bring, in each of 4 rows.
fn row_maximum(lane: u32, x: vec4<f32>) -> vec4<f32> {
    let quad = select(x, quad_maximum(x), quads_are_whole);
    wg_left[lane] = quad;
    workgroupBarrier(); // both quads have written
    var top = max(quad, wg_left[lane ^ 4u]);
    // No trip where quads are whole.
    for (var k = 1u; k < select(params.trips_rows, 0u, quads_are_whole); k++) {
        top = max(top, wg_left[lane ^ k]);
    }
    return top;
}

// Their sum: of the two quads, or of the lanes in their order.
fn row_sum(lane: u32, x: vec4<f32>) -> vec4<f32> {
    wg_left[lane] = select(x, quad_sum(x), quads_are_whole);
    workgroupBarrier(); // both quads have written
    var sum = vec4<f32>();
    for (var k = 0u; k < params.trips_rows; k += select(1u, 4u, quads_are_whole)) {
        sum += wg_left[(lane & ~7u) + k];
    }
    return sum;
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_invocation_id) invocation: u32,
) {
    look_at_quads(lane, invocation);
    forward(workgroup, workgroups, lane);
}
