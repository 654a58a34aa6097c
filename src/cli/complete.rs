//! Completion on Tab: the shell runs this program, which knows its own options and, unlike a
//! script, the guests, images, networks and devices that are there now. A remote libvirt is not
//! asked: it would be slow, or ask for a password.

use super::args::{KnownArgs, whole};
use super::fleet::host_names;
use super::image::known;
use super::output::Output;
use super::terminal::Screen;
use crate::bdf::Bdf;
use crate::hypervisor::{DomainState, Hypervisor};
use crate::topology::{DeviceKind, PciDevice, Topology};
use clap::{Arg, Command};
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _, complete,
};
use clap_complete::env::{EnvCompleter, Shells};
use gpuvm_ops::images;
use gpuvm_ops::world::{Settings, World};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// The variable by which the shell's script asks; its value is the shell.
const ASKED_BY: &str = "GPUVM_COMPLETE";
/// The arguments of the bash script: the number of the word, and the separator of answers.
const INDEX: &str = "_CLAP_COMPLETE_INDEX";
/// See [`INDEX`].
const SEPARATOR: &str = "_CLAP_IFS";

/// The kind of object that the value of an argument names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A guest.
    Guest,
    /// A guest that is off.
    Off,
    /// A guest that runs.
    Running,
    /// A guest, or a file.
    GuestOrFile,
    /// A guest with a colon, or a file.
    GuestPath,
    /// A snapshot of the guest before it.
    Snapshot,
    /// A disk of the guest before it.
    Disk,
    /// An image.
    Image,
    /// An image that can be fetched by its name, or a file.
    KnownImage,
    /// A libvirt network.
    Network,
    /// A pool.
    Pool,
    /// The index of a GPU.
    Gpu,
    /// The address of any device that is passed through.
    Device,
    /// The address of a NIC.
    Nic,
    /// The name of a NIC.
    Netdev,
    /// The address of an NVMe drive.
    Nvme,
    /// A host of the fleet.
    Host,
}

impl Kind {
    /// The kind of object that an argument of a verb, `disk add`, names; `None` if it is not
    /// listed.
    fn of(verb: &str, arg: &Arg) -> Option<Kind> {
        let group = verb.split(' ').next().unwrap_or_default();
        Some(match (arg.get_id().as_str(), verb) {
            ("image", _) | ("name", "image remove") => Kind::Image,
            (_, "image add") if arg.is_positional() => Kind::KnownImage,
            ("network", _) | ("name", "network show" | "network delete" | "network undo") => {
                Kind::Network
            }
            ("pool", _) => Kind::Pool,
            ("gpu", _) | ("device", "gpu exclude" | "gpu include") | ("devices", "gpu test") => {
                Kind::Gpu
            }
            ("devices", _) if group == "device" => Kind::Device,
            ("pf", "vgpu vfs") => Kind::Gpu,
            ("pf", _) | ("nic", "network create" | "network host-bridge create") => Kind::Netdev,
            ("nic", _) => Kind::Nic,
            ("nvme", _) => Kind::Nvme,
            ("only", _) if group == "fleet" => Kind::Host,
            ("snapshot", "snapshot revert" | "snapshot delete") => Kind::Snapshot,
            ("target", "disk resize" | "disk remove") => Kind::Disk,
            ("targets" | "target", _) => Kind::GuestOrFile,
            ("paths", "cp") => Kind::GuestPath,
            ("name", "start") => Kind::Off,
            (
                "name",
                "stop" | "restart" | "console" | "ssh" | "exec" | "shell" | "pause" | "top"
                | "measure",
            )
            | ("why", "top")
            | ("peer", "measure") => Kind::Running,
            ("of", "export") => Kind::Guest,
            ("name", "network doctor") => Kind::Guest,
            ("name", _) if arg.is_positional() => {
                let is_other = ["network", "image", "fleet", "drive", "schema", "man", "create"];
                return (!is_other.contains(&group) && group != "plan").then_some(Kind::Guest);
            }
            _ => return None,
        })
    }
}

/// Answers the shell if it asks for completions; returns whether it did.
pub fn answer(words: &[OsString]) -> bool {
    let Some(shell) = std::env::var(ASKED_BY).ok().filter(|shell| !shell.is_empty()) else {
        return false;
    };
    let shells = Shells::builtins();
    if let Some(shell) = shells.completer(&shell) {
        // Nothing is completed where it fails: the shell has no place for a message.
        let _ = write(shell, words);
    }
    true
}

