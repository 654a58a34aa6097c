//! QEMU device properties without a libvirt element, set in libvirt's QEMU namespace. Each is bound
//! to the alias of one of our devices; properties set by others stay.

use super::DomainXml;
use super::element::Element;
use super::fragment::Fragment;
use crate::bdf::Bdf;
use crate::placement::GuestPcie;
use serde::Serialize;
use std::collections::BTreeMap;

pub(super) const NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";
/// The property that gives a GPU its clique (gpuvm-hardware(7), PEER-TO-PEER CLIQUES).
const CLIQUE: &str = "x-nv-gpudirect-clique";
/// The properties of a root port's link; QEMU's own are 16 GT/s and 32 lanes.
const SPEED: &str = "x-speed";
/// The width of a root port's link.
const WIDTH: &str = "x-width";
const OURS: [&str; 3] = [CLIQUE, SPEED, WIDTH];
/// Speeds that a root port can have, in units of 0.1 GT/s, and QEMU's words for them.
const SPEEDS: [(u32, &str); 6] =
    [(25, "2_5"), (50, "5"), (80, "8"), (160, "16"), (320, "32"), (640, "64")];
/// Widths that a root port can have, in lanes.
const WIDTHS: [u8; 7] = [1, 2, 4, 8, 12, 16, 32];

/// One property of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Override {
    /// The device's alias.
    pub alias: String,
    /// The property's name.
    pub property: &'static str,
    /// Its kind, as libvirt calls it: `unsigned`, `string`.
    pub kind: &'static str,
    /// Its value.
    pub value: String,
}

impl DomainXml {
    /// Whether this QEMU device property is set in libvirt's QEMU namespace.
    pub fn sets_property(&self, name: &str) -> bool {
        let devices = of_qemu(self.root()).flat_map(of_qemu);
        let mut properties = devices.flat_map(of_qemu).flat_map(of_qemu);
        properties.any(|property| property.attr("name").is_some_and(|found| found == name))
    }
}

/// Returns the properties that a guest's PCIe tree needs; `aliases` are those of its devices.
pub(super) fn overrides(pcie: &GuestPcie, aliases: &BTreeMap<Bdf, String>) -> Vec<Override> {
    let cliques = pcie.cliques.iter().enumerate();
    let gpus = cliques.flat_map(|(number, gpus)| gpus.iter().map(move |gpu| (number, gpu)));
    let clique = |(number, gpu): (usize, &Bdf)| {
        let alias = aliases.get(gpu)?.clone();
        Some(Override { alias, property: CLIQUE, kind: "unsigned", value: number.to_string() })
    };
    gpus.filter_map(clique).collect()
}

/// The properties of the root ports of passed-through devices: each link as fast and wide as the
/// host's path to the device, as far as a port supports it. `ports` are the ports' aliases.
pub(super) fn links(
    pcie: &GuestPcie,
    fastest_dgts: u32,
    ports: &BTreeMap<Bdf, String>,
) -> Vec<Override> {
    let mut overrides = Vec::new();
    for link in &pcie.links {
        let Some(alias) = ports.get(&link.device) else { continue };
        let slowest = link.speed_dgts.min(fastest_dgts);
        let speed = SPEEDS.iter().rev().find(|(dgts, _)| *dgts <= slowest);
        let width = WIDTHS.iter().rev().find(|width| **width <= link.width);
        let (Some((_, speed)), Some(width)) = (speed, width) else { continue };
        for (property, value) in [(SPEED, (*speed).to_owned()), (WIDTH, width.to_string())] {
            overrides.push(Override { alias: alias.clone(), property, kind: "string", value });
        }
    }
    overrides
}

/// Returns the wanted state of a domain whose devices have these properties, and no others of ours.
pub(super) fn fragment(domain: Fragment, overrides: &[Override]) -> Fragment {
    let mut devices: BTreeMap<&str, Vec<&Override>> = BTreeMap::new();
    for one in overrides {
        devices.entry(&one.alias).or_default().push(one);
    }
    let devices = devices.into_iter().map(|(alias, properties)| {
        let property = |one: &&Override| {
            Fragment::new("qemu:property")
                .key(|property| property.attr("name").map(Into::into), one.property)
                .attr("name", one.property)
                .attr("type", one.kind)
                .attr("value", &one.value)
        };
        let frontend = Fragment::new("qemu:frontend").children(properties.iter().map(property));
        Fragment::new("qemu:device")
            .key(|device| device.attr("alias").map(Into::into), alias)
            .attr("alias", alias)
            .child(frontend.only_where("qemu:property", is_ours))
    });
    let all = Fragment::new("qemu:override").children(devices);
    let all = all.only_where("qemu:device", is_all_ours).drop_empty();
    let domain = match overrides {
        [] => domain,
        _ => domain.attr("xmlns:qemu", NAMESPACE),
    };
    domain.child(all)
}

/// Whether a property is one that we set.
fn is_ours(property: Element<'_>) -> bool {
    property.attr("name").is_some_and(|name| OURS.contains(&name.as_ref()))
}

/// Whether a device has properties, and all of them are ours.
fn is_all_ours(device: Element<'_>) -> bool {
    let mut said = device.elements().peekable();
    let ours = |frontend: Element<'_>| {
        frontend.name() == "qemu:frontend" && frontend.elements().all(is_ours)
    };
    said.peek().is_some() && said.all(ours)
}

/// Returns the children of an element that are in libvirt's QEMU namespace.
pub(super) fn of_qemu(element: Element<'_>) -> impl Iterator<Item = Element<'_>> {
    element.elements().filter(|below| below.namespace() == Some(NAMESPACE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::PcieLink;

    #[test]
    fn a_port_gets_the_link_of_its_path_as_far_as_qemu_supports_it() {
        let bdf = |text: &str| text.parse::<Bdf>().unwrap();
        let link = |device, speed_dgts, width| PcieLink { device: bdf(device), speed_dgts, width };
        let (a, b, c) = ("34:00.0", "36:00.0", "39:00.0");
        let links_of_three = vec![link(a, 80, 16), link(b, 320, 16), link(c, 160, 3)];
        let pcie = GuestPcie { links: links_of_three, ..GuestPcie::default() };
        let ports = [(bdf(a), "ua-gpu0-port".to_owned()), (bdf(b), "ua-gpu1-port".to_owned())];
        let properties = |fastest| {
            let all = links(&pcie, fastest, &ports.clone().into());
            all.into_iter().map(|one| format!("{} {}={}", one.alias, one.property, one.value))
        };
        let expected = [
            "ua-gpu0-port x-speed=8",
            "ua-gpu0-port x-width=16",
            "ua-gpu1-port x-speed=32",
            "ua-gpu1-port x-width=16",
        ];
        assert!(properties(640).eq(expected), "{:?}", properties(640).collect::<Vec<_>>());
        assert!(properties(160).any(|one| one == "ua-gpu1-port x-speed=16"));
        assert_eq!(properties(10).count(), 0);
    }
}
