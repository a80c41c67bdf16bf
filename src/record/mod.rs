//! Plans on a device: pipelines, uniforms, bind groups, and their recording into the
//! caller's encoder.

pub mod attention;
pub mod encode;
pub mod faults;
pub mod pipeline_cache;
pub mod warm_up;
