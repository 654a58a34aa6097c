//! The settings of a guest that follow from another size, and those that stay. Pins, cells and
//! topology are planned again if it has them; queues, threads and hints follow if they are as
//! `tune` would set them, and otherwise stay.

use super::functions::settings_now;
use super::items::{OtherFunctions, PinOrder, Resize};
use super::kinds::Kinds;
use super::request_of_domain::{memory_now, order_of, starts_with_less};
use super::{Given, Item, ItemName, Items, TuneError, tune};
use crate::bdf::Bdf;
use crate::check::vgpu::unoffered;
use crate::cpuset::CpuSet;
use crate::domain::claims::{Claims, VcpuSet};
use crate::domain::{DomainXml, Element};
use crate::guest::are_same_vgpus;
use crate::memsize::MemSize;
use crate::placement::{ExtraKind, plan};
use crate::request::{DeviceWish, GpuWish, PageSize, PinPolicy, Request, VgpuWish};
use crate::shell::{domain, word};
use crate::topology::{DeviceKind, Topology};

/// Returns the settings of a guest with these sizes. Present values are left out: nothing is
/// planned again unless it is requested.
pub(super) fn items(
    current: &DomainXml,
    claims: &Claims<'_>,
    given: &Given<'_>,
) -> Result<Items, TuneError> {
    let mut items = given.items.clone();
    let mut size = items.size().clone();
    room(current, claims, &mut size)?;
    let vcpus = claims.vcpus.value;
    let is_whole = claims.plugged.len() == vcpus as usize || !size.plugged.is_kept();
    if size.vcpus == Some(vcpus) && is_whole {
        size.vcpus = None;
    }
    let page = page_of(claims);
    let has_pages = match items.huge_pages {
        Item::Keep | Item::On => true,
        Item::Off => claims.huge_pages.is_none(),
        Item::To(wanted) => page == Some(wanted.size()),
    };
    if has_pages {
        items.huge_pages = Item::Keep;
    }
    let unit = match items.huge_pages {
        Item::To(page) => page.size(),
        _ => page.unwrap_or(PageSize::TwoMib.size()).max(PageSize::TwoMib.size()),
    };
    let memory = memory_now(claims);
    if let Some(wanted) = size.memory
        && (wanted == memory || wanted.round_up(unit) == memory)
        && !starts_with_less(current, claims)
    {
        size.memory = None;
    }
    let repages = !items.huge_pages.is_kept();
    as_it_has(current, claims, given, &mut size.functions);
    has_vgpus(current, claims, given.topology, &mut size.vgpu)?;
    items.resize = Some(size);
    if !items.resizes() && !items.moves_functions() && !repages {
        return Ok(items);
    }
    refuse_mistaken(&items, given.topology)?;
    refuse(current, claims, &items)?;
    refuse_coherent(current, claims, &items, given)?;
    if items.size().memory.is_some() || items.moves_functions() || repages {
        items.memory_rounding = Item::On;
    }
    if items.moves_functions() {
        // The settings that a guest needs with its first function; the window of BARs follows their
        // number.
        (items.window, items.maxphysaddr) = (Item::On, Item::On);
        (items.invtsc, items.balloon, items.fill) = (Item::On, Item::On, Item::On);
        items.memory_nodes = Item::On;
    }
    items.unnamed = Items::all().unnamed;
    items.unnamed.remove(&ItemName::Maxphysaddr);
    let is_ours = current.is_ours() && current.has_request();
    // Its owner chose the places of a guest that gpuvm did not make, and its cells.
    let has_cells = !claims.cells.is_empty();
    if is_ours || has_cells || items.moves_functions() {
        items.cells = Item::On;
    }
    if is_ours || !items.keeps_vcpus() {
        pins(current, claims, given, &mut items)?;
    }
    if !is_ours && !has_cells && !items.moves_functions() {
        items.memory_nodes = Item::Keep;
    }
    follow(current, claims, given, &mut items);
    Ok(items)
}

