//! RDMA between NICs of a guest, or between two guests, by perftest: one side answers, the other
//! one measures.

use super::inside::{Inside, Started};
use super::{Ended, Judged, taken};
use crate::address::{AddressWanted, Addresses, addresses};
use crate::error::Result;
use crate::world::World;
use gpuvm_core::bdf::Bdf;
use gpuvm_core::measure::{
    MeasureReport, NicLinks, NotMeasured, Promise, RdmaCall, RdmaDevice, RdmaPromise, RdmaSide,
    Suite, Tool, rdma_call, rdma_gpu, rdma_pairs,
};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// How long the answering side may take until it listens, and between two attempts.
const ATTEMPTS: usize = 8;
const PAUSE: Duration = Duration::from_millis(700);
/// How long attempts are repeated in all: each may take as long as a run.
const LISTENS: Duration = Duration::from_secs(15);
/// How long to wait for the address of the other guest, in seconds.
const ADDRESS_S: u64 = 10;

/// The other guest.
pub(super) struct Peer<'a> {
    pub(super) inside: Inside<'a>,
    pub(super) gpus: Gpus,
}

/// The GPUs of a guest.
pub(super) struct Gpus {
    /// Their addresses in the guest.
    pub(super) at: Vec<Option<Bdf>>,
    /// The links of the guest's NICs.
    pub(super) nics: NicLinks,
}

/// Why a guest cannot take part.
struct Lack {
    why: String,
    /// Whether it has no RDMA device at all.
    is_device: bool,
}

/// A guest and its RDMA devices.
struct Ends<'a, 'i> {
    inside: &'a Inside<'i>,
    devices: Vec<RdmaDevice>,
    gpus: &'a Gpus,
    program: String,
}

impl<'a, 'i> Ends<'a, 'i> {
    /// Reads a guest; the other result is why nothing can be measured.
    fn of(
        inside: &'a Inside<'i>,
        gpus: &'a Gpus,
        tool: Tool,
    ) -> Result<std::result::Result<Self, Lack>> {
        let name = inside.name;
        let devices = inside.rdma_devices()?;
        if devices.is_empty() {
            let why = format!("guest `{name}` has no RDMA device with an active port");
            return Ok(Err(Lack { why, is_device: true }));
        }
        let Some(program) = inside.find(|directories| tool.paths(directories))? else {
            let why = format!("guest `{name}` does not have it");
            return Ok(Err(Lack { why, is_device: false }));
        };
        Ok(Ok(Ends { inside, devices, gpus, program }))
    }

    /// The side of a device, with the memory of its GPU or of the guest.
    fn side(&self, at: usize, of_gpu: bool) -> RdmaSide<'_> {
        let gpu = rdma_gpu(at, &self.devices, &self.gpus.at, &self.gpus.nics).filter(|_| of_gpu);
        RdmaSide { device: &self.devices[at], gpu }
    }
}

/// Measures all pairs of devices, with the memory of guests and with that of GPUs. `is_named`:
/// whether the caller wants RDMA; else a guest without a device is none to report.
pub(super) fn measure(
    world: &World,
    (guest, gpus, peer): (&Inside<'_>, &Gpus, Option<&Peer<'_>>),
    (tool, suite): (Tool, Suite),
    is_named: bool,
    report: &mut MeasureReport,
    judged: &Judged<'_>,
    progress: &dyn Fn(&str),
) -> Result<()> {
    let mut skip = |why: String| {
        report.not_measured.push(NotMeasured { tool, why });
        Ok(())
    };
    let own = match Ends::of(guest, gpus, tool)? {
        Ok(own) => own,
        Err(lack) if lack.is_device && !is_named => return Ok(()),
        Err(lack) => return skip(lack.why),
    };
    let other = match peer {
        None => None,
        Some(peer) => match Ends::of(&peer.inside, &peer.gpus, tool)? {
            Ok(other) => Some(other),
            Err(lack) => return skip(lack.why),
        },
    };
    let address = match peer {
        None => Ipv4Addr::LOCALHOST,
        Some(peer) => match address(world, &peer.inside)? {
            IpAddr::V4(address) => address,
            IpAddr::V6(address) => {
                let name = peer.inside.name;
                return skip(format!("it needs an IPv4 address of `{name}`, which has {address}"));
            }
        },
    };
    let ends = (&own, other.as_ref());
    measure_pairs(ends, address, (tool, suite), report, judged, progress);
    Ok(())
}

