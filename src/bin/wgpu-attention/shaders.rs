//! `shaders`: the WGSL that a plan emits, for compilers and static tools.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::json;
use wgpu_attention::shaders::{Composed, Shader, Specialization, compose, emitted};
use wgpu_attention::{
    AdapterOptions, Attention, DeviceCaps, Dims, Error, Kernel, MAX_SEQUENCE, Plan, PlanOptions,
    Problem, testing,
};

use crate::backend::kernel_names;
use crate::bench::Shape;
use crate::bench::case::{Case, NAMES, Storage};
use crate::bench::rules::{Rule, SOFTCAP};
use crate::output::{self, Draft};
use crate::report::{Reporter, Stop};

/// Writes the WGSL shaders that the plan for a problem emits.
///
/// The plan is that of this machine's adapter, as `bench` would have it. With
/// --no-adapter none is opened: the plan is made for an unknown device with WebGPU's
/// default limits, and with subgroups if their size is given. --case, the flags of shape and
/// --rule are those of `bench`; what --causal, --window and the lengths say are numbers in a
/// uniform, which change no text. Each file is named by shader and
/// specialization, and appears complete or not at all; the table says what it needs.
#[derive(Debug, Args)]
pub struct ShadersArgs {
    /// Folder to write to; made if it is not there.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A named case of `bench`.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(NAMES), conflicts_with = "shape")]
    case: Option<String>,
    #[command(flatten)]
    shape: Shape,
    /// Kernel family [default: the planner's choice].
    #[arg(long, value_parser = kernel_names())]
    kernel: Option<Kernel>,
    /// Plans for a problem with this rule, as `bench` has it; may be given several
    /// times.
    #[arg(long, conflicts_with = "projection")]
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

/// What `bench` measures with the same flags.
fn problem(args: &ShadersArgs) -> Result<Problem, Stop> {
    let case = match &args.case {
        Some(name) => Case::named(name).ok_or("no such case")?,
        None => args.shape.of_any_size()?,
    };
    let types = [case.dtype, case.kv_dtype].map(Storage::dtype);
    if case.projection {
        if !args.rule.is_empty() {
            let name = &case.name;
            return Err(format!("--rule: {name} is a projection and has no pairs").into());
        }
        let sizes = [case.batch, case.q_len, case.head_dim, case.kv_len];
        return Ok(testing::projection(sizes, types)?);
    }
    // A plan holds them.
    let ids = case.batch.saturating_mul(case.q_len.max(case.kv_len));
    if args.rule.contains(&Rule::Segments) && ids > MAX_SEQUENCE {
        return Err(format!("--rule segments: {ids} ids, at most {MAX_SEQUENCE}").into());
    }
    let dims = Dims::new(case.query_shape(), case.key_shape(), case.value_shape())?;
    let mut options = case.options()?;
    if args.rule.contains(&Rule::Softcap) {
        options = options.softcap(SOFTCAP);
    }
    let [dtype, of_keys] = types;
    let problem = Problem::contiguous(&dims, dtype, dtype, &options)?;
    let problem = testing::with_kv_dtype(problem, of_keys)?;
    Ok(testing::with_rules(problem, Rule::operands(&args.rule)?))
}

fn plan(args: &ShadersArgs) -> Result<Plan, Stop> {
    let problem = problem(args)?;
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