/// Leaves out kinds of functions that it has as requested. Of a guest of ours as many have been
/// requested before, too: it may have others that came along.
fn as_it_has(
    current: &DomainXml,
    claims: &Claims<'_>,
    given: &Given<'_>,
    wanted: &mut OtherFunctions,
) {
    let recorded = current.record().ok().flatten().map(|record| record.request.extras);
    let was = |kind| {
        let extras = recorded.as_ref()?;
        Some(match kind {
            ExtraKind::Nic => extras.nics.number(),
            ExtraKind::Vf => extras.vfs.number(),
            ExtraKind::Nvme => extras.nvmes.number(),
        })
    };
    let kinds = Kinds::new(given.topology, current);
    let has = |kind| kinds.passed(claims, kind);
    let is_so = |wish: &DeviceWish, has: &[Bdf]| match wish {
        DeviceWish::Count(count) => has.len() == *count as usize,
        DeviceWish::Exact(bdfs) => {
            has.len() == bdfs.len() && has.iter().all(|bdf| bdfs.contains(bdf))
        }
    };
    let vfs = has(ExtraKind::Vf);
    let are_set = vfs.iter().all(|&vf| {
        let now = settings_now(current, vf);
        now.over(&wanted.settings_of(vf)) == now
    });
    for (kind, wish) in [
        (ExtraKind::Nic, &mut wanted.nics),
        (ExtraKind::Vf, &mut wanted.vfs),
        (ExtraKind::Nvme, &mut wanted.nvmes),
    ] {
        let is_set = kind != ExtraKind::Vf || are_set;
        let is_kept = |wish: &DeviceWish| {
            is_set && was(kind).is_none_or(|was| was == wish.number()) && is_so(wish, &has(kind))
        };
        if wish.as_ref().is_some_and(is_kept) {
            *wish = None;
        }
    }
}

/// Leaves out vGPUs that it has as requested, unless its cards have no room for them now; those
/// without a record, of domains of others, count too. Refuses new ones of such a domain.
fn has_vgpus(
    current: &DomainXml,
    claims: &Claims<'_>,
    topology: &Topology,
    wanted: &mut Item<VgpuWish>,
) -> Result<(), TuneError> {
    let kinds = Kinds::new(topology, current);
    let has_some = || {
        !current.mediated().is_empty()
            || claims.passed.iter().any(|passed| kinds.is_vgpu(passed.bdf.value))
    };
    let recorded = current.record().ok().flatten().and_then(|record| record.request.vgpu);
    let own = current.vgpus().unwrap_or_default();
    let is_so = match wanted {
        Item::Off => own.is_empty() && recorded.is_none() && !has_some(),
        Item::To(wish) => {
            let are_same = are_same_vgpus((recorded.as_ref(), Some(wish)), &own, topology);
            !own.is_empty() && are_same && unoffered(&own, topology).is_empty()
        }
        Item::Keep | Item::On => true,
    };
    if is_so {
        *wanted = Item::Keep;
    }
    refuse_unrecorded(current, wanted)
}

/// The settings of a guest that keeps its vGPUs because no other place has room for those that it
/// has as requested; `None` if it has them not as requested, or its cards have room.
pub(super) fn with_own_vgpus(current: &DomainXml, given: &Given<'_>) -> Option<Items> {
    let Item::To(wish) = &given.items.size().vgpu else { return None };
    let recorded = current.record().ok()??.request.vgpu;
    let own = current.vgpus().ok()?;
    let are_same = are_same_vgpus((recorded.as_ref(), Some(wish)), &own, given.topology);
    if !are_same || unoffered(&own, given.topology).is_empty() {
        return None;
    }
    let size = Resize { vgpu: Item::Keep, ..given.items.size().clone() };
    Some(Items { resize: Some(size), ..given.items.clone() })
}

