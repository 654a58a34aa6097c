//! The NICs that a guest has on networks, bridges and interfaces of the host, against those that
//! are requested, or else those of its template.

use super::PRIVATE_NET;
use crate::create::CreateRequest;
use crate::domain::nic_request::{NicModel, NicSettings, NicWish};
use crate::domain::{DomainXml, Element, hooks};
use crate::guest::template_of;
use crate::topology::Topology;
use gpuvm_core::guest::{Found, Opt};
use std::collections::BTreeSet;

#[derive(Debug, Clone)]
struct Nic {
    source: String,
    /// Whether that is a network of libvirt.
    is_network: bool,
    settings: NicSettings,
    /// Whether the device that the guest sees was named, so that `set` changes it.
    names_model: bool,
}

/// The NICs on networks that a request gives a guest: those that were named, or else those of its
/// template; `None` if the template was needed only while the guest was made, or has others as
/// well.
pub(crate) fn wished_nics(wanted: &CreateRequest, topology: &Topology) -> Option<Vec<NicWish>> {
    let private = wanted.private_net.then(|| NicWish::on(PRIVATE_NET));
    let mut nics = wanted.guest.networks.clone();
    if nics.is_empty() {
        let hooks = hooks(&template_of(&wanted.guest, topology).ok()?);
        nics =
            hooks.into_iter().map(|hook| hook.network.map(NicWish::on)).collect::<Option<_>>()?;
    }
    nics.extend(private.filter(|private| nics.iter().all(|nic| nic.network != private.network)));
    Some(nics)
}

/// Compares the networks that a guest runs on. Differences at its next start, too, are reported
/// once.
pub(super) fn running(
    wanted: &CreateRequest,
    live: &DomainXml,
    topology: &Topology,
    found: &mut Found,
) {
    let Some((all, named)) = both(wanted, live, topology) else { return };
    if !found.has(Opt::Network) {
        sources(&all, &named, found);
    }
}

/// Compares the sources of NICs.
fn sources(all: &[Nic], named: &[Nic], found: &mut Found) {
    let names = |nics: &[Nic]| {
        let mut names: Vec<&str> = nics.iter().map(|nic| &*nic.source).collect();
        names.sort_unstable();
        if names.is_empty() { "none".to_owned() } else { names.join(",") }
    };
    let others = |nics: &[Nic]| {
        let others = nics.iter().filter(|nic| !nic.is_network).map(|nic| nic.source.clone());
        others.collect::<BTreeSet<String>>()
    };
    found.add(Opt::Network, names(all), names(named), others(all) == others(named));
}

/// Compares them; each NIC of a network with the one that is requested on it, the first with the
/// first.
pub(super) fn networks(
    wanted: &CreateRequest,
    xml: &DomainXml,
    topology: &Topology,
    found: &mut Found,
) {
    let Some((all, named)) = both(wanted, xml, topology) else { return };
    sources(&all, &named, found);
    if !found.has(Opt::Network) {
        settings(all, &named, found);
    }
}

/// The NICs that are there and those that are requested; `None` if they cannot be compared.
fn both(
    wanted: &CreateRequest,
    xml: &DomainXml,
    topology: &Topology,
) -> Option<(Vec<Nic>, Vec<Nic>)> {
    let template = template_of(&wanted.guest, topology).ok();
    let of_template = template.as_ref().map(nics_of);
    let named = wanted.guest.networks.iter().map(|wish| Nic {
        source: wish.network.clone(),
        is_network: true,
        settings: NicSettings {
            // The device that the guest sees by default.
            model: wish.settings.model.or(Some(NicModel::Virtio)),
            ..wish.settings.clone()
        },
        names_model: wish.settings.model.is_some(),
    });
    let mut named: Vec<Nic> = named.collect();
    let mut all = nics_of(xml);
    // One that was taken off all networks stays off them where the file names none.
    if named.is_empty() && all.is_empty() && !wanted.private_net {
        return None;
    }
    match of_template {
        Some(nics) if named.is_empty() => named = nics.into_iter().map(bare).collect(),
        Some(nics) => named.extend(nics.into_iter().filter(|nic| !nic.is_network).map(bare)),
        // It was needed only while the guest was made.
        None if named.is_empty() => return None,
        None => all.retain(|nic| nic.is_network),
    }
    let is_private = |nic: &Nic| nic.source == PRIVATE_NET;
    if wanted.private_net && !named.iter().any(is_private) {
        let (source, is_network) = (PRIVATE_NET.to_owned(), true);
        let settings = NicSettings::default();
        named.push(Nic { source, is_network, settings, names_model: false });
    }
    Some((all, named))
}

