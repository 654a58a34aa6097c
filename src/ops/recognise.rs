//! Whether the devices at a guest's addresses are those that it had when they were recorded in its
//! metadata. Cards that are added or removed move addresses: the drive at one may now be the
//! host's.

use crate::bdf::Bdf;
use crate::discover::identity::{self, Finder};
use crate::domain::setting::Setting;
use crate::domain::{DomainEdit, DomainXml};
use crate::error::{Coded, Result};
use crate::fsroot::FsRoot;
use crate::placement::{Moved, Occupancy};
use crate::shell::word;
use crate::topology::{DeviceIdentity, KnownDevice, Likeness};
use crate::world::World;
use gpuvm_core::tune::kinds;
use gpuvm_core::verify::identity::{Presence, hint};

/// The reason a guest does not start with the devices at its addresses.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "identity-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum IdentityError {
    /// Other devices are at its addresses.
    #[error("domain `{name}` cannot start with other devices than it had{lines}")]
    Other { name: String, lines: String },
    /// A drive does not report its identity.
    #[error(
        "domain `{name}` cannot start: drive {bdf} does not report its serial number now (driver: \
         {driver}); `{name}` had {recorded}"
    )]
    Unproven { name: String, bdf: Bdf, driver: String, recorded: Box<DeviceIdentity> },
    /// A drive reports the recorded serial number, but none of the recorded namespaces.
    #[error(
        "domain `{name}` cannot start: drive {bdf} reports the recorded serial number, but none of \
         the recorded EUIs of its namespaces; `{name}` had {recorded}"
    )]
    Namespaces { name: String, bdf: Bdf, recorded: Box<DeviceIdentity> },
    /// A drive is recorded for another domain.
    #[error(
        "domain `{name}` cannot have drive {bdf}: it is recorded for domain `{of}`, which had it at \
         {was}"
    )]
    OfAnother { name: String, bdf: Bdf, of: String, was: Bdf },
    /// The definition cannot record which drive a guest has.
    #[error(
        "domain `{name}` was not made by gpuvm, so its definition does not record which drive \
         {bdf} is: after a change of hardware libvirt would start it with another one"
    )]
    NoRecord { name: String, bdf: Bdf },
}

impl Coded for IdentityError {}

/// The identities of functions of this machine, for a guest's record; none where its guests run
/// elsewhere. `before`: those that are recorded.
pub(crate) fn known(
    world: &World,
    functions: &[Bdf],
    before: &[KnownDevice],
) -> Result<Vec<KnownDevice>> {
    if functions.is_empty() || world.is_recorded() || !world.has_guests_here()? {
        return Ok(Vec::new());
    }
    Ok(identity::known(&FsRoot::live()?, functions, before)?)
}

/// Records the identities of a definition's functions. `had`: those that the guest had, which keep
/// theirs unless they are `named`; they are recorded if they were not.
pub(crate) fn record(
    world: &World,
    had: &DomainXml,
    after: &mut DomainXml,
    named: &[Bdf],
) -> Result<()> {
    if !after.is_ours() {
        return Ok(());
    }
    let functions = after.held(false)?.devices;
    let mut kept = had.known_devices();
    kept.retain(|one| functions.contains(&one.bdf) && !named.contains(&one.bdf));
    let is_new = |bdf: &&Bdf| !kept.iter().any(|one| one.bdf == **bdf);
    let new: Vec<Bdf> = functions.iter().filter(is_new).copied().collect();
    let before = had.known_devices();
    let found = known(world, &new, &before)?;
    let drives = found.iter().filter(|one| one.identity.is_of_drive());
    let drives: Vec<Bdf> = drives.map(|one| one.bdf).collect();
    if !drives.is_empty() {
        refuse_of_others(&after.name(), &drives, &world.occupancy(false)?)?;
    }
    warn_of_nameless(world, &after.name(), &new, &found)?;
    kept.extend(found);
    kept.sort_by_key(|one| one.bdf);
    if kept != after.known_devices() {
        after.apply(&DomainEdit::Set { setting: Setting::Known { known: kept } })?;
    }
    Ok(())
}