/// Refuses vGPUs of a domain that has no record of its own: types and mediated devices are lost at
/// every restart of the host, and `start` makes them by the record.
fn refuse_unrecorded(current: &DomainXml, wanted: &Item<VgpuWish>) -> Result<(), TuneError> {
    let Item::To(wish) = wanted else { return Ok(()) };
    if !current.is_copy() && matches!(current.record(), Ok(Some(_))) {
        return Ok(());
    }
    let name = format!("{}-vgpu", current.name());
    let message = "gpuvm did not make the guest, so `start` would not set up its vGPUs";
    let hint = format!(
        "`gpuvm create --name {} --vgpu {}` makes a guest whose vGPUs are set up at each start",
        word(&name),
        word(&wish.to_string())
    );
    Err(TuneError::item(ItemName::Vgpu, message, hint))
}

/// Tells how many vCPUs there are, and how many of them are plugged at start: the number itself
/// where a guest has room for it, or gets that.
fn room(current: &DomainXml, claims: &Claims<'_>, size: &mut Resize) -> Result<(), TuneError> {
    let (now, most) = (claims.plugged.len(), claims.vcpus.value);
    let now = u32::try_from(now).unwrap_or(u32::MAX);
    let recorded = current.record().ok().flatten().and_then(|record| record.request.vcpus_at_start);
    let has_room = now < most || recorded.is_some();
    match (size.vcpus, size.max_vcpus) {
        (None, None) => {}
        (vcpus, Some(most)) => {
            let start = vcpus.unwrap_or(now);
            if start > most {
                let message = format!("{start} vCPUs are more than the maximum of {most}");
                let (name, number) = (current.name(), start);
                let hint = format!("`gpuvm set {} --max-vcpus {number}`", word(&name));
                return Err(TuneError::item(ItemName::Vcpus, message, hint));
            }
            if start < most && !current.is_x86() {
                let message = "guests of this architecture cannot get vCPUs while they run";
                let (name, number) = (current.name(), most);
                let hint = format!("`gpuvm set {} --vcpus {number}`", word(&name));
                return Err(TuneError::item(ItemName::Vcpus, message, hint));
            }
            size.vcpus = Some(most);
            size.plugged = if start < most { Item::To(start) } else { Item::Off };
        }
        (Some(vcpus), None) if has_room && (1..=most).contains(&vcpus) => {
            size.vcpus = None;
            size.plugged = Item::To(vcpus);
        }
        (Some(_), None) => {
            size.plugged = if has_room { Item::Off } else { Item::Keep };
        }
    }
    Ok(())
}

/// The size of the pages that back its memory; `None` for normal ones.
fn page_of(claims: &Claims<'_>) -> Option<MemSize> {
    let pages = claims.huge_pages.as_ref()?;
    Some(pages.first().map_or(PageSize::TwoMib.size(), |page| page.size.value))
}

/// Refuses addresses that are not of the kind for which they are named.
fn refuse_mistaken(items: &Items, topology: &Topology) -> Result<(), TuneError> {
    for kind in ExtraKind::ALL {
        let Some(DeviceWish::Exact(named)) = items.size().functions.of(kind) else { continue };
        if let Some((what, hint)) = named.iter().find_map(|bdf| kind.mistaken(*bdf, topology)) {
            return Err(TuneError::item(kind.into(), what, hint));
        }
    }
    Ok(())
}

/// Refuses what would be left with vCPUs that are not there, or with memory of another division.
fn refuse(current: &DomainXml, claims: &Claims<'_>, items: &Items) -> Result<(), TuneError> {
    if items.size().vcpus == Some(0) {
        let hint = format!("`gpuvm set {} --vcpus 1`", word(&current.name()));
        return Err(TuneError::item(ItemName::Vcpus, "a guest needs at least one", hint));
    }
    if let Some(memory) = items.size().memory.filter(|memory| memory.kib() < 1024) {
        let message = format!("{memory} is too little for a guest");
        let hint = format!("`gpuvm set {} --memory 1G`", word(&current.name()));
        return Err(TuneError::item(ItemName::Memory, message, hint));
    }
    let edit = || format!("`virsh edit {}` changes it", domain(&current.name()));
    let Some(vcpus) = items.size().vcpus.filter(|vcpus| *vcpus < claims.vcpus.value) else {
        return Ok(());
    };
    let tune = current.root().child("cputune").into_iter().flat_map(Element::elements);
    let names = |element: &Element<'_>| {
        let named: Option<VcpuSet> = element.attr("vcpus").and_then(|set| set.parse().ok());
        named.is_some_and(|named| named.iter().any(|vcpu| vcpu.0 >= vcpus))
    };
    match { tune }.find(names) {
        None => Ok(()),
        Some(element) => {
            let message = format!("<{}> names vCPUs that {vcpus} would not have", element.name());
            Err(TuneError::item(ItemName::Vcpus, message, edit()))
        }
    }
}

