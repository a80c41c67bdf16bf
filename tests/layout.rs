//! Structs and bindings of every shader, by naga's reflection, against Rust.

mod lints;

use std::collections::{BTreeMap, BTreeSet};

use lints::parse;
use naga::{AddressSpace, GlobalVariable, Module, StorageAccess, TypeInner};
use wgpu_attention::DType;
use wgpu_attention::shaders::{Access, Loads, Shader, Slot, all_pipelines, compose};
use wgpu_attention::testing::{Layout, layout};

/// Every struct of a module that a uniform is made of, by name.
fn structs(module: &Module) -> BTreeMap<String, Layout> {
    let mut found = BTreeMap::new();
    for (_, ty) in module.types.iter() {
        if let (Some(name), TypeInner::Struct { members, span }) = (&ty.name, &ty.inner) {
            let field = |m: &naga::StructMember| (m.name.clone().unwrap_or_default(), m.offset);
            let fields = members.iter().map(field);
            let fields = fields.map(|(name, offset)| (&*name.leak(), offset as usize));
            found.insert(
                name.clone(),
                Layout {
                    size: *span as usize,
                    fields: fields.collect(),
                },
            );
        }
    }
    found
}

#[test]
fn uniforms_have_the_layout_of_their_rust_mirrors() {
    let mut compared = BTreeSet::new();
    for (shader, key) in all_pipelines() {
        let module = parse(&compose(shader, key).text).unwrap();
        for (name, wgsl) in structs(&module) {
            if let Some(rust) = layout(&name) {
                assert_eq!(wgsl, rust, "{name} in {}", shader.name());
                compared.insert(name);
            }
        }
    }
    let names: Vec<_> = compared.iter().map(String::as_str).collect();
    assert_eq!(names, ["CopyParams", "Params", "View"]);
}

#[test]
fn a_layout_that_differs_is_told_apart() {
    let rust = layout("CopyParams").unwrap();
    let judged = |fields: &str| {
        let text = format!(
            "struct CopyParams {{ {fields} }}\n@group(0) @binding(0) var<uniform> p: CopyParams;\n\
             @compute @workgroup_size(1) fn main() {{ _ = p.{}; }}",
            fields.split(':').next().unwrap()
        );
        structs(&parse(&text).unwrap())["CopyParams"] == rust
    };
    assert!(judged(
        "source: u32, destination: u32, count: u32, stride: u32"
    ));
    assert!(!judged(
        "destination: u32, source: u32, count: u32, stride: u32"
    ));
    assert!(!judged("source: u32, destination: u32, count: u32"));
    assert!(!judged(
        "source: u32, destination: u32, count: u32, stride: u32, more: u32"
    ));
    assert!(!judged(
        "source: u32, destination: u32, count: u32, @align(16) stride: u32"
    ));
}

fn uniform_size(module: &Module) -> u32 {
    let uniform = |(_, v): &(_, &GlobalVariable)| v.space == AddressSpace::Uniform;
    let mut uniforms = module.global_variables.iter().filter(uniform);
    let (_, variable) = uniforms.next().expect("a uniform");
    assert!(uniforms.next().is_none(), "one uniform");
    let binding = variable.binding.expect("bound");
    assert_eq!((binding.group, binding.binding), (0, 0));
    module.types[variable.ty].inner.size(module.to_ctx())
}

/// Name, binding and whether it may be written, of every storage buffer.
fn bindings(module: &Module) -> Vec<(String, u32, bool)> {
    let mut found = Vec::new();
    for (_, variable) in module.global_variables.iter() {
        let AddressSpace::Storage { access } = variable.space else {
            continue;
        };
        let binding = variable.binding.expect("bound");
        assert_eq!(binding.group, 0);
        let writable = access.contains(StorageAccess::STORE);
        found.push((variable.name.clone().unwrap(), binding.binding, writable));
    }
    found.sort_by_key(|(_, binding, _)| *binding);
    found
}

#[test]
fn bindings_are_those_of_the_registry() {
    let mut compared = 0;
    for (shader, key) in all_pipelines() {
        let module = parse(&compose(shader, key).text).unwrap();
        let expected: Vec<_> = shader
            .slots()
            .iter()
            .zip(1..)
            .map(|((slot, access), binding)| {
                let writable = *access == Access::Write || key.shared;
                (slot.name().to_owned(), binding, writable)
            })
            .collect();
        assert_eq!(bindings(&module), expected, "{shader:?} {key:?}");
        compared += expected.len();
        let mirror = match shader {
            Shader::CopyWords => layout("CopyParams"),
            _ => layout("Params"),
        };
        assert_eq!(uniform_size(&module) as usize, mirror.unwrap().size);
    }
    assert!(compared > 90, "{compared}");
}

/// Every storage buffer is made of plain words, or of chunks of 4 elements where
/// the specialization says so, so that an element's offset in the parameters
/// means the same on both sides.
#[test]
fn storage_is_words_or_chunks() {
    for (shader, key) in all_pipelines() {
        let module = parse(&compose(shader, key).text).unwrap();
        for (_, variable) in module.global_variables.iter() {
            if !matches!(variable.space, AddressSpace::Storage { .. }) {
                continue;
            }
            let TypeInner::Array { base, stride, .. } = module.types[variable.ty].inner else {
                panic!("{:?} is no array", variable.name);
            };
            let name = variable.name.as_deref().unwrap();
            let is_chunk = ["query", "key", "value"].contains(&name) && key.loads != Loads::Words;
            // The tiled kernels load two elements of a query or key at once.
            let elements = if shader.loads_pairs() && name != "value" {
                2
            } else {
                4
            };
            let dtype = match name {
                "query" => key.query_dtype,
                _ => key.kv_dtype,
            };
            let chunk = match dtype {
                DType::F32 => elements * 4,
                DType::F16 | DType::BF16 => elements * 2,
            };
            assert_eq!(stride, if is_chunk { chunk } else { 4 }, "{name}");
            let word = TypeInner::Scalar(naga::Scalar::U32);
            let of_atomics = TypeInner::Atomic(naga::Scalar::U32);
            let inner = &module.types[base].inner;
            match (name == Slot::Output.name(), is_chunk) {
                (true, _) => assert_eq!(*inner, of_atomics, "{name}"),
                (false, false) => assert_eq!(*inner, word, "{name}"),
                (false, true) => {}
            }
        }
    }
}

#[test]
fn the_registry_is_sound() {
    for shader in Shader::ALL {
        let slots: BTreeSet<_> = shader.slots().iter().map(|(s, _)| s.name()).collect();
        assert_eq!(
            slots.len(),
            shader.slots().len(),
            "{shader:?} binds a slot twice"
        );
        assert!(
            shader
                .slots()
                .iter()
                .any(|(_, access)| *access == Access::Write)
        );
        assert!(slots.len() <= 8);
    }
}
