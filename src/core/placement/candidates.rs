//! Finds which NICs, virtual functions and NVMe drives can be passed through, and why others
//! cannot. Does not know where the guest's GPUs are.

use super::explain::{NOTHING_LEFT, count, list};
use super::groups;
use super::kind::Kind;
use super::taken::Taken;
use super::types::PlanError;
use crate::bdf::Bdf;
use crate::cpuset::NodeId;
use crate::request::DeviceWish;
use crate::topology::vendor::VENDOR_MELLANOX;
use crate::topology::{DeviceKind, FabricModel, PciDevice, Sriov, Topology};
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
pub(super) struct Candidate {
    /// Its address.
    pub(super) bdf: Bdf,
    /// The node with cores that it belongs to, if known.
    pub(super) node: Option<NodeId>,
    /// Virtual functions of the same NIC taken before this one.
    pub(super) crowd: i32,
    /// Functions that were not requested but come along.
    pub(super) along: i32,
    /// Whether the guest that is planned again already has it.
    pub(super) is_own: bool,
    /// Whether it is a NIC that is not known to have RDMA, which GPUDirect needs.
    pub(super) is_plain: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Refused {
    /// Its address.
    pub(super) bdf: Bdf,
    pub(super) is_taken: bool,
    /// The reason, a line with its address.
    pub(super) line: String,
    /// How a guest gets it with its whole IOMMU group, if only that prevents it.
    pub(super) whole: Option<String>,
}

/// A host's functions of a kind.
#[derive(Debug)]
pub(super) struct Supply {
    /// Available functions, by address; of one NIC's virtual functions no more than wanted.
    pub(super) candidates: Vec<Candidate>,
    pub(super) free: usize,
    /// Unavailable functions, by address.
    pub(super) refused: Vec<Refused>,
}

/// A view of a host's devices.
pub(super) struct Devices<'a> {
    pub(super) topology: &'a Topology,
    pub(super) taken: &'a Taken<'a>,
    /// The node with cores of a device.
    pub(super) node_of: &'a dyn Fn(Bdf) -> Option<NodeId>,
}

