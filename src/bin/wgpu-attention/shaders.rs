//! `shaders`: the WGSL that a plan emits, for compilers and static tools.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;
use wgpu_attention::shaders::{Composed, Shader, Specialization, compose, emitted};
use wgpu_attention::{
    AdapterOptions, Attention, DType, DeviceCaps, Dims, Error, Kernel, MAX_SEQUENCE, Options, Plan,
    PlanOptions, Problem, testing,
};

use crate::backend::kernel_names;
use crate::bench::rules::{Rule, SOFTCAP};
use crate::output::{self, Draft};
use crate::report::{Reporter, Stop};

/// Writes the WGSL shaders that the plan for a problem emits.
///
/// The plan is that of this machine's adapter, as `bench` would have it. With
/// --no-adapter none is opened: the plan is made for an unknown device with WebGPU's
/// default limits, and with subgroups if their size is given. Shape and storage types
/// choose the shaders; options (causal, windows, scale, ...) are numbers in a uniform;
/// only those of --rule change the text. Each file is named by shader and
/// specialization, and appears complete or not at all; the table says what it needs.
#[derive(Debug, Args)]
pub struct ShadersArgs {
    /// Folder to write to; made if it is not there.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Batch entries.
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: usize,
    /// Query heads.
    #[arg(long, value_name = "N", default_value_t = 8)]
    heads: usize,
    /// Key and value heads [default: as many as query heads].
    #[arg(long, value_name = "N")]
    kv_heads: Option<usize>,
    /// Queries.
    #[arg(long, value_name = "N", default_value_t = 512)]
    q_len: usize,
    /// Keys [default: as many as queries].
    #[arg(long, value_name = "N")]
    kv_len: Option<usize>,
    /// Width of a query and a key.
    #[arg(long, value_name = "N", default_value_t = 64)]
    head_dim: usize,
    /// Width of a value [default: that of a key].
    #[arg(long, value_name = "N")]
    v_dim: Option<usize>,
    /// Storage type of query, key, value and output.
    #[arg(long, value_enum, default_value_t = Storage::F32)]
    dtype: Storage,
    /// Kernel family [default: the planner's choice].
    #[arg(long, value_parser = kernel_names())]
    kernel: Option<Kernel>,
    /// Plans for a problem with this rule, as `bench` has it; may be given several
    /// times.
    #[arg(long)]
    rule: Vec<Rule>,
    /// Adapter whose name, driver or backend contains this, in any case
    /// [default: the fastest kind].
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Asks the adapter for WebGPU's default limits and no features.
    #[arg(long)]
    default_limits: bool,
    /// Opens no adapter, but plans for an unknown device with WebGPU's default limits.
    #[arg(long, conflicts_with_all = ["adapter", "default_limits"])]
    no_adapter: bool,
    /// Lanes of every subgroup of the unknown device, for kernels that need subgroups;
    /// implies --no-adapter [default: none].
    #[arg(long, value_name = "LANES", conflicts_with_all = ["adapter", "default_limits"])]
    subgroup_size: Option<u32>,
    /// The unknown device has the feature SHADER_INT64; implies --no-adapter.
    #[arg(long, conflicts_with_all = ["adapter", "default_limits"])]
    int64: bool,
    /// Binds every buffer read_write, as for inputs that share a buffer with
    /// the output.
    #[arg(long)]
    shared_buffers: bool,
    /// One JSON document instead of a table.
    #[arg(long)]
    json: bool,
}

/// A storage type.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Storage {
    F32,
    F16,
    Bf16,
}

impl From<Storage> for DType {
    fn from(storage: Storage) -> DType {
        match storage {
            Storage::F32 => DType::F32,
            Storage::F16 => DType::F16,
            Storage::Bf16 => DType::BF16,
        }
    }
}

