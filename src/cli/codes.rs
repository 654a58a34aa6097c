//! Stable names of errors, for programs; gpuvm-codes(7) lists them. Codes of the modules' error
//! enums are made from variant names; those of verbs are the classes of [`Class`].

use crate::apply::array::ArrayError;
use crate::apply::bind::BindError;
use crate::apply::hostnet::HostNetError;
use crate::apply::nic::{LinkError, NicError};
use crate::apply::p2p::P2pError;
use crate::apply::pages::PagesError;
use crate::apply::partition::PartitionError;
use crate::apply::setting::SettingError;
use crate::apply::vgpu::VgpuError;
use crate::apply::{ApplyError, DiskError, ExclusionsError, JournalError, LockError, StepError};
use crate::bdf::BdfError;
use crate::blockdev::BlockError;
use crate::command::CommandError;
use crate::cpuset::IdSetError;
use crate::discover::DiscoverError;
use crate::discover::files::ConfError;
use crate::discover::lstopo::LstopoError;
use crate::discover::source::LoadError;
use crate::discover::topo::TopoError;
use crate::domain::DomainXmlError;
use crate::fetch::FetchError;
use crate::fsroot::FsError;
use crate::history::HistoryError;
use crate::hypervisor::HypervisorError;
use crate::image::{BelowError, ContentError, ImageNameError, SumError};
use crate::input::InputError;
use crate::memsize::MemSizeError;
use crate::nccl::NcclError;
use crate::pinned_dir::HeldError;
use crate::placement::PlanError;
use crate::request::RequestError;
use crate::seed::SeedError;
use crate::signature::SignatureError;
use crate::topology::TopologyError;
use crate::topology::file::FileError;
use crate::tune::TuneError;
use crate::{hostnet, network};
use gpuvm_core::bundle::ManifestError;
use gpuvm_core::export::PlatformError;
use gpuvm_core::fabric::{NeedRefusal, PartitionRefusal, RestoreListError};
use gpuvm_core::slurm::{JobError, SlurmConfError};
use gpuvm_core::topology::DirectRefusal;
use gpuvm_host::bundle::BundleError;
use gpuvm_host::fabric::{ManagerRefusal, RestoreFileError};
use gpuvm_host::slurm::SlurmError;
use gpuvm_ops::backing::BackingError;
use gpuvm_ops::bind::DeviceError;
use gpuvm_ops::bundle::ExportError;
use gpuvm_ops::by_ssh::SshError;
use gpuvm_ops::claim::ClaimError;
use gpuvm_ops::clone::CloneError;
use gpuvm_ops::console::ConsoleError;
use gpuvm_ops::create::CreateError;
use gpuvm_ops::described::{DescribedError, GuestsError};
use gpuvm_ops::doctor::DoctorError;
use gpuvm_ops::domain_history::HistoryOfError;
use gpuvm_ops::drives::error::{ArrayVerbError, DriveError};
use gpuvm_ops::drop_seed::DropSeedError;
pub use gpuvm_ops::error::Class;
use gpuvm_ops::error::Obstacles;
use gpuvm_ops::error::{Error as OpsError, Refusal};
use gpuvm_ops::exclude::GpuError;
use gpuvm_ops::exec::ExecError;
use gpuvm_ops::fabric::{BootFileError, FabricError};
use gpuvm_ops::files::FileError as OutputError;
use gpuvm_ops::fleet::{FleetError, HostsError};
use gpuvm_ops::gpu_test::GpuTestError;
use gpuvm_ops::guest::RenderError;
use gpuvm_ops::guest_disks::error::GuestDiskError;
use gpuvm_ops::host::HostUndoError;
use gpuvm_ops::host_bridge::HostBridgeError;
use gpuvm_ops::host_settings::HostVerbError;
use gpuvm_ops::images::error::{ImageError, ImagesFileError};
use gpuvm_ops::import::ImportError;
use gpuvm_ops::initramfs::InitramfsError;
use gpuvm_ops::later::LaterError;
use gpuvm_ops::logs::LogsError;
use gpuvm_ops::make_room::RoomError;
use gpuvm_ops::measure::MeasureError;
use gpuvm_ops::nccl::inside::InstallError;
use gpuvm_ops::networks::NetworkError;
use gpuvm_ops::p2p::restore::RestoreError;
use gpuvm_ops::pages::GuestPagesError;
use gpuvm_ops::paths::PathError;
use gpuvm_ops::pools::PoolError;
use gpuvm_ops::recognise::IdentityError;
use gpuvm_ops::remote::RemoteError;
use gpuvm_ops::rename::RenameError;
use gpuvm_ops::restart::RestartError;
use gpuvm_ops::set::SetError;
use gpuvm_ops::slurm::SlurmJobError;
use gpuvm_ops::snapshot::SnapshotError;
use gpuvm_ops::sriov::CardError;
use gpuvm_ops::startable::StartError;
use gpuvm_ops::storage::StorageError;
use gpuvm_ops::top::TopError;
use gpuvm_ops::tune::subjects::TunedError;
use gpuvm_ops::undo::UndoError;
use gpuvm_ops::vfs::VfsError;
use gpuvm_ops::vgpu::claim::VgpuClaimError;
use gpuvm_ops::vgpu::vfs::VgpuCardError;
use std::error::Error;
use strum::VariantNames;

