//! Bytes of passed-through virtual functions of NICs, as the driver of their card counts them:
//! `ip -s link show PF` prints the same (rtnetlink, IFLA_VF_STATS).

use crate::discover::path::behind;
use crate::fsroot::FsRoot;
use crate::netlink;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::load::ByteCounts;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage, VfInfo, VfStats};
use std::collections::BTreeMap;

/// The virtual functions of a guest, by the network device of their card.
#[derive(Debug, Default)]
pub(super) struct Functions(BTreeMap<String, Vec<u32>>);

impl Functions {
    /// Finds those of these functions that are virtual and belong to a card with a network device.
    pub(super) fn find(root: &FsRoot, functions: &[Bdf]) -> Functions {
        let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for function in functions {
            let Ok(behind) = behind(root, &function.to_string()) else { continue };
            if let (Some(netdev), Some(number)) = (behind.pf, behind.vf) {
                found.entry(netdev).or_default().push(number);
            }
        }
        Functions(found)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Asks the kernel for their bytes, received and sent by the guest. The sockets are those of
    /// this machine: below another root there are none.
    pub(super) fn read(&self, root: &FsRoot) -> BTreeMap<String, ByteCounts> {
        let mut all = BTreeMap::new();
        for (netdev, numbers) in self.0.iter().filter(|_| root.is_live()) {
            let Ok(links) = ask(netdev) else { continue };
            for (number, counts) in links.iter().flat_map(|link| counts(&link.attributes)) {
                if numbers.contains(&number) {
                    all.insert(format!("{netdev} vf {number}"), counts);
                }
            }
        }
        all
    }
}

/// Requests a network device with its virtual functions.
fn ask(netdev: &str) -> std::io::Result<Vec<LinkMessage>> {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(netdev.to_owned()));
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::Vf]));
    let answers = netlink::ask(0, RouteNetlinkMessage::GetLink(message))?;
    let links = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    });
    Ok(links.collect())
}

/// The bytes of each virtual function by its number. The kernel fills in zeros where the driver
/// counts nothing, so a function with none at all is left out.
fn counts(attributes: &[LinkAttribute]) -> Vec<(u32, ByteCounts)> {
    let lists = attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::VfInfoList(list) => Some(list),
        _ => None,
    });
    let each = lists.flatten().filter_map(|info| {
        let mut number = None;
        let (mut read, mut written) = (0, 0);
        for part in &info.0 {
            match part {
                // Statistics carry no number of their own.
                VfInfo::Mac(mac) => number = Some(mac.vf_id),
                VfInfo::Stats(stats) => {
                    for stat in stats {
                        match stat {
                            VfStats::RxBytes(bytes) => read = *bytes,
                            VfStats::TxBytes(bytes) => written = *bytes,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        let counts = ByteCounts { read, written };
        Some((number?, counts)).filter(|_| counts != ByteCounts::default())
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_route::link::{LinkVfInfo, VfInfoMac};
    use std::os::unix::fs::symlink;

    #[test]
    fn each_function_has_the_bytes_beside_its_number() {
        let info = |number, stats: Vec<VfStats>| {
            LinkVfInfo(vec![VfInfo::Mac(VfInfoMac::new(number, &[2; 6])), VfInfo::Stats(stats)])
        };
        let busy = vec![VfStats::RxPackets(9), VfStats::RxBytes(700), VfStats::TxBytes(20)];
        let silent = vec![VfStats::RxBytes(0), VfStats::TxBytes(0)];
        let unnumbered = LinkVfInfo(vec![VfInfo::Stats(vec![VfStats::RxBytes(1)])]);
        let list = vec![info(0, silent), info(3, busy), unnumbered];
        let attributes = [LinkAttribute::IfName("ens1f0".into()), LinkAttribute::VfInfoList(list)];
        let expected = [(3, ByteCounts { read: 700, written: 20 })];
        assert_eq!(counts(&attributes), expected);
        assert_eq!(counts(&[]), []);
    }

    #[test]
    fn functions_are_found_by_their_card() {
        let dir = tempfile::tempdir().unwrap();
        let devices = dir.path().join("sys/bus/pci/devices");
        let card = devices.join("0000:3b:00.0");
        std::fs::create_dir_all(card.join("net/ens1f0")).unwrap();
        for (number, name) in ["0000:3b:00.2", "0000:3b:00.3"].into_iter().enumerate() {
            std::fs::create_dir_all(devices.join(name)).unwrap();
            symlink("../0000:3b:00.0", devices.join(name).join("physfn")).unwrap();
            symlink(format!("../{name}"), card.join(format!("virtfn{number}"))).unwrap();
        }
        let root = FsRoot::at(dir.path()).unwrap();
        let all = ["0000:3b:00.0", "0000:3b:00.3", "0000:99:00.0"];
        let all: Vec<Bdf> = all.iter().map(|bdf| bdf.parse().unwrap()).collect();
        let found = Functions::find(&root, &all);
        assert_eq!(found.0, [("ens1f0".to_owned(), vec![1])].into());
        assert!(found.read(&root).is_empty(), "this machine has no such card");
        assert!(Functions::find(&root, &all[..1]).is_empty());
        // The loopback device has no virtual functions.
        assert!(ask("lo").unwrap().iter().all(|link| counts(&link.attributes).is_empty()));
    }
}
