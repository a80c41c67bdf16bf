// Which part of the problem a workgroup computes, and where its heads begin.

struct TileId {
    column: u32,
    row: u32,
    head: u32,
    batch: u32,
}

// A grid of more than 65,535 tiles is folded into two dimensions.
fn tile_number(workgroup: vec3<u32>, workgroups: vec3<u32>) -> u32 {
    return workgroup.x + workgroup.y * workgroups.x;
}

fn tile_id(number: u32) -> TileId {
    let rows = number / params.column_tiles;
    let heads = rows / params.row_tiles;
    return TileId(
        number - rows * params.column_tiles,
        rows - heads * params.row_tiles,
        params.head_first + heads % params.heads,
        params.batch_first + heads / params.heads,
    );
}

// First element of a head in a query-like and in a key-like tensor.
fn query_head(view: View, id: TileId) -> u32 {
    return view.base + (id.batch - params.batch_first) * view.batch + (id.head - params.head_first) * view.head;
}

fn key_head(view: View, id: TileId) -> u32 {
    let head = id.head / params.group - params.head_first / params.group;
    return view.base + (id.batch - params.batch_first) * view.batch + head * view.head;
}

fn component(v: vec4<f32>, index: u32) -> f32 {
    return select(select(v.x, v.y, index == 1u), select(v.z, v.w, index == 3u), index >= 2u);
}
