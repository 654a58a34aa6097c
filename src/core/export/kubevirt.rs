//! A planned guest for KubeVirt: a `VirtualMachine`, and the required part of the cluster's
//! `KubeVirt` (gpuvm-export(7), KUBEVIRT).

use super::lost::{Lost, LostKind, comments, wrapped};
use super::resource::{Resource, kind_word, resource};
use super::shape::{DeviceGroup, Shape};
use super::yaml::to_yaml;
use super::{PlatformError, PlatformGuest};
use crate::memsize::MemSize;
use crate::topology::DeviceKind;
use crate::topology::model::ids;
use crate::words::count;
use serde::Serialize;
use std::collections::BTreeMap;

const API: &str = "kubevirt.io/v1";
/// The annotation by which emulator threads get one pcpu or two, so that their number is even.
const EVEN: &str = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity";
/// The most characters of a DNS label (RFC 1123).
const MOST_NAME: usize = 63;

/// A guest for KubeVirt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KubeVirtExport {
    /// Name of the guest.
    pub name: String,
    /// The object for `kubectl apply`.
    pub virtual_machine: VirtualMachine,
    /// The required part of the cluster's `KubeVirt`, for `kubectl patch --type merge`.
    pub cluster: KubeVirtPatch,
    /// The resources of its devices.
    pub resources: Vec<NamedResource>,
    /// Pcpus that its pod requests for itself; 0: it is not pinned.
    pub pcpus: u32,
    /// The lost parts of the plan.
    pub lost: Vec<Lost>,
}

/// Name of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Metadata {
    /// Its name.
    pub name: String,
    /// Its namespace; `None` for the caller's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A `VirtualMachine`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachine {
    /// `kubevirt.io/v1`.
    pub api_version: String,
    /// `VirtualMachine`.
    pub kind: String,
    /// Its name.
    pub metadata: Metadata,
    /// Its specification.
    pub spec: VirtualMachineSpec,
}

/// The specification of a `VirtualMachine`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineSpec {
    /// When it runs: as its admin says.
    pub run_strategy: String,
    /// Its instance.
    pub template: Template,
}

/// The instance of a `VirtualMachine`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Template {
    /// Its specification.
    pub spec: InstanceSpec,
}

/// The size and devices of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InstanceSpec {
    /// Architecture; `None` if not recorded of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Its hardware.
    pub domain: PodDomain,
    /// Its networks.
    pub networks: Vec<PodNetwork>,
    /// Its volumes.
    pub volumes: Vec<PodVolume>,
}

/// The hardware of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodDomain {
    /// Its processors.
    pub cpu: PodCpu,
    /// Its memory.
    pub memory: PodMemory,
    /// The request of its pod: all of its memory, and no more.
    pub resources: PodResources,
    /// Threads for disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_threads_policy: Option<String>,
    /// Their number, if they have pcpus of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_threads: Option<IoThreads>,
    /// Its machine type, if one is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<PodMachine>,
    /// UEFI.
    pub firmware: Firmware,
    /// Its devices.
    pub devices: PodDevices,
}

/// The machine of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PodMachine {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
}

/// The processors of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodCpu {
    /// Packages: one for each cell.
    pub sockets: u32,
    /// The same: none is plugged later.
    pub max_sockets: u32,
    /// Cores of a package.
    pub cores: u32,
    /// Threads of a core.
    pub threads: u32,
    /// The host's model.
    pub model: String,
    /// Whether its vCPUs have pcpus of their own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dedicated_cpu_placement: bool,
    /// Whether its emulator has.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub isolate_emulator_thread: bool,
    /// Its cells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<Numa>,
}

/// The cells of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Numa {
    /// One for each node that its pod got.
    pub guest_mapping_passthrough: Empty,
}

/// An object without fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Empty {}

/// The memory of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PodMemory {
    /// Its size.
    pub guest: String,
    /// The pages that back it; `None` for normal ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<HugePageSize>,
}

/// The pages that back an instance's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HugePageSize {
    /// `2Mi` or `1Gi`.
    pub page_size: String,
}