pub fn shaders(args: &ShadersArgs) -> Result<ExitCode, Stop> {
    let plan = plan(args)?;
    if args.out.exists() && !args.out.is_dir() {
        return Err(failed(&args.out, "is no folder"));
    }
    fs::create_dir_all(&args.out).map_err(|e| failed(&args.out, e))?;
    let mut rows = Vec::new();
    let mut drafts = Vec::new();
    for (shader, key) in emitted(&plan) {
        let composed = compose(shader, key);
        let file = format!("{}.wgsl", key.file_stem(shader));
        let path = args.out.join(&file);
        let target = output::target(std::iter::empty(), &path)?;
        let draft = Draft::new(&target, composed.text.as_bytes());
        drafts.push((draft.map_err(|e| failed(&path, e))?, path));
        rows.push((file, workgroup_memory(&composed)?, bindings(shader, key)));
    }
    // All of them, once there is room for all of them.
    for (draft, path) in drafts {
        draft.keep().map_err(|e| failed(&path, e))?;
    }
    let reporter = Reporter::spinning();
    if args.json {
        let shaders = rows.iter().map(|(file, memory, bindings)| {
            json!({"file": file, "workgroup_memory_bytes": memory, "bindings": bindings})
        });
        let document = json!({
            "plan": plan.to_string(),
            "shaders": shaders.collect::<Vec<_>>(),
        });
        reporter.line(format!("{document:#}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    reporter.line(plan.to_string())?;
    let width = rows.iter().map(|(file, ..)| file.len()).max().unwrap_or(0);
    reporter.line(format!("\n{:<width$}  workgroup memory  bindings", "file"))?;
    for (file, memory, bindings) in rows {
        let bindings = bindings.join(" ");
        reporter.line(format!("{file:<width$}  {memory:>10} bytes  {bindings}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn plan(args: &ShadersArgs) -> Result<Plan, Stop> {
    let kv_heads = args.kv_heads.unwrap_or(args.heads);
    let keys = args.kv_len.unwrap_or(args.q_len);
    let dims = Dims::new(
        [args.batch, args.heads, args.q_len, args.head_dim],
        [args.batch, kv_heads, keys, args.head_dim],
        [
            args.batch,
            kv_heads,
            keys,
            args.v_dim.unwrap_or(args.head_dim),
        ],
    )?;
    let dtype = args.dtype.into();
    let mut problem_options = Options::default();
    if args.rule.contains(&Rule::Softcap) {
        problem_options = problem_options.softcap(SOFTCAP);
    }
    let problem = Problem::contiguous(&dims, dtype, dtype, &problem_options)?;
    // A plan holds them.
    let ids = args.batch.saturating_mul(args.q_len.max(keys));
    if args.rule.contains(&Rule::Segments) && ids > MAX_SEQUENCE {
        return Err(format!("--rule segments: {ids} ids, at most {MAX_SEQUENCE}").into());
    }
    let problem = testing::with_rules(problem, Rule::operands(&args.rule)?);
    let mut options = PlanOptions::default().shared_buffers(args.shared_buffers);
    options.kernel = args.kernel;
    if !args.no_adapter && args.subgroup_size.is_none() && !args.int64 {
        let mut adapter = AdapterOptions::default().default_limits(args.default_limits);
        adapter.name = args.adapter.clone().filter(|name| !name.is_empty());
        let attention = Attention::with_adapter(&adapter).map_err(|error| match error {
            Error::NoAdapter { .. } if args.adapter.is_none() => {
                Stop::Error(format!("{error}\n--no-adapter plans for an unknown device"))
            }
            other => other.into(),
        })?;
        return Ok(Plan::new(&problem, attention.caps(), &options)?);
    }
    let mut caps = DeviceCaps::webgpu_default();
    caps.subgroup_size = args.subgroup_size;
    caps.min_subgroup_size = args.subgroup_size;
    caps.shader_int64 = args.int64;
    Ok(Plan::new(&problem, &caps, &options)?)
}

fn failed(path: &Path, error: impl std::fmt::Display) -> Stop {
    Stop::Error(format!("{}: {error}", path.display()))
}

/// Names of the buffers in the order of their bindings, the uniform first.
fn bindings(shader: Shader, key: Specialization) -> Vec<String> {
    let slots = shader.slots().iter().map(|(slot, access)| {
        let mode = key.mode(*access);
        format!("{}:{mode}", slot.name())
    });
    std::iter::once("params:uniform".to_owned())
        .chain(slots)
        .collect()
}

/// Bytes of workgroup memory as WebGPU counts them: each variable rounded up to 16.
fn workgroup_memory(composed: &Composed) -> Result<u64, Stop> {
    let text = &composed.text;
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    let mut layouter = naga::proc::Layouter::default();
    layouter
        .update(module.to_ctx())
        .map_err(|e| e.to_string())?;
    let variables = module.global_variables.iter();
    Ok(variables
        .filter(|(_, variable)| variable.space == naga::AddressSpace::WorkGroup)
        .map(|(_, variable)| u64::from(layouter[variable.ty].size).next_multiple_of(16))
        .sum())
}