/// Compares a guest's devices with those at their addresses now.
pub(crate) fn presences(root: &FsRoot, xml: &DomainXml) -> Result<Vec<Presence>> {
    let (known, finder) = (xml.known_devices(), Finder::new(root));
    let mut all = Vec::new();
    for bdf in xml.held(false)?.devices {
        let present = identity::settled(root, bdf)?;
        let recorded = known.iter().find(|one| one.bdf == bdf).map(|one| one.identity.clone());
        let likeness = recorded.as_ref().map(|one| match &present {
            Some(present) => one.likeness(&present.identity),
            None => Likeness::Other,
        });
        let places = match &recorded {
            Some(one) if likeness == Some(Likeness::Other) => finder.places(one)?,
            _ => Vec::new(),
        };
        // Of a missing one without a record nothing is known.
        let (now, driver, is_storage, option) = match (present, &recorded) {
            (Some(present), _) => {
                let (is_storage, option) = (present.is_storage(), present.option());
                (Some(present.identity), present.driver, is_storage, option)
            }
            (None, Some(recorded)) => {
                (None, None, recorded.is_of_drive(), kinds::option_of(recorded))
            }
            (None, None) => continue,
        };
        all.push(Presence { bdf, recorded, likeness, now, driver, places, is_storage, option });
    }
    Ok(all)
}

/// The recorded functions at whose addresses the recorded device is, or another, as `likeness`
/// says.
pub(crate) fn compared(xml: &DomainXml, root: &FsRoot, likeness: Likeness) -> Result<Vec<Bdf>> {
    let finder = Finder::new(root);
    let mut all = Vec::new();
    for one in xml.known_devices() {
        if finder.whereabouts(&one)?.likeness == likeness {
            all.push(one.bdf);
        }
    }
    Ok(all)
}

/// The places of a definition's recorded devices that are now elsewhere.
pub(crate) fn elsewhere(xml: &DomainXml, root: &FsRoot) -> Result<Vec<(KnownDevice, Vec<Bdf>)>> {
    let finder = Finder::new(root);
    let mut all = Vec::new();
    for one in xml.known_devices() {
        let places = finder.whereabouts(&one)?.places;
        if !places.is_empty() {
            all.push((one, places));
        }
    }
    Ok(all)
}

/// Functions that a request names and a guest has, and that would be recorded as another device: it
/// is another one, or a drive that is not proven to be the recorded one.
pub(crate) fn accepted(world: &World, xml: &DomainXml, named: &[Bdf]) -> Result<Vec<Bdf>> {
    if named.is_empty() || world.is_recorded() || !world.has_guests_here()? {
        return Ok(Vec::new());
    }
    let is_named = |one: &Presence| one.now.as_ref().is_some_and(DeviceIdentity::is_named);
    let is_new = |one: &Presence| match one.likeness {
        Some(Likeness::Other) => one.now.is_some(),
        Some(Likeness::Unproven) => one.is_storage && is_named(one),
        Some(Likeness::Same) => false,
        // Nothing says that it is the drive which the guest got.
        None => one.is_storage && is_named(one) && xml.is_ours(),
    };
    let all = presences(&FsRoot::live()?, xml)?.into_iter();
    let new = all.filter(|one| named.contains(&one.bdf) && is_new(one));
    Ok(new.map(|one| one.bdf).collect())
}

/// Refuses drives that are recorded for other domains, which had them at other addresses.
pub(crate) fn refuse_of_others(name: &str, functions: &[Bdf], held: &Occupancy) -> Result<()> {
    let others = held.domains.iter().filter(|other| other.domain != name);
    let moved = others.flat_map(|other| other.moved.iter().map(move |one| (other, one)));
    let mut taken = moved.filter(|(_, one)| one.is_drive && functions.contains(&one.bdf));
    let Some((other, Moved { bdf, was, .. })) = taken.next() else { return Ok(()) };
    let (own, of) = (word(name), word(&other.domain));
    let hint = format!(
        "`gpuvm set {own} --no-nvme` takes it from `{name}`, and then `gpuvm set {of} --nvme {bdf}` \
         gives it back; `gpuvm set {of} --no-nvme` gives it up"
    );
    let (name, of) = (name.to_owned(), other.domain.clone());
    Err(IdentityError::OfAnother { name, bdf: *bdf, of, was: *was }.hint(hint))
}