impl Devices<'_> {
    /// Returns the host's functions of a kind, or why the request cannot be met whatever GPUs the
    /// guest has.
    pub(super) fn supply(&self, kind: Kind, wish: &DeviceWish) -> Result<Supply, PlanError> {
        let is_count = matches!(wish, DeviceWish::Count(_));
        let mut supply = self.all(kind, wish.number(), is_count);
        match wish {
            DeviceWish::Count(_) => self.enough(kind, wish.number(), &supply)?,
            DeviceWish::Exact(bdfs) => {
                for &bdf in bdfs {
                    self.can_be_had(kind, bdf, &supply)?;
                }
                let exact = |&bdf: &Bdf| self.candidate(bdf, 0);
                supply.candidates = bdfs.iter().map(exact).collect();
                supply.candidates.sort_by_key(|candidate| candidate.bdf);
            }
        }
        Ok(supply)
    }

    /// Every function of a kind; `is_count`: with it, only drives that a request by number may
    /// take.
    fn all(&self, kind: Kind, wanted: usize, is_count: bool) -> Supply {
        let mut supply = Supply { candidates: Vec::new(), free: 0, refused: Vec::new() };
        let mut crowds: BTreeMap<Bdf, (usize, usize)> = BTreeMap::new();
        let devices = self.topology.devices().iter().filter(|d| Kind::of(d) == Some(kind));
        for device in devices.clone() {
            if let Some(Sriov::Vf { pf }) = device.sriov
                && self.taken.device(device.bdf).is_some()
            {
                crowds.entry(pf).or_default().0 += 1;
            }
        }
        for device in devices {
            // A guest keeps its present functions.
            let is_own = self.taken.is_own(device.bdf);
            let is_new_count = is_count && !is_own;
            // As with GPUs, a share of a drive is no drive, and only its address takes it.
            if is_new_count && device.drive_share().is_some() {
                continue;
            }
            let data = || groups::remains(self.topology, device.bdf).filter(|_| is_new_count);
            let refusal = self.refusal(device.bdf).or_else(|| data().map(|why| (false, why)));
            let refusal = refusal.or_else(|| self.in_front(device, is_new_count));
            if let Some((is_taken, why)) = refusal {
                let line = format!("{} {why}", device.bdf);
                let whole = self.whole_group(device.bdf);
                supply.refused.push(Refused { bdf: device.bdf, is_taken, line, whole });
                continue;
            }
            supply.free += 1;
            let mut crowd = 0;
            if let Some(Sriov::Vf { pf }) = device.sriov {
                let (held, seen) = crowds.entry(pf).or_default();
                if *seen == wanted && !is_own {
                    continue;
                }
                crowd = *held + *seen;
                *seen += usize::from(!is_own);
            }
            supply.candidates.push(self.candidate(device.bdf, crowd));
        }
        supply
    }

    /// Returns why a NIC in front of the board's NVSwitches is unavailable: Fabric Manager of the
    /// host needs it if it controls these, otherwise only a guest with all GPUs that names it.
    fn in_front(&self, device: &PciDevice, is_count: bool) -> Option<(bool, String)> {
        let fabric = self.topology.fabric();
        let card = match device.sriov {
            Some(Sriov::Vf { pf }) => pf,
            _ => device.bdf,
        };
        let is_kept = is_count || fabric.model == FabricModel::SharedNvswitch;
        let why = "is in front of the board's NVSwitches, which Fabric Manager reaches by it";
        (is_kept && fabric.bridge.contains(&card)).then(|| (false, why.to_owned()))
    }

    /// Makes a candidate of an available function.
    fn candidate(&self, bdf: Bdf, crowd: usize) -> Candidate {
        let along = groups::companions(self.topology, self.taken, &[bdf]).len();
        let small = |number: usize| i32::try_from(number).unwrap_or(i32::MAX >> 16);
        let (crowd, along, is_own) = (small(crowd), small(along), self.taken.is_own(bdf));
        let is_plain = self.topology.device(bdf).is_some_and(is_plain);
        Candidate { bdf, node: (self.node_of)(bdf), crowd, along, is_own, is_plain }
    }

    /// Returns whether a domain holds a function, and why it is unavailable as words to follow its
    /// name; `None` if it is available.
    fn refusal(&self, bdf: Bdf) -> Option<(bool, String)> {
        if let Some(block) = groups::block(self.topology, self.taken, bdf) {
            return Some((block.domain.is_some(), block.why(1)));
        }
        let why = groups::beside_peer(self.topology, bdf).map(|why| (false, why));
        why.filter(|_| !self.taken.names_with_gpus(bdf))
    }

    /// Refuses a number that the host does not have now.
    fn enough(&self, kind: Kind, number: usize, supply: &Supply) -> Result<(), PlanError> {
        if supply.free >= number {
            return Ok(());
        }
        let there = supply.free + supply.refused.len();
        let asked = format!("requested {}", count(number, kind.noun()));
        if there < number {
            let what = match there {
                0 => match self.topology.unlisted() {
                    Some(why) => format!("{asked}, and what this host has is not known: {why}"),
                    None => format!("{asked}, this host has none"),
                },
                _ => format!("{asked}, this host has {there}"),
            };
            return Err(PlanError::Impossible {
                what,
                hint: self.fewer(kind, number, supply.free),
            });
        }
        let what = format!("{asked}, {} of {there} available", supply.free);
        let hint = with_group(&supply.refused, kind, number.saturating_sub(supply.free));
        let hint = hint.unwrap_or_else(|| self.fewer(kind, number, supply.free));
        Err(short(what, &supply.refused, hint))
    }

    /// Returns the hint how many would fit, or how there could be more.
    fn fewer(&self, kind: Kind, number: usize, free: usize) -> String {
        let idle = |device: &PciDevice| match device.sriov {
            Some(Sriov::Pf { total: total @ 1.., enabled: 0 }) => {
                let is_free = Kind::of(device) == Some(Kind::Nic);
                (is_free && self.refusal(device.bdf).is_none()).then_some((device.bdf, total))
            }
            _ => None,
        };
        let pf = self.topology.devices().iter().find_map(idle).filter(|_| kind == Kind::Vf);
        let has_data = |device: &&PciDevice| groups::remains(self.topology, device.bdf).is_some();
        let drives = self.topology.drives().filter(|_| kind == Kind::Nvme);
        let full = drives.filter(|d| self.refusal(d.bdf).is_none() && has_data(d));
        let full: Vec<&PciDevice> = full.collect();
        if let Some(device) = full.first().filter(|_| free + full.len() >= number) {
            return format!(
                "`gpuvm drive list` shows their content; `gpuvm drive wipe ID` erases one; {} {} \
                 takes one with its content",
                kind.flag(),
                device.bdf
            );
        }
        if let Some(shares) = self.shares_of_drives(number).filter(|_| kind == Kind::Nvme) {
            return shares;
        }
        match (pf, free) {
            (Some((pf, total)), _) => {
                let missing = number.saturating_sub(free).min(total as usize);
                let those = count(missing, "virtual function");
                format!("`gpuvm nic vfs {pf} --count {missing}` makes {those} there")
            }
            (None, 0) => format!("leave {} out; `gpuvm host show` shows the devices", kind.flag()),
            // How many fit is found by planning.
            (None, _) => NOTHING_LEFT.into(),
        }
    }

    /// The hint that a guest may have this many free virtual functions of drives, which no number
    /// counts; `None` if there are not as many.
    fn shares_of_drives(&self, number: usize) -> Option<String> {
        let devices = self.topology.devices().iter();
        let shares = devices.filter(|device| device.kind() == DeviceKind::Nvme && device.is_vf());
        let free = shares.map(|device| device.bdf).filter(|bdf| self.refusal(*bdf).is_none());
        let free: Vec<String> =
            free.take(number).map(|bdf| format!("{} {bdf}", Kind::Nvme.flag())).collect();
        let verb = if number == 1 { "takes a virtual function" } else { "take virtual functions" };
        let of = if number == 1 { "of a drive" } else { "of drives" };
        (free.len() == number && number > 0).then(|| format!("{} {verb} {of}", free.join(" ")))
    }

    /// How a guest gets a function that is refused only for its group.
    fn whole_group(&self, bdf: Bdf) -> Option<String> {
        groups::whole_group_now(self.topology, self.taken, bdf).map(|options| whole(&options))
    }

    /// Refuses an address that is not of the kind or is unavailable.
    fn can_be_had(&self, kind: Kind, bdf: Bdf, supply: &Supply) -> Result<(), PlanError> {
        let (noun, flag) = (kind.noun(), kind.flag());
        if let Some(refused) = supply.refused.iter().find(|refused| refused.bdf == bdf) {
            let what = format!("cannot use {noun} {bdf}");
            let free = supply.candidates.iter().map(|candidate| candidate.bdf);
            let hint = if let Some(whole) = &refused.whole {
                whole.clone()
            } else if supply.candidates.is_empty() {
                format!("leave {flag} out; `gpuvm host show` shows the devices")
            } else {
                format!("available: {}", list(free))
            };
            return Err(short(what, std::slice::from_ref(refused), hint));
        }
        let mistaken = kind.mistaken(bdf, self.topology);
        mistaken.map_or(Ok(()), |(what, hint)| Err(PlanError::Impossible { what, hint }))
    }
}

