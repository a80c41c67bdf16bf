//! The command line program: see `wgpu-attention --help`.
#![forbid(unsafe_code)]

mod array;
mod backend;
mod bench;
mod call;
mod case;
mod check;
mod demo;
mod info;
mod input;
mod inspect;
mod json;
mod judge;
mod layer;
mod memory;
mod metadata;
mod multi_head;
mod numpy;
mod onnx;
mod options;
mod output;
mod report;
mod run;
mod shaders;
mod signals;
mod suites;
mod system;
mod tune;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use report::Stop;

/// Attention as WGSL compute kernels: runs it, checks it, shows it.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 a case or a comparison failed, 2 usage, unreadable input or no adapter.";

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
    Check(check::CheckArgs),
    Run(run::RunArgs),
    Layer(layer::LayerArgs),
    Inspect(inspect::InspectArgs),
    Bench(bench::BenchArgs),
    Tune(tune::TuneArgs),
    Info(info::InfoArgs),
    Shaders(shaders::ShadersArgs),
}

fn main() -> ExitCode {
    if let Err(error) = signals::handle() {
        report::tell(format!("warning: signals are not handled: {error}"));
    }
    let result = match Cli::parse().command {
        Command::Demo(args) => demo::demo(&args),
        Command::Check(args) => check::check(&args),
        Command::Run(args) => run::run(&args),
        Command::Layer(args) => layer::layer(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Tune(args) => tune::tune(&args),
        Command::Info(args) => info::info(&args),
        Command::Shaders(args) => shaders::shaders(&args),
    };
    match result {
        Ok(code) => code,
        Err(Stop::Error(message)) => {
            report::tell(format!("error: {message}"));
            ExitCode::from(2)
        }
        // What a shell reports for a program ended by SIGPIPE.
        Err(Stop::BrokenPipe) => ExitCode::from(141),
    }
}