/// Refuses to start a guest with devices that are missing at their addresses and found at others.
pub(crate) fn refuse_moved(xml: &DomainXml, root: &FsRoot) -> Result<()> {
    let name = xml.name();
    let all = presences(root, xml)?;
    let moved = all.iter().filter(|one| one.now.is_none() && !one.places.is_empty());
    let lines: String = moved.map(|one| format!("\n  {}", one.differs(&name))).collect();
    if lines.is_empty() {
        return Ok(());
    }
    let hint = hint(&name, &all);
    Err(IdentityError::Other { name, lines }.hint(hint))
}

/// Refuses to start a guest with devices that differ from the recorded ones, and with a drive that
/// does not report its identity. A proven identity is remembered for this boot, since vfio-pci
/// reports none. Returns drives of a guest of ours without a record.
pub(crate) fn refuse_others(xml: &DomainXml, root: &FsRoot) -> Result<Vec<Presence>> {
    let name = xml.name();
    let all = presences(root, xml)?;
    let others = all.iter().filter(|one| one.is_other());
    let lines: String = others.map(|one| format!("\n  {}", one.differs(&name))).collect();
    if !lines.is_empty() {
        let hint = hint(&name, &all);
        return Err(IdentityError::Other { name, lines }.hint(hint));
    }
    for one in &all {
        let Some(recorded) = &one.recorded else { continue };
        if one.likeness == Some(Likeness::Unproven) && one.is_storage {
            let has_others = one.now.as_ref().is_some_and(|now| recorded.has_other_namespaces(now));
            let (bdf, recorded) = (one.bdf, Box::new(recorded.clone()));
            if has_others {
                let hint = format!("`gpuvm set {} --nvme {bdf}` accepts them", word(&name));
                return Err(IdentityError::Namespaces { name, bdf, recorded }.hint(hint));
            }
            let driver = one.driver.clone().unwrap_or_else(|| "none".to_owned());
            let hint = format!(
                "`gpuvm device release {bdf}` returns it to its driver, which reads the serial \
                 number"
            );
            return Err(IdentityError::Unproven { name, bdf, driver, recorded }.hint(hint));
        }
    }
    all.iter().for_each(|one| identity::remember(root, one.bdf));
    let is_ours = xml.is_ours();
    let unknown = all.into_iter();
    let unknown = unknown.filter(|one| is_ours && one.is_storage && one.recorded.is_none());
    Ok(unknown.collect())
}

/// The same for a start on this machine, with a warning for unrecorded devices.
pub(crate) fn refuse_others_here(xml: &DomainXml, world: &World) -> Result<()> {
    let name = xml.name();
    for one in refuse_others(xml, &FsRoot::live()?)? {
        let is_named = one.now.is_some_and(|now| now.is_named());
        warn_of_unknown(world, &name, one.bdf, is_named);
    }
    Ok(())
}

/// Warns of a drive of which a guest's definition does not say which it is. `is_named`: it reports
/// that now.
fn warn_of_unknown(world: &World, name: &str, bdf: Bdf, is_named: bool) {
    let first = if is_named {
        String::new()
    } else {
        format!("`gpuvm device release {bdf}` returns it to its driver, which can read it; then ")
    };
    world.warning(&format!(
        "nothing records which drive {bdf} of domain `{name}` is, so after a change of hardware it \
         may get another: {first}`gpuvm set {} --nvme {bdf}` records it",
        word(name)
    ));
}

/// The identities of functions of this machine, for a new guest's record; drives that do not report
/// theirs are named in a warning.
pub(crate) fn known_or_warn(
    world: &World,
    name: &str,
    functions: &[Bdf],
) -> Result<Vec<KnownDevice>> {
    let known = known(world, functions, &[])?;
    warn_of_nameless(world, name, functions, &known)?;
    Ok(known)
}

/// Warns of drives that a new record does not name, because they do not report their serial number.
fn warn_of_nameless(
    world: &World,
    name: &str,
    functions: &[Bdf],
    known: &[KnownDevice],
) -> Result<()> {
    if functions.is_empty() || world.is_recorded() || !world.has_guests_here()? {
        return Ok(());
    }
    let root = FsRoot::live()?;
    for &bdf in functions {
        let is_known = known.iter().any(|one| one.bdf == bdf && one.identity.is_named());
        let present = if is_known { None } else { identity::read(&root, bdf)? };
        if present.is_some_and(|now| now.is_storage() && !now.identity.is_named()) {
            warn_of_unknown(world, name, bdf, false);
        }
    }
    Ok(())
}
