//! What is offered of guests in every state, on libvirt's test driver: each command is one of ours, leads to the same
//! connection, and does what it is offered for.

use super::{offered, parses, shell_words};
use crate::support::daemon::namespaces;
use crate::support::tree::scratch;
use crate::support::{gpuvm, run, skip};
use gpuvm::apply::{Journal, Step};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

/// Guests by name, with libvirt's number of their state and whether they have no definition.
const GUESTS: [(&str, u32, bool); 5] = [
    ("runs", 1, false),
    ("paused", 3, false),
    ("off guest", 5, false),
    ("crashed", 6, false),
    ("transient", 1, true),
];

/// What each of them is asked; `NAME` stands for it.
const LINES: [&str; 23] = [
    "show NAME",
    "start NAME",
    "start NAME --dry-run",
    "stop NAME --wait 0",
    "stop NAME --dry-run",
    "stop NAME --force",
    "restart NAME --wait 0",
    "restart NAME --force",
    "delete NAME",
    "delete NAME --yes",
    "check NAME",
    "verify NAME",
    "ip NAME",
    "ip NAME --wait 1",
    "ssh NAME --print --wait 0",
    "console NAME",
    "tune NAME --check",
    "nccl NAME",
    "nccl NAME --install",
    "nccl NAME --check",
    "seed drop NAME",
    "undo NAME",
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

/// What was run, and what was wrong with it.
#[derive(Default)]
struct Ran {
    /// Commands that were done, by their first words.
    done: BTreeSet<String>,
    /// What was not.
    wrong: Vec<String>,
}

/// Runs what a text offers; each has to be done.
fn run_all(said: &str, (uri, dir): (&str, &Path), ran: &mut Ran) {
    for command in offered(said) {
        let words = shell_words(&command);
        let leads_there = command.contains(&format!("--connect {uri}"));
        if !parses(&words) || !leads_there {
            ran.wrong.push(format!("{said}\nnot ours: `gpuvm {command}`"));
        }
        // A console needs QEMU, and a terminal.
        if is_form(&words) || words[0] == "console" {
            continue;
        }
        let verb: Vec<&str> = words.iter().map(String::as_str).collect();
        let (code, out, err) = run(gpuvm(&verb).current_dir(dir));
        let asks = code == 2 && err.contains("--yes does it");
        if ![0, 3].contains(&code) && !asks {
            ran.wrong.push(format!("{said}\nfails: `gpuvm {command}`: {code} {out}{err}"));
        }
        ran.done.insert(command.replace(uri, ""));
    }
    for command in of_virsh(said) {
        let words = shell_words(&command);
        if is_form(&words) || !Path::new("/usr/bin/virsh").exists() {
            continue;
        }
        let shell = format!("virsh -c {uri} {command}");
        // `virsh edit` opens one.
        let mut virsh = Command::new("sh");
        virsh.args(["-c", &shell]).env("EDITOR", "true").stdin(Stdio::null());
        let (code, out, err) = run(virsh.current_dir(dir));
        // The driver cannot dump what has crashed, and says so.
        let may_not = words[0] == "dump" && err.contains("not");
        let is_same = words[0] == "edit" && err.contains("not changed");
        if code != 0 && !may_not && !is_same {
            ran.wrong.push(format!("{said}\nfails: {shell}: {out}{err}"));
        }
        ran.done.insert(format!("virsh {}", words[0]));
    }
}

#[test]
fn what_is_offered_of_a_guest_in_any_state_is_done() {
    let dir = scratch();
    let uri = hypervisor(dir.path());
    let mut ran = Ran::default();
    for (name, ..) in GUESTS {
        for line in LINES {
            let words = line.split(' ').map(|word| if word == "NAME" { name } else { word });
            let args: Vec<&str> = ["-c", &uri].into_iter().chain(words).collect();
            let (code, out, err) = run(gpuvm(&args).current_dir(dir.path()));
            let told = format!("{name}: {line}: {code} {out}{err}");
            let helps = err.contains("hint: ") || err.contains("try '--help'");
            if ![0, 3].contains(&code) && (code > 3 || !helps) {
                ran.wrong.push(format!("{told}\nno hint"));
            }
            run_all(&told, (&uri, dir.path()), &mut ran);
        }
    }
    assert!(ran.wrong.is_empty(), "{}", ran.wrong.join("\n\n"));
    for (verb, whom) in [("start", "off guest"), ("restart", "crashed"), ("stop", "crashed")] {
        let is_it = |done: &String| done.starts_with(verb) && done.contains(whom);
        assert!(ran.done.iter().any(is_it), "{verb} {whom}: {:#?}", ran.done);
    }
    assert!(ran.done.contains("virsh resume"), "{:#?}", ran.done);
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
fn what_is_offered_while_a_guest_is_half_made_ends_it() {
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
        journal.plan(&[Step::DefineDomain { name: "half".into(), xml: xml.into() }]).unwrap();
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
