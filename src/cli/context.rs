//! What a verb works on: its world, and how its answer is printed.

use super::args::{Global, TakenArgs};
use super::change::Screen;
use super::output::Output;
use crate::domain::DomainXml;
use crate::input::{self, DOMAIN_BYTES, InputError};
use crate::placement::Occupancy;
use anyhow::Context as _;
use gpuvm_ops::world::{Settings, World};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a verb works on.
pub struct Context<'a> {
    /// What holds for every verb.
    pub global: &'a Global,
    /// How to print.
    pub output: Output,
    /// What it looks at.
    world: World,
}

impl Deref for Context<'_> {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl<'a> Context<'a> {
    /// Makes the context of a run.
    pub fn new(global: &'a Global) -> Context<'a> {
        let output = Output::new(global);
        let settings = Settings {
            connect: global.connect.clone(),
            connect_is_given: global.connect_is_given,
            host: global.host.clone(),
            state: None,
        };
        let world = World::new(settings, Arc::new(Screen::new(output)));
        Context { global, output, world }
    }

    /// What the domains hold that these arguments speak of.
    pub fn taken(&self, args: &TakenArgs) -> anyhow::Result<Occupancy> {
        let mut occupancy = self.world.occupancy_to_look(args.assume_empty)?;
        for (path, xml) in self.domains_of_files(&args.domain_xml)? {
            let failed = || format!("cannot tell what the domain in `{}` holds", path.display());
            occupancy.domains.push(xml.held(is_active(&xml)).with_context(failed)?);
        }
        Ok(occupancy)
    }

    /// The domains of a recorded host that these files or directories of files have.
    pub fn domains_of_files(&self, paths: &[PathBuf]) -> anyhow::Result<Vec<(PathBuf, DomainXml)>> {
        if !paths.is_empty() && !self.is_recorded() {
            return Err(super::error::usage(
                "--domain-xml names the domains of a recorded host, and --host is not given",
                "without --host the domains of this machine are read from libvirt",
            ));
        }
        let files = paths.iter().map(|path| xml_files(path));
        let files = files.collect::<anyhow::Result<Vec<_>>>()?.concat().into_iter();
        let read = |path: PathBuf| {
            let failed = || format!("cannot tell what the domain in `{}` holds", path.display());
            let text = input::text(&path, DOMAIN_BYTES).with_context(failed)?;
            let xml = DomainXml::parse(&text).with_context(failed)?;
            Ok((path, xml))
        };
        files.map(read).collect()
    }
}

/// Whether a domain ran when its XML was printed: libvirt prints the id of one that runs, and of no other.
pub fn is_active(xml: &DomainXml) -> bool {
    xml.root().attr("id").is_some()
}

/// The file itself, or the files of a directory that end in `.xml`, by name.
pub fn xml_files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let failed = |source| InputError::Unreadable { path: path.to_owned(), source };
    let entries = std::fs::read_dir(path).map_err(failed)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut files = paths.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    files.retain(|file| file.extension().is_some_and(|end| end.eq_ignore_ascii_case("xml")));
    files.sort();
    Ok(files)
}
