//! Plans of bundled cases with all that their dispatches bind, for programs that run
//! them without this crate.

use std::path::Path;

use serde_json::{Value, json};
use wgpu_attention::shaders::{Access, Slot};
use wgpu_attention::{Attention, DType, Kernel, MaskData, PlanOptions, testing};

use crate::case::Case;

/// Bytes of all recordings, one after the other.
#[derive(Default)]
pub struct Recordings {
    bytes: Vec<u8>,
    list: Vec<Value>,
}

impl Recordings {
    /// Adds a case with one of the kernels.
    pub fn add(&mut self, attention: &Attention, name: &str, case: &Case, kernel: Kernel) {
        let offsets = case.offsets();
        let (inputs, options) = (case.inputs(offsets.as_deref()), case.options());
        let plan_options = PlanOptions::default().kernel(kernel);
        let uploaded = attention.upload(&inputs, &options, DType::F32, &plan_options);
        let uploaded = uploaded.unwrap_or_else(|e| panic!("{name}: {e}"));
        let plan = uploaded.plan();
        let [output, lse] = case.expected();
        let words = testing::host_words(plan);
        // What is written starts as NaN.
        let poison = |values: &[f32]| vec![0xff; 4 * values.len()];
        let mut buffers = json!({
            "query": self.put(inputs.query.data().bytes()),
            "key": self.put(inputs.key.data().bytes()),
            "value": self.put(inputs.value.data().bytes()),
            "output": self.put(&poison(&output.values)),
            "stats": self.put(&poison(&lse.values)),
            "aux": self.put(bytemuck::cast_slice(&words)),
            "scores": self.put(&vec![0xff; plan.workspace_bytes() as usize]),
        });
        if let Some(bias) = &inputs.bias {
            buffers["bias"] = self.put(bias.data().bytes());
        }
        if let Some(MaskData::Bytes(bytes)) = inputs.mask.map(|mask| mask.data()) {
            buffers["mask_words"] = self.put(bytes);
        }
        let dispatches = testing::dispatches(plan).into_iter().map(|dispatch| {
            let slots = dispatch.shader.slots().iter();
            let binds = dispatch.binds.iter().zip(slots);
            let binds = binds.map(|((slot, range), (_, access))| match range {
                Some((start, end)) => {
                    json!({"buffer": slot.name(), "offset": start, "size": end - start})
                }
                // Not used: any small buffer.
                None => json!({"buffer": match access {
                    Access::Read => "idle input",
                    Access::Write => "idle output",
                }}),
            });
            json!({
                "stem": dispatch.specialization.file_stem(dispatch.shader),
                "grid": dispatch.grid,
                "uniform": self.put(&dispatch.uniform),
                "binds": binds.collect::<Vec<_>>(),
            })
        });
        let dispatches: Vec<Value> = dispatches.collect();
        let expected = [(Slot::Output, output), (Slot::Stats, lse)].map(|(slot, expected)| {
            json!({
                "buffer": slot.name(),
                "values": self.put(bytemuck::cast_slice(&expected.values)),
                "tolerances": self.put(bytemuck::cast_slice(&expected.tolerances)),
            })
        });
        self.list.push(json!({
            "name": name,
            "kernel": kernel.name(),
            "buffers": buffers,
            "dispatches": dispatches,
            "expected": expected,
        }));
    }

    /// Appends bytes, aligned for f32 and padded to whole words.
    fn put(&mut self, bytes: &[u8]) -> Value {
        let offset = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        json!({"offset": offset, "size": self.bytes.len() - offset})
    }

    /// Writes `recordings.json` and `recordings.bin`.
    pub fn write(&self, folder: &Path) {
        let document = serde_json::to_string(&self.list).unwrap();
        std::fs::write(folder.join("recordings.json"), document).unwrap();
        std::fs::write(folder.join("recordings.bin"), &self.bytes).unwrap();
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }
}
