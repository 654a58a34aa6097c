//! Another number of vCPUs of a running guest.

use super::{SetError, SetRequest};
use crate::apply::LiveStep;
use crate::domain::DomainXml;
use crate::error::{Coded as _, Result};
use crate::tune::extra::Extra;
use crate::tune::subject::Subject;
use gpuvm_core::domain::claims::Claims;

/// Adds the step that gives a running guest its vCPUs, if it is changed; refuses numbers that it
/// cannot have before its next start.
pub(super) fn settle(subject: &Subject, extra: &mut Extra, wanted: &SetRequest) -> Result<()> {
    let (Some(vcpus), true) = (wanted.vcpus, wanted.live) else { return Ok(()) };
    let Some(live) = &subject.live else { return Ok(()) };
    let claims = Claims::read(live);
    let (most, was) = (claims.vcpus.value, u32::try_from(claims.plugged.len()).unwrap_or(u32::MAX));
    let (name, later) = (wanted.name.clone(), wanted.line(false));
    let later = format!("`{later}` changes its next start");
    if vcpus > most {
        // Its definition may have room that the running domain does not have.
        let has_room = Claims::read(&subject.xml).vcpus.value >= vcpus;
        let max_vcpus = Some(vcpus).filter(|_| !has_room);
        let line = SetRequest { max_vcpus, ..wanted.clone() }.line(false);
        let hint = format!("`{line}` changes its next start");
        return Err(SetError::NoRoom { name, most }.hint(hint));
    }
    let least = started_with(live).min(was);
    if vcpus < least {
        return Err(SetError::StartedWith { name, least }.hint(later));
    }
    if vcpus < was && live.is_emulated() {
        return Err(SetError::Emulated { name }.hint(later));
    }
    if vcpus != was {
        extra.last.push(LiveStep::PlugVcpus { name, vcpus, was }.into());
    }
    Ok(())
}

/// How many vCPUs of a running domain cannot be taken from it: those with which QEMU started.
fn started_with(live: &DomainXml) -> u32 {
    let each = live.root().child("vcpus").into_iter().flat_map(|all| all.children("vcpu"));
    let (mut has_any, mut fixed) = (false, 0);
    for vcpu in each {
        has_any = true;
        let is = |name: &str, value: &str| vcpu.attr(name).is_some_and(|is| is == value);
        fixed += u32::from(is("enabled", "yes") && !is("hotpluggable", "yes"));
    }
    // Without a list all were there from the start.
    if has_any { fixed } else { u32::MAX }
}
