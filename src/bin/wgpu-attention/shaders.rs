//! `shaders`: the WGSL that a plan emits, for compilers and static tools.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::{Args, ValueEnum};
use serde_json::json;
use wgpu_attention::shaders::{Composed, Shader, Specialization, compose, emitted};
use wgpu_attention::{
    AdapterOptions, Attention, DType, DeviceCaps, Dims, Kernel, MAX_SEQUENCE, Options, Plan,
    PlanOptions, Problem, testing,
};

use crate::backend::kernel_names;
use crate::bench::rules::{Rule, SOFTCAP};
use crate::report::{Reporter, Stop};

/// Writes the WGSL shaders that the plan for a problem emits.
///
/// Without --adapter none is opened: the plan is made for WebGPU's default limits,
/// or with subgroups if their size is given. Shape and storage types choose the
/// shaders; options (causal, windows, scale, ...) are numbers in a uniform; only those of
/// --rule change the text. Each file is named by
/// shader and specialization; the table says what it needs.
#[derive(Debug, Args)]
pub struct ShadersArgs {
    /// Folder to write to; made if it is not there.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Batch entries.
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Query heads.
    #[arg(long, default_value_t = 8)]
    heads: usize,
    /// Key and value heads [default: as many as query heads].
    #[arg(long)]
    kv_heads: Option<usize>,
    /// Queries.
    #[arg(long, alias = "q-len", default_value_t = 512)]
    queries: usize,
    /// Keys [default: as many as queries].
    #[arg(long, alias = "kv-len")]
    keys: Option<usize>,
    /// Elements of a query or key.
    #[arg(long, default_value_t = 64)]
    head_dim: usize,
    /// Elements of a value [default: as many as of a key].
    #[arg(long)]
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
    /// Plans for the adapter whose name, driver or backend contains this, in any
    /// case, as `bench` would; an empty NAME for the one that `bench` takes.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["subgroup_size", "int64"])]
    adapter: Option<String>,
    /// Lanes of every subgroup, for kernels that need subgroups [default: none].
    #[arg(long, value_name = "LANES")]
    subgroup_size: Option<u32>,
    /// The device has the feature SHADER_INT64.
    #[arg(long)]
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
    fs::create_dir_all(&args.out).map_err(|e| failed(&args.out, &e))?;
    let mut rows = Vec::new();
    for (shader, key) in emitted(&plan) {
        let composed = compose(shader, key);
        let file = format!("{}.wgsl", key.file_stem(shader));
        let path = args.out.join(&file);
        fs::write(&path, &composed.text).map_err(|e| failed(&path, &e))?;
        rows.push((file, workgroup_memory(&composed)?, bindings(shader, key)));
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
    let keys = args.keys.unwrap_or(args.queries);
    let dims = Dims::new(
        [args.batch, args.heads, args.queries, args.head_dim],
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
    let ids = args.batch.saturating_mul(args.queries.max(keys));
    if args.rule.contains(&Rule::Segments) && ids > MAX_SEQUENCE {
        return Err(format!("--rule segments: {ids} ids, at most {MAX_SEQUENCE}").into());
    }
    let problem = testing::with_rules(problem, Rule::operands(&args.rule)?);
    let mut options = PlanOptions::default().shared_buffers(args.shared_buffers);
    options.kernel = args.kernel;
    if let Some(name) = &args.adapter {
        let mut adapter = AdapterOptions::default();
        adapter.name = Some(name.clone()).filter(|name| !name.is_empty());
        let attention = Attention::with_adapter(&adapter)?;
        return Ok(Plan::new(&problem, attention.caps(), &options)?);
    }
    let mut caps = DeviceCaps::webgpu_default();
    caps.subgroup_size = args.subgroup_size;
    caps.min_subgroup_size = args.subgroup_size;
    caps.shader_int64 = args.int64;
    Ok(Plan::new(&problem, &caps, &options)?)
}

fn failed(path: &Path, error: &io::Error) -> Stop {
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