/// The resource requests of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PodResources {
    /// At least.
    pub requests: PodAmounts,
    /// At most: the same, since passed-through devices lock all memory.
    pub limits: PodAmounts,
}

/// Amounts of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PodAmounts {
    /// Memory.
    pub memory: String,
}

/// Threads for disks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct IoThreads {
    /// Their number; each has a pcpu.
    pub supplemental_pool_thread_count: u32,
}

/// The firmware of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Firmware {
    /// Its firmware.
    pub bootloader: Bootloader,
}

/// The firmware of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bootloader {
    /// UEFI.
    pub efi: Efi,
}

/// UEFI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Efi {
    /// Whether it boots signed software only; that needs SMM.
    pub secure_boot: bool,
}

/// The devices of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodDevices {
    /// Whether it has a balloon, which takes no locked memory.
    pub autoattach_mem_balloon: bool,
    /// Whether it has a display.
    pub autoattach_graphics_device: bool,
    /// Whether its disks have a queue for each vCPU.
    pub block_multi_queue: bool,
    /// Whether its NICs have.
    pub network_interface_multiqueue: bool,
    /// GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<PodDevice>,
    /// Other functions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_devices: Vec<PodDevice>,
    /// Disks.
    pub disks: Vec<PodDisk>,
    /// NICs on networks.
    pub interfaces: Vec<PodInterface>,
}

/// A function that is passed through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodDevice {
    /// Its name in the instance.
    pub name: String,
    /// The resource.
    pub device_name: String,
}

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PodDisk {
    /// Its volume.
    pub name: String,
    /// The device that the guest sees.
    pub disk: PodBus,
}

/// The device that the guest sees for a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PodBus {
    /// Its bus.
    pub bus: String,
}

/// A NIC on a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PodInterface {
    /// Its network.
    pub name: String,
    /// Behind the pod's address.
    pub masquerade: Empty,
    /// Its model.
    pub model: String,
}

/// A network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PodNetwork {
    /// Its name.
    pub name: String,
    /// The pod's.
    pub pod: Empty,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodVolume {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub persistent_volume_claim: Claim,
}

/// A claim of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Its name.
    pub claim_name: String,
}

/// A part of the cluster's `KubeVirt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct KubeVirtPatch {
    /// `kubevirt.io/v1`.
    pub api_version: String,
    /// `KubeVirt`.
    pub kind: String,
    /// Its name.
    pub metadata: Metadata,
    /// The required settings.
    pub spec: KubeVirtSpec,
}

/// The specification of a `KubeVirt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KubeVirtSpec {
    /// Its settings.
    pub configuration: KubeVirtConfiguration,
}

/// Settings of a `KubeVirt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct KubeVirtConfiguration {
    /// Its feature gates.
    pub developer_configuration: DeveloperConfiguration,
    /// The devices that guests may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permitted_host_devices: Option<PermittedHostDevices>,
}

/// The feature gates of a `KubeVirt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeveloperConfiguration {
    /// Feature gates that are open.
    pub feature_gates: Vec<String>,
    /// Memory of guests in percent of their pods' requests: no more.
    pub memory_overcommit: u32,
}

/// The devices that guests may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PermittedHostDevices {
    /// PCI functions.
    pub pci_host_devices: Vec<PciHostDevice>,
}

/// PCI functions that guests may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PciHostDevice {
    /// Vendor and device id, upper case.
    pub pci_vendor_selector: String,
    /// The resource.
    pub resource_name: String,
    /// Whether another device plugin than KubeVirt's announces it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub external_resource_provider: bool,
}

/// The resource of a kind of devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NamedResource {
    /// Vendor and device id.
    pub ids: String,
    /// Its name.
    pub resource: String,
    /// How many the guest has.
    pub count: usize,
    /// Whether the caller has given the name.
    pub given: bool,
}

