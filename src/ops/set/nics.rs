//! Other NICs of a guest: the networks that they need, and a running guest that gets or loses them.

use super::{SetError, SetRequest};
use crate::apply::{ApplyError, LET_GO_S, LiveStep, Step, StepError};
use crate::domain::live::{Bandwidth, Plugged, live_changes};
use crate::domain::nic_request::NicWish;
use crate::domain::nics::matched;
use crate::domain::{DomainXml, Element, hooks};
use crate::domain_history::starts_saved;
use crate::error::{Coded as _, Error, Refusal, Result};
use crate::guest::{restart_hint, still};
use crate::hypervisor::DomainState;
use crate::lookup::find;
use crate::networks::{on_demand, taken_up};
use crate::tune::extra::Extra;
use crate::tune::subject::Subject;
use crate::words::count;
use crate::world::World;
use gpuvm_core::tune::items::NewNics;
use gpuvm_core::tune::{Item, Tuned};

/// The requested settings that do not change while a guest runs; `None` for all of them can.
pub(super) fn not_live(wanted: &SetRequest) -> Option<&'static str> {
    let sizes = [
        ("GPUs", wanted.gpus.is_some() || wanted.gpu_set.is_some()),
        ("vGPUs", !wanted.vgpu.is_kept()),
        ("the maximum of vCPUs", wanted.max_vcpus.is_some()),
        ("memory", wanted.memory.is_some()),
        ("pages", wanted.huge_pages != Item::Keep),
    ];
    sizes.into_iter().find(|(_, is_asked)| *is_asked).map(|(what, _)| what)
}

/// Refuses settings that cannot change at once: a guest that is off or paused, and its size.
pub(super) fn refuse_not_live(world: &World, wanted: &SetRequest) -> Result<()> {
    let name = wanted.name.clone();
    let later = || format!("`{}` changes its next start", wanted.line(false));
    if let Some(what) = not_live(wanted) {
        return Err(SetError::NotLive { name, what: what.to_owned() }.hint(later()));
    }
    let hypervisor = world.hypervisor()?;
    let found = find(&*hypervisor, &wanted.name)?.state;
    if let Some((state, wake)) = still(found, &name) {
        return Err(SetError::NotRunning { name, state }.hint(format!("{wake} first")));
    }
    let (state, hint) = match found {
        DomainState::Crashed => ("has crashed", restart_hint(&name)),
        state if !state.is_active() => {
            let mut hint = later();
            for said in starts_saved(&*hypervisor, &name) {
                // Its next start is not that of its definition.
                hint = format!("it has {said}; after that {hint}");
            }
            ("does not run", hint)
        }
        _ => return Ok(()),
    };
    Err(SetError::NotRunning { name, state }.hint(hint))
}

/// The NICs on networks of a domain.
fn nics(xml: &DomainXml) -> impl Iterator<Item = Element<'_>> {
    let devices = xml.root().child("devices").into_iter();
    let all = devices.flat_map(|devices| devices.children("interface"));
    all.filter(|nic| nic.attr("type").is_some_and(|kind| kind == "network"))
}

/// The MAC address of a NIC, lower case.
fn mac(nic: Element<'_>) -> Option<String> {
    Some(nic.child("mac")?.attr("address")?.to_ascii_lowercase())
}

/// The NICs of a running guest that a request leaves no place for.
fn left<'t>(live: &'t DomainXml, wishes: &[NicWish]) -> Vec<Element<'t>> {
    let kept = matched(&hooks(live), &wishes.iter().collect::<Vec<_>>());
    let devices = live.root().child("devices").into_iter();
    let all = devices.flat_map(|devices| devices.children("interface")).enumerate();
    let is_left = |(nth, nic): &(usize, Element<'_>)| {
        nic.attr("type").is_some_and(|kind| kind == "network") && !kept.contains(&Some(*nth))
    };
    all.filter(is_left).map(|(_, nic)| nic).collect()
}

/// The root ports that new NICs may get; those of a running guest are free in it, too.
pub(super) fn ports(subject: &Subject, wanted: &SetRequest) -> Result<Option<NewNics>> {
    let Some(wishes) = &wanted.networks else { return Ok(None) };
    let Some(live) = &subject.live else { return Ok(Some(NewNics::FreeOrNew)) };
    Ok(Some(NewNics::Free(live.ports_without(&left(live, wishes))?)))
}

