//! The commands offered while a change of a guest is half done, on libvirt's test driver: each
//! fulfils its purpose.

use super::{offered, shell_words};
use crate::support::daemon::namespaces;
use crate::support::tree::scratch;
use crate::support::{gpuvm, run, skip};
use gpuvm::apply::{DomainStep, Journal, Step};
use std::path::Path;
use std::process::Command;

/// Guests by name, with libvirt's number of their state and whether they have no definition.
const GUESTS: [(&str, u32, bool); 5] = [
    ("runs", 1, false),
    ("paused", 3, false),
    ("off guest", 5, false),
    ("crashed", 6, false),
    ("transient", 1, true),
];

/// The hypervisor with these guests in a file.
fn hypervisor(dir: &Path) -> String {
    let guest = |(number, (name, state, transient)): (usize, &(&str, u32, bool))| {
        let transient = if *transient { "<test:transient/>" } else { "" };
        format!(
            "<domain type='test' xmlns:test='http://libvirt.org/schemas/domain/test/1.0'><name>{name}</name>\
             <uuid>6695eb01-f6a4-8304-79aa-97f2502e19{number:02}</uuid><memory>65536</memory><vcpu>1</vcpu>\
             <os><type>hvm</type></os><devices/><test:runstate>{state}</test:runstate>{transient}</domain>"
        )
    };
    let guests: String = GUESTS.iter().enumerate().map(guest).collect();
    let file = dir.join("states.xml");
    std::fs::write(&file, format!("<node>{guests}</node>")).unwrap();
    format!("test://{}", file.display())
}

/// Whether a command has a word in capitals, for which whoever reads it puts something of their
/// own.
fn is_form(words: &[String]) -> bool {
    words.iter().any(|word| word == "..." || word.chars().all(|c| c.is_ascii_uppercase()))
}

/// Runs the program on a machine whose interrupted changes are those of a directory.
fn with_journals(journals: &Path, args: &[&str]) -> (i32, String, String) {
    let program = gpuvm(args);
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    let state = "/var/lib/gpuvm/journal";
    command.arg(format!("mkdir -p {state} && mount --bind \"$0\" {state} && exec \"$@\""));
    run(command.arg(journals).arg(program.get_program()).args(program.get_args()))
}

#[test]
fn commands_offered_for_a_half_made_guest_end_it() {
    if !namespaces() {
        return skip("namespaces cannot be made");
    }
    let dir = scratch();
    let uri = hypervisor(dir.path());
    let journals = dir.path().join("journal");
    let said = |line: &str| {
        let args: Vec<&str> = ["-c", &uri].into_iter().chain(line.split(' ')).collect();
        let (code, out, err) = with_journals(&journals, &args);
        (code, format!("{line}: {code} {out}{err}"))
    };
    for line in [
        "start runs",
        "stop runs --force",
        "restart runs --force",
        "delete runs --yes",
        "create --name half --vcpus 1 --memory 64M --virt-type qemu --no-seed",
        "tune runs",
    ] {
        let mut journal = Journal::begin_in(&journals, "create", "half", &uri).unwrap();
        let xml = "<domain type='test'><name>half</name><memory>65536</memory><vcpu>1</vcpu>\
                   <os><type>hvm</type></os></domain>";
        journal
            .plan(&[Step::Domain(DomainStep::Define { name: "half".into(), xml: xml.into() })])
            .unwrap();
        journal.begins(0).unwrap();
        drop(journal);
        let (code, told) = said(line);
        assert!(code == 1 && told.contains("is unfinished"), "{told}");
        let mut ran = 0;
        for command in offered(&told).iter().filter(|command| !is_form(&shell_words(command))) {
            let words = shell_words(command);
            let verb: Vec<&str> = words.iter().map(String::as_str).collect();
            let (code, out, err) = with_journals(&journals, &verb);
            assert_eq!(code, 0, "{told}: `gpuvm {command}`: {out}{err}");
            ran += usize::from(verb[0] == "recover");
        }
        assert!(ran > 0, "{told}");
        // Nothing is in the way any more.
        let (code, told) = said("start runs");
        assert!(code == 0 && !told.contains("interrupted"), "{told}");
    }
}
