//! The guest's window for 64-bit BARs, from the real BARs of its devices, and whether its size must
//! be set for UEFI. A placement whose window exceeds the host's address bits is refused.

use super::reason::Reason;
use super::reason::{Topic, TreeReason, WindowTooLarge};
use super::result::Placement;
use crate::bdf::Bdf;
use crate::topology::{Bar, Machine, Topology};

/// Slack beyond the passed-through devices (gpuvm-hardware(7), BARS AND THE MMIO WINDOW).
const SLACK_BYTES: u64 = 64 << 30;
/// Unit of the firmware's window sizes.
const MEBIBYTE: u64 = 1 << 20;
/// An upper bound of the memory that QEMU moves from below 4 GiB to above, plus the rounding of the
/// memory's end.
const LOW_BYTES: u64 = 5 << 30;
/// Where QEMU puts memory above 4 GiB on AMD hosts if the guest reaches this address: the IOMMU
/// reserves addresses just below.
const AMD_HIGH_BYTES: u64 = 1 << 40;
/// OVMF's window if it does not trust the CPU's address bits.
const STATIC_BYTES: u64 = 32 << 30;
/// The most address bits that OVMF uses: more would need five-level page tables.
const MOST_BITS: u8 = 46;
/// The largest window that can be set for OVMF, in MiB.
const MOST_MIB: u64 = 0x0100_0000;
/// The window of QEMU's `virt` on Arm, which cannot be made smaller (hw/arm/virt.c).
const ARM_BYTES: u64 = 512 << 30;
/// The window that a guest's devices need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its size, in bytes.
    pub bytes: u64,
    /// The window that UEFI makes by itself, in bytes; none if the host's address bits are unknown.
    automatic: Option<u64>,
}

impl Window {
    /// Returns the size that must be set for UEFI, in MiB; none if its own window is large enough,
    /// or unknown.
    pub fn explicit_mib(self) -> Option<u64> {
        self.automatic.filter(|own| *own < self.bytes).map(|_| self.bytes / MEBIBYTE)
    }
}

/// Computes the window; none without passed-through devices whose BARs are known. Unknown ones are
/// not counted: a window for the others is better than none.
///
/// Each port's window is as long as the 64-bit BARs behind it, and the next begins at a multiple of
/// its largest BAR (gpuvm-hardware(7), BARS AND THE MMIO WINDOW). The slack is dropped if the
/// host's physical address bits suffice only without it.
pub fn window(
    placement: &Placement,
    topology: &Topology,
) -> Result<Option<Window>, WindowTooLarge> {
    let Some(sum) = cost(&placement.devices, topology) else { return Ok(None) };
    let memory = placement.memory().kib().saturating_mul(1024);
    fit(sum, memory, topology.machine()).map(Some)
}

/// Returns why the BARs of a device fit into no guest of this host, however little memory it has;
/// `None` if they fit, or are unknown.
pub fn fits_no_guest(device: Bdf, topology: &Topology) -> Option<WindowTooLarge> {
    fit(cost(&[device], topology)?, 0, topology.machine()).err()
}

/// Returns the bytes that the ports of a guest's devices need.
fn cost(devices: &[Bdf], topology: &Topology) -> Option<u64> {
    let (mut sum, mut is_known) = (0_u64, false);
    for &bdf in devices {
        let (bars, memory) = (known_bars(topology, bdf), coherent_bar(topology, bdf));
        if bars.is_none() && memory.is_none() {
            continue;
        }
        is_known = true;
        let large = bars.unwrap_or_default().iter();
        let large = large.filter(|bar| bar.index < 6 && bar.is_64bit && !bar.io);
        let sizes = large.map(|bar| bar.bytes).chain(memory).map(|bytes| bytes.max(MEBIBYTE));
        let Some(largest) = sizes.clone().max() else { continue };
        let length = sizes.fold(0, u64::saturating_add);
        let cost = length.checked_next_multiple_of(largest).unwrap_or(u64::MAX);
        sum = sum.saturating_add(cost);
    }
    is_known.then_some(sum)
}

/// The BAR by which the host's driver shows the coherent memory of a GPU, which the function itself
/// does not have.
fn coherent_bar(topology: &Topology, bdf: Bdf) -> Option<u64> {
    let model = topology.coherent_model(topology.device(bdf)?)?;
    Some(model.bar_gib << 30)
}

