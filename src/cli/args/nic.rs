//! The verbs on network cards and their virtual functions.

use super::{LockArgs, TakenArgs, about_records};
use crate::apply::nic::boot::AtBoot;
use crate::bdf::Bdf;
use clap::{Args, Subcommand};
use std::str::FromStr;

/// Examples of `list`.
const LIST: &str = "Examples:
  gpuvm nic list
  gpuvm nic list --json
  gpuvm nic list --host topologies/dgx-2.json";
/// Examples of `vfs`.
const VFS: &str = "Examples:
  gpuvm nic vfs enp134s0f0 --count 16 --dry-run
  gpuvm nic vfs 86:00.0 --count 16 --at-boot
  gpuvm nic vfs 86:00.0 --count 0 --at-boot --yes";

/// Is a verb on network cards.
#[derive(Debug, Subcommand)]
pub enum NicVerb {
    /// List network cards with their drivers, links, GPUs below the same switch, and virtual functions with their holders
    ///
    /// A card is shown by its physical function (PF). UP is whether its network device is up and has a link.
    #[command(after_help = LIST)]
    #[command(group = about_records())]
    List(NicListArgs),
    /// Set how many virtual functions (VFs) a network card has
    ///
    /// The kernel takes a new number only where there are none, so all VFs go first: refused while a guest that runs has
    /// one, or the host uses one, also where that came while the verb asked or waited. A number that is there already is left alone. The card's network device is taken up,
    /// since without it no VF has a link. Drivers of the host are kept off the new VFs
    /// (sriov_drivers_autoprobe): each would become one more network device of the host, which its network service
    /// configures and from which it has to be taken for every start of a guest (kernel 5.3 and later; before, no driver at all
    /// could be had then). With --count 0 the kernel's own setting
    /// comes back.
    #[command(after_help = VFS)]
    Vfs(VfsArgs),
}

/// Is what `nic list` takes.
#[derive(Debug, Args)]
pub struct NicListArgs {
    /// What is taken.
    #[command(flatten)]
    pub taken: TakenArgs,
}

/// Is what `nic vfs` takes.
#[derive(Debug, Args)]
pub struct VfsArgs {
    /// PCI address of the card, or the name of its network device
    #[arg(value_name = "PF", required_unless_present = "early")]
    pub pf: Option<PfName>,
    /// How many VFs it is to have
    #[arg(long, value_name = "N", required_unless_present = "early")]
    pub count: Option<u32>,
    /// Make as many at every boot, too, by a systemd unit; with --count 0: not any more
    #[arg(long)]
    pub at_boot: bool,
    /// Let the host's drivers take the new VFs, for use on the host
    #[arg(long)]
    pub host_drivers: bool,
    /// Do not ask before VFs that are there are taken away
    #[arg(short, long)]
    pub yes: bool,
    /// Print the steps and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Address, ids and number, as the unit of --at-boot gives them: sets without asking, without libvirt and without
    /// journal
    #[arg(long, hide = true, value_name = "BDF=ID=N", conflicts_with_all = ["pf", "count", "at_boot", "host_drivers", "dry_run"])]
    pub early: Vec<EarlyVfs>,
    /// The lock.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// Is a network card on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PfName {
    /// By its PCI address.
    At(Bdf),
    /// By its network device.
    Netdev(String),
}

impl FromStr for PfName {
    type Err = String;
    fn from_str(text: &str) -> Result<PfName, String> {
        if let Ok(bdf) = text.parse() {
            return Ok(PfName::At(bdf));
        }
        let good = |c: char| !c.is_whitespace() && !matches!(c, '/' | ':') && !c.is_control();
        match (1..=15).contains(&text.len()) && text.chars().all(good) {
            true => Ok(PfName::Netdev(text.to_owned())),
            false => Err("it is neither a PCI address nor a network device's name".into()),
        }
    }
}

/// Is a card that gets its virtual functions at boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlyVfs {
    /// Its address.
    pub pf: Bdf,
    /// What it gets.
    pub at_boot: AtBoot,
}

impl FromStr for EarlyVfs {
    type Err = String;
    fn from_str(text: &str) -> Result<EarlyVfs, String> {
        let (pf, at_boot) = AtBoot::parse(text).ok_or("it is not BDF=ID=N")?;
        Ok(EarlyVfs { pf, at_boot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_an_address_or_a_name() {
        assert_eq!("86:00.0".parse(), Ok(PfName::At("0000:86:00.0".parse().unwrap())));
        assert_eq!("enp134s0f0".parse(), Ok(PfName::Netdev("enp134s0f0".into())));
        for bad in ["", "86:00", "a/b", "eth0 ", "an-interface-name"] {
            assert!(bad.parse::<PfName>().is_err(), "{bad}");
        }
    }
}