/// The script that makes a shell ask; `None` if it cannot.
pub fn script(shell: &str) -> Option<Vec<u8>> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let shell = shells.completer(shell)?;
    shell.write_registration(ASKED_BY, "gpuvm", "gpuvm", "gpuvm", &mut script).ok()?;
    if shell.name() == "zsh" {
        // As a file of $fpath it is the function itself, which has to answer the first Tab, too.
        script.extend(b"[[ ${funcstack[1]} != _gpuvm ]] || _clap_dynamic_completer_gpuvm \"$@\"\n");
    }
    Some(script)
}

/// Writes the completions of a command line, which follows `--`.
fn write(shell: &dyn EnvCompleter, words: &[OsString]) -> io::Result<()> {
    let words = words.iter().skip_while(|word| *word != "--").skip(1);
    let words: Vec<OsString> = words.cloned().collect();
    let mut root = completed(whole(), "", &Now::of(&words));
    let here = std::env::current_dir().ok();
    let mut text = Vec::new();
    if shell.name() == "bash" {
        bash(&mut root, words, &mut text)?;
    } else {
        shell.write_complete(&mut root, words, here.as_deref(), &mut text)?;
    }
    io::stdout().write_all(&text)
}

/// The same for bash, which splits words at `:` and `=`, and replaces only the last part.
fn bash(root: &mut Command, words: Vec<OsString>, text: &mut Vec<u8>) -> io::Result<()> {
    let index = std::env::var(INDEX).ok().and_then(|index| index.parse().ok());
    let separator = std::env::var(SEPARATOR).unwrap_or_else(|_| "\n".to_owned());
    let (words, index) = joined(words, index.unwrap_or_default());
    let typed = words.get(index).map(|word| word.to_string_lossy().into_owned());
    let kept = typed.and_then(|word| word.rfind([':', '=']).map(|at| word[..=at].to_owned()));
    let here = std::env::current_dir().ok();
    let found = complete(root, words, index, here.as_deref())?;
    let found = found.iter().map(|one| one.get_value().to_string_lossy().into_owned());
    let found = found.map(|value| match &kept {
        Some(kept) => value.strip_prefix(kept.as_str()).unwrap_or(&value).to_owned(),
        None => value,
    });
    text.write_all(found.collect::<Vec<_>>().join(&separator).as_bytes())
}

/// Joins words that were split at `:` and `=`; returns them with the new number of the word.
fn joined(words: Vec<OsString>, index: usize) -> (Vec<OsString>, usize) {
    let (mut all, mut at, mut sticks) = (Vec::<OsString>::new(), 0, false);
    for (number, word) in words.into_iter().enumerate() {
        let is_joint = word == ":" || word == "=";
        match all.last_mut().filter(|_| (is_joint || sticks) && number > 1) {
            Some(last) => last.push(&word),
            None => all.push(word),
        }
        sticks = is_joint;
        if number <= index {
            at = all.len() - 1;
        }
    }
    (all, at)
}

/// The command with completions for its arguments.
fn completed(command: Command, path: &str, now: &Now) -> Command {
    let command = command.mut_args(|arg| match Kind::of(path, &arg) {
        Some(kind) => {
            let now = now.clone();
            let values = move |typed: &OsStr| now.values(kind, typed);
            arg.add(ArgValueCompleter::new(values))
        }
        None => arg,
    });
    command.mut_subcommands(|below| {
        let path = format!("{path} {}", below.get_name());
        completed(below, path.trim_start(), now)
    })
}

/// The existing objects, as the command line selects them.
#[derive(Debug, Clone)]
struct Now {
    /// The libvirt; `None` for another machine's, which is not asked.
    connect: Option<String>,
    host: Option<PathBuf>,
    hosts: PathBuf,
    /// The words without options, the program first.
    plain: Vec<String>,
}

impl Now {
    fn of(words: &[OsString]) -> Now {
        let words: Vec<String> = words.iter().map(|w| w.to_string_lossy().into_owned()).collect();
        let value = |names: [&str; 2]| {
            let at = words.iter().position(|word| names.contains(&word.as_str()));
            let next = at.and_then(|at| words.get(at + 1)).cloned();
            let long = words.iter().find_map(|word| word.strip_prefix(names[1])?.strip_prefix('='));
            next.or_else(|| long.map(str::to_owned))
        };
        let connect = value(["-c", "--connect"])
            .or_else(|| std::env::var("LIBVIRT_DEFAULT_URI").ok().filter(|uri| !uri.is_empty()))
            .unwrap_or_else(|| "qemu:///system".to_owned());
        let is_local = |uri: &String| {
            uri.split_once("://").is_some_and(|(scheme, rest)| {
                rest.starts_with('/') && !scheme.contains('+') && !rest.contains('?')
            })
        };
        let hosts = value(["", "--hosts"]).unwrap_or_else(|| "/etc/gpuvm/hosts.toml".to_owned());
        Now {
            connect: Some(connect).filter(is_local),
            host: value(["", "--host"]).map(PathBuf::from),
            hosts: PathBuf::from(hosts),
            plain: words.iter().filter(|word| !word.starts_with('-')).cloned().collect(),
        }
    }

