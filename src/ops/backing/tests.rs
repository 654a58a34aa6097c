use super::*;
use std::os::unix::fs::symlink;

/// A standalone qcow2 image of 1 MiB, or one over the image of this name: its format is stated if
/// one is given.
fn qcow2(backing: &str, format: &str) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 18];
    bytes[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    bytes[20..24].copy_from_slice(&16_u32.to_be_bytes());
    bytes[24..32].copy_from_slice(&(1_u64 << 20).to_be_bytes());
    bytes[36..40].copy_from_slice(&1_u32.to_be_bytes());
    bytes[40..48].copy_from_slice(&0x30000_u64.to_be_bytes());
    bytes[48..56].copy_from_slice(&0x10000_u64.to_be_bytes());
    bytes[56..60].copy_from_slice(&1_u32.to_be_bytes());
    bytes[100..104].copy_from_slice(&104_u32.to_be_bytes());
    let short = |text: &str| u32::try_from(text.len()).unwrap().to_be_bytes();
    if !format.is_empty() {
        bytes[104..108].copy_from_slice(&0xe279_2aca_u32.to_be_bytes());
        bytes[108..112].copy_from_slice(&short(format));
        bytes[112..112 + format.len()].copy_from_slice(format.as_bytes());
    }
    if !backing.is_empty() {
        bytes[8..16].copy_from_slice(&0x200_u64.to_be_bytes());
        bytes[16..20].copy_from_slice(&short(backing));
        bytes[0x200..0x200 + backing.len()].copy_from_slice(backing.as_bytes());
    }
    bytes
}

/// A directory of images beside the one of another tenant.
struct Images {
    dir: tempfile::TempDir,
}

