//! One change of the machine, as a value: it can be printed, written into a journal and done later.

mod error;
mod kind;
#[cfg(test)]
mod tests;
mod text;

pub use error::StepError;
pub use kind::unknown_step;

use super::array::ArrayStep;
use super::bundle::BundleStep;
use super::disk::Preallocate;
use super::drive::WipeStep;
use super::hostnet::HostNetStep;
use super::network::NetworkStep;
use super::nic::NicStep;
use super::pages::PagesStep;
use super::partition::PartitionStep;
use super::secret::Secret;
use super::setting::SettingStep;
use super::text::TextStep;
use crate::hypervisor::AskedBy;
use crate::hypervisor::storage::NewVolume;
use crate::identity::{FileId, uuid_of};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::guest::VolumeRef;
use gpuvm_core::domain::live::{GuestThread, Plugged};
use gpuvm_core::image::Sha256;
use gpuvm_core::shell::word;
use gpuvm_core::topology::{Binding, is_vfio};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// How a domain's disk is grown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum GrowBy {
    /// Through the running guest.
    Guest,
    /// Through its pool, while the domain is off.
    Volume {
        /// The pool.
        pool: String,
        /// The volume.
        name: String,
        /// Its key; none: planned by an older version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        /// Identity of its file; none: it is on another machine, or planned by an older version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<FileId>,
    },
    /// As a file, while the domain is off.
    File {
        /// The raw image.
        path: PathBuf,
        /// Identity of the file.
        file: FileId,
        /// Whether the new blocks are reserved.
        reserve: bool,
    },
}

/// How long a guest may take to let go of a disk or another device, in seconds. A PCI Express slot takes five to be
/// empty.
pub const LET_GO_S: u64 = 30;

/// A snapshot that a domain has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadeSnapshot {
    /// The domain's name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// The name of the snapshot.
    pub snapshot: String,
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
}

/// What a disk was when a guest was made with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum MadeAs {
    /// A copy of another disk.
    CopyOf {
        /// That disk.
        disk: PathBuf,
        /// The format of both.
        format: String,
    },
    /// A file of these bytes.
    Bytes {
        /// Their number.
        bytes: u64,
        /// Their SHA-256.
        sha256: Sha256,
    },
    /// An image without data. Its domain may run without it.
    Blank,
}

/// How the name of an empty volume ends that reserves the name of an image while that is copied.
pub const RESERVATION: &str = ".adding";