    /// Objects whose names begin with the typed text.
    fn values(&self, kind: Kind, typed: &OsStr) -> Vec<CompletionCandidate> {
        let begins = typed.to_string_lossy().into_owned();
        let found = self.named(kind).unwrap_or_default().into_iter();
        let found = found.filter(|(value, _)| {
            value.starts_with(&begins) && !value.chars().any(|c| c.is_control() || c == ' ')
        });
        let mut found: Vec<CompletionCandidate> = found
            .map(|(value, help)| {
                let help = Some(help).filter(|help| !help.is_empty());
                CompletionCandidate::new(value).help(help.map(Into::into))
            })
            .collect();
        if matches!(kind, Kind::GuestOrFile | Kind::GuestPath | Kind::KnownImage) {
            found.extend(PathCompleter::any().complete(typed));
        }
        found
    }

    /// The existing objects of a kind, each with a word on it; `None` if they are not known.
    fn named(&self, kind: Kind) -> Option<Vec<(String, String)>> {
        match kind {
            Kind::Guest | Kind::GuestOrFile => self.guests(|_| true),
            Kind::Off => self.guests(|state| !state.is_active()),
            Kind::Running => self.guests(DomainState::is_active),
            Kind::GuestPath => {
                let guests = self.guests(DomainState::is_active)?.into_iter();
                Some(guests.map(|(name, state)| (format!("{name}:"), state)).collect())
            }
            Kind::Snapshot => {
                let all = self.hypervisor()?.snapshots(self.guest()?).ok()?;
                Some(all.into_iter().map(|one| (one.name, String::new())).collect())
            }
            Kind::Disk => {
                let disks = gpuvm_ops::guest_disks::list::list(&self.world()?, self.guest()?);
                let disks = disks.ok()?.into_iter();
                Some(disks.map(|disk| (disk.target, String::new())).collect())
            }
            Kind::Image => {
                let hypervisor = self.hypervisor()?;
                let all = images::images(hypervisor.storage(), images::POOL).ok()?;
                Some(all.iter().map(|one| (one.name.to_string(), String::new())).collect())
            }
            Kind::KnownImage => {
                let known = known::read(&KnownArgs { images: KnownArgs::DEFAULT.into() }).ok()?;
                let all = known.iter().map(|image| (image.name.to_string(), String::new()));
                Some(all.collect())
            }
            Kind::Network => {
                let all = self.hypervisor()?.networks().all_networks().ok()?;
                Some(all.into_iter().map(|one| (one.name, String::new())).collect())
            }
            Kind::Pool => {
                let all = self.hypervisor()?.storage().pools().ok()?;
                Some(all.into_iter().map(|one| (one.name, String::new())).collect())
            }
            // Standard input is the terminal's.
            Kind::Host if self.hosts.as_os_str() == "-" => None,
            Kind::Host => {
                let all = host_names(&self.hosts)?.into_iter();
                Some(all.map(|name| (name, String::new())).collect())
            }
            Kind::Gpu | Kind::Device | Kind::Nic | Kind::Netdev | Kind::Nvme => {
                Some(devices(kind, &self.world()?.topology().ok()?))
            }
        }
    }

    /// The guest that a verb on disks or snapshots names.
    fn guest(&self) -> Option<&str> {
        let group = self.plain.iter().position(|word| word == "disk" || word == "snapshot")?;
        self.plain.get(group + 2).map(String::as_str)
    }

    fn guests(&self, wanted: fn(DomainState) -> bool) -> Option<Vec<(String, String)>> {
        let all = self.hypervisor()?.domains().ok()?.into_iter();
        let all = all.filter(|one| wanted(one.state));
        Some(all.map(|one| (one.name, super::names::state(one.state).to_owned())).collect())
    }

    fn hypervisor(&self) -> Option<Rc<dyn Hypervisor>> {
        if self.host.is_some() {
            return None;
        }
        self.world()?.hypervisor().ok()
    }

    fn world(&self) -> Option<World> {
        let connect = self.connect.clone()?;
        let host = self.host.clone();
        let settings = Settings { connect, connect_is_given: false, host, state: None };
        let silent = Output { json: false, quiet: true };
        Some(World::new(settings, Arc::new(Screen::new(silent))))
    }
}

