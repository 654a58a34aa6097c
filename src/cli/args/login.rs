//! Arguments of the verbs that enter a guest: ssh, cp.

use clap::{Args, ValueHint};
use std::ffi::OsString;

/// Examples of `ssh`.
pub const SSH: &str = "Examples:
  gpuvm ssh train-a
  gpuvm ssh train-a -- nvidia-smi -L
  gpuvm ssh train-a --user ubuntu --option ForwardAgent=yes
  gpuvm ssh train-a --print";
/// Examples of `cp`.
pub const CP: &str = "Examples:
  gpuvm cp train.py train-a:
  gpuvm cp --recursive train-a:results results-a";

/// How a guest is entered.
#[derive(Debug, Clone, Args)]
pub struct LoginArgs {
    /// User in the guest
    ///
    /// Default: the user with ID 1000, which cloud-init creates, if the guest's agent reports it;
    /// else the one ssh would use.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Option for ssh, as `ssh -o` takes it; repeatable
    ///
    /// `--option 'LocalForward 8888 localhost:8888'` forwards a port.
    #[arg(long, value_name = "OPTION")]
    pub option: Vec<String>,
    /// Time limit for an address
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub wait: u64,
    /// Print the command and do not run it
    #[arg(long)]
    pub print: bool,
}

/// Arguments of `ssh`.
#[derive(Debug, Args)]
pub struct SshArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// How.
    #[command(flatten)]
    pub login: LoginArgs,
    /// Command to run in the guest
    #[arg(value_name = "COMMAND", last = true, value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<String>,
}

/// Arguments of `cp`.
#[derive(Debug, Args)]
pub struct CpArgs {
    /// Files to copy, then the destination
    ///
    /// NAME:PATH is in the guest, where PATH is relative to the user's home directory. A local path
    /// with a colon: ./a:b.
    #[arg(value_name = "PATH", num_args = 2.., required = true, value_hint = ValueHint::AnyPath)]
    pub paths: Vec<OsString>,
    /// Copy directories recursively
    #[arg(short, long)]
    pub recursive: bool,
    /// How.
    #[command(flatten)]
    pub login: LoginArgs,
}
