//! The steps of a layer as the operands of each, and where they meet: the workspace.

use super::operands::{InProjections, Linear, MultiHeadOperands, Names, names};
use crate::ops::project::Projection;
use crate::plan::operands::Operands;
use crate::rules::dims::MAX_SEQUENCE;
use crate::rules::layer_dims::MultiHeadDims;
use crate::view::dtype::DType;
use crate::view::extent::Home;
use crate::view::geometry::PHASE;
use crate::view::tensor::TensorView;

/// Where the layer's intermediate results lie: f32, each part from a multiple of 256
/// bytes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// One product writes query, key and value of a token side by side, from `query` on.
    pub packed: bool,
    pub query: u64,
    pub key: u64,
    pub value: u64,
    /// The heads' outputs, those of a token side by side: what W_O takes.
    pub heads: u64,
    /// What attention itself needs comes after all of them.
    pub scratch: u64,
}

impl Layout {
    pub fn new(dims: &MultiHeadDims, operands: &MultiHeadOperands<'_>) -> Layout {
        let d = &dims.attention;
        let is_packed = matches!(operands.projections, InProjections::Packed(_));
        let packed = is_packed && operands.context.is_none();
        let mut end = 0u64;
        let mut place = |rows: usize, width: usize| {
            let start = end;
            let bytes = (rows as u64).saturating_mul(width as u64).saturating_mul(4);
            end = end
                .saturating_add(bytes)
                .checked_next_multiple_of(PHASE)
                .unwrap_or(u64::MAX);
            start
        };
        let (queries, keys) = (d.queries(), d.keys());
        let [query, key, value] = match packed {
            true => {
                let start = place(queries, packed_width(dims));
                let of_queries = 4 * (d.q_heads * d.qk_dim) as u64;
                let of_keys = 4 * (d.kv_heads * d.qk_dim) as u64;
                [start, start + of_queries, start + of_queries + of_keys]
            }
            false => [
                place(queries, d.q_heads * d.qk_dim),
                place(keys, d.kv_heads * d.qk_dim),
                place(keys, d.kv_heads * d.v_dim),
            ],
        };
        let heads = place(queries, d.q_heads * d.v_dim);
        Layout {
            packed,
            query,
            key,
            value,
            heads,
            scratch: end,
        }
    }
}

/// Columns of query, key and value together.
fn packed_width(dims: &MultiHeadDims) -> usize {
    let d = &dims.attention;
    d.q_heads * d.qk_dim + d.kv_heads * (d.qk_dim + d.v_dim)
}

/// A projection, and what the caller calls its operands.
pub(super) type NamedProjection<'a> = (Names, Projection<'a>);

/// The operands of every step.
pub(super) struct Steps<'a> {
    /// Into query, key and value.
    pub projections: Vec<NamedProjection<'a>>,
    pub attention: Operands<'a>,
    /// Out of the heads.
    pub output: NamedProjection<'a>,
}

