//! The tables of a page: guests, devices, distances, IOMMU groups, capacity.

use super::Writer;
use super::answers::{Others, gpus, memory, partition, pins};
use crate::bdf::Bdf;
use crate::placement::{Blocked, Size};
use crate::topology::model::ids;
use crate::topology::{DeviceKind, Matrix, PciDevice, Proximity};
use crate::view::devices::{Device, Look, link, resets, short, standing};
use crate::view::svg::id_of;
use crate::words::count;
use std::collections::BTreeMap;

/// The most devices whose distances are shown: a table of more is not read, and grows as its
/// square.
const MOST_NEAR: usize = 64;

/// The longest name of a guest that stays in one line.
const MOST_KEPT: usize = 20;

impl Writer<'_, '_> {
    pub(super) fn guests(&mut self) {
        let scene = self.scene;
        if scene.guests.is_empty() {
            return;
        }
        let topology = self.page.subject.topology;
        let others = Others::of(&scene.guests);
        self.section("guests", "Guests");
        self.wide("Guests");
        self.table(
            "sift cards early",
            &["letter", "guest", "state", "GPUs", "partition", "pins", "memory", "isolated"],
        );
        for guest in &scene.guests {
            let row = [("data-g", &guest.letter as _), ("data-name", &guest.name as _)];
            self.out.open("tr", &row);
            self.out.open("td", &[]);
            self.out.element("span", &[("class", &"key")], &guest.letter);
            self.out.close("td");
            // A short name does not break at its hyphens.
            let is_short = guest.name.chars().count() <= MOST_KEPT;
            let attrs: [(&str, &dyn std::fmt::Display); 2] =
                [("scope", &"row"), ("class", &"keep")];
            self.out.open("th", if is_short { &attrs } else { &attrs[..1] });
            self.out.element("bdi", &[], guest.name);
            self.out.close("th");
            let standing = others.standing(topology, guest);
            let (word, class) = match standing.isolated {
                Some(true) => ("yes", "good"),
                Some(false) => ("NO", "bad"),
                None => ("not known", "soft"),
            };
            for (head, text) in [
                ("state", guest.state().to_owned()),
                ("GPUs", gpus(topology, guest)),
                ("partition", partition(topology, guest)),
                ("pins", pins(topology, guest)),
                ("memory", memory(guest)),
            ] {
                self.cell(head, "", text);
            }
            self.begin_cell("isolated", "");
            self.out.element("span", &[("class", &class)], word);
            let words = self.say(standing.words);
            self.out.text(format_args!(": {words}"));
            self.out.close("td");
            self.out.close("tr");
            self.out.line();
        }
        self.end_table();
    }

    pub(super) fn devices(&mut self) {
        let (topology, scene) = (self.page.subject.topology, self.scene);
        let devices = scene.devices();
        if devices.is_empty() {
            return;
        }
        let serials = self.serials();
        self.section("devices", "Devices");
        self.wide("Devices");
        let mut head = vec!["device", "address", "model", "node", "driver", "link", "reset"];
        head.extend((!serials.is_empty()).then_some("serial"));
        head.push("standing");
        self.table("sift cards devices", &head);
        for device in devices {
            let Some(pci) = topology.device(device.bdf) else { continue };
            let id = id_of(device.bdf);
            let letter = device.guests.first().map(|place| &scene.guests[*place].letter);
            let mut row: Vec<(&str, &dyn std::fmt::Display)> = vec![("data-d", &id)];
            row.extend(letter.map(|letter| ("data-g", letter as &dyn std::fmt::Display)));
            self.out.open("tr", &row);
            self.out.element("th", &[("scope", &"row"), ("class", &"keep")], &device.name);
            self.cell("address", "keep", device.bdf);
            self.begin_cell("model", "");
            self.out.text(&device.model);
            let ids = ids(pci);
            if ids != device.model {
                self.out.element("span", &[("class", &"ids")], format_args!(" ({ids})"));
            }
            self.out.close("td");
            let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
            self.cell("node", "", or_dash(pci.node.map(|node| node.to_string())));
            self.cell("driver", "", or_dash(pci.driver.clone()));
            self.cell("link", "keep", or_dash(link(pci)));
            self.cell("reset", "keep", or_dash(resets(pci)));
            if !serials.is_empty() {
                self.cell("serial", "", serials.get(&device.bdf).map_or("-", String::as_str));
            }
            self.cell("standing", "", standing(device, &scene.guests));
            self.out.close("tr");
            self.out.line();
        }
        self.out.close("tbody");
        self.out.close("table");
        self.out.close("div");
        self.not_listed();
        self.out.close("section");
        self.out.line();
    }

