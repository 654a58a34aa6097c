//! Tunes a guest's NICs: queues, rates, MTU.

use super::work::Work;
use super::{Item, ItemName, TuneError};
use crate::domain::guest::mac;
use crate::domain::nics::{takes_queues, usual_queues};
use crate::domain::placed::NicSeat;
use crate::domain::rate::Rate;
use crate::domain::setting::{NicTuning, Put, Setting};
use crate::domain::wish::{MOST_QUEUES, MTUS, NicWish, QUEUES_HINT};
use crate::domain::{DomainEdit, Element, hooks};

/// Applies these settings.
pub(super) fn apply(work: &mut Work<'_>) -> Result<(), TuneError> {
    net_queues(work)?;
    rates(work)?;
    mtu(work)?;
    // Last, since settings of one NIC take precedence over those of all.
    networks(work)
}

/// A NIC of a document.
#[derive(Debug, Clone, Copy)]
struct Nic {
    /// Index among the document's interfaces.
    nth: usize,
    /// Whether it takes queues.
    takes_queues: bool,
    /// Its queues now.
    queues: u32,
    /// Whether the host's kernel can move its packets.
    vhost: bool,
    /// Whether it has a device on the host, with rates and an MTU.
    tap: bool,
}

/// The NICs of a document.
fn nics(work: &Work<'_>) -> Vec<Nic> {
    let devices = work.xml.root().child("devices");
    let all = devices.into_iter().flat_map(|devices| devices.children("interface")).enumerate();
    let read = |(nth, nic): (usize, Element<'_>)| {
        let kind = nic.attr("type").unwrap_or_default();
        let tap = matches!(kind.as_ref(), "network" | "bridge" | "direct" | "ethernet");
        let queues = nic.child("driver").and_then(|driver| driver.attr("queues"));
        let queues = queues.and_then(|text| text.parse().ok()).unwrap_or(1);
        let takes_queues = takes_queues(nic);
        Nic { nth, takes_queues, queues, vhost: tap && work.guest.kvm, tap }
    };
    all.map(read).collect()
}

/// Tunes queues of NICs.
fn net_queues(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::NetQueues;
    let most = work.vcpus().min(MOST_QUEUES);
    let usual = usual_queues(work.vcpus());
    let put = match work.given.items.net_queues {
        Item::Keep => return Ok(()),
        Item::Off => Put::Gone,
        Item::On => Put::Is(usual),
        Item::To(queues) if queues == 0 || queues > most => {
            let message = format!("{queues} queues, and a NIC of this guest takes 1 to {most}");
            return Err(TuneError::item(item, message, "--net-queues on"));
        }
        Item::To(queues) => Put::Is(queues),
    };
    let is_on = work.given.items.net_queues.is_on();
    let tuned = |nic: Nic| NicTuning {
        nth: nic.nth,
        // More than usual may be wanted: `check` notes it, and only an explicit number reduces
        // them.
        queues: if is_on && (usual..=most).contains(&nic.queues) {
            Put::Is(nic.queues)
        } else {
            put.clone()
        },
        vhost: nic.vhost && put != Put::Gone,
        ..NicTuning::default()
    };
    let nics = nics(work).into_iter().filter(|nic| nic.takes_queues).map(tuned).collect();
    work.set(item, Setting::Nics { nics })
}

/// Tunes rates of NICs.
fn rates(work: &mut Work<'_>) -> Result<(), TuneError> {
    let put = |item: &Item<Rate>| match item {
        Item::Keep | Item::On => Put::Stays,
        Item::Off => Put::Gone,
        Item::To(rate) => Put::Is(*rate),
    };
    let items = work.given.items;
    for (item, inbound, outbound) in [
        (ItemName::Inbound, put(&items.inbound), Put::Stays),
        (ItemName::Outbound, Put::Stays, put(&items.outbound)),
    ] {
        if inbound == Put::Stays && outbound == Put::Stays {
            continue;
        }
        let nics = taps(work, item)?.into_iter().map(|nth| NicTuning {
            nth,
            inbound: inbound.clone(),
            outbound: outbound.clone(),
            ..NicTuning::default()
        });
        let nics = nics.collect();
        work.set(item, Setting::Nics { nics })?;
    }
    Ok(())
}