/// The export of a guest to KubeVirt.
pub fn kubevirt(guest: PlatformGuest<'_>) -> Result<KubeVirtExport, PlatformError> {
    let name = label(guest.name.as_str())?;
    let shape = Shape::of(guest)?;
    let resources = resources(&shape.devices)?;
    let counts = Helpers::of(&shape);
    let mut lost = lost(&shape, &counts);
    lost.extend(guest.lost.iter().cloned());
    Ok(KubeVirtExport {
        virtual_machine: VirtualMachine {
            api_version: API.into(),
            kind: "VirtualMachine".into(),
            metadata: metadata(&name),
            spec: VirtualMachineSpec {
                run_strategy: "Manual".into(),
                template: Template { spec: instance(&name, &shape, &resources, &counts) },
            },
        },
        cluster: cluster(&shape, &resources),
        resources: shape.devices.iter().zip(&resources).map(named).collect(),
        pcpus: if shape.is_pinned { counts.pcpus } else { 0 },
        lost,
        name,
    })
}

impl KubeVirtExport {
    /// The `VirtualMachine` as YAML, below the lost settings as comments.
    pub fn text(&self) -> serde_json::Result<String> {
        Ok(comments(&self.lost) + &to_yaml(&self.virtual_machine)?)
    }

    /// The cluster's part as YAML, below how it is merged.
    pub fn cluster_text(&self) -> serde_json::Result<String> {
        let mut text = String::new();
        wrapped(
            &mut text,
            "A part of the cluster's KubeVirt: merge it by `kubectl patch kubevirt kubevirt \
             --namespace kubevirt --type merge --patch-file FILE`, together with the feature gates \
             and host devices that are there, since lists are replaced",
        );
        Ok(text + &to_yaml(&self.cluster)?)
    }
}

fn metadata(name: &str) -> Metadata {
    Metadata { name: name.into(), namespace: None, annotations: BTreeMap::new() }
}

/// Checks the name of an object, which names pods and labels, too.
fn label(name: &str) -> Result<String, PlatformError> {
    let is_good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let why = match name.chars().zip(1..).find(|(c, _)| !is_good(*c)) {
        Some((c, at)) => format!("character {c:?} at {at}"),
        None if name.len() > MOST_NAME => {
            format!("it has {} characters, and at most {MOST_NAME} are allowed", name.len())
        }
        None if name.starts_with('-') || name.ends_with('-') => "`-` at its start or end".into(),
        None => return Ok(name.to_owned()),
    };
    let near: String = name
        .to_ascii_lowercase()
        .chars()
        .map(|c| if is_good(c) { c } else { '-' })
        .skip_while(|c| *c == '-')
        .take(MOST_NAME)
        .collect();
    let near = near.trim_end_matches('-');
    let near = if near.is_empty() { "guest" } else { near };
    Err(PlatformError::Name { name: name.into(), why, near: near.into() })
}

