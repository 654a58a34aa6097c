//! Updates the request recorded in guests that gpuvm made: the settings of `tune` are requested,
//! too, otherwise `verify` would report the admin's own change. Guests made by others have no
//! record and get none.

use super::kinds::Kinds;
use super::work::Work;
use super::{Item, ItemName, TuneError, functions};
use crate::domain::DomainEdit;
use crate::domain::claims::Claims;
use crate::domain::guest::Record;
use crate::domain::setting::Setting;
use crate::placement::ExtraKind;
use crate::request::{CellWish, GpuWish, P2pWish, PinPolicy, Request};
use crate::shell::word;
use crate::topology::{DeviceKind, PciDevice};

/// Updates the recorded request. Comes last, since it follows the other settings.
pub(super) fn apply(work: &mut Work<'_>) -> Result<(), TuneError> {
    movable(work)?;
    p2p(work)?;
    allow(work)?;
    // A record by a later version stays as it is.
    let Ok(Some(record)) = work.xml.record() else { return Ok(()) };
    let request = asked(record.request.clone(), work);
    if let (Some(placement), true) = (work.placement, work.given.items.moves_functions()) {
        let (partition, devices) = (placement.partition, placement.devices.clone());
        let is_kept = work.given.items.size().vgpu.is_kept();
        let vgpus = if is_kept { record.vgpus.clone() } else { placement.vgpus.clone() };
        let is_same = request == record.request;
        let record = Box::new(Record { request, vgpus, ..record });
        let edit = DomainEdit::SetMetadata { record, partition, devices };
        if is_same && work.has_other_functions() {
            work.xml.apply(&edit)?;
            return Ok(());
        }
        return work.make(ItemName::Request, &[edit]);
    }
    if request == record.request {
        return Ok(());
    }
    work.set(ItemName::Request, Setting::Request { request: Box::new(request) })
}

/// Records whether the guest may be moved to make room for others.
fn movable(work: &mut Work<'_>) -> Result<(), TuneError> {
    let (items, name) = (work.given.items, work.xml.name());
    let hint = format!("`gpuvm make-room --allow-stop {}` moves it, too", word(&name));
    record(work, ItemName::Movable, &items.movable, hint, |request, on| request.movable = on)
}

/// Records whether its GPUs and NICs are to reach each other through their PCIe switch.
fn p2p(work: &mut Work<'_>) -> Result<(), TuneError> {
    let (items, name) = (work.given.items, work.xml.name());
    let hint = format!("`gpuvm start {} --p2p auto` does it for one start", word(&name));
    record(work, ItemName::P2p, &items.p2p, hint, |request, on| {
        request.p2p = if on { P2pWish::Auto } else { P2pWish::Off };
    })
}

/// Records which rules may be broken for it.
fn allow(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = work.given.items.allow;
    let hint = "--allow beside another size holds for that change".to_owned();
    record(work, ItemName::Allow, &item, hint, |request, _| {
        request.allow = item.value().copied().unwrap_or_default();
    })
}

/// Changes a setting that is only recorded; `hint`: the remedy where nothing is recorded of a guest.
fn record<T>(
    work: &mut Work<'_>,
    name: ItemName,
    item: &Item<T>,
    hint: String,
    change: impl Fn(&mut Request, bool),
) -> Result<(), TuneError> {
    if item.is_kept() {
        return Ok(());
    }
    let Some(record) = work.xml.record()?.filter(|_| work.xml.is_ours()) else {
        if !item.is_on() {
            return Ok(());
        }
        let message = "gpuvm did not make the guest, so nothing is recorded of it";
        return Err(TuneError::item(name, message, hint));
    };
    let mut request = Box::new(record.request);
    change(&mut request, item.is_on());
    work.set(name, Setting::Request { request })
}

