//! Grows the file system on a disk that has grown, through the guest's agent, in the simple case:
//! one file system on the disk or on its only partition. Otherwise a person gets the commands. The
//! guest's names of disks differ from libvirt's, so the disk is the one that has got the new size.

use crate::agent::{Agent, NoAnswer, has_agent};
use crate::domain::DomainXml;
use crate::hypervisor::Hypervisor;
use crate::shell::word;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long the agent may take for all of it.
const WAIT: Duration = Duration::from_secs(60);
/// How often the guest is asked whether it sees the new size, a second each.
const LOOKS: usize = 5;
/// Options of `lsblk`.
const LSBLK: [&str; 4] = ["--json", "--bytes", "--output", "NAME,SIZE,TYPE,FSTYPE,MOUNTPOINT"];

/// The steps made in the guest, and those that remain there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InGuest {
    /// Commands that the guest's agent ran.
    pub done: Vec<String>,
    /// Commands still to be run in the guest.
    pub left: Vec<String>,
    /// Why the agent did not run them.
    pub why: Option<String>,
}

/// The steps on a grown disk.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Plan {
    /// These commands, program first.
    Run(Vec<Vec<String>>),
    /// Left to a person, for this reason.
    Leave(String),
    /// The guest has no disk of this size yet.
    Unseen,
}

/// Commands for a person, since gpuvm did not grow the file system itself.
pub(super) fn by_hand(why: &str) -> InGuest {
    let left = ["lsblk", "growpart /dev/vdX N", "resize2fs /dev/vdXN", "xfs_growfs MOUNTPOINT"];
    let left = left.map(str::to_owned).to_vec();
    InGuest { done: Vec::new(), left, why: Some(why.to_owned()) }
}

/// Names of a running guest's disks, or why they are unknown.
pub(super) type DiskNames = Result<BTreeSet<String>, String>;

/// Returns the guest's disks that have a size before the disk that is to grow gets it: these are
/// others.
pub(super) fn others_of_size(
    hypervisor: &dyn Hypervisor,
    name: &str,
    live: &DomainXml,
    bytes: u64,
) -> DiskNames {
    let document = lsblk(&greet(hypervisor, name, live)?)?;
    Ok(of_size(&document, bytes).map(|disk| text(disk, "name").to_owned()).collect())
}

/// Has a running guest grow the file system on a disk that is of this size now. `others`: its disks
/// that had this size before.
pub(super) fn grow(
    hypervisor: &dyn Hypervisor,
    name: &str,
    live: &DomainXml,
    bytes: u64,
    others: &DiskNames,
) -> InGuest {
    grown(hypervisor, name, live, bytes, others).unwrap_or_else(|why| by_hand(&why))
}

/// The steps made; or why none were.
fn grown(
    hypervisor: &dyn Hypervisor,
    name: &str,
    live: &DomainXml,
    bytes: u64,
    others: &DiskNames,
) -> Result<InGuest, String> {
    let others = others.as_ref().map_err(Clone::clone)?;
    let agent = greet(hypervisor, name, live)?;
    for look in 0..LOOKS {
        if look > 0 {
            std::thread::sleep(Duration::from_secs(1));
        }
        match planned(&lsblk(&agent)?, bytes, others) {
            Plan::Run(commands) => return Ok(run(&agent, &commands)),
            Plan::Leave(why) => return Err(why),
            Plan::Unseen => {}
        }
    }
    Err("the guest does not see the new size yet".to_owned())
}

/// Starts a conversation with the guest's agent.
fn greet<'h>(
    hypervisor: &'h dyn Hypervisor,
    name: &'h str,
    live: &DomainXml,
) -> Result<Agent<'h>, String> {
    let agent = has_agent(live).then(|| Agent::greet(hypervisor, name, WAIT)).flatten();
    agent.ok_or_else(|| "the guest agent does not answer".to_owned())
}

/// Asks the guest for its disks.
fn lsblk(agent: &Agent<'_>) -> Result<Value, String> {
    match agent.run("lsblk", &LSBLK) {
        Ok((0, text)) => Ok(serde_json::from_str(&text).unwrap_or(Value::Null)),
        Ok(_) | Err(NoAnswer::Nonsense) => Err("lsblk in the guest failed".to_owned()),
        Err(NoAnswer::Forbidden) => {
            Err("the guest agent is not allowed to run programs".to_owned())
        }
        Err(_) => Err("the guest agent does not answer".to_owned()),
    }
}

