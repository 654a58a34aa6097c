//! The hypervisor as the rest of the program sees it: few methods, plain values. [`Hypervisor`] is
//! the interface, in parts by subject; its implementation for libvirt is in `libvirt`, the only
//! file that uses the binding.

mod addresses;
mod domains;
pub mod emulator;
mod error;
pub mod file_users;
#[cfg(feature = "libvirt")]
mod kvm;
#[cfg(feature = "libvirt")]
pub mod lazy;
#[cfg(feature = "libvirt")]
pub mod libvirt;
mod live;
pub mod machine;
pub mod network;
pub mod none;
pub mod slow;
pub mod snapshot;
pub mod storage;
#[cfg(test)]
mod stubs;

pub use addresses::{Addresses, Lease};
pub use domains::{
    Definition, DomainState, DomainSummary, Domains, Keep, Kept, XmlOf, definitions,
};
pub use error::{HypervisorError, HypervisorErrorKind, SILENT};
pub use live::{AskedBy, Console, ConsoleRead, DiskSize, Live, Used};

use gpuvm_core::domain::guest::VirtType;
use gpuvm_core::topology::software::GuestSupport;
use gpuvm_core::versions::Versions;
use machine::{Identity, Machine};
use network::Networks;
use snapshot::Snapshots;
use std::path::PathBuf;
use storage::Storage;

/// A hypervisor that domains can be defined on: the connection and its machine, and its objects.
pub trait Hypervisor: Domains + Snapshots + Live + Addresses {
    /// The URI of the connection, for messages.
    fn uri(&self) -> &str;
    /// The URI actually opened, with aliases resolved.
    fn opened_uri(&self) -> String {
        self.uri().to_owned()
    }
    /// The machine that its domains are on.
    fn machine(&self) -> Machine {
        Machine::Here
    }
    /// The identity of that machine, for a journal.
    fn identity(&self) -> Identity {
        Identity::of_this_machine()
    }
    /// Whether its guests run on this machine, so that they have its devices and pages; those of
    /// libvirt's `test` driver do not really run.
    fn has_guests_here(&self) -> bool {
        self.machine().is_here() && !machine::is_test(self.uri())
    }
    /// The directory of this machine that it keeps the logs of guests in; `None` if it keeps none
    /// here.
    fn log_dir(&self) -> Option<PathBuf> {
        None
    }
    /// The same, where the directory is missing; `None` if it is there, or it is not known where.
    fn missing_log_dir(&self) -> Option<PathBuf> {
        None
    }
    /// The versions of the components that guests run on, as far as reported.
    fn versions(&self) -> Versions {
        Versions::default()
    }
    /// Whether it passes functions of the host through by iommufd; none if it does not say.
    fn offers_iommufd(&self) -> Option<bool> {
        None
    }
    /// Whether its QEMU nests a guest's SMMUv3 in the host's.
    fn accelerates_smmu(&self) -> bool {
        false
    }
    /// The QEMU program of this machine that guests run in; `None` if they run elsewhere, or in
    /// none.
    fn emulator(&self) -> Option<PathBuf> {
        None
    }
    /// Its report of the guests that it can run; `None` if the driver does not report it.
    fn guest_support(&self) -> Option<GuestSupport> {
        None
    }
    /// Why guests cannot have this machine type; `None` if they can, or a driver that does not
    /// report it.
    fn refuses_machine(&self, _machine: &str, _virt: VirtType) -> Option<String> {
        None
    }
    /// Reconnects if the connection was lost.
    fn reconnect(&self) -> Result<(), HypervisorError> {
        Ok(())
    }
    /// Its storage.
    fn storage(&self) -> &dyn Storage;
    /// Its networks.
    fn networks(&self) -> &dyn Networks;
}
