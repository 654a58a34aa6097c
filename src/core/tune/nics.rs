//! Tunes a guest's NICs: queues, rates, MTU.

use super::items::NewNics;
use super::work::Work;
use super::{Item, ItemName, Items, TuneError};
use crate::domain::guest::mac;
use crate::domain::nic_request::{MOST_QUEUES, MTUS, NicModel, NicWish, QUEUES_HINT};
use crate::domain::nics::{Hook, matched, takes_queues, usual_queues};
use crate::domain::placed::NicSeat;
use crate::domain::rate::Rate;
use crate::domain::setting::{NicTuning, Put, Setting};
use crate::domain::{DomainEdit, Element, hooks};
use crate::occupancy::Held;

pub(super) fn apply(work: &mut Work<'_>) -> Result<(), TuneError> {
    net_queues(work)?;
    rates(work)?;
    mtu(work)?;
    // Last, since settings of one NIC take precedence over those of all.
    networks(work)
}

#[derive(Debug, Clone, Copy)]
struct Nic {
    nth: usize,
    takes_queues: bool,
    /// As the definition says; `None` if it does not.
    queues: Option<u32>,
    /// Whether the host's kernel can move its packets.
    vhost: bool,
    /// Whether it has a device on the host, with rates and an MTU.
    tap: bool,
}

fn nics(work: &Work<'_>) -> Vec<Nic> {
    let devices = work.xml.root().child("devices");
    let all = devices.into_iter().flat_map(|devices| devices.children("interface")).enumerate();
    let read = |(nth, nic): (usize, Element<'_>)| {
        let kind = nic.attr("type").unwrap_or_default();
        let tap = matches!(kind.as_ref(), "network" | "bridge" | "direct" | "ethernet");
        let queues = nic.child("driver").and_then(|driver| driver.attr("queues"));
        let queues = queues.and_then(|text| text.parse().ok());
        let takes_queues = takes_queues(nic);
        Nic { nth, takes_queues, queues, vhost: tap && work.guest.kvm, tap }
    };
    all.map(read).collect()
}

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
    // A number that no default gave is its owner's, and only an explicit one replaces it; `check`
    // notes more than usual.
    let before = usual_queues(work.guest.claims.vcpus.value);
    let is_chosen = |queues: &u32| *queues != before && (2..=most).contains(queues);
    let tuned = |nic: Nic| NicTuning {
        nth: nic.nth,
        queues: match nic.queues.filter(|queues| is_on && is_chosen(queues)) {
            Some(queues) => Put::Is(queues),
            None => put.clone(),
        },
        vhost: nic.vhost && put != Put::Gone,
        ..NicTuning::default()
    };
    let nics = nics(work).into_iter().filter(|nic| nic.takes_queues).map(tuned).collect();
    work.set(item, Setting::Nics { nics })
}

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
        return Err(TuneError::item(
            item,
            message,
            "passed-through NICs are configured in the guest",
        ));
    }
    Ok(taps)
}

/// The NICs that a domain has of those named, and the others on networks.
struct Found {
    /// The place of each named one; `None` if it is new.
    places: Vec<Option<usize>>,
    /// Places of those that are removed.
    dropped: Vec<usize>,
}

/// Finds the NICs named by their network: one per mention. With [`Items::all_nics`] by their MAC
/// address first, and others on networks are removed.
fn found(there: &[Hook], items: &Items) -> Found {
    let plain = |wish: &NicWish| NicWish::on(wish.network.clone());
    let is_all = items.all_nics.is_some();
    let wishes: Vec<NicWish> = items
        .networks
        .iter()
        .map(|(wish, _)| if is_all { wish.clone() } else { plain(wish) })
        .collect();
    let places = matched(there, &wishes.iter().collect::<Vec<_>>());
    let is_left = |nth: &usize| there[*nth].network.is_some() && !places.contains(&Some(*nth));
    let dropped = (0..there.len()).filter(|nth| is_all && is_left(nth)).collect();
    Found { places, dropped }
}