/// One change of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, strum::VariantNames)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "step", rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Step {
    /// Creates a missing directory in an existing one.
    CreateDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Creates a raw image of zeros, or the copy of another file; never replaces a file.
    CreateDisk {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// Its preallocation.
        #[serde(default)]
        preallocate: Preallocate,
        /// The file whose bytes it gets; none: zeros.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<PathBuf>,
        /// SHA-256 of these bytes; none: not known when the change was planned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sha256: Option<Sha256>,
    },
    /// Writes a bundle: a new directory with copies of a guest's disks.
    WriteBundle(BundleStep),
    /// Defines a domain with an unused name.
    DefineDomain {
        /// Its name.
        name: String,
        /// Its definition.
        xml: String,
    },
    /// Starts a domain.
    StartDomain {
        /// Its name.
        name: String,
        /// Its UUID; none: recorded by an older version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uuid: Option<String>,
    },
    /// Sets whether a domain starts with the host.
    Autostart {
        /// Its name.
        name: String,
        /// Its UUID.
        uuid: String,
        /// Whether it does; before, it was the other way.
        on: bool,
    },
    /// Asks a guest to shut down and waits until it has; undone only if it is to run again.
    ShutDownDomain {
        /// Its name.
        name: String,
        /// Its UUID; none: recorded by an older version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uuid: Option<String>,
        /// How it is asked first; if its agent does not answer, by the power button.
        #[serde(default)]
        by: AskedBy,
        /// Time limit in seconds.
        wait_s: u64,
        /// Whether undoing it starts the guest again: it is off only for the rest of the change.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        restarts: bool,
    },
    /// Stops the vCPUs of a running domain, or lets those of a paused one go on.
    PauseDomain {
        /// Its name.
        name: String,
        /// Its UUID.
        uuid: String,
        /// Whether they are stopped; before, it was the other way.
        paused: bool,
    },
    /// Powers a domain off; not undone.
    EndDomain {
        /// Its name.
        name: String,
        /// Its UUID; none: recorded by an older version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uuid: Option<String>,
    },
    /// Removes a domain's definition and its saved state; its NVRAM is kept until the removal is
    /// final.
    UndefineDomain {
        /// Its name.
        name: String,
        /// Its definition, to restore it if a later step fails.
        xml: String,
    },
    /// Removes the NVRAM of an undefined domain; not undone, so it comes last.
    DropNvram {
        /// Its name.
        name: String,
        /// Its definition, which is restored for a moment: NVRAM can only be removed with a
        /// definition.
        xml: String,
        /// Whether the state of its emulated TPM is removed instead, in the same way.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        tpm: bool,
    },
    /// Changes the definition of a domain; the running guest is unchanged.
    RedefineDomain {
        /// Its name.
        name: String,
        /// Its definition.
        xml: String,
        /// The one that it had.
        before: String,
    },
    /// Gives a defined domain that is off another name.
    RenameDomain {
        /// Its name.
        name: String,
        /// Its new name, which is free.
        to: String,
        /// Its UUID.
        uuid: String,
    },
    /// Gives a file another path on its file system; never replaces a file.
    MoveFile {
        /// Where it is.
        from: PathBuf,
        /// Where it is to be.
        to: PathBuf,
        /// Identity of the file.
        file: FileId,
    },
    /// Makes a snapshot of a domain that is off, in the images of its disks.
    MakeSnapshot {
        /// The domain's name.
        name: String,
        /// Its UUID.
        uuid: String,
        /// The name of the snapshot, which is free.
        snapshot: String,
    },
    /// Gives the disks of a domain that is off the content of a snapshot; not undone.
    RevertSnapshot {
        /// The snapshot.
        #[serde(flatten)]
        of: MadeSnapshot,
        /// The domain's definition, which stays.
        xml: String,
    },
    /// Deletes a snapshot of a domain that is off; not undone.
    DeleteSnapshot(MadeSnapshot),
    /// Attaches a disk to a running guest; the definition is unchanged.
    AttachDisk {
        /// The domain's name.
        name: String,
        /// The disk's path on the host.
        path: String,
        /// The disk, as a device of the running guest.
        xml: String,
    },
    /// Asks a running guest to release a disk and waits until it has. The definition is unchanged.
    DetachDisk {
        /// The domain's name.
        name: String,
        /// The disk's path on the host.
        path: String,
        /// Time limit in seconds.
        wait_s: u64,
        /// The disk before, which undoing attaches again; none: not undone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        xml: Option<String>,
    },
    /// Attaches a NIC or a passed-through function to a running guest; the definition is unchanged.
    AttachDevice {
        /// The domain's name.
        name: String,
        /// What tells it from the guest's other devices.
        device: Plugged,
        /// The device.
        xml: String,
    },
    /// Asks a running guest to release a NIC or a passed-through function and waits until it has.
    /// The definition is unchanged.
    DetachDevice {
        /// The domain's name.
        name: String,
        /// What tells it from the guest's other devices.
        device: Plugged,
        /// Time limit in seconds.
        wait_s: u64,
        /// The device before, which undoing attaches again.
        xml: String,
    },
    /// Grows a domain's disk; not undone, since shrinking it would cut off data.
    GrowDisk {
        /// The domain's name.
        name: String,
        /// Its UUID.
        uuid: String,
        /// The disk's name in it.
        target: String,
        /// Its size afterwards, in bytes.
        bytes: u64,
        /// How it is grown.
        by: GrowBy,
    },
    /// Deletes an image created for a domain; not undone, so it comes last.
    DeleteDisk {
        /// The file.
        path: PathBuf,
        /// Identity of the file; none: recorded by an older version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<FileId>,
    },
    /// Returns an address of a removed guest to a DHCP server of this machine; not undone, because
    /// the guest requests one again when it starts.
    ReleaseLease {
        /// The server.
        server: Ipv4Addr,
        /// The address.
        ip: Ipv4Addr,
        /// MAC address of the interface that has it.
        mac: String,
    },
    /// Creates a pool with an unused name on a directory.
    MakePool {
        /// Its name.
        name: String,
        /// The directory.
        path: PathBuf,
    },
    /// Creates a volume with an unused name.
    MakeVolume {
        /// Its pool.
        pool: String,
        /// What it is to be.
        volume: NewVolume,
        /// The volume whose content it gets; none: it is blank.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<VolumeRef>,
    },
    /// Grows a volume; undone with the volume.
    GrowVolume {
        /// Its pool.
        pool: String,
        /// Its name.
        name: String,
        /// Its size, in bytes.
        bytes: u64,
    },
    /// Fills a volume with a file of this machine; undone with the volume.
    FillVolume {
        /// Its pool.
        pool: String,
        /// Its name.
        name: String,
        /// The file.
        source: PathBuf,
        /// Bytes of the file.
        bytes: u64,
        /// SHA-256 of the file when the change was planned; none: not read then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sha256: Option<Sha256>,
    },
    /// Refuses a volume whose format, as detected by the hypervisor, is not the intended one, or
    /// whose bytes are not those that were written; changes nothing.
    CheckVolume {
        /// Its pool.
        pool: String,
        /// Its name.
        name: String,
        /// Its format: `raw`, `qcow2`.
        format: String,
        /// Size seen by a guest, in bytes.
        capacity_bytes: u64,
        /// Bytes that it was filled with.
        bytes: u64,
        /// Their SHA-256.
        sha256: Sha256,
    },
    /// Refuses a volume whose content differs from another disk's, and a running domain, which may
    /// write to either; changes nothing.
    CompareDisk {
        /// The domain that uses one of them.
        domain: String,
        /// The volume's pool.
        pool: String,
        /// Its name.
        volume: String,
        /// Its format: `raw`, `qcow2`.
        format: String,
        /// Size seen by a guest, in bytes.
        capacity_bytes: u64,
        /// The other disk.
        disk: PathBuf,
        /// Its format.
        disk_format: String,
        /// Whether both are on this machine, so that every byte is compared.
        content: bool,
    },
    /// Refuses a disk that is not what it was when a guest was made with it: its guest has written on
    /// it. Judged by its bytes alone. Changes nothing.
    CheckAsMade {
        /// The domain that uses it.
        domain: String,
        /// The file.
        path: PathBuf,
        /// What it was.
        made: MadeAs,
    },
    /// Refuses a file that was copied if it was written since the change was planned, or somebody
    /// has it open: a guest that ran between two copies has them of different times. Changes nothing.
    CheckSource {
        /// The file.
        path: PathBuf,
        /// Its size, in bytes.
        bytes: u64,
        /// When it was last written, in nanoseconds since 1970.
        modified_ns: i64,
    },
    /// Fills a volume with confidential bytes; undone with the volume.
    SealVolume {
        /// Its pool.
        pool: String,
        /// Its name.
        name: String,
        /// The bytes. They are not written into a journal and not printed.
        #[serde(skip)]
        content: Secret,
    },
    /// Deletes a volume created for a domain; not undone, so it comes last.
    DeleteVolume {
        /// Its pool.
        pool: String,
        /// Its name.
        name: String,
        /// Identity of the file; none: not on this machine, or recorded by an older version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<FileId>,
    },
    /// Binds a PCI function to another driver.
    BindDevice {
        /// The function.
        bdf: Bdf,
        /// The driver to bind it to.
        to: Binding,
        /// The driver that it is bound to.
        was: Binding,
        /// Whether processes that have it open are ignored; guests never are.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Takes a PCI function from guests and lets the kernel choose its driver.
    ReleaseDevice {
        /// The function.
        bdf: Bdf,
        /// The driver that it is bound to.
        was: Binding,
        /// Whether processes that have it open are ignored; guests never are.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Resets an unused PCI function; not undone.
    ResetDevice {
        /// The function.
        bdf: Bdf,
        /// Whether its guest is gone, so that a function that somebody else uses by now is left
        /// alone.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        back: bool,
    },
    /// Writes or removes a configuration file of gpuvm's own.
    SetFile {
        /// The file.
        path: PathBuf,
        /// Its text; none: it is removed.
        text: Option<String>,
        /// Its text before; none: it did not exist.
        was: Option<String>,
        /// Whether it is executable, as a hook is.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        program: bool,
        /// Whether it is recorded as ours ([`super::ours`]).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        kept: bool,
    },
    /// Writes or removes a record of a domain, readable only by root.
    Remember {
        /// The file.
        path: PathBuf,
        /// Its text; none: it is removed, and its directory with the last one.
        text: Option<String>,
        /// Its text before; none: it did not exist.
        was: Option<String>,
    },
    /// Pins a thread of a running guest to other pcpus; the definition is unchanged.
    PinThread {
        /// The domain's name.
        name: String,
        /// The thread.
        thread: GuestThread,
        /// The new pcpus.
        pcpus: CpuSet,
        /// The previous pcpus.
        was: CpuSet,
    },
    /// Plugs vCPUs into a running guest, or takes some; the definition is unchanged.
    PlugVcpus {
        /// The domain's name.
        name: String,
        /// How many it has then.
        vcpus: u32,
        /// How many it had.
        was: u32,
    },
    /// Changes settings of a device of a running guest; the definition is unchanged.
    UpdateDevice {
        /// The domain's name.
        name: String,
        /// The device, for people: "interface 52:54:00:00:00:01".
        device: String,
        /// The device afterwards.
        xml: String,
        /// The device before.
        was: String,
    },
    /// Changes an array, its content, or a file that refers to it.
    Array(ArrayStep),
    /// Erases a whole drive; not undone.
    WipeDrive(WipeStep),
    /// Changes a network card with virtual functions.
    Nic(NicStep),
    /// Changes the number of huge pages of a node.
    SetPages(PagesStep),
    /// Changes a libvirt network.
    Network(NetworkStep),
    /// Changes one place of a text file that others own.
    EditText(TextStep),
    /// Changes a setting of the kernel.
    Set(SettingStep),
    /// Changes the host's own network.
    HostNet(HostNetStep),
    /// Activates the NVLink partition of a guest that is to start.
    ActivatePartition(PartitionStep),
    /// Deactivates the NVLink partition of a guest that is off.
    DeactivatePartition(PartitionStep),
}

impl Step {
    /// Returns the step that reverts this one, as a change of its own; none: there is none, or its
    /// product is removed by other means.
    pub fn reversed(&self) -> Option<Step> {
        let mut back = self.clone();
        match &mut back {
            Step::RedefineDomain { xml, before, .. } => std::mem::swap(xml, before),
            Step::BindDevice { to, was, .. } => std::mem::swap(to, was),
            Step::SetFile { text, was, .. } | Step::Remember { text, was, .. } => {
                std::mem::swap(text, was);
            }
            Step::PinThread { pcpus, was, .. } => std::mem::swap(pcpus, was),
            Step::PlugVcpus { vcpus, was, .. } => std::mem::swap(vcpus, was),
            Step::UpdateDevice { xml, was, .. } => std::mem::swap(xml, was),
            Step::AttachDisk { name, path, xml } => {
                let (name, path, xml) = (name.clone(), path.clone(), Some(xml.clone()));
                return Some(Step::DetachDisk { name, path, wait_s: LET_GO_S, xml });
            }
            Step::DetachDisk { name, path, xml: Some(xml), .. } => {
                let (name, path, xml) = (name.clone(), path.clone(), xml.clone());
                return Some(Step::AttachDisk { name, path, xml });
            }
            Step::AttachDevice { name, device, xml } => {
                let (name, device, xml) = (name.clone(), device.clone(), xml.clone());
                return Some(Step::DetachDevice { name, device, wait_s: LET_GO_S, xml });
            }
            Step::DetachDevice { name, device, xml, .. } => {
                let (name, device, xml) = (name.clone(), device.clone(), xml.clone());
                return Some(Step::AttachDevice { name, device, xml });
            }
            Step::Autostart { on, .. } => *on = !*on,
            Step::PauseDomain { paused, .. } => *paused = !*paused,
            // Its caller reverses it based on the file's current content.
            Step::EditText(_) => {}
            Step::Set(setting) => std::mem::swap(&mut setting.to, &mut setting.was),
            Step::SetPages(pages) => {
                std::mem::swap(&mut pages.to, &mut pages.was);
                pages.needed = 0;
            }
            Step::ActivatePartition(step) => {
                return Some(Step::DeactivatePartition(step.clone()));
            }
            // Its guest is off, and its next start activates what it needs then.
            Step::DeactivatePartition(step) if step.may_wait => return None,
            Step::DeactivatePartition(step) => {
                return Some(Step::ActivatePartition(step.clone()));
            }
            // Equality is symmetric.
            Step::CompareDisk { .. } => {}
            _ => return None,
        }
        Some(back)
    }

    /// The same step after its domain has another name; one of another domain stays.
    pub fn renamed(&self, before: &str, after: &str) -> Step {
        let mut new = self.clone();
        match &mut new {
            Step::StartDomain { name, .. }
            | Step::ShutDownDomain { name, .. }
            | Step::EndDomain { name, .. }
            | Step::AttachDisk { name, .. }
            | Step::DetachDisk { name, .. }
            | Step::AttachDevice { name, .. }
            | Step::DetachDevice { name, .. }
            | Step::GrowDisk { name, .. }
            | Step::PinThread { name, .. }
            | Step::PlugVcpus { name, .. }
            | Step::UpdateDevice { name, .. }
            | Step::Autostart { name, .. }
            | Step::PauseDomain { name, .. }
            | Step::CompareDisk { domain: name, .. }
            | Step::CheckAsMade { domain: name, .. }
                if *name == before =>
            {
                after.clone_into(name);
            }
            _ => {}
        }
        new
    }

    /// Whether it releases resources of a removed guest: those in use by somebody else by now are
    /// left, which counts as released.
    pub fn gives_back(&self) -> bool {
        match self {
            Step::BindDevice { to, was, .. } => {
                let is_vfio = |binding: &Binding| binding.driver.as_deref().is_some_and(is_vfio);
                is_vfio(was) && !is_vfio(to)
            }
            Step::ResetDevice { back, .. } => *back,
            Step::DeactivatePartition(_) => true,
            Step::Nic(step) => step.gives_back(),
            _ => false,
        }
    }

    /// Returns the existing domain that it is about, by name and UUID; no UUID: older versions did
    /// not record it.
    pub fn domain(&self) -> Option<(&str, Option<String>)> {
        match self {
            Step::StartDomain { name, uuid }
            | Step::ShutDownDomain { name, uuid, .. }
            | Step::EndDomain { name, uuid } => Some((name, uuid.clone())),
            Step::UndefineDomain { name, xml } => Some((name, uuid_of(xml))),
            Step::GrowDisk { name, uuid, .. }
            | Step::RenameDomain { name, uuid, .. }
            | Step::MakeSnapshot { name, uuid, .. }
            | Step::RevertSnapshot { of: MadeSnapshot { name, uuid, .. }, .. }
            | Step::DeleteSnapshot(MadeSnapshot { name, uuid, .. })
            | Step::PauseDomain { name, uuid, .. }
            | Step::Autostart { name, uuid, .. } => Some((name, Some(uuid.clone()))),
            Step::RedefineDomain { name, before, .. } => Some((name, uuid_of(before))),
            _ => None,
        }
    }

    /// Whether what it does ends with the boot of the machine, so that a reboot reverts it.
    pub fn ends_with_boot(&self) -> bool {
        matches!(
            self,
            Step::StartDomain { .. }
                | Step::PauseDomain { .. }
                | Step::BindDevice { .. }
                | Step::ReleaseDevice { .. }
                | Step::ResetDevice { .. }
                | Step::SetPages(_)
                | Step::Set(_)
                | Step::Nic(_)
                | Step::ActivatePartition(_)
                | Step::DeactivatePartition(_)
        ) || self.is_of_running()
    }

    /// Returns the command that manually removes what it made; none: there is no such command.
    pub fn by_hand(&self) -> Option<String> {
        Some(match self {
            Step::CreateDisk { path, .. } => format!("rm {}", word(&path.to_string_lossy())),
            Step::WriteBundle(step) => format!("rm -r {}", word(&step.path.to_string_lossy())),
            Step::CreateDirectory { path } => format!("rmdir {}", word(&path.to_string_lossy())),
            Step::MakeVolume { pool, volume, .. } => {
                format!("virsh vol-delete --pool {} {}", word(pool), word(&volume.name))
            }
            Step::MakePool { name, .. } => format!("virsh pool-destroy {}", word(name)),
            Step::DefineDomain { name, .. } => format!("gpuvm delete {}", word(name)),
            Step::StartDomain { name, .. } => format!("gpuvm stop {}", word(name)),
            Step::ShutDownDomain { name, .. } => format!("gpuvm start {}", word(name)),
            Step::PauseDomain { name, paused, .. } => {
                format!("gpuvm {} {}", if *paused { "resume" } else { "pause" }, word(name))
            }
            Step::ActivatePartition(step) => format!("gpuvm fabric release {}", step.partition),
            Step::RedefineDomain { name, .. } => format!("gpuvm history {} --diff", word(name)),
            Step::RenameDomain { name, to, .. } => {
                format!("gpuvm rename {} {}", word(to), word(name))
            }
            Step::MakeSnapshot { name, snapshot, .. } => {
                format!("gpuvm snapshot delete {} {}", word(name), word(snapshot))
            }
            Step::MoveFile { from, to, .. } => {
                let said = |path: &Path| word(&path.to_string_lossy()).into_owned();
                format!("mv -n {} {}", said(to), said(from))
            }
            _ => return None,
        })
    }

    /// Whether it makes an image over another.
    pub fn makes_overlay(&self) -> bool {
        matches!(self, Step::MakeVolume { volume, .. } if volume.backing.is_some())
    }

    /// Whether it changes only a running domain, until that stops.
    pub fn is_of_running(&self) -> bool {
        matches!(
            self,
            Step::PinThread { .. }
                | Step::PlugVcpus { .. }
                | Step::UpdateDevice { .. }
                | Step::AttachDisk { .. }
                | Step::DetachDisk { xml: Some(_), .. }
                | Step::AttachDevice { .. }
                | Step::DetachDevice { .. }
        )
    }

    /// Whether it attaches a device or vCPUs to a running guest or detaches them.
    pub fn is_plugging(&self) -> bool {
        matches!(
            self,
            Step::AttachDisk { .. }
                | Step::DetachDisk { .. }
                | Step::AttachDevice { .. }
                | Step::DetachDevice { .. }
                | Step::PlugVcpus { .. }
        )
    }

    /// Whether it makes a disk as the copy of another one.
    pub fn makes_copy(&self) -> bool {
        matches!(
            self,
            Step::CreateDisk { from: Some(_), .. } | Step::MakeVolume { from: Some(_), .. }
        )
    }

    /// Whether it cannot be undone, so that a later failure leaves it in effect.
    pub fn is_final(&self) -> bool {
        match self {
            Step::DeleteDisk { .. } | Step::DeleteVolume { .. } | Step::DropNvram { .. } => true,
            Step::WipeDrive(_) | Step::GrowDisk { .. } => true,
            Step::RevertSnapshot { .. } | Step::DeleteSnapshot(_) => true,
            Step::Array(step) => step.is_final(),
            _ => false,
        }
    }

    /// Whether an interrupted run that has begun it is finished rather than undone: what it removes
    /// cannot be restored completely, such as a running guest's memory or its NVRAM.
    pub fn takes_away(&self) -> bool {
        let ends = matches!(
            self,
            Step::ShutDownDomain { restarts: false, .. }
                | Step::EndDomain { .. }
                | Step::UndefineDomain { .. }
                | Step::ReleaseLease { .. }
        );
        let unlinks = matches!(self, Step::Network(step) if step.takes_away());
        // A partition of a removed guest is not activated again.
        let deactivates = matches!(self, Step::DeactivatePartition(_));
        ends || unlinks || deactivates || self.is_final()
    }

    /// Whether it is bookkeeping of ours, of no interest to who makes the change: records of what is
    /// made, and the reservation of an image's name.
    pub fn is_internal(&self) -> bool {
        let reserves = |name: &str| name.ends_with(RESERVATION);
        match self {
            Step::Remember { .. } => true,
            Step::MakeVolume { volume, .. } => reserves(&volume.name) && volume.capacity_bytes == 0,
            Step::DeleteVolume { name, .. } => reserves(name),
            _ => false,
        }
    }

    /// Whether undoing has an effect.
    pub fn is_undone(&self) -> bool {
        let nothing = match self {
            Step::ShutDownDomain { restarts: false, .. }
            | Step::EndDomain { .. }
            | Step::ReleaseLease { .. }
            | Step::CheckVolume { .. }
            | Step::CheckSource { .. }
            | Step::CompareDisk { .. }
            | Step::CheckAsMade { .. }
            | Step::ResetDevice { .. }
            | Step::DetachDisk { xml: None, .. } => true,
            Step::Array(step) => !step.is_undone(),
            Step::Network(step) => !step.is_undone(),
            Step::HostNet(step) => !step.is_undone(),
            _ => false,
        };
        !self.is_final() && !nothing
    }

    /// Whether it acts on the machine itself rather than through the hypervisor: files, sysfs,
    /// leases, history. It is refused if the hypervisor's domains are on another machine.
    pub fn is_of_machine(&self) -> bool {
        matches!(
            self,
            Step::CreateDirectory { .. }
                | Step::CreateDisk { .. }
                | Step::WriteBundle(_)
                | Step::DeleteDisk { .. }
                | Step::MoveFile { .. }
                | Step::ReleaseLease { .. }
                | Step::Remember { .. }
                | Step::CheckSource { .. }
                | Step::CheckAsMade { .. }
                | Step::CompareDisk { content: true, .. }
                | Step::GrowDisk { by: GrowBy::File { .. }, .. }
        ) || self.is_of_host()
    }

    /// Whether it changes the host itself, so that being half done affects everybody. Such a step
    /// need not be undone before it is repeated: it reaches the same state from anywhere, and no
    /// driver has to release a function more often than necessary.
    pub fn is_of_host(&self) -> bool {
        matches!(
            self,
            Step::BindDevice { .. }
                | Step::ReleaseDevice { .. }
                | Step::ResetDevice { .. }
                | Step::SetFile { .. }
                | Step::SetPages(_)
                | Step::EditText(_)
                | Step::Set(_)
                | Step::HostNet(_)
                | Step::Array(_)
                | Step::WipeDrive(_)
                | Step::Nic(_)
                | Step::ActivatePartition(_)
                | Step::DeactivatePartition(_)
        )
    }
}
