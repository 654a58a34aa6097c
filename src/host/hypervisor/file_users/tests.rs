//! Uses without a hypervisor: definitions and files of these tests' own.

use super::*;

fn by(name: &str) -> User {
    User::Domain { name: name.into(), uuid: format!("uuid of {name}") }
}

/// Reads a definition with this inside its devices.
fn add(uses: &mut Uses, name: &str, devices: &str) {
    let text = format!(
        "<domain type='kvm'><name>{name}</name><os><nvram>/none/{name}.fd</nvram></os>\
         <devices>{devices}</devices></domain>"
    );
    let xml = DomainXml::parse(&text).unwrap();
    document::read(&xml, false).into_iter().for_each(|named| uses.add(&by(name), named));
}

/// A volume of pool `p`.
fn volume(name: &str, backing: Option<&str>) -> Volume {
    Volume {
        pool: "p".into(),
        name: name.into(),
        path: PathBuf::from("/none/p").join(name),
        format: "qcow2".into(),
        capacity_bytes: 1,
        allocation_bytes: 1,
        backing: backing.map(PathBuf::from),
        modified_ns: None,
    }
}

/// The uses of a path, as text.
fn said(uses: &Uses, path: &str) -> Vec<String> {
    uses.of(Path::new(path)).iter().map(ToString::to_string).collect()
}

/// A qcow2 header over a file of this name.
fn over(name: &str) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    bytes[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    bytes[8..16].copy_from_slice(&0x200_u64.to_be_bytes());
    bytes[16..20].copy_from_slice(&u32::try_from(name.len()).unwrap().to_be_bytes());
    bytes[0x200..0x200 + name.len()].copy_from_slice(name.as_bytes());
    bytes[100..104].copy_from_slice(&104_u32.to_be_bytes());
    bytes
}

#[test]
fn a_file_is_used_by_what_names_it_and_by_what_lies_over_it() {
    let mut uses = Uses {
        volumes: vec![
            volume("base", None),
            volume("os", Some("/none/p/base")),
            volume("snap", Some("/none/p/os")),
            // The walk of a cycle, which a damaged pool may contain, ends.
            volume("x", Some("/none/p/y")),
            volume("y", Some("/none/p/x")),
        ],
        ..Uses::default()
    };
    let devices = "<disk type='volume'><source pool='p' volume='os'/><backingStore \
        type='file'><format type='raw'/>\
        <source file='/none/x'/></backingStore><mirror type='block'><format type='raw'/><source \
        dev='/dev/none'/></mirror></disk>\
        <disk type='file'><driver type='qcow2'/><source file='/none/lost'/></disk>\
        <interface><source file='/none/nic'/></interface>";
    add(&mut uses, "a", devices);
    uses.add_volumes();
    assert_eq!(uses.domains(Path::new("/none/p/base")), ["a"]);
    assert_eq!(uses.volumes(Path::new("/none/p/base")), ["p/os", "p/snap"]);
    assert_eq!(uses.volumes(Path::new("/none/p/y")), ["p/x"]);
    assert_eq!(uses.domains(Path::new("/none/p/snap")), [""; 0]);
    assert_eq!(uses.domains(Path::new("/none/nic")), [""; 0]);
    let perhaps = "domain `a` has image /none/lost, whose backing file is unknown (it is on another \
                   machine)";
    assert_eq!(said(&uses, "/none/other"), [perhaps]);
    assert_eq!(said(&uses, "/none/x"), ["domain `a` has an image over it"]);
    assert_eq!(said(&uses, "/dev/none"), ["domain `a` copies a disk to it"]);
    assert_eq!(said(&uses, "/none/a.fd"), ["domain `a` has it as its NVRAM"]);
    let os = VolumeRef { pool: "p".into(), name: "os".into() };
    let of_os = uses.of_disk(Path::new("/elsewhere"), Some(&os));
    assert_eq!(of_os[0].to_string(), "domain `a` has it as a disk");
    assert_eq!(uses.others(Path::new("/none/a.fd"), "uuid of a"), []);
}

#[test]
fn one_file_has_many_names() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("real")).unwrap();
    std::os::unix::fs::symlink(at("real"), at("link")).unwrap();
    std::fs::write(at("real/base"), "x").unwrap();
    std::fs::hard_link(at("real/base"), at("hard")).unwrap();
    // Relative to the image, and in QEMU's notation.
    std::fs::write(at("real/one"), over("base")).unwrap();
    std::fs::write(
        at("two"),
        over(&format!("json:{{\"file\":{{\"filename\":\"{}\"}}}}", at("link/one").display())),
    )
    .unwrap();
    let mut uses = Uses { here: true, ..Uses::default() };
    let disk = |path: PathBuf, kind: &str| {
        let path = path.display();
        format!("<disk type='file'><driver type='{kind}'/><source file='{path}'/></disk>")
    };
    add(&mut uses, "a", &disk(at("two"), "qcow2"));
    for name in ["real/base", "link/base", "hard", "link/../real/base", "real/one"] {
        let said = said(&uses, at(name).to_str().unwrap());
        assert_eq!(said, ["domain `a` has an image over it"], "{name}");
    }
    // A header written by a guest to its raw disk is ignored.
    std::fs::write(at("raw"), over("/none/victim")).unwrap();
    add(&mut uses, "b", &disk(at("raw"), "raw"));
    assert_eq!(said(&uses, "/none/victim"), [""; 0]);
    // An image with an unparsable backing file may have any.
    std::fs::write(at("odd"), over("quorum:1:2")).unwrap();
    add(&mut uses, "c", &disk(at("odd"), "qcow2"));
    assert!(said(&uses, "/none/victim")[0].contains("is unknown"));
    assert_eq!(said(&uses, at("odd").to_str().unwrap()), ["domain `c` has it as a disk"]);
}
