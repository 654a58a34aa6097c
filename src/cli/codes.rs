//! Stable names of errors, for programs; gpuvm-codes(7) lists them. Those of the modules' error enums are made from the
//! names of variants; those of verbs are the classes of [`Class`].

use super::error::{Hinted, Refused, told_by};
use crate::apply::array::ArrayError;
use crate::apply::bind::BindError;
use crate::apply::command::CommandError;
use crate::apply::hostnet::HostNetError;
use crate::apply::nic::{LinkError, NicError};
use crate::apply::pages::PagesError;
use crate::apply::setting::SettingError;
use crate::apply::{ApplyError, DiskError, ExclusionsError, JournalError, LockError, StepError};
use crate::bdf::BdfError;
use crate::blockdev::BlockError;
use crate::cpuset::IdSetError;
use crate::discover::DiscoverError;
use crate::discover::files::ConfError;
use crate::discover::lstopo::LstopoError;
use crate::discover::source::LoadError;
use crate::discover::topo::TopoError;
use crate::domain::DomainXmlError;
use crate::fsroot::FsError;
use crate::history::HistoryError;
use crate::hypervisor::HypervisorError;
use crate::image::{BelowError, ContentError, ImageNameError, SumError};
use crate::input::InputError;
use crate::memsize::MemSizeError;
use crate::placement::PlanError;
use crate::request::RequestError;
use crate::seed::SeedError;
use crate::topology::TopologyError;
use crate::topology::file::FileError;
use crate::tune::TuneError;
use crate::{hostnet, network};
pub use gpuvm_ops::error::Class;
use gpuvm_ops::error::Error as OpsError;
use std::error::Error;
use strum::VariantNames;

/// Is an error type whose values have codes.
struct Known {
    /// All of its codes; one that ends with `-` stands for the codes of the cause.
    codes: &'static [&'static str],
    /// The code of an error of this type; none: it is of another.
    of: fn(&(dyn Error + 'static)) -> Option<&'static str>,
}

/// The entry of an error type.
const fn known<E>() -> Known
where
    E: Error + VariantNames + 'static,
    for<'e> &'static str: From<&'e E>,
{
    Known { codes: E::VARIANTS, of: |error| error.downcast_ref::<E>().map(Into::into) }
}

/// The error types that are met as causes.
static KNOWN: [Known; 39] = [
    Known {
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
    Known {
        codes: &["exclusions-file"],
        of: |error| error.is::<ExclusionsError>().then_some("exclusions-file"),
    },
    known::<FileError>(),
    known::<FsError>(),
    known::<HistoryError>(),
    known::<HostNetError>(),
    known::<HypervisorError>(),
    known::<IdSetError>(),
    Known {
        codes: &["image-name"],
        of: |error| error.is::<ImageNameError>().then_some("image-name"),
    },
    known::<InputError>(),
    known::<JournalError>(),
    known::<LinkError>(),
    known::<LoadError>(),
    known::<LockError>(),
    known::<LstopoError>(),
    known::<MemSizeError>(),
    known::<NicError>(),
    known::<PagesError>(),
    known::<PlanError>(),
    known::<RequestError>(),
    known::<SeedError>(),
    known::<SettingError>(),
    known::<StepError>(),
    known::<SumError>(),
    known::<TopoError>(),
    known::<TopologyError>(),
    known::<TuneError>(),
];

/// The code of an error: the one that the verb gave, else that of the first cause that has one, else that of its class.
pub fn code(error: &anyhow::Error) -> &'static str {
    let verb = told_by(error).map(|hinted| hinted.code);
    let plain = <&str>::from(Class::Refused);
    if let Some(code) = verb.filter(|code| *code != plain) {
        return code;
    }
    let below = error.chain().find_map(of_cause);
    below.or(verb).unwrap_or_else(|| Class::System.into())
}

/// The code of one cause.
fn of_cause(cause: &(dyn Error + 'static)) -> Option<&'static str> {
    let hinted = cause.downcast_ref::<Hinted>().map(|hinted| hinted.code);
    let refused = cause.downcast_ref::<Refused>().map(|refused| (&refused.error).into());
    hinted
        .or(refused)
        .or_else(|| KNOWN.iter().find_map(|known| (known.of)(cause)))
        .filter(|code| !code.ends_with('-'))
}

/// All codes.
pub fn codes() -> impl Iterator<Item = &'static str> {
    let known = KNOWN.iter().map(|known| known.codes);
    let all =
        known.chain([Class::VARIANTS, network::Problem::VARIANTS, hostnet::Problem::VARIANTS]);
    all.flatten().copied().filter(|code| !code.ends_with('-'))
}
