//! `drive release-array`: stops a data array that nothing uses, and keeps what restores it.

use super::named;
use crate::apply::Step;
use crate::apply::array::{
    ArrayStep, Assembly, Mounting, Names, content, mark_fstab, mark_mdadm_conf, output, signature,
};
use crate::cli::args::ReleaseArrayArgs;
use crate::cli::change::asking;
use crate::cli::context::Context;
use crate::cli::error::{Coded, EXIT_DONE};
use crate::discover::arrays::{Array, array, layout};
use crate::discover::drives::{best_id, kernel_name, stable_ids};
use crate::discover::holders::{Mount, Uses};
use crate::discover::openers::{Sought, openers};
use crate::discover::released::{self, FORMAT, Member, MountedAt, Released, VERSION};
use crate::fsroot::FsRoot;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::uses::Uses as Disks;
use crate::shell::word;
use crate::topology::DriveUse;
use gpuvm_ops::change::Change;
use gpuvm_ops::drives::error::ArrayVerbError;
use gpuvm_ops::reporter::Deed;
use gpuvm_ops::session::Session;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Files of mdadm's configuration, the first that is there counts (mdadm.conf(5)); Debian's is made where none is.
const CONFIGS: [&str; 2] = ["/etc/mdadm/mdadm.conf", "/etc/mdadm.conf"];
/// The table of file systems.
pub const FSTAB: &str = "/etc/fstab";
/// What writes the initramfs again.
pub const INITRAMFS: &str = "update-initramfs -u -k all";

/// Runs the verb.
pub fn run(args: &ReleaseArrayArgs, cx: &Context<'_>) -> anyhow::Result<u8> {
    cx.refuse_recorded("drive release-array")?;
    cx.refuse_elsewhere("drive release-array")?;
    let device = args.device.display();
    let name = kernel_name(&args.device).ok_or_else(|| {
        ArrayVerbError::NoDevice { device: device.to_string() }
            .refusal("`cat /proc/mdstat` shows the arrays that run")
    })?;
    let common = &args.common;
    let (yes, dry_run) = (common.change.yes, common.change.dry_run);
    let mut session = Session::begin(cx, asking(&common.change.lock, (yes, dry_run)))?;
    let done = session.run(|world| -> anyhow::Result<_> {
        let steps = plan(args, &name, &*world.hypervisor()?)?;
        let what = ("drive release-array", name.as_str());
        let change = named(what, (Deed::Release, "array", &name), steps, ());
        let device = args.device.to_string_lossy();
        Ok(Change { again: format!("gpuvm drive release-array {}", word(&device)), ..change })
    })?;
    if !done.made {
        return Ok(EXIT_DONE);
    }
    let record = released::file(&name);
    cx.output.progress(&format!("array {name} is released; /{record} keeps what restores it"));
    tell_initramfs(common.initramfs, cx);
    Ok(EXIT_DONE)
}

/// Says what is left to do where the initramfs was not written again.
pub fn tell_initramfs(is_done: bool, cx: &Context<'_>) {
    if !is_done {
        cx.output.progress(&format!(
            "the initramfs still has the old mdadm.conf until `{INITRAMFS}` is run (--initramfs runs it)"
        ));
    }
}

/// The steps, or why the array cannot be released.
fn plan(
    args: &ReleaseArrayArgs,
    name: &str,
    hypervisor: &dyn Hypervisor,
) -> anyhow::Result<Vec<Step>> {
    let root = FsRoot::live()?;
    let Some(array) = array(&root, name)? else {
        return Err(ArrayVerbError::NotRunning { name: name.to_string() }
            .hint("`cat /proc/mdstat` shows the arrays that run"));
    };
    let uses = Uses::read(&root)?;
    let mounts: Vec<Mount> = uses.mounts_of(&root, name)?.into_iter().cloned().collect();
    let found = Found { root: &root, array: &array, uses: &uses, mounts: &mounts };
    found.refuse_system()?;
    let mut reasons = found.shape();
    reasons.extend(found.users(args.unmount)?);
    reasons.extend(found.domains(hypervisor)?);
    // Processes last: those of domains are theirs.
    if reasons.is_empty() {
        reasons.extend(found.processes()?);
    }
    if !reasons.is_empty() {
        let lines: String = reasons.iter().map(|reason| format!("\n  {reason}")).collect();
        return Err(ArrayVerbError::InUse { name: name.to_string(), lines: lines.to_string() }
            .hint("stop what uses it; --unmount unmounts file systems that nothing has open"));
    }
    if root.exists(&released::file(name)) {
        return Err(ArrayVerbError::AlreadyReleased { file: released::file(name).to_string() }
            .hint(format!(
                "`gpuvm drive restore-array {name}` restores that one",
                name = word(name)
            )));
    }
    let mut steps = steps(&found)?;
    if args.common.initramfs {
        steps.push(Step::Array(ArrayStep::UpdateInitramfs));
    }
    Ok(steps)
}

