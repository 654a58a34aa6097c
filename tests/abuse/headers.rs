//! Image headers that a guest wrote into its own disk: files of the host, of another tenant and of
//! servers are not opened because such a header names them.

use super::uses::{Ground, disk};
use crate::support::run;
use std::fs;
use std::process::Command;

/// Makes an image of 8 MiB over another one, which does not have to exist. Returns its path.
fn over(ground: &Ground, name: &str, below: &str, format: &str) -> String {
    let path = ground.path(name);
    let made = Command::new("qemu-img")
        .args(["create", "-q", "-u", "-f", "qcow2", "-F", format, "-b", below, &path, "8M"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    path
}

/// Another tenant's directory with a raw disk in it. Returns the disk.
fn tenant(ground: &Ground) -> String {
    fs::create_dir(ground.at("tenant")).unwrap();
    fs::write(ground.at("tenant/secret.raw"), vec![b's'; 8 << 20]).unwrap();
    ground.path("tenant/secret.raw")
}

/// Expects that a verb refuses an image for the files that it names. Returns the message.
fn refused(ground: &Ground, args: &[&str]) -> String {
    let (code, out, err) = ground.place.gpuvm(args);
    let says = err.contains("its image has a backing file") || err.contains("QEMU opens");
    assert!(code == 1 && says, "{args:?}: {out}{err}");
    err
}

#[test]
fn a_disk_that_gpuvm_made_raw_stays_raw_whatever_its_guest_writes() {
    let Some(ground) = Ground::new() else { return };
    let secret = tenant(&ground);
    ground.guest("a");
    // The guest writes a header over the secret, and the start of the image with it.
    let header = fs::read(over(&ground, "header", &secret, "raw")).unwrap();
    let mut bytes = fs::read(ground.at("a.raw")).unwrap();
    bytes[..header.len()].copy_from_slice(&header);
    fs::write(ground.at("a.raw"), bytes).unwrap();
    ground.place.virsh(&["undefine", "a"]);
    ground.other("b", "");
    let raw = ground.path("a.raw");
    let (code, out, err) = ground.place.gpuvm(&["disk", "add", "b", &raw]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(err.contains("gpuvm made it raw"), "{err}");
    let xml = ground.xml("b");
    assert!(xml.contains("type='raw'") && !xml.contains("qcow2"), "{xml}");
    // By a link it is the same disk; another file in its place is not.
    ground.gone("b");
    ground.other("b", "");
    std::os::unix::fs::symlink(&raw, ground.at("link")).unwrap();
    ground.place.done(&["disk", "add", "b", &ground.path("link")]);
    assert!(!ground.xml("b").contains("qcow2"));
    ground.gone("b");
    // By another name, too.
    ground.other("b", "");
    fs::hard_link(&raw, ground.at("second.img")).unwrap();
    ground.place.done(&["disk", "add", "b", &ground.path("second.img")]);
    assert!(!ground.xml("b").contains("qcow2"), "{}", ground.xml("b"));
    fs::remove_file(ground.at("second.img")).unwrap();
    ground.gone("b");
    ground.other("b", "");
    fs::copy(&raw, ground.at("copy.img")).unwrap();
    fs::rename(ground.at("copy.img"), ground.at("a.raw")).unwrap();
    let (code, _, err) = ground.place.gpuvm(&["disk", "add", "b", &raw]);
    assert!(code == 1 && err.contains("raw by its name and qcow2 by its content"), "{err}");
    ground.gone("b");
}

#[test]
fn a_header_opens_nothing_outside_the_directory_of_its_image() {
    let Some(ground) = Ground::new() else { return };
    let secret = tenant(&ground);
    std::os::unix::fs::symlink(&secret, ground.at("inside.raw")).unwrap();
    over(&ground, "middle.qcow2", "tenant/secret.raw", "raw");
    ground.other("b", "");
    let json = format!("json:{{\"driver\":\"file\",\"filename\":\"{secret}\"}}");
    for below in [
        &secret,
        "tenant/secret.raw",
        "inside.raw",
        "middle.qcow2",
        "/etc/passwd",
        &json,
        "nbd+unix:///x?socket=/run/x",
        "http://127.0.0.1:9/x",
        "ssh://127.0.0.1/x",
        "fat:/srv",
        "file:inside.raw",
    ] {
        let format = if below == "middle.qcow2" { "qcow2" } else { "raw" };
        let image = over(&ground, "evil.img", below, format);
        refused(&ground, &["disk", "add", "b", &image]);
        for option in ["--disk", "--add-disk"] {
            let mut more = vec!["--no-start", option, &image];
            if option == "--add-disk" {
                more.extend(["--image", "none"]);
            }
            refused(&ground, &ground.place.create("c", &more));
        }
        assert!(!ground.place.has("c") && !ground.xml("b").contains("evil"), "{below}");
    }
    // Files named by the admin are opened, and only those.
    let image = over(&ground, "evil.img", "middle.qcow2", "qcow2");
    let err = refused(&ground, &["disk", "add", "b", &image]);
    let hint = format!("--accept-backing {secret} accepts it");
    assert!(err.contains(&hint), "{err}");
    refused(
        &ground,
        &["disk", "add", "b", &image, "--accept-backing", &ground.path("middle.qcow2")],
    );
    ground.place.done(&["disk", "add", "b", &image, "--accept-backing", &secret]);
    ground.gone("b");
}

#[test]
fn a_definition_states_the_whole_chain_so_that_a_later_header_opens_nothing() {
    let Some(ground) = Ground::new() else { return };
    let secret = tenant(&ground);
    fs::write(ground.at("base.raw"), vec![0; 8 << 20]).unwrap();
    let image = over(&ground, "own.qcow2", "base.raw", "raw");
    let alone = ground.path("alone.qcow2");
    let (code, out, err) =
        run(Command::new("qemu-img").args(["create", "-q", "-f", "qcow2", &alone, "8M"]));
    assert_eq!(code, 0, "{out}{err}");
    ground.other("b", "");
    ground.place.done(&["disk", "add", "b", &image]);
    ground.place.done(&["disk", "add", "b", &alone]);
    let xml = ground.xml("b");
    assert!(xml.contains(&ground.path("base.raw")) && xml.contains("<backingStore/>"), "{xml}");
    // Both images name the secret from now on.
    over(&ground, "own.qcow2", &secret, "raw");
    over(&ground, "alone.qcow2", &secret, "raw");
    ground.start("b");
    let nodes = "{\"execute\":\"query-named-block-nodes\"}";
    let opened = ground.place.virsh(&["qemu-monitor-command", "b", nodes]);
    assert!(opened.contains("own.qcow2") && opened.contains("base.raw"), "{opened}");
    let is_open = opened.contains(&format!("\"filename\":\"{secret}\""));
    assert!(!is_open, "QEMU has opened what the guest's header names: {opened}");
    ground.gone("b");
}

#[test]
fn domains_and_clones_whose_images_name_files_elsewhere_are_reported() {
    let Some(ground) = Ground::new() else { return };
    let secret = tenant(&ground);
    let image = over(&ground, "evil.img", &secret, "raw");
    ground.other("b", &disk("qcow2", &image));
    let (_, out, err) = ground.place.gpuvm(&["check", "b"]);
    assert!(out.contains("disk-backing") && out.contains(&secret), "{out}{err}");
    ground.gone("b");
    // A clone would have all that is in it.
    let alone = ground.path("alone.qcow2");
    let (code, out, err) =
        run(Command::new("qemu-img").args(["create", "-q", "-f", "qcow2", &alone, "8M"]));
    assert_eq!(code, 0, "{out}{err}");
    ground.place.done(&ground.place.create("d", &["--no-start", "--disk", &alone]));
    over(&ground, "alone.qcow2", &secret, "raw");
    refused(&ground, &["clone", "d", "c"]);
    assert!(!ground.place.has("c"));
    ground.gone("d");
}
