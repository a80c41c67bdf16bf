// Gathers one list (lengths, segments, sinks, slopes) from the caller's buffer
// into the `aux` region, so that the attention kernels need one binding for all
// of them.
//
// In range: n < count; the plan binds `source` up to word source + count, and
// `aux` whole, which the lists fill without overlap (src/aux_layout.rs). No loop, no
// division.

struct CopyParams {
    source: u32,
    destination: u32,
    count: u32,
    // Invocations a row of the grid.
    stride: u32,
}

@group(0) @binding(0) var<uniform> params: CopyParams;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let n = id.x + id.y * params.stride;
    if n < params.count {
        aux[params.destination + n] = source[params.source + n];
    }
}