/// Tunes NICs named by their network: existing ones on it are changed, one per mention; others are
/// new.
fn networks(work: &mut Work<'_>) -> Result<(), TuneError> {
    let item = ItemName::Network;
    let items = work.given.items;
    let there = hooks(&work.xml);
    let Found { places, dropped } = found(&there, items);
    let mut macs: Vec<String> = there.iter().map(|hook| hook.mac.clone()).collect();
    let (mut seats, mut new) = (Vec::new(), 0);
    for ((wish, is_vf), place) in items.networks.iter().zip(places) {
        if let Some(message) = wish.too_many_queues(work.vcpus()) {
            return Err(TuneError::item(item, message, QUEUES_HINT));
        }
        let NicWish { network, settings } = wish;
        refuse_taken(work, settings.mac.as_deref())?;
        let nth = place.unwrap_or(there.len() + new);
        new += usize::from(place.is_none());
        let moves = place.is_none_or(|nth| there[nth].network.as_ref() != Some(network));
        let mac = settings.mac.clone().or_else(|| place.is_none().then(|| own_mac(work, &macs)));
        macs.extend(mac.clone());
        let mut settings = settings.clone();
        if let Some(nth) = place.filter(|_| moves && settings.model.is_none()) {
            settings.model = model_at(work, nth);
        }
        let takes = !is_vf && !settings.is_emulated();
        let usual = place.is_none().then_some(usual_queues(work.vcpus()));
        seats.push(NicSeat {
            nth,
            network: moves.then(|| network.clone()),
            mac,
            queues: settings.queues.or(usual).filter(|_| takes),
            vhost: work.guest.kvm,
            is_vf: *is_vf,
            settings,
            address: None,
        });
    }
    if seats.is_empty() && dropped.is_empty() {
        return Ok(());
    }
    refuse_twice(&there, &seats, &dropped)?;
    // New ones after the existing ones, in order.
    seats.sort_by_key(|seat| seat.nth);
    let mut edits = seated(work, &mut seats, there.len(), &dropped)?;
    edits.push(DomainEdit::SetInterfaces { nics: seats, dropped });
    work.make(item, &edits)
}

/// Refuses the MAC address of a running domain: on a common network frames of one would reach the
/// other.
fn refuse_taken(work: &Work<'_>, mac: Option<&str>) -> Result<(), TuneError> {
    let Some(mac) = mac else { return Ok(()) };
    let has = |held: &&Held| held.macs.iter().any(|its| its.eq_ignore_ascii_case(mac));
    let mut running = work.given.others.domains.iter().filter(|held| held.active);
    let Some(held) = running.find(has) else { return Ok(()) };
    let message = format!("running domain `{}` has the MAC address {mac}", held.domain);
    Err(TuneError::item(ItemName::Network, message, "leave mac= out: it gets one of its own then"))
}

/// Refuses a MAC address that a NIC gets while another one of the guest has it.
fn refuse_twice(there: &[Hook], seats: &[NicSeat], dropped: &[usize]) -> Result<(), TuneError> {
    let gets = |nth: usize| seats.iter().any(|seat| seat.nth == nth && seat.mac.is_some());
    let kept = (0..there.len()).filter(|nth| !dropped.contains(nth) && !gets(*nth));
    let mut macs: Vec<String> = kept.map(|nth| there[nth].mac.to_lowercase()).collect();
    for mac in seats.iter().filter_map(|seat| seat.mac.as_deref()) {
        if macs.contains(&mac.to_lowercase()) {
            let message = format!("two NICs of the guest would have the MAC address {mac}");
            let hint = "give each its own mac=, or leave it out: a new NIC gets one of its own";
            return Err(TuneError::item(ItemName::Network, message, hint));
        }
        macs.push(mac.to_lowercase());
    }
    Ok(())
}

/// The address in the guest of the NIC at this place.
fn model_at(work: &Work<'_>, nth: usize) -> Option<NicModel> {
    let devices = work.xml.root().child("devices");
    let nic = devices.into_iter().flat_map(|devices| devices.children("interface")).nth(nth)?;
    let model = nic.child("model")?.attr("type")?;
    NicModel::ALL.into_iter().find(|known| known.word() == model)
}

