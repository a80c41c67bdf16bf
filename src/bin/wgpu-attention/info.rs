//! `info`: the adapters of this machine and what matters of them here.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use wgpu_attention::{Attention, DeviceClass, Error, wgpu};

use crate::backend::{Backend, BackendArgs, kernels};
use crate::report::{Reporter, Stop, one_line};
use crate::system;

/// Lists the adapters, the limits and features that matter here, and which
/// kernels would be used.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// One JSON document.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    backend: BackendArgs,
}

pub fn info(args: &InfoArgs) -> Result<ExitCode, Stop> {
    let reporter = Reporter::spinning();
    reporter.doing("asking for adapters");
    let adapters = Attention::adapters();
    let adapters: Vec<Value> = adapters.iter().map(describe).collect();
    let chosen = args.backend.open();
    let (class, rows) = match &chosen {
        Ok(Backend::Gpu(attention, _)) => {
            let class = attention.caps().class;
            (Some(class), class.candidates())
        }
        _ => (None, [].as_slice()),
    };
    let kernels = match &chosen {
        Ok(backend) => kernels(backend),
        Err(_) => Vec::new(),
    };
    let code = match &chosen {
        Ok(_) => ExitCode::SUCCESS,
        // That a machine has no adapter is what was asked for.
        Err(Error::NoAdapter { .. }) if args.backend.adapter.is_none() => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(2),
    };
    if args.json {
        let document = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "adapters": adapters,
            "chosen": chosen.as_ref().ok().map(|b| b.describe()),
            "class": class.map(DeviceClass::name),
            "candidates": rows.iter().map(|row| json!({
                "kernel": row.kernel.name(),
                "evidence": row.evidence.to_string(),
                "source": row.source,
            })).collect::<Vec<_>>(),
            "error": chosen.as_ref().err().map(one_line),
            "kernels": kernels.iter().map(|(what, kernel)| json!({"for": what, "kernel": kernel})).collect::<Vec<_>>(),
        });
        reporter.line(format!("{document:#}"))?;
        return Ok(code);
    }
    reporter.line(concat!("wgpu-attention ", env!("CARGO_PKG_VERSION")))?;
    for adapter in &adapters {
        reporter.line(format!("\nadapter {}", plain(&adapter["name"])))?;
        for (name, value) in adapter.as_object().into_iter().flatten() {
            if name != "name" {
                reporter.line(format!("  {name}: {}", plain(value)))?;
            }
        }
    }
    match &chosen {
        Ok(backend) => {
            let when = match backend {
                Backend::Gpu(..) => "unless told otherwise",
                Backend::Cpu => "with --backend cpu",
                Backend::Oracle => "with --backend oracle",
            };
            reporter.line(format!("\nused {when}: {}", backend.describe()))?;
        }
        Err(error) => {
            reporter.line(format!("\n{error}"))?;
            if adapters.is_empty() {
                reporter.line(system::how_to_get_an_adapter())?;
            }
        }
    }
    if let Some(class) = class {
        reporter.line(format!(
            "  {class}, its kernels, best first (times: 2 heads, N 512, D 64, one thread):"
        ))?;
    }
    for row in rows {
        reporter.line(format!("    {row}"))?;
    }
    for (what, kernel) in &kernels {
        reporter.line(format!("  {what}: {kernel}"))?;
    }
    Ok(code)
}

/// Limits by their names in WebGPU, in bytes where they are sizes.
fn describe(adapter: &wgpu::Adapter) -> Value {
    let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
    let has = |feature| features.contains(feature);
    json!({
        "name": info.name,
        "backend": info.backend.to_string(),
        "type": format!("{:?}", info.device_type),
        "driver": format!("{} {}", info.driver, info.driver_info).trim(),
        "class": DeviceClass::of(&info).name(),
        "max_buffer_size": limits.max_buffer_size,
        "max_storage_buffer_binding_size": limits.max_storage_buffer_binding_size,
        "max_storage_buffers_per_shader_stage": limits.max_storage_buffers_per_shader_stage,
        "min_storage_buffer_offset_alignment": limits.min_storage_buffer_offset_alignment,
        "max_compute_workgroup_storage_size": limits.max_compute_workgroup_storage_size,
        "max_compute_invocations_per_workgroup": limits.max_compute_invocations_per_workgroup,
        "max_compute_workgroups_per_dimension": limits.max_compute_workgroups_per_dimension,
        "subgroup_size": match has(wgpu::Features::SUBGROUP) {
            true => format!("{} to {}", info.subgroup_min_size, info.subgroup_max_size),
            false => "no subgroups".to_owned(),
        },
        "shader_f16": has(wgpu::Features::SHADER_F16),
        "shader_int64": has(wgpu::Features::SHADER_INT64),
        "timestamp_query": has(wgpu::Features::TIMESTAMP_QUERY),
        "cooperative_matrix": has(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX),
    })
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        other => other.to_string(),
    }
}
