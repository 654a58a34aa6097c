//! Compares a definition with the request when gpuvm made the guest. Values left to the planner are
//! not recorded, and not judged.

use super::report::{Between, Report, Wrong};
use crate::bdf::Bdf;
use crate::check::guest::Guest;
use crate::domain::DomainXml;
use crate::finding::Rule;
use crate::memsize::MemSize;
use crate::request::{CellWish, GpuWish, HugePages, IommufdWish, PageSize, PinPolicy, Request};
use crate::shell::word;
use crate::topology::{DeviceKind, Topology};

/// `--vcpus`.
const VCPUS: Rule = Rule::warning("plan-vcpus", "another number of vCPUs than was requested");
/// `--memory`.
const MEMORY: Rule = Rule::warning("plan-memory", "another amount of memory than was requested");
/// `--huge-pages`.
const PAGES: Rule = Rule::warning("plan-pages", "other pages than requested");
/// `--pins`.
const PINS: Rule = Rule::warning("plan-pins", "vCPUs pinned otherwise than was requested");
/// `--cells`, `--threads`.
const CELLS: Rule = Rule::warning("plan-cells", "other cells or threads than requested");
/// `--gpus`, `--gpu`, `--nic`, `--vf`, `--nvme`.
const DEVICES: Rule = Rule::warning("plan-devices", "other passed devices than requested");
/// `--iommufd`.
const IOMMUFD: Rule =
    Rule::warning("plan-iommufd", "functions passed in another way than was requested");

/// Rules of this module.
pub const RULES: &[Rule] = &[VCPUS, MEMORY, PAGES, PINS, CELLS, DEVICES, IOMMUFD];

/// Compares a definition with its recorded request; without a record nothing is reported.
pub fn compare(
    definition: &DomainXml,
    defined: &Guest<'_>,
    topology: Option<&Topology>,
    report: &mut Report,
) {
    let Ok(Some(record)) = definition.record() else { return };
    let mut plan = Plan { report, name: definition.name() };
    plan.shape(&record.request, defined);
    plan.pins(&record.request, defined);
    plan.iommufd(record.request.iommufd, defined);
    if let Some(topology) = topology.filter(|topology| !topology.devices().is_empty()) {
        plan.devices(&record.request, defined, topology);
    }
}

/// The page size of a definition that names one.
fn used(defined: &Guest<'_>) -> Option<MemSize> {
    defined.huge_pages.as_ref()?.value.first().map(|page| page.size.value)
}

struct Plan<'r> {
    report: &'r mut Report,
    name: String,
}