/// Is an array with what is known of its users.
struct Found<'a> {
    /// This machine.
    root: &'a FsRoot,
    /// The array.
    array: &'a Array,
    /// What the host uses.
    uses: &'a Uses,
    /// Where the array is mounted.
    mounts: &'a [Mount],
}

impl Found<'_> {
    /// Refuses an array without which the host does not come up.
    fn refuse_system(&self) -> anyhow::Result<()> {
        let name = &self.array.name;
        let names = std::iter::once(name).chain(&self.array.partitions);
        for name in names {
            let uses = self.uses.of(self.root, name)?;
            if let Some(used) = uses.iter().find(|used| used.is_system()) {
                return Err(ArrayVerbError::OfSystem {
                    name: self.array.name.to_string(),
                    why: used.says(name).to_string(),
                }
                .hint("the host does not come up without it, so it is never released"));
            }
        }
        Ok(())
    }

    /// What of the array's shape could not be restored.
    fn shape(&self) -> Vec<String> {
        let Array { name, level, metadata, members, wanted, action, partitions, .. } = self.array;
        let mut reasons = Vec::new();
        if !metadata.starts_with(|c: char| c.is_ascii_digit()) {
            reasons.push(format!(
                "{name} has superblocks of kind `{metadata}`, which are not restored"
            ));
        }
        if members.len() != *wanted || members.iter().any(|(slot, _)| slot.is_none()) {
            reasons.push(format!(
                "{name} wants {wanted} members and has {}, spares and failed ones counted: make it whole first",
                members.len()
            ));
        }
        if !matches!(action.as_str(), "" | "idle" | "frozen") {
            reasons.push(format!("{name} is under {action}, which would be broken off"));
        }
        if let Err(number) = layout(level, self.array.layout) {
            reasons.push(format!("{name} has layout {number}, which is not known"));
        }
        if !partitions.is_empty() {
            reasons.push(format!(
                "{name} has partitions ({}), which are not restored",
                partitions.join(", ")
            ));
        }
        reasons
    }

    /// Who of the host uses it.
    fn users(&self, unmount: bool) -> anyhow::Result<Vec<String>> {
        let name = &self.array.name;
        let mut reasons = Vec::new();
        for used in self.uses.of(self.root, name)? {
            match &used {
                DriveUse::Mounted { .. } if unmount => {}
                used => reasons.push(used.says(name)),
            }
        }
        for mount in self.mounts.iter().filter(|mount| mount.root != "/") {
            reasons.push(format!("{} of it is mounted at {}", mount.root, mount.at));
        }
        let below = |path: &str| self.mount_above(Path::new(path)).is_some();
        for other in self.uses.mounts().iter().filter(|other| below(&other.at)) {
            if !self.mounts.iter().any(|own| own.at == other.at) {
                reasons.push(format!("{} is mounted at {}, below it", other.source, other.at));
            }
        }
        let swaps = self.root.read("proc/swaps")?.unwrap_or_default();
        let files = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
        reasons
            .extend(files.filter(|file| below(file)).map(|file| format!("{file} is swap space")));
        for device in self.root.names("sys/class/block")? {
            let backing = self.root.read(&format!("sys/class/block/{device}/loop/backing_file"))?;
            if let Some(file) = backing.filter(|file| below(file)) {
                reasons.push(format!("{file} is loop device {device}"));
            }
        }
        Ok(reasons)
    }

    /// The mount point of the array that a path is below.
    fn mount_above(&self, path: &Path) -> Option<&Mount> {
        self.mounts.iter().find(|mount| path.starts_with(&mount.at))
    }

    /// Guests that have a disk on it, or one of its members.
    fn domains(&self, hypervisor: &dyn Hypervisor) -> anyhow::Result<Vec<String>> {
        let disks = Disks::read(hypervisor)?;
        let members: BTreeSet<&str> =
            self.array.members.iter().map(|(_, member)| member.as_str()).collect();
        let mut reasons = Vec::new();
        for (domain, files) in &disks.files() {
            for file in files {
                let real = file.canonicalize().unwrap_or_else(|_| file.clone());
                let is_device = kernel_name(file).is_some_and(|device| {
                    device == self.array.name || members.contains(device.as_str())
                });
                if is_device || self.mount_above(&real).is_some() {
                    reasons.push(format!("domain `{domain}` has {} as a disk", file.display()));
                }
            }
        }
        for pool in hypervisor.storage().pools()?.into_iter().filter(|pool| pool.active) {
            let path = pool.path.unwrap_or_default();
            let real = path.canonicalize().unwrap_or(path);
            if self.mount_above(&real).is_some() {
                let name = &pool.name;
                reasons.push(format!(
                    "pool `{name}` is active on {}: `virsh pool-destroy {name}` stops it and leaves its files",
                    real.display(), name = word(name)));
            }
        }
        Ok(reasons)
    }

    /// Processes that have it, or something on it, open.
    fn processes(&self) -> anyhow::Result<Vec<String>> {
        let name = &self.array.name;
        let number = self.root.read(&format!("sys/class/block/{name}/dev"))?.unwrap_or_default();
        let path = format!("/dev/{name}");
        let mut sought = vec![Sought::Device(&number, &path)];
        sought.extend(self.mounts.iter().map(|m| Sought::FileSystem(&m.number, &m.at)));
        let found = openers(self.root, &sought)?.into_iter().map(|(at, opener)| match at {
            0 => format!("{opener} has {path} open"),
            at => format!("{opener} has something open on {}", self.mounts[at - 1].at),
        });
        Ok(found.collect())
    }
}

