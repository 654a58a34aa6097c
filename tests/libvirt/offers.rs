//! The commands offered for a guest in each of its states, on a real libvirtd: each can be pasted,
//! and fulfils its purpose or names the next one.

use super::place::{Place, until};
use crate::support::run;
use std::collections::BTreeSet;
use std::path::Path;

/// The name of the guest, which must be quoted.
const NAME: &str = "of mine";

/// A state of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Running,
    Paused,
    Off,
    Crashed,
    Transient,
}

impl State {
    /// All of them.
    const ALL: [State; 5] =
        [State::Running, State::Paused, State::Off, State::Crashed, State::Transient];

    /// As libvirt calls it.
    fn word(self) -> &'static str {
        match self {
            State::Running | State::Transient => "running",
            State::Paused => "paused",
            State::Off => "shut off",
            State::Crashed => "crashed",
        }
    }
}

/// A boot sector that hears the power button, by the registers where the firmware of q35 puts them
/// (PM1a events at 0x600): enables its event, says `R` on the serial console, sleeps until the
/// timer ticks, and once it is pressed asks for the soft off of PM1a control (0x604).
const HEARS: [u8; 33] = [
    0xba, 0x02, 0x06, 0xb8, 0x00, 0x01, 0xef, // mov dx, 0x602; mov ax, 0x100; out dx, ax
    0xb0, 0x52, 0xba, 0xf8, 0x03, 0xee, // mov al, 'R'; mov dx, 0x3f8; out dx, al
    0xfb, 0xf4, 0xba, 0x00, 0x06, 0xed, // sti; hlt; mov dx, 0x600; in ax, dx
    0xf6, 0xc4, 0x01, 0x74, 0xf5, // test ah, 1; jz to the sti
    0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, // mov dx, 0x604; mov ax, 0x2000; out dx, ax
    0xf4, 0xf4,
];
/// One that reports a panic to the pvpanic device, and halts.
const PANICS: [u8; 9] = [0xb0, 0x01, 0xba, 0x05, 0x05, 0xee, 0xf4, 0xeb, 0xfd];

/// Writes a disk that boots from this sector.
fn boots(path: &Path, code: &[u8]) {
    let mut sector = vec![0; 1 << 20];
    sector[..code.len()].copy_from_slice(code);
    sector[510..512].copy_from_slice(&[0x55, 0xaa]);
    std::fs::write(path, sector).unwrap();
}

/// A machine with one guest.
struct Ground {
    place: Place,
    /// Its definition as it was made.
    xml: String,
    /// Where commands run, and their files are.
    files: std::path::PathBuf,
}

impl Ground {
    /// Makes the machine.
    fn new() -> Option<Ground> {
        let place = Place::new()?;
        let files = place.daemon.fresh_dir("files");
        let (template, disk) = (files.join("template.xml"), place.disks.join("boot.raw"));
        boots(&disk, &HEARS);
        let log = files.join("serial");
        std::fs::write(&template, TEMPLATE.replace("LOG", log.to_str().unwrap())).unwrap();
        let (template, disk) = (template.to_str().unwrap(), disk.to_str().unwrap());
        let create =
            ["create", "--name", "mine", "--template", template, "--disk", disk, "--no-start"];
        let shape = "--virt-type qemu --pins none --vcpus 1 --memory 64M --no-seed";
        let create: Vec<&str> = create.into_iter().chain(shape.split(' ')).collect();
        place.done(&create);
        let xml = place.virsh(&["dumpxml", "--inactive", "mine"]);
        place.virsh(&["undefine", "mine"]);
        // A name that others may give a guest.
        let xml = xml.replace("<name>mine</name>", &format!("<name>{NAME}</name>"));
        std::fs::write(files.join("guest.xml"), &xml).unwrap();
        Some(Ground { place, xml, files })
    }

    /// The state that shows whether a command has changed something.
    fn seen(&self) -> String {
        // At once, since virsh takes longer to load than to answer; of a domain that is gone it
        // says so.
        let all =
            format!("domstate '{NAME}'; dumpxml '{NAME}'; dumpxml --inactive '{NAME}'; list --all");
        let libvirt = self.place.daemon.virsh(&[&all]).1;
        let disks = super::files(&self.place.disks);
        format!("{libvirt}{disks:?}{}", self.place.journal())
    }

