//! Explains slow defines. libvirt caches QEMU's capabilities, and considers them outdated if they
//! were probed with KVM while QEMU's user cannot open /dev/kvm, so that QEMU is probed at every
//! define: 14 to 113 s were seen (libvirt, `virQEMUCapsIsValid` of src/qemu/qemu_capabilities.c).

use gpuvm_core::shell::word;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use std::ffi::CString;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

/// The node of the kernel's KVM.
const NODE: &str = "/dev/kvm";
/// The configuration file with the user that QEMU runs as.
const CONFIGURATION: &str = "/etc/libvirt/qemu.conf";
/// Default users of QEMU in distributions: Debian and Ubuntu, Fedora and SUSE.
const USERS: [&str; 2] = ["libvirt-qemu", "qemu"];

/// Permissions of /dev/kvm, and QEMU's user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Owner and group of the node, and its permissions; `None` if there is no KVM.
    pub node: Option<(u32, u32, u32)>,
    /// The user that QEMU runs as, its uid and its groups; `None` if unknown.
    pub user: Option<(String, u32, Vec<u32>)>,
}

impl Node {
    /// Reads those of this machine.
    pub fn of_this_machine() -> Node {
        let meta = std::fs::metadata(NODE).ok().filter(|meta| meta.file_type().is_char_device());
        let node = meta.map(|meta| (meta.uid(), meta.gid(), meta.mode() & 0o777));
        let configured = std::fs::read_to_string(CONFIGURATION).unwrap_or_default();
        let names = configured_user(&configured).into_iter().chain(USERS);
        let user = names.filter_map(|name| User::from_name(name).ok().flatten()).next();
        let user = user.map(|user| {
            let name = CString::new(user.name.clone()).unwrap_or_default();
            let groups = getgrouplist(&name, user.gid).unwrap_or_default();
            (user.name, user.uid.as_raw(), groups.into_iter().map(Gid::as_raw).collect())
        });
        Node { node, user }
    }

    /// Whether that user can open the node for reading and writing; `None` if unknown.
    fn opens(&self) -> Option<bool> {
        let (owner, group, mode) = self.node?;
        let (_, uid, groups) = self.user.as_ref()?;
        let is_root = Uid::from_raw(*uid).is_root();
        // The first matching class decides, as in the kernel.
        let shift = if owner == *uid {
            6
        } else if groups.contains(&group) {
            3
        } else {
            0
        };
        Some(is_root || (mode >> shift) & 0o6 == 0o6)
    }
}

/// The user of a configuration of libvirt's QEMU driver; `None` if not set.
fn configured_user(text: &str) -> Option<&str> {
    let mut values = text.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == "user").then_some(value.trim().trim_matches('"').trim_start_matches('+'))
    });
    values.next_back()
}

/// Says that the user of QEMU cannot open the node, and the command that lets it; `None` if it can,
/// or that is unknown.
pub fn closed(kvm: &Node) -> Option<(String, String)> {
    let (Some((_, group, mode)), Some((user, ..)), Some(false)) =
        (kvm.node, &kvm.user, kvm.opens())
    else {
        return None;
    };
    let name = Group::from_gid(Gid::from_raw(group)).ok().flatten().map(|group| group.name);
    let name = name.unwrap_or_else(|| group.to_string());
    // Joining a group without access does not help.
    let command = match mode & 0o060 {
        0o060 => format!("usermod -aG {name} {user}"),
        _ => format!("chown root:kvm {NODE} && chmod 660 {NODE} && usermod -aG kvm {user}"),
    };
    let why = format!("user `{user}` of QEMU cannot open {NODE} (group {name}, mode {mode:03o})");
    Some((why, format!("{command} && systemctl restart libvirtd")))
}

/// Explains why a define took long, and the remedy.
pub fn why_slow(kvm: &Node) -> String {
    const LONG: &str = "libvirt took long to define it";
    let once = "libvirt probes QEMU at the first define after QEMU, libvirt or the kernel changed";
    let Some((why, command)) = closed(kvm) else {
        return format!("{LONG}: {once}; the next one is quick");
    };
    format!(
        "{LONG}: it probes QEMU anew at every define, because {why}\nhint: `sudo sh -c {}`",
        word(&command)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The finding for a device node with this group and these permissions, for a user of group
    /// 107.
    fn finding(group: u32, mode: u32) -> String {
        let user = Some(("qemu".to_owned(), 64055, vec![107]));
        why_slow(&Node { node: Some((0, group, mode)), user })
    }

    #[test]
    fn a_node_that_qemu_cannot_open_is_reported_with_a_remedy() {
        let at_first = "the next one is quick";
        assert!(finding(107, 0o660).ends_with(at_first) && finding(0, 0o666).ends_with(at_first));
        let shut = finding(0, 0o660);
        assert!(shut.contains("user `qemu` of QEMU cannot open /dev/kvm (group root, mode 660)"));
        let joins = "`sudo sh -c 'usermod -aG root qemu && systemctl restart libvirtd'`";
        assert!(shut.contains(joins), "{shut}");
        // The group has no access either: joining it does not help.
        assert!(finding(107, 0o600).contains("chmod 660 /dev/kvm"), "{}", finding(107, 0o600));
        assert!(why_slow(&Node { node: None, user: None }).ends_with(at_first));
    }

    #[test]
    fn the_user_of_the_configuration_is_read() {
        assert_eq!(
            configured_user("#user = \"x\"\nuser = \"+1000\"\n group=\"g\"\n"),
            Some("1000")
        );
        assert_eq!(configured_user("# user\n"), None);
    }
}
