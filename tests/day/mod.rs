//! A day of a gpuvm user: about seventy commands on a real libvirtd, as on a recorded DGX-2, with a
//! guest that really boots. `session.txt` has the typed lines and the output, word for word;
//! GPUVM_RENEW=1 rewrites the output.

use crate::support::daemon::{Daemon, Tiny};
use crate::support::{host_tree, project, run};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

/// The directory in which everything is typed.
const HOME: &str = "/var/lib/libvirt/ada";
/// The directory of the guest's kernel.
const KERNEL: &str = "/var/lib/libvirt/tiny";
/// The key that may log in.
const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f \
                   ada@dgx\n";

/// Puts a user's usual files into the directory; `None`, with the reason reported, if the machine
/// cannot boot a guest.
fn settle(daemon: &Daemon) -> Option<()> {
    let (home, kernel) = (daemon.own_path(HOME), daemon.own_path(KERNEL));
    for dir in [&home.join("bin"), &home.join("disks"), &kernel] {
        std::fs::create_dir_all(dir).unwrap();
    }
    Tiny::new(&kernel)?;
    let template = std::fs::read_to_string(project().join("tests/day/tiny.xml")).unwrap();
    let template = template.replace("/tiny/", &format!("{KERNEL}/"));
    std::fs::write(home.join("tiny.xml"), template).unwrap();
    std::fs::write(home.join("tiny.raw"), vec![b'Z'; 1 << 20]).unwrap();
    std::fs::write(home.join("me.pub"), KEY).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gpuvm"), home.join("bin/gpuvm")).unwrap();
    Some(())
}

/// Runs a line as it is typed. Returns the content of the terminal then.
fn typed(daemon: &Daemon, line: &str) -> String {
    let mut shell = daemon.enter(&["--mount", "--net", "--uts", "--pid"], "sh");
    let script = format!("exec 2>&1; cd {HOME} && PATH={HOME}/bin:$PATH; {line}");
    shell.args(["-c", &script]).stdin(std::process::Stdio::null());
    shell.env("HOME", HOME).env("LC_ALL", "C").env_remove("LIBVIRT_DEFAULT_URI");
    let (code, mut out, _) = run(shell.env_remove("COLUMNS"));
    if code != 0 {
        writeln!(out, "[{code}]").unwrap();
    }
    out
}

/// Text that differs between two runs, made the same: UUIDs by the order in which they come, times,
/// kernel and terminals of this machine, a MAC address, and the space that a file occupies on its
/// file system.
struct Usual {
    /// UUIDs in the order in which they came.
    uuids: Vec<String>,
}

impl Usual {
    /// Rewrites it, each part as long as it was.
    fn text(&mut self, text: &str) -> String {
        let mut all = String::new();
        for line in text.lines() {
            let own = [
                "  Kernel    ",
                "console   pty /dev/pts/",
                "train: create mac: ",
                "uptime    ",
                "cpu use   ",
                "mem use   ",
            ];
            let line = match own.into_iter().find(|head| line.starts_with(head)) {
                Some(head) => format!("{head}0"),
                None => self.line(line),
            };
            all += &line;
            all.push('\n');
        }
        all
    }

    /// Rewrites a line.
    fn line(&mut self, line: &str) -> String {
        let (mut all, mut rest) = (String::new(), line);
        while let Some(next) = rest.chars().next() {
            let (usual, length) = match (rest.get(..36), rest.get(..20)) {
                (Some(uuid), _) if shape(uuid) == "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" => {
                    (self.uuid(uuid), 36)
                }
                (_, Some(time)) if shape(time) == "xxxx-xx-xxTxx:xx:xxZ" => {
                    ("2026-01-01T00:00:00Z".to_owned(), 20)
                }
                _ => (next.to_string(), next.len_utf8()),
            };
            all += &usual;
            rest = &rest[length..];
        }
        allocated(line, all)
    }

