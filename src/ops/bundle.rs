//! `export --bundle`: a guest that is off as a directory from which `import` makes it on another
//! host: its definition, what gpuvm remembers of it, its disks, and the settings of its firmware.
//! The guest stays as it is. A disk that only one guest can have is refused, or left out by name.

use crate::apply::{BundleStep, BundledCopy, BundledText, DiskError, FileStep, Step, space};
use crate::change::Change;
use crate::copied::{
    CloneError, Old, disk_file, is_ours, not_bundled, refuse_busy, refuse_devices, refuse_image,
    refuse_too_large,
};
use crate::domain::disk_change::target_of;
use crate::domain::guest::{Made, Role};
use crate::domain::{DomainXml, Element};
use crate::error::{Class, Coded, Result, classed};
use crate::hypervisor::XmlOf;
use crate::hypervisor::file_users::Uses;
use crate::hypervisor::machine::host_name;
use crate::lookup::{find, refuse_unread};
use crate::shell::{domain, word};
use crate::storage::room;
use crate::world::World;
use gpuvm_core::bundle::{BundledDisk, BundledFile, DEFINITION, MANIFEST, Manifest};
use gpuvm_core::guest::gpus_of;
use serde::Serialize;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The reason a guest is not exported.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "export-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum ExportError {
    /// A disk does not go into a bundle.
    #[error("disk `{target}` of domain `{name}` does not go into a bundle: {why}")]
    Disk {
        name: String,
        /// The disk, by its name in the guest.
        target: String,
        why: String,
    },
    /// Its TPM has a state outside of its disks.
    #[error(
        "domain `{name}` has an emulated TPM, whose secrets stay with libvirt and cannot be \
             exported"
    )]
    Tpm { name: String },
    /// Its definition has devices that are not accepted from a bundle.
    #[error("domain `{name}` has {what}, which a bundle cannot contain")]
    Element {
        name: String,
        /// The path of an element, and of its attribute or text the value.
        what: String,
    },
}

impl Coded for ExportError {}

/// A request for a bundle.
#[derive(Debug, Clone)]
pub struct BundleRequest {
    /// The guest.
    pub name: String,
    /// The bundle's directory, which is new.
    pub path: PathBuf,
    /// Disks that are left out, by their names in the guest.
    pub without: Vec<String>,
}

/// A guest in a bundle.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExportedGuest {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// The bundle.
    pub bundle: PathBuf,
    /// Its disks that are in it, by their names in the guest.
    pub disks: Vec<String>,
    /// Those that were left out.
    pub without: Vec<String>,
}

struct Contents {
    manifest: Manifest,
    copies: Vec<BundledCopy>,
    /// The space that the copies occupy on their file system, in bytes.
    allocated: u64,
}

/// Plans a bundle of a guest.
pub fn bundle(world: &World, wanted: &BundleRequest) -> Result<Change<ExportedGuest>> {
    let hypervisor = &*world.hypervisor()?;
    let name = &wanted.name;
    let row = find(hypervisor, name)?;
    let path = std::path::absolute(&wanted.path)?;
    let again = format!("gpuvm export {} --bundle {}", word(name), word(&path.to_string_lossy()));
    refuse_busy(world, hypervisor, &row, &again[6..])?;
    if path.symlink_metadata().is_ok() {
        let hint = "name a directory that does not exist yet: the bundle makes it";
        return Err(DiskError::Exists { path }.hint(hint));
    }
    let above = path.parent().unwrap_or(Path::new("/"));
    room::refuse_missing(above)?;
    let xml = DomainXml::parse(&hypervisor.xml(name, XmlOf::Inactive)?)?;
    refuse_unread(&xml)?;
    if !is_ours(&xml) {
        let hint =
            format!("`virsh dumpxml {} >{}.xml` writes its definition", domain(name), word(name));
        return Err(CloneError::NotOurs { name: name.clone() }.hint(hint));
    }
    let xml = without(xml, wanted)?;
    let topology = world.topology()?;
    refuse_devices(name, &xml, &topology)?;
    refuse_tpm(name, &xml)?;
    let host = Some(host_name()).filter(|name| !name.is_empty());
    let mut manifest = Manifest::new(name, &row.uuid, host);
    manifest.gpus = u32::try_from(gpus_of(&xml, &topology).len()).unwrap_or(u32::MAX);
    let mut contents = Contents { manifest, copies: Vec::new(), allocated: 0 };
    let uses = Uses::read(hypervisor)?;
    let recorded = xml.made();
    for disk in xml.disks() {
        contents.disk(disk, (name, &row.uuid), (&uses, &recorded), &again)?;
    }
    contents.nvram(&xml)?;
    refuse_unknown(name, &xml)?;
    let Contents { manifest, copies, allocated } = contents;
    if let Some(space) = space(above) {
        let what = format!("a bundle of domain `{name}`");
        refuse_too_large(&what, allocated, (space.free, space.total))?;
    }
    let text = |file: &str, text: String| BundledText { file: file.to_owned(), text };
    let texts = vec![text(MANIFEST, manifest.text()), text(DEFINITION, xml.text().to_owned())];
    let about = ExportedGuest {
        name: name.clone(),
        uuid: row.uuid,
        bundle: path.clone(),
        disks: manifest.disks.into_iter().map(|disk| disk.target).collect(),
        without: wanted.without.clone(),
    };
    let steps = vec![Step::File(FileStep::WriteBundle(BundleStep { path, texts, copies }))];
    Ok(Change { again, ..Change::new("export", name, steps, about) })
}

