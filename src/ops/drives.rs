//! Verbs on drives, and drives that guests have as disks.

pub mod error;
pub mod list;
pub mod release;
pub mod restore;
pub mod state;
pub mod wipe;

use crate::apply::Step;
use crate::change::Change;
use crate::discover::identity::Finder;
use crate::discover::node::kernel_name;
use crate::domain::DomainXml;
use crate::error::Result;
use crate::fsroot::FsRoot;
use crate::hypervisor::Hypervisor;
use crate::hypervisor::file_users::files_of;
use crate::reporter::{Deed, Question};
use crate::shell::word;
use crate::topology::Likeness;

/// The path of fstab.
pub const FSTAB: &str = "/etc/fstab";

/// Makes the change of one of these verbs, confirmed by typing the name of its subject (`array`).
fn named<T>(
    (verb, subject): (&'static str, &str),
    (deed, kind, name): (Deed, &'static str, &str),
    steps: Vec<Step>,
    about: T,
) -> Change<T> {
    let question = Some(Question::Name { deed, kind, name: name.to_owned() });
    Change { question, ..Change::new(verb, subject, steps, about) }
}

/// Returns the remains on drives of this machine that a domain had, whole or in part, a line each:
/// they keep the guest's data.
pub fn kept(xml: &DomainXml, hypervisor: &dyn Hypervisor) -> Result<Vec<String>> {
    if !hypervisor.machine().is_here() {
        return Ok(Vec::new());
    }
    let root = FsRoot::live()?;
    let erase = |what: &str, id: &str| {
        format!("{what} keeps the guest's data; `gpuvm drive wipe {}` erases it", word(id))
    };
    let mut lines = Vec::new();
    let (known, finder) = (xml.known_devices(), Finder::new(&root));
    for bdf in xml.held(false)?.devices {
        let class = root.read(&format!("sys/bus/pci/devices/{bdf}/class"))?;
        let recorded = known.iter().find(|one| one.bdf == bdf);
        let now = recorded.map(|one| finder.whereabouts(one)).transpose()?;
        match (recorded, now) {
            // The device at its address is not the one that the guest had.
            (Some(one), Some(now))
                if one.identity.is_of_drive()
                    && (now.likeness == Likeness::Other || !now.places.is_empty()) =>
            {
                let had = &one.identity;
                let drives = now.places.iter().map(|bdf| (format!("NVMe drive {bdf}"), bdf));
                lines.extend(drives.map(|(drive, bdf)| erase(&drive, &bdf.to_string())));
                if now.places.is_empty() {
                    lines.push(format!(
                        "drive {had}, which was at {bdf}, is not found; it keeps the guest's data"
                    ));
                }
            }
            _ if class.is_some_and(|class| class.starts_with("0x0108")) => {
                lines.push(erase(&format!("NVMe drive {bdf}"), &bdf.to_string()));
            }
            _ => {}
        }
    }
    for file in files_of(xml, &[]) {
        let Some(name) = kernel_name(&file).filter(|_| file.starts_with("/dev")) else { continue };
        let block = format!("sys/class/block/{name}");
        let path = file.display();
        if root.exists(&format!("{block}/partition")) {
            lines.push(format!("partition {path} keeps the guest's data"));
        } else if root.exists(&format!("{block}/device")) {
            lines.push(erase(&format!("drive {path}"), &path.to_string()));
        }
    }
    Ok(lines)
}
