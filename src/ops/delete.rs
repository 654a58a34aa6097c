//! `delete`: deletes the domain, its NVRAM and saved state, and the disks made for it.

use crate::apply::{DeviceStep, DomainStep, Step, is_of_this_machine, mac_owner, tpm_stays};
use crate::autostart;
use crate::change::{Change, Part};
use crate::claim::give_back;
use crate::domain::DomainXml;
use crate::domain::guest::{Made, Role};
use crate::domain::view::View;
use crate::domain_history::boot;
use crate::drives;
use crate::error::{Result, crashed, dump_hint};
use crate::gpu_states;
use crate::history::{guest, measured};
use crate::hypervisor::file_users::Uses;
use crate::hypervisor::{DomainState, Hypervisor, Kept, Lease, XmlOf};
use crate::identity::FileId;
use crate::lookup::find;
use crate::made::{self, Fate, Proof};
use crate::pages;
use crate::partition;
use crate::reporter::{Deed, Question};
use crate::shell::word;
use crate::world::World;
use std::path::{Path, PathBuf};

/// A request to delete a domain.
#[derive(Debug, Clone)]
pub struct Delete {
    /// The domain.
    pub name: String,
    /// Whether its data disks stay.
    pub keep_data: bool,
}

/// Plans a deletion; its data are the remains on drives that stay, a line each.
pub fn delete(world: &World, wanted: &Delete) -> Result<Change<Vec<String>>> {
    let Delete { name, keep_data } = wanted;
    let hypervisor = &*world.hypervisor()?;
    let summary = find(hypervisor, name)?;
    let xml = hypervisor.xml(name, XmlOf::Inactive)?;
    let parsed = DomainXml::parse(&xml)?;
    let has_nvram = parsed.root().child("os").is_some_and(|os| os.child("nvram").is_some());
    let view = View::of(&parsed, None)?;
    let mut steps = Vec::new();
    if summary.state.is_active() {
        steps.push(DomainStep::End { name: name.clone(), uuid: Some(summary.uuid.clone()) }.into());
    }
    let here = hypervisor.machine().is_here();
    // Resources that another hypervisor of this machine made for a domain of this UUID are not
    // ours.
    let made_on = world.owner(&summary.uuid, hypervisor).other_hypervisor();
    if made_on.is_none() {
        steps.extend(partition_once_gone(world, hypervisor, name, &parsed, !steps.is_empty()));
    }
    steps.extend(used_gpus(world, hypervisor, name, &parsed, summary.state.is_active())?);
    if summary.persistent {
        steps.push(DomainStep::Undefine { name: name.clone(), xml }.into());
    }
    if made_on.is_none() {
        steps.extend(give_back(&parsed, world)?);
        steps.extend(pages::give_back(&parsed, world)?);
        steps.extend(autostart::without(name, hypervisor, world)?);
    }
    // An address on another machine may exist on this one by chance.
    if here {
        steps.extend(leases(hypervisor, &view, &summary.uuid, world));
    }
    let drops_nvram = summary.persistent && has_nvram && made_on.is_none();
    let made = made_for(&parsed, &summary.uuid, here, world);
    let mut warnings = beside(&parsed, made_on.is_none(), hypervisor, world)?;
    if summary.state == DomainState::Crashed {
        warnings.push(format!("{}, which is lost; {}", crashed(name), dump_hint(name)));
    }
    let mut stays: Vec<String> = made_on.iter().map(|uri| others(name, uri)).collect();
    let uses = if made.is_empty() && !drops_nvram && !parsed.is_copy() {
        Uses::default()
    } else {
        Uses::read(hypervisor)?
    };
    let proof = Proof::of(&parsed, &summary.uuid, &uses, hypervisor, world.state());
    let deleted = made.iter().filter(|disk| !(*keep_data && disk.role == Role::Data));
    for (path, fate) in proof.fates(&parsed, &deleted.collect::<Vec<_>>()) {
        match fate {
            Fate::Goes(step) => {
                let names = if here { made::other_names(Path::new(&path)) } else { 0 };
                warnings.extend(made::keep_data(&path, names));
                steps.push(step);
            }
            Fate::Gone => {}
            Fate::Stays(why) => stays.push(why),
        }
    }
    stays.extend(made::of_copy(&parsed, &summary.uuid, &uses));
    // A guest on another machine may have been one of this machine once.
    let has_records = here && made_on.is_none();
    steps.extend(records(world, &summary.uuid, has_records)?);
    let is_ours = summary.persistent && made_on.is_none();
    let guest = (name.as_str(), &*summary.uuid);
    for fate in firmware(&parsed, guest, (drops_nvram, is_ours), (&uses, hypervisor)) {
        fate.map_or_else(|why| stays.push(why), |step| steps.push(step));
    }
    // Last, since it cannot be undone.
    steps.extend(measurements(world, &summary.uuid, has_records));
    let question = Some(Question::Name { deed: Deed::Delete, kind: "domain", name: name.clone() });
    let again = format!("gpuvm delete {}", word(name));
    let on_drives = drives::kept(&parsed, hypervisor)?;
    let gives_back = steps.iter().any(|step| matches!(step, Step::Device(DeviceStep::Bind { .. })));
    let mut change = Change::new("delete", name, steps, on_drives);
    change.parts.extend(gives_back.then_some(Part::Reports));
    warnings.append(&mut stays);
    Ok(Change { warnings, question, again, ..change })
}

