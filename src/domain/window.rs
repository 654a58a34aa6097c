//! The guest's window for 64-bit BARs, from the real BARs of the devices that it gets, and whether UEFI has to be told.
//!
//! QEMU's `pcihole64` is what ACPI tells the guest; OVMF does not read it and makes a window of its own. Since
//! edk2-stable202211 (tianocore/edk2 pull request 3381) that is an eighth of the address space; how old a firmware is
//! cannot be asked of its file, and the template of a host whose firmware is older can carry the argument itself.

use super::element::Element;
use super::fragment::Fragment;
use super::overrides::{NAMESPACE, of_qemu};
use super::{DomainXml, DomainXmlError};
use crate::placement::{Placement, Reason};
use crate::topology::{Machine, Topology};

/// Room beyond the passed-through devices (spec/nvswitch.md 6.2).
const SLACK_BYTES: u64 = 64 << 30;
/// Firmware gives windows by this.
const MEBIBYTE: u64 = 1 << 20;
/// What QEMU keeps free below 4 GiB, and so moves memory up by at most, and what it rounds the memory's end to.
const LOW_BYTES: u64 = 5 << 30;
/// Where QEMU puts the memory above 4 GiB of guests on AMD's hosts that reach it: their IOMMU needs the addresses below.
const AMD_HIGH_BYTES: u64 = 1 << 40;
/// OVMF's window where it does not trust the CPU's address bits.
const STATIC_BYTES: u64 = 32 << 30;
/// Address bits that OVMF uses at most: more would need page tables of five levels.
const MOST_BITS: u8 = 46;
/// The largest window that OVMF can be told, in MiB.
const MOST_MIB: u64 = 0x0100_0000;
/// The name that OVMF reads the size of its window from, in MiB. libvirt reserves such names in its own element.
const FILE: &str = "name=opt/ovmf/X-PciMmio64Mb,";
/// QEMU's option for it.
const OPTION: &str = "-fw_cfg";

/// Is the window that a guest's devices need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// Its size.
    pub bytes: u64,
    /// What UEFI makes by itself; none where the host's address bits are not known.
    automatic: Option<u64>,
}

impl Window {
    /// What UEFI has to be told, in MiB; none where its own window is large enough, or is not known.
    pub fn told_mib(self) -> Option<u64> {
        self.automatic.filter(|own| *own < self.bytes).map(|_| self.bytes / MEBIBYTE)
    }
}

/// The window; none without passed-through devices or where the BARs of one are not known.
///
/// Each port's window is as long as the 64-bit BARs behind it, and the next begins at a multiple of its largest BAR
/// (spec/nvswitch.md 6.2). The slack is left out where only so the host's physical address bits suffice.
pub(super) fn window(
    placement: &Placement,
    topology: &Topology,
) -> Result<Option<Window>, DomainXmlError> {
    let Some(sum) = cost(placement, topology) else { return Ok(None) };
    let memory = placement.memory().kib().saturating_mul(1024);
    fit(sum, memory, topology.machine()).map(Some)
}

/// The bytes that the ports of a guest's devices cost.
fn cost(placement: &Placement, topology: &Topology) -> Option<u64> {
    let mut sum = 0_u64;
    for &bdf in &placement.devices {
        let bars = &topology.device(bdf).filter(|device| !device.bars.is_empty())?.bars;
        let large = bars.iter().filter(|bar| bar.index < 6 && bar.is_64bit && !bar.io);
        let sizes = large.map(|bar| bar.bytes.max(MEBIBYTE));
        let Some(largest) = sizes.clone().max() else { continue };
        let length = sizes.fold(0, u64::saturating_add);
        let cost = length.checked_next_multiple_of(largest).unwrap_or(u64::MAX);
        sum = sum.saturating_add(cost);
    }
    (!placement.devices.is_empty()).then_some(sum)
}

/// The window for ports that cost `sum` bytes, beside so many bytes of memory below the top of the address space.
fn fit(sum: u64, memory: u64, machine: &Machine) -> Result<Window, DomainXmlError> {
    let bits = machine.physical_address_bits;
    let limit = bits.map_or(u64::MAX, |bits| 1_u64.checked_shl(bits.into()).unwrap_or(u64::MAX));
    let power = |bytes: u64| bytes.checked_next_power_of_two().unwrap_or(u64::MAX);
    let automatic = bits.map(|bits| automatic(bits, machine.cpu_vendor.as_deref()));
    let low = memory.saturating_add(LOW_BYTES);
    let fits = |bytes: &u64| {
        let is_amd = machine.cpu_vendor.as_deref().is_some_and(super::edits::is_amd);
        let moved = is_amd && low.saturating_add(*bytes) >= AMD_HIGH_BYTES;
        let end = if moved { memory.saturating_add(AMD_HIGH_BYTES) } else { low };
        // One that is told begins at a multiple of its size.
        let told = automatic.is_some_and(|own| own < *bytes);
        let start = if told { end.checked_next_multiple_of(*bytes) } else { Some(end) };
        start.is_some_and(|start| start.saturating_add(*bytes) <= limit)
            && (!told || *bytes / MEBIBYTE <= MOST_MIB)
    };
    let windows = [power(sum.saturating_add(SLACK_BYTES)), power(sum)];
    let bytes = windows.into_iter().find(fits).ok_or_else(|| DomainXmlError::Value {
        path: "domain/devices/controller/pcihole64".into(),
        message: format!(
            "a window of {} GiB for BARs and {} GiB of memory do not fit into {} physical address bits",
            windows[1] >> 30,
            memory >> 30,
            bits.unwrap_or(64),
        ),
    })?;
    Ok(Window { bytes, automatic })
}

