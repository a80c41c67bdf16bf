// Lengths and offset of a batch entry. `aux` is read-only: every lane may load them,
// and compilers know that all get the same.
fn uniform_sequence(lane: u32, batch: u32) -> Sequence {
    return load_sequence(batch);
}
