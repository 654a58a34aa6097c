//! Draws a scene as SVG. Text stays text; every box has an id and a description.

use super::devices::{Look, facts, short};
use super::guests::{Guest, Role, Use};
use super::markup::{Attr, Markup, cut};
use super::palette::{DARK, GUESTS, LIGHT, Scheme};
use super::scene::{
    Arc, Area, Board, Bridge, BridgeKind, Cache, CoreBox, Entry, Item, MemoryBar, NodeBox, Package,
    PartitionRow, Scene, Segment, Sign, Slot, Spoke, Thread, Tile,
};
use crate::bdf::Bdf;
use crate::topology::Topology;
use crate::words::count;
use std::fmt::Write as _;

struct Drawing<'a, 'b> {
    scene: &'b Scene<'a>,
    topology: &'b Topology,
    out: Markup,
}

/// Draws a scene as a document.
pub(super) fn document(scene: &Scene<'_>, topology: &Topology) -> String {
    draw(scene, topology, "img")
}

/// Draws a scene as a part of a page, whose boxes can be reached one by one.
pub(super) fn inline(scene: &Scene<'_>, topology: &Topology) -> String {
    draw(scene, topology, "group")
}

/// Draws a scene with this role.
fn draw(scene: &Scene<'_>, topology: &Topology, role: &str) -> String {
    let mut drawing = Drawing { scene, topology, out: Markup::default() };
    drawing.all(role);
    drawing.out.finish()
}

/// The description of a machine, without its own name.
pub(super) fn machine(topology: &Topology) -> String {
    let known = topology.machine().title().or_else(|| topology.fabric().board.clone());
    known.unwrap_or_else(|| "a host".to_owned())
}

/// The styles of a picture: colours of both schemes and of guests. No text is smaller than 10 px.
pub(super) fn style() -> String {
    let mut css = String::from(
        ".gpuvm{font:10px system-ui,\"DejaVu Sans\",Verdana,sans-serif}.gpuvm text{direction:ltr;\
         unicode-bidi:isolate}.gpuvm .b{font-weight:700;font-size:11px}\
         .gpuvm .l{font-weight:700}.gpuvm .c{font-weight:700;font-size:12px}\
         .gpuvm .g{font-weight:700;font-size:15px}.gpuvm .m{text-anchor:middle}\
         .gpuvm .e{text-anchor:end}.gpuvm .p>rect{stroke-dasharray:4 2;stroke-width:2}\
         .gpuvm .a{fill:none}.gpuvm .q{stroke-dasharray:2 2}",
    );
    css.push_str(&colours(&LIGHT));
    for (place, (hue, text)) in GUESTS.iter().enumerate() {
        write!(
            css,
            ".gpuvm .h{place}>rect{{fill:{hue}}}.gpuvm .h{place}>text,.gpuvm .h{place}>.d{{fill:\
             {text}}}.gpuvm .h{place}>.o{{stroke:{text}}}"
        )
        .expect("text");
    }
    let dark = colours(&DARK);
    write!(css, "@media screen and (prefers-color-scheme:dark){{{dark}}}").expect("text");
    css
}

/// The styles of a scheme. Guests' colours are the same in both.
fn colours(scheme: &Scheme) -> String {
    let Scheme { ground, package, node, bridge, free, host, unusable, line, text } = scheme;
    format!(
        ".gpuvm text,.gpuvm .d{{fill:{text}}}.gpuvm rect{{stroke:{line}}}.gpuvm .p>rect{{stroke:{text}}}.gpuvm .o,.gpuvm .a{{\
         stroke:{text}}}.gpuvm .z>rect{{fill:{ground};stroke:none}}.gpuvm .k>rect{{fill:{package}}}\
         .gpuvm .v>rect{{fill:{node}}}.gpuvm .w>rect{{fill:{bridge}}}.gpuvm .f>rect{{fill:{free}}}\
         .gpuvm #hatch rect{{fill:{};stroke:none}}.gpuvm #hatch path{{stroke:{}}}\
         .gpuvm #isolated rect{{fill:{free};stroke:none}}.gpuvm #isolated path{{stroke:{}}}\
         .gpuvm .i>rect{{fill:url(#isolated)}}.gpuvm .j{{fill:{text};stroke:{free};stroke-width:.5}}\
         .gpuvm .u>rect{{fill:url(#hatch)}}.gpuvm .x>rect{{fill:{}}}.gpuvm .x>path{{stroke:{}}}",
        host.0, host.1, host.1, unusable.0, unusable.1
    )
}

