//! The verbs on the program itself: completions and man pages.

use clap::{Args, ValueHint};
use std::path::PathBuf;

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Command or topic, such as host-show or guide
    ///
    /// Default: gpuvm itself, whose page lists all commands and topics.
    #[arg(value_name = "VERB", conflicts_with = "dir")]
    pub verb: Option<String>,
    /// Write all to DIR, which is made if it is missing
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

/// Arguments of `schema`.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// Name of a document: its `format`, or that of a list
    ///
    /// Default: the names of all.
    #[arg(value_name = "NAME", conflicts_with = "dir")]
    pub name: Option<String>,
    /// Write all to DIR, which is made if it is missing
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}
