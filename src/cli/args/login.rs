//! Arguments of the verbs that enter a guest: ssh, cp.

use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::net::IpAddr;

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

/// Examples of `exec`.
pub const EXEC: &str = "Examples:
  gpuvm exec train-a -- nvidia-smi -L
  gpuvm exec train-a -- sh -c 'journalctl -b | tail -50'
  gpuvm exec train-a --stdin -- tee /etc/motd <motd";
/// Examples of `shell`.
pub const SHELL: &str = "Examples:
  gpuvm shell train-a
  gpuvm shell train-a --connect qemu+ssh://root@dgx/system";

/// Arguments of `exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Pass standard input on, at most 1 MiB
    #[arg(long)]
    pub stdin: bool,
    /// Time limit; the command then goes on in the guest
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// Command to run in the guest
    #[arg(value_name = "COMMAND", last = true, required = true)]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<String>,
}

/// Arguments of `shell`.
#[derive(Debug, Args)]
pub struct ShellArgs {
    /// Domain name
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// How a guest is entered.
#[derive(Debug, Clone, Args)]
pub struct LoginArgs {
    /// User in the guest
    ///
    /// Default: the one of `create --user`, as the domain's record has it. Reports of the guest are
    /// not used.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Address of the guest, not verified by gpuvm
    ///
    /// Without it, gpuvm connects only where this host's neighbour table (ARP, NDP) has the guest's
    /// MAC address on the guest's own bridge. A report of the guest's agent is not enough. Needed
    /// for guests that this host cannot see, such as on macvtap or with a virtual function. ssh
    /// then asks about an unknown host key.
    #[arg(long, value_name = "IP")]
    pub address: Option<IpAddr>,
    /// Option for ssh, as `ssh -o` takes it; repeatable
    ///
    /// `--option 'LocalForward 8888 localhost:8888'` forwards a port.
    #[arg(long, value_name = "OPTION")]
    pub option: Vec<String>,
    /// Time limit for address and ssh server
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