impl Plan<'_> {
    fn report(
        &mut self,
        rule: &'static Rule,
        what: &str,
        expected: String,
        found: String,
        at: &str,
    ) {
        if expected != found {
            let hint = format!("`gpuvm show {}` shows what was requested", word(&self.name));
            let (what, at) = (what.to_owned(), format!("{at} of the definition"));
            let wrong = Wrong { what, expected, found, at, hint: &hint };
            self.report.differs(rule, Between::Plan, wrong);
        }
    }

    fn shape(&mut self, request: &Request, defined: &Guest<'_>) {
        if let Some(vcpus) = request.vcpus {
            let found = defined.vcpus.value;
            self.report(&VCPUS, "vCPUs", vcpus.to_string(), found.to_string(), "/domain/vcpu");
        }
        let cells = defined.cells.len().max(1);
        if let Some(memory) = request.memory_kib {
            // The amount is rounded to pages; an older version rounded the memory of each cell.
            let left = (request.huge_pages == HugePages::Auto).then(|| used(defined)).flatten();
            let asked = request.huge_pages.asked().unwrap_or(PageSize::TwoMib).size();
            let page = left.unwrap_or(asked);
            let slack = page.kib().saturating_mul(cells as u64);
            let found = defined.memory.value;
            if memory.kib().abs_diff(found.kib()) > slack {
                let (expected, found) = (memory.to_string(), found.to_string());
                self.report(&MEMORY, "memory", expected, found, "/domain/memory");
            }
        }
        self.pages(request.huge_pages, defined);
        if let CellWish::Count(count) = request.cells {
            let (expected, found) = (count.to_string(), cells.to_string());
            self.report(&CELLS, "cells", expected, found, "/domain/cpu/numa");
        }
        if let Some(threads) = request.threads {
            let shown = defined.cpu.as_ref().and_then(|cpu| cpu.topology.as_ref());
            let found = shown.map_or(1, |shown| shown.value[4]);
            let (expected, found) = (threads.to_string(), found.to_string());
            self.report(&CELLS, "threads of a core", expected, found, "/domain/cpu/topology");
        }
    }

    /// Compares the pages that back the memory.
    fn pages(&mut self, asked: HugePages, defined: &Guest<'_>) {
        let normal = || "normal pages".to_owned();
        let expected = match asked {
            HugePages::Auto => return,
            HugePages::Off => normal(),
            HugePages::Size(page) => page.size().to_string(),
        };
        let found = match defined.huge_pages.as_ref().map(|pages| pages.value.first()) {
            None => normal(),
            Some(None) => "the host's default size".into(),
            Some(Some(page)) => page.size.value.to_string(),
        };
        self.report(&PAGES, "pages", expected, found, "/domain/memoryBacking");
    }

    /// Compares the pins of vCPUs: each to one pcpu, or none.
    fn pins(&mut self, request: &Request, defined: &Guest<'_>) {
        let alone = defined.vcpu_pins.iter().filter(|pin| pin.cpuset.value.len() == 1).count();
        let (expected, found) = match request.pins {
            PinPolicy::Auto => return,
            PinPolicy::Core | PinPolicy::Thread => (defined.vcpus.value as usize, alone),
            PinPolicy::None => (0, defined.vcpu_pins.len()),
        };
        let what = "vCPUs with a pcpu of their own";
        self.report(&PINS, what, expected.to_string(), found.to_string(), "/domain/cputune");
    }

    /// Compares the way of functions. That of an argument of QEMU is not libvirt's.
    fn iommufd(&mut self, asked: IommufdWish, defined: &Guest<'_>) {
        let is_asked = match asked {
            IommufdWish::Auto => return,
            IommufdWish::On => true,
            IommufdWish::Off => false,
        };
        let mut passed = defined.passed.iter().filter(|passed| !passed.by_argument);
        let Some(other) = passed.find(|passed| passed.iommufd != is_asked) else { return };
        let name = |is_iommufd| if is_iommufd { "by iommufd" } else { "by its VFIO group" };
        let what = format!("{} is passed", other.bdf.value);
        let (expected, found) = (name(is_asked).to_owned(), name(other.iommufd).to_owned());
        self.report(&IOMMUFD, &what, expected, found, "/domain/iommufd");
    }

    fn devices(&mut self, request: &Request, defined: &Guest<'_>, topology: &Topology) {
        let passed: Vec<Bdf> = defined.passed.iter().map(|passed| passed.bdf.value).collect();
        let number = |kind, vf| topology.among(&passed, kind, vf);
        let gpus = match &request.gpus {
            GpuWish::Count(count) | GpuWish::Run { count, .. } => *count as usize,
            GpuWish::Exact(bdfs) => bdfs.len(),
            GpuWish::Indexes(indexes) => indexes.len(),
        };
        let extras = &request.extras;
        for (what, expected, found) in [
            ("GPUs", gpus, number(DeviceKind::Gpu, false)),
            ("NICs", extras.nics.number(), number(DeviceKind::Nic, false)),
            ("virtual functions", extras.vfs.number(), number(DeviceKind::Nic, true)),
            ("NVMe drives", extras.nvmes.number(), number(DeviceKind::Nvme, false)),
        ] {
            // Other members of a function's IOMMU group go with it without a request.
            let mates = found.iter().enumerate().filter(|(at, device)| {
                let group = device.iommu_group;
                group.is_some() && found[..*at].iter().any(|before| before.iommu_group == group)
            });
            let unasked = mates.count().min(found.len().saturating_sub(expected));
            let (expected, found) = (expected.to_string(), (found.len() - unasked).to_string());
            self.report(&DEVICES, &format!("passed {what}"), expected, found, "/domain/devices");
        }
        if let GpuWish::Exact(wanted) = &request.gpus {
            let has = |bdf| defined.passed.iter().any(|passed| passed.bdf.value == bdf);
            for &bdf in wanted.iter().filter(|&&bdf| !has(bdf)) {
                let what = format!("GPU {bdf}");
                self.report(
                    &DEVICES,
                    &what,
                    "passed".into(),
                    "not there".into(),
                    "/domain/devices",
                );
            }
        }
    }
}
