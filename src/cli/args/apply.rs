//! Arguments of the verbs on files of guests: apply, get.

use super::heading::BEHAVIOUR;
use super::life::LockArgs;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;

/// Examples of `apply`.
pub const APPLY: &str = "Examples:
  gpuvm get --all -o yaml >guests.yaml
  gpuvm apply -f guests.yaml --dry-run
  gpuvm apply -f guests.yaml
  gpuvm apply -f guests.yaml --prune";
/// Examples of `get`.
pub const GET: &str = "Examples:
  gpuvm get train-a
  gpuvm get --all -o toml >guests.toml";

/// Arguments of `apply`.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// File of guests (YAML, JSON or TOML); `-` reads stdin
    ///
    /// Begins with `format: gpuvm-guests` and `version: 1`; each entry of `guests` has a `name`,
    /// the long options of `gpuvm create` as fields, and `autostart`, `start` and `restart`. Paths
    /// are relative to the working directory. `gpuvm schema gpuvm-guests` prints the JSON Schema.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Delete guests that are no longer in the file
    ///
    /// Only guests created from an earlier file with the same `set`, as recorded by UUID on this
    /// machine. Asks first, or takes --yes.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub prune: bool,
    /// Restart running guests whose size changes
    ///
    /// As if every guest had `restart: allowed`. Without it such changes are not made, and are
    /// reported as pending.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub restart: bool,
    /// Allow overwriting drives that contain data
    #[arg(long, help_heading = BEHAVIOUR, hide_short_help = true)]
    pub accept_data_loss: bool,
    /// Do not ask for confirmation
    #[arg(short, long, help_heading = BEHAVIOUR)]
    pub yes: bool,
    /// Print the steps and change nothing
    ///
    /// A line for each guest that says what differs; the guests are placed, but not checked
    /// further.
    #[arg(long, help_heading = BEHAVIOUR)]
    pub dry_run: bool,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// How guests are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum GuestsFormat {
    /// YAML
    #[default]
    Yaml,
    /// TOML
    Toml,
    /// JSON
    Json,
}

/// Arguments of `get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// Domain name
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    pub name: Option<String>,
    /// All guests that gpuvm made
    #[arg(long)]
    pub all: bool,
    /// Print yaml, toml or json [default: yaml]
    #[arg(short = 'o', long = "output-format", value_name = "FORMAT", value_enum)]
    #[arg(default_value_t, hide_default_value = true, hide_possible_values = true)]
    pub output: GuestsFormat,
}