/// Adds the needs of its NICs on the host, and the changes of the running guest, if it is changed.
pub(super) fn settle(
    subject: &Subject,
    tuned: &Tuned,
    extra: &mut Extra,
    wanted: &SetRequest,
    world: &World,
) -> Result<()> {
    let Some(wishes) = &wanted.networks else { return Ok(()) };
    let names = || wishes.iter().map(|wish| wish.network.as_str());
    if let Some(live) = &subject.live {
        extra.last.extend(plugged(live, &tuned.after, wishes, wanted)?);
    }
    if tuned.changes.is_empty() && extra.last.is_empty() {
        return Ok(());
    }
    let hypervisor = &*world.hypervisor()?;
    extra.first.extend(on_demand(names(), hypervisor, world)?);
    if subject.live.is_some() {
        extra.first.extend(taken_up(names(), hypervisor, world)?);
    }
    Ok(())
}

/// The steps that give a running guest the NICs of its definition. Refuses changes of those that
/// stay that are impossible while it runs.
fn plugged(
    live: &DomainXml,
    after: &DomainXml,
    wishes: &[NicWish],
    wanted: &SetRequest,
) -> Result<Vec<Step>> {
    let name = &wanted.name;
    let of = |xml: &DomainXml| nics(xml).filter_map(mac).collect::<Vec<String>>();
    let (runs, has) = (of(live), of(after));
    let device = |nic: Element<'_>| {
        let mac = mac(nic)?;
        Some((Plugged::Nic(mac), nic.xml().to_owned()))
    };
    let gone = nics(live).filter(|nic| !mac(*nic).is_some_and(|mac| has.contains(&mac)));
    let mut steps: Vec<Step> = gone
        .filter_map(device)
        .map(|(device, xml)| {
            Step::Live(LiveStep::DetachDevice { name: name.clone(), device, wait_s: LET_GO_S, xml })
        })
        .collect();
    let comes = nics(after).filter(|nic| !mac(*nic).is_some_and(|mac| runs.contains(&mac)));
    steps.extend(comes.filter_map(device).map(|(device, xml)| {
        let name = name.clone();
        Step::Live(LiveStep::AttachDevice { name, device, xml })
    }));
    refuse_changed((live, after), wishes, wanted)?;
    let is_named = |mac: &String| runs.contains(mac) && has.contains(mac);
    let mut rates = live_changes(live, after, &Default::default()).bandwidths;
    rates.retain(|rate| is_named(&rate.mac));
    let moved = moved(live, after, &rates);
    rates.retain(|rate| moved.iter().all(|(mac, ..)| *mac != rate.mac));
    let moved = moved.into_iter().map(|(mac, xml, was)| ("network", mac, xml, was));
    let rates = rates.into_iter().map(|rate| ("bandwidth", rate.mac, rate.to, rate.from));
    steps.extend(moved.chain(rates).map(|(what, mac, xml, was)| {
        let device = format!("the {what} of interface {mac}");
        Step::Live(LiveStep::Update { name: name.clone(), device, xml, was })
    }));
    Ok(steps)
}

/// The NICs of a running guest that are connected to another network: the MAC address, the NIC then
/// and now, without libvirt's additions to its network. `rates`: their other bandwidths.
fn moved(
    live: &DomainXml,
    after: &DomainXml,
    rates: &[Bandwidth],
) -> Vec<(String, String, String)> {
    let network = |nic: Element<'_>| Some(nic.child("source")?.attr("network")?.into_owned());
    let one = |nic: Element<'_>| {
        let mac = mac(nic)?;
        let other = nics(after).find(|other| self::mac(*other).as_ref() == Some(&mac))?;
        let (from, to) = (network(nic)?, network(other)?);
        let source = nic.child("source")?.xml();
        let on = |text: &str, network: &str| {
            let plain = format!("<source network={}/>", quoted(network));
            text.replacen(source, &plain, 1)
        };
        let rated = rates.iter().find(|rate| rate.mac == mac).map(|rate| rate.to.as_str());
        let then = on(rated.unwrap_or_else(|| nic.xml()), &to);
        (from != to).then(|| (mac, then, on(nic.xml(), &from)))
    };
    nics(live).filter_map(one).collect()
}

