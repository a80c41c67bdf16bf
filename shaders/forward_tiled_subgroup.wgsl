// The fused forward pass (lib/forward_tile.wgsl) on devices with subgroups of 4
// lanes or more, whatever their size: quads of lanes reduce rows among
// themselves, and only pairs of quads meet in workgroup memory.
//
// In range as forward_tiled is; lane ^ 4 is below 128 where lane is.

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
    let quad = quad_maximum(x);
    wg_left[lane] = quad;
    workgroupBarrier(); // both quads have written
    return max(quad, wg_left[lane ^ 4u]);
}

// Their sum.
fn row_sum(lane: u32, x: vec4<f32>) -> vec4<f32> {
    let quad = quad_sum(x);
    wg_left[lane] = quad;
    workgroupBarrier(); // both quads have written
    return quad + wg_left[lane ^ 4u];
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
    @builtin(subgroup_invocation_id) invocation: u32,
) {
    // Numbered by subgroups, so that 4 lanes of a quad are neighbours in one.
    forward(workgroup, workgroups, subgroup * subgroup_size + invocation);
}
