//! The real content of the files of a domain's disks, beside its definition's claims.

use crate::apply::disk_format_made;
use crate::discover::direct::refuses_direct;
use crate::discover::hung_mounts::Silent;
use crate::domain::DomainXml;
use crate::input::open_regular;
use gpuvm_core::check::{DiskFact, DiskFault};
use std::io::Read as _;
use std::path::Path;

/// Returns the disks that are of another format than declared, or that QEMU cannot open past the
/// host's page cache although the definition says so.
pub(crate) fn facts(domain: &DomainXml, state: &Path) -> Vec<DiskFact> {
    let mut facts = Vec::new();
    // Opening a file there would never end; other rules say that it does not answer.
    let silent = Silent::read();
    for (nth, disk) in domain.disks().enumerate() {
        let source = disk.child("source");
        let Some(file) = source.and_then(|source| source.attr("file")) else { continue };
        let (path, driver) = (Path::new(&*file), disk.child("driver"));
        if silent.why(path).is_some() {
            continue;
        }
        let said = |name: &str| driver.and_then(|driver| driver.attr(name));
        let is_raw = said("type").is_none_or(|format| format == "raw");
        // A disk that gpuvm made raw is raw: whatever looks like a header is the guest's.
        let is_ours = || disk_format_made(state, path).as_deref() == Some("raw");
        if is_raw && is_qcow2(path) && !is_ours() {
            let why = format!("{file}: declared as raw, and is a qcow2 image");
            facts.push(DiskFact { nth, fault: DiskFault::Format, why });
        }
        let is_direct =
            said("cache").is_some_and(|cache| ["none", "directsync"].contains(&&*cache));
        if is_direct && let Some(why) = refuses_direct(path) {
            let why = format!("{file}: {why}");
            facts.push(DiskFact { nth, fault: DiskFault::Direct, why });
        }
    }
    facts
}

/// Whether a file is a qcow2 image; one that cannot be read is reported by other rules.
fn is_qcow2(path: &Path) -> bool {
    let mut head = [0; 4];
    let read = open_regular(path).ok().and_then(|mut file| file.read_exact(&mut head).ok());
    read.is_some() && head == *b"QFI\xfb"
}
