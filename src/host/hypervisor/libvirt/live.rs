//! Running guests through libvirt.

use super::super::{AskedBy, Console, DiskSize, HypervisorError, Live, Used};
use super::call::Call::{Changes, Reads, Waits, Works};
use super::call::{call, call_as, is_unsupported};
use super::{Libvirt, console, pin};
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::live::GuestThread;
use gpuvm_core::load::ByteCounts;
use gpuvm_core::versions::Version;
use std::time::{Duration, Instant};
use virt::domain::Domain;
use virt::error::ErrorNumber;
use virt::sys;

/// How long a domain being ended may take to disappear. With the embedded driver of a second
/// process this is seen a moment after libvirt reported that the domain does not run.
const END_WAIT: Duration = Duration::from_secs(10);

/// Changes the running domain, and not the definition of the next start.
const LIVE: u32 = sys::VIR_DOMAIN_AFFECT_LIVE;

/// `VIR_DOMAIN_BLOCK_RESIZE_EXTEND`, which the binding does not have.
const EXTEND: u32 = 1 << 2;
/// The first libvirt that has it.
const KNOWS_EXTEND: Version = Version(12, 3, 0);

/// How a disk is grown: the daemon itself refuses to shrink it, as far as it can.
fn resize_flags(version: Option<Version>) -> u32 {
    let is_known = version.is_some_and(|version| version >= KNOWS_EXTEND);
    sys::VIR_DOMAIN_BLOCK_RESIZE_BYTES | if is_known { EXTEND } else { 0 }
}

impl Live for Libvirt {
    fn run_id(&self, name: &str) -> Result<Option<u32>, HypervisorError> {
        call(Reads, format_args!("look for domain `{name}`"), || Ok(self.find(name)?.id()))
    }

    fn start(&self, name: &str) -> Result<(), HypervisorError> {
        call(Works, format_args!("start domain `{name}`"), || {
            Ok(self.find_to_change(name)?.create()?)
        })
    }

    fn shutdown(&self, name: &str, by: AskedBy) -> Result<(), HypervisorError> {
        call(Changes, format_args!("shut down domain `{name}`"), || {
            let domain = self.find_to_change(name)?;
            let flags = match by {
                AskedBy::Agent => sys::VIR_DOMAIN_SHUTDOWN_GUEST_AGENT,
                AskedBy::PowerButton => sys::VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN,
            };
            match domain.shutdown_flags(flags) {
                // Not every driver accepts the flag for ACPI; without it libvirt may ask the agent
                // first.
                Err(e) if by == AskedBy::PowerButton && is_unsupported(&e) => {
                    Ok(domain.shutdown()?)
                }
                asked => Ok(asked?),
            }
        })
    }

    fn pause(&self, name: &str, paused: bool) -> Result<(), HypervisorError> {
        let verb = if paused { "pause" } else { "resume" };
        call(Changes, format_args!("{verb} domain `{name}`"), || {
            let domain = self.find_to_change(name)?;
            if paused { domain.suspend() } else { domain.resume() }?;
            Ok(())
        })
    }

    fn destroy(&self, name: &str) -> Result<(), HypervisorError> {
        call(Works, format_args!("end domain `{name}`"), || {
            let domain = self.find_to_change(name)?;
            match domain.destroy() {
                Err(e) if e.code().is(ErrorNumber::OperationInvalid) && ends(&domain) => Ok(()),
                ended => Ok(ended?),
            }
        })
    }

    fn detach(&self, name: &str, device: &str) -> Result<(), HypervisorError> {
        call(Changes, format_args!("remove a device from domain `{name}`"), || {
            Ok(self.find_to_change(name)?.detach_device_flags(device, LIVE)?)
        })
    }

    fn attach(&self, name: &str, device: &str) -> Result<(), HypervisorError> {
        call(Changes, format_args!("attach a device to domain `{name}`"), || {
            Ok(self.find_to_change(name)?.attach_device_flags(device, LIVE)?)
        })
    }

    fn used(&self, name: &str) -> Result<Used, HypervisorError> {
        call(Reads, format_args!("read the use of domain `{name}`"), || {
            let domain = self.find(name)?;
            // A driver that does not know one of them may know the other.
            let cpu_ns = domain.info().ok().map(|info| info.cpu_time);
            let stats = domain.memory_stats(0).unwrap_or_default();
            let rss = stats.iter().find(|stat| stat.tag == sys::VIR_DOMAIN_MEMORY_STAT_RSS);
            Ok(Used { cpu_ns, memory_kib: rss.map(|stat| stat.val) })
        })
    }

