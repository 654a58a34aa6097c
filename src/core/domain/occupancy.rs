//! The host resources that a domain holds, for the planner. Judging them is left to
//! [`crate::check`].

use super::claims::Claims;
use super::nics::hooks;
use super::{DomainXml, DomainXmlError};
use crate::cpuset::NodeSet;
use crate::memsize::MemSize;
use crate::occupancy::{Held, Moved};
use std::collections::BTreeSet;

/// The size assumed for `<hugepages/>` without a size: the default of x86 and of Arm with 4 KiB
/// pages.
const DEFAULT_HUGE_PAGE: MemSize = MemSize::from_kib(2048);

impl DomainXml {
    /// Returns the host resources that the domain holds. Any libvirt domain can be read; a relevant
    /// value that cannot be parsed is an error, since a pcpu or device overlooked here would be
    /// given away twice. A definition does not contain whether the domain starts with the host.
    pub fn held(&self, active: bool) -> Result<Held, DomainXmlError> {
        let claims = Claims::read(self);
        if let Some(fault) = claims.faults.first() {
            let message = format!("{} (line {})", fault.message, fault.spot.line());
            return Err(DomainXmlError::Value { path: fault.spot.path(), message });
        }
        let default = claims.default_pin.as_ref().map(|pin| pin.value.clone());
        let mut pinned = BTreeSet::new();
        let mut vcpu_pins = Vec::new();
        // libvirt drops a pin of a vCPU that does not exist.
        let own = claims.vcpu_pins.iter().filter(|pin| pin.of.value < claims.vcpus.value);
        let mut own: Vec<_> = own.collect();
        own.sort_by_key(|pin| pin.of.value);
        for pin in own {
            pinned.insert(pin.of.value);
            vcpu_pins.push(pin.cpuset.value.clone());
        }
        // One entry represents all vCPUs that float over the default pin.
        if pinned.len() < claims.vcpus.value as usize {
            vcpu_pins.extend(default.clone());
        }
        let mut iothread_pins: Vec<_> =
            claims.iothread_pins.iter().map(|pin| pin.cpuset.value.clone()).collect();
        if claims.iothreads.len() > iothread_pins.len() {
            iothread_pins.extend(default.clone());
        }
        let page = claims
            .huge_pages
            .as_ref()
            .map(|pages| pages.first().map_or(DEFAULT_HUGE_PAGE, |page| page.size.value));
        Ok(Held {
            active,
            vcpu_pins,
            emulator_pin: claims.emulator_pin.as_ref().map(|p| p.value.clone()).or(default),
            iothread_pins,
            devices: claims.passed.iter().map(|passed| passed.bdf.value).collect(),
            memory: bound_memory(&claims),
            huge_page_kib: page,
            autostart: false,
            macs: hooks(self)
                .into_iter()
                .map(|hook| hook.mac)
                .filter(|mac| !mac.is_empty())
                .collect(),
            vcpus: claims.vcpus.value,
            uuid: self.uuid(),
            host_devices: claims.host_devices.into_iter().map(|one| one.value).collect(),
            unread: claims.unread.into_iter().map(|unread| unread.message).collect(),
            vgpus: self.vgpus().unwrap_or_default(),
            moved: Vec::new(),
            domain: claims.name,
        })
    }
}

impl DomainXml {
    /// The same in place of its earlier resources: its recorded devices that are now at other
    /// addresses stay its own while they are recorded.
    pub fn held_instead(&self, before: &[Held]) -> Result<Held, DomainXmlError> {
        let mut held = self.held(false)?;
        let known = self.known_devices();
        let had = before.iter().filter(|one| one.domain == held.domain);
        let moved: Vec<Moved> = had.flat_map(|one| one.moved.iter().copied()).collect();
        let is_recorded = |moved: &&Moved| known.iter().any(|one| one.bdf == moved.was);
        moved.iter().filter(is_recorded).for_each(|moved| held.add_moved(*moved));
        Ok(held)
    }
}

