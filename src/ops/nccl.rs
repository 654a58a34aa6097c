//! `nccl`: a guest's topology for NCCL, from its definition and its host. Its content comes from
//! [`gpuvm_core::nccl`].

pub mod inside;
pub mod install;
pub mod uninstall;

use crate::domain::DomainXml;
use crate::error::{Coded, Doing as _, Error, Result};
use crate::hypervisor::XmlOf;
use crate::lookup::find;
use crate::shell::word;
use crate::source::{Source, definition};
use crate::world::World;
use gpuvm_core::check::place_hint;
use gpuvm_core::nccl::{NcclError, Note, NotedSystem, System, redirects, topology};
use gpuvm_core::topology::Moment;
use serde::Serialize;

/// A guest's topology for NCCL.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Nccl {
    /// Name of the domain.
    pub domain: String,
    /// Whether NCCL chooses otherwise with the file than without: the guest has two GPUs, or a GPU
    /// and a NIC.
    pub needed: bool,
    /// The value of `NCCL_TOPO_FILE`, as text.
    pub file: String,
    /// The same as values, with the addresses on the host.
    pub system: System,
    /// Inferred, missing or omitted values.
    pub notes: Vec<Note>,
}

impl Coded for NcclError {}

/// Makes the topology of a domain; changes nothing.
pub fn nccl(world: &World, source: &Source) -> Result<Nccl> {
    let (domain, moment) = read(source, world)?;
    of(&domain, world, source, moment)
}

/// Makes the topology of domain XML that is not defined yet.
pub fn nccl_of(world: &World, domain: &DomainXml) -> Result<Nccl> {
    of(domain, world, &Source::File("FILE".into()), Moment::Start)
}

/// Makes the topology of a domain on its host.
fn of(domain: &DomainXml, world: &World, source: &Source, moment: Moment) -> Result<Nccl> {
    let host = world.topology()?;
    let NotedSystem { system, mut notes, is_needed } =
        topology(domain, &host).map_err(|error| helped(error, source))?;
    notes.extend(redirects(&system, &host, moment).notes());
    let name = Some(domain.name()).filter(|name| !name.is_empty());
    Ok(Nccl {
        domain: name.unwrap_or_else(|| source.named().to_owned()),
        needed: is_needed,
        file: system.to_string(),
        system,
        notes,
    })
}

/// Reads the domain: the live XML of a running one, in which functions have their current
/// addresses, and whether it runs.
fn read(source: &Source, world: &World) -> Result<(DomainXml, Moment)> {
    let name = match source {
        Source::File(file) => return Ok((definition(file)?, Moment::Start)),
        Source::Domain(name) => name,
    };
    let hypervisor = world.hypervisor()?;
    let active = find(&*hypervisor, name)?.state.is_active();
    let (of, moment) =
        if active { (XmlOf::Live, Moment::Running) } else { (XmlOf::Inactive, Moment::Start) };
    let xml = DomainXml::parse(&hypervisor.xml(name, of)?);
    Ok((xml.doing(|| format!("cannot read `{name}`"))?, moment))
}

/// Adds a hint to the error.
fn helped(error: NcclError, source: &Source) -> Error {
    // Standard input cannot be read a second time.
    let named = match source.named() {
        "-" => "FILE".into(),
        named => word(named),
    };
    let check = format!("`gpuvm check {named}` finds what is wrong with its PCI tree");
    let hint = match (&error, source) {
        (NcclError::NoGpu, Source::Domain(_)) => format!("`gpuvm show {named}` lists its devices"),
        (NcclError::NoGpu, Source::File(_)) => "`gpuvm gpu list` lists the host's GPUs".into(),
        (NcclError::NoPcie, _) => "give it machine type q35, which guests of gpuvm have".into(),
        (NcclError::NoAddress { .. }, Source::File(_)) => {
            format!("`virsh define {named}` fills it in; then name the domain")
        }
        (NcclError::ByArgument { .. }, _) => {
            "`virsh edit` replaces the argument by a <hostdev>, whose address libvirt writes".into()
        }
        // A domain defined by libvirt has the controllers of all buses.
        (NcclError::Unconnected { .. }, Source::File(_)) => {
            format!("`virsh define {named}` adds controllers that it lacks; then name the domain")
        }
        (NcclError::UnknownPath { bdf }, _) => format!(
            "`gpuvm device list` shows whether the host has {bdf}; a record of it is made by \
             `gpuvm host capture FILE`"
        ),
        // A root port of its own has it already, at most.
        (NcclError::NicPlace { .. }, _) => place_hint(&named),
        (NcclError::NicsOnOneBus { .. }, _) => {
            format!("`gpuvm tune {named} --pcie on` gives each a root port of its own")
        }
        (NcclError::TooLarge { .. }, _) => {
            "pass fewer devices through; without a file NCCL reads what the guest shows".into()
        }
        _ => check,
    };
    error.hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuvm_core::bdf::Bdf;

    /// A NIC with a root port of its own already is not moved by `tune --pcie on`.
    #[test]
    fn a_nic_at_another_slot_gets_the_text_to_write() {
        let bdf = |text: &str| text.parse::<Bdf>().unwrap();
        let error = NcclError::NicPlace { bdf: bdf("0000:4b:00.0"), guest: bdf("0000:e8:01.0") };
        let error = helped(error, &Source::File("t.xml".into()));
        let hint = &error.refusal().unwrap().hint;
        assert!(
            hint.starts_with("write slot='0x00' function='0x0' in its guest address"),
            "{hint}"
        );
    }
}
