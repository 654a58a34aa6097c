//! Settings of virtual functions on their PF's network device, through rtnetlink(7): libvirt sets
//! their MAC addresses and VLANs itself, but has no element for trust and spoof check.

use crate::netlink;
use gpuvm_core::request::Guard;
use netlink_packet_core::NLM_F_ACK;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    LinkAttribute, LinkExtentMask, LinkFlags, LinkMessage, LinkVfInfo, VfInfo, VfInfoSpoofCheck,
    VfInfoTrust,
};
use std::io;

/// The error of reading or setting a network device.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "link-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum LinkError {
    /// There is no such network device.
    #[error("network device {netdev} does not exist")]
    Absent { netdev: String },
    /// The kernel refuses.
    #[error("{netdev}: cannot {doing}: {source}")]
    Refused { netdev: String, doing: String, source: io::Error },
    /// The kernel accepted a setting but reports another one.
    #[error("virtual function {vf} of {netdev}: set {wanted}, got {now}")]
    NotSet { netdev: String, vf: u32, wanted: Guard, now: Guard },
}

/// A request to the kernel about a network device, by name.
struct Asked<'a> {
    netdev: &'a str,
    doing: String,
}

impl Asked<'_> {
    /// Makes the error with the system's.
    fn refused(&self, source: io::Error) -> LinkError {
        let netdev = self.netdev.to_owned();
        match source.raw_os_error() {
            Some(code) if code == nix::errno::Errno::ENODEV as i32 => LinkError::Absent { netdev },
            _ => LinkError::Refused { netdev, doing: self.doing.clone(), source },
        }
    }

    /// Sends a message and returns the kernel's answer; `None` for a plain acknowledgement.
    fn ask(
        &self,
        flags: u16,
        message: RouteNetlinkMessage,
    ) -> Result<Option<LinkMessage>, LinkError> {
        match netlink::ask(flags, message).map_err(|error| self.refused(error))?.pop() {
            None => Ok(None),
            Some(RouteNetlinkMessage::NewLink(link)) => Ok(Some(link)),
            Some(_) => Err(self.refused(io::Error::other("the kernel's answer is not understood"))),
        }
    }

    /// Makes a message about the network device.
    fn message(&self) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(self.netdev.to_owned()));
        message
    }
}

/// Takes a network device up or down.
pub(super) fn set_up(netdev: &str, up: bool) -> Result<(), LinkError> {
    let doing = format!("take it {}", if up { "up" } else { "down" });
    let asked = Asked { netdev, doing };
    let mut message = asked.message();
    message.header.change_mask = LinkFlags::Up;
    message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
    asked.ask(NLM_F_ACK, RouteNetlinkMessage::SetLink(message)).map(drop)
}

/// Removes a virtual network device if it exists.
pub fn delete(netdev: &str) -> Result<(), LinkError> {
    let asked = Asked { netdev, doing: "remove it".into() };
    let message = asked.message();
    match asked.ask(NLM_F_ACK, RouteNetlinkMessage::DelLink(message)).map(drop) {
        Err(LinkError::Absent { .. }) => Ok(()),
        done => done,
    }
}

/// Returns the present permissions of a virtual function on its PF; settings not reported by its
/// driver are `None`.
pub fn guard(netdev: &str, vf: u32) -> Result<Guard, LinkError> {
    let asked = Asked { netdev, doing: "read its virtual functions".into() };
    let mut message = asked.message();
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::Vf]));
    let link = asked.ask(0, RouteNetlinkMessage::GetLink(message))?;
    let infos = link.into_iter().flat_map(|link| link.attributes).filter_map(|attribute| {
        if let LinkAttribute::VfInfoList(infos) = attribute { Some(infos) } else { None }
    });
    let mut guard = Guard::default();
    for info in infos.flatten().flat_map(|LinkVfInfo(info)| info) {
        match info {
            VfInfo::Trust(now) if now.vf_id == vf => guard.trust = Some(now.enabled),
            VfInfo::SpoofCheck(now) if now.vf_id == vf => guard.spoof = Some(now.enabled),
            _ => {}
        }
    }
    Ok(guard)
}

/// Sets the permissions of a virtual function on its PF, and reads them back.
pub(super) fn set_guard(netdev: &str, vf: u32, wanted: Guard) -> Result<(), LinkError> {
    let trust = wanted.trust.map(|on| VfInfo::Trust(VfInfoTrust::new(vf, on)));
    let spoof = wanted.spoof.map(|on| VfInfo::SpoofCheck(VfInfoSpoofCheck::new(vf, on)));
    // One at a time, so that the unsupported setting is named.
    for (info, name) in [(trust, "trust"), (spoof, "spoof check")] {
        let Some(info) = info else { continue };
        let asked = Asked { netdev, doing: format!("set {name} of virtual function {vf}") };
        let mut message = asked.message();
        message.attributes.push(LinkAttribute::VfInfoList(vec![LinkVfInfo(vec![info])]));
        asked.ask(NLM_F_ACK, RouteNetlinkMessage::SetLink(message))?;
    }
    let now = guard(netdev, vf)?.within(wanted);
    if now == wanted {
        Ok(())
    } else {
        Err(LinkError::NotSet { netdev: netdev.to_owned(), vf, wanted, now })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_by_name() {
        assert_eq!(guard("lo", 0).unwrap(), Guard::default());
        for error in [
            guard("gpuvm-none", 0).unwrap_err(),
            set_guard("gpuvm-none", 0, Guard { trust: Some(true), spoof: None }).unwrap_err(),
            set_up("gpuvm-none", true).unwrap_err(),
        ] {
            let text = error.to_string();
            // The kernel checks permissions before it looks up the name.
            let denied = text.contains("not permitted");
            assert!(denied || text == "network device gpuvm-none does not exist", "{text}");
        }
    }
}