/// A definition without the disks that are left out.
fn without(xml: DomainXml, wanted: &BundleRequest) -> Result<DomainXml> {
    let mut xml = xml;
    for target in &wanted.without {
        let Some(disk) = xml.disks().find(|disk| target_of(*disk).as_ref() == Some(target)) else {
            let message = format!("domain `{}` has no disk `{target}`", wanted.name);
            let hint = format!("`gpuvm disk list {}` shows its disks", word(&wanted.name));
            return Err(classed(Class::NotFound, message, hint));
        };
        let path = disk.child("source").and_then(|source| source.attr("file"));
        let path = path.map(|path| path.into_owned());
        xml = xml.without_disk(target, path.as_deref())?;
    }
    Ok(xml)
}

fn refuse_tpm(name: &str, xml: &DomainXml) -> Result<()> {
    let mut tpms = xml.root().child("devices").into_iter().flat_map(|all| all.children("tpm"));
    let is_emulated = |tpm: Element<'_>| {
        let kind = tpm.child("backend").and_then(|backend| backend.attr("type"));
        kind.is_some_and(|kind| kind == "emulator")
    };
    if !tpms.any(is_emulated) {
        return Ok(());
    }
    let hint = format!(
        "`virsh edit {}` takes its `<tpm>` out, if nothing in the guest is sealed with it",
        domain(name)
    );
    Err(ExportError::Tpm { name: name.to_owned() }.hint(hint))
}

/// Refuses devices that no import accepts from a bundle.
fn refuse_unknown(name: &str, xml: &DomainXml) -> Result<()> {
    let Some(what) = not_bundled(xml)? else { return Ok(()) };
    let hint = format!("`virsh edit {}` takes it out, if the guest does without it", domain(name));
    Err(ExportError::Element { name: name.to_owned(), what }.hint(hint))
}

impl Contents {
    fn disk(
        &mut self,
        disk: Element<'_>,
        (name, uuid): (&str, &str),
        (uses, recorded): (&Uses, &[Made]),
        again: &str,
    ) -> Result<()> {
        let target = target_of(disk).unwrap_or_default();
        let leave = format!("`{again} --without {}` leaves it out", word(&target));
        let refused = |why: String, hint: String| {
            let (name, target) = (name.to_owned(), target.clone());
            Err(ExportError::Disk { name, target, why }.hint(hint))
        };
        let file = match disk_file(disk, &target, name) {
            Ok(file) => file,
            Err(error) => {
                let says = error.to_string();
                let why = says.split_once("is not copied: ").map_or(&*says, |(_, why)| why);
                return refused(why.to_owned(), leave);
            }
        };
        let source = disk.child("source").and_then(|source| source.attr("file"));
        let source = source.map(|path| path.into_owned());
        let made = recorded.iter().find(|made| Some(&made.path) == source.as_ref());
        let path = match (file, source, made) {
            (Some(file), _, _) => file,
            // A seed is only read, and the guest's own.
            (None, Some(path), Some(_)) => path,
            (None, Some(path), None) => {
                return refused(
                    format!("{path} is attached read-only and may belong to another guest"),
                    leave,
                );
            }
            (None, None, _) => return Ok(()),
        };
        let role = made.map_or(Role::Data, |made| made.role);
        let driver = disk.child("driver").and_then(|driver| driver.attr("type"));
        let format = driver.map_or_else(|| "raw".to_owned(), |format| format.into_owned());
        let old = Old { name, target: &target, path: Path::new(&path), format: &format, role };
        old.refuse_shared(uses, uuid)?;
        if let Some(backing) = refuse_image(&old)? {
            let copy = format!("{name}-whole");
            let hint = format!(
                "`gpuvm clone {} {}` makes a guest of whole copies, which can be exported",
                word(name),
                word(&copy)
            );
            return refused(format!("{path} is an overlay on {backing}"), hint);
        }
        let file = self.copy(format!("{target}.{format}"), &path)?;
        self.manifest.disks.push(BundledDisk { file, target, format, role });
        Ok(())
    }

    /// Adds the settings of the firmware, which are there once it has started.
    fn nvram(&mut self, xml: &DomainXml) -> Result<()> {
        let Some(path) = xml.nvram().filter(|path| Path::new(path).exists()) else { return Ok(()) };
        let end = Path::new(&path).extension().and_then(|end| end.to_str()).unwrap_or("fd");
        self.manifest.nvram = Some(self.copy(format!("nvram.{end}"), &path)?);
        Ok(())
    }

    /// Adds a copy of a file.
    fn copy(&mut self, file: String, path: &str) -> Result<BundledFile> {
        let meta = Path::new(path).metadata()?;
        let bytes = meta.len();
        self.allocated += meta.blocks() * 512;
        self.copies.push(BundledCopy { file: file.clone(), from: path.into(), bytes });
        Ok(BundledFile { file, bytes, path: path.to_owned() })
    }
}
