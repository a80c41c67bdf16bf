// Lengths and offset of a batch entry. `aux` is bound read_write, so that only a
// load through workgroup memory counts as uniform.
var<workgroup> wg_sequence: Sequence;

fn uniform_sequence(lane: u32, batch: u32) -> Sequence {
    if lane == 0u {
        wg_sequence = load_sequence(batch);
    }
    return workgroupUniformLoad(&wg_sequence);
}
