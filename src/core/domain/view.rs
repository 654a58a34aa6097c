//! The view of a domain for `list`, `show`, `create` and `delete`: read from its XML, whoever made
//! it. Asks no hypervisor.

use crate::bdf::Bdf;
use crate::cpuset::{CpuSet, NodeSet};
use crate::domain::claims::Claims;
use crate::domain::disk_change::source_of;
use crate::domain::guest::{Made, NAMESPACE};
use crate::domain::setting::AGENT;
use crate::domain::{DomainXml, DomainXmlError, Element};
use crate::memsize::MemSize;
use crate::occupancy::{GuestVgpu, Held};
use crate::request::Request;
use crate::topology::Topology;
use serde::Serialize;

/// A disk of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskView {
    /// Its name in the guest, as libvirt calls it.
    pub target: String,
    /// File, block device or volume on the host, or a description of another source; empty for a
    /// drive without a medium.
    pub source: String,
    /// Its format.
    pub format: String,
    /// Whether it was created for the guest and is deleted with it.
    pub made: bool,
}

/// A NIC of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NicView {
    /// MAC address, lower case.
    pub mac: String,
    /// Its connection: network, bridge or host interface, by name.
    pub source: String,
}

/// The other end of a guest's serial console.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConsoleView {
    /// Kind in libvirt's words: `pty` and `unix` can be attached to.
    pub kind: String,
    /// File, socket or, while it runs, terminal on the host.
    pub path: Option<String>,
}

/// State of the guest agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AgentState {
    /// There is no channel for one.
    None,
    /// There is a channel, but no agent is connected.
    Disconnected,
    /// It listens.
    Connected,
}

/// The record of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Remembered {
    /// The request; `None` if unreadable, such as one by a later version.
    pub request: Option<Request>,
    /// Disks created for it.
    pub made: Vec<Made>,
}

/// A domain and its resources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct View {
    /// Its vCPUs, with those that can be plugged while it runs.
    pub vcpus: u32,
    /// Its vCPUs that are plugged; `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpus_plugged: Option<u32>,
    /// Its memory.
    pub memory_kib: MemSize,
    /// Indexes of its GPUs on this host, by PCI address from 0.
    pub gpus: Vec<usize>,
    /// Passed-through functions.
    pub devices: Vec<Bdf>,
    /// Those of them that are vGPUs, and mediated devices, as recorded for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vgpus: Vec<GuestVgpu>,
    /// Mediated devices that are not recorded for it, by UUID.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mediated: Vec<String>,
    /// pcpus that it is pinned to.
    pub pcpus: CpuSet,
    /// Host nodes that its memory is bound to.
    pub nodes: NodeSet,
    /// Page size of its memory, if it requests huge pages.
    pub huge_page_kib: Option<MemSize>,
    /// Its disks.
    pub disks: Vec<DiskView>,
    /// Its NICs.
    pub nics: Vec<NicView>,
    /// Its first console, if it has one.
    pub console: Option<ConsoleView>,
    /// Its agent.
    pub agent: AgentState,
    /// Its record; `None` if not created by gpuvm.
    pub remembered: Option<Remembered>,
}

impl View {
    /// Reads a domain; `topology` is the host whose GPUs are numbered.
    pub fn of(xml: &DomainXml, topology: Option<&Topology>) -> Result<View, DomainXmlError> {
        let held = xml.held(true)?;
        let claims = Claims::read(xml);
        // Objects made for another domain do not belong to this copy of it.
        let remembered = remembered(xml).filter(|_| xml.is_ours());
        let made = remembered.as_ref().map_or(&[][..], |remembered| &remembered.made);
        let devices = |name| {
            let devices = xml.root().children("devices");
            devices.flat_map(move |devices| devices.children(name))
        };
        let nodes = held.memory.iter().flat_map(|(nodes, _)| nodes.iter()).collect();
        let is_recorded = |uuid: &String| {
            let mut recorded = held.vgpus.iter().filter_map(|vgpu| vgpu.uuid.as_ref());
            recorded.any(|own| own.eq_ignore_ascii_case(uuid))
        };
        let mediated = xml.mediated().into_iter().filter(|uuid| !is_recorded(uuid)).collect();
        let plugged = u32::try_from(claims.plugged.len()).unwrap_or(u32::MAX);
        Ok(View {
            vcpus: claims.vcpus.value,
            vcpus_plugged: Some(plugged).filter(|plugged| *plugged < claims.vcpus.value),
            memory_kib: claims.memory.value,
            gpus: topology.map(|host| gpu_indexes(host, &held.devices)).unwrap_or_default(),
            pcpus: pcpus(&held),
            nodes,
            huge_page_kib: held.huge_page_kib,
            devices: held.devices,
            vgpus: held.vgpus,
            mediated,
            disks: devices("disk").map(|disk| disk_view(disk, made)).collect(),
            nics: devices("interface").map(nic_view).collect(),
            console: devices("console").chain(devices("serial")).next().map(console_view),
            agent: agent_state(devices("channel")),
            remembered,
        })
    }

