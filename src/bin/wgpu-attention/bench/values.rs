//! The numbers of a case, and what the oracle says of them.

use half::{bf16, f16};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, StandardNormal};
use wgpu_attention::reference;
use wgpu_attention::{DType, Data, Error, Inputs, Tensor};

use super::case::{Case, Storage};
use super::rules::Lists;
use crate::memory;

/// Values of one tensor in its storage type.
enum Stored {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Stored {
    fn data(&self) -> Data<'_> {
        match self {
            Stored::F32(values) => Data::F32(values),
            Stored::F16(values) => Data::F16(values),
            Stored::Bf16(values) => Data::BF16(values),
        }
    }
}

/// Query, key and value of a case: normal numbers, the same ones each time.
pub struct Values {
    case: Case,
    stored: [Stored; 3],
    pub lists: Lists,
}

impl Values {
    /// # Errors
    /// [`Error::HostMemory`].
    pub fn new(case: &Case) -> Result<Values, Error> {
        let mut rng = StdRng::seed_from_u64(29);
        let mut draw = |shape: [usize; 4], storage: Storage| {
            let count = shape.iter().product();
            let normal = StandardNormal.sample_iter(&mut rng);
            let what = "the operands";
            let halves = |x: f32| f16::from_f32(x);
            Ok(match storage {
                Storage::F32 => Stored::F32(memory::collected(what, count, normal)?),
                Storage::F16 => Stored::F16(memory::collected(what, count, normal.map(halves))?),
                Storage::Bf16 => {
                    let halves = |x: f32| bf16::from_f32(x);
                    Stored::Bf16(memory::collected(what, count, normal.map(halves))?)
                }
            })
        };
        Ok(Values {
            stored: [
                draw(case.query_shape(), case.dtype)?,
                draw(case.key_shape(), case.kv_dtype)?,
                draw(case.value_shape(), case.kv_dtype)?,
            ],
            lists: Lists::new(case)?,
            case: case.clone(),
        })
    }

    /// What the oracle says of chosen rows, each a row of every head: the rows of
    /// the output and their bounds, stored as `dtype`.
    pub fn expected(&self, rows: &[usize], dtype: DType) -> Result<[Vec<f64>; 2], Error> {
        if !self.case.projection {
            let (inputs, options) = (self.inputs()?, self.case.options()?);
            let expected = reference::forward_rows(&inputs, &options, dtype, rows)?;
            return Ok([expected.output, expected.output_bound]);
        }
        let [input, weight, _] = self.data();
        let width = self.case.head_dim;
        let rows_of_input = rows.iter().flat_map(|row| row * width..(row + 1) * width);
        let chosen: Vec<f32> = rows_of_input.map(|index| input.get(index)).collect();
        let chosen = Tensor::f32(&chosen, [1, 1, rows.len(), width])?;
        let weight = Tensor::new(weight, self.case.key_shape())?;
        let expected = reference::project(&chosen, &weight, None, dtype)?;
        Ok([expected.values, expected.bound])
    }

    /// As the oracle takes them.
    pub fn inputs(&self) -> Result<Inputs<'_>, Error> {
        let [query, key, value] = self.data();
        self.lists.inputs(Inputs::new(
            Tensor::new(query, self.case.query_shape())?,
            Tensor::new(key, self.case.key_shape())?,
            Tensor::new(value, self.case.value_shape())?,
        ))
    }

    /// Query, key and value as stored.
    pub fn data(&self) -> [Data<'_>; 3] {
        self.stored.each_ref().map(Stored::data)
    }

    /// Query, key and value widened to f32.
    pub fn widened(&self) -> Result<[Vec<f32>; 3], Error> {
        let [query, key, value] = self.data().map(|data| {
            let values = (0..data.len()).map(|index| data.get(index));
            memory::collected("the operands as f32", data.len(), values)
        });
        Ok([query?, key?, value?])
    }
}
