//! Guests: requested and planned ones, and those of a hypervisor.

mod name;
mod place;
mod render;

pub use name::NameRequest;
pub use place::PlannedPlace;
pub(crate) use render::{
    BY_GROUPS, refuse_iommufd, refuse_lacks, refuse_old_libvirt, refuse_without_groups,
};
pub use render::{Extra, RenderError, needs_template, render, template_file, template_of};

use crate::disks::linked_functions;
use crate::domain::check_architecture;
use crate::domain::guest::VirtType;
use crate::domain::nic_request::{NicWish, mac_twice};
use crate::error::{Class, Coded as _, NoPlace, Result, classed, dump_hint, usage};
use crate::hypervisor::machine::log_of;
use crate::hypervisor::{
    DomainState, DomainSummary, Hypervisor, HypervisorError, HypervisorErrorKind,
};
use crate::lookup::find;
use crate::placement::{Occupancy, Placement, nearest, plan};
use crate::planned::Planned;
use crate::request::{Extras, IommufdWish, PinPolicy, Request};
use crate::shell::{domain, taken_for, word};
use crate::storage::{StorageRequest, refuse_unfit};
use crate::taken::{Taken, taken_for_new};
use crate::topology::Topology;
use crate::world::World;
use std::path::{Path, PathBuf};

/// A request for a guest.
#[derive(Debug, Clone)]
pub struct GuestRequest {
    /// Its devices, size and place; the template's properties are filled in from the template.
    pub request: Request,
    /// Its name.
    pub name: NameRequest,
    /// Its template; `None` for the built-in one of the host's architecture.
    pub template: Option<PathBuf>,
    /// How it runs.
    pub virt: VirtType,
    /// Its NICs; none for those of the template.
    pub networks: Vec<NicWish>,
    /// The source of the domains' occupancy.
    pub taken: Taken,
    /// A plan that was made before, whose place it gets exactly; `None` if it is planned.
    pub place: Option<PlannedPlace>,
}

/// Reads the host and its occupancy, and finds a guest's place and name. `disks`: those of a guest
/// to be defined; none if it is only planned.
pub fn resolve(
    world: &World,
    wanted: &GuestRequest,
    disks: Option<&StorageRequest>,
) -> Result<Planned> {
    resolve_on(world, wanted, disks, world.topology()?)
}

/// The same on a host that is read already.
pub fn resolve_on(
    world: &World,
    wanted: &GuestRequest,
    disks: Option<&StorageRequest>,
    topology: Topology,
) -> Result<Planned> {
    let topology = world.judged(topology, wanted.taken.assume);
    let mut request = wanted.request.clone();
    refuse_same_mac(&wanted.networks, &request.extras)?;
    let planned = wanted.place.as_ref();
    if let Some(planned) = planned {
        request = planned.exact(&topology)?;
    }
    request = with_template(world, wanted, request, &topology)?;
    // No hint on the place is useful while this error persists.
    render::refuse_room(wanted, &request, &topology)?;
    render::refuse_machine(world, wanted, &request, &topology)?;
    let mut occupancy = taken_for_new(world, &wanted.taken, &topology, request.gpus.number() > 0)?;
    let open = occupancy.clone();
    if let Some(planned) = planned {
        planned.close(&topology, &mut occupancy);
    }
    let placement = match place(&topology, &occupancy, &request) {
        Ok(placement) => placement,
        Err(refused) => {
            if let Some(planned) = planned {
                return Err(planned.refused(&refused));
            }
            if let Some(disks) = disks {
                // Problems independent of the size come first: offering sizes would be useless.
                refuse_unfit(disks, &occupancy, world)?;
            }
            return Err(refused.into());
        }
    };
    let placement = match planned {
        Some(planned) => as_planned(planned, placement, wanted.virt, (&topology, &open, &request))?,
        None => placement,
    };
    // Chosen values are remembered, so that they are kept for an existing guest.
    if request.pins == PinPolicy::Auto {
        request.pins = placement.pins();
    }
    if placement.initiators.is_some() {
        request.iommufd = IommufdWish::On;
    }
    let placement = run_by(wanted.virt, placement);
    if let Some(planned) = planned {
        // The request is remembered, not the place that it led to.
        let movable = wanted.request.movable || planned.request.movable;
        request = Request { template: request.template, movable, ..planned.request.clone() };
    }
    let name = name::named(&wanted.name, &topology, &placement, &occupancy)?;
    let stack = world.stack(&topology, wanted.taken.assume);
    let planned = Planned { topology, request, placement, name, occupancy, stack };
    render::refuse_emulated(wanted.virt, &planned)?;
    refuse_iommufd(world, (&planned.topology, stack), &planned.request, &planned.placement)?;
    render::refuse_queues(&wanted.networks, planned.placement.vcpus())?;
    Ok(planned)
}

