//! The caller's memory: storage types, strided views, the bytes that they cover, and
//! which of them overlap.

pub mod aliasing;
pub mod dtype;
pub mod extent;
pub mod geometry;
pub mod lists;
pub mod tensor;
