//! Running guests: their start and end, and changes that the definition of the next start does not
//! get.

use super::error::{HypervisorError, unsupported};
use gpuvm_core::cpuset::CpuSet;
use gpuvm_core::domain::live::GuestThread;
use gpuvm_core::load::ByteCounts;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a guest is asked to shut down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AskedBy {
    /// Its agent, which answers whether it will.
    Agent,
    /// The ACPI power button, which a guest may ignore.
    #[default]
    PowerButton,
}

/// The result of reading a console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsoleRead {
    /// This many bytes.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// Nothing any more.
    End,
}

/// A guest's serial console, attached while this lives. No call blocks.
pub trait Console {
    /// Reads the guest's output.
    fn read(&mut self, into: &mut [u8]) -> Result<ConsoleRead, HypervisorError>;
    /// Types to the guest; returns how many bytes it accepts now.
    fn write(&mut self, from: &[u8]) -> Result<usize, HypervisorError>;
}

/// How large a disk of a domain is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSize {
    /// Size seen by the guest, in bytes.
    pub capacity_bytes: u64,
    /// Bytes that it occupies on the host.
    pub allocation_bytes: u64,
}

/// The usage of a running guest on its host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// CPU time since its start, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Memory of the host that its process occupies, in KiB.
    pub memory_kib: Option<u64>,
}

/// The guests that a hypervisor runs.
pub trait Live {
    /// The id of a running domain, which changes at each start; `None` if it does not run, or
    /// unknown.
    fn run_id(&self, _name: &str) -> Result<Option<u32>, HypervisorError> {
        Ok(None)
    }
    /// Starts a defined domain.
    fn start(&self, name: &str) -> Result<(), HypervisorError>;
    /// Asks a guest to shut down; does not wait until it has.
    fn shutdown(&self, name: &str, by: AskedBy) -> Result<(), HypervisorError>;
    /// Stops the vCPUs of a running guest, or resumes those of a paused one.
    fn pause(&self, name: &str, _paused: bool) -> Result<(), HypervisorError> {
        unsupported(format_args!("pause domain `{name}`"), "cannot pause guests")
    }
    /// Ends a guest at once, like a power cut; succeeds if it no longer runs.
    fn destroy(&self, name: &str) -> Result<(), HypervisorError>;
    /// Gives a running guest a device more, and leaves the definition of its next start as it is.
    fn attach(&self, name: &str, _device: &str) -> Result<(), HypervisorError> {
        unsupported(
            format_args!("attach a device to domain `{name}`"),
            "cannot attach devices to running guests",
        )
    }
    /// Asks a running guest to release a device, given as in its running definition; the definition
    /// of its next start is unchanged. The guest may take its time, or never do it:
    /// [`super::Domains::xml`] shows when it has.
    fn detach(&self, name: &str, device: &str) -> Result<(), HypervisorError>;
    /// The usage of a running guest on its host, as far as known.
    fn used(&self, _name: &str) -> Result<Used, HypervisorError> {
        Ok(Used::default())
    }
    /// The size of a disk of a domain, by its name in the guest; `None` if it is not reported, as
    /// of a drive without medium.
    fn disk_size(&self, _name: &str, _target: &str) -> Result<Option<DiskSize>, HypervisorError> {
        Ok(None)
    }
    /// Bytes that a running guest has read from and written to a disk, by its name in the guest, as
    /// QEMU counts them; `None` if they are not reported.
    fn disk_bytes(
        &self,
        _name: &str,
        _target: &str,
    ) -> Result<Option<ByteCounts>, HypervisorError> {
        Ok(None)
    }
    /// Grows a disk of a running guest, by its name in the guest, and notifies the guest.
    fn grow_disk(&self, name: &str, target: &str, _bytes: u64) -> Result<(), HypervisorError> {
        unsupported(
            format_args!("grow disk `{target}` of domain `{name}`"),
            "cannot grow disks of running guests",
        )
    }
    /// Pins a thread of a running guest; the definition of its next start is unchanged.
    fn pin(&self, name: &str, thread: GuestThread, pcpus: &CpuSet) -> Result<(), HypervisorError>;
    /// Has a running guest have this number of its vCPUs; the definition of its next start is
    /// unchanged.
    fn plug_vcpus(&self, name: &str, _vcpus: u32) -> Result<(), HypervisorError> {
        unsupported(
            format_args!("change the number of vCPUs of running domain `{name}`"),
            "cannot plug vCPUs",
        )
    }
    /// Changes live settings of a running guest's device, such as bandwidth, given as in its
    /// running definition; the definition of its next start is unchanged.
    fn update(&self, name: &str, device: &str) -> Result<(), HypervisorError>;
    /// Sends a command to a running guest's agent and returns its answer, both JSON. The answer is
    /// as trustworthy as the guest.
    fn ask_agent(
        &self,
        name: &str,
        command: &str,
        wait: Duration,
    ) -> Result<String, HypervisorError>;
    /// Attaches to the first console of a running guest; `force` takes it over from another user.
    fn console(&self, name: &str, force: bool) -> Result<Box<dyn Console>, HypervisorError>;
}
