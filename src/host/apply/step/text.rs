//! Descriptions of steps.

use super::{GrowBy, MadeSnapshot, Preallocate, Step};
use crate::hypervisor::AskedBy;
use crate::hypervisor::storage::NewVolume;
use gpuvm_core::domain::DomainXml;
use gpuvm_core::memsize::MemSize;
use std::fmt;

impl fmt::Display for Step {
    #[expect(clippy::too_many_lines, reason = "one arm for each variant")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::CreateDirectory { path } => write!(f, "create directory {}", path.display()),
            Step::CreateDisk { path, bytes, from: Some(from), .. } => {
                let size = MemSize::from_kib(bytes.div_ceil(1024));
                write!(f, "copy {} of {size} to {}", from.display(), path.display())
            }
            Step::CreateDisk { path, bytes, preallocate, from: None, .. } => {
                let size = MemSize::from_kib(bytes.div_ceil(1024));
                let how = match preallocate {
                    Preallocate::None => "sparse",
                    Preallocate::Reserve => "its blocks reserved",
                    Preallocate::Full => "written with zeros",
                };
                write!(f, "create disk {} of {size}, {how}", path.display())
            }
            Step::WriteBundle(step) => {
                let size = MemSize::from_kib(step.bytes().div_ceil(1024));
                write!(f, "write bundle {} of {size}", step.path.display())?;
                let copies = step.copies.iter();
                copies
                    .into_iter()
                    .try_for_each(|copy| write!(f, ", {} of {}", copy.file, copy.from.display()))
            }
            Step::DefineDomain { name, .. } => write!(f, "define domain `{name}`"),
            Step::StartDomain { name, .. } => write!(f, "start domain `{name}`"),
            Step::Autostart { name, on: true, .. } => {
                write!(f, "have domain `{name}` start with the host")
            }
            Step::Autostart { name, on: false, .. } => {
                write!(f, "have domain `{name}` not start with the host")
            }
            Step::ShutDownDomain { name, by, wait_s, restarts, .. } => {
                let by = match by {
                    AskedBy::Agent => "its agent",
                    AskedBy::PowerButton => "the power button",
                };
                let again = if *restarts { ", to start it again" } else { "" };
                write!(f, "shut down domain `{name}` by {by}, waiting up to {wait_s} s{again}")
            }
            Step::PauseDomain { name, paused: true, .. } => write!(f, "pause domain `{name}`"),
            Step::PauseDomain { name, .. } => write!(f, "resume domain `{name}`"),
            Step::EndDomain { name, .. } => write!(f, "end domain `{name}` as a power cut does"),
            Step::UndefineDomain { name, .. } => {
                write!(f, "undefine domain `{name}` with its saved state")
            }
            Step::DropNvram { name, tpm: true, .. } => {
                write!(f, "delete the TPM state of domain `{name}`")
            }
            Step::DropNvram { name, xml, .. } => {
                match DomainXml::parse(xml).ok().as_ref().and_then(DomainXml::nvram) {
                    Some(path) => write!(f, "delete NVRAM {path} of domain `{name}`"),
                    None => write!(f, "delete the NVRAM of domain `{name}`"),
                }
            }
            Step::RedefineDomain { name, .. } => {
                write!(f, "change the definition of domain `{name}`")
            }
            Step::RenameDomain { name, to, .. } => write!(f, "rename domain `{name}` to `{to}`"),
            Step::MakeSnapshot { name, snapshot, .. } => {
                write!(f, "make snapshot `{snapshot}` of domain `{name}`")
            }
            Step::RevertSnapshot { of: MadeSnapshot { name, snapshot, .. }, .. } => {
                write!(f, "revert the disks of domain `{name}` to snapshot `{snapshot}`")
            }
            Step::DeleteSnapshot(MadeSnapshot { name, snapshot, .. }) => {
                write!(f, "delete snapshot `{snapshot}` of domain `{name}`")
            }
            Step::MoveFile { from, to, .. } => {
                write!(f, "move {} to {}", from.display(), to.display())
            }
            Step::AttachDisk { name, path, .. } => {
                write!(f, "attach disk {path} to running domain `{name}`")
            }
            Step::DetachDisk { name, path, wait_s, .. } => {
                write!(f, "detach disk {path} from domain `{name}`, waiting up to {wait_s} s")
            }
            Step::AttachDevice { name, device, .. } => {
                write!(f, "attach {device} to running domain `{name}`")
            }
            Step::DetachDevice { name, device, wait_s, .. } => {
                write!(f, "detach {device} from domain `{name}`, waiting up to {wait_s} s")
            }
            Step::GrowDisk { name, target, bytes, by, .. } => {
                let size = MemSize::from_kib(bytes.div_ceil(1024));
                let of = if *by == GrowBy::Guest { "running domain" } else { "domain" };
                write!(f, "grow disk `{target}` of {of} `{name}` to {size}")
            }
            Step::DeleteDisk { path, .. } => write!(f, "delete disk {}", path.display()),
            Step::ReleaseLease { ip, mac, .. } => write!(f, "release the lease of {ip} by {mac}"),
            Step::MakePool { name, path } => {
                write!(f, "make pool `{name}` over {}", path.display())
            }
            Step::MakeVolume { pool, volume, from } => {
                let size = MemSize::from_kib(volume.capacity_bytes.div_ceil(1024));
                let NewVolume { name, format, preallocated, backing, .. } = volume;
                let taken = if *preallocated { "preallocated" } else { "growing as it is written" };
                write!(f, "make volume `{name}` of {size} in pool `{pool}`, {format}, {taken}")?;
                match (from, backing) {
                    (Some(from), _) => {
                        write!(f, ", a copy of `{}` in pool `{}`", from.name, from.pool)
                    }
                    (None, Some((path, _))) => write!(f, ", over {}", path.display()),
                    (None, None) => Ok(()),
                }
            }
            Step::GrowVolume { pool, name, bytes } => {
                let size = MemSize::from_kib(bytes.div_ceil(1024));
                write!(f, "grow volume `{name}` of pool `{pool}` to {size}")
            }
            Step::FillVolume { pool, name, source, .. } => {
                write!(f, "fill volume `{name}` of pool `{pool}` from {}", source.display())
            }
            Step::CheckVolume { pool, name, format, capacity_bytes, .. } => {
                let size = MemSize::from_kib(capacity_bytes.div_ceil(1024));
                write!(
                    f,
                    "read volume `{name}` of pool `{pool}` back, which has to be {format} of {size}"
                )
            }
            Step::CompareDisk { pool, volume, disk, content, .. } => {
                let how = if *content { "byte for byte" } else { "by its size" };
                let disk = disk.display();
                write!(f, "compare volume `{volume}` of pool `{pool}` with {disk} {how}")
            }
            Step::CheckAsMade { domain, path, .. } => {
                let path = path.display();
                write!(f, "make sure that domain `{domain}` has not written on {path}")
            }
            Step::CheckSource { path, .. } => {
                write!(f, "make sure that nobody has written {} meanwhile", path.display())
            }
            Step::SealVolume { pool, name, .. } => {
                write!(f, "write the seed into volume `{name}` of pool `{pool}`")
            }
            Step::DeleteVolume { pool, name, .. } => {
                write!(f, "delete volume `{name}` of pool `{pool}`")
            }
            Step::BindDevice { bdf, to, was, .. } if to.driver == was.driver => {
                let to = to.driver_override.as_deref().unwrap_or("any driver");
                write!(f, "reserve {bdf} for {to}")
            }
            Step::BindDevice { bdf, to, was, .. } => match &to.driver {
                Some(driver) => write!(f, "bind {bdf} to {driver}, from {}", was.driver_text()),
                None => write!(f, "unbind {bdf} from {}", was.driver_text()),
            },
            Step::ReleaseDevice { bdf, was, .. } => {
                write!(f, "release {bdf} from {} to the host", was.driver_text())
            }
            Step::ResetDevice { bdf, .. } => write!(f, "reset {bdf}"),
            Step::SetFile { path, text: Some(_), .. } => write!(f, "write {}", path.display()),
            Step::SetFile { path, text: None, .. } => write!(f, "remove {}", path.display()),
            Step::Remember { path, text: Some(_), .. } => {
                write!(f, "write record {}", path.display())
            }
            Step::Remember { path, text: None, .. } => {
                write!(f, "delete record {}", path.display())
            }
            Step::PinThread { name, thread, pcpus, .. } => {
                write!(f, "pin {thread} of running domain `{name}` to pcpus {pcpus}")
            }
            Step::PlugVcpus { name, vcpus, was } => {
                write!(f, "change vCPUs of running domain `{name}` from {was} to {vcpus}")
            }
            Step::UpdateDevice { name, device, .. } => {
                write!(f, "change {device} of running domain `{name}`")
            }
            Step::Array(step) => step.fmt(f),
            Step::WipeDrive(step) => step.fmt(f),
            Step::Nic(step) => step.fmt(f),
            Step::SetPages(step) => step.fmt(f),
            Step::Network(step) => step.fmt(f),
            Step::EditText(step) => step.fmt(f),
            Step::Set(step) => step.fmt(f),
            Step::HostNet(step) => step.fmt(f),
            Step::ActivatePartition(step) => write!(f, "activate {step}"),
            Step::DeactivatePartition(step) => write!(f, "deactivate {step}"),
        }
    }
}