/// A placement for how a guest runs.
fn run_by(virt: VirtType, placement: Placement) -> Placement {
    match virt {
        VirtType::Kvm => placement,
        VirtType::Qemu => placement.emulated(),
    }
}

/// Returns the placement of a plan, or refuses it. `found`: the one on the plan's cores alone. An
/// odd number of vCPUs uses half of a core, and may be placed otherwise there: then the placement
/// on all cores is compared, too.
fn as_planned(
    planned: &PlannedPlace,
    found: Placement,
    virt: VirtType,
    (topology, open, request): (&Topology, &Occupancy, &Request),
) -> Result<Placement> {
    let expect = |found: &Placement| planned.expect(&run_by(virt, found.clone()));
    let Err(refused) = expect(&found) else { return Ok(found) };
    let again = place(topology, open, request).ok();
    again.filter(|again| expect(again).is_ok()).ok_or(refused)
}

/// Returns a request with the properties of the guest's template, if the admin names one.
pub fn with_template(
    world: &World,
    wanted: &GuestRequest,
    request: Request,
    topology: &Topology,
) -> Result<Request> {
    let Some(path) = &wanted.template else {
        render::refuse_foreign(wanted, topology)?;
        return Ok(request);
    };
    let template = template_file(path)?;
    check_architecture(&template, wanted.virt, topology)?;
    let mut of_template = template.as_template();
    if world.root()?.is_some_and(|root| root.is_live()) {
        for (message, bdf) in linked_functions(&template) {
            of_template.unread.retain(|why| *why != message);
            of_template.fixed_functions.push(bdf);
        }
    }
    Ok(Request { template: of_template, ..request })
}

/// Refuses NICs with one MAC address, of which switches and DHCP servers know only one.
pub fn refuse_same_mac(nics: &[NicWish], extras: &Extras) -> Result<()> {
    match mac_twice(nics, extras) {
        None => Ok(()),
        Some(mac) => Err(usage(
            format!("two NICs have the MAC address {mac}"),
            "give each its own mac=, or leave it out: then it is made of the guest's name",
        )),
    }
}

fn place(
    topology: &Topology,
    occupancy: &Occupancy,
    request: &Request,
) -> Result<Placement, NoPlace> {
    plan(topology, occupancy, request).map_err(|error| {
        let nearest = nearest(topology, occupancy, request);
        NoPlace { error, request: Box::new(request.clone()), nearest, room: None }
    })
}

/// The domain of this name, which must have a responsive guest; `so`: the consequence for the
/// message, as in "so it has no address".
pub fn find_alive(hypervisor: &dyn Hypervisor, name: &str, so: &str) -> Result<DomainSummary> {
    let row = find(hypervisor, name)?;
    if row.state.has_guest() {
        return Ok(row);
    }
    let (is, hint) = if row.state.is_active() {
        ("has crashed", restart_hint(name))
    } else {
        ("does not run", format!("`gpuvm start {}` starts it", word(name)))
    };
    Err(classed(Class::WrongState, format!("domain `{name}` {is}, so {so}"), hint))
}

/// Refuses a name that virsh takes for the id or UUID of another domain; as [`refuse_name_taken`].
pub fn refuse_name_of_virsh(name: &str, (doing, option): (&str, &str)) -> Result<()> {
    let Some(what) = taken_for(name) else { return Ok(()) };
    let message = format!("cannot {doing}: virsh would take that name for {what}");
    Err(usage(message, format!("choose another {option}, such as `vm-{name}`")))
}

