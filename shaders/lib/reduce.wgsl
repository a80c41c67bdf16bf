// Maximum or sum over the 64 lanes of a workgroup, in a fixed order.

var<workgroup> wg_reduce: array<f32, 64>;

fn reduce(lane: u32, x: f32, summing: bool) -> f32 {
    workgroupBarrier(); // the last readers of wg_reduce are done
    wg_reduce[lane] = x;
    workgroupBarrier(); // every lane has written
    for (var width = 32u; width > 0u; width >>= 1u) {
        if lane < width {
            let other = wg_reduce[lane + width];
            wg_reduce[lane] = select(max(wg_reduce[lane], other), wg_reduce[lane] + other, summing);
        }
        workgroupBarrier(); // this level is complete
    }
    return wg_reduce[0];
}
