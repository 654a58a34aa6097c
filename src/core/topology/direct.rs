//! The ports that pass the transfers between the GPUs and NICs of one guest through their switch,
//! and why a port must not be set.
//!
//! A port with ACS Direct Translated P2P on passes requests whose addresses the IOMMU has
//! translated, and these name memory of the requester's own guest only. Bits that isolate are
//! never changed (gpuvm-hardware(7), PEER-TO-PEER AND ACS).

use super::peers::is_grace;
use super::vendor::VENDOR_MELLANOX;
use super::{DeviceKind, OpenPort, PciDevice, Proximity, Topology, Trust};
use crate::bdf::Bdf;
use crate::p2p::{Block, Code, Op, Way, bits};
use std::collections::BTreeSet;

/// A port to be set for a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectPort {
    /// Its address.
    pub at: Bdf,
    /// Its ACS control now.
    pub ctl: u16,
}

/// A function that another guest has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherFunction {
    /// Its address.
    pub function: Bdf,
    /// The guest's name.
    pub domain: String,
}

/// The ports of a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirectPorts {
    /// Ports to be set, by address; also those that pass translated requests already.
    pub ports: Vec<DirectPort>,
    /// Functions beside a GPU whose requests carry no translated addresses: nothing is set for
    /// them.
    pub without_ats: BTreeSet<Bdf>,
    /// Whether `pci=noats` turns ATS off for all functions.
    pub is_ats_off: bool,
}

/// The reason a port is not set.
#[derive(
    Debug, Clone, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames,
)]
#[strum(serialize_all = "kebab-case", prefix = "p2p-")]
#[allow(missing_docs)] // The messages explain the fields.
pub enum DirectRefusal {
    /// A register cannot be read.
    #[error("ACS or ATS of {at} cannot be read, so its transfers are not known")]
    Unreadable { at: Bdf },
    /// The port has no such bit.
    #[error("port {port} does not support ACS Direct Translated P2P (bit DT)")]
    DtUnsupported { port: Bdf },
    /// The port rejects translated requests.
    #[error("port {port} rejects translated requests (ACS bit TB is on)")]
    TranslationBlocked { port: Bdf },
    /// Another guest has a function below the port.
    #[error("{function} below port {port} belongs to domain `{domain}`")]
    OtherGuest { port: Bdf, function: Bdf, domain: String },
    /// The host uses a function below the port.
    #[error("{function} below port {port} is used by the host: {by}")]
    HostUse { port: Bdf, function: Bdf, by: String },
    /// A port of the same switch does not isolate.
    #[error("port {} of the same switch does not isolate its functions", port.at)]
    OpenPort { port: OpenPort },
    /// A board whose ports have settings of their own.
    #[error(
        "port {port} is below {root}, a root port of Grace or Vera, whose ACS is set as a whole"
    )]
    Board { port: Bdf, root: Bdf },
}

/// The remedy of a port that rejects translated requests.
fn tb_off(port: Bdf) -> String {
    format!("`setpci -s {port} ECAP_ACS+6.w=00:02` turns bit TB off")
}

impl DirectRefusal {
    /// Whether transfers fail without the bit as well: there is no way over the root complex.
    pub fn is_rejecting(&self) -> bool {
        matches!(self, DirectRefusal::TranslationBlocked { .. })
    }

    /// Returns the remedy.
    pub fn advice(&self) -> String {
        match self {
            DirectRefusal::Unreadable { at } => {
                format!("`sudo lspci -vvs {at}` shows whether its extended registers are readable")
            }
            DirectRefusal::DtUnsupported { port } => {
                format!("`sudo lspci -vvs {port}` shows ACSCap and ACSCtl")
            }
            DirectRefusal::TranslationBlocked { port } => tb_off(*port),
            DirectRefusal::OtherGuest { .. } | DirectRefusal::HostUse { .. } => {
                "if all guests of this host trust each other, run `gpuvm host trust one-tenant` once"
                    .to_owned()
            }
            DirectRefusal::OpenPort { port } => format!("`{}` sets its bits", port.command()),
            DirectRefusal::Board { .. } => "`rdma_topo check` shows them".to_owned(),
        }
    }
}

impl Topology {
    /// Returns a port as the kernel's arguments name it: the root port, then device and function of
    /// each bridge down to it, which renumbered buses leave as they are.
    pub fn kernel_path(&self, port: Bdf) -> String {
        let mut down = self.path_to_root(port);
        let top = down.pop().map(|top| top.to_string()).unwrap_or_default();
        let below = down.iter().rev().map(|at| format!("/{:02x}.{}", at.device(), at.function()));
        top + &below.collect::<String>()
    }