    fn disk_size(&self, name: &str, target: &str) -> Result<Option<DiskSize>, HypervisorError> {
        call(Reads, format_args!("read the disks of domain `{name}`"), || {
            let domain = self.find(name)?;
            // A drive without medium, a file that is gone and a driver without disks are no errors:
            // nothing is known of them.
            let Ok(info) = domain.block_info(target, 0) else { return Ok(None) };
            let (capacity_bytes, allocation_bytes) = (info.capacity, info.allocation);
            Ok((capacity_bytes > 0).then_some(DiskSize { capacity_bytes, allocation_bytes }))
        })
    }

    fn disk_bytes(&self, name: &str, target: &str) -> Result<Option<ByteCounts>, HypervisorError> {
        call(Reads, format_args!("read what domain `{name}` has read and written"), || {
            let domain = self.find(name)?;
            // A drive without medium and a driver without statistics are no errors.
            let Ok(stats) = domain.block_stats(target) else { return Ok(None) };
            let counts = u64::try_from(stats.rd_bytes).ok().zip(u64::try_from(stats.wr_bytes).ok());
            Ok(counts.map(|(read, written)| ByteCounts { read, written }))
        })
    }

    fn grow_disk(&self, name: &str, target: &str, bytes: u64) -> Result<(), HypervisorError> {
        let doing = format_args!("grow disk `{target}` of domain `{name}`");
        call_as(Works, format_args!("{doing} to {bytes} bytes"), doing, || {
            let version = self.connection().lib_version().ok().map(Version::of_libvirt);
            let flags = resize_flags(version);
            Ok(self.find_to_change(name)?.block_resize(target, bytes, flags)?)
        })
    }

    fn pin(&self, name: &str, thread: GuestThread, pcpus: &CpuSet) -> Result<(), HypervisorError> {
        call(Changes, format_args!("pin {thread} of domain `{name}` to pcpus {pcpus}"), || {
            Ok(pin::pin(&self.find_to_change(name)?, thread, pcpus)?)
        })
    }

    fn plug_vcpus(&self, name: &str, vcpus: u32) -> Result<(), HypervisorError> {
        let doing = format_args!("change the vCPUs of running domain `{name}` to {vcpus}");
        call(Changes, doing, || {
            self.find_to_change(name)?.set_vcpus_flags(vcpus, sys::VIR_DOMAIN_VCPU_LIVE)?;
            Ok(())
        })
    }

    fn update(&self, name: &str, device: &str) -> Result<(), HypervisorError> {
        call(Changes, format_args!("change a device of domain `{name}`"), || {
            Ok(self.find_to_change(name)?.update_device_flags(device, LIVE)?)
        })
    }

    fn ask_agent(
        &self,
        name: &str,
        command: &str,
        wait: Duration,
    ) -> Result<String, HypervisorError> {
        call(Waits, format_args!("ask the agent of domain `{name}`"), || {
            self.command_agent(name, command, wait)
        })
    }

    fn console(&self, name: &str, force: bool) -> Result<Box<dyn Console>, HypervisorError> {
        let doing = format_args!("attach to the console of domain `{name}`");
        call(Changes, doing, || console::attach(self, name, force, doing))
    }
}

/// Whether a domain stops within [`END_WAIT`], or already has.
fn ends(domain: &Domain) -> bool {
    let until = Instant::now() + END_WAIT;
    loop {
        match domain.is_active() {
            Ok(false) => return true,
            // A transient domain disappears when it stops.
            Err(e) if e.code().is(ErrorNumber::NoDomain) => return true,
            Ok(true) | Err(_) if Instant::now() > until => return false,
            Ok(true) | Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_libvirt_that_can_refuses_to_shrink_a_disk_that_is_to_grow() {
        for (version, flags) in [
            (None, 1),
            (Some(Version(11, 3, 0)), 1),
            (Some(Version(12, 2, 0)), 1),
            (Some(Version(12, 3, 0)), 5),
            (Some(Version(12, 9, 0)), 5),
        ] {
            assert_eq!(resize_flags(version), flags, "{version:?}");
        }
    }
}
