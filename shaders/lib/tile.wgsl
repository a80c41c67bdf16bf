// The tiling of the fused kernel and of the staged products: 128 lanes, tiles of
// 64 query rows, 64 keys, up to 128 value columns. Lanes form a grid of 16 x 8:
// `lane >> 3` owns 4 rows, `lane & 7` owns runs of 4 keys or 4 columns, 32 apart.
// So each vec4 read from workgroup memory feeds 16 multiply-adds or more, and
// lanes that are neighbours read neighbouring vec4s or the same one.

const LANES: u32 = 128u;
const TILE_ROWS: u32 = 64u;
const TILE_KEYS: u32 = 64u;
const TILE_DEPTH: u32 = 16u;
const TILE_COLUMNS: u32 = 32u * COLUMN_RUNS;
const COLUMN_QUADS: u32 = 8u * COLUMN_RUNS;

// First a depth chunk of queries [depth][row / 4] and of keys [depth][key / 4];
// then the weights [key][row / 4] and the values [key][column / 4] of a step.
var<workgroup> wg_left: array<vec4<f32>, 256>;
var<workgroup> wg_right: array<vec4<f32>, RIGHT_QUADS>;
const RIGHT_QUADS: u32 = 128u * max(2u, COLUMN_RUNS);
