//! Whether the IOMMU isolates passed-through functions from memory outside their guest: its groups,
//! and kernel settings that make groups claim more than the hardware isolates, or bypass them.

use super::{Bar, DeviceKind, OpenPort, PciDevice, Topology};
use crate::bdf::Bdf;
use crate::p2p;
use crate::words::count;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// BARs of a function, without expansion ROM and windows.
const BARS: usize = 6;

/// The kernel argument that splits groups; a kernel without the ACS override patch ignores it.
pub const ACS_OVERRIDE: &str = "pcie_acs_override";

/// Kernel settings that weaken IOMMU isolation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Isolation {
    /// Value of `pcie_acs_override=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acs_override: Option<String>,
    /// Whether VFIO passes functions through without interrupt remapping.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsafe_interrupts: bool,
    /// Whether VFIO passes functions through without an IOMMU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_iommu: bool,
}

/// The kernel's support of iommufd, the alternative to VFIO's groups for passthrough.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Iommufd {
    /// Whether /dev/iommu is there.
    pub node: bool,
    /// Whether it passes functions through without interrupt remapping; `None` if its module is not
    /// loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsafe_interrupts: Option<bool>,
    /// Whether the kernel has VFIO groups (CONFIG_VFIO_GROUP); `None` while VFIO is not loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<bool>,
}

/// The state of the IOMMU as the kernel shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Iommu {
    /// Number of its groups, without those that VFIO makes for functions without an IOMMU; 0: it is
    /// off.
    pub groups: u64,
    /// Groups with memory that the firmware keeps for itself (`direct` in `reserved_regions`).
    /// `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware_groups: Option<Vec<u32>>,
}

/// Why no guest can get a function, whoever asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barred {
    /// The IOMMU is off: the host has no group.
    IommuOff,
    /// The firmware keeps memory of this group for itself (RMRR): the kernel attaches it to no
    /// guest.
    FirmwareMemory(u32),
    /// The kernel found no addresses for these BARs, a bit each, and enables no such function.
    NoAddress(u8),
}

impl Barred {
    /// Returns the remedy.
    pub fn hint(self) -> &'static str {
        match self {
            Barred::IommuOff => "`gpuvm host doctor` says why it is off and how to turn it on",
            Barred::FirmwareMemory(_) => {
                "turn the device's shared memory off in the firmware (HPE: RBSU, \"shared memory \
                 features\"), or use another slot"
            }
            Barred::NoAddress(_) => {
                "turn on \"Above 4G Decoding\" in the firmware's setup; for a card on Thunderbolt, \
                 boot with it plugged in or with `pci=realloc,hpmmioprefsize=16G`"
            }
        }
    }
}

/// Writes the reason, to follow the names of functions.
impl fmt::Display for Barred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Barred::IommuOff => f.write_str(
                "cannot be passed through: the IOMMU is off, so the host has no IOMMU group",
            ),
            Barred::FirmwareMemory(group) => write!(
                f,
                "cannot be passed through: the firmware keeps memory of IOMMU group {group} for \
                 itself (RMRR)"
            ),
            Barred::NoAddress(bars) => {
                let bars: Vec<String> =
                    (0..8).filter(|bar| bars >> bar & 1 == 1).map(|bar| bar.to_string()).collect();
                let (noun, verb) = if bars.len() == 1 { ("BAR", "has") } else { ("BARs", "have") };
                let bars = bars.join(" and ");
                write!(f, "cannot be passed through: {noun} {bars} {verb} no address")
            }
        }
    }
}

/// A way in which functions are not isolated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Weakness {
    /// Groups are split by `pcie_acs_override=` with this value.
    AcsOverride(String),
    /// Ports do not redirect peer-to-peer requests that the groups claim they redirect.
    OpenPorts(Vec<OpenPort>),
    /// VFIO is allowed without interrupt remapping.
    UnsafeInterrupts,
    /// These functions have no IOMMU group.
    NoIommu(Vec<Bdf>),
}

impl Weakness {
    /// Describes it in a sentence without full stop.
    pub fn says(&self) -> String {
        match self {
            Weakness::AcsOverride(value) => format!(
                "not isolated: `{ACS_OVERRIDE}={value}` splits IOMMU groups that the hardware does \
                 not isolate, so devices of one guest may reach those of another guest or of the \
                 host past the IOMMU"
            ),
            Weakness::OpenPorts(ports) => open_ports(ports),
            Weakness::UnsafeInterrupts => {
                "not isolated: `allow_unsafe_interrupts` of vfio_iommu_type1 is on, so a guest may \
                 raise any interrupt of the host"
                    .to_owned()
            }
            Weakness::NoIommu(functions) => {
                let names: Vec<String> = functions.iter().map(ToString::to_string).collect();
                format!(
                    "not isolated: no IOMMU group for {}; without an IOMMU a device reads and \
                     writes all memory of the host and of other guests",
                    names.join(", ")
                )
            }
        }
    }