    /// Numbers a UUID.
    fn uuid(&mut self, uuid: &str) -> String {
        let known = self.uuids.iter().position(|known| known == uuid);
        let number = known.unwrap_or_else(|| {
            self.uuids.push(uuid.to_owned());
            self.uuids.len() - 1
        });
        format!("00000000-0000-4000-8000-{:012}", number + 1)
    }
}

/// A text with `x` in place of digits, also hexadecimal ones.
fn shape(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_hexdigit() { 'x' } else { c }).collect()
}

/// A row of `disk list` without what its file system holds of it.
fn allocated(line: &str, text: String) -> String {
    let cells: Vec<&str> =
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    // Of `show`: `disk  vda: PATH, .., SIZE, HELD on the host`.
    if let ["disk", _] = cells[..]
        && let Some((before, _)) = text.rsplit_once(", ").filter(|_| text.ends_with(" on the host"))
    {
        return format!("{before}, some on the host");
    }
    let [disk, _, _, size, held, ..] = cells[..] else { return text };
    if !disk.starts_with("vd") || !held.ends_with("iB") {
        return text;
    }
    let Some(at) = text.find(size).map(|at| at + size.len()) else { return text };
    let (before, rest) = text.split_at(at);
    format!("{before}{}", rest.replacen(held, &format!("{:1$}", "some", held.len()), 1))
}

#[test]
fn a_users_day_prints_the_recorded_session() {
    let Some(daemon) = Daemon::with_networks(&host_tree("dgx-2")) else { return };
    if settle(&daemon).is_none() {
        return;
    }
    let file = project().join("tests/day/session.txt");
    let told = std::fs::read_to_string(&file).unwrap();
    let (mut all, mut usual, begun) = (String::new(), Usual { uuids: Vec::new() }, Instant::now());
    // What stands between two lines that are typed is what came.
    let mut lines = told.lines().peekable();
    while let Some(line) = lines.next() {
        writeln!(all, "{line}").unwrap();
        let Some(line) = line.strip_prefix("$ ") else { continue };
        let at = Instant::now();
        let came = usual.text(&typed(&daemon, line));
        eprintln!("day: {:.1} s: {line}", at.elapsed().as_secs_f32());
        all += &came;
        let ends = |line: &str| line.starts_with("$ ") || line.starts_with("# ");
        while lines.next_if(|line| !ends(line)).is_some() {}
        if lines.peek().is_some() {
            all.push('\n');
        }
    }
    eprintln!("day: {:.0} s in all", begun.elapsed().as_secs_f32());
    if std::env::var_os("GPUVM_RENEW").is_some() {
        std::fs::write(&file, &all).unwrap();
    } else {
        same(&told, &all);
    }
    nothing_is_left(&daemon);
}

/// Expects the output to match the session, and reports where it does not.
fn same(told: &str, came: &str) {
    let mut typed = "";
    for (number, pair) in told.lines().zip(came.lines()).enumerate() {
        if pair.0.starts_with("$ ") {
            typed = pair.0;
        }
        assert_eq!(pair.1, pair.0, "{typed}\nsession.txt:{}: otherwise:\n{came}", number + 1);
    }
    assert_eq!(came.lines().count(), told.lines().count(), "{came}");
}

/// At the end of the day nothing is left of its guests: no disk, record, unit or journal.
fn nothing_is_left(daemon: &Daemon) {
    let mut all = Vec::new();
    for dir in ["/var/lib/gpuvm", "/etc/systemd/system", "/etc/tmpfiles.d", "/var/lib/libvirt"] {
        below(&daemon.own_path(dir), &mut all);
    }
    // The directory of who typed, and what `gpuvm network undo` needs.
    let stays = [HOME, KERNEL, "/var/lib/gpuvm/networks/"];
    all.retain(|path| !stays.iter().any(|stays| path.contains(stays)));
    assert_eq!(all, [""; 0]);
}

/// Adds the paths of the files below a directory.
fn below(dir: &Path, all: &mut Vec<String>) {
    for entry in dir.read_dir().into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            below(&path, all);
        } else {
            all.push(path.display().to_string());
        }
    }
}
