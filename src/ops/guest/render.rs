//! From a planned guest to its domain XML: reads the template. Defines and creates nothing.

use super::GuestRequest;
use crate::domain::guest::{
    Abilities, Bound, Disk, Guarded, Guest, Made, Record, Reserved, SPARE_PORTS, VirtType,
    mdev_uuid,
};
use crate::domain::nic_request::{NicWish, QUEUES_HINT};
use crate::domain::{DomainEdit, DomainXml, check_architecture, edits};
use crate::error::{Coded, Doing as _, Result};
use crate::input::{self, DOMAIN_BYTES};
use crate::placement::Placement;
use crate::planned::Planned;
use crate::request::Request;
use crate::topology::{KnownDevice, Topology};
use crate::world::{RecordedStack, World};
use gpuvm_core::iommufd::{Lack, Way};
use gpuvm_core::versions::{LIBVIRT_VGPU, Stack, Version};
use std::path::Path;

/// The reason a definition cannot be written.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "guest-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum RenderError {
    /// A NIC has more queues than its guest can use.
    #[error("{why}")]
    TooManyQueues {
        /// Which NIC, and how many it can use.
        why: String,
    },
    /// vCPUs cannot be plugged into a guest of this architecture.
    #[error("guests of this architecture cannot get vCPUs while they run")]
    NoHotplug,
    /// The machine type is of another architecture than the template.
    #[error("machine `{machine}` is not one of a guest of `{architecture}`")]
    Machine { machine: String, architecture: &'static str },
    /// libvirt's QEMU does not have the machine type.
    #[error("this host's QEMU does not have machine `{machine}`: {why}")]
    NoMachine { machine: String, why: String },
    /// The host, its libvirt or its QEMU lack something for functions that are passed through by
    /// iommufd.
    #[error("functions cannot be passed through by iommufd: {why}")]
    NoIommufd { why: String },
    /// libvirt refuses functions that are not bound to vfio-pci.
    #[error("libvirt is {version}, and vGPUs on virtual functions need {LIBVIRT_VGPU} or later")]
    OldLibvirt { version: Version },
    /// The host's kernel lacks what libvirt needs to pass any function through.
    #[error("functions cannot be passed through: {why}")]
    NoGroups { why: String },
}

impl Coded for RenderError {}

/// The hint where functions cannot be passed through by iommufd.
pub(crate) const BY_GROUPS: &str = "`--iommufd off` passes them through by VFIO groups";

/// The template for x86 hosts if the admin names none.
const X86: &str = include_str!("../../../templates/gpu-guest.xml");
/// The template for Arm hosts if the admin names none.
const AARCH64: &str = include_str!("../../../templates/gpu-guest-aarch64.xml");

/// The parts that a change adds to a guest beyond the request.
#[derive(Debug, Clone, Default)]
pub struct Extra {
    /// Its UUID, unless its template has one; `None` if not yet chosen.
    pub uuid: Option<String>,
    /// Its disks, the boot disk first.
    pub disks: Vec<Disk>,
    /// Networks that get a NIC unless the guest has one there already.
    pub networks: Vec<String>,
    /// Whether it gets none of the NICs of its template.
    pub without_nics: bool,
    /// Disks that are created for the guest and removed with it.
    pub made: Vec<Made>,
    /// The disk features of the hypervisor.
    pub abilities: Abilities,
    /// Functions that are bound for the guest.
    pub bound: Vec<Bound>,
    /// The identities of its passed-through functions.
    pub known: Vec<KnownDevice>,
    /// Huge pages that are reserved for the guest.
    pub reserved: Vec<Reserved>,
    /// Virtual functions that are configured on their cards for the guest.
    pub guarded: Vec<Guarded>,
    /// Networks that hand out virtual functions.
    pub vf_pools: Vec<String>,
    /// The user that the guest's seed makes.
    pub user: Option<String>,
    /// The stack that is assumed of a recorded host; `None` if it is known.
    pub assumed: Option<Stack>,
}

