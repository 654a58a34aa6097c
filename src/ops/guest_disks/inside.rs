//! What a guest does with a disk that has grown: its agent is asked what lies on the disk, and grows it where that is the
//! simple case, one file system on the disk or on its last partition. Everything else is said, and typed by a person.

use crate::agent::{Agent, Untold, has_agent};
use crate::domain::DomainXml;
use crate::hypervisor::Hypervisor;
use crate::shell::word;
use serde::Serialize;
use serde_json::Value;
use std::time::Duration;

/// How long the agent may take for all of it.
const WAIT: Duration = Duration::from_secs(60);
/// How often the guest is asked whether it sees the new size, a second each.
const LOOKS: usize = 5;
/// What tells of a guest's disks and what lies on them, with Linux.
const LSBLK: [&str; 4] = ["--json", "--bytes", "--output", "NAME,SIZE,TYPE,FSTYPE,MOUNTPOINT"];

/// What was done in the guest, and what is left to be typed there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InGuest {
    /// Commands that the guest's agent ran.
    pub done: Vec<String>,
    /// Commands that are left to be typed in the guest.
    pub left: Vec<String>,
    /// Why they are left.
    pub why: Option<String>,
}

/// What is to be done on a grown disk.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Plan {
    /// These commands, program first.
    Run(Vec<Vec<String>>),
    /// Nothing that a program should decide; why.
    Leave(String),
    /// The guest has no disk of this size yet.
    Unseen,
}

/// Commands for a guest of which nothing is known.
pub(super) fn by_hand(why: &str) -> InGuest {
    let left = ["lsblk", "growpart /dev/vdX N", "resize2fs /dev/vdXN", "xfs_growfs MOUNTPOINT"];
    let left = left.map(str::to_owned).to_vec();
    InGuest { done: Vec::new(), left, why: Some(why.to_owned()) }
}

/// Has a running guest grow what lies on a disk that is of this size now.
pub(super) fn grow(
    hypervisor: &dyn Hypervisor,
    name: &str,
    live: &DomainXml,
    bytes: u64,
) -> InGuest {
    if !has_agent(live) {
        return by_hand("its agent does not answer");
    }
    let Some(agent) = Agent::greet(hypervisor, name, WAIT) else {
        return by_hand("its agent does not answer");
    };
    for look in 0..LOOKS {
        if look > 0 {
            std::thread::sleep(Duration::from_secs(1));
        }
        let said = match agent.run("lsblk", &LSBLK) {
            Ok((0, text)) => text,
            Ok(_) | Err(Untold::Nonsense) => return by_hand("it does not tell its disks"),
            Err(Untold::Forbidden) => return by_hand("its agent may not run programs"),
            Err(_) => return by_hand("its agent does not answer"),
        };
        let document = serde_json::from_str(&said).unwrap_or(Value::Null);
        match planned(&document, bytes) {
            Plan::Run(commands) => return run(&agent, &commands),
            Plan::Leave(why) => return by_hand(&why),
            Plan::Unseen => {}
        }
    }
    by_hand("it does not see the new size yet")
}

/// Runs commands in the guest, until one fails.
fn run(agent: &Agent<'_>, commands: &[Vec<String>]) -> InGuest {
    let mut inside = InGuest::default();
    for command in commands {
        let line = command.iter().map(|part| word(part)).collect::<Vec<_>>().join(" ");
        let words: Vec<&str> = command.iter().skip(1).map(String::as_str).collect();
        if inside.why.is_none() {
            match agent.run(&command[0], &words) {
                Ok((0, _)) => {
                    inside.done.push(line);
                    continue;
                }
                Ok((code, _)) => inside.why = Some(format!("`{line}` ended with code {code}")),
                Err(_) => inside.why = Some(format!("its agent did not run `{line}`")),
            }
        }
        inside.left.push(line);
    }
    inside
}