fn devices(kind: Kind, topology: &Topology) -> Vec<(String, String)> {
    let named = |device: &PciDevice| (short(device.bdf), super::names::model(device));
    match kind {
        Kind::Gpu => {
            let all = topology.gpus().enumerate();
            let all = all.map(|(index, gpu)| (index.to_string(), short(gpu.bdf)));
            all.collect()
        }
        Kind::Netdev => {
            let all = topology.devices().iter().filter(|device| device.kind() == DeviceKind::Nic);
            let names = all.flat_map(|device| {
                let names = device.net.iter().flat_map(|net| net.netdevs.iter());
                names.map(|name| (name.clone(), short(device.bdf)))
            });
            names.collect()
        }
        _ => {
            let is_of = |device: &&PciDevice| match device.kind() {
                DeviceKind::Nic => matches!(kind, Kind::Nic | Kind::Device),
                DeviceKind::Nvme => matches!(kind, Kind::Nvme | Kind::Device),
                DeviceKind::Gpu | DeviceKind::NvSwitch => kind == Kind::Device,
                _ => false,
            };
            topology.devices().iter().filter(is_of).map(named).collect()
        }
    }
}

/// An address as it is typed.
fn short(bdf: Bdf) -> String {
    super::names::short(bdf)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[&str]) -> Vec<OsString> {
        line.iter().map(OsString::from).collect()
    }

    fn completions(line: &[&str]) -> Vec<String> {
        let words = words(line);
        let mut root = completed(whole(), "", &Now::of(&words));
        let index = words.len() - 1;
        let found = complete(&mut root, words, index, None).unwrap();
        found.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn bash_splits_words_that_are_one() {
        let split = words(&["gpuvm", "device", "bind", "0000", ":", "34", ":", "00.0"]);
        let whole = words(&["gpuvm", "device", "bind", "0000:34:00.0"]);
        assert_eq!(joined(split, 7), (whole, 3));
        let split = words(&["gpuvm", "plan", "--gpus", "=", "2", ""]);
        let whole = words(&["gpuvm", "plan", "--gpus=2", ""]);
        assert_eq!(joined(split, 5), (whole, 3));
        let split = words(&["gpuvm", "create", "--gpu", "="]);
        assert_eq!(joined(split, 3), (words(&["gpuvm", "create", "--gpu="]), 2));
    }

    #[test]
    fn verbs_and_names_come_before_options() {
        let verbs = completions(&["gpuvm", ""]);
        let first = verbs.iter().position(|word| word.starts_with('-')).unwrap();
        assert!(verbs[..first].contains(&"create".to_owned()), "{verbs:?}");
        assert!(verbs[first..].iter().all(|word| word.starts_with('-')), "{verbs:?}");
        let words = completions(&["gpuvm", "--connect", "test:///default", "stop", ""]);
        assert_eq!(words[0], "test", "{words:?}");
        assert!(words[1..].iter().all(|word| word.starts_with('-')), "{words:?}");
    }

    #[test]
    fn names_are_those_that_there_are() {
        let here = ["gpuvm", "--connect", "test:///default"];
        let on = |line: &[&str]| completions(&[&here, line].concat());
        assert_eq!(on(&["show", "t"]), ["test"]);
        assert_eq!(on(&["start", "t"]), Vec::<String>::new());
        assert_eq!(on(&["network", "show", "d"]), ["default"]);
        assert_eq!(on(&["create", "--network", "d"]), ["default"]);
        assert_eq!(on(&["cp", "te"])[0], "test:");
        assert_eq!(on(&["image", "add", "debian-"]), ["debian-12", "debian-13"]);
        let dgx = concat!(env!("CARGO_MANIFEST_DIR"), "/topologies/dgx-2.json");
        let on = |line: &[&str]| completions(&[&["gpuvm", "--host", dgx], line].concat());
        assert_eq!(on(&["create", "--gpu", "1"]), ["1", "10", "11", "12", "13", "14", "15"]);
        assert_eq!(on(&["device", "bind", "34"]), ["34:00.0"]);
    }

    #[test]
    fn the_guest_of_a_disk_or_snapshot_is_the_one_before_it() {
        for line in [
            &["gpuvm", "snapshot", "revert", "a", ""][..],
            &["gpuvm", "-c", "test:///default", "disk", "remove", "a", ""],
        ] {
            assert_eq!(Now::of(&words(line)).guest(), Some("a"), "{line:?}");
        }
    }

    #[test]
    fn another_machine_is_not_asked() {
        for uri in ["qemu+ssh://root@dgx/system", "qemu://dgx/system", "qemu:///system?socket=/x"] {
            let words = words(&["gpuvm", "-c", uri, "show", ""]);
            assert_eq!(Now::of(&words).connect, None, "{uri}");
        }
    }
}
