//! Refuses to tune domains that cannot be parsed or are ambiguous. Changes nothing.

use super::{Given, ItemName, Items, TuneError};
use crate::domain::claims::Claims;
use crate::domain::read::Spot;
use crate::domain::{DomainXml, DomainXmlError};
use crate::shell::domain;
use crate::topology::Topology;
use std::collections::BTreeSet;

/// Reads a domain's claims on its host; an error if they cannot be parsed.
pub(super) fn understood<'t>(
    current: &'t DomainXml,
    given: &Given<'_>,
) -> Result<Claims<'t>, TuneError> {
    let kind = current.root().attr("type").unwrap_or_default();
    if !matches!(kind.as_ref(), "kvm" | "qemu") {
        return Err(TuneError::Kind { kind: kind.into_owned() });
    }
    once(current)?;
    let claims = Claims::read(current);
    if let Some(fault) = claims.faults.first() {
        return refused(fault.spot, fault.message.clone());
    }
    architecture(current, given.topology)?;
    // What its owner chose is in its record. Without one it is tuned as the domain of anybody.
    if let Some(error) = current.unread_request().filter(|_| current.has_request()) {
        return Err(error.into());
    }
    if claims.vcpus.value == 0 {
        return refused(claims.vcpus.spot, "it has no vCPU");
    }
    let mut pinned = BTreeSet::new();
    for pin in &claims.vcpu_pins {
        if !pinned.insert(pin.of.value) {
            return refused(pin.of.spot, format!("vCPU {} is pinned twice", pin.of.value));
        }
    }
    cells(&claims, given.items)?;
    Ok(claims)
}

/// Refuses a domain that has an element twice that may occur once: which one is meant is ambiguous.
fn once(current: &DomainXml) -> Result<(), TuneError> {
    /// Elements that are changed, or read for a change.
    const ONCE: [&str; 13] = [
        "name",
        "memory",
        "currentMemory",
        "memoryBacking",
        "vcpu",
        "iothreads",
        "iothreadids",
        "cputune",
        "numatune",
        "os",
        "cpu",
        "metadata",
        "devices",
    ];
    for name in ONCE {
        if let Some(second) = current.root().children(name).nth(1) {
            return refused(Spot::of(second), format!("a second <{name}>"));
        }
    }
    Ok(())
}

/// Makes the error of a place in the document.
fn refused<T>(spot: Spot<'_>, message: impl Into<String>) -> Result<T, TuneError> {
    let message = format!("{} (line {})", message.into(), spot.line());
    Err(DomainXmlError::Value { path: spot.path(), message }.into())
}

/// Refuses a domain of another architecture than the host's, whose threads are emulated.
fn architecture(current: &DomainXml, topology: &Topology) -> Result<(), TuneError> {
    let kind = current.root().find("os/type");
    let named = kind.and_then(|kind| kind.attr("arch"));
    let host = topology.machine().architecture.as_deref();
    let same = |a: &str, b: &str| a == b || (matches!(a, "i686") && b == "x86_64");
    match (kind, named, host) {
        (Some(kind), Some(named), Some(host)) if !same(&named, host) => {
            let message = format!("the domain is for `{named}`, the host is `{host}`");
            refused(Spot::attribute(kind, "arch"), message)
        }
        _ => Ok(()),
    }
}

/// Refuses cells with ambiguous vCPUs or memory.
fn cells(claims: &Claims<'_>, items: &Items) -> Result<(), TuneError> {
    let mut ids = BTreeSet::new();
    let mut vcpus = BTreeSet::new();
    for cell in &claims.cells {
        let spot = cell.memory.spot;
        if !ids.insert(cell.id) {
            return refused(spot, format!("two cells have id {}", cell.id));
        }
        for vcpu in cell.vcpus.iter().flat_map(|set| set.value.iter()) {
            if vcpu.0 >= claims.vcpus.value {
                let there = claims.vcpus.value;
                return refused(
                    spot,
                    format!("vCPU {} is in a cell, and there are {there}", vcpu.0),
                );
            }
            if !vcpus.insert(vcpu) {
                return refused(spot, format!("vCPU {} is in two cells", vcpu.0));
            }
        }
    }
    let first = claims.empty_cells.first().map(|cell| cell.value);
    if let Some(empty) = first.filter(|empty| ids.last().is_some_and(|last| empty < last)) {
        if items.only_binds() {
            return Ok(());
        }
        let message =
            format!("cell {empty} without vCPUs and memory comes before those that have some");
        let hint = format!("`virsh edit {}` gives it the last id", domain(&claims.name));
        return Err(TuneError::item(ItemName::Cells, message, hint));
    }
    let gap = (0..).zip(&ids).find(|(at, id)| at != *id);
    if let (Some((_, id)), Some(cell)) = (gap, claims.cells.first()) {
        return refused(
            cell.memory.spot,
            format!("cell ids are not consecutive: {id} follows a gap"),
        );
    }
    Ok(())
}
