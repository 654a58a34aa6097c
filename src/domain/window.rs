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
    let limit = bits.map_or(u64::MAX, |bits| 1_u64.checked_shl(bits.into()).unwrap_or(u64::MAX));
    let power = |bytes: u64| bytes.checked_next_power_of_two().unwrap_or(u64::MAX);
    let fits = |window: &u64| window.saturating_add(memory) <= limit;
    let windows = [power(sum.saturating_add(SLACK_BYTES)), power(sum)];
    match windows.into_iter().find(fits) {
        Some(window) => Ok(Some(window >> 10)),
        None => Err(DomainXmlError::Value {
            path: "domain/devices/controller/pcihole64".into(),
            message: format!(
                "a window of {} GiB for BARs and {} of memory do not fit into the host's {} physical address bits",
                windows[1] >> 30,
                placement.memory(),
                bits.unwrap_or(64),
            ),
        }),
    }
}
