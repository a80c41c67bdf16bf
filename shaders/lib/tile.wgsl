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