impl<'a> Steps<'a> {
    /// The steps with their meeting places `start` bytes into `home`.
    pub fn new(
        operands: &MultiHeadOperands<'a>,
        dims: &MultiHeadDims,
        layout: &Layout,
        home: Home<'a>,
        start: u64,
    ) -> Steps<'a> {
        let d = &dims.attention;
        let packed_row = layout.packed.then(|| packed_width(dims));
        // Rows of `width` columns that lie `at` bytes into the layout.
        let tokens = |at: u64, tokens: usize, width: usize, row: usize| TensorView {
            home,
            dtype: DType::F32,
            shape: [d.batch, 1, tokens, width],
            strides: [
                tokens.saturating_mul(row),
                tokens.saturating_mul(row),
                row,
                1,
            ],
            offset: (start + at) / 4,
        };
        // The same rows as heads of `dim` columns.
        let heads = |rows: TensorView<'a>, heads: usize, dim: usize| {
            let [batch, _, tokens, _] = rows.shape;
            let [of_batch, _, row, one] = rows.strides;
            TensorView {
                shape: [batch, heads, tokens, dim],
                strides: [of_batch, dim, row, one],
                ..rows
            }
        };
        let place = |at: u64, len: usize, count: usize, dim: usize| {
            let width = count * dim;
            tokens(at, len, width, packed_row.unwrap_or(width))
        };
        let query = place(layout.query, d.q_len, d.q_heads, d.qk_dim);
        let key = place(layout.key, d.kv_len, d.kv_heads, d.qk_dim);
        let value = place(layout.value, d.kv_len, d.kv_heads, d.v_dim);
        let concatenated = d.q_heads * d.v_dim;
        let outputs = tokens(layout.heads, d.q_len, concatenated, concatenated);

        let (input, source) = (operands.input, operands.source());
        // What the caller calls the latter.
        let of_source = operands.context.map_or("input", |_| "context");
        let packed_names = |of_input| ["packed weight", "packed bias", of_input, "workspace"];
        let project = |called, input, linear: Linear<'a>, output| {
            let projection = Projection {
                input,
                weight: linear.weight,
                bias: linear.bias,
                output,
            };
            (names(called), as_one_batch(projection))
        };
        let projections = match operands.projections {
            InProjections::Packed(packed) if layout.packed => {
                let all = packed_width(dims);
                vec![project(
                    packed_names("input"),
                    input,
                    packed,
                    tokens(layout.query, d.q_len, all, all),
                )]
            }
            InProjections::Packed(packed) => {
                let (queries, keys) = (d.q_heads * d.qk_dim, d.kv_heads * d.qk_dim);
                let values = d.kv_heads * d.v_dim;
                vec![
                    project(packed_names("input"), input, packed.rows(0, queries), query),
                    project(
                        packed_names(of_source),
                        source,
                        packed.rows(queries, keys),
                        key,
                    ),
                    project(
                        packed_names(of_source),
                        source,
                        packed.rows(queries + keys, values),
                        value,
                    ),
                ]
            }
            InProjections::Separate {
                query: of_query,
                key: of_key,
                value: of_value,
            } => vec![
                project(
                    ["query weight", "query bias", "input", "workspace"],
                    input,
                    of_query,
                    query,
                ),
                project(
                    ["key weight", "key bias", of_source, "workspace"],
                    source,
                    of_key,
                    key,
                ),
                project(
                    ["value weight", "value bias", of_source, "workspace"],
                    source,
                    of_value,
                    value,
                ),
            ],
        };
        Steps {
            projections,
            attention: Operands {
                query: heads(query, d.q_heads, d.qk_dim),
                key: heads(key, d.kv_heads, d.qk_dim),
                value: heads(value, d.kv_heads, d.v_dim),
                output: heads(outputs, d.q_heads, d.v_dim),
                ..operands.attention
            },
            output: project(
                ["output weight", "output bias", "workspace", "output"],
                outputs,
                operands.output_projection,
                operands.output,
            ),
        }
    }
}

/// The same projection as one batch entry, where all rows follow each other and are
/// not too many for one: its tiles are full then.
fn as_one_batch(projection: Projection<'_>) -> Projection<'_> {
    let follows = |view: &TensorView<'_>| {
        let [batch, _, rows, _] = view.shape;
        batch <= 1 || view.strides[0] == rows.saturating_mul(view.strides[2])
    };
    let Projection { input, output, .. } = projection;
    // Both have the same batch entries and rows.
    let [batch, one, rows, _] = input.shape;
    let all = batch.saturating_mul(rows);
    if !follows(&input) || !follows(&output) || all > MAX_SEQUENCE {
        return projection;
    }
    let joined = |view: TensorView<'_>| [1, one, all, view.shape[3]];
    Projection {
        input: TensorView {
            shape: joined(input),
            ..input
        },
        output: TensorView {
            shape: joined(output),
            ..output
        },
        ..projection
    }
}
