//! The command lines of `nvidia-vm` (gpuvm-nvidia-vm(7), COMMAND LINES), unchanged, through a link
//! of its name: on libvirt's test driver, as if on a DGX-2.

use super::on_dgx2;
use crate::support::daemon::namespaces;
use crate::support::{run, skip};
use std::path::Path;

/// A test host with libvirt's default network, and these domains.
fn host(dir: &Path, domains: &str) -> String {
    let file = dir.join("host.xml");
    let xml = format!(
        "<node><network><name>default</name><bridge name='virbr0'/><ip address='192.168.122.1' \
         netmask='255.255.255.0'><dhcp><range start='192.168.122.2' end='192.168.122.254'/></dhcp>\
         </ip></network><network><name>private-net</name><bridge name='virbr1'/></network>{domains}\
         </node>"
    );
    std::fs::write(&file, xml).unwrap();
    format!("test://{}", file.display())
}

/// Runs a command line in a place where images can be made, with the link in the search path.
fn vendor(line: &str, domains: &str) -> (i32, String, String) {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gpuvm"), dir.path().join("nvidia-vm")).unwrap();
    let images = "mkdir -p /var/lib/libvirt/images; mount -t tmpfs tmpfs /var/lib/libvirt/images";
    let script = format!("{images}; PATH=\"$LINK:$PATH\"; {line}; ls /var/lib/libvirt/images >&2");
    let mut command = on_dgx2(&script);
    command.env("LIBVIRT_DEFAULT_URI", host(dir.path(), domains)).env("LINK", dir.path());
    // The test driver cannot fill volumes.
    command.env("GPUVM_IMAGE", "none");
    run(&mut command)
}

/// Whether a text is a MAC address of QEMU's and an address of the network, in the sentence of
/// `nvidia-vm`.
fn is_answer(line: &str, name: &str) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let [head, "create", "start", "mac:", mac, "ip:", ip] = words[..] else { return false };
    let bytes: Vec<&str> = mac.split(':').collect();
    head == format!("{name}:")
        && mac.starts_with("52:54:00:")
        && bytes.len() == 6
        && bytes.iter().all(|b| b.len() == 2 && u8::from_str_radix(b, 16).is_ok())
        && ip.starts_with("192.168.122.")
        && ip.parse::<std::net::Ipv4Addr>().is_ok()
}

#[test]
fn creates_with_the_replaced_tools_command_lines() {
    if !namespaces() {
        return skip("namespaces need root");
    }
    let warning = "WARNING: Host Data volume not setup, no VM data volume will be created";
    // There is no data array here, so each of them gives a warning.
    for (line, name) in [
        ("nvidia-vm create --domain testme --gpu-count 8 --gpu-index 8", "testme-8g8-15"),
        (
            "nvidia-vm create --domain nvme-passthrough --gpu-index 0 --gpu-count 16",
            "nvme-passthrough-16g0-15",
        ),
        (
            "nvidia-vm create --domain disk-passthrough --gpu-count 1 --gpu-index 8 --volGB 0",
            "disk-passthrough-1g8",
        ),
        (
            "nvidia-vm create --domain disk-passthrough --gpu-count 1 --gpu-index 9 --volGB 0",
            "disk-passthrough-1g9",
        ),
    ] {
        let (code, out, err) = vendor(line, "");
        assert_eq!(code, 0, "{line}: {err}");
        assert!(is_answer(out.trim_end(), name), "{line}: {out}");
        assert_eq!(out.lines().count(), 1, "{line}: {out}");
        assert!(err.lines().any(|line| line == warning), "{line}: {err}");
        assert!(err.lines().any(|line| line == format!("{name}.raw")), "{line}: {err}");
    }
}

#[test]
fn a_private_network_is_a_second_nic() {
    if !namespaces() {
        return skip("namespaces need root");
    }
    let line =
        "nvidia-vm create --domain a --gpu-count 1 --gpu-index 3 --privateIP --dry-run --json";
    let (code, out, err) = vendor(line, "");
    assert_eq!(code, 0, "{err}");
    assert_eq!(out.matches("<source network='private-net'/>").count(), 1, "{out}");
    assert_eq!(out.matches("<interface type='network'>").count(), 2, "{out}");
    assert!(!err.lines().any(|line| line == "a-1g3.raw"), "a dry run made a disk: {err}");
}

#[test]
fn deletes_with_the_replaced_tools_command_lines() {
    if !namespaces() {
        return skip("namespaces need root");
    }
    for name in ["nvme-passthrough-16g0-15", "disk-passthrough-1g8"] {
        let domain = format!(
            "<domain type='test'><name>{name}</name><memory>4096</memory><os><type>hvm</type></os></domain>"
        );
        let (code, out, err) =
            vendor(&format!("nvidia-vm delete --domain {name} --force"), &domain);
        assert_eq!((code, out.as_str()), (0, ""), "{err}");
        assert!(err.contains(&format!("domain `{name}` is deleted")), "{err}");
        // Nothing of that name: an error that says so.
        let (code, _, err) = vendor(&format!("nvidia-vm delete --domain {name} --force"), "");
        assert_eq!(code, 1);
        assert!(err.contains("there is no domain"), "{err}");
    }
}
