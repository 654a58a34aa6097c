//! Values of a guest's options: each has the words of the command line and the wish that it means.

use crate::request::{
    CellWish, HugePages, L3Wish, Near, PageSize, PinPolicy, Policy, Prefer, Profile,
};
use clap::ValueEnum;
use std::str::FromStr;

/// Whether something is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// Yes
    On,
    /// No
    Off,
}

impl OnOff {
    /// Whether it is.
    pub fn is_on(self) -> bool {
        self == OnOff::On
    }
}

/// A number of guest NUMA cells on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellsArg(pub CellWish);

impl FromStr for CellsArg {
    type Err = String;
    fn from_str(text: &str) -> Result<CellsArg, String> {
        match text {
            "auto" | "per-node" => Ok(CellsArg(CellWish::Auto)),
            _ => match text.parse() {
                Ok(0) => Err("a guest needs at least one NUMA cell".into()),
                Ok(cells) => Ok(CellsArg(CellWish::Count(cells))),
                Err(_) => Err(format!("`{text}` is neither auto nor per-node nor a number")),
            },
        }
    }
}

/// How near a device must be, on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NearArg {
    /// Below the GPU's PCIe switch: peer-to-peer traffic avoids the host bridge
    Switch,
    /// On the GPU's NUMA node: traffic avoids the link between packages
    Node,
    /// Anywhere (default)
    Any,
}

impl From<NearArg> for Near {
    fn from(arg: NearArg) -> Near {
        match arg {
            NearArg::Switch => Near::Switch,
            NearArg::Node => Near::Node,
            NearArg::Any => Near::Any,
        }
    }
}

/// A huge-page size on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum HugePagesArg {
    /// 2 MiB pages
    #[value(name = "2M")]
    TwoMib,
    /// 1 GiB pages
    #[value(name = "1G")]
    OneGib,
}

impl From<HugePagesArg> for PageSize {
    fn from(arg: HugePagesArg) -> PageSize {
        match arg {
            HugePagesArg::TwoMib => PageSize::TwoMib,
            HugePagesArg::OneGib => PageSize::OneGib,
        }
    }
}

/// Which pages back a guest, on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PagesArg {
    /// The largest of which enough are free, for guests with GPUs and 32 GiB or more
    Auto,
    /// Normal pages
    Off,
    /// 2 MiB pages
    #[value(name = "2M")]
    TwoMib,
    /// 1 GiB pages
    #[value(name = "1G")]
    OneGib,
}

impl From<PagesArg> for HugePages {
    fn from(arg: PagesArg) -> HugePages {
        match arg {
            PagesArg::Auto => HugePages::Auto,
            PagesArg::Off => HugePages::Off,
            PagesArg::TwoMib => HugePages::Size(PageSize::TwoMib),
            PagesArg::OneGib => HugePages::Size(PageSize::OneGib),
        }
    }
}

/// A profile on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProfileArg {
    /// Each GPU brings its share of the cores and memory of its node and of near nodes without GPUs
    Share,
    /// Each GPU brings its share of its own node only
    Near,
    /// Sizes and pin order of nvidia-vm
    NvidiaVm,
}

impl From<ProfileArg> for Profile {
    fn from(arg: ProfileArg) -> Profile {
        match arg {
            ProfileArg::Share => Profile::Share,
            ProfileArg::Near => Profile::Near,
            ProfileArg::NvidiaVm => Profile::NvidiaVm,
        }
    }
}

/// A pin policy on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PinsArg {
    /// As core; a guest without passed-through devices floats if no cores are free
    Auto,
    /// Successive vCPUs on the threads of one core; the guest sees that core
    Core,
    /// First threads of all cores first, then second threads, as in nvidia-vm
    Thread,
    /// Unpinned: vCPUs float over all pcpus, including those of other guests
    None,
}

impl From<PinsArg> for PinPolicy {
    fn from(arg: PinsArg) -> PinPolicy {
        match arg {
            PinsArg::Auto => PinPolicy::Auto,
            PinsArg::Core => PinPolicy::Core,
            PinsArg::Thread => PinPolicy::Thread,
            PinsArg::None => PinPolicy::None,
        }
    }
}

/// A policy on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyArg {
    /// Leave as much as possible to later guests
    Pack,
    /// Share nodes with as few guests as possible; leaves less for large guests
    Spread,
}

impl From<PolicyArg> for Policy {
    fn from(arg: PolicyArg) -> Policy {
        match arg {
            PolicyArg::Pack => Policy::Pack,
            PolicyArg::Spread => Policy::Spread,
        }
    }
}

/// What counts first, on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PreferArg {
    /// NICs and drives near the GPUs
    Nic,
    /// GPUs on one package
    Package,
}

impl From<PreferArg> for Prefer {
    fn from(arg: PreferArg) -> Prefer {
        match arg {
            PreferArg::Nic => Prefer::Nic,
            PreferArg::Package => Prefer::Package,
        }
    }
}

/// Which L3 caches, on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum L3Arg {
    /// Any (default)
    Any,
    /// The largest ones only, as of AMD's X3D processors
    Large,
}

impl From<L3Arg> for L3Wish {
    fn from(arg: L3Arg) -> L3Wish {
        match arg {
            L3Arg::Any => L3Wish::Any,
            L3Arg::Large => L3Wish::Large,
        }
    }
}

/// A rule that may be broken, on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AllowArg {
    /// Cores and memory on other nodes than the GPUs: slower CPU-GPU transfers
    Remote,
    /// GPUs that form no NVLink partition: no NVLink between them
    Split,
}

/// Reads a number. One with a sign would be read as a change of what there is.
pub fn number(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if !text.starts_with('+') => Ok(number),
        _ if text.starts_with(['+', '-']) => {
            Err("a number without a sign: it is the new number, not a change".to_owned())
        }
        _ if text == "all" => {
            Err("a number: `gpuvm capacity` shows how many there are and fit".to_owned())
        }
        _ => Err("not a number from 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_no_sign() {
        assert_eq!(number("4"), Ok(4));
        for bad in ["+4", "-4", "", "4.0", "four", "4294967296"] {
            assert!(number(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cells_are_words_or_a_number() {
        assert_eq!("per-node".parse(), Ok(CellsArg(CellWish::Auto)));
        assert_eq!("2".parse(), Ok(CellsArg(CellWish::Count(2))));
        assert!("0".parse::<CellsArg>().is_err() && "two".parse::<CellsArg>().is_err());
    }
}
