//! Pairs of RDMA devices that perftest measures, in one guest or between two, and how it is run.

use super::expected::{LINE_PART, ROOT_PART, RdmaReach};
use super::tool::{Call, Suite, Tool};
use super::what::What;
use crate::bdf::Bdf;
use crate::p2p::{Op, Way};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// The most devices of a guest that are looked at.
const MOST_DEVICES: usize = 64;
/// The longest name of a device (IB_DEVICE_NAME_MAX of the kernel).
const LONGEST_NAME: usize = 64;
/// The first port of the exchange of parameters; each run has one of its own, so that a run that
/// failed does not hold up the next one.
const FIRST_PORT: u16 = 18515;
/// Rates of a port in Gb/s that are believed: a guest's kernel decides on them.
const LEAST_RATE: f64 = 0.1;
const MOST_RATE: f64 = 1e5;
/// How much longer than its own time a run may take, in seconds: GPU memory is set up first.
const SETUP_S: u64 = 30;

/// An RDMA device of a guest whose first port is active.
#[derive(Debug, Clone, PartialEq)]
pub struct RdmaDevice {
    /// Its name: `mlx5_0`.
    pub name: String,
    /// Rate of the port in Gb/s, by the guest's kernel.
    pub line_gbit_s: Option<f64>,
    /// PCI address in the guest.
    pub at: Option<Bdf>,
}

/// The links on the host of the NICs of a guest, by addresses in the guest.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NicLinks {
    /// GB/s of the PCIe path to each NIC, as NCCL counts; none if a link is not known.
    pub nics: BTreeMap<Bdf, Option<f64>>,
    /// The relation of each NIC to each GPU.
    pub pairs: BTreeMap<(Bdf, Bdf), NicGpu>,
}

/// The relation of a NIC to a GPU of one guest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NicGpu {
    /// Number of ports from the NIC up to the switch that both are below; `None` if they meet at a
    /// root complex or across sockets.
    pub steps: Option<usize>,
    /// The transfers by which the NIC writes the GPU's memory.
    pub write: NicTransfer,
    /// Those by which it reads it.
    pub read: NicTransfer,
}

/// Transfers between a NIC and a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NicTransfer {
    /// Their way.
    pub way: Way,
    /// GB/s of the slowest link on it, as NCCL counts; none if a link is not known.
    pub gb_s: Option<f64>,
}

impl NicLinks {
    /// The relation of a device to a GPU of the guest; `None` if the address of one is not known.
    fn pair(&self, device: &RdmaDevice, gpu: Option<Bdf>) -> Option<&NicGpu> {
        self.pairs.get(&(device.at?, gpu?))
    }

    /// The rate at which a side's device reads or writes the memory of its run. `gpus`: addresses
    /// of the GPUs in the guest. Where an address or a register is not known, so is the rate of
    /// GPU memory; none is expected of transfers that a port rejects.
    pub fn reach(&self, side: RdmaSide<'_>, gpus: &[Option<Bdf>], op: Op) -> RdmaReach {
        let Some(gpu) = side.gpu else {
            let gb_s = side.device.at.and_then(|at| *self.nics.get(&at)?);
            return RdmaReach { gb_s, part: Some(LINE_PART) };
        };
        let pair = self.pair(side.device, gpus.get(gpu).copied().flatten());
        let transfer = pair.map(|pair| match op {
            Op::Write => pair.write,
            Op::Read => pair.read,
        });
        let part = transfer.and_then(|transfer| match transfer.way {
            Way::Switch => Some(LINE_PART),
            Way::Root => Some(ROOT_PART),
            Way::Unknown | Way::Rejected => None,
        });
        RdmaReach { gb_s: transfer.and_then(|transfer| transfer.gb_s), part }
    }
}

impl Tool {
    /// The operations of the devices of the measuring and of the answering side on the memory
    /// of their guests.
    pub fn rdma_ops(self) -> [Op; 2] {
        match self {
            Tool::IbReadBw => [Op::Write, Op::Read],
            _ => [Op::Read, Op::Write],
        }
    }
}

/// Two devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaPair {
    /// The device of the measured guest, by its position.
    pub client: usize,
    /// The device that answers, by its position in the other guest, or in the same one.
    pub server: usize,
}

/// Both sides of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaCall {
    /// The side that measures.
    pub client: Call,
    /// Arguments of the side that answers, which is started first.
    pub server: Vec<String>,
}

/// A side of a run.
#[derive(Debug, Clone, Copy)]
pub struct RdmaSide<'a> {
    /// Its device.
    pub device: &'a RdmaDevice,
    /// The GPU whose memory is used; `None` for memory of the guest.
    pub gpu: Option<usize>,
}