/// Refuses a name that a domain has, and one that virsh takes for the id or UUID of another domain.
/// `doing`: the operation that needs it; `option`: the option that takes another one.
pub fn refuse_name_taken(
    hypervisor: &dyn Hypervisor,
    name: &str,
    (doing, option): (String, &str),
) -> Result<()> {
    refuse_name_of_virsh(name, (&doing, option))?;
    if hypervisor.domain(name)?.is_none() {
        return Ok(());
    }
    let kind = HypervisorErrorKind::Exists;
    let message = format!("{} has a domain of this name", hypervisor.uri());
    let hint = format!("choose another {option}; `gpuvm show {}` shows that domain", word(name));
    Err(HypervisorError { kind, doing, message }.hint(hint))
}

/// Of a guest whose vCPUs are paused: the word for its state, and the command that resumes it.
pub fn still(state: DomainState, name: &str) -> Option<(&'static str, String)> {
    match state {
        DomainState::Paused => Some(("is paused", format!("`gpuvm resume {}`", word(name)))),
        DomainState::Suspended => {
            Some(("is suspended", format!("`virsh dompmwakeup {}`", domain(name))))
        }
        _ => None,
    }
}

/// Reports the state of a domain that must be off first, and the command that stops it.
pub fn stop_first(row: &DomainSummary) -> (&'static str, String) {
    let name = word(&row.name);
    let stop = format!("`gpuvm stop {name}` first");
    match (row.state, still(row.state, &row.name)) {
        (_, Some((state, wake))) => (state, format!("{wake} lets it go on, then {stop}")),
        (DomainState::Crashed, _) => ("has crashed", format!("`gpuvm stop --force {name}` first")),
        _ => ("runs", stop),
    }
}

/// Returns the hint for a crashed guest whose process is preserved.
pub fn restart_hint(name: &str) -> String {
    format!(
        "{}; `gpuvm restart --force {name}` ends it and starts it again, `gpuvm stop --force \
         {name}` only ends it",
        dump_hint(name),
        name = word(name)
    )
}

/// Whether a guest that is waited for has ended: it is off or has crashed, it was transient and is
/// gone, or another one has its name now. `uuid` is that of the one seen first. A hypervisor
/// without an answer gives no result.
pub fn has_ended(hypervisor: &dyn Hypervisor, name: &str, uuid: &mut Option<String>) -> bool {
    let Ok(rows) = hypervisor.domains() else { return false };
    let Some(row) = rows.into_iter().find(|row| row.name == name) else { return true };
    !row.state.has_guest() || *uuid.get_or_insert(row.uuid.clone()) != row.uuid
}

/// Returns the hint where the directory of libvirt's logs is missing.
pub fn make_log_dir(dir: &Path) -> String {
    format!("`install -d -m 0755 {}` makes it", word(&dir.to_string_lossy()))
}

/// Where the log of a guest's QEMU is; `None` if it has none that is known.
pub fn log_hint(hypervisor: &dyn Hypervisor, name: &str) -> Option<String> {
    let path = log_of(&hypervisor.opened_uri(), name)?;
    let path = path.to_str()?;
    Some(match hypervisor.machine().elsewhere() {
        None => format!("`tail {}` shows what its QEMU said last", word(path)),
        Some(host) => format!("{path} on `{host}` has what its QEMU said last"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::Answer;
    use crate::stage::{Stage, UUID};

    #[test]
    fn a_new_guest_gets_no_name_that_virsh_takes_for_another_guest() {
        let stage = Stage::who_says(Answer::Nobody);
        for (name, says) in [("1", "the id of a running domain"), (UUID, "a UUID")] {
            let doing = (format!("create domain `{name}`"), "--name");
            let error = refuse_name_taken(&*stage.fake, name, doing).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            let refusal = error.refusal().expect("a refusal");
            assert!(refusal.hint.contains(&format!("`vm-{name}`")), "{}", refusal.hint);
        }
        // One that is there already is named by its UUID where virsh is to find it.
        let (_, wake) = still(DomainState::Suspended, "1").unwrap();
        assert!(wake.starts_with("`virsh dompmwakeup \"$(virsh list "), "{wake}");
        let (_, wake) = still(DomainState::Suspended, "a").unwrap();
        assert_eq!(wake, "`virsh dompmwakeup a`");
        // gpuvm takes it for a name.
        assert_eq!(still(DomainState::Paused, "1").unwrap().1, "`gpuvm resume 1`");
    }
}
