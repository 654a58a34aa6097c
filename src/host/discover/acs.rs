//! ACS, ATS and device control of functions, from their config space. The meaning of each bit is
//! decided in [`gpuvm_core::p2p`].

use crate::fsroot::Dir;
use gpuvm_core::p2p::{Acs, Registers};
use gpuvm_core::topology::{DeviceKind, PciDevice};

/// Reads the registers of a function of a kind that peer-to-peer traffic passes. Unknown if its
/// config space cannot be read: beyond the first 64 bytes only root can.
pub fn read(dir: &Dir<'_>, device: &mut PciDevice) {
    let is_port = device.kind() == DeviceKind::Bridge;
    let kinds = [DeviceKind::Gpu, DeviceKind::Nic, DeviceKind::Nvme, DeviceKind::NvSwitch];
    if !is_port && !kinds.contains(&device.kind()) || device.is_silent() {
        return;
    }
    let Some(config) = dir.words("config") else { return };
    // A read would wake it up.
    let power = dir.read_if_any("power_state").ok().flatten();
    if power.is_some_and(|state| state == "D3cold") {
        return;
    }
    // Each double word is a config cycle on the hardware: no more than needed.
    let found = Registers::read((device.vendor, device.device), |at| config.at(at));
    let Registers { acs, ats, devctl } = found;
    device.acs = acs.filter(|acs| is_port || *acs != Acs { cap: 0, ctl: 0 });
    device.ats = ats.filter(|_| !is_port);
    device.devctl = devctl;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fsroot::FsRoot;
    use gpuvm_core::p2p::Ats;

    /// A function of this class with this config space.
    fn function(class: &str, config: Option<&[u8]>, power: Option<&str>) -> PciDevice {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sys/bus/pci/devices/0000:01:08.0");
        std::fs::create_dir_all(&path).unwrap();
        if let Some(config) = config {
            std::fs::write(path.join("config"), config).unwrap();
        }
        if let Some(power) = power {
            std::fs::write(path.join("power_state"), power).unwrap();
        }
        let root = FsRoot::at(dir.path()).unwrap();
        let text = format!(
            r#"{{"bdf":"0000:01:08.0","class":"{class}","vendor":"0x10b5","device":"0x9797"}}"#
        );
        let mut device: PciDevice = serde_json::from_str(&text).unwrap();
        read(&root.dir("sys/bus/pci/devices/0000:01:08.0").unwrap().unwrap(), &mut device);
        device
    }

    #[test]
    fn registers_of_ports_and_functions_are_read_from_their_config_space() {
        let (port, nic, audio) = ("0x060400", "0x020000", "0x040300");
        let mut config = vec![0; 4096];
        config[..4].copy_from_slice(&[0xb5, 0x10, 0x97, 0x97]);
        config[0x100..0x108].copy_from_slice(&[0x0d, 0, 1, 0x12, 0x5f, 0, 0x1d, 0]);
        config[0x120..0x128].copy_from_slice(&[0x0f, 0, 1, 0, 0x20, 0, 0, 0x80]);
        let acs = Some(Acs { cap: 0x5f, ctl: 0x1d });
        let found = function(port, Some(&config), Some("D0\n"));
        assert_eq!((found.acs, found.ats), (acs, None));
        let found = function(nic, Some(&config), None);
        assert_eq!((found.acs, found.ats), (acs, Some(Ats { present: true, enabled: true })));
        // A function without ACS has none; a port without has none of its bits.
        config[0x100..0x108].copy_from_slice(&[0; 8]);
        let found = function(port, Some(&config), None);
        assert_eq!(found.acs, Some(Acs { cap: 0, ctl: 0 }));
        assert_eq!(function(nic, Some(&config), None).acs, None);
        // Unknown: functions that are asleep, unreadable to the user, or missing.
        for (config, power) in
            [(Some(&config[..]), Some("D3cold\n")), (Some(&config[..64]), None), (None, None)]
        {
            let found = function(port, config, power);
            assert_eq!((found.acs, found.ats, found.devctl), (None, None, None));
        }
        assert_eq!(function(audio, Some(&config), None).acs, None);
    }
}