/// The BARs of a device, if they are known.
fn known_bars(topology: &Topology, bdf: Bdf) -> Option<&[Bar]> {
    let bars = &topology.device(bdf)?.bars;
    (!bars.is_empty()).then_some(bars)
}

/// Returns the window for ports that need `sum` bytes, above `memory` bytes and below the top of
/// the address space.
fn fit(sum: u64, memory: u64, machine: &Machine) -> Result<Window, WindowTooLarge> {
    let bits = machine.address_limit().or(machine.physical_address_bits);
    let limit = bits.map_or(u64::MAX, |bits| 1_u64.checked_shl(bits.into()).unwrap_or(u64::MAX));
    let power = |bytes: u64| bytes.checked_next_power_of_two().unwrap_or(u64::MAX);
    let automatic = bits.map(|bits| automatic(bits, machine.cpu_vendor.as_deref()));
    let low = memory.saturating_add(LOW_BYTES);
    let fits = |bytes: &u64| {
        let is_amd = machine.cpu_vendor.as_deref().is_some_and(is_amd);
        let moved = is_amd && low.saturating_add(*bytes) >= AMD_HIGH_BYTES;
        let end = if moved { memory.saturating_add(AMD_HIGH_BYTES) } else { low };
        // A window of a configured size begins at a multiple of its size.
        let is_named = automatic.is_some_and(|own| own < *bytes);
        let start = if is_named { end.checked_next_multiple_of(*bytes) } else { Some(end) };
        start.is_some_and(|start| start.saturating_add(*bytes) <= limit)
            && (!is_named || *bytes / MEBIBYTE <= MOST_MIB)
    };
    let least = if machine.architecture.as_deref() == Some("aarch64") { ARM_BYTES } else { 0 };
    let windows = [power(sum.saturating_add(SLACK_BYTES)), power(sum)].map(|all| all.max(least));
    let bytes = windows.into_iter().find(fits).ok_or_else(|| {
        let (window_gib, memory_gib) = (windows[1] >> 30, memory >> 30);
        WindowTooLarge { window_gib, memory_gib, bits: bits.unwrap_or(64) }
    })?;
    Ok(Window { bytes, automatic })
}

/// Returns the window that OVMF makes by itself for a guest with the host's address bits: an eighth
/// of the address space if it trusts the number. 40 is QEMU's default, so it is trusted on AMD CPUs
/// only (edk2's OvmfPkg/Library/PlatformInitLib/MemDetect.c, PlatformAddressWidthFromCpuid and
/// PlatformDynamicMmioWindow).
fn automatic(bits: u8, vendor: Option<&str>) -> u64 {
    match (bits, vendor) {
        (41.., _) | (36 | 39, Some("GenuineIntel")) | (40, Some("AuthenticAMD")) => {
            1 << (bits.min(MOST_BITS) - 3)
        }
        _ => STATIC_BYTES,
    }
}

/// Returns the reason for a plan's window; none without devices.
pub fn window_reason(placement: &Placement, topology: &Topology) -> Option<Reason> {
    if placement.devices.is_empty() {
        return None;
    }
    let (because, compromise) = match window(placement, topology) {
        Err(error) => (TreeReason::TooLarge(error), true),
        Ok(None) => (TreeReason::NoBars, false),
        Ok(Some(window)) => {
            let is_unknown = |bdf: &&Bdf| {
                known_bars(topology, **bdf).is_none() && coherent_bar(topology, **bdf).is_none()
            };
            let unknown: Vec<Bdf> = placement.devices.iter().filter(is_unknown).copied().collect();
            let is_short = !unknown.is_empty();
            let why = TreeReason::Window {
                unknown,
                gib: window.bytes >> 30,
                automatic_gib: window.automatic.map(|own| own >> 30),
                is_told: window.explicit_mib().is_some(),
                bits: placement
                    .address_limit
                    .or(topology.machine().physical_address_bits)
                    .unwrap_or_default(),
            };
            (why, is_short)
        }
    };
    Some(Reason { choice: Topic::Window, because: because.into(), compromise })
}