/// Returns the request with the settings applied; values that they leave to the planner stay so.
fn asked(mut request: Request, work: &Work<'_>) -> Request {
    let (items, wish) = (work.given.items, &work.guest.request);
    let claims = Claims::read(&work.xml);
    if !items.huge_pages.is_kept() {
        request.huge_pages = wish.huge_pages;
    }
    if !items.pins.is_kept() {
        request.pins = match wish.pins {
            PinPolicy::Auto if request.pins == PinPolicy::Auto => PinPolicy::Auto,
            PinPolicy::Auto if claims.vcpu_pins.is_empty() => PinPolicy::None,
            PinPolicy::Auto => PinPolicy::Core,
            pins => pins,
        };
    }
    match items.cells {
        cells if items.is_as_asked(ItemName::Cells, &cells) => {}
        Item::Keep => {}
        // Of a guest that floats they keep their number.
        Item::On => request.cells = wish.cells,
        Item::Off | Item::To(_) => {
            let there = u32::try_from(claims.cells.len()).unwrap_or(u32::MAX);
            request.cells = CellWish::Count(there.max(1));
        }
    }
    match items.topology {
        shape if items.is_as_asked(ItemName::Topology, &shape) => {}
        Item::Keep => {}
        Item::On => request.threads = None,
        Item::Off => request.threads = Some(1),
        Item::To(shape) => request.threads = Some(shape.threads),
    }
    if !items.size().vgpu.is_kept() {
        request.vgpu = items.size().vgpu_said.clone().or_else(|| wish.vgpu.clone());
    }
    if items.size().gpus.is_some() {
        request.gpus = asked_gpus(request.gpus, work);
    }
    if let (Some(placement), false) = (work.placement, items.size().functions.is_kept()) {
        let kinds = Kinds::new(work.given.topology, &work.xml);
        let has = kinds.of(&placement.devices, ExtraKind::Vf);
        let had = kinds.passed(work.guest.claims, ExtraKind::Vf);
        let wanted = &items.size().functions;
        request.extras = functions::recorded(&request.extras, wanted, &had, &has);
    }
    if let Some(vcpus) = items.size().vcpus {
        request.vcpus = Some(vcpus);
        // Threads that do not divide them are not shown any more.
        let shown = work.placement.map(|placement| placement.topology.threads);
        request.threads = request.threads.and(shown);
    }
    match items.size().plugged {
        Item::Keep if items.size().vcpus.is_none() => {}
        Item::Keep | Item::On | Item::Off => request.vcpus_at_start = None,
        Item::To(start) => {
            request.vcpus = Some(claims.vcpus.value);
            request.vcpus_at_start = Some(start);
        }
    }
    if items.size().memory.is_some() {
        request.memory_kib = Some(claims.memory.value);
    }
    // Without it no plan has this size again.
    let allow = work.given.allow;
    request.allow.remote |= items.resizes() && allow.remote;
    request.allow.split |= items.size().gpus.is_some() && allow.split;
    request.allow.mig |= items.size().gpus.is_some() && allow.mig;
    if items.memory_rounding.value().is_some() && request.memory_kib.is_some() {
        request.memory_kib = Some(claims.memory.value);
    }
    request
}