/// The resources of kinds of devices; two kinds have two names.
fn resources(groups: &[DeviceGroup<'_>]) -> Result<Vec<Resource>, PlatformError> {
    let mut all: Vec<Resource> = Vec::new();
    for group in groups {
        let new = resource(group.first, group.given)?;
        if let Some(at) = all.iter().position(|other| other.name == new.name) {
            let (first, second) = (ids(groups[at].first), ids(group.first));
            return Err(PlatformError::SameName { name: new.name, first, second });
        }
        all.push(new);
    }
    Ok(all)
}

/// The resource of a kind of devices.
fn named((group, resource): (&DeviceGroup<'_>, &Resource)) -> NamedResource {
    NamedResource {
        ids: ids(group.first),
        resource: resource.name.clone(),
        count: group.bdfs.len(),
        given: group.given.is_some(),
    }
}

/// The pcpus of a pod, and the share of its emulator and its I/O threads.
struct Helpers {
    /// Threads for disks with a pcpu each; `None` for one beside the emulator.
    pool: Option<u32>,
    /// Whether the emulator has its own.
    isolates: bool,
    pcpus: u32,
}

impl Helpers {
    /// Divides the pcpus that the plan has beside the vCPUs'. KubeVirt gives each thread for disks
    /// one, and the emulator one, or two where that makes the number of all even.
    fn of(shape: &Shape<'_>) -> Helpers {
        let vcpus = shape.guest.placement.vcpus();
        let own = u32::try_from(shape.own_pcpus.len()).unwrap_or(u32::MAX);
        if !shape.is_pinned || own == 0 {
            return Helpers { pool: None, isolates: false, pcpus: vcpus };
        }
        let threads = u32::try_from(shape.guest.placement.iothread_pins.len()).unwrap_or(u32::MAX);
        let with = |pool: u32| {
            let even = shape.host_threads > 1 && (vcpus + pool).is_multiple_of(2);
            vcpus + pool + if even { 2 } else { 1 }
        };
        let fits = |pool: &u32| with(*pool) <= vcpus + own;
        let pool = (0..=threads.min(own - 1)).rev().find(fits).unwrap_or(0);
        Helpers { pool: (pool > 0).then_some(pool), isolates: true, pcpus: with(pool) }
    }
}

fn instance(
    name: &str,
    shape: &Shape<'_>,
    resources: &[Resource],
    counts: &Helpers,
) -> InstanceSpec {
    let disks = shape.guest.disks;
    let volumes = [Some("os"), disks.data.map(|_| "data")].into_iter().flatten();
    let architecture = match shape.guest.topology.machine().architecture.as_deref() {
        Some("x86_64") => Some("amd64"),
        Some("aarch64") => Some("arm64"),
        Some("s390x") => Some("s390x"),
        _ => None,
    };
    let memory = quantity(shape.guest.placement.memory());
    let amounts = PodAmounts { memory: memory.clone() };
    InstanceSpec {
        architecture: architecture.map(Into::into),
        domain: PodDomain {
            cpu: processors(shape, counts),
            memory: PodMemory {
                guest: memory,
                hugepages: shape.page().map(|page| HugePageSize { page_size: quantity(page) }),
            },
            resources: PodResources { requests: amounts.clone(), limits: amounts },
            io_threads_policy: Some(
                if counts.pool.is_some() { "supplementalPool" } else { "shared" }.into(),
            ),
            io_threads: counts
                .pool
                .map(|count| IoThreads { supplemental_pool_thread_count: count }),
            machine: { shape.guest.request.machine.as_ref() }
                .map(|machine| PodMachine { kind: machine.to_string() }),
            firmware: Firmware { bootloader: Bootloader { efi: Efi { secure_boot: false } } },
            devices: devices(shape, resources),
        },
        networks: vec![PodNetwork { name: "default".into(), pod: Empty {} }],
        volumes: volumes
            .map(|volume| PodVolume {
                name: volume.into(),
                persistent_volume_claim: Claim { claim_name: format!("{name}-{volume}") },
            })
            .collect(),
    }
}

fn processors(shape: &Shape<'_>, counts: &Helpers) -> PodCpu {
    let cpu = shape.cpu();
    PodCpu {
        sockets: cpu.sockets,
        max_sockets: cpu.sockets,
        cores: cpu.cores,
        threads: cpu.threads,
        model: "host-passthrough".into(),
        dedicated_cpu_placement: shape.is_pinned,
        isolate_emulator_thread: counts.isolates,
        numa: maps_cells(shape).then_some(Numa { guest_mapping_passthrough: Empty {} }),
    }
}

/// Whether KubeVirt makes cells: it does for dedicated pcpus and huge pages.
fn maps_cells(shape: &Shape<'_>) -> bool {
    shape.is_pinned && shape.page().is_some()
}

fn devices(shape: &Shape<'_>, resources: &[Resource]) -> PodDevices {
    let (mut gpus, mut others) = (Vec::new(), Vec::new());
    for (group, resource) in shape.devices.iter().zip(resources) {
        let is_gpu = group.first.kind() == DeviceKind::Gpu;
        let list = if is_gpu { &mut gpus } else { &mut others };
        for _ in &group.bdfs {
            let word = kind_word(group.first);
            let number = list
                .iter()
                .filter(|other: &&PodDevice| other.name.trim_end_matches(char::is_numeric) == word)
                .count();
            let name = format!("{word}{number}");
            list.push(PodDevice { name, device_name: resource.name.clone() });
        }
    }
    let disk = |name: &str| PodDisk { name: name.into(), disk: PodBus { bus: "virtio".into() } };
    let disks = [Some("os"), shape.guest.disks.data.map(|_| "data")].into_iter().flatten();
    PodDevices {
        autoattach_mem_balloon: false,
        autoattach_graphics_device: false,
        block_multi_queue: true,
        network_interface_multiqueue: true,
        gpus,
        host_devices: others,
        disks: disks.map(disk).collect(),
        interfaces: vec![PodInterface {
            name: "default".into(),
            masquerade: Empty {},
            model: "virtio".into(),
        }],
    }
}

/// Returns the required part of the cluster's `KubeVirt`.
fn cluster(shape: &Shape<'_>, resources: &[Resource]) -> KubeVirtPatch {
    let mut gates = Vec::new();
    let mut annotations = BTreeMap::new();
    if shape.is_pinned {
        gates.push("CPUManager");
    }
    if shape.is_pinned && !shape.own_pcpus.is_empty() && shape.host_threads > 1 {
        gates.push("AlignCPUs");
        annotations.insert(EVEN.to_owned(), String::new());
    }
    if !shape.devices.is_empty() {
        gates.push("HostDevices");
        if maps_cells(shape) {
            gates.push("PCINUMAAwareTopology");
        }
    }
    let permitted = shape.devices.iter().zip(resources).map(|(group, resource)| PciHostDevice {
        pci_vendor_selector: ids(group.first).to_ascii_uppercase(),
        resource_name: resource.name.clone(),
        external_resource_provider: resource.is_external,
    });
    let permitted: Vec<PciHostDevice> = permitted.collect();
    KubeVirtPatch {
        api_version: API.into(),
        kind: "KubeVirt".into(),
        metadata: Metadata {
            namespace: Some("kubevirt".into()),
            annotations,
            ..metadata("kubevirt")
        },
        spec: KubeVirtSpec {
            configuration: KubeVirtConfiguration {
                developer_configuration: DeveloperConfiguration {
                    feature_gates: gates.into_iter().map(Into::into).collect(),
                    memory_overcommit: 100,
                },
                permitted_host_devices: (!permitted.is_empty())
                    .then_some(PermittedHostDevices { pci_host_devices: permitted }),
            },
        },
    }
}

fn lost(shape: &Shape<'_>, counts: &Helpers) -> Vec<Lost> {
    let mut lost = Vec::new();
    if let Some(pins) = shape.pins() {
        let is_whole = counts.pcpus.is_multiple_of(shape.host_threads.max(1));
        let whole = if is_whole { "full-pcpus-only=true, " } else { "" };
        let several = shape.nodes.len() > 1;
        let spread = if several { "distribute-cpus-across-numa=true, " } else { "" };
        let policy = if several { "restricted" } else { "single-numa-node" };
        lost.push(Lost::new(
            LostKind::Pins,
            format!(
                "{pins}: the kubelet chooses; its node needs cpuManagerPolicy static, {whole}\
                 {spread}topologyManagerPolicy {policy}, memoryManagerPolicy Static"
            ),
        ));
        if !is_whole {
            lost.push(Lost::new(
                LostKind::Emulator,
                format!(
                    "the pod has {} pcpus, which are not whole cores: a kubelet with \
                     full-pcpus-only=true refuses it, others share a core with another pod",
                    counts.pcpus
                ),
            ));
        }
    }
    lost.extend(shape.lost("KubeVirt"));
    helpers_lost(shape, counts, &mut lost);
    cells_lost(shape, &mut lost);
    if !shape.devices.is_empty() {
        let tree = if maps_cells(shape) {
            "expander buses by node only with feature gate PCINUMAAwareTopology, which --cluster \
             has (beta in KubeVirt 1.9)"
        } else {
            "every device is on the first cell: expander buses need pinned vCPUs and huge pages"
        };
        lost.push(Lost::new(LostKind::PcieTree, tree));
        lost.push(Lost::new(
            LostKind::MmioWindow,
            "the firmware computes its own window for 64-bit BARs; a sidecar hook can set it",
        ));
    }
    if shape.guest.request.is_by_iommufd() {
        lost.push(Lost::new(
            LostKind::Iommufd,
            "no field of a guest has it: feature gate IOMMUFD (alpha in KubeVirt 1.9) passes the \
             devices of all guests of the cluster through by iommufd",
        ));
    }
    if !shape.guest.placement.guest_pcie.links.is_empty() && !shape.devices.is_empty() {
        lost.push(Lost::new(LostKind::LinkSpeeds, "speed and width of the guest's PCIe links"));
    }
    lost.push(Lost::new(LostKind::Queues, "disks and NICs have one queue for each vCPU"));
    let sizes = shape.guest.disks;
    let data = sizes.data.map(|size| format!(", and `{}-data` of {size}", shape.guest.name));
    lost.push(Lost::new(
        LostKind::Disks,
        format!(
            "claim `{}-os` of {}{}{} must exist",
            shape.guest.name,
            sizes.os,
            if sizes.has_image { " with the image" } else { "" },
            data.unwrap_or_default()
        ),
    ));
    lost
}

/// The lost parts of emulator and I/O threads.
fn helpers_lost(shape: &Shape<'_>, counts: &Helpers, lost: &mut Vec<Lost>) {
    let placement = shape.guest.placement;
    let planned = placement.vcpus() + u32::try_from(shape.own_pcpus.len()).unwrap_or(u32::MAX);
    if shape.is_pinned && counts.pcpus != planned {
        let what = format!("the pod has {} pcpus, and the plan {planned}", counts.pcpus);
        lost.push(Lost::new(LostKind::Emulator, what));
    }
    let (has, wanted) = (counts.pool.unwrap_or(1) as usize, placement.iothread_pins.len());
    if shape.is_pinned && has < wanted {
        let has = count(has, "thread");
        let what = format!("{has} for disks, and the plan has {wanted}");
        lost.push(Lost::new(LostKind::IoThreads, what));
    }
}

/// The lost parts of the cells.
fn cells_lost(shape: &Shape<'_>, lost: &mut Vec<Lost>) {
    let cells = &shape.guest.placement.cells;
    let mut add = |what: String| lost.push(Lost::new(LostKind::Cells, what));
    if !maps_cells(shape) {
        let bound = cells.iter().any(|cell| !cell.host_nodes.is_empty());
        if cells.len() > 1 || bound {
            let number = cells.len();
            let word = if number == 1 { "cell" } else { "cells" };
            add(format!(
                "{number} {word} bound to nodes: KubeVirt makes cells only of pinned vCPUs and huge \
                 pages (--huge-pages 2M)"
            ));
        }
        return;
    }
    let nodes = shape.nodes.len();
    if nodes != cells.len() {
        let word = if cells.len() == 1 { "cell" } else { "cells" };
        add(format!(
            "{} {word} over {nodes} nodes: KubeVirt makes one for each node of the pod",
            cells.len()
        ));
    }
    if cells.iter().any(|cell| cell.memory_kib != cells[0].memory_kib) {
        let sizes: Vec<String> = cells.iter().map(|cell| cell.memory_kib.typed()).collect();
        add(format!("memory of {}: KubeVirt divides it equally", sizes.join(", ")));
    }
    if cells.iter().any(|cell| cell.vcpus.len() != cells[0].vcpus.len()) {
        let sizes: Vec<String> = cells.iter().map(|cell| cell.vcpus.len().to_string()).collect();
        add(format!("vCPUs of {}: as many as the pod gets pcpus on each node", sizes.join(", ")));
    }
}

/// An amount of memory as Kubernetes writes it.
fn quantity(size: MemSize) -> String {
    format!("{}i", size.typed())
}