/// The NIC of a template, of which no MAC address and no queues are requested.
fn bare(nic: Nic) -> Nic {
    Nic { settings: NicSettings { mac: None, queues: None, ..nic.settings }, ..nic }
}

/// Compares the settings of NICs on the same networks.
fn settings(mut all: Vec<Nic>, named: &[Nic], found: &mut Found) {
    for wanted in named {
        let is_on = |nic: &Nic| nic.source == wanted.source;
        let is_named = |nic: &Nic| is_on(nic) && nic.settings.mac == wanted.settings.mac;
        let at = all.iter().position(is_named).or_else(|| all.iter().position(is_on));
        let Some(at) = at else { continue };
        let Nic { source, settings: is, .. } = all.remove(at);
        let of = &wanted.settings;
        // Unnamed settings are those of the plan or the template.
        let as_it_is = NicSettings {
            mac: of.mac.clone().or(is.mac.clone()),
            queues: of.queues.or(is.queues),
            // A virtual function shows no model, and libvirt chooses one by default.
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
            let changeable = is_set(&is, &as_it_is, wanted.names_model);
            found.add(Opt::Network, shown(&is, &as_it_is), shown(&as_it_is, &is), changeable);
        }
    }
}

/// Whether `set` gives a NIC these settings: it removes none, and changes the device that the guest
/// sees only if that is named.
fn is_set(is: &NicSettings, wanted: &NicSettings, names_model: bool) -> bool {
    let keeps = [
        is.mtu.is_none() || wanted.mtu.is_some(),
        is.vlan.is_none() || wanted.vlan.is_some(),
        is.inbound.is_none() || wanted.inbound.is_some(),
        is.outbound.is_none() || wanted.outbound.is_some(),
        is.model == wanted.model || names_model,
    ];
    keeps == [true; 5]
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
        Some(Nic { source, is_network, settings: NicSettings::of(nic), names_model: false })
    };
    nics.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The differences between the interfaces of a definition and requested ones.
    fn compared(interfaces: &str, wanted: &[&str]) -> Vec<String> {
        let xml = format!("<domain><devices>{interfaces}</devices></domain>");
        let named: Vec<Nic> = { wanted.iter() }
            .map(|text| {
                let wish: NicWish = text.parse().unwrap();
                let model = wish.settings.model.or(Some(NicModel::Virtio));
                let settings = NicSettings { model, ..wish.settings };
                Nic { source: wish.network, is_network: true, settings, names_model: false }
            })
            .collect();
        let mut found = Found::default();
        settings(nics_of(&DomainXml::parse(&xml).unwrap()), &named, &mut found);
        found.0.iter().map(ToString::to_string).collect()
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
        // The rule of `set`: it adds and changes, removes nothing, and keeps a model.
        let of = |text: &str| text.parse::<NicWish>().unwrap().settings;
        for (is, wanted, named, changeable) in [
            ("lan", "lan,mtu=9000", false, true),
            ("lan,mtu=1400", "lan,mtu=9000", false, true),
            ("lan,mtu=9000", "lan", false, false),
            ("lan,vlan=7", "lan", false, false),
            ("lan,model=e1000e", "lan,model=virtio", false, false),
            ("lan,model=e1000e", "lan,model=virtio", true, true),
        ] {
            assert_eq!(is_set(&of(is), &of(wanted), named), changeable, "{is} {wanted}");
        }
        // Two on one network, in another order.
        let two = [nic("lan", "<mtu size='9000'/>"), nic("lan", virtio).replace(":03", ":04")];
        let wanted = ["lan,mac=52:54:00:00:00:04", "lan,mtu=9000,mac=52:54:00:00:00:03"];
        assert_eq!(compared(&two.concat(), &wanted), [""; 0]);
    }
}