impl Drawing<'_, '_> {
    fn all(&mut self, role: &str) {
        let Area { width, height, .. } = self.scene.area;
        let machine = machine(self.topology);
        // The first two are the mark by which files of ours are known.
        self.out.open(
            "svg",
            &[
                ("xmlns", &"http://www.w3.org/2000/svg"),
                ("class", &"gpuvm"),
                ("width", &width),
                ("height", &height),
                ("viewBox", &format_args!("0 0 {width} {height}")),
                ("role", &role),
                ("aria-label", &format_args!("{machine}: guests on pcpus, memory and devices")),
            ],
        );
        self.out.line();
        let guests = self.scene.guests.len();
        let title = format!("{machine}, {}", count(guests, "guest"));
        self.out.element("title", &[], title);
        self.out.open("style", &[]);
        self.out.verbatim(&style());
        self.out.close("style");
        self.out.verbatim(
            "<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" \
             patternUnits=\"userSpaceOnUse\"><rect width=\"6\" height=\"6\"/><path d=\"M0 6L6 0\" \
             fill=\"none\"/></pattern><pattern id=\"isolated\" width=\"5\" height=\"5\" \
             patternUnits=\"userSpaceOnUse\"><rect width=\"5\" height=\"5\"/><path d=\"M0 2.5H5\" \
             fill=\"none\"/></pattern></defs>",
        );
        self.out.line();
        self.group("z", None, "");
        self.rect(&self.scene.area, 0);
        self.end();
        let scene = self.scene;
        scene.packages.iter().for_each(|package| self.package(package));
        self.links();
        scene.legend.iter().for_each(|entry| self.entry(entry));
        self.out.close("svg");
        self.out.line();
    }

    fn package(&mut self, package: &Package) {
        let (id, label) = match package.number {
            Some(number) => (format!("package-{number}"), format!("package {number}")),
            None => ("no-package".into(), "without cores".into()),
        };
        self.group("k", Some(&id), "");
        self.rect(&package.area, 4);
        self.text(package.area.x + 8, package.area.y + 13, "b", &label);
        self.end();
        package.nodes.iter().for_each(|node| self.node(node));
    }

    /// A node with all that is in it.
    fn node(&mut self, node: &NodeBox) {
        let id = node.node.map_or_else(|| "no-node".into(), |id| format!("node-{id}"));
        self.group("v", Some(&id), "");
        self.rect(&node.area, 4);
        self.text(node.area.x + 8, node.area.y + 13, "b", &node.label);
        self.end();
        node.memory.iter().for_each(|bar| self.memory(bar));
        node.caches.iter().for_each(|cache| self.cache(cache));
        node.roots.iter().for_each(|item| self.item(item));
    }

    fn memory(&mut self, bar: &MemoryBar) {
        let MemoryBar { area: whole, rest: (free, rest), .. } = bar;
        let is_inside = fits(rest, free.width);
        let more = if is_inside { String::new() } else { format!(", {rest}") };
        self.text(whole.x, whole.y - 3, "", &format!("{}{more}", bar.label));
        self.text(whole.x - 4, whole.y + 12, "e", "0");
        self.text(whole.right() + 4, whole.y + 12, "", &bar.whole);
        self.group("f", None, &format!("{}, {rest}", bar.label));
        self.rect(whole, 0);
        self.end();
        if is_inside {
            self.text(free.x + free.width / 2, free.y + 12, "m", rest);
        }
        for Segment { area, guest, says } in &bar.segments {
            if area.width == 0 {
                continue;
            }
            let guest = guest.map(|place| &self.scene.guests[place]);
            self.guest_group(guest, "u", None, says);
            self.rect(area, 0);
            if let Some(guest) = guest.filter(|guest| fits(&guest.letter, area.width)) {
                self.text(area.x + area.width / 2, area.y + 12, "l m", &guest.letter);
            }
            self.end();
        }
        self.out.line();
    }