    /// Returns its vCPUs as text: `8`, or `2 of 8` where not all are plugged.
    pub fn vcpu_text(&self) -> String {
        match self.vcpus_plugged {
            Some(plugged) => format!("{plugged} of {}", self.vcpus),
            None => self.vcpus.to_string(),
        }
    }

    /// Returns its GPUs as text: indexes on this host, otherwise the passed-through functions.
    pub fn gpu_text(&self) -> String {
        if !self.gpus.is_empty() {
            let indexes: Vec<String> = self.gpus.iter().map(usize::to_string).collect();
            return indexes.join(",");
        }
        match self.devices.as_slice() {
            [] => "-".into(),
            devices => devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        }
    }
}

/// Returns the indexes of the GPUs among these devices, by PCI address from 0; ascending.
pub fn gpu_indexes(topology: &Topology, devices: &[Bdf]) -> Vec<usize> {
    let gpus = topology.gpus().enumerate();
    gpus.filter(|(_, gpu)| devices.contains(&gpu.bdf)).map(|(index, _)| index).collect()
}

/// Every pcpu that a domain is pinned to.
fn pcpus(held: &Held) -> CpuSet {
    let threads = held.vcpu_pins.iter().chain(&held.iothread_pins).chain(&held.emulator_pin);
    threads.fold(CpuSet::new(), |all, pin| all.or(pin))
}

fn disk_view(disk: Element<'_>, made: &[Made]) -> DiskView {
    let attr = |element: Option<Element<'_>>, name: &str| {
        element.and_then(|e| e.attr(name)).map(|value| value.into_owned()).unwrap_or_default()
    };
    let volume = attr(disk.child("source"), "volume");
    let source = if volume.is_empty() { source_of(disk).unwrap_or_default() } else { volume };
    DiskView {
        target: attr(disk.child("target"), "dev"),
        format: attr(disk.child("driver"), "type"),
        made: made.iter().any(|made| made.path == source),
        source,
    }
}

fn nic_view(nic: Element<'_>) -> NicView {
    let attr = |element: Option<Element<'_>>, name: &str| {
        element.and_then(|e| e.attr(name)).map(|value| value.into_owned())
    };
    let source = nic.child("source");
    let kinds = ["network", "bridge", "dev"].into_iter();
    NicView {
        mac: attr(nic.child("mac"), "address").unwrap_or_default().to_ascii_lowercase(),
        source: kinds.filter_map(|name| attr(source, name)).next().unwrap_or_default(),
    }
}

fn console_view(console: Element<'_>) -> ConsoleView {
    let path = console.child("source").and_then(|source| source.attr("path"));
    ConsoleView {
        kind: console.attr("type").unwrap_or_default().into_owned(),
        path: path.or_else(|| console.attr("tty")).map(|path| path.into_owned()),
    }
}

/// Returns the agent's state from the channels of a running domain's definition.
fn agent_state<'a>(channels: impl Iterator<Item = Element<'a>>) -> AgentState {
    let mut targets = channels.filter_map(|channel| channel.child("target"));
    let is = |target: &Element<'_>, name, value: &str| {
        target.attr(name).is_some_and(|found| found == value)
    };
    match targets.find(|target| is(target, "name", AGENT)) {
        None => AgentState::None,
        Some(target) if is(&target, "state", "connected") => AgentState::Connected,
        Some(_) => AgentState::Disconnected,
    }
}

