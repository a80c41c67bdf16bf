//! WGSL as data: which files a shader is made of, what is fixed when it is composed, its
//! uniform, its pipeline. Knows no problem.

pub mod compose;
pub mod file_lists;
pub mod module;
pub mod pipeline;
pub mod pipeline_cache;
pub mod pipelines;
pub mod rows;
pub mod scope;
pub mod shader;
pub mod specialization;
pub mod uniform;
