//! The requests for each host: every number of GPUs, several sizes of each.

use clap::Parser;
use gpuvm::cli::args::request;
use gpuvm::cli::args::{Cli, GuestArgs, Verb};
use gpuvm::domain::DomainXml;
use gpuvm::domain::guest::{Disk, DiskFormat, DiskKind};
use gpuvm::placement::{Occupancy, Placement, PlanError, plan};
use gpuvm::request::{PinPolicy, Request};
use gpuvm::topology::Topology;
use gpuvm_ops::guest::{Extra, render};
use gpuvm_ops::plan::with_disks;
use gpuvm_ops::planned::Planned;
use std::collections::BTreeSet;

/// The sizes requested of a host, as options.
pub fn sizes(topology: &Topology) -> Vec<String> {
    let gpus = topology.gpus().count();
    let cores = topology.cores().len();
    let pcpus = topology.pcpus().len();
    let mut all = Vec::new();
    for count in 0..=gpus {
        let base = if count == 0 { String::new() } else { format!("--gpus {count}") };
        let share = pcpus * count.max(1) / gpus.max(1);
        let vcpus: BTreeSet<usize> =
            [1, 2, 3, 8, share / 2, share, share + 1, cores, pcpus - 1, pcpus, pcpus + 1, 255, 256]
                .into_iter()
                .filter(|number| *number > 0)
                .collect();
        let mut add = |more: &str| all.push(format!("{base} {more}").trim().to_owned());
        for more in [
            "",
            "--memory 8G",
            "--memory 1G",
            "--huge-pages 2M",
            "--huge-pages 1G",
            "--huge-pages 2M --memory 8G",
            "--pins thread",
            "--pins none",
            "--cells 1",
            "--cells 2",
            "--profile nvidia-vm",
            "--reserve-cores 1",
            "--policy spread",
            "--nic 1",
            "--nvme 1",
            "--allow remote --vcpus 3",
        ] {
            add(more);
        }
        for vcpus in vcpus {
            add(&format!("--vcpus {vcpus}"));
        }
        add(&format!("--vcpus {pcpus} --allow remote"));
        add(&format!("--vcpus {cores} --pins none"));
        add(&format!("--vcpus {} --memory 8G --allow remote,split", share.max(1)));
    }
    all.push(format!("--gpus {}", gpus + 1));
    all
}

/// A host and a size, with the answer of `plan`.
pub struct Asked<'a> {
    /// The host.
    pub topology: &'a Topology,
    /// The arguments.
    pub args: GuestArgs,
    /// The request in them.
    pub request: Request,
    /// Existing guests.
    pub others: Occupancy,
    /// The answer of `plan`.
    pub answer: Result<Placement, PlanError>,
}

impl<'a> Asked<'a> {
    /// Asks an empty host.
    pub fn new(topology: &'a Topology, size: &str) -> Asked<'a> {
        Asked::beside(topology, size, Occupancy::default())
    }

    /// Asks a host with guests.
    pub fn beside(topology: &'a Topology, size: &str, others: Occupancy) -> Asked<'a> {
        let line = format!("gpuvm export {size}");
        let args = match Cli::try_parse_from(line.split_whitespace()).unwrap().verb {
            Verb::Export(args) => args.guest.clone(),
            _ => unreachable!(),
        };
        let mut request =
            request(&args.gpus, &args.shape).unwrap_or_else(|e| panic!("{size}: {e}"));
        let mut answer = plan(topology, &others, &request);
        if let Ok(placement) = &mut answer {
            with_disks(placement, 1, 0, false);
            // As it is remembered.
            if request.pins == PinPolicy::Auto {
                request.pins = placement.pins();
            }
        }
        Asked { topology, args, request, others, answer }
    }

    /// The XML of `export` for the placement.
    pub fn export(&self, placement: &Placement) -> Result<DomainXml, String> {
        let planned = Planned {
            topology: self.topology.clone(),
            request: self.request.clone(),
            placement: placement.clone(),
            name: "law".parse().unwrap(),
            occupancy: self.others.clone(),
            stack: None,
        };
        // As `create` makes one.
        let disk = Disk::new("/law.raw", DiskFormat::Raw, DiskKind::File);
        let extra = Extra { disks: vec![disk], ..Extra::default() };
        render(&self.args.request().unwrap(), &planned, &extra)
            .map_err(|error| format!("{error:#}"))
    }
}
