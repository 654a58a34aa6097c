//! `nic list`: network cards, their links and virtual functions, and who has those.

use crate::apply::nic::boot;
use crate::bdf::Bdf;
use crate::cli::args::NicListArgs;
use crate::cli::context::Context;
use crate::cli::error::EXIT_DONE;
use crate::cli::names::{model, short};
use crate::cli::table::Table;
use crate::cpuset::NodeId;
use crate::fsroot::FsRoot;
use crate::holders::{self, Use, UseKind};
use crate::placement::Occupancy;
use crate::topology::{DeviceKind, PciDevice, Proximity, Sriov, Topology};
use gpuvm_ops::cards::{functions_of, is_up};
use serde::Serialize;
use std::collections::BTreeSet;

/// Is a card: a physical function.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(in crate::cli) struct Card {
    /// Address.
    bdf: Bdf,
    /// Model, or the ids.
    model: String,
    /// Network devices.
    netdevs: Vec<String>,
    /// Driver that has it.
    driver: Option<String>,
    /// Node.
    node: Option<NodeId>,
    /// The upstream port of the PCIe switch that it hangs below.
    switch: Option<Bdf>,
    /// Indexes of the GPUs that it reaches without a host bridge.
    gpus: Vec<usize>,
    /// Whether its first network device is up; none where it is not told.
    up: Option<bool>,
    /// The state of its link as the kernel says it: `up`, `down`, `dormant`.
    link: Option<String>,
    /// MAC address of its first network device.
    mac: Option<String>,
    /// Virtual functions that it can have; none: it has no SR-IOV.
    total_vfs: Option<u32>,
    /// Virtual functions that it has.
    enabled_vfs: Option<u32>,
    /// Virtual functions that it gets at boot.
    vfs_at_boot: Option<u32>,
    /// Domains that have it, running or not.
    domains: Vec<String>,
    /// Who uses it.
    used_by: Vec<Use>,
    /// Its virtual functions.
    vfs: Vec<Function>,
}

/// Is a virtual function.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Function {
    /// Its number on its card.
    number: usize,
    /// Address.
    bdf: Bdf,
    /// Driver that has it.
    driver: Option<String>,
    /// Network devices.
    netdevs: Vec<String>,
    /// IOMMU group.
    iommu_group: Option<u32>,
    /// Domains that have it, running or not.
    domains: Vec<String>,
    /// Who uses it.
    used_by: Vec<Use>,
}

/// Is what cards are told from.
struct Host<'a> {
    /// The host.
    topology: &'a Topology,
    /// Its files; none where it is recorded in one.
    root: Option<FsRoot>,
    /// What is taken.
    held: Occupancy,
    /// Who uses what.
    uses: Vec<Use>,
}

/// Runs the verb.
pub fn run(args: &NicListArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    let topology = cx.topology()?;
    let is_nic = |device: &&PciDevice| device.kind() == DeviceKind::Nic;
    let nics: Vec<&PciDevice> = topology.devices().iter().filter(is_nic).collect();
    let functions: Vec<Bdf> = nics.iter().map(|nic| nic.bdf).collect();
    let (root, held) = (cx.root()?, cx.taken(&args.taken)?);
    let mut uses = holders::known(&topology, &held, &functions);
    if let Some(root) = &root {
        uses.extend(holders::read(root, &topology, &functions)?.uses);
    }
    let host = Host { topology: &topology, root, held, uses };
    let is_card = |nic: &&&PciDevice| !matches!(nic.sriov, Some(Sriov::Vf { .. }));
    let cards: anyhow::Result<Vec<Card>> =
        nics.iter().filter(is_card).map(|nic| host.card(nic)).collect();
    let cards = cards?;
    if cx.output.json {
        cx.output.json_rows("gpuvm-nic-list", &cards)?;
    } else if cards.is_empty() {
        cx.output.progress(&topology.without("network card"));
    } else {
        cx.output.table(&table(&cards))?;
    }
    Ok(EXIT_DONE)
}