/// The fate of the firmware settings and the TPM state of a domain: the step that deletes them, or
/// why they stay. `drops_nvram`: the definition has settings; `is_ours`: this hypervisor made it.
fn firmware(
    xml: &DomainXml,
    (name, uuid): (&str, &str),
    (drops_nvram, is_ours): (bool, bool),
    (uses, hypervisor): (&Uses, &dyn Hypervisor),
) -> Vec<std::result::Result<Step, String>> {
    let drop = |tpm| {
        Step::Domain(DomainStep::DropNvram {
            name: name.to_owned(),
            xml: xml.text().to_owned(),
            tpm,
        })
    };
    let mut fates = Vec::new();
    if drops_nvram {
        let path = xml.nvram().map(PathBuf::from);
        let is_absent = hypervisor.machine().is_here()
            && path.is_some_and(|path| matches!(FileId::at(&path), Ok(None)));
        match made::nvram_stays(xml, uuid, uses, hypervisor) {
            Some(_) if is_absent => {}
            Some(why) => fates.push(Err(why)),
            None => fates.push(Ok(drop(false))),
        }
    }
    if is_ours && xml.has_tpm() {
        fates.push(tpm_stays(xml, hypervisor).map_or_else(|| Ok(drop(true)), Err));
    }
    fates
}

/// The disks that were made for a domain; `here`: also images left by a conversion, which no
/// definition names any more.
fn made_for(xml: &DomainXml, uuid: &str, here: bool, world: &World) -> Vec<Made> {
    let mut made = xml.made();
    let left = if here { guest::made(world.state(), uuid) } else { Vec::new() };
    let is_known = |old: &Made| made.iter().any(|known| known.path == old.path);
    let left: Vec<Made> =
        left.into_iter().filter(|old| old.volume.is_some() && !is_known(old)).collect();
    made.extend(left);
    made
}

/// The step that removes the measurements of a domain, if this machine has its records. It is
/// deleted all the same where they cannot be read.
fn measurements(world: &World, uuid: &str, has_records: bool) -> Option<Step> {
    let found = has_records.then(|| measured::forget(world.state(), uuid))?;
    found.unwrap_or_else(|error| {
        world.warning(&format!("{error}, so the measurements of this domain stay"));
        None
    })
}

/// The steps that remove the other records of a domain, if this machine has them. Its history is of
/// no use any more, and may contain passwords.
fn records(world: &World, uuid: &str, has_records: bool) -> Result<Vec<Step>> {
    if !has_records {
        return Ok(Vec::new());
    }
    let mut steps: Vec<Step> = guest::forget(world.state(), uuid)?.into_iter().collect();
    let history = world.history(uuid)?;
    if !history.entries.is_empty() {
        steps.extend(history.give_back_pages(&boot()?));
        steps.extend(history.forget_all());
    }
    Ok(steps)
}

