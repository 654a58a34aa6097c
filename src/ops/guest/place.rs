//! The place in an answer of `gpuvm plan --json`: a guest that is made from it gets exactly this
//! one, or is refused.

use crate::cpuset::CpuSet;
use crate::domain::guest::VirtType;
use crate::error::{Class, NoPlace, Result, classed};
use crate::input;
use crate::memsize::MemSize;
use crate::placement::{Occupancy, Placement};
use crate::request::{DeviceWish, DomainName, GpuWish, HugePages, Request};
use crate::topology::{DeviceKind, GuestVgpu, Topology};
use serde::Deserialize;
use std::path::{Path, PathBuf};

const FORMAT: &str = "gpuvm-plan";
const VERSION: u32 = 1;
/// The largest plan, in bytes.
const MOST: u64 = 16 << 20;
/// The remedy for a plan that does not hold.
const HINT: &str = "plan again: `gpuvm plan --json`, with the options of this plan";

/// A plan that was made before.
#[derive(Debug, Clone)]
pub struct PlannedPlace {
    path: PathBuf,
    /// The guest's name.
    pub name: DomainName,
    /// The request.
    pub request: Request,
    /// The template that was named for it.
    pub template: Option<PathBuf>,
    /// How it is run, if not as usual.
    pub virt: Option<VirtType>,
    placement: Placement,
}

/// The beginning of every document of gpuvm.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    format: String,
    #[serde(default)]
    version: u32,
}

/// A plan as it is written.
#[derive(Deserialize)]
struct Document {
    name: DomainName,
    request: Request,
    /// The template that was named for it.
    #[serde(default)]
    template: Option<PathBuf>,
    #[serde(default)]
    virt_type: Option<VirtType>,
    placement: Placement,
}

/// Whether vGPUs are the same, by card, function and type: `create` chooses the UUIDs of mediated
/// devices, which a plan does not have.
fn are_same(was: &[GuestVgpu], found: &[GuestVgpu]) -> bool {
    let same = |(a, b): (&GuestVgpu, &GuestVgpu)| {
        (a.card, a.function, &a.type_id) == (b.card, b.function, &b.type_id)
    };
    was.len() == found.len() && was.iter().zip(found).all(same)
}

impl PlannedPlace {
    /// The place of a guest of a file that was planned together with its others.
    pub fn of_file(
        path: &Path,
        name: DomainName,
        request: Request,
        placement: Placement,
    ) -> PlannedPlace {
        PlannedPlace { path: path.to_owned(), name, request, template: None, virt: None, placement }
    }

    /// Reads a plan from a file, or `-`: standard input.
    pub fn read(path: &Path) -> Result<PlannedPlace> {
        let text = input::text_or_stdin(path, MOST)?;
        let other = |why: String| {
            let hint = "`gpuvm plan --json >FILE` writes one";
            classed(Class::Refused, format!("{} is not a plan: {why}", path.display()), hint)
        };
        let head: Head = serde_json::from_str(&text).map_err(|error| other(error.to_string()))?;
        if (head.format.as_str(), head.version) != (FORMAT, VERSION) {
            let found = format!("format `{}` version {}", head.format, head.version);
            return Err(other(format!("{found}, not `{FORMAT}` version {VERSION}")));
        }
        let Document { name, request, template, virt_type, placement } =
            serde_json::from_str(&text).map_err(|error| other(error.to_string()))?;
        if placement.cells.is_empty() || placement.vcpu_pins.is_empty() {
            return Err(other("its placement has no cells or no vCPUs".into()));
        }
        request.check()?;
        let path = path.to_owned();
        Ok(PlannedPlace { path, name, request, template, virt: virt_type, placement })
    }