/// Whether a vendor's CPUs hide their threads without `topoext`.
pub fn is_amd(vendor: &str) -> bool {
    matches!(vendor, "AuthenticAMD" | "HygonGenuine")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{Occupancy, plan};
    use crate::request::Request;
    use crate::topology::{Bar, DeviceKind, file};

    /// The CPU vendors that OVMF trusts, each with its own numbers.
    const INTEL: &str = "GenuineIntel";
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
        // The last number is the size that is set for UEFI.
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
            // QEMU moves memory above 1 TiB on AMD hosts if it and the window would reach that.
            (512, 500, Some(41), INTEL, 1024, Some(1024)),
            (512, 500, Some(41), AMD, 512, Some(512)),
        ] {
            let found = fit(gib(sum), gib(memory), &machine(bits, vendor));
            let found = found
                .map(|window| (window.bytes >> 30, window.explicit_mib().map(|mib| mib >> 10)));
            assert_eq!(found, Ok((window_gib, told_gib)), "{sum} {memory} {bits:?} {vendor}");
        }
        for (sum, memory, bits) in [
            (gib(1024), 100, Some(40)),
            (u64::MAX, 100, Some(52)),
            (gib(64), 100, Some(0)),
            // QEMU refuses a window that ends right above the address space.
            (gib(1024), 1022, Some(41)),
            // More than UEFI supports.
            (gib(20 << 10), 100, Some(46)),
        ] {
            let error = fit(sum, gib(memory), &machine(bits, INTEL)).unwrap_err();
            assert!(error.to_string().contains("physical address bits"), "{error}");
        }
    }

    #[test]
    fn a_bar_fits_no_guest_where_no_plan_finds_a_window() {
        let text = include_str!("../../../topologies/dual-socket.json");
        let parts = file::from_json(text).unwrap().parts().clone();
        let gpu: Bdf = "0000:86:00.0".parse().unwrap();
        let with = |bits: u8, gib: u64| {
            let mut parts = parts.clone();
            parts.machine.physical_address_bits = Some(bits);
            let bar = |device: &mut crate::topology::PciDevice| {
                let large = device.bars.iter_mut().find(|bar| bar.is_64bit && bar.index == 1);
                large.unwrap().bytes = gib << 30;
            };
            parts.devices.iter_mut().filter(|device| device.bdf == gpu).for_each(bar);
            let host = Topology::new(parts).unwrap();
            let request =
                Request { gpus: crate::request::GpuWish::Exact(vec![gpu]), ..Request::for_gpus(1) };
            let place = plan(&host, &Occupancy::default(), &request);
            (fits_no_guest(gpu, &host).is_some(), place.is_err())
        };
        assert_eq!(with(46, 64), (false, false));
        assert_eq!(with(40, 1024), (true, true));
        // It would fit beside less memory.
        assert_eq!(with(38, 64), (false, true));
    }

    #[test]
    fn ports_are_counted_by_their_largest_bar() {
        let text = include_str!("../../../topologies/dgx-2.json");
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
        let mut some = parts.clone();
        let first = some.devices.iter_mut().find(|device| device.bdf == place.devices[0]).unwrap();
        let bytes = 64 << 30;
        first.bars = vec![Bar { is_64bit: true, prefetchable: true, ..Bar::new(1, bytes) }];
        assert_eq!(sized(&some), Some(128), "that of the only known ones");
        let said = window_reason(&place, &Topology::new(some).unwrap()).unwrap();
        let said = (said.compromise, said.because.to_string());
        assert!(said.0 && said.1.contains("are unknown and not counted"), "{said:?}");
        let bar = |index, bytes, is_64bit| Bar {
            is_64bit,
            prefetchable: is_64bit,
            ..Bar::new(index, bytes)
        };
        for device in &mut parts.devices {
            device.bars = match device.kind() {
                DeviceKind::Gpu => {
                    vec![bar(0, 16 << 20, false), bar(1, 32 << 30, true), bar(3, 32 << 20, true)]
                }
                _ => vec![bar(0, 32 << 20, true), bar(7, 1 << 40, true)],
            };
        }
        // 16 ports of 64 GiB each (gpuvm-hardware(7), BARS AND THE MMIO WINDOW: 1 TiB for 16 V100),
        // NVSwitches, slack.
        assert_eq!(sized(&parts), Some(2048));
    }
}
