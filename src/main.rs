//! The `gpuvm` command: parse, run, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(gpuvm::cli::main(std::env::args_os()))
}