    /// The request for this place alone: its devices by address. Sizes and pages that were not
    /// asked for follow from the host alone, as they did then: both depend on each other.
    pub(super) fn exact(&self, topology: &Topology) -> Result<Request> {
        let Placement { devices, huge_pages, .. } = &self.placement;
        if let Some(bdf) = devices.iter().find(|bdf| topology.device(**bdf).is_none()) {
            let message =
                format!("{} has device {bdf}, which this host lacks", self.path.display());
            return Err(classed(Class::NotFound, message, HINT));
        }
        let of = |kind: DeviceKind, vf: Option<bool>, number: usize| {
            let devices = devices.iter().copied().filter(|&bdf| {
                topology.device(bdf).is_some_and(|device| {
                    device.kind() == kind && vf.is_none_or(|vf| device.is_vf() == vf)
                })
            });
            // Functions after these are included because the IOMMU cannot isolate them.
            devices.take(number).collect::<Vec<_>>()
        };
        let wish = |asked: &DeviceWish, kind, vf| match asked {
            DeviceWish::Count(0) => DeviceWish::default(),
            asked => DeviceWish::Exact(of(kind, vf, asked.number())),
        };
        let mut request = self.request.clone();
        // A virtual function that is a card by itself counts as one.
        let gpus = of(DeviceKind::Gpu, None, request.gpus.number() as usize);
        let extras = &mut request.extras;
        if let (DeviceWish::Count(number), [one]) = (&extras.vfs, &extras.vf_settings[..]) {
            extras.vf_settings = vec![one.clone(); *number as usize];
        }
        extras.nics = wish(&extras.nics, DeviceKind::Nic, Some(false));
        extras.vfs = wish(&extras.vfs, DeviceKind::Nic, Some(true));
        extras.nvmes = wish(&extras.nvmes, DeviceKind::Nvme, None);
        request.gpus = if gpus.is_empty() { GpuWish::Count(0) } else { GpuWish::Exact(gpus) };
        request.gpu_model = None;
        if request.huge_pages != HugePages::Auto {
            request.huge_pages = huge_pages.map_or(HugePages::Off, HugePages::Size);
        }
        Ok(request)
    }

    /// The request that a guest at this place has: also the sizes that follow from the host.
    pub(crate) fn wanted(&self, topology: &Topology) -> Result<Request> {
        let Placement { vcpu_pins, cells, .. } = &self.placement;
        let memory: u64 = cells.iter().map(|cell| cell.memory_kib.kib()).sum();
        let request = self.exact(topology)?;
        Ok(Request {
            vcpus: u32::try_from(vcpu_pins.len()).ok(),
            memory_kib: Some(MemSize::from_kib(memory)),
            huge_pages: self.placement.huge_pages.map_or(HugePages::Off, HugePages::Size),
            ..request
        })
    }

    /// Closes all cores but those of this place.
    pub(super) fn close(&self, topology: &Topology, occupancy: &mut Occupancy) {
        let Placement { vcpu_pins, emulator_pin, iothread_pins, .. } = &self.placement;
        let pins = vcpu_pins.iter().chain(iothread_pins).chain([emulator_pin]);
        let cores = pins.flat_map(|pin| pin.iter()).filter_map(|pcpu| topology.core_of(pcpu));
        let own: CpuSet = cores.flat_map(|core| core.pcpus.iter()).collect();
        // Without a pin of its own the emulator gets a core that is not in the plan.
        if vcpu_pins.iter().any(|pin| !pin.is_empty()) && !emulator_pin.is_empty() {
            occupancy.closed = topology.pcpus().minus(&own);
        }
    }

    /// Refuses a guest that has no place there any more.
    pub(super) fn refused(&self, why: &NoPlace) -> crate::error::Error {
        let path = self.path.display();
        let message = format!("the place in {path} is no longer available: {}", why.error);
        classed(Class::Changed, message, HINT)
    }

    /// Refuses a place that is not this one. I/O threads follow the disks, which a plan does not
    /// know; they are on cores of this place all the same.
    pub(super) fn expect(&self, found: &Placement) -> Result<()> {
        let was = &self.placement;
        let what = if was.devices != found.devices || !are_same(&was.vgpus, &found.vgpus) {
            "devices"
        } else if was.partition != found.partition {
            "NVLink partition"
        } else if was.vcpu_pins != found.vcpu_pins || was.emulator_pin != found.emulator_pin {
            "cores"
        } else if was.cells != found.cells || was.huge_pages != found.huge_pages {
            "memory"
        } else if was.topology != found.topology || was.guest_pcie != found.guest_pcie {
            "view of CPUs and PCIe"
        } else {
            return Ok(());
        };
        let path = self.path.display();
        let message = format!("the guest would not be as in {path}: other {what} by now");
        Err(classed(Class::Changed, message, HINT))
    }
}