    /// Brings the guest into a state again. Returns the state seen then.
    fn set(&self, state: State) -> String {
        let virsh = |args: &[&str]| self.place.daemon.virsh(args);
        virsh(&["destroy", NAME]);
        virsh(&["undefine", NAME]);
        let _ = std::fs::remove_file(self.files.join("serial"));
        for file in super::files(&self.place.disks) {
            std::fs::remove_file(self.place.disks.join(file)).unwrap();
        }
        let code: &[u8] = if state == State::Crashed { &PANICS } else { &HEARS };
        boots(&self.place.disks.join("boot.raw"), code);
        let file = self.files.join("guest.xml");
        std::fs::write(&file, &self.xml).unwrap();
        let file = file.to_str().unwrap();
        let args: &[&str] = match state {
            State::Transient => &["create", file],
            _ => &["define", file],
        };
        self.place.virsh(args);
        match state {
            State::Off | State::Transient => {}
            _ => drop(self.place.virsh(&["start", NAME])),
        }
        let log = self.files.join("serial");
        let hears = || std::fs::read(&log).is_ok_and(|said| said.contains(&b'R'));
        match state {
            State::Off | State::Crashed => {}
            _ => until("it hears", hears),
        }
        if state == State::Paused {
            self.place.virsh(&["suspend", NAME]);
        }
        until("its state", || virsh(&["domstate", NAME]).1.trim() == state.word());
        self.seen()
    }

    /// Runs a line of a shell with the program on its path. Returns its exit code and output.
    fn shell(&self, line: &str) -> (i32, String) {
        let program = Path::new(env!("CARGO_BIN_EXE_gpuvm"));
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", program.parent().unwrap().display());
        let mut shell = self.place.daemon.within("sh");
        shell.args(["-c", line]).env("PATH", path).current_dir(&self.files);
        let (code, out, err) = run(shell.stdin(std::process::Stdio::null()));
        (code, out + &err)
    }
}

/// A guest of QEMU without KVM that boots by a BIOS, with a place for a disk.
const TEMPLATE: &str = "<domain type='qemu'><name>small</name><memory \
    unit='MiB'>64</memory><vcpu>1</vcpu>\
    <os><type arch='x86_64' machine='q35'>hvm</type><boot \
    dev='hd'/></os><features><acpi/><apic/></features>\
    <on_crash>preserve</on_crash><devices><controller type='pci' index='0' model='pcie-root'/>\
    <controller type='pci' index='1' model='pcie-root-port'/>\
    <controller type='pci' index='2' model='pcie-root-port'/>\
    <controller type='pci' index='3' model='pcie-root-port'/>\
    <controller type='pci' index='4' model='pcie-root-port'/>\
    <serial type='pty'><log file='LOG' append='off'/></serial><panic model='isa'/></devices></domain>";

/// The ways that a hint offers: commands after each other where it says `then`, else each of its
/// own.
fn ways(told: &str) -> Vec<Vec<String>> {
    let mut ways: Vec<Vec<String>> = Vec::new();
    for line in told.lines() {
        let parts: Vec<&str> = line.split('`').collect();
        let mut goes_on = false;
        for (at, part) in parts.iter().enumerate() {
            let is_command = ["gpuvm ", "virsh "].iter().any(|program| part.starts_with(program));
            if at % 2 == 0 {
                goes_on = part.trim_end().ends_with("then") && !ways.is_empty();
            } else if is_command && goes_on {
                ways.last_mut().unwrap().push((*part).to_owned());
            } else if is_command {
                ways.push(vec![(*part).to_owned()]);
            }
        }
    }
    let mut seen = BTreeSet::new();
    ways.retain(|way| seen.insert(way.clone()));
    ways
}

/// Whether a command has a place for a word of whoever reads it.
fn is_form(command: &str) -> bool {
    let is_place = |word: &str| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
    command.split_whitespace().any(|word| word == "..." || is_place(word))
}

/// Tries each way that was offered by `by`, and those that these offer. At least one of a refusal's
/// leads to its end.
fn follow(
    ground: &Ground,
    state: State,
    by: &str,
    told: &str,
    tried: &mut BTreeSet<(State, Vec<String>)>,
    path: &[Vec<String>],
) {
    for way in ways(told) {
        assert!(
            !way.iter().any(|command| is_form(command)),
            "{state:?} {by}: {way:?} is a form: {told}"
        );
        assert!(!path.contains(&way), "{state:?} {by}: {way:?} leads back to itself: {path:?}");
        if !tried.insert((state, way.clone())) {
            continue;
        }
        let mut before = ground.set(state);
        for command in &way {
            let (mut code, mut said) = ground.shell(command);
            // Who pastes it is asked at a terminal; here the answer is offered.
            if code == 2 && said.contains("there is no terminal to ask at") {
                let answer = ways(&said).into_iter().next().expect("it offers an answer").remove(0);
                (code, said) = ground.shell(&answer);
            }
            let context =
                format!("{state:?} {by}: `{command}`: {code}: {said}\noffered by: {told}");
            assert!([0, 1, 3].contains(&code), "{context}");
            if code == 1 {
                assert!(command.starts_with("gpuvm ") && !ways(&said).is_empty(), "{context}");
                assert_eq!(ground.seen(), before, "it changes something all the same: {context}");
            }
            // Findings have their own remedies, and so have refusals.
            let path = [path, std::slice::from_ref(&way)].concat();
            if code != 0 {
                follow(ground, state, by, &said, tried, &path);
                break;
            }
            before = ground.seen();
        }
    }
}

