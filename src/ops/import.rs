//! `import`: a guest of a bundle that another host of ours has exported. It is planned for this
//! host: cores, memory, GPUs and their partition. The identity that its system sees stays (UUID,
//! MAC addresses, settings of its firmware, seed), unless it is to be another guest; the original
//! on its former host stays until it is deleted there. Nothing is made before every byte of the
//! bundle was read and verified.

#[cfg(test)]
mod tests;

use crate::apply::{FileStep, Preallocate, Step, space};
use crate::bdf::Bdf;
use crate::change::Change;
use crate::copied::{
    Another, CloneRequest, Copied, Copies, Old, another, is_ours, not_bundled, options,
    refuse_image, refuse_too_large, without_functions,
};
use crate::domain::cloned::Stays;
use crate::domain::disk_change::target_of;
use crate::domain::guest::{Made, Record, Role};
use crate::domain::setting::serial_log_path;
use crate::domain::view::View;
use crate::domain::{DomainXml, Element};
use crate::error::{Coded, Error, Result};
use crate::guest::refuse_name_taken;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::machine::SYSTEM_NVRAM;
use crate::paths::path_text;
use crate::request::{Allow, DomainName};
use crate::session::Session;
use crate::shell::word;
use crate::storage::{SeedRequest, room};
use crate::world::World;
use gpuvm_core::bundle::{BundledDisk, BundledFile};
use gpuvm_host::bundle::{Bundle, BundleError, Member};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Where disks are put if no directory is named.
const DISK_DIR: &str = "/var/lib/libvirt/images";
/// The kernel's directory of network devices.
const NETDEVS: &str = "/sys/class/net";

/// The reason a guest is not imported.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", prefix = "import-")]
#[allow(missing_docs)] // The messages describe the fields.
pub enum ImportError {
    /// The definition is not one that gpuvm exports.
    #[error("the definition of the bundle is not used: {why}")]
    Definition { why: String },
    /// The guest, or another with its addresses, is here.
    #[error("domain `{name}` of this host has {what} of the bundle's guest")]
    Identity { name: String, what: String },
    /// A network of the guest is not here.
    #[error("the guest has a NIC on {what}, which this host does not have")]
    Network { what: String },
    /// Its firmware is not here.
    #[error("the guest's firmware {} is not on this host", path.display())]
    Firmware { path: PathBuf },
}

impl Coded for ImportError {}
impl Coded for BundleError {}

/// A request to import a guest.
#[derive(Debug, Clone)]
pub struct ImportRequest {
    /// The bundle.
    pub path: PathBuf,
    /// The guest's name; `None` for the one that it had.
    pub name: Option<DomainName>,
    /// The UUID of another guest than the one in the bundle; `None` if it is that one.
    pub copy: Option<NewIdentity>,
    /// Where its disks are put.
    pub disk_dir: Option<PathBuf>,
    /// Its GPUs; `None` for as many as it had.
    pub gpus: Option<u32>,
    /// Which rules may be broken.
    pub allow: Allow,
    /// Whether other guests may reach its NVLinks.
    pub accept_shared_fabric: bool,
}

impl ImportRequest {
    /// It as a request for a guest as the one in a bundle is.
    fn as_clone(&self, bundle: &Bundle, to: &DomainName) -> CloneRequest {
        let (uuid, seed) = match &self.copy {
            None => (Some(bundle.manifest.uuid.clone()), SeedRequest::default()),
            Some(new) => (new.uuid.clone(), new.seed.clone()),
        };
        CloneRequest {
            name: bundle.manifest.name.clone(),
            to: to.clone(),
            gpus: self.gpus,
            allow: self.allow,
            accept_shared_fabric: self.accept_shared_fabric,
            uuid,
            seed,
            overlay: false,
            accept_backing: Vec::new(),
        }
    }
}

/// The own parts of a guest other than the one in the bundle.
#[derive(Debug, Clone)]
pub struct NewIdentity {
    /// Its UUID; `None` if libvirt chooses one, for previews.
    pub uuid: Option<String>,
    /// Its cloud-init seed.
    pub seed: SeedRequest,
}

