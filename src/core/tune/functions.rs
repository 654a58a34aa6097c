//! The NICs, virtual functions and NVMe drives of a guest that gets others: those that it has, and
//! the records of those that it gets.

use super::items::OtherFunctions;
use crate::bdf::Bdf;
use crate::domain::live::Plugged;
use crate::domain::{DomainXml, Element};
use crate::request::{DeviceWish, Extras, VfSettings};

/// The settings that a virtual function has: its MAC address and VLAN in the definition, and its
/// permissions by the record.
pub(super) fn settings_now(xml: &DomainXml, bdf: Bdf) -> VfSettings {
    let attr = |of: Element<'_>, path: &str, name: &str| {
        Some(of.find(path)?.attr(name)?.to_ascii_lowercase())
    };
    let nic = Plugged::Function(bdf).find(xml);
    let mac = nic.and_then(|nic| attr(nic, "mac", "address"));
    let vlan = nic.and_then(|nic| attr(nic, "vlan/tag", "id")?.parse().ok());
    let record = xml.record().ok().flatten();
    let guard = record.map(|record| record.request.extras.settings_of(bdf).guard);
    VfSettings { mac, vlan, guard: guard.unwrap_or_default() }
}

/// The record of a guest that gets other functions; `had`, `vfs`: the virtual functions that it
/// has before, and then. Settings of a number of them are recorded for the number if all have the
/// same.
pub(super) fn recorded(was: &Extras, wanted: &OtherFunctions, had: &[Bdf], vfs: &[Bdf]) -> Extras {
    let (nics, nvmes) = (wanted.nics.clone(), wanted.nvmes.clone());
    let mut extras = Extras {
        nics: nics.unwrap_or_else(|| was.nics.clone()),
        nvmes: nvmes.unwrap_or_else(|| was.nvmes.clone()),
        nic_near: wanted.nic_near.unwrap_or(was.nic_near),
        nvme_near: wanted.nvme_near.unwrap_or(was.nvme_near),
        ..was.clone()
    };
    let Some(wish) = wanted.vfs.clone() else { return extras };
    let named: Vec<Bdf> = match &wish {
        DeviceWish::Exact(named) => named.clone(),
        DeviceWish::Count(_) => vfs.to_vec(),
    };
    let one = |vf: &Bdf| {
        let own = if had.contains(vf) { was.settings_of(*vf) } else { VfSettings::default() };
        own.over(&wanted.settings_of(*vf))
    };
    let settings: Vec<VfSettings> = named.iter().map(one).collect();
    let is_plain = settings.iter().all(|one| *one == VfSettings::default());
    let are_same = settings.windows(2).all(|pair| pair[0] == pair[1]);
    let first = settings.first().cloned().filter(|_| !is_plain);
    (extras.vfs, extras.vf_settings) = match wish {
        DeviceWish::Count(_) if are_same => (wish, first.into_iter().collect()),
        _ if named.is_empty() => (DeviceWish::default(), Vec::new()),
        _ => (DeviceWish::Exact(named), if is_plain { Vec::new() } else { settings }),
    };
    extras
}