    /// Says how many virtual functions are not listed.
    fn not_listed(&mut self) {
        let shown = self.scene.devices();
        let is_left = |device: &&PciDevice| {
            device.kind() == DeviceKind::Nic
                && shown.binary_search_by_key(&device.bdf, |one| one.bdf).is_err()
        };
        let left = self.page.subject.topology.devices().iter().filter(is_left).count();
        if left > 0 {
            let left = count(left, "more free virtual function");
            let words = self.say(format!("{left}: `gpuvm device list` has all"));
            self.out.element("p", &[("class", &"soft")], words);
        }
    }

    /// The identifiers of devices, if requested.
    fn serials(&self) -> BTreeMap<Bdf, String> {
        let topology = self.page.subject.topology;
        let mut all: BTreeMap<Bdf, Vec<String>> = BTreeMap::new();
        for device in topology.devices() {
            let macs = device.net.iter().flat_map(|net| net.macs.iter().cloned());
            let own: Vec<String> = device.uuid.iter().cloned().chain(macs).collect();
            if !own.is_empty() {
                all.entry(device.bdf).or_default().extend(own);
            }
        }
        for drive in &topology.parts().drives {
            if let (Some(bdf), false) = (drive.bdf, drive.stable_ids.is_empty()) {
                all.entry(bdf).or_default().extend(drive.stable_ids.iter().cloned());
            }
        }
        all.into_iter().map(|(bdf, ids)| (bdf, ids.join(", "))).collect()
    }

    pub(super) fn matrix(&mut self) {
        let topology = self.page.subject.topology;
        let near = topology.gpus().count();
        if near < 2 {
            return;
        }
        self.section("matrix", "Distances");
        let all = if near <= MOST_NEAR { Some(Matrix::of(topology, false)) } else { None };
        let Some(matrix) = all.filter(|matrix| matrix.devices.len() <= MOST_NEAR) else {
            let words = format!("more than {MOST_NEAR} devices: `gpuvm host matrix` prints them");
            self.out.element("p", &[], words);
            self.out.close("section");
            return;
        };
        self.out.element(
            "p",
            &[("class", &"soft")],
            "NV# = number of NVLinks, PIX = at most one PCIe bridge, PXB = several bridges, PHB = \
             across the host bridge, NODE = across host bridges of one node, SYS = across nodes",
        );
        self.wide("Distances");
        self.out.open("table", &[("class", &"matrix")]);
        self.out.open("thead", &[]);
        self.out.open("tr", &[]);
        self.out.element("td", &[], "");
        let path = |bdf: Bdf| {
            let path: Vec<String> =
                topology.path_to_root(bdf).into_iter().rev().map(short).collect();
            path.join(" › ")
        };
        for device in &matrix.devices {
            let path = path(device.bdf);
            let attrs = [("scope", &"col" as _), ("data-path", &path as _)];
            self.out.element("th", &attrs, &device.name);
        }
        self.out.close("tr");
        self.out.close("thead");
        self.out.open("tbody", &[]);
        self.out.line();
        for (device, row) in matrix.devices.iter().zip(&matrix.proximity) {
            self.out.open("tr", &[]);
            let path = path(device.bdf);
            let attrs = [("scope", &"row" as _), ("data-path", &path as _)];
            self.out.element("th", &attrs, &device.name);
            for near in row {
                let (word, class) = (near.to_string(), class(*near));
                let attrs = [("class", &class as &dyn std::fmt::Display)];
                let used: &[_] = if class.is_empty() { &[] } else { &attrs };
                self.out.element("td", used, word);
            }
            self.out.close("tr");
            self.out.line();
        }
        self.end_table();
    }