/// A third of the commands in each state, each in some of them, and all with `GPUVM_OFFERS=all`.
#[test]
fn each_command_that_is_offered_in_any_state_leads_on() {
    let Some(ground) = Ground::new() else { return };
    let name = format!("'{NAME}'");
    let all = std::env::var("GPUVM_OFFERS").is_ok_and(|value| value == "all");
    let mut tried = BTreeSet::new();
    let mut refused = 0;
    for (at, state) in State::ALL.into_iter().enumerate() {
        let mut before = String::new();
        let lines = [
            "list",
            "list --long",
            &format!("show {name}"),
            &format!("check {name}"),
            &format!("verify {name}"),
            &format!("tune {name} --check"),
            &format!("stop {name} --wait 60"),
            &format!("start {name}"),
            &format!("restart {name} --wait 60"),
            &format!("delete {name}"),
            &format!("disk list {name}"),
            &format!("disk add {name} size=1M,dir=."),
            &format!("disk add {name} size=1M,dir=. --live"),
            &format!("disk resize {name} vda 2M"),
            &format!("disk resize {name} vda 1K"),
            &format!("disk remove {name} vda --yes"),
            &format!("disk remove {name} vda --delete-data --yes"),
            &format!("disk remove {name} vdx"),
            &format!("ip {name}"),
            &format!("console {name}"),
            &format!("logs {name}"),
            &format!("undo {name}"),
        ];
        for (_, line) in lines.into_iter().enumerate().filter(|(n, _)| all || (n + at) % 3 == 0) {
            if before.is_empty() || ground.seen() != before {
                before = ground.set(state);
            }
            let (code, told) = ground.shell(&format!("gpuvm {line}"));
            let is_question = told.contains("there is no terminal to ask at");
            assert!(code != 70 && (code != 2 || is_question), "{state:?} {line}: {code}: {told}");
            refused += usize::from(code != 0);
            eprintln!("{state:?} {line}: {code}: {}", ways(&told).len());
            if code != 0 {
                assert!(told.contains("hint: ") || code == 3, "{state:?} {line}: {code}: {told}");
            }
            if !ways(&told).is_empty() {
                follow(&ground, state, line, &told, &mut tried, &[]);
                before.clear();
            }
        }
    }
    let (least_refused, least_tried) = if all { (15, 25) } else { (5, 8) };
    assert!(
        refused > least_refused && tried.len() > least_tried,
        "{refused} refusals, {} ways",
        tried.len()
    );
}

#[test]
fn unloggable_consoles_are_reported_with_a_remedy() {
    let Some(ground) = Ground::new() else { return };
    ground.set(State::Off);
    // Seen from here, the directory is gone.
    let hidden = "mount -t tmpfs tmpfs /var/log/libvirt";
    for line in ["tune --serial-log on", "logs --qemu"] {
        let (code, told) = ground.shell(&format!("{hidden} && gpuvm {line} '{NAME}'"));
        assert!(code == 1 && told.contains("/var/log/libvirt/qemu is missing"), "{told}");
        assert!(told.contains("`install -d -m 0755 /var/log/libvirt/qemu` makes it"), "{told}");
    }
}

#[test]
fn a_paused_guest_is_refused_at_once_and_the_offered_command_ends_it() {
    let Some(ground) = Ground::new() else { return };
    for (verb, then) in [("stop", "shut off"), ("restart", "running")] {
        for (way, offer) in [(0, "resume"), (1, "--force")] {
            let before = ground.set(State::Paused);
            let begun = std::time::Instant::now();
            let (code, told) = ground.shell(&format!("gpuvm {verb} '{NAME}' --wait 600"));
            assert!(code == 1 && begun.elapsed().as_secs() < 300, "{told}");
            assert!(told.contains("is paused"), "{told}");
            assert_eq!(ground.seen(), before);
            let way = &ways(&told)[way];
            assert!(way[0].contains(offer), "{way:?}");
            for command in way {
                let (code, told) = ground.shell(command);
                assert_eq!(code, 0, "{command}: {told}");
            }
            assert_eq!(ground.place.virsh(&["domstate", NAME]).trim(), then, "{way:?}");
        }
    }
}