impl Images {
    fn new() -> Images {
        let images = Images { dir: tempfile::tempdir().unwrap() };
        for dir in ["own", "other", "state"] {
            std::fs::create_dir(images.at(dir)).unwrap();
        }
        std::fs::write(images.at("other/secret.raw"), vec![7; 4096]).unwrap();
        std::fs::write(images.at("own/base.raw"), vec![7; 4096]).unwrap();
        images
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    /// The chain of an image `own/top.qcow2` over this one, with these accepted.
    fn over(&self, name: &str, format: &str, accepted: &[&str]) -> Result<Chain, Refused> {
        std::fs::write(self.at("own/top.qcow2"), qcow2(name, format)).unwrap();
        let accepted: Vec<String> = accepted.iter().map(|&one| one.to_owned()).collect();
        let state = self.at("state");
        chain(&self.at("own/top.qcow2"), Trusted { accepted: &accepted, state: &state })
    }
}

#[test]
fn images_in_the_own_directory_are_stated_with_their_formats() {
    let images = Images::new();
    assert_eq!(images.over("", "", &[]).unwrap().images, Some(vec![]));
    std::fs::write(images.at("own/mid.qcow2"), qcow2("base.raw", "raw")).unwrap();
    let image = |name: &str, format| BackingImage {
        path: images.at(name).to_str().unwrap().into(),
        format,
        kind: DiskKind::File,
    };
    let base = image("own/base.raw", DiskFormat::Raw);
    let chain = images.over("mid.qcow2", "qcow2", &[]).unwrap();
    let mid = image("own/mid.qcow2", DiskFormat::Qcow2);
    assert_eq!(chain.images, Some(vec![mid, base.clone()]));
    assert_eq!(chain.names, ["mid.qcow2", "base.raw"]);
    // A raw image ends the chain, whatever a guest wrote into it.
    let evil = qcow2("/etc/shadow", "raw");
    std::fs::write(images.at("own/base.raw"), evil).unwrap();
    assert_eq!(images.over("base.raw", "raw", &[]).unwrap().images, Some(vec![base]));
    let refused = images.over("base.raw", "", &[]).unwrap_err();
    assert_eq!((&*refused.name, refused.accept), ("/etc/shadow", None));
}

#[test]
fn images_elsewhere_are_opened_only_if_they_are_named() {
    let images = Images::new();
    let secret = images.at("other/secret.raw").to_str().unwrap().to_owned();
    symlink(&secret, images.at("own/link.raw")).unwrap();
    symlink(images.at("other"), images.at("own/dir")).unwrap();
    std::fs::write(images.at("own/mid.qcow2"), qcow2("../other/secret.raw", "raw")).unwrap();
    for name in [&*secret, "../other/secret.raw", "link.raw", "dir/secret.raw", "mid.qcow2"] {
        let refused = images.over(name, "", &[]).unwrap_err();
        assert_eq!(refused.accept.as_deref(), Some(&*secret), "{name}");
        let chain = images.over(name, "", &[&secret]).unwrap();
        let last = chain.images.unwrap().pop().unwrap();
        assert_eq!((last.path, last.format), (secret.clone(), DiskFormat::Raw), "{name}");
    }
    // Nothing accepts a file of the host's system, or one that does not exist.
    for name in ["/etc/passwd", "none.raw", "/dev/null", "", "base.raw\0x"] {
        if name.is_empty() {
            continue;
        }
        assert_eq!(images.over(name, "raw", &[name]).unwrap_err().accept, None, "{name:?}");
    }
}

#[test]
fn words_of_qemu_are_no_files() {
    let images = Images::new();
    std::fs::write(images.at("own/json:{}"), "a file of this name is not what QEMU opens").unwrap();
    for name in [
        "http://host/x",
        "nbd+unix:///x?socket=/run/x",
        "ssh://host/x",
        "fat:rw:/srv",
        "json:{\"driver\":\"file\",\"filename\":\"base.raw\"}",
        "json:{}",
        "file:base.raw",
        "raw:base.raw",
        "host_device:/dev/sda",
        "blkdebug::base.raw",
        "nbd:unix:/run/x",
    ] {
        let refused = images.over(name, "raw", &[]).unwrap_err();
        assert_eq!(refused.accept.as_deref(), Some(name));
        let other = images.over(name, "raw", &["nbd:other"]).unwrap_err();
        assert_eq!(other.accept.as_deref(), Some(name));
        assert_eq!(images.over(name, "raw", &[name]).unwrap().images, None, "{name}");
    }
    // After a slash a colon is part of a name.
    std::fs::write(images.at("own/a:b"), vec![7; 4096]).unwrap();
    assert!(images.over("./a:b", "raw", &[]).is_ok());
}

#[test]
fn a_chain_has_an_end() {
    let images = Images::new();
    let refused = images.over("top.qcow2", "qcow2", &[]).unwrap_err();
    assert!(refused.why.contains("more than 32"), "{refused:?}");
}

#[test]
fn domains_whose_images_name_others_are_reported() {
    let images = Images::new();
    let facts_of = |image: &str, more: &str| {
        let xml = format!(
            "<domain><devices><disk type='file'><driver name='qemu' type='qcow2'/>\
             <source file='{}'/>{more}<target dev='vda'/></disk></devices></domain>",
            images.at(image).display()
        );
        facts(&DomainXml::parse(&xml).unwrap(), &images.at("state"))
    };
    images.over("nbd:unix:/run/x", "raw", &["nbd:unix:/run/x"]).unwrap();
    let found = facts_of("own/top.qcow2", "");
    assert_eq!((found.len(), found[0].fault), (1, DiskFault::Backing));
    assert!(found[0].why.contains("disk `vda` names nbd:unix:/run/x"), "{}", found[0].why);
    assert_eq!(facts_of("own/top.qcow2", "<backingStore/>"), []);
    assert_eq!(facts_of("own/absent.qcow2", ""), []);
    images.over("base.raw", "raw", &[]).unwrap();
    assert_eq!(facts_of("own/top.qcow2", ""), []);
}