/// The window that OVMF makes by itself for a guest with the host's address bits: an eighth of the address space, where
/// it believes in the number. 40 is QEMU's default, so it is believed of AMD's CPUs only
/// (edk2's OvmfPkg/Library/PlatformInitLib/MemDetect.c, PlatformAddressWidthFromCpuid and PlatformDynamicMmioWindow).
fn automatic(bits: u8, vendor: Option<&str>) -> u64 {
    match (bits, vendor) {
        (41.., _) | (36 | 39, Some("GenuineIntel")) | (40, Some("AuthenticAMD")) => {
            1 << (bits.min(MOST_BITS) - 3)
        }
        _ => STATIC_BYTES,
    }
}

/// Why the window of a plan is as it is; none without devices.
pub fn window_reason(placement: &Placement, topology: &Topology) -> Option<Reason> {
    if placement.devices.is_empty() {
        return None;
    }
    let say = |because, compromise| Some(Reason { choice: "window".into(), because, compromise });
    let window = match window(placement, topology) {
        Err(error) => return say(error.to_string(), true),
        Ok(None) => return say("not set: the record does not know the BARs".into(), false),
        Ok(Some(window)) => window,
    };
    let size = format!("{} GiB for 64-bit BARs", window.bytes >> 30);
    let bits = topology.machine().physical_address_bits.unwrap_or_default();
    let because = match window.automatic {
        None => format!("{size}; UEFI makes its own: the record does not know the address bits"),
        Some(own) if window.told_mib().is_some() => format!(
            "{size}; UEFI is told, since by itself it makes {} GiB with {bits} address bits",
            own >> 30
        ),
        Some(own) => format!(
            "{size}; UEFI makes {} GiB by itself with {bits} address bits (edk2-stable202211 and later)",
            own >> 30
        ),
    };
    say(because, false)
}

impl DomainXml {
    /// Whether the guest starts with UEFI.
    pub(super) fn is_uefi(&self) -> bool {
        let os = self.root().child("os");
        let named = os.and_then(|os| os.attr("firmware")).is_some_and(|firmware| firmware == "efi");
        let loader = os.and_then(|os| os.child("loader")?.attr("type"));
        named || loader.is_some_and(|kind| kind == "pflash")
    }

    /// Whether UEFI is told a window of at least this many MiB; one whose size stands elsewhere is the admin's to know.
    pub(super) fn tells_window(&self, mib: u64) -> bool {
        let lines = of_qemu(self.root()).filter(|line| line.name().ends_with(":commandline"));
        let mut told = lines.flat_map(of_qemu).filter_map(|argument| {
            let text = argument.attr("value")?;
            let rest = text.strip_prefix(FILE)?;
            Some(rest.strip_prefix("string=").map_or(Some(u64::MAX), |size| size.parse().ok()))
        });
        told.next().is_some_and(|told| told.is_some_and(|told| told >= mib))
    }
}

/// What a domain shall be like so that UEFI makes a window of so many MiB.
pub(super) fn fragment(domain: Fragment, mib: u64) -> Fragment {
    let argument = |part: &'static str, value: String| {
        Fragment::new("qemu:arg").key(part_of_ours, part).attr("value", value)
    };
    let line = Fragment::new("qemu:commandline")
        .child(argument("option", OPTION.to_owned()))
        .child(argument("file", format!("{FILE}string={mib}")));
    domain.attr("xmlns:qemu", NAMESPACE).child(line)
}

