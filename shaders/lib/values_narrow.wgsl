// Copies values into workgroup memory element by element, as rows_narrow does.

fn load_value(base: u32, row: u32, row_end: u32, column: u32) -> f32 {
    let inside = row < row_end && column < params.v_dim;
    let index = select(0u, base + row * params.value.row + column, inside);
    return select(0.0, widen(value[word_index(index, KV_DTYPE)], index, KV_DTYPE), inside);
}

// The values of step `step` of the tile at `first`.
fn stage_values(lane: u32, base: u32, column: u32, first: u32, end: u32, step: u32) {
    for (var n = lane; n < params.trips_depth * COLUMN_QUADS; n += LANES) {
        let j = first + step_key(step, n / COLUMN_QUADS);
        let c = column + (n % COLUMN_QUADS) * 4u;
        wg_right[n] = vec4<f32>(
            load_value(base, j, end, c),
            load_value(base, j, end, c + 1u),
            load_value(base, j, end, c + 2u),
            load_value(base, j, end, c + 3u),
        );
    }
}