/// Disks of a size among those that `lsblk` lists.
fn of_size(lsblk: &Value, bytes: u64) -> impl Iterator<Item = &Value> {
    let all = lsblk["blockdevices"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter(move |disk| disk["type"] == "disk" && disk["size"].as_u64() == Some(bytes))
}

/// A field of a device; empty if it has none.
fn text<'v>(of: &'v Value, field: &str) -> &'v str {
    of[field].as_str().unwrap_or_default()
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
                Ok((code, _)) => inside.why = Some(format!("`{line}` exited with {code}")),
                Err(_) => inside.why = Some(format!("the guest agent did not run `{line}`")),
            }
        }
        inside.left.push(line);
    }
    inside
}

/// Plans the steps on the disk that has got this size: the only one besides `others`.
fn planned(lsblk: &Value, bytes: u64, others: &BTreeSet<String>) -> Plan {
    let mut grown = of_size(lsblk, bytes).filter(|disk| !others.contains(text(disk, "name")));
    let (disk, more) = (grown.next(), grown.next());
    let (disk, None) = (disk, more) else {
        return Plan::Leave("several disks of the guest have got the new size".to_owned());
    };
    let Some(disk) = disk else { return Plan::Unseen };
    let (name, fstype) = (text(disk, "name"), text(disk, "fstype"));
    let children = disk["children"].as_array().map(Vec::as_slice).unwrap_or_default();
    // In the order of their numbers, as the kernel numbers partitions by position.
    let Some(last) = children.last() else {
        return match file_system(fstype, name, text(disk, "mountpoint")) {
            _ if fstype.is_empty() => Plan::Run(Vec::new()),
            Some(command) => Plan::Run(vec![command]),
            None => Plan::Leave(format!("/dev/{name} holds {}", said(fstype))),
        };
    };
    let part = text(last, "name");
    let of_disk = part.strip_prefix(name).map(|rest| rest.trim_start_matches('p').to_owned());
    let number = of_disk.filter(|rest| rest.parse::<u32>().is_ok());
    let is_plain = last["type"] == "part" && last["children"].is_null() && children.len() == 1;
    let system = file_system(text(last, "fstype"), part, text(last, "mountpoint"));
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

/// Describes the content of a device.
fn said(fstype: &str) -> &str {
    if fstype.is_empty() { "no file system" } else { fstype }
}

/// Returns the command that grows a mounted file system; `None` if there is none.
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
        planned(&json!({ "blockdevices": [small, disk] }), 8 << 30, &BTreeSet::new())
    }

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
    fn ambiguous_cases_are_left_to_a_person() {
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
        let none = BTreeSet::new();
        let two = json!({ "blockdevices": [disk("vda"), disk("vdb")] });
        let chosen = planned(&two, 8 << 30, &none);
        assert!(matches!(chosen, Plan::Leave(_)), "one of two was chosen");
        assert_eq!(
            planned(&json!({ "blockdevices": [disk("vda")] }), 9 << 30, &none),
            Plan::Unseen
        );
        assert_eq!(planned(&Value::Null, 1, &none), Plan::Unseen);
    }

    #[test]
    fn a_disk_that_had_the_size_before_is_another() {
        let disk = |name: &str, gib: u64, part: Option<&str>| {
            let parts: Vec<Value> = part
                .map(|part| json!({ "name": part, "type": "part", "fstype": "ext4", "mountpoint": "/" }))
                .into_iter()
                .collect();
            json!({ "name": name, "type": "disk", "size": gib << 30, "children": parts })
        };
        let before =
            json!({ "blockdevices": [disk("vda", 4, Some("vda1")), disk("vdb", 8, Some("vdb1"))] });
        let others: BTreeSet<String> =
            of_size(&before, 8 << 30).map(|disk| text(disk, "name").to_owned()).collect();
        assert_eq!(others, ["vdb".to_owned()].into());
        // The guest does not see the growth of the other disk yet.
        assert_eq!(planned(&before, 8 << 30, &others), Plan::Unseen);
        let after =
            json!({ "blockdevices": [disk("vda", 8, Some("vda1")), disk("vdb", 8, Some("vdb1"))] });
        let plan = planned(&after, 8 << 30, &others);
        assert_eq!(lines(&plan), ["growpart /dev/vda 1", "resize2fs /dev/vda1"]);
    }
}