    /// The cores below an L3 cache, or their bar.
    fn cache(&mut self, cache: &Cache) {
        let Cache { area, pcpus, cores, shares } = cache;
        if cores.is_empty() {
            let held: usize = shares.iter().map(|share| share.pcpus.len()).sum();
            let says = format!("pcpus {pcpus}: {held} of {} held", pcpus.len());
            self.group("f", None, &says);
            self.rect(area, 0);
            if shares.is_empty() {
                let label = cut(&format!("{pcpus}: {} free", pcpus.len()), 32);
                self.text(area.x + 4, area.y + 13, "", &label);
            }
            self.end();
            for share in shares.iter().filter(|share| share.area.width > 0) {
                let guest = &self.scene.guests[share.guest];
                let says = format!("pcpus {}: {}", share.pcpus, guest.name);
                self.guest_group(Some(guest), "", None, &says);
                self.rect(&share.area, 0);
                let label = format!("{} {}", guest.letter, share.pcpus.len());
                let label = if fits(&label, share.area.width) { &label } else { &guest.letter };
                if fits(label, share.area.width) {
                    let middle = share.area.x + share.area.width / 2;
                    self.text(middle, share.area.y + 12, "l m", label);
                }
                self.end();
            }
        } else {
            self.group("w", None, &format!("L3 cache of pcpus {pcpus}"));
            self.rect(area, 2);
            self.end();
            cores.iter().for_each(|core| self.core(core));
        }
        self.out.line();
    }

    /// A core: its pcpus, those that are offline last.
    fn core(&mut self, core: &CoreBox) {
        core.threads.iter().for_each(|thread| self.thread(thread));
        for (area, pcpu) in &core.offline {
            self.group("w q", Some(&format!("pcpu-{pcpu}")), &format!("pcpu {pcpu}: offline"));
            self.rect(area, 0);
            let middle = area.x + area.width / 2;
            self.text(middle, area.y + 12, "m", &pcpu.to_string());
            self.text(middle, area.y + 26, "m", "off");
            self.end();
        }
    }

    /// A pcpu: its number, the letter of its guest, and its threads.
    fn thread(&mut self, thread: &Thread) {
        let Thread { area, pcpu, uses, isolated } = thread;
        let guests = &self.scene.guests;
        let words: Vec<String> = uses.iter().map(|one| using(one, guests)).collect();
        let words = if words.is_empty() { "free".to_owned() } else { words.join("; ") };
        let note = if *isolated { " (isolated by the kernel)" } else { "" };
        let says = format!("pcpu {pcpu}{note}: {words}");
        let first = uses.first().map(|one| &guests[one.guest]);
        let id = format!("pcpu-{pcpu}");
        self.guest_group(first, if *isolated { "f i" } else { "f" }, Some(&id), &says);
        self.rect(area, 0);
        if *isolated {
            self.corner(area);
        }
        let middle = area.x + area.width / 2;
        self.text(middle, area.y + 12, "m", &pcpu.to_string());
        if let (Some(guest), Some(first)) = (first, uses.first()) {
            self.text(middle, area.y + 25, "c m", &guest.letter);
            let mut roles: Vec<Role> =
                uses.iter().filter(|one| one.guest == first.guest).map(|one| one.role).collect();
            roles.dedup();
            let step = 7;
            let wide = step * (u32::try_from(roles.len()).expect("three roles") - 1);
            for (role, place) in roles.into_iter().zip(0..) {
                self.mark(role, middle - wide / 2 + place * step, area.y + 33);
            }
        }
        self.end();
    }

    /// The mark of an isolated pcpu: its lower left corner is filled.
    fn corner(&mut self, area: &Area) {
        let corner = format!("M{} {}v-8l8 8z", area.x + 1, area.bottom() - 1);
        self.out.empty("path", &[("class", &"j"), ("d", &corner)]);
    }