    /// Returns the remedy of a reason why a transfer does not go through the switch.
    pub fn block_advice(&self, block: &Block) -> String {
        let at = block.at;
        let is_mellanox = || self.device(at).is_some_and(|nic| nic.vendor == VENDOR_MELLANOX);
        match block.code {
            Code::NoAts if is_mellanox() => format!(
                "`mlxconfig -d {at} set ATS_ENABLED=true` and a reboot of the host give the NIC ATS"
            ),
            Code::NoAts => format!("{at} has no ATS, without which no isolating setting is direct"),
            Code::AtsOff | Code::Tb if self.is_without_ats() => {
                "remove `pci=noats` from the kernel's arguments and reboot".into()
            }
            Code::AtsOff => format!("`lspci -vvv -s {at}` shows ATSCtl, which the kernel sets"),
            Code::Tb => tb_off(at),
            Code::NoDt => format!(
                "`setpci -s {at} ECAP_ACS+6.w=40:40` lets translated requests pass until the next boot \
                 or reset, `pci=config_acs=1x111x1@{}` of kernel 6.11 and later at each boot; guests \
                 stay isolated",
                self.kernel_path(at)
            ),
            Code::DtUnsupported => {
                format!("{at} cannot pass translated requests on: use another slot")
            }
            Code::Egress => format!("turn egress control of {at} off"),
            Code::CrWithoutRo => {
                format!(
                    "turn on relaxed ordering of {at}, by its driver or firmware: reads need it"
                )
            }
            Code::Unknown => format!("`lspci -vvv -s {at}` as root shows its registers"),
        }
    }

    /// Returns the ports of a guest with these functions. `others`: functions of other guests.
    ///
    /// # Errors
    ///
    /// The first reason not to set one of them.
    pub fn direct_ports(
        &self,
        devices: &[Bdf],
        others: &[OtherFunction],
    ) -> Result<DirectPorts, DirectRefusal> {
        let mut found = DirectPorts { is_ats_off: self.is_without_ats(), ..DirectPorts::default() };
        let mut ports = BTreeSet::new();
        for (from, to) in self.direct_pairs(devices) {
            let Some(meeting) = self.meeting(from.bdf, to.bdf) else { continue };
            match from.ats {
                None => return Err(DirectRefusal::Unreadable { at: from.bdf }),
                Some(ats) if !ats.present => {
                    found.without_ats.insert(from.bdf);
                    continue;
                }
                Some(_) if found.is_ats_off => continue,
                Some(_) => {}
            }
            let Some(port) = self.divergence(from.bdf, to.bdf) else { continue };
            self.refuse_port(port, meeting.at.bdf)?;
            let blocks = |at: &&PciDevice| at.acs.is_some_and(|acs| acs.is_on(bits::TB));
            let way = self.way_up(from.bdf).skip(1);
            let mut way = way.take_while(|above| above.bdf != meeting.at.bdf);
            if let Some(blocking) = way.find(blocks) {
                return Err(DirectRefusal::TranslationBlocked { port: blocking.bdf });
            }
            let Some(acs) = port.acs else {
                return Err(DirectRefusal::Unreadable { at: port.bdf });
            };
            let is_direct = self.route(from.bdf, to.bdf, Op::Write);
            if !acs.is_on(bits::DT) && is_direct.is_some_and(|route| route.way == Way::Switch) {
                continue;
            }
            if acs.cap & bits::DT == 0 {
                return Err(DirectRefusal::DtUnsupported { port: port.bdf });
            }
            self.refuse_shared(port.bdf, devices, others)?;
            ports.insert(DirectPort { at: port.bdf, ctl: acs.ctl });
        }
        found.ports = ports.into_iter().collect();
        Ok(found)
    }

    /// Requester and peer: NICs and GPUs, and GPUs with ATS among each other.
    pub(crate) fn direct_pairs(&self, devices: &[Bdf]) -> Vec<(&PciDevice, &PciDevice)> {
        let own = |kind| {
            let own = devices.iter().filter_map(|bdf| self.device(*bdf));
            own.filter(move |device| device.kind() == kind)
        };
        let mut pairs = Vec::new();
        for gpu in own(DeviceKind::Gpu) {
            pairs.extend(own(DeviceKind::Nic).map(|nic| (nic, gpu)));
            let has_ats = |gpu: &PciDevice| gpu.ats.is_some_and(|ats| ats.present);
            let is_peer = |other: &&PciDevice| {
                let linked = matches!(self.proximity(other.bdf, gpu.bdf), Proximity::NvLink(_));
                other.bdf != gpu.bdf && has_ats(other) && has_ats(gpu) && !linked
            };
            pairs.extend(own(DeviceKind::Gpu).filter(is_peer).map(|other| (other, gpu)));
        }
        pairs
    }

