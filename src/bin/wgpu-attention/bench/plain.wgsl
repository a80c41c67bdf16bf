// Attention as everybody writes it first: one invocation a score, one a row of
// the softmax, one an element of the output. What the library's kernels are
// compared with; f32 throughout.

struct Shape {
    q_len: u32,
    kv_len: u32,
    qk_dim: u32,
    v_dim: u32,
    // Query heads of one kv head.
    group: u32,
    // Row i stands at key i + offset.
    offset: i32,
    // Keys before and after the own position that are visible, at most 2^30.
    left: i32,
    right: i32,
    scale: f32,
    // Three words of padding.
    unused_a: u32,
    unused_b: u32,
    unused_c: u32,
}

@group(0) @binding(0) var<uniform> shape: Shape;
@group(0) @binding(1) var<storage, read> query: array<f32>;
@group(0) @binding(2) var<storage, read> key: array<f32>;
@group(0) @binding(3) var<storage, read> value: array<f32>;
@group(0) @binding(4) var<storage, read_write> scores: array<f32>;
@group(0) @binding(5) var<storage, read_write> output: array<f32>;

@compute @workgroup_size(8, 8)
fn scores_of_pairs(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= shape.kv_len || id.y >= shape.q_len) {
        return;
    }
    let row = id.z * shape.q_len + id.y;
    let column = (id.z / shape.group) * shape.kv_len + id.x;
    var sum = 0.0;
    for (var d = 0u; d < shape.qk_dim; d++) {
        sum += query[row * shape.qk_dim + d] * key[column * shape.qk_dim + d];
    }
    let position = i32(id.y) + shape.offset;
    let visible = i32(id.x) >= position - shape.left && i32(id.x) <= position + shape.right;
    scores[row * shape.kv_len + id.x] = select(-1e30, sum * shape.scale, visible);
}

@compute @workgroup_size(64)
fn softmax_of_rows(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= shape.q_len) {
        return;
    }
    let first = (id.y * shape.q_len + id.x) * shape.kv_len;
    var largest = -1e29;
    for (var j = 0u; j < shape.kv_len; j++) {
        largest = max(largest, scores[first + j]);
    }
    var sum = 0.0;
    for (var j = 0u; j < shape.kv_len; j++) {
        let weight = exp(scores[first + j] - largest);
        scores[first + j] = weight;
        sum += weight;
    }
    // A row that sees nothing gives zeros.
    let factor = select(0.0, 1.0 / sum, sum > 0.0);
    for (var j = 0u; j < shape.kv_len; j++) {
        scores[first + j] *= factor;
    }
}

@compute @workgroup_size(8, 8)
fn sums_of_values(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= shape.v_dim || id.y >= shape.q_len) {
        return;
    }
    let row = id.z * shape.q_len + id.y;
    let first = (id.z / shape.group) * shape.kv_len;
    var sum = 0.0;
    for (var j = 0u; j < shape.kv_len; j++) {
        sum += scores[row * shape.kv_len + j] * value[(first + j) * shape.v_dim + id.x];
    }
    output[row * shape.v_dim + id.x] = sum;
}
