//! Who uses an image: domains that have it as a disk or somewhere below one, and volumes that lie over it. What lies
//! over what is told by libvirt, for volumes of active pools and for the disks of running domains; a file outside
//! every pool whose domain is off does not tell.

use crate::domain::{DomainXml, Element};
use crate::hypervisor::storage::{Storage, Volume};
use crate::hypervisor::{Hypervisor, HypervisorError, HypervisorErrorKind, XmlOf};
use anyhow::Context as _;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Is who uses which file of the hypervisor's machine.
#[derive(Debug, Default)]
pub struct Uses {
    /// Every file of each domain's disks, by the domain's name.
    domains: BTreeMap<String, BTreeSet<PathBuf>>,
    /// Every volume that lies over a file: `pool/volume`, where it is, the file.
    over: Vec<(String, PathBuf, PathBuf)>,
}

impl Uses {
    /// Reads every domain and every active pool.
    pub fn read(hypervisor: &dyn Hypervisor) -> anyhow::Result<Uses> {
        let volumes = volumes(hypervisor.storage())?;
        let mut uses = Uses::default();
        for summary in hypervisor.domains()? {
            for which in [XmlOf::Live, XmlOf::Inactive] {
                let text = match hypervisor.xml(&summary.name, which) {
                    // Deleted since it was listed.
                    Err(error) if error.kind == HypervisorErrorKind::NoDomain => continue,
                    text => text?,
                };
                let xml = DomainXml::parse(&text);
                let xml = xml.with_context(|| {
                    format!("cannot tell which disks domain `{}` has", summary.name)
                })?;
                let files = uses.domains.entry(summary.name.clone()).or_default();
                files.extend(files_of(&xml, &volumes));
            }
        }
        uses.over = volumes
            .into_iter()
            .filter_map(|v| Some((format!("{}/{}", v.pool, v.name), v.path, v.backing?)))
            .collect();
        Ok(uses)
    }

    /// Every file and device of each domain's disks, by the domain's name.
    pub fn files(&self) -> &BTreeMap<String, BTreeSet<PathBuf>> {
        &self.domains
    }

    /// Domains that have a file as a disk or below one, by name.
    pub fn domains(&self, file: &Path) -> Vec<String> {
        let over: BTreeSet<&Path> =
            self.all_over(file).into_iter().map(|at| &*self.over[at].1).collect();
        let has = |files: &BTreeSet<PathBuf>| {
            files
                .iter()
                .any(|of_it| same(of_it, file) || over.iter().any(|above| same(of_it, above)))
        };
        let users = self.domains.iter().filter(|(_, files)| has(files));
        users.map(|(name, _)| name.clone()).collect()
    }

    /// Volumes that lie over a file, with others between or none, as `pool/volume`.
    pub fn volumes(&self, file: &Path) -> Vec<String> {
        self.all_over(file).into_iter().map(|at| self.over[at].0.clone()).collect()
    }

    /// Indexes of the volumes that lie over a file, with others between or none.
    fn all_over(&self, file: &Path) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut below = vec![file];
        while let Some(file) = below.pop() {
            for (at, (_, path, under)) in self.over.iter().enumerate() {
                if same(under, file) && found.insert(at) {
                    below.push(path);
                }
            }
        }
        found
    }
}

/// The volumes of every active pool.
pub fn volumes(storage: &dyn Storage) -> Result<Vec<Volume>, HypervisorError> {
    let mut volumes: Vec<Volume> = Vec::new();
    for pool in storage.pools()?.into_iter().filter(|pool| pool.active) {
        match storage.volumes(&pool.name) {
            // Forgotten since it was listed.
            Err(error) if error.kind == HypervisorErrorKind::NoVolume => {}
            read => volumes.extend(read?),
        }
    }
    Ok(volumes)
}

/// Whether two paths are one file. Links are resolved on this machine: where the hypervisor's is another, that may take
/// two files for one, which is the safe side, and never one for two that are written alike.
fn same(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    a == b || (real(a).is_some() && real(a) == real(b))
}

/// Every file that a domain's disks name: their own, those below them, those that they are being copied to.
pub fn files_of(xml: &DomainXml, volumes: &[Volume]) -> Vec<PathBuf> {
    let devices = xml.root().children("devices");
    let mut open: Vec<Element<'_>> = devices.flat_map(|devices| devices.children("disk")).collect();
    let mut files = Vec::new();
    while let Some(element) = open.pop() {
        open.extend(element.elements());
        if element.name() != "source" {
            continue;
        }
        let attr = |name: &str| element.attr(name).map(|value| value.into_owned());
        files.extend(["file", "dev"].into_iter().filter_map(attr).map(PathBuf::from));
        if let (Some(pool), Some(name)) = (attr("pool"), attr("volume")) {
            let volume = volumes.iter().find(|v| v.pool == pool && v.name == name);
            files.extend(volume.map(|volume| volume.path.clone()));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_used_by_what_names_it_and_by_what_lies_over_it() {
        let volume = |name: &str, backing: Option<&str>| Volume {
            pool: "p".into(),
            name: name.into(),
            path: PathBuf::from("/none/p").join(name),
            format: "qcow2".into(),
            capacity_bytes: 1,
            allocation_bytes: 1,
            backing: backing.map(PathBuf::from),
            modified_ns: None,
        };
        let volumes = [volume("base", None), volume("os", Some("/none/p/base"))];
        let xml = DomainXml::parse(
            "<domain type='kvm'><name>a</name><devices><disk type='volume'><source pool='p' volume='os'/>\
             <backingStore type='file'><source file='/none/x'/></backingStore><mirror type='block'>\
             <source dev='/dev/none'/></mirror></disk><interface><source file='/none/nic'/></interface>\
             </devices></domain>",
        )
        .unwrap();
        let mut files = files_of(&xml, &volumes);
        files.sort();
        assert_eq!(files, ["/dev/none", "/none/p/os", "/none/x"].map(PathBuf::from));
        let over =
            |name: &str, path: &str, under: &str| (name.to_owned(), path.into(), under.into());
        let uses = Uses {
            domains: [("a".to_owned(), files.into_iter().collect())].into(),
            over: vec![
                over("p/os", "/none/p/os", "/none/p/base"),
                over("p/snap", "/none/p/snap", "/none/p/os"),
                // A circle, which a damaged pool may hold, ends.
                over("p/x", "/none/p/x", "/none/p/y"),
                over("p/y", "/none/p/y", "/none/p/x"),
            ],
        };
        assert_eq!(uses.domains(Path::new("/none/p/base")), ["a"]);
        assert_eq!(uses.volumes(Path::new("/none/p/base")), ["p/os", "p/snap"]);
        assert_eq!(uses.volumes(Path::new("/none/p/y")), ["p/x", "p/y"]);
        assert_eq!(uses.domains(Path::new("/none/p/snap")), [""; 0]);
        assert_eq!(uses.domains(Path::new("/none/nic")), [""; 0]);
    }
}