/// Returns the steps for the NVLink partition of a removed guest; the running guest may have other
/// GPUs than its definition. If this is unknown, the deletion continues.
fn partition_once_gone(
    world: &World,
    hypervisor: &dyn Hypervisor,
    name: &str,
    defined: &DomainXml,
    runs: bool,
) -> Vec<Step> {
    let plan = || -> Result<Vec<Step>> {
        if runs {
            let live = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?;
            partition::once_gone(world, &live, true)
        } else {
            partition::once_gone(world, defined, false)
        }
    };
    plan().unwrap_or_else(|error| {
        let todo = "`gpuvm fabric show` tells whether an NVLink partition stays active";
        world.warning(&format!("{error}; {todo}"));
        Vec::new()
    })
}

/// Returns the steps that record that a guest has had its GPUs: those of its definition, and those
/// that it runs with.
fn used_gpus(
    world: &World,
    hypervisor: &dyn Hypervisor,
    name: &str,
    defined: &DomainXml,
    runs: bool,
) -> Result<Vec<Step>> {
    if !runs {
        return gpu_states::once_gone(world, &[defined]);
    }
    let live = DomainXml::parse(&hypervisor.xml(name, XmlOf::Live)?)?;
    gpu_states::once_gone(world, &[defined, &live])
}

/// Returns the warning that a domain has snapshots, of which libvirt knows nothing afterwards;
/// images that stay have them.
fn snapshots(hypervisor: &dyn Hypervisor, name: &str) -> Result<Vec<String>> {
    let snapshots = hypervisor.keeps(name)?.into_iter().filter(|kept| !kept.starts);
    let said =
        |kept: Kept| format!("{} of domain `{name}` cannot be reverted to any more", kept.what);
    Ok(snapshots.map(said).collect())
}

/// Returns the warnings of its snapshots, and of settings kept for every boot; `is_ours`: its
/// resources are not another hypervisor's.
fn beside(
    xml: &DomainXml,
    is_ours: bool,
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<Vec<String>> {
    let mut warnings = snapshots(hypervisor, &xml.name())?;
    let uuid = xml.uuid().filter(|_| xml.is_ours()).unwrap_or_default();
    if !uuid.is_empty() && guest::creation_options(world.state(), &uuid).is_none() {
        let stay = |why| format!("{why}: what they have of `{}` stays", xml.name());
        warnings.extend(world.unread_records_of(&xml.name(), &uuid).map(stay));
    }
    if is_ours {
        // It is deleted all the same where the host cannot be read.
        let stays = autostart::stays_at_boot(xml, None, hypervisor, world);
        warnings.extend(stays.unwrap_or_else(|error| vec![error.to_string()]));
    }
    Ok(warnings)
}

/// Returns the warning that another hypervisor of this machine made the resources in this domain's
/// metadata.
fn others(name: &str, uri: &str) -> String {
    format!(
        "disks, devices, pages and history of domain `{name}` stay: they are of the domain of this \
         UUID at {uri}; `gpuvm delete {} --connect {}` gives them back",
        word(name),
        word(uri)
    )
}

/// Returns the steps that release a guest's DHCP leases, except those of a MAC address that another
/// domain has, too. A failure does not stop the deletion: leases expire.
fn leases(hypervisor: &dyn Hypervisor, view: &View, uuid: &str, world: &World) -> Vec<Step> {
    let mut steps = Vec::new();
    for nic in &view.nics {
        let given = hypervisor.leases(&nic.source, &nic.mac).unwrap_or_else(|error| {
            world.warning(&error.to_string());
            Vec::new()
        });
        for Lease { server, ip, mac } in given {
            let stays = |why: String| {
                world.note(&format!("the lease of {ip} stays until it ends: {why}"));
            };
            match mac_owner(hypervisor, &mac, Some(uuid)) {
                _ if !is_of_this_machine(server) => {
                    stays("its network's DHCP server is not on this machine".into());
                }
                Ok(None) => steps.push(DomainStep::ReleaseLease { server, ip, mac }.into()),
                Ok(Some(owner)) => {
                    stays(format!("domain `{}` has the MAC address {mac}", owner.name));
                }
                Err(error) => stays(error.to_string()),
            }
        }
    }
    steps
}
