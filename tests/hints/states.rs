//! What is offered of guests in every state, on libvirt's test driver: each command is one of ours, leads to the same
//! connection, and does what it is offered for.

use super::{offered, parses, shell_words};
use crate::support::tree::scratch;
use crate::support::{gpuvm, run};
use gpuvm::apply::{Journal, Step};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Guests by name, with libvirt's number of their state and whether they have no definition.
const GUESTS: [(&str, u32, bool); 6] = [
    ("runs", 1, false),
    ("paused", 3, false),
    ("off guest", 5, false),
    ("crashed", 6, false),
    ("transient", 1, true),
    ("transient-crashed", 6, true),
];

/// What each of them is asked; `NAME` stands for it.
const LINES: [&str; 30] = [
    "show NAME",
    "start NAME",
    "start NAME --dry-run",
    "start NAME --reserve-pages --dry-run",
    "stop NAME --wait 0",
    "stop NAME --dry-run",
    "stop NAME --force",
    "restart NAME --wait 0",
    "restart NAME --dry-run",
    "restart NAME --force",
    "delete NAME",
    "delete NAME --dry-run",
    "delete NAME --yes",
    "check NAME",
    "verify NAME",
    "ip NAME",
    "ip NAME --wait 1",
    "ip NAME --all",
    "ssh NAME --print --wait 0",
    "console NAME",
    "tune NAME --check",
    "tune NAME --dry-run",
    "nccl NAME",
    "nccl NAME --install",
    "nccl NAME --check",
    "seed drop NAME",
    "undo NAME",
    "history NAME",
    "fabric ensure NAME",
    "create --name NAME --vcpus 1 --memory 64M --virt-type qemu --no-seed --dry-run",
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

/// The commands of virsh in a text, after `virsh`.
fn of_virsh(text: &str) -> Vec<String> {
    let inside = text.split('`').skip(1).step_by(2);
    inside.filter_map(|part| part.strip_prefix("virsh ")).map(str::to_owned).collect()
}

/// Whether a command has a word in capitals, for which whoever reads it puts something of their own.
fn is_form(words: &[String]) -> bool {
    words.iter().any(|word| word == "..." || word.chars().all(|c| c.is_ascii_uppercase()))
}

/// Runs what a text offers; each has to be done.
fn run_all(said: &str, (uri, dir, line): (&str, &Path, &str), ran: &mut BTreeSet<String>) {
    for command in offered(said) {
        let words = shell_words(&command);
        assert!(parses(&words), "{line}: `gpuvm {command}`: {said}");
        if is_form(&words) {
            continue;
        }
        assert!(command.contains(&format!("--connect {uri}")), "{line}: `gpuvm {command}`");
        // A console needs QEMU, and a terminal.
        if words[0] == "console" {
            continue;
        }
        let verb: Vec<&str> = words.iter().map(String::as_str).collect();
        let (code, out, err) = run(gpuvm(&verb).current_dir(dir));
        assert!([0, 3].contains(&code), "{line}: `gpuvm {command}`: {code} {out}{err}");
        ran.insert(words[..words.len().min(3)].join(" "));
    }
    for command in of_virsh(said) {
        let words = shell_words(&command);
        if is_form(&words) || !Path::new("/usr/bin/virsh").exists() {
            continue;
        }
        let shell = format!("virsh -c {uri} {command}");
        let (code, out, err) = run(Command::new("sh").args(["-c", &shell]).current_dir(dir));
        // The driver cannot dump what has crashed, and says so.
        let may_not = words[0] == "dump" && err.contains("not");
        assert!(code == 0 || may_not, "{line}: {shell}: {out}{err}");
        ran.insert(format!("virsh {}", words[0]));
    }
}

#[test]
fn what_is_offered_of_a_guest_in_any_state_is_done() {
    let dir = scratch();
    let uri = hypervisor(dir.path());
    let mut ran = BTreeSet::new();
    for (name, ..) in GUESTS {
        for line in LINES {
            let words = line.split(' ').map(|word| if word == "NAME" { name } else { word });
            let args: Vec<&str> = ["-c", &uri].into_iter().chain(words).collect();
            let (code, out, err) = run(gpuvm(&args).current_dir(dir.path()));
            let told = format!("{name}: {line}: {code} {out}{err}");
            assert!([0, 1, 2, 3].contains(&code), "{told}");
            assert!([0, 3].contains(&code) || err.contains("hint: "), "{told}");
            run_all(&format!("{out}{err}"), (&uri, dir.path(), &told), &mut ran);
        }
    }
    for wanted in
        ["start off guest", "restart --force crashed", "stop --force crashed", "virsh resume"]
    {
        assert!(ran.contains(wanted), "{wanted}: {ran:#?}");
    }
}

#[test]
fn what_is_offered_while_a_guest_is_half_made_ends_it() {
    let dir = scratch();
    let uri = hypervisor(dir.path());
    let said = |line: &str| {
        let args: Vec<&str> = ["-c", &uri].into_iter().chain(line.split(' ')).collect();
        let (code, out, err) = run(gpuvm(&args).current_dir(dir.path()));
        (code, format!("{line}: {code} {out}{err}"))
    };
    for line in [
        "start runs",
        "stop runs --force",
        "restart runs --force",
        "delete runs --yes",
        "create --name half --vcpus 1 --memory 64M --virt-type qemu --no-seed",
        "tune runs",
        "undo runs",
        "seed drop runs",
        "list",
    ] {
        let mut journal = Journal::begin("create", "half", &uri).unwrap();
        let xml = "<domain type='test'><name>half</name><memory>65536</memory><vcpu>1</vcpu>\
                   <os><type>hvm</type></os></domain>";
        journal.plan(&[Step::DefineDomain { name: "half".into(), xml: xml.into() }]).unwrap();
        journal.begins(0).unwrap();
        drop(journal);
        let (code, told) = said(line);
        if line == "list" {
            assert!(code == 0 && told.contains("`create half` was interrupted"), "{told}");
        } else {
            assert!(code == 1 && told.contains("is unfinished"), "{told}");
        }
        let mut ran = BTreeSet::new();
        run_all(&told, (&uri, dir.path(), line), &mut ran);
        assert!(ran.iter().any(|command| command.starts_with("recover")), "{told}");
        // Nothing is in the way any more.
        let (_, told) = said("list");
        assert!(!told.contains("interrupted"), "{told}");
    }
}
