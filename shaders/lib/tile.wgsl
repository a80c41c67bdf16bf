// The tiling that all tiled kernels share: 64 lanes, tiles of 64 query rows,
// 32 keys, 64 value columns. Lanes form a grid of 8 x 8: `lane >> 3` owns 8
// rows, `lane & 7` owns 4 keys or 2 x 4 columns.

const LANES: u32 = 64u;
const TILE_ROWS: u32 = 64u;
const TILE_KEYS: u32 = 32u;
const TILE_COLUMNS: u32 = 64u;
const TILE_DEPTH: u32 = 16u;

// 15.3 KiB of the 16 KiB that WebGPU guarantees, with wg_factors.
// One depth chunk of queries [depth][row / 4], or 16 value rows [key][column / 4].
var<workgroup> wg_left: array<vec4<f32>, 256>;
// One depth chunk of keys [depth][key / 4].
var<workgroup> wg_right: array<vec4<f32>, 128>;
// Scores, then weights: [row][key / 4], a row padded to 9 so that lanes that
// read one column of it hit different banks. A vec4 has one writer: WGSL lets a
// store to a component touch the whole vector.
const SCORE_STRIDE: u32 = 9u;
var<workgroup> wg_scores: array<vec4<f32>, 576>;

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

// The keys that any of the rows [first, end) may see. Both ends of a row's
// interval grow with the row, so the outer rows decide.
fn rows_interval(first: u32, end: u32, sequence: Sequence) -> vec2<u32> {
    let last = min(end, sequence.q_len);
    if first >= last {
        return vec2<u32>(0u, 0u);
    }
    return vec2<u32>(row_interval(first, sequence).x, row_interval(last - 1u, sequence).y);
}

// The keys that every one of those rows may see by its interval alone.
fn rows_common_interval(first: u32, end: u32, sequence: Sequence) -> vec2<u32> {
    let last = max(min(end, sequence.q_len), first + 1u);
    return vec2<u32>(row_interval(last - 1u, sequence).x, row_interval(first, sequence).y);
}

fn component(v: vec4<f32>, index: u32) -> f32 {
    return select(select(v.x, v.y, index == 1u), select(v.z, v.w, index == 3u), index >= 2u);
}