/// A name as the value of an attribute.
fn quoted(name: &str) -> String {
    let escaped = name.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;");
    format!("'{escaped}'")
}

/// Refuses settings of NICs that stay and that differ in the running guest.
fn refuse_changed(
    (live, after): (&DomainXml, &DomainXml),
    wishes: &[NicWish],
    wanted: &SetRequest,
) -> Result<()> {
    let there = hooks(after);
    let places = matched(&there, &wishes.iter().collect::<Vec<_>>());
    for (wish, place) in wishes.iter().zip(places) {
        let Some(hook) = place.map(|nth| &there[nth]) else { continue };
        let Some(runs) = Plugged::Nic(hook.mac.clone()).find(live) else { continue };
        let Some(what) = other(runs, wish) else { continue };
        let what = format!("{what} of NIC {}", hook.mac);
        let hint = format!("`{}` changes its next start", wanted.line(false));
        return Err(SetError::NotLive { name: wanted.name.clone(), what }.hint(hint));
    }
    Ok(())
}

/// The settings of a request that differ in a running NIC, besides its bandwidth.
fn other(nic: Element<'_>, wish: &NicWish) -> Option<&'static str> {
    let attr = |child: &str, name: &str| Some(nic.child(child)?.attr(name)?.into_owned());
    let vlan = || Some(nic.child("vlan")?.child("tag")?.attr("id")?.into_owned());
    let settings = &wish.settings;
    let said = [
        ("the model", settings.model.map(|model| model.word().to_owned()), attr("model", "type")),
        ("the queues", settings.queues.map(|n| n.to_string()), attr("driver", "queues")),
        ("the MTU", settings.mtu.map(|mtu| mtu.to_string()), attr("mtu", "size")),
        ("the VLAN", settings.vlan.map(|id| id.to_string()), vlan()),
    ];
    let differs = |wanted: &Option<String>, is: &Option<String>| {
        // One queue is not written.
        let is_one = wanted.as_deref() == Some("1") && is.is_none();
        wanted.is_some() && wanted != is && !is_one
    };
    said.iter().find(|(_, wanted, is)| differs(wanted, is)).map(|(what, ..)| *what)
}

/// Adds the remedy where a running guest does not release a device, or vCPUs.
pub fn explained(error: Error, wanted: &SetRequest) -> Error {
    if let Some(Step::Live(LiveStep::PlugVcpus { name, vcpus, was })) = error.step() {
        let what = if vcpus < was { "does not release" } else { "does not get" };
        let number = count(vcpus.abs_diff(*was), "vCPU");
        let message = format!("running domain `{name}` {what} {number}");
        return error.around(Refusal::around(message, later(wanted)));
    }
    let Error::Apply(ApplyError::Failed { source: StepError::HoldsDevice { device, .. }, .. }) =
        &error
    else {
        return error;
    };
    let name = &wanted.name;
    let message = format!("{device} is not removed from running domain `{name}`");
    error.around(Refusal::around(message, later(wanted)))
}

/// The remedy where a running guest does not take part.
fn later(wanted: &SetRequest) -> String {
    format!(
        "`{}` again once the guest has finished booting; `{}` changes its next start instead",
        wanted.line(true),
        wanted.line(false)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_that_moves_takes_its_new_limit_with_it() {
        let domain = |source: &str, rate: &str| {
            let mac = "<mac address='52:54:00:00:00:01'/>";
            let text = format!(
                "<domain><devices><interface type='network'>{mac}{source}{rate}</interface>\
                 </devices></domain>"
            );
            DomainXml::parse(&text).unwrap()
        };
        let live = domain("<source network='a' portid='1' bridge='br0'/>", "");
        let rate = "<bandwidth><inbound average='1000'/></bandwidth>";
        let after = domain("<source network='b&amp;c'/>", rate);
        let rates = live_changes(&live, &after, &Default::default()).bandwidths;
        let [(mac, then, was)] = &moved(&live, &after, &rates)[..] else { panic!("it stays") };
        assert_eq!(mac, "52:54:00:00:00:01");
        assert!(then.contains("<source network='b&amp;c'/>") && then.contains(rate), "{then}");
        assert!(was.contains("<source network='a'/>") && !was.contains("bandwidth"), "{was}");
        assert!(moved(&live, &live, &[]).is_empty());
    }
}