/// Renders a planned guest's domain XML from its template.
pub fn render(wanted: &GuestRequest, planned: &Planned, extra: &Extra) -> Result<DomainXml> {
    let mut xml = template_of(wanted, &planned.topology)?;
    if extra.without_nics {
        xml = DomainXml::parse(&without_nics(xml.text()))?;
    }
    let mac_key = xml.uuid().or_else(|| extra.uuid.clone());
    let key = mac_key.clone().unwrap_or_else(|| planned.name.to_string());
    let placement = planned.placement.clone().with_mdevs(|nth| mdev_uuid(&key, nth));
    let record = Record {
        request: planned.request.clone(),
        made: extra.made.clone(),
        bound: extra.bound.clone(),
        reserved: extra.reserved.clone(),
        guarded: extra.guarded.clone(),
        vgpus: placement.vgpus.clone(),
        nccl: None,
        known: extra.known.clone(),
        user: extra.user.clone(),
        assumed: extra.assumed,
    };
    let guest = Guest {
        name: planned.name.clone(),
        mac_key,
        virt: wanted.virt,
        disks: extra.disks.clone(),
        networks: wanted.networks.clone(),
        added_networks: extra.networks.clone(),
        vf_pools: extra.vf_pools.clone(),
        taken_macs: planned.occupancy.domains.iter().flat_map(|held| held.macs.clone()).collect(),
        spare_ports: planned.request.spare_ports.unwrap_or(SPARE_PORTS),
        abilities: extra.abilities,
        record,
    };
    let edits = edits(&xml, &guest, &placement, &planned.topology)?;
    xml.apply_all(&edits)?;
    let vcpus = planned.placement.vcpus();
    if let Some(start) = planned.request.vcpus_at_start.filter(|start| *start < vcpus) {
        xml.apply(&DomainEdit::SetPlugged { vcpus: Some(start) })?;
    }
    Ok(xml)
}

/// A domain's text without its NICs.
fn without_nics(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, nic)) = rest.split_once("<interface") {
        kept += before;
        let (open, after) = nic.split_once('>').unwrap_or((nic, ""));
        rest = match after.split_once("</interface>") {
            Some((_, after)) if !open.ends_with('/') => after,
            _ => after,
        };
    }
    kept + rest
}

/// Refuses room for more vCPUs where the guest cannot get any while it runs.
pub(super) fn refuse_room(
    wanted: &GuestRequest,
    request: &Request,
    topology: &Topology,
) -> Result<()> {
    let (Some(start), Some(vcpus)) = (request.vcpus_at_start, request.vcpus) else { return Ok(()) };
    if start < vcpus && !template_of(wanted, topology)?.is_x86() {
        let hint = format!("--vcpus {vcpus}, without --max-vcpus");
        return Err(RenderError::NoHotplug.hint(hint));
    }
    Ok(())
}

/// Refuses a machine type of another architecture, and one that libvirt's QEMU does not have.
pub(super) fn refuse_machine(
    world: &World,
    wanted: &GuestRequest,
    request: &Request,
    topology: &Topology,
) -> Result<()> {
    let Some(machine) = &request.machine else { return Ok(()) };
    let is_x86 = template_of(wanted, topology)?.is_x86();
    let (name, other) = (machine.to_string(), if is_x86 { "q35" } else { "virt" });
    if is_x86 != machine.is_x86() {
        let architecture = if is_x86 { "x86_64" } else { "aarch64" };
        let hint = format!("--machine {other}, or leave it out");
        return Err(RenderError::Machine { machine: name, architecture }.hint(hint));
    }
    if world.is_recorded() {
        return Ok(());
    }
    let Some(hypervisor) = world.hypervisor_to_look()? else { return Ok(()) };
    match hypervisor.refuses_machine(&name, wanted.virt) {
        None => Ok(()),
        Some(why) => {
            let hint = format!(
                "`virsh capabilities` lists those that it has; --machine {other} takes the newest"
            );
            Err(RenderError::NoMachine { machine: name, why }.hint(hint))
        }
    }
}

/// Refuses GPUs with coherent memory for a guest without KVM: QEMU nests no SMMUv3 there.
pub(super) fn refuse_emulated(virt: VirtType, planned: &Planned) -> Result<()> {
    let Some(own) = planned.placement.initiators.as_ref().and_then(|all| all.gpus.first()) else {
        return Ok(());
    };
    if virt == VirtType::Kvm {
        return Ok(());
    }
    let why = format!("{} needs an SMMUv3 that is nested in the host's, and so KVM", own.gpu);
    Err(RenderError::NoIommufd { why }.hint("leave --virt-type out"))
}

