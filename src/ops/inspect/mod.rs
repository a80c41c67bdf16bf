//! Inspection: scores, weights and contributions of chosen pairs, summaries of rows, the
//! mass that keys receive.

pub mod pairs;
pub mod rows;

use crate::error::{Error, Result};
use crate::kernel::shader::Shader;
use crate::kernel::uniform::{Params, lane_tile};
use crate::ops::checks::check_f32;
use crate::plan::family::ScoreTiles;
use crate::plan::operands::Operands;
use crate::plan::passes::Part;
use crate::plan::tiling::Tiles;
use crate::rules::dims::Dims;
use crate::rules::region::Region;

/// Checks the norms, and the output for a region with so many numbers a row.
fn output_shape(
    operands: &Operands<'_>,
    dims: &Dims,
    region: &Region,
    width: usize,
) -> Result<[usize; 4]> {
    if let Some(norms) = &operands.norms {
        check_f32("norms", norms)?;
        let of = |heads| [dims.batch, heads, dims.kv_len, 1];
        if norms.shape != of(dims.kv_heads) && norms.shape != of(dims.q_heads) {
            let expected = format!("{:?} or {:?}", of(dims.kv_heads), of(dims.q_heads));
            return Err(Error::shape("norms", expected, norms.shape));
        }
    }
    let [batches, heads, rows] = region.lens();
    if let Some(received) = &operands.received {
        check_f32("received", received)?;
        let expected = [batches, heads, dims.kv_len, 1];
        if received.shape != expected {
            let expected = format!("{expected:?}");
            return Err(Error::shape("received", expected, received.shape));
        }
        if dims.kv_len > 1 && received.strides[2] != 1 {
            return Err(Error::Layout {
                operand: "received",
                expected: "contiguous keys (stride 1)".to_owned(),
                actual: format!("strides {:?}", received.strides),
            });
        }
    }
    Ok([batches, heads, rows, width])
}

/// The shader that shows pairs, from scores as the family computes them, and its uniform.
fn of_family(part: &Part<'_>) -> (Shader, Params) {
    match part.kernel.row().scores {
        ScoreTiles::Lanes => {
            let params = Params {
                trips_rows: lane_tile::ROWS,
                // Runs of 4 keys.
                trips_keys: part.tiling.keys / 4,
                ..part.params
            };
            (Shader::InspectLanes, params)
        }
        ScoreTiles::Workgroup => (Shader::InspectTiled, part.params),
    }
}

/// Workgroups of the largest dispatch, of one head.
fn workgroups(tiles: &Tiles) -> u64 {
    let pairs = tiles.row_tiles.max(1).saturating_mul(tiles.key_tiles);
    tiles.rows.max(pairs)
}

/// Operations of the scores of so many rows and keys.
fn flops(dims: &Dims, rows: f64, keys: usize) -> f64 {
    2.0 * (rows * keys as f64) * dims.qk_dim as f64
}
