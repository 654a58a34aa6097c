//! Content of images, and its description.

use super::{content, guid_bytes, is_in_table, whole_content};
use gpuvm_core::topology::{Content, Signature};
use std::io::Write as _;
use std::path::Path;

/// An image of 4 MiB with these bytes at a place.
fn image(at: u64, bytes: &[u8]) -> tempfile::NamedTempFile {
    use std::os::unix::fs::FileExt as _;
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(4 << 20).unwrap();
    file.as_file().write_all_at(bytes, at).unwrap();
    file
}

/// The kinds of signatures on an image.
fn kinds(path: &Path) -> Vec<String> {
    let Content::Signatures(all) = whole_content(path) else { panic!("not read") };
    all.into_iter().map(|one| one.kind).collect()
}

#[test]
fn every_kind_of_content_is_seen_and_blank_is_blank() {
    for (at, bytes, kind) in [
        (0, &b"LUKS\xba\xbe\0\x01"[..], "crypto_LUKS"),
        (0, b"bluestore block device\n", "ceph_bluestore"),
        (0x10_0000, b"\x0d\xd0\x01\xc0", "VMFS_volume_member"),
        (4086, b"S1SUSPEND", "swsuspend"),
        (512, b"LABELONE", "unknown"),
        (3 << 20, b"nothing that a library knows", "blank"),
        (2048, b"data of a tenant", "unknown"),
        ((4 << 20) - 16, b"at the very end.", "unknown"),
        (0, b"", "blank"),
    ] {
        let found = kinds(image(at, bytes).path());
        match kind {
            "blank" => assert!(found.is_empty(), "{bytes:?}: {found:?}"),
            kind => assert_eq!(found, [kind], "{}", String::from_utf8_lossy(bytes)),
        }
    }
    let mut erased = tempfile::NamedTempFile::new().unwrap();
    erased.write_all(&vec![0xff; 2 << 20]).unwrap();
    assert!(kinds(erased.path()).is_empty());
    assert!(matches!(content(Path::new("/no/such/drive")), Content::Unread(_)));
}

#[test]
fn marks_are_written_in_words_and_read_back() {
    let one = |kind: &str| Signature { kind: kind.into(), label: None, uuid: None };
    let ext4 = Signature { label: Some("data".into()), ..one("ext4") };
    assert_eq!(ext4.says(), "ext4 `data`");
    assert_eq!(one("dos").says(), "an MBR partition table");
    let content = Content::Signatures(vec![one("gpt"), one("PMBR"), ext4]);
    let phrases = content.says("sdb");
    assert_eq!(phrases, ["sdb holds a GPT partition table", "sdb holds ext4 `data`"]);
    let text = serde_json::to_string(&content).unwrap();
    assert_eq!(serde_json::from_str::<Content>(&text).unwrap(), content);
    let unread = Content::Unread("Permission denied".into());
    assert_eq!(serde_json::to_string(&unread).unwrap(), r#"{"unread":"Permission denied"}"#);
}

#[test]
fn a_guid_is_found_as_firmware_writes_it() {
    let bytes = guid_bytes("c12a7328-f81f-11d2-ba4b-00a0c93ec93b").unwrap();
    assert_eq!(bytes[..8], [0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11]);
    assert_eq!(bytes[8..], [0xba, 0x4b, 0, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b]);
    assert_eq!(guid_bytes("1234-01"), None);
}

#[test]
fn a_table_with_a_comment_that_is_no_text_still_names_its_partitions() {
    let tags = [vec![("UUID".to_owned(), "ABCD-1234".to_owned())]];
    let table = b"# f\xfcr den Start\nUUID=abcd-1234 /boot/efi vfat umask=0077 0 1 # \xe4\n";
    assert!(is_in_table(table, &["sda1"], &tags));
    assert!(!is_in_table(b"# UUID=abcd-1234 \xe4\n", &["sda1"], &tags));
}