/// Measures each pair of devices.
fn measure_pairs(
    (own, other): (&Ends<'_, '_>, Option<&Ends<'_, '_>>),
    address: Ipv4Addr,
    (tool, suite): (Tool, Suite),
    report: &mut MeasureReport,
    judged: &Judged<'_>,
    progress: &dyn Fn(&str),
) {
    let answers = other.unwrap_or(own);
    let pairs = rdma_pairs(own.devices.len(), other.map(|other| other.devices.len()));
    let has_gpus = !own.gpus.at.is_empty() && !answers.gpus.at.is_empty();
    if !has_gpus && (!own.gpus.at.is_empty() || !answers.gpus.at.is_empty()) {
        let without = if own.gpus.at.is_empty() { own } else { answers };
        let name = without.inside.name;
        let why = format!("GPU memory: guest `{name}` shows no GPU with NVIDIA's driver");
        report.not_measured.push(NotMeasured { tool, why });
    }
    for (run, pair) in (0..).zip(&pairs) {
        for of_gpu in [false, true].into_iter().filter(|of_gpu| !of_gpu || has_gpus) {
            let sides = (own.side(pair.client, of_gpu), answers.side(pair.server, of_gpu));
            let name = named(&sides, other.map(|other| other.inside.name));
            // Writes and reads, with both kinds of memory: each run has a port of its own.
            let run = run * 4 + u16::from(of_gpu) * 2 + u16::from(tool == Tool::IbReadBw);
            let call = rdma_call(tool, suite, run, name.clone(), sides, address);
            progress(&format!("{tool}, {name}: up to {} s", call.client.limit_s));
            let lines = [sides.0.device.line_gbit_s, sides.1.device.line_gbit_s];
            // A NIC that exchanges data with itself uses no line.
            let is_same = other.is_none() && pair.client == pair.server;
            let line = lines[0].zip(lines[1]).map(|(a, b)| a.min(b)).filter(|_| !is_same);
            let [client, server] = tool.rdma_ops();
            let reached = [
                own.gpus.nics.reach(sides.0, &own.gpus.at, client),
                answers.gpus.nics.reach(sides.1, &answers.gpus.at, server),
            ];
            let rdma = RdmaPromise { line_gbit_s: line, sides: reached };
            let promise = Promise { rdma, ..Promise::default() };
            let outcome = run_both(own, answers, &call)
                .map_err(|error| error.whole())
                .and_then(|ended| taken(&call.client, &ended));
            match outcome {
                Ok(found) => judged.add(tool, found, promise, report),
                Err(why) => {
                    let why = format!("{name}{}: {why}", if of_gpu { ", GPU memory" } else { "" });
                    report.not_measured.push(NotMeasured { tool, why });
                }
            }
        }
    }
}

/// The name of a pair in results: `mlx5_0 to mlx5_1`, `mlx5_0 to mlx5_0 of train-b`.
fn named((client, server): &(RdmaSide<'_>, RdmaSide<'_>), peer: Option<&str>) -> String {
    let of = peer.map(|peer| format!(" of {peer}")).unwrap_or_default();
    format!("{} to {}{of}", client.device.name, server.device.name)
}

/// Starts the answering side and runs the other one, again while nothing listens yet.
fn run_both(own: &Ends<'_, '_>, answers: &Ends<'_, '_>, call: &RdmaCall) -> Result<Ended> {
    let limit_s = call.client.limit_s;
    let _answering: Started = answers.inside.begin(&answers.program, &call.server, limit_s)?;
    let mut left = ATTEMPTS;
    let until = Instant::now() + LISTENS;
    loop {
        std::thread::sleep(PAUSE);
        left -= 1;
        let ended = own.inside.run(&own.program, &call.client.words, limit_s)?;
        if left == 0 || Instant::now() >= until || !is_unanswered(&ended) {
            return Ok(ended);
        }
    }
}

/// Whether nothing listened. Other lines follow the one that says so.
fn is_unanswered(ended: &Ended) -> bool {
    let has = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("Couldn't connect to ");
    ended.status != 0 && (has(&ended.stderr) || has(&ended.stdout))
}

/// The address at which the measured guest reaches the other one.
fn address(world: &World, peer: &Inside<'_>) -> Result<IpAddr> {
    if let Some(address) = peer.address() {
        return Ok(address);
    }
    let wanted = AddressWanted { name: peer.name.to_owned(), wait_s: ADDRESS_S, all: false };
    match addresses(world, &wanted)? {
        Addresses::Best(found) => Ok(found.ip),
        Addresses::All(_) => unreachable!("one address is requested"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use gpuvm_core::measure::Basis;

    /// The values of RDMA writes between devices of a guest, by pair.
    pub(crate) fn measured(
        inside: &Inside<'_>,
        devices: Vec<RdmaDevice>,
        program: String,
    ) -> Vec<(String, f64)> {
        let gpus = Gpus { at: Vec::new(), nics: NicLinks::default() };
        let own = Ends { inside, devices, gpus: &gpus, program };
        let mut report = crate::measure::tests::report();
        let how = (Tool::IbWriteBw, Suite::Quick);
        let judged = Judged(Basis::of(&[]));
        measure_pairs((&own, None), Ipv4Addr::LOCALHOST, how, &mut report, &judged, &|_| {});
        assert_eq!(report.not_measured, []);
        let lines = report.lines.into_iter().map(|line| line.reading);
        lines.map(|reading| (reading.device.unwrap(), reading.value)).collect()
    }
}