/// Reads our metadata.
pub fn remembered(xml: &DomainXml) -> Option<Remembered> {
    let ours = |element: &Element<'_>| element.namespace() == Some(NAMESPACE);
    let guest = xml.root().child("metadata")?.elements().find(ours)?;
    let local = |element: Element<'_>, name: &str| element.name().rsplit(':').next() == Some(name);
    let below = |name: &'static str| guest.elements().filter(move |e| local(*e, name));
    let request = below("request").next().map(|element| element.text().into_owned());
    Some(Remembered {
        request: request.and_then(|text| serde_json::from_str(&text).ok()),
        made: xml.made(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A domain of ours with a made disk, a drive without a medium, one on the network and two
    /// NICs.
    const OURS: &str = "<domain type='kvm'><name>a</name>
        <uuid>11111111-2222-3333-4444-555555555555</uuid><metadata><x:y xmlns:x='urn:other'/>
        <g:guest xmlns:g='urn:gpuvm:domain:1' uuid='11111111-2222-3333-4444-555555555555'>
        <g:request>{}</g:request><g:made><g:disk path='/d/a.raw'/>
        </g:made></g:guest></metadata><memory>4096</memory><vcpu>2</vcpu>
        <cputune><vcpupin vcpu='0' cpuset='1'/><vcpupin vcpu='1' cpuset='5'/><emulatorpin cpuset='7'/>
        </cputune><devices>
        <disk type='file'><driver type='raw'/><source file='/d/a.raw'/><target dev='vda'/></disk>
        <disk type='block'><driver type='raw'/><source dev='/dev/sdb'/><target dev='vdb'/></disk>
        <disk type='file' device='cdrom'><target dev='sda'/></disk>
        <disk type='network'><source protocol='nbd'/><target dev='vdc'/></disk>
        <interface type='network'><mac address='52:54:00:AB:00:01'/><source network='default'/></interface>
        <interface type='direct'><mac address='52:54:00:ab:00:02'/><source dev='eth0' mode='bridge'/>
        </interface><interface type='user'/></devices></domain>";

    #[test]
    fn reads_the_kind_of_a_guest_of_ours() {
        let view = View::of(&DomainXml::parse(OURS).unwrap(), None).unwrap();
        assert_eq!((view.vcpus, view.memory_kib), (2, MemSize::from_kib(4096)));
        assert_eq!(view.pcpus.to_string(), "1,5,7");
        let disks: Vec<_> =
            view.disks.iter().map(|d| (&d.target[..], &d.source[..], d.made)).collect();
        let others = [("vdb", "/dev/sdb", false), ("sda", "", false), ("vdc", "nbd", false)];
        assert_eq!(disks[0], ("vda", "/d/a.raw", true));
        assert_eq!(disks[1..], others);
        let nics: Vec<_> = view.nics.iter().map(|n| (&n.mac[..], &n.source[..])).collect();
        let first = ("52:54:00:ab:00:01", "default");
        assert_eq!(nics, [first, ("52:54:00:ab:00:02", "eth0"), ("", "")]);
        let remembered = view.remembered.clone().unwrap();
        let paths: Vec<&str> = remembered.made.iter().map(|made| made.path.as_str()).collect();
        assert_eq!(paths, ["/d/a.raw"]);
        assert_eq!(remembered.request, None, "an unreadable request was made up");
        assert_eq!(view.gpu_text(), "-");
    }

    #[test]
    fn a_copy_of_a_guest_has_no_disk_that_was_made_for_it() {
        let uuid = |last| format!("5f2a1c7e-9b3d-4e6f-8a1b-2c3d4e5f6a7{last}");
        let known = "11111111-2222-3333-4444-555555555555";
        for (own, made) in [(known.to_owned(), true), (uuid(2), false)] {
            let text = OURS.replace(&format!("<uuid>{known}"), &format!("<uuid>{own}"));
            let view = View::of(&DomainXml::parse(&text).unwrap(), None).unwrap();
            assert_eq!(view.disks[0].made, made, "{own}");
        }
    }

    #[test]
    fn consoles_and_agents_are_as_the_running_domain_says() {
        let of = |devices: &str| {
            let text = OURS.replace("<interface type='user'/>", devices);
            let view = View::of(&DomainXml::parse(&text).unwrap(), None).unwrap();
            (view.console, view.agent)
        };
        assert_eq!(of(""), (None, AgentState::None));
        let agent =
            "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>";
        let pty = "<serial type='pty'><source path='/dev/pts/4'/></serial>";
        let console = |path: &str| ConsoleView { kind: "pty".into(), path: Some(path.into()) };
        let seen = (Some(console("/dev/pts/4")), AgentState::Disconnected);
        assert_eq!(of(&format!("{pty}{agent}")), seen);
        let agent = agent.replace("agent.0'", "agent.0' state='connected'");
        let tty = "<console type='pty' tty='/dev/pts/5'/>";
        let seen = (Some(console("/dev/pts/5")), AgentState::Connected);
        assert_eq!(of(&format!("{tty}{pty}{agent}")), seen);
    }

    #[test]
    fn mediated_devices_without_a_record_are_shown() {
        let uuid = "6ab1f0c4-44aa-4d06-8b4e-9cf1c0f0ce6b";
        let hostdev = format!(
            "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address \
             uuid='{uuid}'/></source></hostdev>"
        );
        let text = OURS.replace("<interface type='user'/>", &hostdev);
        let view = View::of(&DomainXml::parse(&text).unwrap(), None).unwrap();
        assert_eq!(view.mediated, [uuid]);
    }

    #[test]
    fn another_tools_metadata_is_not_ours() {
        let text = OURS.replace("urn:gpuvm:domain:1", "urn:gpuvm:domain:9");
        let view = View::of(&DomainXml::parse(&text).unwrap(), None).unwrap();
        assert_eq!(view.remembered, None);
        assert!(view.disks.iter().all(|disk| !disk.made));
    }
}