    /// Returns the remedy.
    pub fn hint(&self) -> Cow<'static, str> {
        let words = match self {
            Weakness::OpenPorts(ports) => return turn_on(ports).into(),
            Weakness::AcsOverride(_) => {
                "remove pcie_acs_override= from the kernel's arguments, reboot, and look at the \
                 groups again: `gpuvm device list`"
            }
            Weakness::UnsafeInterrupts => {
                "turn interrupt remapping on in the firmware, and remove the option: `grep -r \
                 allow_unsafe_interrupts /etc/modprobe.d /proc/cmdline`"
            }
            Weakness::NoIommu(_) => {
                "turn the IOMMU on in the firmware and, with x86 processors, by `intel_iommu=on` or \
                 `amd_iommu=on`, then reboot"
            }
        };
        words.into()
    }
}

/// The most ports that a sentence names.
const MOST_PORTS: usize = 4;

/// Describes the missing protection of open ports.
fn open_ports(ports: &[OpenPort]) -> String {
    let open = ports.iter().fold(0, |all, port| all | port.open);
    let named: Vec<String> =
        ports.iter().take(MOST_PORTS).map(|port| port.at.to_string()).collect();
    let more = match ports.len().saturating_sub(MOST_PORTS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let noun = if ports.iter().all(|port| port.is_port) { "port" } else { "function" };
    let (noun, does) = match ports.len() {
        1 => (noun.to_owned(), "does"),
        _ => (format!("{noun}s"), "do"),
    };
    let what = match open & p2p::bits::REDIRECTING {
        0 => "validate the source of requests",
        _ => "redirect",
    };
    format!(
        "not isolated: {noun} {}{more} {does} not {what} (ACS {} {}), so devices of one guest may \
         reach those of another guest or of the host past the IOMMU",
        named.join(", "),
        p2p::names(open),
        if open.count_ones() == 1 { "is off" } else { "are off" },
    )
}

/// Says how the bits of open ports are turned on.
fn turn_on(ports: &[OpenPort]) -> String {
    let who = "`gpuvm host doctor` names files that clear them";
    if ports.len() > MOST_PORTS {
        let ports = count(ports.len(), "port");
        return format!(
            "`gpuvm host doctor --fix` prints the commands that turn the bits of these {ports} on; \
             {who}"
        );
    }
    let commands: Vec<String> = ports.iter().map(|port| format!("`{}`", port.command())).collect();
    format!("{} until the next boot; {who}", commands.join(", "))
}

/// Whether the IOMMU isolates functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Isolated {
    /// Each has a group, and nothing weakens groups.
    Yes,
    /// No, for these reasons; at least one.
    No(Vec<Weakness>),
    /// Unknown in the host's record.
    Unknown,
}

impl Topology {
    /// Whether the kernel is known to have no VFIO groups.
    pub fn lacks_vfio_groups(&self) -> bool {
        self.machine().iommufd.is_some_and(|iommufd| iommufd.groups == Some(false))
    }

    /// Returns why no guest can get a function; `None` if one can, or the record does not contain
    /// it.
    pub fn barred(&self, device: &PciDevice) -> Option<Barred> {
        self.barred_by_iommu(device).or_else(|| {
            let bars = self.unassigned_bars(device);
            (bars != 0).then_some(Barred::NoAddress(bars))
        })
    }

    fn barred_by_iommu(&self, device: &PciDevice) -> Option<Barred> {
        let iommu = self.machine().iommu.as_ref()?;
        if iommu.groups == 0 && self.groups.is_empty() {
            return Some(Barred::IommuOff);
        }
        let group = device.iommu_group?;
        let is_kept = iommu.firmware_groups.as_ref().is_some_and(|kept| kept.contains(&group));
        is_kept.then_some(Barred::FirmwareMemory(group))
    }

    /// The memory BARs of a GPU without an address, a bit each. Records older than
    /// [`Bar::unassigned`](super::Bar) have this among the facts for `host doctor`.
    fn unassigned_bars(&self, device: &PciDevice) -> u8 {
        if device.kind() != DeviceKind::Gpu {
            return 0;
        }
        let is_unassigned = |bar: &&Bar| bar.unassigned && !bar.io && usize::from(bar.index) < BARS;
        let own = device.bars.iter().filter(is_unassigned).map(|bar| bar.index);
        let facts = self.parts().facts.as_ref().and_then(|facts| facts.function(device.bdf));
        let memory = facts.and_then(|facts| facts.memory.as_ref()).into_iter().flatten();
        let old = memory.filter(|(bar, range)| range.is_none() && usize::from(**bar) < BARS);
        own.chain(old.map(|(bar, _)| *bar)).fold(0, |bars, bar| bars | 1 << bar)
    }

    /// Returns the value of `pcie_acs_override=` that the kernel was started with; `None` if it was
    /// not.
    pub fn acs_override(&self) -> Option<String> {
        let machine = self.machine();
        let said = machine.isolation.as_ref().and_then(|settings| settings.acs_override.clone());
        // Records older than these facts still have the kernel arguments.
        let given = || machine.kernel_arguments.iter().rev().find_map(|word| acs_override(word));
        said.or_else(given)
    }

