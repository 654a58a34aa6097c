//! The guest's window for 64-bit BARs, from the real BARs of the devices that it gets.

use super::DomainXmlError;
use crate::placement::Placement;
use crate::topology::Topology;

/// Room beyond the passed-through devices (spec/nvswitch.md 6.2).
const SLACK_BYTES: u64 = 64 << 30;
/// Firmware gives windows by this.
const MEBIBYTE: u64 = 1 << 20;

/// The size of the window in KiB; none without passed-through devices or where the BARs of one are not known.
///
/// Each port's window is as long as the 64-bit BARs behind it, and the next begins at a multiple of its largest BAR
/// (spec/nvswitch.md 6.2). The slack is left out where only so the host's physical address bits suffice.
pub(super) fn pci_hole(
    placement: &Placement,
    topology: &Topology,
) -> Result<Option<u64>, DomainXmlError> {
    if placement.devices.is_empty() {
        return Ok(None);
    }
    let mut sum = 0_u64;
    for &bdf in &placement.devices {
        let bars = topology.device(bdf).map(|device| device.bars.as_slice()).unwrap_or_default();
        if bars.is_empty() {
            return Ok(None);
        }
        let large = bars.iter().filter(|bar| bar.index < 6 && bar.is_64bit && !bar.io);
        let sizes = large.map(|bar| bar.bytes.max(MEBIBYTE));
        let Some(largest) = sizes.clone().max() else { continue };
        let length = sizes.fold(0, u64::saturating_add);
        let cost = length.checked_next_multiple_of(largest).unwrap_or(u64::MAX);
        sum = sum.saturating_add(cost);
    }
    let memory = placement.memory().kib().saturating_mul(1024);
    let bits = topology.machine().physical_address_bits;
    window(sum, memory, bits).map(|bytes| Some(bytes >> 10))
}

/// The window for ports that cost `sum` bytes, beside so many bytes of memory below the top of the address space.
fn window(sum: u64, memory: u64, bits: Option<u8>) -> Result<u64, DomainXmlError> {
    let limit = bits.map_or(u64::MAX, |bits| 1_u64.checked_shl(bits.into()).unwrap_or(u64::MAX));
    let power = |bytes: u64| bytes.checked_next_power_of_two().unwrap_or(u64::MAX);
    let fits = |window: &u64| window.saturating_add(memory) <= limit;
    let windows = [power(sum.saturating_add(SLACK_BYTES)), power(sum)];
    windows.into_iter().find(fits).ok_or_else(|| DomainXmlError::Value {
        path: "domain/devices/controller/pcihole64".into(),
        message: format!(
            "a window of {} GiB for BARs and {} GiB of memory do not fit into {} physical address bits",
            windows[1] >> 30,
            memory >> 30,
            bits.unwrap_or(64),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{Occupancy, plan};
    use crate::request::Request;
    use crate::topology::{Bar, DeviceKind, file};

    #[test]
    fn the_window_is_cut_to_the_hosts_address_bits_or_refused() {
        let gib = |n: u64| n << 30;
        for (sum, memory, bits, window_gib) in [
            (64, 100, Some(46), 128),
            (1024, 1400, None, 2048),
            (1024, 1400, Some(42), 2048),
            (1024, 500, Some(41), 1024),
            (1, 1, Some(64), 128),
        ] {
            assert_eq!(window(gib(sum), gib(memory), bits), Ok(gib(window_gib)), "{sum} {bits:?}");
        }
        for (sum, bits) in [(gib(1024), Some(40)), (u64::MAX, Some(52)), (gib(64), Some(0))] {
            let error = window(sum, gib(100), bits).unwrap_err().to_string();
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
        let window = |parts: &crate::topology::Parts| {
            pci_hole(&place, &Topology::new(parts.clone()).unwrap()).unwrap().map(|kib| kib >> 20)
        };
        for device in &mut parts.devices {
            device.bars.clear();
        }
        assert_eq!(window(&parts), None, "unknown BARs give no window");
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
        assert_eq!(window(&parts), Some(2048));
    }
}