/// The requested GPUs, in the words of the request: those that a plan has given.
fn asked_gpus(was: GpuWish, work: &Work<'_>) -> GpuWish {
    let Some(placement) = work.placement else { return was };
    let topology = work.given.topology;
    let kinds = Kinds::new(topology, &work.xml);
    let gpus = placement.devices.iter().copied().filter(|bdf| {
        let is_gpu = |device: &PciDevice| device.kind() == DeviceKind::Gpu;
        topology.device(*bdf).is_some_and(is_gpu) && !kinds.is_vgpu(*bdf)
    });
    match (&work.given.items.size().gpus_said, was) {
        (Some(said), _) => said.clone(),
        (None, GpuWish::Exact(_) | GpuWish::Indexes(_)) => GpuWish::Exact(gpus.collect()),
        (None, _) => GpuWish::Count(u32::try_from(gpus.count()).unwrap_or(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Items;
    use super::super::testing::{made, metadata};
    use crate::domain::{DomainEdit, DomainXml};
    use crate::request::{CellWish, HugePages, P2pWish, PageSize, PinPolicy, Request};
    use crate::tune::{Item, ItemName};
    use crate::verify::{Subject, verify};

    /// A guest of ours on huge pages, as requested, or one made by another tool.
    fn guest(ours: bool) -> DomainXml {
        let request = Request {
            huge_pages: HugePages::Size(PageSize::TwoMib),
            pins: PinPolicy::None,
            ..Request::for_gpus(0)
        };
        let record = metadata(ours.then_some(&request));
        let text = format!(
            "<domain type='kvm'>\n<name>a</name>\n{record}\n<memory unit='GiB'>4</memory>\n\
             <memoryBacking><hugepages><page size='2' unit='MiB'/></hugepages></memoryBacking>\n\
             <vcpu>4</vcpu>\n<os><type arch='x86_64' machine='q35'>hvm</type></os>\n<devices/>\n</domain>"
        );
        let mut xml = DomainXml::parse(&text).unwrap();
        if ours {
            let uuid = "11111111-2222-4333-8444-555555555555".to_owned();
            xml.apply(&DomainEdit::SetUuid { uuid }).unwrap();
        }
        xml
    }

    /// The rules by which it differs from the request.
    fn not_as_asked(xml: &DomainXml) -> Vec<&'static str> {
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

    #[test]
    fn tuned_settings_become_the_request() {
        let xml = guest(true);
        assert_eq!(not_as_asked(&xml), [""; 0]);
        let items = Items {
            huge_pages: Item::Off,
            pins: Item::On,
            cells: Item::To(1),
            topology: Item::On,
            agent: Item::On,
            ..Items::default()
        };
        let after = made(&xml, &items).unwrap();
        let last = after.changes.last().unwrap();
        assert_eq!(last.item, ItemName::Request);
        assert_eq!(last.was, "no pins, pages of 2 MiB, cells by node");
        assert_eq!(last.now, "pins by core, normal pages, 1 cell");
        let request = after.after.record().unwrap().unwrap().request;
        assert_eq!((request.huge_pages, request.pins), (HugePages::Off, PinPolicy::Core));
        assert_eq!(request.cells, CellWish::Count(1));
        assert_eq!(not_as_asked(&after.after), [""; 0]);
        assert_eq!(made(&after.after, &items).unwrap().changes, []);
        // Without a new request the old one still counts: an edit by others is found.
        let kept = made(&xml, &Items { agent: Item::On, ..Items::default() }).unwrap();
        assert!(kept.changes.iter().all(|change| change.item != ItemName::Request));
        let text =
            kept.after.text().replace("<memoryBacking>", "<x>").replace("</memoryBacking>", "</x>");
        assert_eq!(not_as_asked(&DomainXml::parse(&text).unwrap()), ["plan-pages"]);
    }

    #[test]
    fn only_a_guest_of_ours_is_advised_to_move() {
        let items = |movable| Items { movable, ..Items::default() };
        let (on, off) = (items(Item::On), items(Item::Off));
        let tuned = made(&guest(true), &on).unwrap();
        let said: Vec<String> = tuned.changes.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["movable: off -> on"]);
        assert!(tuned.after.record().unwrap().unwrap().request.movable);
        assert_eq!(made(&tuned.after, &on).unwrap().changes, []);
        let back = made(&tuned.after, &off).unwrap().after;
        assert!(!back.record().unwrap().unwrap().request.movable);
        assert_eq!(made(&guest(false), &off).unwrap().changes, []);
        let error = made(&guest(false), &on).unwrap_err();
        assert!(error.to_string().starts_with("--movable: gpuvm did not make"), "{error}");
    }

    #[test]
    fn direct_transfers_are_recorded_for_a_guest_of_ours() {
        let items = |p2p| Items { p2p, ..Items::default() };
        let (on, off) = (items(Item::On), items(Item::Off));
        let tuned = made(&guest(true), &on).unwrap();
        let said: Vec<String> = tuned.changes.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["p2p: off -> auto"]);
        assert_eq!(made(&tuned.after, &on).unwrap().changes, []);
        let back = made(&tuned.after, &off).unwrap().after;
        assert_eq!(back.record().unwrap().unwrap().request.p2p, P2pWish::Off);
        assert_eq!(made(&guest(false), &off).unwrap().changes, []);
        let error = made(&guest(false), &on).unwrap_err();
        assert!(error.to_string().starts_with("--p2p: gpuvm did not make"), "{error}");
    }

    #[test]
    fn a_guest_whose_record_is_not_understood_is_not_tuned() {
        let share = "\"profile\":\"share\"";
        // A value, and a field, of a later version.
        for later in ["\"profile\":\"later\"", "\"profile\":\"share\",\"turbo\":true"] {
            let text = guest(true).text().replace(share, later);
            assert!(text.contains(later), "{text}");
            let xml = DomainXml::parse(&text).unwrap();
            let error = made(&xml, &Items::all()).unwrap_err().to_string();
            assert!(error.contains("not a request that this program knows"), "{error}");
        }
    }

    #[test]
    fn a_foreign_guest_gets_no_advice() {
        let items = Items { huge_pages: Item::Off, ..Items::default() };
        let after = made(&guest(false), &items).unwrap();
        assert!(!after.after.text().contains("gpuvm"), "{}", after.after.text());
        assert_eq!(after.changes.len(), 1);
    }
}
