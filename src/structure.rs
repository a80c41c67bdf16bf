//! How the crate is built, for those who change it.
//!
//! # Storeys
//!
//! A module knows those below it and no other, and no two know each other;
//! `tests/storeys.rs` reads the imports.
//!
//! ```text
//! tune        choices of kernels by measurement
//! slices      a device, uploads, readback, timing: for people who have numbers
//! ops         the operations, a file or folder each
//! record      plans on a device: pipelines, uniforms, bind groups, the encoder
//! plan        from validated numbers to dispatches; needs no device
//! kernel      WGSL as data; knows no problem        cpu, reference, interpret
//! host        the operands of a call in host memory
//! rules       what attention means: sizes, options, visible pairs, selections
//! view        the caller's memory: storage types, strides, bytes, overlaps, lists
//! error, memory
//! ```
//!
//! Three things carry what differs:
//!
//! - an **operation** (`plan::operation::Operation`, one in each file of `ops`) checks the
//!   operands that are its own, says in numbers what planning has to know of it (`Facts`),
//!   and gives the dispatches of a part of its problem;
//! - a **shader** is a row (`kernel::rows`): files, bindings, workgroup, what its text
//!   depends on, and the hash of the texts that its proof was read beside. The list of
//!   pipelines, their file names and what they share follow from it;
//! - a **family** of kernels ([`Kernel`](crate::Kernel)) computes the same forward pass in
//!   its own way.
//!
//! # How a call travels
//!
//! A forward pass, from [`Attention::plan`](crate::Attention::plan) to the caller's encoder:
//!
//! ```text
//! ops::forward    Problem::forward(operands, options)
//! plan::call        validates: shapes (rules::dims), lists (plan::lists), spans and
//!                   overlaps (view::aliasing), the operation's own operands
//! plan::problem     keeps the numbers (plan::task) beside the operation
//! plan::plan      Plan::new(problem, caps, options)
//! ops::forward      chooses a family: plan::choose, by class and loops
//! plan::split       cuts the task into chunks that fit bindings and grids
//! plan::passes      gathers lists; for each chunk a Part: slabs, uniform
//! ops::forward      the family's dispatches of each Part
//! plan::requirements  every reason why the device cannot run it
//! record::attention  Attention::prepare(plan)
//! plan::plan        asks this device what was asked of the one it was planned for
//! kernel::pipeline  makes the pipelines: kernel::compose prints the texts
//! record::encode  Prepared::record(encoder, operands, workspace)
//! plan::call        validates the operands of this call, which have to be the plan's
//! record::encode    bind groups, then the dispatches into the encoder
//! ```
//!
//! An inspection, from [`UploadedInspection::rows`](crate::UploadedInspection::rows):
//!
//! ```text
//! slices::inspection  buffers of the inputs; the forward pass above for the log-sum-exp;
//!                     norms of the values (ops::norms) where they are asked for
//! ops::inspect::rows  Problem::summarize(operands, options, rows)
//! plan::call          as above; statistics are read, not written
//! plan::plan          Plan::new: parts of bounded memory, each of three dispatches:
//! ops::inspect::rows    scores of the rows into the workspace, a summary of each row,
//!                       and what each key receives
//! record              prepare and record, as above
//! slices::readback    the summaries' numbers
//! host::row_summary   RowSummary::decode
//! ```
//!
//! A layer, from [`Attention::multi_head`](crate::Attention::multi_head):
//!
//! ```text
//! host::layer         MultiHeadInputs: sizes checked by rules::layer_dims
//! slices::layer       buffers of tokens and weights
//! ops::layer::plan    MultiHeadPlan::new(operands, ..)
//! ops::layer::steps     the layout of the workspace; queries, keys, values and heads as
//!                       strided views of it; the operands of each step
//! ops::project, ops::forward, plan::plan   a plan a step
//! ops::layer::prepared  prepare: one Prepared a step
//! ops::layer::prepared  record: all bind groups first, then each step's dispatches into
//!                       one pass
//! slices::readback    Y
//! ```