/// Gives new NICs a root port where all are named; returns the edits that make missing ports.
fn seated(
    work: &Work<'_>,
    seats: &mut [NicSeat],
    there: usize,
    dropped: &[usize],
) -> Result<Vec<DomainEdit>, TuneError> {
    let only = match &work.given.items.all_nics {
        None => return Ok(Vec::new()),
        Some(NewNics::FreeOrNew) => None,
        Some(NewNics::Free(ports)) => Some(ports),
    };
    let new: Vec<&mut NicSeat> = seats.iter_mut().filter(|seat| seat.nth >= there).collect();
    let Some(ports) = work.xml.nic_ports(new.len(), dropped, only)? else {
        return Err(TuneError::NoPort { what: "NIC" });
    };
    for (seat, address) in new.into_iter().zip(ports.addresses) {
        seat.address = address;
    }
    let (controllers, dropped) = (ports.made, Vec::new());
    let made = DomainEdit::SetControllers { controllers, dropped };
    Ok(if work.xml.would_change(&made) { vec![made] } else { Vec::new() })
}

/// Returns a reproducible MAC address for a new NIC of a guest.
fn own_mac(work: &Work<'_>, macs: &[String]) -> String {
    let key = work.xml.uuid().unwrap_or_else(|| work.xml.name());
    let mut numbers = (0..).map(|number| mac(&key, number));
    let others = &work.given.others.domains;
    let is_taken = |mac: &String| others.iter().any(|held| held.macs.contains(mac));
    numbers.find(|mac| !macs.contains(mac) && !is_taken(mac)).unwrap_or_default()
}

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

#[cfg(test)]
mod tests {
    use super::super::testing::{made, made_beside};
    use super::*;
    use crate::domain::DomainXml;
    use crate::occupancy::Occupancy;
    use std::collections::BTreeSet;

    /// A guest with NICs on `lan` and `lab` and on a bridge, and one free root port.
    fn guest() -> DomainXml {
        let port = |index: u8| {
            format!(
                "<controller type='pci' index='{index}' model='pcie-root-port'><address type='pci' \
                 bus='0x00' slot='0x0{}'/></controller>\n",
                index + 1
            )
        };
        let nic = |kind: &str, name: &str, at: u8| {
            format!(
                "<interface type='{kind}'><mac address='52:54:00:00:00:0{at}'/><source {kind}='{name}'/>\
                 <model type='e1000e'/><address type='pci' bus='0x0{at}' slot='0x00'/></interface>\n"
            )
        };
        let ports: String = (1..=4).map(port).collect();
        let nics = nic("network", "lan", 1) + &nic("network", "lab", 2) + &nic("bridge", "br0", 3);
        let text = format!(
            "<domain type='kvm'>\n<name>a</name>\n<memory unit='GiB'>4</memory>\n<vcpu>2</vcpu>\n\
             <os><type arch='x86_64' machine='q35'>hvm</type></os>\n<devices>\n{ports}{nics}</devices>\n\
             </domain>"
        );
        DomainXml::parse(&text).unwrap()
    }

