//! `drive release-array`: stops an unused data array, and records how to restore it.

mod users;

use super::error::ArrayVerbError;
use super::{FSTAB, named};
use crate::apply::Step;
use crate::apply::array::{
    ArrayStep, Assembly, Marked, Mounting, Names, content, mark_fstab, mark_mdadm_conf, signature,
};
use crate::change::Change;
use crate::command::output;
use crate::discover::arrays::{array, layout};
use crate::discover::device_users::{Mount, Uses};
use crate::discover::drives::{best_id, stable_ids};
use crate::discover::node::kernel_name;
use crate::discover::released::{self, FORMAT, Member, MountedAt, Released, VERSION};
use crate::error::{Coded as _, Result};
use crate::fsroot::FsRoot;
use crate::hypervisor::Hypervisor;
use crate::initramfs::renewal;
use crate::input;
use crate::reporter::Deed;
use crate::session::Session;
use crate::shell::word;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use users::Found;

/// Files of mdadm's configuration, the first existing one counts (mdadm.conf(5)); Debian's is
/// created if there is none.
const CONFIGS: [&str; 2] = ["/etc/mdadm/mdadm.conf", "/etc/mdadm.conf"];

/// An array that is to be released.
#[derive(Debug, Clone)]
pub struct ReleaseArray {
    /// A path of its device.
    pub device: PathBuf,
    /// Whether it is unmounted first.
    pub unmount: bool,
    /// Whether the initramfs is rebuilt.
    pub initramfs: bool,
}

/// Releases an array; returns its name, or none: nothing was done.
pub fn release_array(session: &mut Session<'_>, wanted: &ReleaseArray) -> Result<Option<String>> {
    // A path that is no device is refused without a hypervisor.
    let device = wanted.device.to_string_lossy();
    let name = kernel_name(&wanted.device).ok_or_else(|| {
        ArrayVerbError::NoDevice { device: device.to_string() }
            .refusal("`cat /proc/mdstat` shows the arrays that run")
    })?;
    let again = format!("gpuvm drive release-array {}", word(&device));
    let done = session.run(|world| -> Result<_> {
        let steps = plan(wanted, &name, &*world.hypervisor()?)?;
        let what = ("drive release-array", name.as_str());
        let change = named(what, (Deed::Release, "array", &name), steps, ());
        Ok(Change { again: again.clone(), ..change })
    })?;
    Ok(done.made.then_some(name))
}

/// The steps, or why the array cannot be released.
fn plan(wanted: &ReleaseArray, name: &str, hypervisor: &dyn Hypervisor) -> Result<Vec<Step>> {
    let root = FsRoot::live()?;
    let Some(array) = array(&root, name)? else {
        return Err(ArrayVerbError::NotRunning { name: name.to_owned() }
            .hint("`cat /proc/mdstat` shows the arrays that run"));
    };
    let uses = Uses::read(&root)?;
    let mounts: Vec<Mount> = uses.mounts_of(&root, name)?.into_iter().cloned().collect();
    let found = Found { root: &root, array: &array, uses: &uses, mounts: &mounts };
    found.refuse_system()?;
    let mut reasons = found.shape();
    reasons.extend(found.users(wanted.unmount)?);
    reasons.extend(found.domains(hypervisor)?);
    // Processes last: those of domains were already listed as such.
    if reasons.is_empty() {
        reasons.extend(found.processes()?);
    }
    if !reasons.is_empty() {
        let lines: String = reasons.iter().map(|reason| format!("\n  {reason}")).collect();
        return Err(ArrayVerbError::InUse { name: name.to_owned(), lines }
            .hint("stop what uses it; --unmount unmounts file systems that nothing has open"));
    }
    if root.exists(&released::file(name)) {
        return Err(ArrayVerbError::AlreadyReleased { file: released::file(name) }.hint(format!(
            "`gpuvm drive restore-array {name}` restores that one",
            name = word(name)
        )));
    }
    let mut steps = steps(&found)?;
    if wanted.initramfs {
        steps.push(renewal()?);
    }
    Ok(steps)
}