/// A guest that was imported.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImportedGuest {
    /// Its name.
    pub name: String,
    /// Its name on its former host.
    pub of: String,
    /// The name of that host; `None` if unknown.
    pub host: Option<String>,
    /// Whether it is another guest than that one: with a UUID and MAC addresses of its own.
    pub is_copy: bool,
    /// Its UUID; `None` if libvirt chooses one.
    pub uuid: Option<String>,
    /// Its passed-through functions.
    pub devices: Vec<Bdf>,
    /// The MAC addresses of its NICs.
    pub macs: Vec<String>,
    /// Its disks, each with its file in the bundle.
    pub disks: Vec<Copied>,
    /// Its definition.
    #[serde(skip)]
    pub definition: String,
}

/// Opens a bundle and reads all of it. Nothing has begun yet, so a signal ends the program.
pub fn verified(session: &Session<'_>, path: &Path) -> Result<Bundle> {
    let world = session.world();
    let refused = |error: BundleError| -> Error {
        let at = word(&path.to_string_lossy()).into_owned();
        let hint = match &error {
            BundleError::None { .. } if path.is_file() => {
                format!("a bundle is a directory: `mkdir {at}.d && tar -xSf {at} -C {at}.d` first")
            }
            BundleError::Changed { .. } | BundleError::Length { .. } => format!(
                "copy it again from its host; `cd {at} && sha256sum -c SHA256SUMS` checks it"
            ),
            _ => "`gpuvm export NAME --bundle DIR` writes one, on the guest's host".to_owned(),
        };
        error.hint(hint)
    };
    if !session.manner().dry_run {
        session.refuse_unfinished()?;
    }
    let bundle = Bundle::open(path).map_err(refused)?;
    let reporter = world.reporter();
    reporter.progress(&format!("sum {}", bundle.path.display()));
    let read = bundle.verify(&mut |through, bytes| reporter.bytes(through, bytes));
    reporter.bytes(0, 0);
    read.map_err(refused)?;
    Ok(bundle)
}

/// Plans the guest of a bundle.
pub fn import(
    world: &World,
    wanted: &ImportRequest,
    bundle: &Bundle,
) -> Result<Change<ImportedGuest>> {
    let hypervisor = &*world.hypervisor()?;
    let manifest = &bundle.manifest;
    let source = DomainXml::parse(&bundle.definition)?;
    if !is_ours(&source) || source.uuid().as_ref() != Some(&manifest.uuid) {
        let why = "it is not that of the guest that the manifest names".to_owned();
        return Err(unfit(bundle, why));
    }
    let to = match &wanted.name {
        Some(name) => name.clone(),
        None => {
            DomainName::new(&source.name()).map_err(|error| unfit(bundle, error.to_string()))?
        }
    };
    let name = to.as_str();
    let doing = format!("import `{}` as `{name}`", manifest.name);
    refuse_name_taken(hypervisor, name, (doing, "--name"))?;
    let source = elsewhere(source, bundle, hypervisor)?;
    let again = again(wanted);
    if wanted.copy.is_none() {
        let unnamed = ImportRequest { name: None, ..wanted.clone() };
        refuse_same(&source, (&manifest.uuid, &self::again(&unnamed)), hypervisor, world)?;
    }
    refuse_missing(&source, hypervisor)?;
    let copies = copies(&source, wanted, bundle, name)?;
    let end = manifest.nvram.as_ref().and_then(|nvram| nvram.file.rsplit_once('.'));
    let nvram = format!("{SYSTEM_NVRAM}/{name}_VARS.{}", end.map_or("fd", |(_, end)| end));
    let copies = match (&manifest.nvram, &wanted.copy) {
        (Some(file), None) => {
            let member = member(bundle, file)?;
            let mut copies = copies;
            copies.steps.push(put(&member, Path::new(&nvram), false));
            copies
        }
        _ => copies,
    };
    let as_clone = wanted.as_clone(bundle, &to);
    let host = manifest.host.as_ref();
    let of = Another {
        verb: "import",
        again,
        what: format!(
            "import of domain `{}`{}",
            manifest.name,
            host.map_or(String::new(), |host| format!(" of {host}"))
        ),
        source: &source,
        gpus: manifest.gpus,
        copies,
        first: None,
        stays: wanted.copy.is_none().then_some(Stays { nvram: &nvram }),
        is_elsewhere: true,
    };
    another(world, &as_clone, of, |made| ImportedGuest {
        name: made.name,
        of: manifest.name.clone(),
        host: host.cloned(),
        is_copy: wanted.copy.is_some(),
        uuid: made.uuid,
        devices: made.devices,
        macs: made.macs,
        disks: made.disks,
        definition: made.definition,
    })
}