    /// A mark around a point: a dot for a vCPU, a ring for the emulator, a bar for I/O threads.
    fn mark(&mut self, role: Role, x: u32, y: u32) {
        match role {
            Role::Vcpu => {
                self.out.empty("circle", &[("class", &"d"), ("cx", &x), ("cy", &y), ("r", &2)]);
            }
            Role::Emulator => {
                let class = ("class", &"o" as &dyn std::fmt::Display);
                let rest: [Attr<'_>; 4] = [("fill", &"none"), ("cx", &x), ("cy", &y), ("r", &2)];
                self.out.empty("circle", &[&[class], &rest[..]].concat());
            }
            Role::Iothread => {
                let line = format!("M{} {y}h5", x - 2);
                let width = ("stroke-width", &2 as &dyn std::fmt::Display);
                self.out.empty("path", &[("class", &"o"), ("d", &line), width]);
            }
        }
    }

    fn item(&mut self, item: &Item) {
        match item {
            Item::Tile(tile) => self.tile(tile),
            Item::Bridge(bridge) => {
                let Bridge { area, kind, label, items } = bridge;
                let id = bridge.bdf().map(|bdf| format!("bridge-{}", id_of(bdf)));
                self.group("w", id.as_deref(), &bridge.says());
                self.rect(area, 2);
                // Beside a card's name there is no room left of its functions.
                let indent = if matches!(kind, BridgeKind::Card(..)) { 113 } else { 5 };
                let label = cut(label, (area.width.saturating_sub(indent) / 6) as usize);
                self.text(area.x + indent, area.y + 11, "", &label);
                self.end();
                items.iter().for_each(|item| self.item(item));
                self.out.line();
            }
        }
    }

    fn tile(&mut self, tile: &Tile) {
        let Tile { area, device, path } = tile;
        let guests = &self.scene.guests;
        let first = device.guests.first().map(|place| &guests[*place]);
        let mut says = facts(device, self.topology, guests).join(", ");
        if let Some(port) = path.first() {
            write!(says, ", root port {}", short(*port)).expect("text");
        }
        let class = match device.look {
            Look::Free | Look::Guest => "f",
            Look::Host | Look::FabricManager => "u",
            Look::Unusable => "x",
        };
        let class = format!("t {class}");
        let id = format!("dev-{}", id_of(device.bdf));
        self.guest_group(first, &class, Some(&id), &says);
        self.rect(area, 3);
        if device.look == Look::Unusable {
            let (right, bottom) = (area.right() - 4, area.bottom() - 4);
            let (x, y) = (right - 14, bottom - 14);
            let cross = format!("M{x} {y}L{right} {bottom}M{right} {y}L{x} {bottom}");
            self.out.empty("path", &[("d", &cross), ("fill", &"none"), ("stroke-width", &2)]);
        }
        if area.height < 40 {
            self.text(area.x + 5, area.y + 15, "", &short(device.bdf));
            if let Some(guest) = first {
                self.text(area.right() - 4, area.y + 16, "c e", &guest.letter);
            }
            return self.end();
        }
        // Long names of network devices are written smaller.
        let class = if device.name.chars().count() > 10 { "l" } else { "b" };
        self.text(area.x + 5, area.y + 15, class, &cut(&device.name, 13));
        self.text(area.x + 5, area.y + 29, "", &short(device.bdf));
        self.text(area.x + 5, area.y + 43, "", &cut(&device.model, 16));
        match first {
            Some(guest) => self.text(area.right() - 5, area.y + 31, "g e", &guest.letter),
            None if device.look == Look::FabricManager => {
                self.text(area.right() - 5, area.y + 31, "g e", "FM");
            }
            None => {}
        }
        self.end();
    }

    fn links(&mut self) {
        let scene = self.scene;
        let Some((area, title)) = &scene.nvlink else { return };
        self.group("v", Some("nvlink"), "");
        self.rect(area, 4);
        self.text(area.x + 8, area.y + 13, "b", title);
        self.end();
        if let Some(board) = &scene.board {
            self.board(board);
        }
        for PartitionRow { area, id, guest, label, slots } in &scene.partitions {
            let guest = guest.map(|place| &scene.guests[place]);
            let name = guest.map_or("active, its guest is not known", |guest| guest.name);
            self.group("", Some(&format!("partition-{id}")), &format!("{label}: {name}"));
            let who = guest.map_or_else(|| "active".to_owned(), |guest| guest.letter.clone());
            let words = format!("{label} · {who}");
            self.text(area.x, area.y + 15, "", &cut(&words, 62));
            self.end();
            slots.iter().for_each(|slot| self.slot(slot));
            self.out.line();
        }
        if let Some(mesh) = &scene.mesh {
            mesh.arcs.iter().for_each(|arc| self.arc(arc));
            mesh.slots.iter().for_each(|slot| self.slot(slot));
            self.out.line();
        }
    }

    /// GPUs and their links to NVSwitches.
    fn board(&mut self, board: &Board) {
        let Board { label, area, switches: (bar, switches), is_kept, spokes } = board;
        self.text(area.x, area.y + 15, "", &cut(label, 66));
        let class = if *is_kept { "u" } else { "w" };
        self.group(class, Some("nvswitches"), &format!("{switches}: {label}"));
        self.rect(bar, 2);
        self.text(bar.x + bar.width / 2, bar.y + 13, "l m", switches);
        self.end();
        for Spoke { slot, line: (x, from, to), links } in spokes {
            let says = format!(
                "GPU {} {}: {} to each GPU that it is linked with, over NVSwitches",
                slot.index,
                slot.bdf,
                count(*links, "NVLink")
            );
            self.group("", None, &says);
            let line = format!("M{x} {from}V{to}");
            let width = (links / 4).clamp(1, 5);
            self.out.empty("path", &[("class", &"a"), ("d", &line), ("stroke-width", &width)]);
            if slot.area.width >= 34 {
                self.text(x + 5, (from + to) / 2 + 4, "", &links.to_string());
            }
            self.end();
            self.slot(slot);
        }
        self.out.line();
    }

    /// A GPU beside its partition or in a mesh.
    fn slot(&mut self, slot: &Slot) {
        let Slot { area, index, bdf, is_in, guest } = slot;
        let guest = guest.filter(|_| *is_in).map(|place| &self.scene.guests[place]);
        let out = if *is_in { "" } else { ", not in the partition" };
        self.guest_group(
            guest,
            if *is_in { "f" } else { "w q" },
            None,
            &format!("GPU {index} {bdf}{out}"),
        );
        self.rect(area, 2);
        let letter = guest.map_or("", |guest| guest.letter.as_str());
        let (number, named) = (index.to_string(), format!("GPU {index} {letter}"));
        let label = if fits(&named, area.width) { named.trim_end() } else { &number };
        if *is_in && fits(label, area.width + 4) {
            let y = area.y + area.height / 2 + 4;
            self.text(area.x + area.width / 2, y, "l m", label);
        }
        self.end();
    }

    fn arc(&mut self, arc: &Arc) {
        let Arc { ends: (from, to, y), rise, gpus: (a, b), links } = arc;
        let says = format!("GPU {a} and GPU {b}: {}", count(*links, "NVLink"));
        self.group("", None, &says);
        let radius = to.saturating_sub(*from).max(2) / 2;
        let line = format!("M{from} {y}A{radius} {rise} 0 0 1 {to} {y}");
        self.out.empty("path", &[("class", &"a"), ("d", &line), ("stroke-width", links)]);
        if *links > 1 {
            self.text((from + to) / 2, y - rise - 2, "m", &links.to_string());
        }
        self.end();
    }

    fn entry(&mut self, entry: &Entry) {
        let Entry { area, sign, words } = entry;
        let field = Area { width: 24, height: area.height - 5, ..*area };
        let middle = (field.x + field.width / 2, field.y + field.height / 2);
        match sign {
            Sign::Guest(place) => {
                let guest = &self.scene.guests[*place];
                let says = format!("{}, {}", guest.name, guest.state());
                self.guest_group(Some(guest), "", Some(&format!("guest-{}", guest.letter)), &says);
                self.rect(&field, 2);
                self.text(middle.0, middle.1 + 4, "l m", &guest.letter);
                self.end();
            }
            Sign::Free => self.field("f", &field),
            Sign::Host => self.field("u", &field),
            Sign::FabricManager => self.lettered("u", &field, "FM"),
            Sign::Offline => self.lettered("w q", &field, "off"),
            Sign::Isolated => {
                self.group("f i", None, "");
                self.rect(&field, 2);
                self.corner(&field);
                self.end();
            }
            Sign::Planned => self.field("f p", &field),
            Sign::Unusable => {
                self.group("x", None, "");
                self.rect(&field, 2);
                let (x, y) = (middle.0 - 5, middle.1 - 5);
                let cross = format!("M{x} {y}l10 10m0 -10l-10 10");
                self.out.empty("path", &[("d", &cross), ("fill", &"none"), ("stroke-width", &2)]);
                self.end();
            }
            Sign::Mark(role) => {
                self.group("f", None, "");
                self.rect(&field, 2);
                self.mark(*role, middle.0, middle.1);
                self.end();
            }
        }
        self.text(area.x + field.width + 6, area.y + 13, "", words);
        self.out.line();
    }

    fn field(&mut self, class: &str, area: &Area) {
        self.group(class, None, "");
        self.rect(area, 2);
        self.end();
    }

    /// A field of a class with letters.
    fn lettered(&mut self, class: &str, area: &Area, letters: &str) {
        self.group(class, None, "");
        self.rect(area, 2);
        self.text(area.x + area.width / 2, area.y + area.height / 2 + 4, "l m", letters);
        self.end();
    }

    /// Begins a group that belongs to a guest, or has a class if it belongs to none.
    fn guest_group(
        &mut self,
        guest: Option<&Guest<'_>>,
        class: &str,
        id: Option<&str>,
        says: &str,
    ) {
        let Some(guest) = guest else { return self.group(class, id, says) };
        let dashed = if guest.planned { " p" } else { "" };
        let is_tile = if class.starts_with("t ") { "t " } else { "" };
        let class = format!("{is_tile}h{}{dashed}", guest.hue);
        let own: [Attr<'_>; 2] = [("class", &class), ("data-g", &guest.letter)];
        self.identified(id, &own);
        self.says(says);
    }

    /// Begins a group; its text is shown under the pointer.
    fn group(&mut self, class: &str, id: Option<&str>, says: &str) {
        let own: [Attr<'_>; 1] = [("class", &class)];
        self.identified(id, if class.is_empty() { &[] } else { &own });
        self.says(says);
    }

    /// Begins a group with an id. A device's says which one it is, for the script of a page.
    fn identified(&mut self, id: Option<&str>, more: &[Attr<'_>]) {
        let device = id.and_then(|id| id.strip_prefix("dev-"));
        let mut attrs: Vec<Attr<'_>> = Vec::new();
        attrs.extend(id.as_ref().map(|id| ("id", id as &dyn std::fmt::Display)));
        attrs.extend_from_slice(more);
        attrs.extend(device.as_ref().map(|id| ("data-d", id as &dyn std::fmt::Display)));
        self.out.open("g", &attrs);
    }

    fn says(&mut self, words: &str) {
        if !words.is_empty() {
            self.out.element("title", &[], words);
        }
    }

    fn end(&mut self) {
        self.out.close("g");
    }

    fn rect(&mut self, area: &Area, round: u32) {
        let Area { x, y, width, height } = area;
        let place: [Attr<'_>; 5] =
            [("x", x), ("y", y), ("width", width), ("height", height), ("rx", &round)];
        let used = if round == 0 { &place[..4] } else { &place[..] };
        self.out.empty("rect", used);
    }

    fn text(&mut self, x: u32, y: u32, class: &str, text: &str) {
        let attrs: [Attr<'_>; 3] = [("x", &x), ("y", &y), ("class", &class)];
        let used = if class.is_empty() { &attrs[..2] } else { &attrs[..] };
        self.out.element("text", used, text);
    }
}

/// The role of a guest on a pcpu.
fn using(one: &Use, guests: &[Guest<'_>]) -> String {
    let name = guests[one.guest].name;
    let number = one.number.map_or_else(String::new, |number| format!(" {number}"));
    match one.role {
        Role::Vcpu => format!("{name}, vCPU{number}"),
        Role::Emulator => format!("{name}, emulator"),
        Role::Iothread => format!("{name}, I/O thread{number}"),
    }
}

/// Whether bold text of the usual size fits a width.
fn fits(text: &str, width: u32) -> bool {
    u32::try_from(text.chars().count()).is_ok_and(|length| length * 7 <= width)
}

/// An address as a part of an id.
pub(super) fn id_of(bdf: Bdf) -> String {
    bdf.to_string().replace([':', '.'], "-")
}