/// Refuses other GPUs where those that it has or gets have coherent memory: their cells, buses and
/// SMMUv3s are made with a guest alone, and so are the cells of its vCPUs beside these.
fn refuse_coherent(
    current: &DomainXml,
    claims: &Claims<'_>,
    items: &Items,
    given: &Given<'_>,
) -> Result<(), TuneError> {
    let (size, topology) = (items.size(), given.topology);
    let has = !claims.empty_cells.is_empty()
        || claims.passed.iter().any(|passed| topology.is_coherent(passed.bdf.value));
    let gets = match &size.gpus {
        Some(GpuWish::Exact(gpus)) => gpus.iter().any(|gpu| topology.is_coherent(*gpu)),
        Some(wish) => wish.number() > 0 && topology.has_coherent_gpus(),
        None => false,
    };
    let item = match size {
        Resize { gpus: Some(_), .. } if has || gets => ItemName::Gpus,
        Resize { vcpus: Some(_), .. } if has => ItemName::Vcpus,
        Resize { memory: Some(_), .. } if has => ItemName::Memory,
        _ => return Ok(()),
    };
    let passed: Vec<Bdf> = claims.passed.iter().map(|passed| passed.bdf.value).collect();
    let own = topology.among(&passed, DeviceKind::Gpu, false).len();
    let gpus = size.gpus.as_ref().map_or(own, |wish| wish.number() as usize);
    let message = "the cells, buses and SMMUv3s of GPUs with coherent memory are made with the guest, \
                   and stay";
    let number = u32::try_from(gpus).unwrap_or(u32::MAX);
    let other = Request::for_gpus(number);
    let other = Request { vcpus: size.vcpus, memory_kib: size.memory, ..other };
    if let Err(why) = plan(topology, given.others, &other) {
        let hint =
            format!("no new guest has a place either: {why}; `gpuvm capacity` shows what fits");
        return Err(TuneError::item(item, message, hint));
    }
    let vcpus = size.vcpus.map(|vcpus| format!(" --vcpus {vcpus}"));
    let memory = size.memory.map(|memory| format!(" --memory {}", memory.typed()));
    let more: String = vcpus.into_iter().chain(memory).collect();
    let name = current.name();
    let words = format!("--name {} --gpus {gpus}{more}", word(&name));
    let hint = format!(
        "`gpuvm export {words}` prints the definition of such a guest; `gpuvm create {words}` makes \
         it, once `gpuvm delete {} --keep-data` has deleted this one and its boot disk",
        word(&name)
    );
    Err(TuneError::item(item, message, hint))
}

/// Plans pins again, in their present order; a floating guest stays floating.
fn pins(
    current: &DomainXml,
    claims: &Claims<'_>,
    given: &Given<'_>,
    items: &mut Items,
) -> Result<(), TuneError> {
    if claims.vcpu_pins.is_empty() {
        items.pins = Item::Off;
        return Ok(());
    }
    let asked = current.record().ok().flatten().map(|record| record.request.pins);
    items.pins = match asked {
        Some(PinPolicy::Core | PinPolicy::Thread | PinPolicy::Auto) => Item::On,
        Some(PinPolicy::None) | None => {
            let mut pins = vec![CpuSet::new(); claims.vcpus.value as usize];
            for pin in &claims.vcpu_pins {
                if let Some(place) = pins.get_mut(pin.of.value as usize) {
                    place.clone_from(&pin.cpuset.value);
                }
            }
            let order = order_of(&pins, given.topology).ok_or_else(|| {
                let name = current.name();
                let name = word(&name);
                TuneError::item(
                    ItemName::Pins,
                    "not each vCPU is pinned to one pcpu, so that no plan has pins for others",
                    format!(
                        "`gpuvm tune {name} --pins on` pins them, `gpuvm tune {name} --pins off` \
                             unpins them"
                    ),
                )
            })?;
            match order {
                PinPolicy::Thread => Item::To(PinOrder::Thread),
                _ => Item::To(PinOrder::Core),
            }
        }
    };
    if claims.emulator_pin.is_some() {
        items.emulator = Item::On;
    }
    if !claims.iothread_pins.is_empty() {
        items.iothread_pins = Item::On;
    }
    if !claims.bindings.is_empty() {
        items.memory_nodes = Item::On;
    }
    Ok(())
}

