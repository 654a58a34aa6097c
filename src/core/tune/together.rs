//! Tunes several domains together: each sees the new places of those before it. Those with
//! passed-through functions go first, since their nodes are fixed.

use super::{Given, TuneError, Tuned, tune};
use crate::domain::DomainXml;
use crate::placement::{Held, Occupancy};

/// Tunes domains together; the results are in the order of `members`. `given.others` is everything
/// held, the members' own included; a running domain keeps its place until its next start.
pub fn together(members: &[DomainXml], given: &Given<'_>) -> Vec<Result<Tuned, TuneError>> {
    let names: Vec<String> = members.iter().map(DomainXml::name).collect();
    let mut order: Vec<usize> = (0..members.len()).collect();
    let functions = |at: &usize| members[*at].held(false).map_or(0, |held| held.devices.len());
    order.sort_by_key(|at| std::cmp::Reverse(functions(at)));
    let mut occupancy = given.others.clone();
    let mut answers: Vec<Option<Result<Tuned, TuneError>>> = members.iter().map(|_| None).collect();
    for at in order {
        let ends = given.items.size().gpus.is_some();
        let others = without_member(&occupancy, &members[at], ends);
        let answer = tune(&members[at], &Given { others: &others, ..*given });
        if let Ok(tuned) = &answer {
            replace(&mut occupancy, &names[at], tuned);
        }
        answers[at] = Some(answer);
    }
    answers.into_iter().flatten().collect()
}

/// Returns the occupancy without the domain of this name.
pub fn without(occupancy: &Occupancy, name: &str) -> Occupancy {
    let mut others = occupancy.clone();
    others.domains.retain(|held| held.domain != name);
    others
}

/// Returns the occupancy without a domain, for which NVLink partitions may be ready that are not
/// for others. While it runs, its partition is active. `ends`: a partition still active for it is
/// deactivated, since it gets other GPUs.
pub fn without_member(occupancy: &Occupancy, member: &DomainXml, ends: bool) -> Occupancy {
    let name = member.name();
    let runs = occupancy.domains.iter().any(|held| held.domain == name && held.active);
    without(occupancy, &name).ready_for(member.uuid().as_deref(), runs, ends)
}

/// Replaces a domain's old place by its new one. Its running resources stay held until its next
/// start.
fn replace(occupancy: &mut Occupancy, name: &str, tuned: &Tuned) {
    let Ok(new) = tuned.after.held_instead(&occupancy.domains) else { return };
    let own = || occupancy.domains.iter().filter(|held| held.domain == name);
    let active = own().any(|held| held.active);
    let autostart = own().any(|held| held.autostart);
    if !active {
        occupancy.domains.retain(|held| held.domain != name);
    }
    let new = Held { active, autostart, ..new };
    if !occupancy.domains.contains(&new) {
        occupancy.domains.push(new);
    }
}