impl Host<'_> {
    /// One card.
    fn card(&self, nic: &PciDevice) -> anyhow::Result<Card> {
        let bdf = nic.bdf;
        let netdevs = nic.net.as_ref().map(|net| net.netdevs.clone()).unwrap_or_default();
        let at = netdevs.first().map(|name| format!("sys/class/net/{name}"));
        let (mut up, mut link, mut mac, mut at_boot) = (None, None, None, None);
        if let Some(root) = &self.root {
            at_boot = boot::functions(root)?.get(&bdf).map(|at_boot| at_boot.count);
            if let (Some(at), Some(name)) = (at, netdevs.first()) {
                up = is_up(root, name)?;
                link = root.read(&format!("{at}/operstate"))?.map(|text| text.trim().to_owned());
                mac = root.read(&format!("{at}/address"))?.map(|text| text.trim().to_owned());
            }
        }
        let near =
            |gpu: Bdf| matches!(self.topology.proximity(bdf, gpu), Proximity::Pix | Proximity::Pxb);
        let gpus = self.topology.gpus().enumerate();
        let (total_vfs, enabled_vfs) = match nic.sriov {
            Some(Sriov::Pf { total, enabled }) => (Some(total), Some(enabled)),
            _ => (None, None),
        };
        let vfs = functions_of(self.topology, bdf).into_iter().enumerate();
        Ok(Card {
            bdf,
            model: model(nic),
            driver: nic.driver.clone(),
            node: nic.node,
            switch: switch_of(self.topology, bdf),
            gpus: gpus.filter(|(_, gpu)| near(gpu.bdf)).map(|(index, _)| index).collect(),
            up,
            link,
            mac: mac.or_else(|| nic.net.as_ref()?.macs.first().cloned()),
            total_vfs,
            enabled_vfs,
            vfs_at_boot: at_boot,
            domains: self.domains(bdf),
            // That it has virtual functions stands beside.
            used_by: self.used_by(bdf, |used| used.kind != UseKind::Functions),
            vfs: vfs.map(|(number, vf)| self.function(number, vf)).collect(),
            netdevs,
        })
    }

    /// One virtual function.
    fn function(&self, number: usize, vf: &PciDevice) -> Function {
        Function {
            number,
            bdf: vf.bdf,
            driver: vf.driver.clone(),
            netdevs: vf.net.as_ref().map(|net| net.netdevs.clone()).unwrap_or_default(),
            iommu_group: vf.iommu_group,
            domains: self.domains(vf.bdf),
            used_by: self.used_by(vf.bdf, |_| true),
        }
    }

    /// Domains that have a function.
    fn domains(&self, bdf: Bdf) -> Vec<String> {
        let having = self.held.domains.iter().filter(|domain| domain.devices.contains(&bdf));
        let names: BTreeSet<String> = having.map(|domain| domain.domain.clone()).collect();
        names.into_iter().collect()
    }

    /// Who uses a function, as far as it is told here.
    fn used_by(&self, bdf: Bdf, told: fn(&Use) -> bool) -> Vec<Use> {
        self.uses.iter().filter(|used| used.bdf == bdf && told(used)).cloned().collect()
    }
}

/// The upstream port of the switch right above a function; none where it hangs below a root port.
fn switch_of(topology: &Topology, bdf: Bdf) -> Option<Bdf> {
    // It, the switch's downstream port, its upstream port, and what that hangs below.
    match topology.path_to_root(bdf)[..] {
        [_, _, upstream, _, ..] => Some(upstream),
        _ => None,
    }
}

/// Who has a function, in words.
fn state(domains: &[String], used_by: &[Use]) -> String {
    if let Some(first) = used_by.first() {
        let more = used_by.len() - 1;
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        return format!("used by {}{more}", first.by);
    }
    match domains {
        [] => "free".into(),
        domains => format!("held by domain `{}`, which is off", domains.join("`, `")),
    }
}

/// The cards as a table, each with its virtual functions below it.
fn table(cards: &[Card]) -> Table {
    let dash = || "-".to_owned();
    let joined = |names: &[String]| if names.is_empty() { dash() } else { names.join(",") };
    let mut table = Table::new([
        "ADDRESS", "MODEL", "NETDEV", "DRIVER", "NODE", "GPUS", "UP", "MAC", "VFS", "STATE",
    ]);
    for card in cards {
        let gpus: Vec<String> = card.gpus.iter().map(usize::to_string).collect();
        let vfs = card.enabled_vfs.zip(card.total_vfs);
        let mut state = state(&card.domains, &card.used_by);
        if let Some(count) = card.vfs_at_boot {
            state += &format!(", {count} VFs at boot");
        }
        let up = match (card.up, card.link.as_deref()) {
            (None, _) => dash(),
            (Some(false), _) => "no".into(),
            (Some(true), Some("up")) => "yes".into(),
            (Some(true), _) => "no link".into(),
        };
        table.push([
            card.bdf.to_string(),
            card.model.clone(),
            joined(&card.netdevs),
            card.driver.clone().unwrap_or_else(dash),
            card.node.map_or_else(dash, |node| node.to_string()),
            joined(&gpus),
            up,
            card.mac.clone().unwrap_or_else(dash),
            vfs.map_or_else(dash, |(enabled, total)| format!("{enabled} of {total}")),
            state,
        ]);
        for vf in &card.vfs {
            let name = format!("VF {} of {}", vf.number, short(card.bdf));
            table.push([
                format!("  {}", vf.bdf),
                name,
                joined(&vf.netdevs),
                vf.driver.clone().unwrap_or_else(dash),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
                self::state(&vf.domains, &vf.used_by),
            ]);
        }
    }
    table
}