/// Settings that follow the size where they are as `tune` would have them now.
fn follow(current: &DomainXml, claims: &Claims<'_>, given: &Given<'_>, items: &mut Items) {
    let root = current.root();
    let is_so = |set: fn(&mut Items)| {
        let mut one = Items { unnamed: Items::all().unnamed, ..Items::default() };
        set(&mut one);
        let tuned = tune(current, &Given { items: &one, ..*given });
        tuned.is_ok_and(|tuned| tuned.changes.is_empty())
    };
    let is_ours = current.record().is_ok_and(|record| record.is_some());
    if root.find("cpu/topology").is_some() && (is_ours || items.size().vcpus.is_some()) {
        items.topology = Item::On;
    }
    if root.find("cpu/cache").is_some() && is_so(|items| items.cpu_cache = Item::On) {
        items.cpu_cache = Item::On;
    }
    if root.find("features/kvm/hint-dedicated").is_some()
        || is_so(|items| items.kvm_hints = Item::On)
    {
        items.kvm_hints = Item::On;
    }
    if is_so(|items| items.fill = Item::On) {
        items.fill = Item::On;
    }
    if !claims.iothreads.is_empty() && is_so(|items| items.iothreads = Item::On) {
        items.iothreads = Item::On;
    }
    // An expander bus names its cell, and another size may have other cells. Functions that come or
    // go are given their places one by one.
    if !items.moves_functions() && is_so(|items| items.pcie = Item::On) {
        items.pcie = Item::On;
    }
    let vcpus = items.size().vcpus.unwrap_or(claims.vcpus.value);
    let devices = |name: &'static str| {
        let all = root.child("devices").into_iter().flat_map(move |all| all.children(name));
        let queues =
            |device: Element<'_>| device.child("driver")?.attr("queues")?.parse::<u32>().ok();
        all.filter_map(queues).max().unwrap_or(1)
    };
    // More queues than vCPUs are refused by libvirt, or of no use.
    if devices("disk") > vcpus || is_so(|items| items.disk_queues = Item::On) {
        items.disk_queues = Item::On;
    }
    if devices("interface") > vcpus || is_so(|items| items.net_queues = Item::On) {
        items.net_queues = Item::On;
    }
}

#[cfg(test)]
mod functions;
#[cfg(test)]
mod gpus;

#[cfg(test)]
mod tests {
    use super::super::testing::{made, metadata};
    use super::super::{Item, ItemName, Items, TuneError};
    use super::*;
    use crate::memsize::MemSize;
    use crate::request::{HugePages, Request};
    use crate::verify::{Subject, verify};