/// Returns memory by the nodes it is bound to; `preferred` does not bind.
pub fn bound_memory(claims: &Claims<'_>) -> Vec<(NodeSet, MemSize)> {
    let nodes = |cell: Option<u32>| {
        let binding = claims.binding(cell).filter(|binding| binding.is_hard());
        binding.map(|binding| binding.nodes.value.clone()).unwrap_or_default()
    };
    if claims.cells.is_empty() {
        return vec![(nodes(None), claims.memory.value)];
    }
    let cells = claims.cells.iter().map(|cell| (nodes(Some(cell.id)), cell.memory.value));
    let modules = claims
        .modules
        .iter()
        .map(|module| (module.nodes.clone().unwrap_or_else(|| nodes(module.cell)), module.size));
    cells.chain(modules).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads a domain with this content.
    fn held(content: &str) -> Result<Held, DomainXmlError> {
        let text = format!("<domain type='kvm'><name>x</name>{content}</domain>");
        DomainXml::parse(&text).unwrap().held(true)
    }

    #[test]
    fn a_value_that_matters_and_is_not_understood_is_an_error_with_its_place() {
        for (content, path) in [
            ("<vcpu>many</vcpu>", "/domain/vcpu"),
            ("<vcpu>4294967295</vcpu>", "/domain/vcpu"),
            ("<vcpu cpuset='a'>1</vcpu>", "/domain/vcpu/@cpuset"),
            ("<cputune><vcpupin vcpu='0'/></cputune>", "/domain/cputune/vcpupin"),
            (
                "<cputune><vcpupin vcpu='0' cpuset='1'/><vcpupin vcpu='1' cpuset=''/></cputune>",
                "/domain/cputune/vcpupin[2]/@cpuset",
            ),
            (
                "<cputune><emulatorpin cpuset='1-'/></cputune>",
                "/domain/cputune/emulatorpin/@cpuset",
            ),
            ("<iothreads>-1</iothreads>", "/domain/iothreads"),
            ("<memory unit='parsec'>1</memory>", "/domain/memory"),
            ("<numatune><memory nodeset='x'/></numatune>", "/domain/numatune/memory/@nodeset"),
            ("<cpu><numa><cell cpus='0'/></numa></cpu>", "/domain/cpu/numa/cell"),
            (
                "<devices><hostdev type='pci'><source><address bus='0x134'/></source>\
                 </hostdev></devices>",
                "/domain/devices/hostdev/source/address",
            ),
            ("<devices><hostdev type='pci'/></devices>", "/domain/devices/hostdev"),
            (
                "<memoryBacking><hugepages><page size='0'/></hugepages></memoryBacking>",
                "/domain/memoryBacking/hugepages/page/@size",
            ),
        ] {
            match held(content) {
                Err(DomainXmlError::Value { path: found, message }) => {
                    assert_eq!(found, path, "{content}");
                    assert!(message.ends_with("(line 1)"), "{message}");
                }
                other => panic!("{content}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_recorded_device_that_has_moved_stays_held_while_it_is_recorded() {
        let xml = |known: &str| {
            let uuid = "4dea22b3-1d52-4f5a-9e7c-5b0c2f7d1a11";
            let of = crate::domain::guest::NAMESPACE;
            let text = format!(
                "<domain type='kvm'><name>b</name><uuid>{uuid}</uuid><metadata><gpuvm:guest \
                 xmlns:gpuvm='{of}' uuid='{uuid}'>{known}</gpuvm:guest></metadata></domain>"
            );
            DomainXml::parse(&text).unwrap()
        };
        let at = |text: &str| text.parse::<crate::bdf::Bdf>().unwrap();
        let moved = Moved { bdf: at("51:00.0"), was: at("2f:00.0"), is_drive: true, is_sure: true };
        let mut before = Held { domain: "b".into(), ..Held::default() };
        before.add_moved(moved);
        let other = Held { domain: "c".into(), ..before.clone() };
        let recorded = "<gpuvm:known><gpuvm:device bdf='0000:2f:00.0' \
                        identity='144d:a80a=serial:S2B'/></gpuvm:known>";
        let devices =
            |known: &str, before: &[Held]| xml(known).held_instead(before).unwrap().devices;
        assert_eq!(devices(recorded, &[other.clone(), before.clone()]), [moved.bdf]);
        assert!(devices(recorded, &[other]).is_empty() && devices("", &[before]).is_empty());
    }

    #[test]
    fn reads_pins_with_the_default_for_the_rest() {
        let held = held(
            "<vcpu cpuset='0-7'>4</vcpu><iothreads>2</iothreads><cputune>
             <vcpupin vcpu='0' cpuset='1'/><vcpupin vcpu='1' cpuset='2,^3'/>
             <vcpupin vcpu='9' cpuset='99'/><iothreadpin iothread='1' cpuset='5'/></cputune>",
        )
        .unwrap();
        let pins: Vec<String> = held.vcpu_pins.iter().map(ToString::to_string).collect();
        assert_eq!(pins, ["1", "2", "0-7"]);
        assert_eq!(held.emulator_pin.unwrap().to_string(), "0-7");
        let pins: Vec<String> = held.iothread_pins.iter().map(ToString::to_string).collect();
        assert_eq!(pins, ["5", "0-7"]);
        assert_eq!((held.domain.as_str(), held.active), ("x", true));
    }

    #[test]
    fn reads_memory_by_the_nodes_that_bind_it() {
        let size = |(nodes, size): &(NodeSet, MemSize)| (nodes.to_string(), size.kib());
        let memory = |content: &str| -> Vec<(String, u64)> {
            held(content).unwrap().memory.iter().map(size).collect()
        };
        assert_eq!(memory("<memory unit='KB'>1024</memory>"), [(String::new(), 1000)]);
        assert_eq!(
            memory("<memory>8</memory><numatune><memory nodeset='1'/></numatune>"),
            [("1".to_owned(), 8)]
        );
        assert_eq!(
            memory("<memory>8</memory><numatune><memory mode='preferred' nodeset='1'/></numatune>"),
            [(String::new(), 8)]
        );
        assert_eq!(
            memory(
                "<cpu><numa><cell id='0' cpus='0' memory='1' unit='GiB'/>
                 <cell memory='2'/></numa></cpu>
                 <numatune><memory nodeset='0-1'/><memnode cellid='1' nodeset='3'/></numatune>
                 <devices><memory model='dimm'><target><size>64</size><node>1</node></target>
                 </memory>                 </devices>"
            ),
            [("0-1".to_owned(), 1 << 20), ("3".to_owned(), 2), ("3".to_owned(), 64)]
        );
    }

    #[test]
    fn reads_pages_and_every_kind_of_passed_function() {
        let held = held(
            "<memoryBacking><hugepages><page size='1' unit='G'/></hugepages>
             </memoryBacking><devices>
             <hostdev mode='subsystem' type='usb'><source><vendor id='0x1'/></source></hostdev>
             <hostdev mode='subsystem' type='mdev'><source><address uuid='x'/></source></hostdev>
             <hostdev type='pci'><source>
             <address domain='0x0000' bus='0x34' slot='0x00' function='0x0'/>
             </source><address type='pci' bus='0x01'/></hostdev>
             <interface type='hostdev'><source>
             <address type='pci' bus='0x86' function='1'/></source>
             </interface><interface type='network'><source network='x'/></interface>
             <disk type='nvme'><source type='pci' namespace='1'>
             <address domain='0x10000' bus='1' slot='2'/>
             </source></disk></devices>",
        )
        .unwrap();
        let devices: Vec<String> = held.devices.iter().map(ToString::to_string).collect();
        assert_eq!(devices, ["0000:34:00.0", "0000:86:00.1", "10000:01:02.0"]);
        assert_eq!(held.huge_page_kib, Some(MemSize::from_gib(1)));
    }

    #[test]
    fn a_domain_that_asks_for_nothing_holds_nothing() {
        let held = held("<memoryBacking><hugepages/></memoryBacking>").unwrap();
        assert!(held.vcpu_pins.is_empty() && held.emulator_pin.is_none());
        assert_eq!(held.huge_page_kib, Some(DEFAULT_HUGE_PAGE));
    }

    /// Strategy of elements that matter, with values that mostly do not.
    fn pieces() -> impl Strategy<Value = String> {
        let value = "[-0-9a-fx,^: ]{0,12}|65535|4294967295|18446744073709551615";
        let piece = (0usize..12, value, value).prop_map(|(kind, a, b)| match kind {
            0 => format!("<vcpu cpuset='{a}' current='{b}'>{b}</vcpu>"),
            1 => format!("<cputune><vcpupin vcpu='{a}' cpuset='{b}'/></cputune>"),
            2 => format!("<iothreads>{a}</iothreads>"),
            3 => format!("<iothreadids><iothread id='{a}'/></iothreadids>"),
            4 => format!("<memory unit='{a}'>{b}</memory>"),
            5 => format!("<cpu><numa><cell id='{a}' cpus='{b}' memory='{a}'/></numa></cpu>"),
            6 => format!("<numatune><memnode cellid='{a}' nodeset='{b}'/></numatune>"),
            7 => format!(
                "<memoryBacking><hugepages><page size='{a}'/></hugepages>\
                </memoryBacking>"
            ),
            8 => format!(
                "<devices><hostdev type='pci'><source><address bus='{a}' slot='{b}'/></source>\
                 </hostdev></devices>"
            ),
            9 => format!(
                "<devices><memory model='dimm'><target><size>{a}</size></target></memory></devices>"
            ),
            10 => format!(
                "<cputune><emulatorpin cpuset='{a}'/><iothreadpin iothread='{b}'/></cputune>"
            ),
            _ => format!("<numatune><memory mode='{a}' nodeset='{b}'/></numatune>"),
        });
        proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn never_panics(content in pieces(), active: bool) {
            let text = format!("<domain>{content}</domain>");
            if let Ok(domain) = DomainXml::parse(&text) {
                let _ = domain.held(active);
            }
        }
    }
}
