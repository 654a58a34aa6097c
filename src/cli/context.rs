//! What a verb works on: the host, its hypervisor, what is taken. Each is read when it is first asked for.

use super::args::{Global, TakenArgs};
use super::output::Output;
use crate::bdf::Bdf;
use crate::discover::exclusions;
use crate::domain::DomainXml;
use crate::fsroot::FsRoot;
use crate::hypervisor::none::{self, NoHypervisor};
use crate::hypervisor::{
    DomainState, Hypervisor, HypervisorError, HypervisorErrorKind, VfPool, XmlOf,
};
use crate::input::{self, DOMAIN_BYTES};
use crate::placement::{Exclusion, Held, Occupancy};
use crate::topology::Topology;
use anyhow::Context as _;
use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Is what a verb works on.
pub struct Context<'a> {
    /// What holds for every verb.
    pub global: &'a Global,
    /// How to print.
    pub output: Output,
    /// The hypervisor, once it was asked for.
    hypervisor: OnceCell<Rc<dyn Hypervisor>>,
}

impl<'a> Context<'a> {
    /// Makes the context of a run.
    pub fn new(global: &'a Global) -> Context<'a> {
        Context { global, output: Output::new(global), hypervisor: OnceCell::new() }
    }

    /// The host: the recorded one of `--host`, or this machine.
    pub fn topology(&self) -> anyhow::Result<Topology> {
        Ok(match &self.global.host {
            Some(path) => crate::discover::source::load(path)?,
            None => crate::discover::discover(&FsRoot::live()?)?,
        })
    }

    /// The hypervisor of `--connect`; a run has one connection.
    pub fn hypervisor(&self) -> anyhow::Result<Rc<dyn Hypervisor>> {
        if let Some(open) = self.hypervisor.get() {
            return Ok(Rc::clone(open));
        }
        let opened = open(&self.global.connect, false)?;
        Ok(Rc::clone(self.hypervisor.get_or_init(|| opened)))
    }

    /// The hypervisor of `--connect`, or none where it does not answer: for changes of the host, which ask it whose a
    /// function is.
    pub fn hypervisor_or_none(&self) -> Rc<dyn Hypervisor> {
        self.hypervisor().unwrap_or_else(|_| Rc::new(NoHypervisor))
    }

    /// The hypervisor of `--connect`, ready for a console; to be asked for before [`Context::hypervisor`].
    pub fn hypervisor_for_console(&self) -> anyhow::Result<Rc<dyn Hypervisor>> {
        let opened = open(&self.global.connect, true)?;
        Ok(Rc::clone(self.hypervisor.get_or_init(|| opened)))
    }

    /// The hypervisor of another URI, or that of `--connect` where it is the same.
    pub fn hypervisor_at(&self, uri: &str) -> anyhow::Result<Rc<dyn Hypervisor>> {
        if uri == self.global.connect {
            return self.hypervisor();
        }
        if uri == none::URI {
            return Ok(Rc::new(NoHypervisor));
        }
        open(uri, false)
    }

    /// What every domain of the host holds, nothing on a recorded host, and what is out of use.
    pub fn occupancy(&self, assume_empty: bool) -> anyhow::Result<Occupancy> {
        if assume_empty || self.global.host.is_some() {
            return Ok(Occupancy { excluded: self.excluded()?, ..Occupancy::default() });
        }
        let hypervisor = self.hypervisor()?;
        let mut domains: Vec<Held> = Vec::new();
        for summary in hypervisor.domains()? {
            let active = !matches!(summary.state, DomainState::ShutOff | DomainState::Crashed);
            // What a running domain holds now, and what it will hold after its next start, may differ.
            let kinds =
                if active { &[XmlOf::Live, XmlOf::Inactive][..] } else { &[XmlOf::Inactive] };
            for &which in kinds {
                let text = match hypervisor.xml(&summary.name, which) {
                    // Deleted since it was listed.
                    Err(error) if error.kind == HypervisorErrorKind::NoDomain => continue,
                    text => text?,
                };
                let failed = || format!("cannot tell what domain `{}` holds", summary.name);
                let xml = DomainXml::parse(&text).with_context(failed)?;
                let mut held = xml.held(active).with_context(failed)?;
                held.devices.extend(super::drive::functions_of_disks(&xml).with_context(failed)?);
                if domains.last() != Some(&held) {
                    domains.push(held);
                }
            }
        }
        let mut excluded = self.excluded()?;
        // libvirt gives them to whoever starts next.
        for VfPool { name, functions } in hypervisor.vf_pools()? {
            let reason = format!("network `{name}` hands it out");
            let of_pool = |bdf: Bdf| Exclusion { bdf, reason: reason.clone() };
            excluded.extend(functions.into_iter().map(of_pool));
        }
        Ok(Occupancy { domains, excluded, ..Occupancy::default() })
    }

    /// The same; without domains, and with a warning, where no libvirt answers.
    pub fn occupancy_or_warn(&self) -> anyhow::Result<Occupancy> {
        match self.occupancy(false) {
            Err(error) if error.chain().any(|cause| cause.is::<HypervisorError>()) => {
                let told = "libvirt does not answer, so devices of guests are known only by the \
                            processes that have them open";
                self.output.warning(told);
                Ok(Occupancy { excluded: self.excluded()?, ..Occupancy::default() })
            }
            held => held,
        }
    }

    /// The root directory of the host; none where it is recorded in a file.
    pub fn root(&self) -> anyhow::Result<Option<FsRoot>> {
        Ok(match &self.global.host {
            None => Some(FsRoot::live()?),
            Some(path) if path.is_dir() => Some(FsRoot::at(path)?),
            Some(_) => None,
        })
    }

    /// GPUs and NVSwitches that were taken out of use; a host that is recorded in a file has no such list.
    pub fn excluded(&self) -> anyhow::Result<Vec<Exclusion>> {
        let Some(root) = self.root()? else { return Ok(Vec::new()) };
        let excluded = exclusions::excluded(&root)?.into_iter();
        Ok(excluded.map(|(bdf, reason)| Exclusion { bdf, reason }).collect())
    }

    /// What the domains hold that these arguments speak of.
    pub fn taken(&self, args: &TakenArgs) -> anyhow::Result<Occupancy> {
        let mut occupancy = self.occupancy(args.assume_empty)?;
        if !args.domain_xml.is_empty() && self.global.host.is_none() {
            return Err(super::error::usage(
                "--domain-xml names the domains of a recorded host, and --host is not given",
                "without --host the domains of this machine are read from libvirt",
            ));
        }
        let files = args.domain_xml.iter().map(|path| xml_files(path));
        for path in files.collect::<anyhow::Result<Vec<_>>>()?.concat() {
            let failed = || format!("cannot tell what the domain in `{}` holds", path.display());
            let text = input::text(&path, DOMAIN_BYTES).with_context(failed)?;
            let xml = DomainXml::parse(&text).with_context(failed)?;
            // libvirt prints the id of a domain that runs, and of no other.
            let active = xml.root().attr("id").is_some();
            occupancy.domains.push(xml.held(active).with_context(failed)?);
        }
        Ok(occupancy)
    }

    /// Refuses a verb that changes something on a recorded host.
    pub fn refuse_recorded(&self, verb: &str) -> anyhow::Result<()> {
        match &self.global.host {
            None => Ok(()),
            Some(_) => Err(super::error::usage(
                format!("`{verb}` changes the machine, so it does not take --host"),
                "`gpuvm export --host FILE` prints the domain XML that would be defined",
            )),
        }
    }
}

/// The file itself, or the files of a directory that end in `.xml`, by name.
pub fn xml_files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let failed = || format!("cannot read directory `{}`", path.display());
    let entries = std::fs::read_dir(path).with_context(failed)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut files = paths.collect::<Result<Vec<_>, _>>().with_context(failed)?;
    files.retain(|file| file.extension().is_some_and(|end| end.eq_ignore_ascii_case("xml")));
    files.sort();
    Ok(files)
}

/// Connects to a hypervisor, for a console or for all else.
#[cfg(feature = "libvirt")]
fn open(uri: &str, console: bool) -> anyhow::Result<Rc<dyn Hypervisor>> {
    use crate::hypervisor::libvirt::Libvirt;
    let opened = if console { Libvirt::open_for_console(uri) } else { Libvirt::open(uri) };
    Ok(Rc::new(opened?))
}

/// Says that this program has no hypervisor.
#[cfg(not(feature = "libvirt"))]
fn open(uri: &str, _: bool) -> anyhow::Result<Rc<dyn Hypervisor>> {
    let error = HypervisorError {
        kind: HypervisorErrorKind::NoLibrary,
        doing: format!("connect to {uri}"),
        message: "this gpuvm was built without libvirt (cargo feature `libvirt`)".into(),
    };
    Err(error.into())
}
