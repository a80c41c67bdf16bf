// Copies values into workgroup memory four elements at a time, as rows_wide does.

// The values of step `step` of the tile at `first`.
fn stage_values(lane: u32, base: u32, column: u32, first: u32, end: u32, step: u32) {
    for (var n = lane; n < params.trips_depth * COLUMN_QUADS; n += LANES) {
        let j = first + step_key(step, n / COLUMN_QUADS);
        let c = column + (n % COLUMN_QUADS) * 4u;
        let inside = j < end && c < params.v_dim;
        let index = select(0u, base + j * params.value.row + c, inside);
        wg_right[n] = select(vec4<f32>(), widen_quad(value[index >> 2u]), inside);
    }
}