/// The error of a definition that gpuvm does not export.
fn unfit(bundle: &Bundle, why: String) -> Error {
    let name = word(&bundle.manifest.name).into_owned();
    let hint = format!("`gpuvm export {name} --bundle DIR` on its host writes a new bundle");
    ImportError::Definition { why }.hint(hint)
}

fn again(wanted: &ImportRequest) -> String {
    let mut again = format!("gpuvm import {}", word(&wanted.path.to_string_lossy()));
    if let Some(name) = &wanted.name {
        again += &format!(" --name {}", word(name.as_str()));
    }
    if let Some(dir) = &wanted.disk_dir {
        again += &format!(" --disks {}", word(&dir.to_string_lossy()));
    }
    if wanted.copy.is_some() {
        again += " --copy";
    }
    let seed = wanted.copy.as_ref().map(|new| &new.seed);
    again + &options(wanted.allow, seed, wanted.accept_shared_fabric)
}

/// A definition without parts that only its former host has, and without any that no guest of ours
/// has: its author is not trusted. The objects made for it are the disks that the manifest names.
fn elsewhere(xml: DomainXml, bundle: &Bundle, hypervisor: &dyn Hypervisor) -> Result<DomainXml> {
    if let Some(what) = not_bundled(&xml)? {
        return Err(unfit(bundle, format!("it has {what}, which a bundle cannot contain")));
    }
    let Some(Record { mut request, user, vgpus, .. }) = xml.record()? else {
        return Err(unfit(bundle, "it has no record of ours".to_owned()));
    };
    if let Some(wish) = &mut request.vgpu {
        // The numbers of types and cards are those of its former host.
        wish.gpu = None;
        if let Some(had) = vgpus.first() {
            wish.type_name.clone_from(&had.name);
        }
    }
    let made = bundle.manifest.disks.iter().map(|disk| {
        let (role, path) = (disk.role, disk.file.path.clone());
        Made { role, path, volume: None }
    });
    let (bound, reserved, guarded) = (Vec::new(), Vec::new(), Vec::new());
    let known = Vec::new();
    let made = made.collect();
    let (nccl, assumed) = (None, None);
    let vgpus = Vec::new();
    let record =
        Record { request, made, bound, reserved, guarded, vgpus, nccl, known, user, assumed };
    let dir = hypervisor.log_dir().and_then(|dir| Some(dir.to_str()?.to_owned()));
    let log = dir.map(|dir| serial_log_path(&dir, &xml.name()));
    Ok(without_functions(&xml)?.for_another_host(record, log)?)
}

/// Refuses the guest if it, or another with its addresses, is here.
fn refuse_same(
    xml: &DomainXml,
    (uuid, again): (&str, &str),
    hypervisor: &dyn Hypervisor,
    world: &World,
) -> Result<()> {
    let hint = format!("`{again} --copy --name NEW` makes another guest of it");
    if let Some(row) = hypervisor.domains()?.into_iter().find(|row| row.uuid == uuid) {
        let error = ImportError::Identity { name: row.name, what: format!("the UUID {uuid}") };
        return Err(error.hint(hint));
    }
    let macs: Vec<String> = View::of(xml, None)?.nics.into_iter().map(|nic| nic.mac).collect();
    for held in world.occupancy(false)?.domains {
        let same = |mac: &&String| macs.iter().any(|own| own.eq_ignore_ascii_case(mac));
        if let Some(mac) = held.macs.iter().find(same) {
            let what = format!("the MAC address {mac}");
            return Err(ImportError::Identity { name: held.domain, what }.hint(hint));
        }
    }
    Ok(())
}