/// Returns the steps that release an unused array: first the files that refer to it, so that
/// nothing brings it back.
fn steps(found: &Found<'_>) -> Result<Vec<Step>> {
    let name = &found.array.name;
    let device = format!("/dev/{name}");
    let detail = output(&["mdadm", "--detail", "--export", &device], 60)?;
    let value = |key: &str| {
        let line = detail.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.filter(|value| !value.is_empty()).map(str::to_owned)
    };
    let uuid = value("MD_UUID")
        .ok_or_else(|| ArrayVerbError::NoUuid { device: device.clone() }.refusal(""))?;
    let file_system = signature(&device)?;
    let md_name = value("MD_NAME");
    let own_names = md_name.iter().flat_map(|name| {
        [Some(name.clone()), name.split_once(':').map(|(_, name)| name.to_owned())]
    });
    let names = Names {
        paths: paths(&device),
        array_uuid: uuid.clone(),
        array_names: own_names.flatten().collect(),
        fs_uuid: file_system.as_ref().and_then(|fs| fs.uuid.clone()),
        fs_label: file_system.as_ref().and_then(|fs| fs.label.clone()),
    };
    let fstab_text = content(Path::new(FSTAB))?;
    let fstab = mark_fstab(fstab_text.as_deref().unwrap_or_default(), name, &names);
    let there = CONFIGS.iter().find(|path| Path::new(path).exists());
    let config: PathBuf = there.unwrap_or(&CONFIGS[0]).into();
    let config_text = content(&config)?;
    let marked = mark_mdadm_conf(config_text.as_deref().unwrap_or_default(), name, &names);

    let members = members(found)?;
    let mut mounts: Vec<Mounting> = Vec::new();
    for mount in found.mounts {
        let options = options(&fstab.lines, &mount.at).unwrap_or_else(|| mount.options.clone());
        let (at, kind) = (mount.at.clone(), mount.kind.clone());
        mounts.push(Mounting { device: device.clone(), at, kind, options });
    }
    let record = Released {
        format: FORMAT.to_owned(),
        version: VERSION,
        name: name.clone(),
        uuid: uuid.clone(),
        md_name,
        level: found.array.level.clone(),
        metadata: found.array.metadata.clone(),
        layout: layout(&found.array.level, found.array.layout).unwrap_or_default(),
        chunk_bytes: Some(found.array.chunk_bytes).filter(|chunk| *chunk > 0),
        bytes: found.array.bytes,
        members: members.clone(),
        file_system,
        mounts: mounts
            .iter()
            .map(|m| MountedAt {
                at: m.at.clone(),
                kind: m.kind.clone(),
                options: m.options.clone(),
            })
            .collect(),
        fstab: fstab.lines.clone(),
        mdadm_conf: config.display().to_string(),
        array_lines: marked.lines.clone(),
    };
    let mut steps = texts(&record, (fstab_text, fstab), (config_text, marked));
    // The innermost mount is unmounted first.
    steps.extend(mounts.into_iter().rev().map(ArrayStep::Unmount));
    let members = members.into_iter().map(|member| member.id).collect();
    steps.push(ArrayStep::Stop(Assembly { device, uuid, members, degraded: false }));
    Ok(steps.into_iter().map(Step::from).collect())
}

/// The steps on files: the record for restoring the array, and those that refer to it.
fn texts(
    record: &Released,
    (fstab_text, fstab): (Option<String>, Marked),
    (config_text, marked): (Option<String>, Marked),
) -> Vec<ArrayStep> {
    let mut steps = vec![ArrayStep::ReplaceText {
        path: Path::new("/").join(released::file(&record.name)),
        before: None,
        after: Some(serde_json::to_string_pretty(record).expect("plain values") + "\n"),
        what: "keep what restores the array".to_owned(),
        units: false,
    }];
    if !fstab.lines.is_empty() {
        steps.push(ArrayStep::ReplaceText {
            path: FSTAB.into(),
            before: fstab_text,
            after: Some(fstab.text),
            what: format!("comment `{}`", fstab.lines.join("`, `")),
            units: true,
        });
    }
    let what = if marked.lines.is_empty() {
        "add a line that keeps the array from being assembled".to_owned()
    } else {
        format!(
            "comment `{}`, and add a line that keeps the array from being assembled",
            marked.lines.join("`, `")
        )
    };
    steps.push(ArrayStep::ReplaceText {
        path: record.mdadm_conf.clone().into(),
        before: config_text,
        after: Some(marked.text),
        what,
        units: false,
    });
    steps
}

/// The options that fstab's lines name for a mount point.
fn options(lines: &[String], at: &str) -> Option<String> {
    let line = lines.iter().find(|line| line.split_whitespace().nth(1) == Some(at))?;
    line.split_whitespace().nth(3).map(str::to_owned)
}

/// Returns the members by persistent names.
fn members(found: &Found<'_>) -> Result<Vec<Member>> {
    let ids = stable_ids(found.root)?;
    let named = found.array.members.iter().map(|(_, name)| {
        let id = ids
            .get(name)
            .and_then(|ids| best_id(ids))
            .ok_or_else(|| ArrayVerbError::MemberWithoutId { name: name.clone() }.refusal(""))?;
        Ok(Member { id: format!("/dev/disk/by-id/{id}"), name: name.clone() })
    });
    named.collect()
}

/// Every path below /dev that leads to a device.
fn paths(device: &str) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = [device.to_owned()].into();
    let directories = [
        "/dev/md",
        "/dev/mapper",
        "/dev/disk/by-id",
        "/dev/disk/by-uuid",
        "/dev/disk/by-label",
        "/dev/disk/by-path",
        "/dev/disk/by-diskseq",
    ];
    for path in directories.iter().filter_map(|dir| input::list(Path::new(dir)).ok()).flatten() {
        if path.canonicalize().is_ok_and(|real| real == Path::new(device)) {
            found.insert(path.display().to_string());
        }
    }
    found
}