    /// Its network, MAC address, model and bus, of each NIC.
    fn nics(xml: &DomainXml) -> Vec<[String; 4]> {
        let devices = xml.root().child("devices").unwrap();
        let attr = |nic: Element<'_>, child: &str, name: &str| {
            let child = nic.child(child).and_then(|child| child.attr(name));
            child.unwrap_or_default().into_owned()
        };
        let all = devices.children("interface").map(|nic| {
            let [mac, model, bus] = [("mac", "address"), ("model", "type"), ("address", "bus")]
                .map(|(a, b)| attr(nic, a, b));
            [attr(nic, "source", "network"), mac[15..].to_owned(), model, bus]
        });
        all.collect()
    }

    /// The guest with these NICs alone.
    fn with(wishes: &[&str], ports: NewNics) -> Result<DomainXml, TuneError> {
        let networks = wishes.iter().map(|wish| (wish.parse().unwrap(), false)).collect();
        let items = Items { networks, all_nics: Some(ports), ..Items::default() };
        Ok(made(&guest(), &items)?.after)
    }

    #[test]
    fn one_mac_address_of_two_nics_is_refused() {
        let tuned = |wishes: &[&str]| {
            let networks = wishes.iter().map(|wish| (wish.parse().unwrap(), false)).collect();
            made(&guest(), &Items { networks, ..Items::default() })
        };
        for wishes in [
            &["lab,mac=52:54:00:00:00:01"][..],
            &["new,mac=52:54:00:00:00:03"],
            &["new,mac=52:54:00:00:00:0A", "lab,mac=52:54:00:00:00:0a"],
        ] {
            let error = tuned(wishes).unwrap_err().to_string();
            assert!(error.contains("two NICs of the guest would have"), "{wishes:?}: {error}");
        }
        // Its own, and exchanged ones.
        tuned(&["lan,mac=52:54:00:00:00:01"]).unwrap();
        tuned(&["lan,mac=52:54:00:00:00:02", "lab,mac=52:54:00:00:00:01"]).unwrap();
    }

    #[test]
    fn the_mac_address_of_a_running_domain_is_refused() {
        let mac = "52:54:00:00:00:09";
        let wish = format!("lan,mac={mac}").parse().unwrap();
        let free = Some(NewNics::FreeOrNew);
        let items = Items { networks: vec![(wish, false)], all_nics: free, ..Items::default() };
        let beside = |active: bool| {
            let held =
                Held { domain: "b".into(), active, macs: vec![mac.into()], ..Held::default() };
            let others = Occupancy { domains: vec![held], ..Occupancy::default() };
            made_beside(&guest(), &items, &others)
        };
        assert!(beside(false).is_ok());
        let error = beside(true).unwrap_err().to_string();
        assert!(error.contains("running domain `b` has the MAC address"), "{error}");
    }

    #[test]
    fn nics_that_stay_keep_their_places_and_others_come_or_go() {
        let bridge = ["", "03", "e1000e", "0x03"].map(str::to_owned);
        let row = |texts: [&str; 4]| texts.map(str::to_owned);
        let free = NewNics::FreeOrNew;
        let same = with(&["lab", "lan"], free.clone()).unwrap();
        assert_eq!(same.text(), guest().text(), "the order of the request changes nothing");
        let one = with(&["lab"], free.clone()).unwrap();
        assert_eq!(nics(&one), [row(["lab", "02", "e1000e", "0x02"]), bridge.clone()]);
        // It is found by its MAC address, and keeps its model where it is connected elsewhere.
        let moved = with(&["lab,mac=52:54:00:00:00:01"], free.clone()).unwrap();
        assert_eq!(nics(&moved), [row(["lab", "01", "e1000e", "0x01"]), bridge.clone()]);
        let none = with(&[], free.clone()).unwrap();
        assert_eq!(nics(&none), std::slice::from_ref(&bridge));
        // The free port first, then one behind all others.
        let more = with(&["lan", "lab", "lan", "lan"], free).unwrap();
        let found = nics(&more);
        let buses: Vec<&str> = found.iter().map(|nic| nic[3].as_str()).collect();
        assert_eq!(buses, ["0x01", "0x02", "0x03", "0x04", "0x05"], "{}", more.text());
        assert_eq!(found[3][2], "virtio");
        assert!(more.text().contains("slot='0x06'"), "{}", more.text());
        let macs: BTreeSet<&String> = found.iter().map(|nic| &nic[1]).collect();
        assert_eq!(macs.len(), 5);
    }

    #[test]
    fn a_running_guest_gets_no_port() {
        let free = |ports: &[u8]| NewNics::Free(ports.iter().copied().collect());
        let three = ["lan", "lab", "lan"];
        assert_eq!(nics(&with(&three, free(&[4])).unwrap())[3][3], "0x04");
        assert_eq!(with(&three, free(&[3])).unwrap_err(), TuneError::NoPort { what: "NIC" });
        assert_eq!(
            with(&["lan", "lab", "lan", "lan"], free(&[4])).unwrap_err(),
            TuneError::NoPort { what: "NIC" }
        );
        // That of the one that goes is free.
        let other = with(&["lab", "new"], free(&[1])).unwrap();
        assert_eq!(nics(&other)[2][3], "0x01");
        assert_eq!(guest().ports_without(&[]).unwrap(), [4].into());
    }
}