/// Returns the refusal that an error is, or that wraps its cause.
pub fn refusal_of(error: &anyhow::Error) -> Option<&Refusal> {
    let of_operation = || error.downcast_ref::<gpuvm_ops::error::Error>()?.refusal();
    error.downcast_ref::<Refusal>().or_else(of_operation)
}

/// An error type whose values have codes.
struct CodedError {
    /// All of its codes; one that ends with `-` stands for the codes of the cause.
    codes: &'static [&'static str],
    /// The code of an error of this type; `None` if it has another type.
    of: fn(&(dyn Error + 'static)) -> Option<&'static str>,
}

/// The entry of an error type.
const fn known<E>() -> CodedError
where
    E: Error + VariantNames + 'static,
    for<'e> &'static str: From<&'e E>,
{
    CodedError { codes: E::VARIANTS, of: |error| error.downcast_ref::<E>().map(Into::into) }
}

/// The error types that occur as causes.
static KNOWN: [CodedError; 119] = [
    CodedError { codes: &[], of: of_obstacles },
    CodedError {
        codes: gpuvm_ops::error::Error::VARIANTS,
        of: |error| match error.downcast_ref() {
            Some(OpsError::Changed { .. }) => Some(Class::Changed.into()),
            _ => None,
        },
    },
    known::<ApplyError>(),
    known::<ArrayError>(),
    known::<BdfError>(),
    known::<BelowError>(),
    known::<BindError>(),
    known::<BlockError>(),
    known::<CommandError>(),
    known::<ConfError>(),
    known::<ContentError>(),
    known::<DiscoverError>(),
    known::<DiskError>(),
    known::<DomainXmlError>(),
    CodedError {
        codes: &["exclusions-file"],
        of: |error| error.is::<ExclusionsError>().then_some("exclusions-file"),
    },
    known::<ExecError>(),
    known::<FetchError>(),
    known::<FileError>(),
    known::<FsError>(),
    known::<HeldError>(),
    known::<HistoryError>(),
    known::<HostNetError>(),
    known::<HypervisorError>(),
    known::<IdSetError>(),
    CodedError {
        codes: &["image-name"],
        of: |error| error.is::<ImageNameError>().then_some("image-name"),
    },
    known::<InputError>(),
    known::<JournalError>(),
    known::<LinkError>(),
    known::<LoadError>(),
    known::<LockError>(),
    known::<LogsError>(),
    known::<LstopoError>(),
    known::<MemSizeError>(),
    known::<NcclError>(),
    known::<NicError>(),
    known::<VgpuError>(),
    known::<P2pError>(),
    known::<DirectRefusal>(),
    known::<RestoreError>(),
    known::<SetError>(),
    known::<UndoError>(),
    known::<HostUndoError>(),
    known::<GuestDiskError>(),
    known::<DropSeedError>(),
    known::<InstallError>(),
    known::<ClaimError>(),
    known::<IdentityError>(),
    known::<LaterError>(),
    known::<HistoryOfError>(),
    known::<OutputError>(),
    known::<GuestPagesError>(),
    known::<RemoteError>(),
    known::<RenameError>(),
    known::<CloneError>(),
    known::<BundleError>(),
    known::<ManifestError>(),
    known::<ExportError>(),
    known::<ImportError>(),
    known::<RestartError>(),
    known::<RoomError>(),
    known::<StartError>(),
    known::<SlurmConfError>(),
    known::<JobError>(),
    known::<SlurmError>(),
    known::<SlurmJobError>(),
    known::<SnapshotError>(),
    known::<VfsError>(),
    known::<PagesError>(),
    known::<PoolError>(),
    known::<PartitionError>(),
    known::<PartitionRefusal>(),
    known::<NeedRefusal>(),
    known::<ManagerRefusal>(),
    known::<FabricError>(),
    known::<BootFileError>(),
    known::<FleetError>(),
    known::<HostsError>(),
    known::<RestoreFileError>(),
    known::<RestoreListError>(),
    known::<PlanError>(),
    known::<PlatformError>(),
    known::<RequestError>(),
    known::<SeedError>(),
    known::<SignatureError>(),
    known::<SettingError>(),
    known::<StepError>(),
    known::<SumError>(),
    known::<MeasureError>(),
    known::<SshError>(),
    known::<TopError>(),
    known::<TopoError>(),
    known::<TopologyError>(),
    known::<TuneError>(),
    known::<ConsoleError>(),
    known::<CreateError>(),
    known::<DescribedError>(),
    known::<GuestsError>(),
    known::<TunedError>(),
    known::<RenderError>(),
    known::<PathError>(),
    known::<BackingError>(),
    known::<StorageError>(),
    known::<ArrayVerbError>(),
    known::<DriveError>(),
    known::<ImageError>(),
    known::<ImagesFileError>(),
    known::<NetworkError>(),
    known::<HostBridgeError>(),
    known::<DeviceError>(),
    known::<DoctorError>(),
    known::<InitramfsError>(),
    known::<GpuError>(),
    known::<GpuTestError>(),
    known::<CardError>(),
    known::<VgpuCardError>(),
    known::<VgpuClaimError>(),
    known::<HostVerbError>(),
    CodedError { codes: network::Problem::VARIANTS, of: of_network },
    CodedError { codes: hostnet::Problem::VARIANTS, of: of_host_bridge },
];

/// Returns the code of a refused network: that of its first reason.
fn of_network(error: &(dyn Error + 'static)) -> Option<&'static str> {
    error.downcast_ref::<network::Refused>()?.problems.first().map(Into::into)
}

/// Returns the code of several reasons: that of the first one.
fn of_obstacles(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let first = error.downcast_ref::<Obstacles>()?.errors.first()?;
    let own = first.refusal().map(|refusal| refusal.code);
    let plain = <&str>::from(Class::Refused);
    let first: &(dyn Error + 'static) = first;
    let mut causes =
        std::iter::successors(Some(first), |cause: &&(dyn Error + 'static)| (*cause).source());
    own.filter(|code| *code != plain).or_else(|| causes.find_map(of_cause)).or(own)
}

/// Returns the code of a refused host bridge: that of its first reason.
fn of_host_bridge(error: &(dyn Error + 'static)) -> Option<&'static str> {
    error.downcast_ref::<hostnet::Refused>()?.problems.first().map(Into::into)
}

/// The code of an error: the one given by the verb, otherwise that of the first cause with one,
/// otherwise that of its class.
pub fn code(error: &anyhow::Error) -> &'static str {
    let verb = refusal_of(error).map(|hinted| hinted.code);
    let plain = <&str>::from(Class::Refused);
    if let Some(code) = verb.filter(|code| *code != plain) {
        return code;
    }
    let below = error.chain().find_map(of_cause);
    below.or(verb).unwrap_or_else(|| Class::System.into())
}

fn of_cause(cause: &(dyn Error + 'static)) -> Option<&'static str> {
    let hinted = cause.downcast_ref::<Refusal>().map(|hinted| hinted.code);
    hinted
        .or_else(|| KNOWN.iter().find_map(|known| (known.of)(cause)))
        .filter(|code| !code.ends_with('-'))
}

/// All codes.
pub fn codes() -> impl Iterator<Item = &'static str> {
    let known = KNOWN.iter().map(|known| known.codes);
    known.chain([Class::VARIANTS]).flatten().copied().filter(|code| !code.ends_with('-'))
}