/// What is to be done on the only disk of this size.
fn planned(lsblk: &Value, bytes: u64) -> Plan {
    let all = lsblk["blockdevices"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_grown = |disk: &&Value| disk["type"] == "disk" && disk["size"].as_u64() == Some(bytes);
    let mut grown = all.iter().filter(is_grown);
    let (disk, more) = (grown.next(), grown.next());
    let (disk, None) = (disk, more) else {
        return Plan::Leave("it has several disks of the new size".to_owned());
    };
    let Some(disk) = disk else { return Plan::Unseen };
    let text = |of: &Value, field: &str| of[field].as_str().unwrap_or_default().to_owned();
    let name = text(disk, "name");
    let children = disk["children"].as_array().map(Vec::as_slice).unwrap_or_default();
    // In the order of their numbers, as the kernel numbers partitions where they lie.
    let Some(last) = children.last() else {
        return match file_system(&text(disk, "fstype"), &name, &text(disk, "mountpoint")) {
            _ if text(disk, "fstype").is_empty() => Plan::Run(Vec::new()),
            Some(command) => Plan::Run(vec![command]),
            None => Plan::Leave(format!("/dev/{name} holds {}", said(&text(disk, "fstype")))),
        };
    };
    let part = text(last, "name");
    let of_disk = part.strip_prefix(&name).map(|rest| rest.trim_start_matches('p').to_owned());
    let number = of_disk.filter(|rest| rest.parse::<u32>().is_ok());
    let is_plain = last["type"] == "part" && last["children"].is_null() && children.len() == 1;
    let system = file_system(&text(last, "fstype"), &part, &text(last, "mountpoint"));
    match (number, system) {
        (Some(number), Some(system)) if is_plain => {
            let table = ["growpart".to_owned(), format!("/dev/{name}"), number];
            Plan::Run(vec![table.to_vec(), system])
        }
        _ => Plan::Leave(format!(
            "/dev/{name} holds more than one file system, or one on LVM, RAID or encryption"
        )),
    }
}

/// What a device holds, in words.
fn said(fstype: &str) -> &str {
    if fstype.is_empty() { "no file system" } else { fstype }
}

/// The command that grows a mounted file system; none: there is none that does it while it is mounted so.
fn file_system(fstype: &str, device: &str, mountpoint: &str) -> Option<Vec<String>> {
    let of = |program: &str, what: String| Some(vec![program.to_owned(), what]);
    match fstype {
        "ext2" | "ext3" | "ext4" if !mountpoint.is_empty() => {
            of("resize2fs", format!("/dev/{device}"))
        }
        "xfs" if mountpoint.starts_with('/') => of("xfs_growfs", mountpoint.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A guest's disks: one of 8 GiB as given, and a small one.
    fn plan(disk: Value) -> Plan {
        let mut disk = disk;
        disk["name"] = "vda".into();
        disk["type"] = "disk".into();
        disk["size"] = (8_u64 << 30).into();
        let small = json!({ "name": "vdb", "type": "disk", "size": 1 << 20, "fstype": "ext4" });
        planned(&json!({ "blockdevices": [small, disk] }), 8 << 30)
    }

    /// Commands, as they are typed.
    fn lines(plan: &Plan) -> Vec<String> {
        let Plan::Run(commands) = plan else { panic!("{plan:?}") };
        commands.iter().map(|command| command.join(" ")).collect()
    }

    #[test]
    fn the_simple_layouts_are_grown() {
        let whole = |fstype: &str, at: &str| plan(json!({ "fstype": fstype, "mountpoint": at }));
        assert_eq!(lines(&whole("ext4", "/data")), ["resize2fs /dev/vda"]);
        assert_eq!(lines(&whole("xfs", "/data")), ["xfs_growfs /data"]);
        assert_eq!(lines(&plan(json!({ "fstype": null }))), [""; 0]);
        let part = json!({ "name": "vda1", "type": "part", "fstype": "ext4", "mountpoint": "/" });
        let one = plan(json!({ "children": [part] }));
        assert_eq!(lines(&one), ["growpart /dev/vda 1", "resize2fs /dev/vda1"]);
    }

    #[test]
    fn what_is_not_simple_is_left_to_a_person() {
        let left = |disk: Value| matches!(plan(disk), Plan::Leave(_));
        let part = |number: u32, fstype: &str| {
            json!({ "name": format!("vda{number}"), "type": "part", "fstype": fstype,
                    "mountpoint": "/m" })
        };
        assert!(left(json!({ "children": [part(1, "vfat"), part(2, "ext4")] })));
        assert!(left(json!({ "children": [part(1, "LVM2_member")] })));
        assert!(left(json!({ "fstype": "btrfs", "mountpoint": "/m" })));
        assert!(left(json!({ "fstype": "ext4", "mountpoint": null })));
        let mut lvm = part(1, "ext4");
        lvm["children"] = json!([{ "name": "vg-lv", "type": "lvm" }]);
        assert!(left(json!({ "children": [lvm] })));
        let disk = |name: &str| json!({ "name": name, "type": "disk", "size": 8_u64 << 30 });
        let two = planned(&json!({ "blockdevices": [disk("vda"), disk("vdb")] }), 8 << 30);
        assert!(matches!(two, Plan::Leave(_)), "one of two was chosen");
        assert_eq!(planned(&json!({ "blockdevices": [disk("vda")] }), 9 << 30), Plan::Unseen);
        assert_eq!(planned(&Value::Null, 1), Plan::Unseen);
    }
}