/// Refuses a guest that would not start for want of a network or of its firmware.
fn refuse_missing(xml: &DomainXml, hypervisor: &dyn Hypervisor) -> Result<()> {
    let loader = xml.root().find("os/loader").map(|loader| loader.text().into_owned());
    let loader = loader.filter(|path| path.starts_with('/')).map(PathBuf::from);
    if let Some(path) = loader.filter(|path| !path.is_file()) {
        let hint = "the package `ovmf` (Debian, Ubuntu) or `edk2-ovmf` (Fedora, RHEL) has it";
        return Err(ImportError::Firmware { path }.hint(hint));
    }
    let networks = hypervisor.networks().all_networks()?;
    let nics = xml.root().child("devices").into_iter().flat_map(|all| all.children("interface"));
    for source in nics.filter_map(|nic| nic.child("source")) {
        if let Some(name) = source.attr("network")
            && networks.iter().all(|network| network.name != *name)
        {
            let hint = format!("`gpuvm network create {}` makes one", word(&name));
            return Err(ImportError::Network { what: format!("network `{name}`") }.hint(hint));
        }
        let device = source.attr("bridge").or_else(|| source.attr("dev"));
        if let Some(name) = device.filter(|name| !Path::new(NETDEVS).join(&**name).exists()) {
            let hint = "gpuvm-networks(7) says how a bridge is made";
            return Err(ImportError::Network { what: format!("`{name}`") }.hint(hint));
        }
    }
    Ok(())
}

/// Plans the copies of all disks; every disk of the definition must be in the bundle.
fn copies(xml: &DomainXml, wanted: &ImportRequest, bundle: &Bundle, name: &str) -> Result<Copies> {
    let dir = wanted.disk_dir.clone().unwrap_or_else(|| PathBuf::from(DISK_DIR));
    let dir = std::path::absolute(dir)?;
    room::refuse_missing(&dir)?;
    let mut copies = Copies::default();
    let mut allocated = 0;
    for disk in xml.disks().filter(|disk| disk.child("source").is_some()) {
        let target = target_of(disk).unwrap_or_default();
        let Some(known) = known(disk, &target, &bundle.manifest.disks) else {
            let why = format!("its disk `{target}` is not in the bundle");
            return Err(unfit(bundle, why));
        };
        if known.role == Role::Seed && wanted.copy.is_some() {
            continue;
        }
        let member = member(bundle, &known.file)?;
        let old = Old {
            name: &bundle.manifest.name,
            target: &target,
            path: &member.path,
            format: &known.format,
            role: known.role,
        };
        if let Some(backing) = refuse_image(&old)? {
            let why = format!("its disk `{target}` is an overlay on {backing}");
            return Err(unfit(bundle, why));
        }
        let path = dir.join(format!("{name}-{target}.{}", known.format));
        let text = path_text(&path)?;
        allocated += member.allocated;
        let is_whole = known.role == Role::Data && known.format == "raw";
        let is_whole = is_whole && member.allocated >= member.bytes;
        copies.steps.push(put(&member, &path, is_whole));
        copies.made.push(Made { role: known.role, path: text.clone(), volume: None });
        let from = path_text(&member.path)?;
        copies.disks.push(Copied { target, from, path: text.clone() });
        copies.paths.insert(known.file.path.clone(), text);
    }
    if let Some(space) = space(&dir) {
        let what = format!("the disks of `{name}`");
        refuse_too_large(&what, allocated, (space.free, space.total))?;
    }
    Ok(copies)
}

/// A file of a bundle, which is still there.
fn member(bundle: &Bundle, file: &BundledFile) -> Result<Member> {
    bundle.member(file).map_err(Coded::bare)
}

/// The disk of a bundle that a disk of the definition is.
fn known<'b>(disk: Element<'_>, target: &str, all: &'b [BundledDisk]) -> Option<&'b BundledDisk> {
    let path = disk.child("source")?.attr("file")?;
    let driver = disk.child("driver").and_then(|driver| driver.attr("type"));
    let format = driver.unwrap_or_else(|| "raw".into());
    let is_it = |known: &&BundledDisk| {
        known.target == target && known.file.path == *path && known.format == *format
    };
    all.iter().find(is_it)
}

/// The step that copies a file of a bundle.
fn put(member: &Member, path: &Path, is_whole: bool) -> Step {
    Step::File(FileStep::CreateDisk {
        path: path.to_owned(),
        bytes: member.bytes,
        preallocate: if is_whole { Preallocate::Reserve } else { Preallocate::None },
        from: Some(member.path.clone()),
        sha256: Some(member.sha256),
    })
}