/// Refuses vGPUs that libvirt is too old for, functions passed through by iommufd that the host
/// could not pass through so, and those that could not reach each other then. `stack`: libvirt and
/// QEMU of a recorded host.
pub(crate) fn refuse_iommufd(
    world: &World,
    (topology, stack): (&Topology, Option<RecordedStack>),
    request: &Request,
    placement: &Placement,
) -> Result<()> {
    let is_by_iommufd = request.is_by_iommufd() || placement.initiators.is_some();
    // Mediated devices have groups only.
    let may_lack_groups = topology.lacks_vfio_groups() && placement.passes_devices();
    let has_vf = placement.vgpus.iter().any(|vgpu| !vgpu.is_mdev());
    if !is_by_iommufd && !may_lack_groups && !has_vf {
        return Ok(());
    }
    let way = world.way(topology, stack)?;
    if has_vf {
        refuse_old_libvirt(&way)?;
    }
    refuse_without_groups(&way)?;
    if !is_by_iommufd {
        return Ok(());
    }
    let mut lacks = way.lacks(true, &placement.devices);
    lacks.extend(way.unreached_lack(&placement.devices));
    refuse_lacks(&lacks, placement.initiators.is_some())
}

/// Refuses vGPUs on virtual functions where libvirt passes none through.
pub(crate) fn refuse_old_libvirt(way: &Way<'_>) -> Result<()> {
    let Some(version) = way.versions.libvirt.filter(|version| *version < LIBVIRT_VGPU) else {
        return Ok(());
    };
    let hint = "`virsh version` shows it; take libvirt from the distribution's backports";
    Err(RenderError::OldLibvirt { version }.hint(hint))
}

/// Refuses functions where libvirt passes none through.
pub(crate) fn refuse_without_groups(way: &Way<'_>) -> Result<()> {
    let lack = way.groups();
    lack.map_or(Ok(()), |lack| Err(RenderError::NoGroups { why: lack.what }.hint(lack.remedy)))
}

/// Refuses functions by iommufd where something is missing for them. `needs_it`: whether they cannot
/// be passed through by their groups either.
pub(crate) fn refuse_lacks(lacks: &[Lack], needs_it: bool) -> Result<()> {
    if lacks.is_empty() {
        return Ok(());
    }
    let words = |part: fn(&Lack) -> &str| lacks.iter().map(part).collect::<Vec<_>>().join("; ");
    let (why, remedy) = (words(|lack| &lack.what), words(|lack| &lack.remedy));
    let hint = if needs_it { remedy } else { format!("{remedy}; {BY_GROUPS}") };
    Err(RenderError::NoIommufd { why }.hint(hint))
}

/// The template that a guest is made of, before it becomes the guest.
pub fn template_of(wanted: &GuestRequest, topology: &Topology) -> Result<DomainXml> {
    template(wanted.template.as_deref(), topology.machine().architecture.as_deref())
}

/// Refuses a template for another processor architecture than the host's, such as the built-in one
/// on hosts of an architecture without one.
pub fn refuse_foreign(wanted: &GuestRequest, topology: &Topology) -> Result<()> {
    let xml = template_of(wanted, topology)?;
    Ok(check_architecture(&xml, wanted.virt, topology)?)
}

/// Refuses more queues than the vCPUs can serve, which libvirt would refuse at the start.
pub(super) fn refuse_queues(wishes: &[NicWish], vcpus: u32) -> Result<()> {
    match wishes.iter().find_map(|wish| wish.too_many_queues(vcpus)) {
        Some(why) => Err(RenderError::TooManyQueues { why }.hint(QUEUES_HINT)),
        None => Ok(()),
    }
}

/// Why a guest of this host needs a template of the caller's: its architecture has none here;
/// `None` if it has one.
pub fn needs_template(topology: &Topology) -> Option<String> {
    let host = topology.machine().architecture.as_deref();
    let xml = template(None, host).ok()?;
    check_architecture(&xml, VirtType::Kvm, topology).err()?;
    let host = host.unwrap_or_default();
    Some(format!(
        "gpuvm has no template for `{host}`, so that guests of this host need --template FILE"
    ))
}

/// Reads a template, the built-in one for the host's architecture if no file is named.
fn template(file: Option<&Path>, architecture: Option<&str>) -> Result<DomainXml> {
    let Some(path) = file else {
        let text = if architecture == Some("aarch64") { AARCH64 } else { X86 };
        return Ok(DomainXml::parse(text)?);
    };
    template_file(path)
}

/// Reads the admin's template.
pub fn template_file(path: &Path) -> Result<DomainXml> {
    let text = input::text(path, DOMAIN_BYTES)
        .doing(|| format!("cannot read template `{}`", path.display()))?;
    DomainXml::parse(&text).doing(|| format!("template `{}`", path.display()))
}