/// The NICs that have a device on the host; an error where there is none.
fn taps(work: &Work<'_>, item: ItemName) -> Result<Vec<usize>, TuneError> {
    let taps: Vec<usize> = nics(work).iter().filter(|nic| nic.tap).map(|nic| nic.nth).collect();
    if taps.is_empty() {
        let message = "no NIC of the guest has a device on the host";
        return Err(TuneError::item(item, message, "passed-through NICs are set in the guest"));
    }
    Ok(taps)
}

/// Tunes NICs named by their network: existing ones on it are changed, one per mention; others are
/// new.
fn networks(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::Network;
    let wishes = &work.given.items.networks;
    let there = hooks(&work.xml);
    let mut macs: Vec<String> = there.iter().map(|hook| hook.mac.clone()).collect();
    let mut taken = Vec::new();
    let (mut seats, mut new) = (Vec::new(), 0);
    for (wish, is_vf) in wishes {
        if let Some(message) = wish.too_many_queues(work.vcpus()) {
            return Err(TuneError::item(item, message, QUEUES_HINT));
        }
        let NicWish { network, settings } = wish;
        let found = there
            .iter()
            .enumerate()
            .find(|(nth, hook)| hook.network.as_ref() == Some(network) && !taken.contains(nth));
        let is_new = found.is_none();
        let nth = found.map_or(there.len() + new, |(nth, _)| nth);
        new += usize::from(is_new);
        let mac = settings.mac.clone().or_else(|| is_new.then(|| own_mac(work, &macs)));
        macs.extend(mac.clone());
        taken.push(nth);
        let takes = !is_vf && !settings.is_emulated();
        let usual = is_new.then_some(usual_queues(work.vcpus()));
        seats.push(NicSeat {
            nth,
            network: is_new.then(|| network.clone()),
            mac,
            queues: settings.queues.or(usual).filter(|_| takes),
            vhost: work.guest.kvm,
            is_vf: *is_vf,
            settings: settings.clone(),
            address: None,
        });
    }
    if seats.is_empty() {
        return Ok(());
    }
    // New ones after the existing ones, in order.
    seats.sort_by_key(|seat| seat.nth);
    work.make(item, &[DomainEdit::SetInterfaces { nics: seats, dropped: Vec::new() }])
}

/// Returns a reproducible MAC address for a new NIC of a guest.
fn own_mac(work: &Work<'_>, macs: &[String]) -> String {
    let name = work.xml.name();
    let mut numbers = (0..).map(|number| mac(&name, number));
    let others = &work.given.others.domains;
    let is_taken = |mac: &String| others.iter().any(|held| held.macs.contains(mac));
    numbers.find(|mac| !macs.contains(mac) && !is_taken(mac)).unwrap_or_default()
}

/// Tunes the MTU of NICs.
fn mtu(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::Mtu;
    let mtu = match work.given.items.mtu {
        Item::Keep | Item::On => return Ok(()),
        Item::Off => Put::Gone,
        Item::To(mtu) if !MTUS.contains(&mtu) => {
            let message =
                format!("{mtu} bytes, and an MTU is from {} to {}", MTUS.start(), MTUS.end());
            return Err(TuneError::item(item, message, "--mtu 9000 is usual for jumbo frames"));
        }
        Item::To(mtu) => Put::Is(mtu),
    };
    let nics = taps(work, item)?.into_iter();
    let nics = nics.map(|nth| NicTuning { nth, mtu: mtu.clone(), ..NicTuning::default() });
    let nics = nics.collect();
    work.set(item, Setting::Nics { nics })
}
