//! The machine of a connection, and the abilities of guests on it.

use super::super::kvm::{Node, closed};
use super::super::machine::{self, Identity, Machine, MachineReport, SYSTEM_LOGS, decide};
use super::super::network::Networks;
use super::super::storage::Storage;
use super::super::{Hypervisor, HypervisorError};
use super::Libvirt;
use super::call::{Call, ask, call};
use super::support::{self, Supported};
use gpuvm_core::domain::guest::VirtType;
use gpuvm_core::topology::software::{GuestSupport, UnusableKvm};
use gpuvm_core::versions::{Version, Versions};
use serde::Deserialize;
use std::path::PathBuf;
use virt::connect::Connect;

/// A driver of libvirt's client library, which reads this machine's name like every driver.
const IN_PROCESS: &str = "test:///default";

/// libvirt's host capabilities, as far as needed.
#[derive(Debug, Deserialize)]
struct Capabilities {
    host: Host,
}

#[derive(Debug, Deserialize)]
struct Host {
    uuid: Option<String>,
}

impl MachineReport for Libvirt {
    fn uri(&self) -> String {
        self.connection().uri().unwrap_or_else(|_| self.uri.clone())
    }

    fn host_name(&self) -> Option<String> {
        self.connection().hostname().ok()
    }

    fn uuid(&self) -> Option<String> {
        let text = self.connection().capabilities().ok()?;
        quick_xml::de::from_str::<Capabilities>(&text).ok()?.host.uuid
    }

    fn own_name(&self) -> Option<String> {
        Connect::open_read_only(Some(IN_PROCESS)).ok()?.hostname().ok()
    }
}

impl Hypervisor for Libvirt {
    fn uri(&self) -> &str {
        &self.uri
    }

    fn opened_uri(&self) -> String {
        MachineReport::uri(self)
    }

    fn machine(&self) -> Machine {
        ask(format_args!("which machine it is on"), || self.its_machine().clone())
    }

    fn identity(&self) -> Identity {
        ask(format_args!("what tells its machine from others"), || self.its_identity())
    }

    // A part of other calls, which are traced.
    fn has_guests_here(&self) -> bool {
        self.its_machine().is_here() && !machine::is_test(&self.uri)
    }

    fn log_dir(&self) -> Option<PathBuf> {
        self.logs_to().filter(|dir| dir.is_dir())
    }

    fn missing_log_dir(&self) -> Option<PathBuf> {
        self.logs_to().filter(|dir| !dir.is_dir())
    }

    fn offers_iommufd(&self) -> Option<bool> {
        ask(format_args!("whether it has iommufd"), || support::offers_iommufd(&self.connection()))
    }

    fn accelerates_smmu(&self) -> bool {
        ask(format_args!("whether it nests an SMMUv3"), || {
            super::abilities::accelerates_smmu(&self.connection())
        })
    }

    fn versions(&self) -> Versions {
        ask(format_args!("its versions"), || {
            // libvirt's test driver returns its own version as QEMU's.
            let is_qemu = self.uri.starts_with("qemu");
            let qemu = self.connection().hyp_version().ok().filter(|_| is_qemu);
            let libvirt = self.connection().lib_version().ok();
            Versions {
                libvirt: libvirt.map(Version::of_libvirt),
                qemu: qemu.map(Version::of_libvirt),
            }
        })
    }

    fn emulator(&self) -> Option<PathBuf> {
        ask(format_args!("its QEMU"), || {
            let is_here = self.its_machine().is_here();
            is_here.then(|| support::emulator(&self.connection())).flatten()
        })
    }

    fn guest_support(&self) -> Option<GuestSupport> {
        ask(format_args!("the guests that it can run"), || {
            self.support.get_or_init(|| self.ask_support()).clone()
        })
    }

    fn refuses_machine(&self, machine: &str, virt: VirtType) -> Option<String> {
        ask(format_args!("whether it has a machine type"), || {
            support::refuses_machine(&self.connection(), machine, virt.as_str())
        })
    }

    fn reconnect(&self) -> Result<(), HypervisorError> {
        let doing = format_args!("connect to {} again", self.uri);
        call(Call::Changes, doing, || self.connect_again())
    }

    fn storage(&self) -> &dyn Storage {
        self
    }

    fn networks(&self) -> &dyn Networks {
        self
    }
}

impl Libvirt {
    /// Returns the machine of its domains, read once.
    fn its_machine(&self) -> &Machine {
        self.machine.get_or_init(|| decide(self))
    }

    /// Returns the identity of that machine.
    fn its_identity(&self) -> Identity {
        match self.its_machine() {
            Machine::Here => Identity::of_this_machine(),
            Machine::Elsewhere { host } => Identity {
                host: self.host_name().unwrap_or_else(|| host.clone()),
                uuid: self.uuid(),
            },
        }
    }

    /// Where it keeps the logs of guests; `None` for another machine, or not the system's libvirt.
    fn logs_to(&self) -> Option<PathBuf> {
        let is_system = self.uri.split('?').next().is_some_and(|uri| uri.ends_with(":///system"));
        (is_system && self.has_guests_here()).then(|| PathBuf::from(SYSTEM_LOGS))
    }

    /// Asks which guests it can run, unless that has begun.
    fn ask_support(&self) -> Option<GuestSupport> {
        if !self.uri.starts_with("qemu") {
            return None;
        }
        let asked = self.supported.take().and_then(|asked| asked.join().ok());
        let Supported { support, no_kvm } =
            asked.unwrap_or_else(|| support::supported(&self.connection()))?;
        let is_here = self.its_machine().is_here();
        let no_kvm = no_kvm.map(|why| match closed(&Node::of_this_machine()) {
            Some((why, command)) if is_here => UnusableKvm { why, command: Some(command) },
            _ => UnusableKvm { why, command: None },
        });
        Some(GuestSupport { no_kvm, ..support })
    }
}