    /// Whether the IOMMU isolates these functions.
    pub fn isolates(&self, functions: &[Bdf]) -> Isolated {
        let machine = self.machine();
        let mut weak = Vec::new();
        weak.extend(self.acs_override().map(Weakness::AcsOverride));
        weak.extend(
            Some(self.open_ports(functions))
                .filter(|open| !open.is_empty())
                .map(Weakness::OpenPorts),
        );
        let Some(settings) = &machine.isolation else {
            return if weak.is_empty() { Isolated::Unknown } else { Isolated::No(weak) };
        };
        if settings.unsafe_interrupts {
            weak.push(Weakness::UnsafeInterrupts);
        }
        let without = functions.iter().copied().filter(|&bdf| self.iommu_group(bdf).is_none());
        let without: Vec<Bdf> = without.collect();
        if !without.is_empty() {
            weak.push(Weakness::NoIommu(without));
        }
        if weak.is_empty() { Isolated::Yes } else { Isolated::No(weak) }
    }
}

/// The value of `pcie_acs_override=`, if a kernel argument is this one; the kernel treats `-` like
/// `_`.
pub fn acs_override(argument: &str) -> Option<String> {
    let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
    (name.replace('-', "_") == ACS_OVERRIDE).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::file::from_json;

    /// A recorded host with a change.
    fn host(change: impl FnOnce(&mut crate::topology::Parts)) -> Topology {
        let text = include_str!("../../../topologies/dual-socket.json");
        let mut parts = from_json(text).unwrap().parts().clone();
        change(&mut parts);
        Topology::new(parts).unwrap()
    }

    #[test]
    fn of_several_overrides_the_last_one_counts_everywhere() {
        let host = host(|parts| {
            parts.machine.isolation = None;
            let words = ["pcie_acs_override=downstream", "pcie-acs-override=multifunction"];
            parts.machine.kernel_arguments.extend(words.map(str::to_owned));
        });
        let last = "multifunction".to_owned();
        assert_eq!(host.acs_override(), Some(last.clone()));
        assert_eq!(host.isolates(&[]), Isolated::No(vec![Weakness::AcsOverride(last)]));
    }

    #[test]
    fn a_function_is_barred_only_if_the_record_has_its_iommu() {
        let gpu: Bdf = "0000:86:00.0".parse().unwrap();
        let why = |iommu: Option<Iommu>, has_groups: bool| {
            let host = host(|parts| {
                parts.machine.iommu = iommu;
                if !has_groups {
                    parts.devices.iter_mut().for_each(|device| device.iommu_group = None);
                }
            });
            host.barred(host.device(gpu).unwrap())
        };
        let iommu =
            |groups, kept: &[u32]| Some(Iommu { groups, firmware_groups: Some(kept.to_vec()) });
        assert_eq!(why(None, true), None);
        assert_eq!(why(None, false), None);
        assert_eq!(why(iommu(0, &[]), false), Some(Barred::IommuOff));
        // Its groups are those of the functions, whatever was counted.
        assert_eq!(why(iommu(0, &[]), true), None);
        assert_eq!(why(iommu(27, &[18]), true), None);
        assert_eq!(why(iommu(27, &[19]), true), Some(Barred::FirmwareMemory(19)));
    }

    #[test]
    fn a_gpu_whose_memory_has_no_address_is_barred_by_any_part_of_the_record() {
        let gpu: Bdf = "0000:86:00.0".parse().unwrap();
        let nic = host(|_| ()).of_kind(DeviceKind::Nic).next().unwrap().bdf;
        let why = |change: &dyn Fn(&mut crate::topology::Parts), bdf| {
            let host = host(|parts| change(parts));
            host.barred(host.device(bdf).unwrap())
        };
        let bars = |parts: &mut crate::topology::Parts, bdf: Bdf, bars: &[Bar]| {
            let device = parts.devices.iter_mut().find(|device| device.bdf == bdf).unwrap();
            device.bars = bars.to_vec();
        };
        let unassigned = |index| Bar { unassigned: true, ..Bar::new(index, 1 << 28) };
        let ports = Bar { io: true, ..unassigned(5) };
        let two = [Bar::new(0, 1 << 24), unassigned(1), unassigned(3)];
        let found = why(&|parts| bars(parts, gpu, &two), gpu);
        assert_eq!(found, Some(Barred::NoAddress(0b1010)));
        let said = found.unwrap().to_string();
        assert_eq!(said, "cannot be passed through: BARs 1 and 3 have no address");
        // Ports, an expansion ROM and resources of other devices do not matter.
        assert_eq!(why(&|parts| bars(parts, gpu, &[ports.clone(), unassigned(6)]), gpu), None);
        assert_eq!(why(&|parts| bars(parts, nic, &two), nic), None);
        let old = |parts: &mut crate::topology::Parts| {
            let memory = Some([(0, None)].into());
            let facts = parts.facts.get_or_insert_default();
            facts.functions = vec![crate::topology::facts::FunctionFacts {
                bdf: gpu,
                power_state: None,
                d3cold_allowed: None,
                can_reset: None,
                memory,
                resizable: None,
            }];
        };
        assert_eq!(why(&old, gpu), Some(Barred::NoAddress(1)));
    }
}
