//! Choices of kernels by measurement.

pub mod data;
pub mod file;
pub mod measure;