    /// The IOMMU groups with devices for guests.
    pub(super) fn groups(&mut self) {
        let (topology, scene) = (self.page.subject.topology, self.scene);
        let mut groups: BTreeMap<u32, Vec<&Device>> = BTreeMap::new();
        for device in scene.devices() {
            if let Some(group) = topology.device(device.bdf).and_then(|pci| pci.iommu_group) {
                groups.entry(group).or_default().push(device);
            }
        }
        self.section("groups", "IOMMU groups");
        if groups.is_empty() {
            self.out.element("p", &[], "no device has an IOMMU group: the IOMMU is off");
            self.out.close("section");
            return;
        }
        self.wide("IOMMU groups");
        self.table("sift cards", &["group", "members", "drivers", "viable"]);
        for (number, devices) in groups {
            let members = topology.iommu_group(devices[0].bdf).map(|group| group.members.clone());
            let members = members.unwrap_or_default();
            let called = |bdf: &Bdf| match devices.iter().find(|device| device.bdf == *bdf) {
                Some(device) => format!("{bdf} {}", device.name),
                None => bdf.to_string(),
            };
            let drivers = members.iter().map(|bdf| {
                topology.device(*bdf).and_then(|pci| pci.driver.as_deref()).unwrap_or("-")
            });
            let mut drivers: Vec<&str> = drivers.collect();
            drivers.dedup();
            let refused = devices.iter().find(|one| !matches!(one.look, Look::Free | Look::Guest));
            let viable = match refused {
                None => "yes".to_owned(),
                Some(device) => format!(
                    "no: {} {}",
                    device.name,
                    device.why.as_deref().unwrap_or("is not available")
                ),
            };
            self.out.open("tr", &[]);
            self.out.element("th", &[("scope", &"row")], number);
            let members: Vec<String> = members.iter().map(called).collect();
            self.cell("members", "", members.join(", "));
            self.cell("drivers", "", drivers.join(", "));
            self.cell("viable", "", viable);
            self.out.close("tr");
            self.out.line();
        }
        self.end_table();
    }

    /// The guests that still fit, the obstacles to more, and their remedy.
    pub(super) fn capacity(&mut self) {
        let Some(capacity) = self.page.capacity else { return };
        self.section("capacity", "What still fits");
        self.wide("What still fits");
        self.table("fits", &["GPUs of a guest", "guests that fit", "on the empty host"]);
        for Size { gpus, now, empty } in &capacity.sizes {
            self.out.open("tr", &[]);
            self.out.element("th", &[("scope", &"row")], gpus);
            self.out.element("td", &[], now);
            self.out.element("td", &[], empty);
            self.out.close("tr");
        }
        self.out.close("tbody");
        self.out.close("table");
        self.out.close("div");
        for line in capacity.next.iter().flat_map(Blocked::lines) {
            let line = self.say(line);
            match line.strip_prefix("  ") {
                Some(holder) => self.out.element("p", &[("class", &"part")], holder),
                None => self.out.element("p", &[], line),
            }
        }
        for words in capacity.not_isolated() {
            let words = self.say(words);
            self.out.element("p", &[("class", &"bad")], words);
        }
        for line in capacity.never_placed.iter().chain(&capacity.warnings) {
            let line = self.say(line);
            self.out.element("p", &[], line);
        }
        self.out.close("section");
        self.out.line();
    }
}

fn class(near: Proximity) -> &'static str {
    match near {
        Proximity::NvLink(_) => "NV",
        Proximity::Pix => "PIX",
        Proximity::Pxb => "PXB",
        Proximity::Phb => "PHB",
        Proximity::Node => "NODE",
        Proximity::Sys => "SYS",
        Proximity::Same => "",
    }
}