/// What releases an array that nothing uses: what speaks of it first, so that whatever comes after finds it gone.
fn steps(found: &Found<'_>) -> anyhow::Result<Vec<Step>> {
    let name = &found.array.name;
    let device = format!("/dev/{name}");
    let detail = output(&["mdadm", "--detail", "--export", &device], 60)?;
    let value = |key: &str| {
        let line = detail.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.filter(|value| !value.is_empty()).map(str::to_owned)
    };
    let uuid = value("MD_UUID")
        .ok_or_else(|| ArrayVerbError::NoUuid { device: device.to_string() }.refusal(""))?;
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
    let mut steps = vec![ArrayStep::ReplaceText {
        path: Path::new("/").join(released::file(name)),
        before: None,
        after: Some(serde_json::to_string_pretty(&record)? + "\n"),
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
    let what = match marked.lines.is_empty() {
        true => "add a line that keeps the array from being assembled".to_owned(),
        false => format!(
            "comment `{}`, and add a line that keeps the array from being assembled",
            marked.lines.join("`, `")
        ),
    };
    let after = Some(marked.text);
    let (before, path) = (config_text, config);
    steps.push(ArrayStep::ReplaceText { path, before, after, what, units: false });
    // The innermost mount goes first.
    steps.extend(mounts.into_iter().rev().map(ArrayStep::Unmount));
    let members = members.into_iter().map(|member| member.id).collect();
    steps.push(ArrayStep::Stop(Assembly { device, uuid, members, degraded: false }));
    Ok(steps.into_iter().map(Step::Array).collect())
}

/// The options that fstab's lines name for a mount point.
fn options(lines: &[String], at: &str) -> Option<String> {
    let line = lines.iter().find(|line| line.split_whitespace().nth(1) == Some(at))?;
    line.split_whitespace().nth(3).map(str::to_owned)
}

/// The members by names that stay over boots.
fn members(found: &Found<'_>) -> anyhow::Result<Vec<Member>> {
    let ids = stable_ids(found.root)?;
    let named = found.array.members.iter().map(|(_, name)| {
        let id = ids.get(name).and_then(|ids| best_id(ids)).ok_or_else(|| {
            ArrayVerbError::MemberWithoutId { name: name.to_string() }.refusal("")
        })?;
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
    for entry in
        directories.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten()
    {
        if entry.path().canonicalize().is_ok_and(|real| real == Path::new(device)) {
            found.insert(entry.path().display().to_string());
        }
    }
    found
}
