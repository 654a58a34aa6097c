//! The NICs that a guest has on networks, bridges and interfaces of the host, against those that
//! are requested, or else those of its template.

use super::{GuestDifference, PRIVATE_NET, differ};
use crate::create::CreateRequest;
use crate::domain::wish::{NicModel, NicSettings};
use crate::domain::{DomainXml, Element};
use crate::guest::template_of;
use crate::topology::Topology;

/// A NIC.
#[derive(Debug, Clone)]
struct Nic {
    /// What it is connected to.
    source: String,
    /// Whether that is a network of libvirt.
    is_network: bool,
    /// What is set on it.
    settings: NicSettings,
}

/// Compares them; each NIC of a network with the one that is requested on it, the first with the
/// first.
pub(super) fn networks(
    wanted: &CreateRequest,
    (xml, topology): (&DomainXml, &Topology),
    found: &mut Vec<GuestDifference>,
) {
    let template = template_of(&wanted.guest, topology).ok();
    let of_template = template.as_ref().map(nics_of);
    let named = wanted.guest.networks.iter().map(|wish| Nic {
        source: wish.network.clone(),
        is_network: true,
        settings: NicSettings {
            // What the guest sees where nothing is said.
            model: wish.settings.model.or(Some(NicModel::Virtio)),
            ..wish.settings.clone()
        },
    });
    let mut named: Vec<Nic> = named.collect();
    let mut all = nics_of(xml);
    match of_template {
        Some(nics) if named.is_empty() => named = nics.into_iter().map(bare).collect(),
        Some(nics) => named.extend(nics.into_iter().filter(|nic| !nic.is_network).map(bare)),
        // It was needed only while the guest was made.
        None if named.is_empty() => return,
        None => all.retain(|nic| nic.is_network),
    }
    let is_private = |nic: &Nic| nic.source == PRIVATE_NET;
    if wanted.private_net && !named.iter().any(is_private) {
        let (source, is_network) = (PRIVATE_NET.to_owned(), true);
        named.push(Nic { source, is_network, settings: NicSettings::default() });
    }
    let names = |nics: &[Nic]| {
        let mut names: Vec<&str> = nics.iter().map(|nic| &*nic.source).collect();
        names.sort_unstable();
        if names.is_empty() { "none".to_owned() } else { names.join(",") }
    };
    differ(found, "network", names(&all), names(&named));
    if names(&all) == names(&named) {
        settings(all, &named, found);
    }
}

/// The NIC of a template, of which no MAC address and no queues are requested.
fn bare(nic: Nic) -> Nic {
    Nic { settings: NicSettings { mac: None, queues: None, ..nic.settings }, ..nic }
}

/// Compares the settings of NICs on the same networks.
fn settings(mut all: Vec<Nic>, named: &[Nic], found: &mut Vec<GuestDifference>) {
    for wanted in named {
        let is_on = |nic: &Nic| nic.source == wanted.source;
        let is_named = |nic: &Nic| is_on(nic) && nic.settings.mac == wanted.settings.mac;
        let at = all.iter().position(is_named).or_else(|| all.iter().position(is_on));
        let Some(at) = at else { continue };
        let Nic { source, settings: is, .. } = all.remove(at);
        let of = &wanted.settings;
        // What is not said is as the plan or the template has it.
        let as_it_is = NicSettings {
            mac: of.mac.clone().or(is.mac.clone()),
            queues: of.queues.or(is.queues),
            // A virtual function shows no model, and libvirt chooses one where none is said.
            model: if is.model.is_none() || of.model.is_none() { is.model } else { of.model },
            inbound: of.inbound,
            outbound: of.outbound,
            ..of.clone()
        };
        if is != as_it_is {
            let shown = |settings: &NicSettings, other: &NicSettings| {
                let mut shown = settings.clone();
                if settings.mac == other.mac {
                    shown.mac = None;
                }
                if settings.queues == other.queues {
                    shown.queues = None;
                }
                if settings.model == other.model {
                    shown.model = None;
                }
                format!("{source}{}", shown.keys())
            };
            differ(found, "network", shown(&is, &as_it_is), shown(&as_it_is, &is));
        }
    }
}

/// The NICs of a definition, but for passed-through functions.
fn nics_of(xml: &DomainXml) -> Vec<Nic> {
    let devices = xml.root().children("devices");
    let nics = devices.flat_map(|devices| devices.children("interface"));
    let read = |nic: Element<'_>| {
        let source = nic.child("source")?;
        let named = ["network", "bridge", "dev"].into_iter();
        let (kind, name) = { named }.find_map(|kind| Some((kind, source.attr(kind)?)))?;
        let (source, is_network) = (name.into_owned(), kind == "network");
        Some(Nic { source, is_network, settings: NicSettings::of(nic) })
    };
    nics.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What differs between the interfaces of a definition and requested ones.
    fn compared(interfaces: &str, wanted: &[&str]) -> Vec<String> {
        let xml = format!("<domain><devices>{interfaces}</devices></domain>");
        let named: Vec<Nic> = { wanted.iter() }
            .map(|text| {
                let wish: crate::domain::wish::NicWish = text.parse().unwrap();
                let model = wish.settings.model.or(Some(NicModel::Virtio));
                let settings = NicSettings { model, ..wish.settings };
                Nic { source: wish.network, is_network: true, settings }
            })
            .collect();
        let mut found = Vec::new();
        settings(nics_of(&DomainXml::parse(&xml).unwrap()), &named, &mut found);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn settings_that_were_said_are_compared() {
        let nic = |network: &str, more: &str| {
            format!(
                "<interface type='network'><mac address='52:54:00:00:00:0{}'/>\
                 <source network='{network}'/>{more}</interface>",
                network.len()
            )
        };
        let virtio = "<model type='virtio'/><driver queues='2'/>";
        assert_eq!(compared(&nic("lan", virtio), &["lan"]), [""; 0]);
        assert_eq!(compared(&nic("lan", virtio), &["lan,queues=2,model=virtio"]), [""; 0]);
        assert_eq!(compared(&nic("lan", virtio), &["lan,mac=52:54:00:00:00:03"]), [""; 0]);
        // A virtual function of a pool.
        assert_eq!(compared(&nic("lan", ""), &["lan"]), [""; 0]);
        for (is, wanted, said) in [
            (virtio, "lan,queues=4", "network lan,queues=2 -> lan,queues=4"),
            (virtio, "lan,model=e1000e", "network lan,model=virtio -> lan,model=e1000e"),
            ("<model type='e1000e'/>", "lan", "network lan,model=e1000e -> lan,model=virtio"),
            ("<mtu size='9000'/>", "lan", "network lan,mtu=9000 -> lan"),
            (virtio, "lan,inbound=1Gbit/s", "network lan -> lan,inbound=1Gbit/s"),
            (
                virtio,
                "lan,mac=52:54:00:00:00:09",
                "network lan,mac=52:54:00:00:00:03 -> lan,mac=52:54:00:00:00:09",
            ),
        ] {
            assert_eq!(compared(&nic("lan", is), &[wanted]), [said]);
        }
        // Two on one network, in another order.
        let two = [nic("lan", "<mtu size='9000'/>"), nic("lan", virtio).replace(":03", ":04")];
        let wanted = ["lan,mac=52:54:00:00:00:04", "lan,mtu=9000,mac=52:54:00:00:00:03"];
        assert_eq!(compared(&two.concat(), &wanted), [""; 0]);
    }
}