    /// Refuses a port of a board with settings of its own, and one of a switch that does not
    /// isolate.
    fn refuse_port(&self, port: &PciDevice, switch: Bdf) -> Result<(), DirectRefusal> {
        if let Some(root) = self.way_up(port.bdf).find(|above| is_grace(above)) {
            return Err(DirectRefusal::Board { port: port.bdf, root: root.bdf });
        }
        let is_below = |open: &OpenPort| self.way_up(open.at).any(|above| above.bdf == switch);
        match self.open_ports(&[]).into_iter().find(is_below) {
            Some(open) => Err(DirectRefusal::OpenPort { port: open }),
            None => Ok(()),
        }
    }

    /// Refuses a port with functions of others below it, unless all guests trust each other.
    fn refuse_shared(
        &self,
        port: Bdf,
        own: &[Bdf],
        others: &[OtherFunction],
    ) -> Result<(), DirectRefusal> {
        if self.machine().trust == Some(Trust::OneTenant) {
            return Ok(());
        }
        let is_below = |bdf: Bdf| self.way_up(bdf).skip(1).any(|above| above.bdf == port);
        if let Some(other) = others.iter().find(|other| is_below(other.function)) {
            let (function, domain) = (other.function, other.domain.clone());
            return Err(DirectRefusal::OtherGuest { port, function, domain });
        }
        let below = self.devices().iter().filter(|device| is_below(device.bdf));
        for device in below.filter(|device| !own.contains(&device.bdf)) {
            let nic = device.net.iter().flat_map(|net| &net.used_by).cloned();
            let drives = self.parts().drives.iter().filter(|drive| drive.bdf == Some(device.bdf));
            let drive = drives.filter(|drive| drive.uses().next().is_some());
            if let Some(by) = nic.chain(drive.map(|drive| drive.name.clone())).next() {
                return Err(DirectRefusal::HostUse { port, function: device.bdf, by });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::p2p::{Acs, Ats};
    use crate::topology::file::from_json;

    /// A DGX-2 whose NICs have ATS, and a GPU and a NIC of it below one switch.
    pub(crate) fn host(change: impl Fn(&mut PciDevice)) -> (Topology, Bdf, Bdf) {
        let text = include_str!("../../../topologies/dgx-2.json");
        let mut parts = from_json(text).unwrap().parts().clone();
        for device in &mut parts.devices {
            let is_bridge = device.kind() == DeviceKind::Bridge;
            device.acs = is_bridge.then_some(Acs { cap: 0x5f, ctl: 0x1d });
            let present = device.kind() == DeviceKind::Nic;
            device.ats = Some(Ats { present, enabled: false });
            device.devctl = Some(1 << 4);
            change(device);
        }
        let topology = Topology::new(parts).unwrap();
        let gpus: Vec<Bdf> = topology.gpus().map(|gpu| gpu.bdf).collect();
        let nics: Vec<Bdf> = topology.of_kind(DeviceKind::Nic).map(|nic| nic.bdf).collect();
        let pairs = gpus.iter().flat_map(|gpu| nics.iter().map(move |nic| (*gpu, *nic)));
        let (gpu, nic) =
            { pairs }.find(|(gpu, nic)| topology.meeting(*gpu, *nic).is_some()).unwrap();
        (topology, gpu, nic)
    }

    fn refused(change: impl Fn(&mut PciDevice)) -> &'static str {
        let (host, gpu, nic) = host(change);
        host.direct_ports(&[gpu, nic], &[]).map_or_else(|why| why.into(), |_| "")
    }

    #[test]
    fn only_the_nics_own_port_is_set_and_the_route_is_direct_then() {
        let (host, gpu, nic) = host(|_| {});
        let found = host.direct_ports(&[gpu, nic], &[]).unwrap();
        let port = host.divergence(nic, gpu).unwrap().bdf;
        assert_eq!(found.ports, [DirectPort { at: port, ctl: 0x1d }]);
        let mut parts = host.parts().clone();
        let set = parts.devices.iter_mut().find(|device| device.bdf == port).unwrap();
        set.acs = Some(Acs { cap: 0x5f, ctl: 0x1d | bits::DT });
        let after = Topology::new(parts).unwrap();
        for op in [Op::Write, Op::Read] {
            assert_eq!(host.route(nic, gpu, op).unwrap().way, Way::Root);
            assert_eq!(after.route(nic, gpu, op).unwrap().way, Way::Switch);
        }
        assert_eq!(after.open_ports(&[]), host.open_ports(&[]), "isolation is the same");
        let again = after.direct_ports(&[gpu, nic], &[]).unwrap();
        assert_eq!(again.ports, [DirectPort { at: port, ctl: 0x5d }]);
        // A guest with one of the two has no transfers between them.
        assert_eq!(host.direct_ports(&[gpu], &[]).unwrap(), DirectPorts::default());
        assert_eq!(host.direct_ports(&[nic], &[]).unwrap(), DirectPorts::default());
    }

    #[test]
    fn no_port_is_set_for_functions_without_ats() {
        let (host, gpu, nic) = host(|device| {
            device.ats = Some(Ats { present: false, enabled: false });
        });
        let found = host.direct_ports(&[gpu, nic], &[]).unwrap();
        assert_eq!((found.ports.len(), found.without_ats.len()), (0, 1));
        let mut parts = host.parts().clone();
        parts.machine.kernel_arguments.push("pci=noats".into());
        let off = Topology::new(parts).unwrap().direct_ports(&[gpu, nic], &[]).unwrap();
        assert!(off.is_ats_off && off.ports.is_empty());
    }

    #[test]
    fn ports_that_cannot_be_set_are_refused_with_the_reason() {
        let port = |acs: Option<Acs>| {
            move |device: &mut PciDevice| {
                if device.kind() == DeviceKind::Bridge {
                    device.acs = acs;
                }
            }
        };
        let with = |cap, ctl| port(Some(Acs { cap, ctl }));
        assert_eq!(refused(|_| {}), "");
        assert_eq!(refused(port(None)), "p2p-unreadable");
        assert_eq!(refused(|device| device.ats = None), "p2p-unreadable");
        assert_eq!(refused(with(0x1f, 0x1d)), "p2p-dt-unsupported");
        assert_eq!(refused(with(0x5f, 0x1f)), "p2p-translation-blocked");
        assert_eq!(refused(with(0x5f, 0)), "p2p-open-port");
        let grace = |device: &mut PciDevice| {
            if device.parent.is_none() && device.kind() == DeviceKind::Bridge {
                (device.vendor, device.device) = (0x10de, 0x22b1);
            }
        };
        assert_eq!(refused(grace), "p2p-board");
    }

    #[test]
    fn a_port_with_functions_of_others_is_set_for_one_tenant_only() {
        let (host, gpu, nic) = host(|_| {});
        let port = host.divergence(nic, gpu).unwrap().bdf;
        let other = [OtherFunction { function: nic, domain: "b".into() }];
        let refused = host.direct_ports(&[gpu, nic], &other).unwrap_err();
        assert!(matches!(&refused, DirectRefusal::OtherGuest { domain, .. } if domain == "b"));
        let elsewhere = [OtherFunction { function: gpu, domain: "b".into() }];
        assert_eq!(host.direct_ports(&[gpu, nic], &elsewhere).unwrap().ports.len(), 1);
        let mut parts = host.parts().clone();
        parts.machine.trust = Some(Trust::OneTenant);
        let trusting = Topology::new(parts.clone()).unwrap();
        assert_eq!(trusting.direct_ports(&[gpu, nic], &other).unwrap().ports[0].at, port);
        // A second function of the card is the host's own.
        parts.machine.trust = None;
        let mut second = host.device(nic).unwrap().clone();
        second.bdf = Bdf::new(nic.segment(), nic.bus(), nic.device(), 1).unwrap();
        second.net.get_or_insert_default().used_by = vec!["the default route".into()];
        let at = parts.devices.iter().position(|device| device.bdf == nic).unwrap();
        parts.devices.insert(at + 1, second);
        let used = Topology::new(parts).unwrap().direct_ports(&[gpu, nic], &[]).unwrap_err();
        assert!(used.to_string().ends_with("is used by the host: the default route"), "{used}");
        assert!(used.advice().contains("`gpuvm host trust one-tenant`"));
    }
}
