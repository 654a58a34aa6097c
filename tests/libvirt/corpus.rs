//! The domain documents of libvirt's own tests that a real libvirtd defines here: after a tune and
//! an undo it writes the same definition, byte for byte.

use crate::support::daemon::Daemon;
use crate::support::run;
use crate::tune::corpus::{documents, domains, kept};
use crate::tune::domains::tuned;
use crate::tune::property::cases;
use crate::xml::guests::host;
use gpuvm::apply::{DomainStep, Observer, Step, apply};
use gpuvm::domain::DomainXml;
use gpuvm::hypervisor::libvirt::Libvirt;
use gpuvm::hypervisor::{Domains as _, XmlOf};
use gpuvm::placement::Occupancy;
use gpuvm::topology::Topology;
use gpuvm::tune::Items;

/// Documents that libvirt defines once and never again, and a bus so full that libvirt has no room
/// for another device.
const NOT_AGAIN: [&str; 2] = ["chardev.xml", "pci-many.xml"];
/// One in this many documents is tried, so that the whole suite stays short; `GPUVM_CASES` sets
/// another number.
const ONE_OF: u32 = 32;
/// One in this many tuned ones also goes through the program itself.
const BY_PROGRAM: usize = 12;

/// Sees nothing.
struct Blind;

impl Observer for Blind {
    fn doing(&mut self, _step: &Step) {}

    fn undoing(&mut self, _step: &Step) {}

    fn interrupted(&mut self) -> Option<String> {
        None
    }
}

/// A document with a name of its own and without a UUID, which many of them share.
fn renamed(text: &str, name: &str) -> Option<String> {
    let part =
        |tag: &str| Some((text.find(&format!("<{tag}>"))?, text.find(&format!("</{tag}>"))?));
    let (start, end) = part("name")?;
    let text = format!("{}<name>{name}{}", &text[..start], &text[end..]);
    let Some((start, rest)) = text.split_once("<uuid>") else { return Some(text) };
    Some(format!("{start}{}", rest.split_once("</uuid>")?.1))
}

/// Tunes a domain and undoes it from its history. Returns whether there was something to tune.
fn is_undone(libvirt: &Libvirt, name: &str, before: &str, dgx2: &Topology) -> bool {
    let xml = DomainXml::parse(before).unwrap();
    let tuned = tuned(&xml, dgx2, &Occupancy::default(), &Items::all());
    let Some(tuned) = tuned.ok().filter(|tuned| !tuned.changes.is_empty()) else { return false };
    let (name, xml) = (name.to_owned(), tuned.after.text().to_owned());
    let step =
        Step::Domain(DomainStep::Redefine { name: name.clone(), xml, before: before.to_owned() });
    if let Err(error) = apply(&[step], libvirt, &mut Blind, None) {
        panic!("{error}: {}", std::error::Error::source(&error).unwrap());
    }
    let after = libvirt.xml(&name, XmlOf::Inactive).unwrap();
    assert_ne!(after, before);
    let steps = kept(before, &after, &name).undo(&after, false, "", true);
    apply(&steps, libvirt, &mut Blind, None).unwrap();
    true
}

/// Tunes and undoes a domain by the program, on this machine.
fn is_undone_by_the_program(daemon: &Daemon, name: &str) {
    let gpuvm = |args: &[&str]| run(daemon.within(env!("CARGO_BIN_EXE_gpuvm")).args(args));
    // Without what needs a place: the machine may be small.
    let (code, out, err) =
        gpuvm(&["tune", name, "--yes", "--balloon", "off", "--fill", "off", "--agent", "on"]);
    assert_eq!(code, 0, "{name}: {err}");
    assert!(!out.contains("nothing to do"), "{name}: {out}");
    let (code, _, err) = gpuvm(&["undo", name, "--yes"]);
    assert_eq!((code, err.contains("warning")), (0, false), "{name}: {err}");
}

#[test]
fn libvirts_own_documents_are_tuned_and_undone() {
    let Some(dir) = documents() else { return };
    let Some(daemon) = Daemon::own(None) else { return };
    let libvirt = Libvirt::open(&daemon.uri()).unwrap();
    let dgx2 = host("dgx-2");
    let (mut defined, mut done) = (0, 0);
    let all = domains(&dir);
    let one_of = cases(ONE_OF) as usize;
    for (number, (file, text)) in all.iter().enumerate().step_by(one_of) {
        let name = format!("corpus-{number}");
        let Some(text) = renamed(text, &name) else { continue };
        let again = !NOT_AGAIN.iter().any(|not| file.ends_with(not));
        if !again || libvirt.define(&text).is_err() {
            continue;
        }
        defined += 1;
        let now = || libvirt.xml(&name, XmlOf::Inactive).unwrap();
        let (before, place) = (now(), file.display());
        eprintln!("{place}");
        done += usize::from(is_undone(&libvirt, &name, &before, &dgx2));
        assert_eq!(now(), before, "{place}");
        if defined % BY_PROGRAM == 1 {
            is_undone_by_the_program(&daemon, &name);
            assert_eq!(now(), before, "{place}");
        }
        libvirt.undefine(&name).unwrap();
    }
    eprintln!("{defined} of {} defined, {done} tuned and undone", all.len());
    assert!(done * one_of >= 300, "only {done} were tuned and undone");
}