/// Which of our two arguments one of QEMU's is: the option before the file, or the file behind the option.
fn part_of_ours(argument: Element<'_>) -> Option<String> {
    let all: Vec<Element<'_>> = argument.parent()?.children("qemu:arg").collect();
    let ours = all.windows(2).find(|pair| {
        let value = |at: usize| pair[at].attr("value").unwrap_or_default();
        value(0) == OPTION && value(1).starts_with(FILE)
    })?;
    let is = |at: usize| ours[at].node == argument.node;
    [(0, "option"), (1, "file")].into_iter().find(|(at, _)| is(*at)).map(|(_, part)| part.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{Occupancy, plan};
    use crate::request::Request;
    use crate::topology::{Bar, DeviceKind, file};

    /// The CPUs that OVMF believes, each its own numbers.
    const INTEL: &str = "GenuineIntel";
    /// The other ones.
    const AMD: &str = "AuthenticAMD";

    /// A machine with these address bits.
    fn machine(bits: Option<u8>, vendor: &str) -> Machine {
        Machine {
            physical_address_bits: bits,
            cpu_vendor: Some(vendor.into()),
            ..Machine::default()
        }
    }

    #[test]
    fn the_window_is_cut_to_the_hosts_address_bits_or_refused() {
        let gib = |n: u64| n << 30;
        // The last number is what UEFI is told.
        for (sum, memory, bits, vendor, window_gib, told_gib) in [
            (64, 100, Some(46), INTEL, 128, None),
            (1024, 1400, None, INTEL, 2048, None),
            (1024, 1400, Some(42), INTEL, 2048, Some(2048)),
            (1024, 500, Some(41), INTEL, 1024, Some(1024)),
            (1, 1, Some(64), INTEL, 128, None),
            (64, 100, Some(39), INTEL, 128, Some(128)),
            (64, 100, Some(40), INTEL, 128, Some(128)),
            (64, 100, Some(40), AMD, 128, None),
            (8 << 10, 1024, Some(46), INTEL, 16 << 10, Some(16 << 10)),
            (4 << 10, 1024, Some(52), AMD, 8 << 10, None),
            // QEMU moves memory above 1 TiB on AMD's hosts where it and the window would reach that.
            (512, 500, Some(41), INTEL, 1024, Some(1024)),
            (512, 500, Some(41), AMD, 512, Some(512)),
        ] {
            let found = fit(gib(sum), gib(memory), &machine(bits, vendor));
            let found =
                found.map(|window| (window.bytes >> 30, window.told_mib().map(|mib| mib >> 10)));
            assert_eq!(found, Ok((window_gib, told_gib)), "{sum} {memory} {bits:?} {vendor}");
        }
        for (sum, memory, bits) in [
            (gib(1024), 100, Some(40)),
            (u64::MAX, 100, Some(52)),
            (gib(64), 100, Some(0)),
            // QEMU refuses a window that ends right above the address space.
            (gib(1024), 1022, Some(41)),
            // More than UEFI takes.
            (gib(20 << 10), 100, Some(46)),
        ] {
            let error = fit(sum, gib(memory), &machine(bits, INTEL)).unwrap_err().to_string();
            assert!(error.contains("physical address bits"), "{error}");
        }
    }

    #[test]
    fn ports_are_counted_by_their_largest_bar() {
        let text = include_str!("../../topologies/dgx-2.json");
        let mut parts = file::from_json(text).unwrap().parts().clone();
        let place = plan(
            &Topology::new(parts.clone()).unwrap(),
            &Occupancy::default(),
            &Request::for_gpus(16),
        )
        .unwrap();
        let sized = |parts: &crate::topology::Parts| {
            let window = window(&place, &Topology::new(parts.clone()).unwrap()).unwrap();
            window.map(|window| window.bytes >> 30)
        };
        for device in &mut parts.devices {
            device.bars.clear();
        }
        assert_eq!(sized(&parts), None, "unknown BARs give no window");
        let bar = |index, bytes, is_64bit| Bar {
            index,
            bytes,
            io: false,
            is_64bit,
            prefetchable: is_64bit,
        };
        for device in &mut parts.devices {
            device.bars = match device.kind() {
                DeviceKind::Gpu => {
                    vec![bar(0, 16 << 20, false), bar(1, 32 << 30, true), bar(3, 32 << 20, true)]
                }
                _ => vec![bar(0, 32 << 20, true), bar(7, 1 << 40, true)],
            };
        }
        // 16 ports of 64 GiB each (spec/nvswitch.md 6.2: 1 TiB for 16 V100), NVSwitches, slack.
        assert_eq!(sized(&parts), Some(2048));
    }
    #[test]
    fn the_argument_is_written_once_and_a_larger_one_stays() {
        let write = |text: &str, mib| {
            let mut xml = DomainXml::parse(text).unwrap();
            xml.apply(&super::super::DomainEdit::SetFirmwareWindow { mib }).unwrap();
            xml
        };
        let mut xml = write("<domain>\n  <name>a</name>\n</domain>\n", 4096);
        let told = "    <qemu:arg value='-fw_cfg'/>\n    <qemu:arg value='name=opt/ovmf/X-PciMmio64Mb,string=4096'/>\n";
        assert!(xml.text().contains(told), "{}", xml.text());
        assert!(xml.tells_window(4096) && !xml.tells_window(4097));
        xml = write(xml.text(), 8192);
        assert_eq!(xml.text().matches("fw_cfg").count(), 1, "{}", xml.text());
        assert!(xml.tells_window(8192), "{}", xml.text());
        let again = write(xml.text(), 8192);
        assert_eq!(again.text(), xml.text());
        // What an admin told QEMU besides stays where it is.
        let other = xml.text().replace(
            "value='-fw_cfg'/>",
            "value='-fw_cfg'/><qemu:arg value='name=opt/x,file=y'/><qemu:arg value='-fw_cfg'/>",
        );
        assert_eq!(write(&other, 9000).text(), other.replace("8192", "9000"));
        let file = xml.text().replace("string=8192", "file=/x");
        assert!(DomainXml::parse(&file).unwrap().tells_window(u64::MAX));
    }
}
