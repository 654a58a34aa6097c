//! Detects the network manager of this host. Finds only which one configures a NIC, not how.

use crate::fsroot::{FsError, FsRoot};
use gpuvm_core::hostnet::manager::Manager;

/// Directories of netplan's files.
pub const NETPLAN: [&str; 4] = ["etc/netplan", "run/netplan", "usr/lib/netplan", "lib/netplan"];
/// The file of ifupdown, beside which it reads those of a directory.
const INTERFACES: &str = "etc/network/interfaces";

/// Returns the manager of these NICs: netplan if it has a file; ifupdown if it names one of them;
/// otherwise the running daemon.
pub fn manager(root: &FsRoot, nics: &[String]) -> Result<Manager, FsError> {
    for dir in NETPLAN {
        // Missing on most hosts, and then not used.
        let names = if root.exists(dir) { root.names(dir)? } else { Vec::new() };
        if names.iter().any(|name| name.ends_with(".yaml")) {
            return Ok(Manager::Netplan);
        }
    }
    if interfaces(root, nics)? {
        return Ok(Manager::Ifupdown);
    }
    Ok(match () {
        () if root.exists("run/NetworkManager") => Manager::Nm,
        () if root.exists("run/systemd/netif/state") => Manager::Networkd,
        () => Manager::Unknown,
    })
}

/// Whether ifupdown's files name one of these NICs.
fn interfaces(root: &FsRoot, nics: &[String]) -> Result<bool, FsError> {
    let dir = format!("{INTERFACES}.d");
    let names = if root.exists(&dir) { root.names(&dir)? } else { Vec::new() };
    let mut paths: Vec<String> = names.iter().map(|name| format!("{dir}/{name}")).collect();
    paths.push(INTERFACES.to_owned());
    for path in paths {
        let text = root.read(&path)?.unwrap_or_default();
        let mut lines = text.lines().map(str::split_whitespace);
        let named = lines.any(|mut words| {
            let is_it = words.next() == Some("iface");
            words.next().is_some_and(|name| is_it && nics.iter().any(|nic| nic == name))
        });
        if named {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_manager_is_recognised_by_its_files() {
        let nics = ["eth0".to_owned()];
        for (files, expected) in [
            (&[][..], Manager::Unknown),
            (&["run/systemd/netif/state"], Manager::Networkd),
            (&["run/systemd/netif/state", "run/NetworkManager/x"], Manager::Nm),
            (&["run/NetworkManager/x", "etc/network/interfaces.d/a"], Manager::Ifupdown),
            (&["etc/network/interfaces"], Manager::Ifupdown),
            (&["etc/network/interfaces", "lib/netplan/00.yaml"], Manager::Netplan),
            (&["etc/netplan/00.yaml.off"], Manager::Unknown),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for file in files {
                let path = dir.path().join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "auto lo\niface eth0 inet dhcp\n").unwrap();
            }
            let root = FsRoot::at(dir.path()).unwrap();
            assert_eq!(manager(&root, &nics).unwrap(), expected, "{files:?}");
            if expected == Manager::Ifupdown {
                assert_ne!(manager(&root, &["eth1".into()]).unwrap(), expected, "{files:?}");
            }
        }
    }
}