    /// The rules by which a guest differs from its request.
    pub(super) fn not_as_asked(xml: &DomainXml) -> Vec<&'static str> {
        let subject = Subject {
            definition: xml,
            live: None,
            process: None,
            guest: None,
            host: None,
            partitions: None,
        };
        verify(&subject).iter().map(|finding| finding.rule).collect()
    }

    fn sizes(vcpus: Option<u32>, gib: Option<u64>) -> Items {
        with_room(vcpus, None, gib)
    }

    fn with_room(vcpus: Option<u32>, max_vcpus: Option<u32>, gib: Option<u64>) -> Items {
        let memory = gib.map(MemSize::from_gib);
        let resize = Some(Resize { vcpus, max_vcpus, memory, ..Resize::default() });
        Items { resize, ..Items::default() }
    }

    /// A definition of 4 vCPUs and 4 GiB; ours: with the request of it.
    fn guest(ours: bool) -> DomainXml {
        let request =
            Request { vcpus: Some(4), huge_pages: HugePages::Off, ..Request::for_gpus(0) };
        let ours = metadata(ours.then_some(&request));
        let text = format!(
            "<domain type='kvm'>\n<name>a</name>\n<uuid>11111111-2222-4333-8444-555555555555</uuid>\n{ours}\n\
             <memory unit='GiB'>4</memory>\n<vcpu>4</vcpu>\n\
             <os><type arch='x86_64' machine='q35'>hvm</type></os>\n<devices>\n\
             <!-- mine -->\n<disk type='file' device='disk'><driver name='qemu' type='raw' \
             queues='3'/>\
             <source file='/a.raw'/><target dev='vda' bus='virtio'/></disk>\n\
             <interface type='network'><mac address='52:54:00:00:00:01'/><source \
             network='default'/>\
             <model type='virtio'/></interface>\n</devices>\n</domain>"
        );
        DomainXml::parse(&text).unwrap()
    }

    #[test]
    fn a_guest_that_floats_gets_its_size_and_nothing_else() {
        let after = made(&guest(false), &sizes(Some(6), Some(8))).unwrap();
        let items: Vec<ItemName> = after.changes.iter().map(|change| change.item).collect();
        assert_eq!(items, [ItemName::Vcpus, ItemName::Memory]);
        assert_eq!((&*after.changes[0].was, &*after.changes[0].now), ("4", "6"));
        let back = after.after.text().replace("<vcpu placement='static'>6<", "<vcpu>4<");
        for kept in ["<!-- mine -->", "52:54:00:00:00:01", "queues='3'", "<uuid>11111111-"] {
            assert!(back.contains(kept), "{kept}: {back}");
        }
        assert!(!back.contains("vcpupin") && !back.contains("topology"), "{back}");
        let again = made(&after.after, &sizes(Some(6), Some(8))).unwrap();
        assert_eq!(again.changes, []);
    }

    #[test]
    fn settings_by_tune_are_renewed_and_others_stay() {
        for ours in [true, false] {
            let tuned = made(&guest(ours), &Items::all()).unwrap().after;
            let after = made(&tuned, &sizes(Some(8), Some(16))).unwrap();
            let claims = Claims::read(&after.after);
            assert_eq!((claims.vcpus.value, claims.vcpu_pins.len()), (8, 8));
            assert_eq!(claims.memory.value, MemSize::from_gib(16));
            assert_eq!(memory_now(&claims), MemSize::from_gib(16));
            assert!(after.findings.is_empty(), "{:?}", after.findings);
            // It is as a guest that has always been so: tune finds nothing to do.
            let left = made(&after.after, &Items::all()).unwrap();
            assert_eq!(left.changes, [], "ours: {ours}");
            let fewer = made(&after.after, &sizes(Some(2), Some(2))).unwrap();
            let claims = Claims::read(&fewer.after);
            assert_eq!((claims.vcpus.value, claims.vcpu_pins.len()), (2, 2));
            assert_eq!(made(&fewer.after, &Items::all()).unwrap().changes, [], "ours: {ours}");
            let chosen = tuned.text().replacen("queues=\"4\"", "queues=\"3\"", 1);
            let chosen = chosen.replacen("queues='4'", "queues='3'", 1);
            assert_ne!(chosen, tuned.text());
            let chosen = DomainXml::parse(&chosen).unwrap();
            let more = made(&chosen, &sizes(Some(8), None)).unwrap();
            assert!(
                more.after.text().contains("queues='3'")
                    || more.after.text().contains("queues=\"3\"")
            );
        }
    }

    #[test]
    fn the_request_of_ours_follows() {
        let after = made(&guest(true), &sizes(Some(6), Some(8))).unwrap();
        let request = after.after.record().unwrap().unwrap().request;
        assert_eq!((request.vcpus, request.memory_kib), (Some(6), Some(MemSize::from_gib(8))));
        assert_eq!(request.pins, PinPolicy::None, "it floats");
        assert_eq!(not_as_asked(&after.after), [""; 0]);
    }

    #[test]
    fn room_for_vcpus_is_planned_and_their_number_is_not() {
        let tuned = made(&guest(true), &Items::all()).unwrap().after;
        let room = with_room(Some(2), Some(8), None);
        let after = made(&tuned, &room).unwrap();
        let claims = Claims::read(&after.after);
        assert_eq!((claims.plugged.len(), claims.vcpus.value, claims.vcpu_pins.len()), (2, 8, 8));
        let request = |xml: &DomainXml| xml.record().unwrap().unwrap().request;
        let of = |xml: &DomainXml| (request(xml).vcpus, request(xml).vcpus_at_start);
        assert_eq!(of(&after.after), (Some(8), Some(2)));
        assert_eq!(not_as_asked(&after.after), [""; 0]);
        assert_eq!(made(&after.after, &room).unwrap().changes, []);
        // The plan of all stays with another number of them.
        let more = made(&after.after, &sizes(Some(6), None)).unwrap();
        let items: Vec<ItemName> = more.changes.iter().map(|change| change.item).collect();
        assert_eq!(items, [ItemName::Vcpus, ItemName::Request]);
        assert_eq!(of(&more.after), (Some(8), Some(6)));
        let text = after.after.text().replace("current='2'", "current='6'");
        assert_eq!(
            more.after.text().split_once("<os>").unwrap().1,
            text.split_once("<os>").unwrap().1
        );
        let beyond = made(&more.after, &sizes(Some(10), None)).unwrap();
        assert_eq!(of(&beyond.after), (Some(10), None));
        assert!(!beyond.after.text().contains("current="), "{}", beyond.after.text());
        let other = with_room(None, Some(4), None);
        assert!(matches!(made(&more.after, &other), Err(TuneError::Item { .. })));
    }

    #[test]
    fn pages_alone_are_planned_again_too() {
        let tuned = made(&guest(true), &Items::all()).unwrap().after;
        let paged = Items { huge_pages: Item::To(PageSize::OneGib), ..sizes(None, None) };
        let after = made(&tuned, &paged).unwrap();
        assert_eq!(page_of(&Claims::read(&after.after)), Some(PageSize::OneGib.size()));
        assert_eq!(made(&after.after, &paged).unwrap().changes, []);
        assert_eq!(made(&after.after, &Items::all()).unwrap().changes, []);
    }

    #[test]
    fn indivisible_memory_is_refused_with_a_reason() {
        let code = |from: &str, to: &str, wanted: &Items| {
            let text = guest(false).text().replacen(from, to, 1);
            match made(&DomainXml::parse(&text).unwrap(), wanted) {
                Err(TuneError::Item { item, message, hint }) => (item, message, hint),
                other => panic!("{other:?}"),
            }
        };
        let plugs = "<maxMemory slots='4' unit='GiB'>64</maxMemory>\n<memory";
        let (item, message, _) = code("<memory", plugs, &sizes(None, Some(8)));
        assert_eq!(item, ItemName::Memory, "{message}");
        let wide = "<cputune><vcpupin vcpu='0' cpuset='0-3'/></cputune>\n<os>";
        let (item, _, hint) = code("<os>", wide, &sizes(Some(6), None));
        assert_eq!(item, ItemName::Pins);
        assert!(hint.contains("`gpuvm tune a --pins on`"), "{hint}");
        let sched = "<cputune><vcpusched vcpus='0-3' scheduler='batch'/></cputune>\n<os>";
        let (item, message, _) = code("<os>", sched, &sizes(Some(2), None));
        assert_eq!(item, ItemName::Vcpus);
        assert!(message.contains("<vcpusched>"), "{message}");
        let (item, ..) = code("<os>", "<os>", &sizes(Some(0), None));
        assert_eq!(item, ItemName::Vcpus);
    }
}