/// The hint that a guest may have a whole group, by the options for it.
pub(super) fn whole(options: &str) -> String {
    format!("{options} give one guest the whole group")
}

/// How a guest gets at least this many refused devices of a kind: with a whole IOMMU group.
pub(super) fn with_group(refused: &[Refused], kind: Kind, number: usize) -> Option<String> {
    let flag = format!("{} ", kind.flag());
    let wholes = refused.iter().filter_map(|refused| refused.whole.as_ref());
    wholes.into_iter().find(|whole| whole.matches(&flag).count() >= number).cloned()
}

/// Whether a NIC is not known to have RDMA: it has no such device, and is none of NVIDIA's, which
/// have one with their driver.
fn is_plain(device: &PciDevice) -> bool {
    let has_rdma = device.net.as_ref().is_some_and(|net| !net.rdma.is_empty());
    device.kind() == DeviceKind::Nic && !has_rdma && device.vendor != VENDOR_MELLANOX
}

/// Makes the error of an unavailable device: temporary if domains hold it, otherwise permanent.
pub(super) fn short(what: String, refused: &[Refused], hint: String) -> PlanError {
    const SHOWN: usize = 16;
    let mut lines: Vec<String> = refused.iter().take(SHOWN).map(|r| r.line.clone()).collect();
    if refused.len() > SHOWN {
        lines.push(format!("{} more", refused.len() - SHOWN));
    }
    if refused.iter().any(|refused| refused.is_taken) {
        return PlanError::Taken { what, holders: lines, hint };
    }
    let lines = if lines.is_empty() { String::new() } else { format!(": {}", lines.join("; ")) };
    PlanError::Impossible { what: format!("{what}{lines}"), hint }
}