/// Reads names of devices from a list of `/sys/class/infiniband`, by their numbers. A name that no
/// kernel gives is left out: it becomes an argument.
pub fn read_rdma_names(listing: &str) -> Vec<String> {
    let is_plain = |name: &&str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        !name.is_empty()
            && name.len() <= LONGEST_NAME
            && !name.starts_with('-')
            && name.chars().all(plain)
    };
    let names = listing.lines().map(str::trim).filter(is_plain).map(str::to_owned);
    // Each once: a device listed twice would be paired with itself.
    let names: BTreeSet<String> = names.collect();
    let mut names: Vec<String> = names.into_iter().collect();
    // `mlx5_10` comes after `mlx5_9`.
    let key = |name: &String| {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = name[stem.len()..].parse::<u64>().unwrap_or(0);
        (stem.to_owned(), number)
    };
    names.sort_by_key(key);
    names.truncate(MOST_DEVICES);
    names
}

/// Reads the files `state` (`4: ACTIVE`) and `rate` (`200 Gb/sec (4X HDR)`) of a device's port, one
/// after the other (kernel, ABI sysfs-class-infiniband), and the file `uevent` of its PCI function;
/// `None` unless the port is active.
pub fn read_rdma_port(name: &str, files: &str) -> Option<RdmaDevice> {
    let at =
        files.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME=")?.trim().parse().ok());
    let mut lines = files.lines();
    let is_active = lines.next()?.trim() == "4: ACTIVE";
    let rate = lines.next().and_then(|line| line.trim().split_once(" Gb/sec"));
    let line_gbit_s = rate.and_then(|(number, _)| number.parse::<f64>().ok());
    let line_gbit_s = line_gbit_s.filter(|rate| (LEAST_RATE..=MOST_RATE).contains(rate));
    is_active.then(|| RdmaDevice { name: name.to_owned(), line_gbit_s, at })
}

/// Pairs devices: each with the one at the same place in the other guest, or in one guest each
/// second one with the one before it, and the last of an odd number with itself.
pub fn rdma_pairs(own: usize, peer: Option<usize>) -> Vec<RdmaPair> {
    match peer {
        Some(peer) => (0..own.min(peer)).map(|at| RdmaPair { client: at, server: at }).collect(),
        None => {
            let firsts = (0..own).step_by(2);
            firsts.map(|at| RdmaPair { client: at, server: (at + 1).min(own - 1) }).collect()
        }
    }
}

/// Returns the GPU that goes with a device: one at the nearest PCIe switch with GPUs, and another
/// one for each device there; without such a switch the devices are spread evenly over the GPUs.
/// Settings of ports have no part in it.
pub fn rdma_gpu(
    device: usize,
    devices: &[RdmaDevice],
    gpus: &[Option<Bdf>],
    links: &NicLinks,
) -> Option<usize> {
    let near = |device: &RdmaDevice| -> Vec<usize> {
        let steps = |gpu: usize| links.pair(device, gpus[gpu]).and_then(|pair| pair.steps);
        let all = (0..gpus.len()).filter_map(|gpu| Some((gpu, steps(gpu)?)));
        let all: Vec<(usize, usize)> = all.collect();
        let least = all.iter().map(|(_, steps)| *steps).min();
        all.into_iter().filter(|(_, steps)| Some(*steps) == least).map(|(gpu, _)| gpu).collect()
    };
    let own = near(devices.get(device)?);
    if own.is_empty() {
        return (!gpus.is_empty()).then(|| device * gpus.len() / devices.len());
    }
    let before = devices[..device].iter().filter(|other| near(other) == own).count();
    Some(own[before % own.len()])
}

/// Returns a run between two sides. `run`: its number, `pair`: its name in the results, `address`:
/// that of the side that answers.
pub fn rdma_call(
    tool: Tool,
    suite: Suite,
    run: u16,
    pair: String,
    (client, server): (RdmaSide<'_>, RdmaSide<'_>),
    address: Ipv4Addr,
) -> RdmaCall {
    let seconds: u64 = if suite == Suite::Full { 20 } else { 5 };
    let port = FIRST_PORT + run % 1000;
    let words = |side: RdmaSide<'_>| {
        let name = &side.device.name;
        let gpu = side.gpu.map(|gpu| format!(" --use_cuda={gpu}")).unwrap_or_default();
        // -F: a changing clock rate is no error.
        let words = format!("-d {name} -F -D {seconds} --report_gbits -p {port}{gpu}");
        words.split(' ').map(str::to_owned).collect::<Vec<String>>()
    };
    let what = match (tool, client.gpu.is_some()) {
        (Tool::IbReadBw, false) => What::RdmaRead,
        (Tool::IbReadBw, true) => What::RdmaReadGpu,
        (_, false) => What::RdmaWrite,
        (_, true) => What::RdmaWriteGpu,
    };
    let mut own = words(client);
    // Nothing is written in the guest.
    own.extend(["--out_json", "--out_json_file=/dev/stdout"].map(str::to_owned));
    own.push(address.to_string());
    let limit_s = seconds + SETUP_S;
    let call = Call { device: Some(pair), ..Call::of(tool, Some(what), own, limit_s) };
    RdmaCall { client: call, server: words(server) }
}
