//! The verbs on the program itself: completions and man pages.

use clap::{Args, ValueHint};
use std::path::PathBuf;

/// Is what `completions` takes.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: clap_complete::Shell,
}

/// Is what `man` takes.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Verb whose page is printed: create, host-show; default: gpuvm itself
    #[arg(value_name = "VERB", conflicts_with = "dir")]
    pub verb: Option<String>,
    /// Write every page into this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}
