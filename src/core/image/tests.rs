//! Images accepted and images refused.

use super::*;
use std::io::Cursor;

/// A qcow2 header of version 3, of a disk of 1 GiB.
fn qcow2() -> Vec<u8> {
    let mut head = vec![0; 65536];
    head[..4].copy_from_slice(b"QFI\xfb");
    head[4..8].copy_from_slice(&3u32.to_be_bytes());
    head[20..24].copy_from_slice(&16u32.to_be_bytes());
    head[24..32].copy_from_slice(&(1u64 << 30).to_be_bytes());
    head
}

/// Describes an image of these bytes.
fn described(bytes: &[u8]) -> String {
    match content(&mut Cursor::new(bytes)) {
        Ok(Content { format, virtual_bytes, boots }) => format!("{format} {virtual_bytes} {boots}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_format_is_recognised_by_the_bytes() {
    assert_eq!(described(&qcow2()), "qcow2 1073741824 true");
    let mut old = qcow2();
    old[7] = 2;
    assert_eq!(described(&old), "qcow2 1073741824 true");
    let mut raw = vec![0; 4096];
    assert_eq!(described(&raw), "raw 4096 false");
    raw[510..512].copy_from_slice(&[0x55, 0xaa]);
    assert_eq!(described(&raw), "raw 4096 true");
    for (at, bytes, kind) in [
        (0, &b"KDMV"[..], "VMDK"),
        (0x40, b"\x7f\x10\xda\xbe", "VDI"),
        (0, b"\x1f\x8b", "gzip"),
        (257, b"ustar", "tar"),
        (0, b"LUKS\xba\xbe", "LUKS"),
    ] {
        let mut other = raw.clone();
        other[at..at + bytes.len()].copy_from_slice(bytes);
        assert!(described(&other).contains(kind), "{}", described(&other));
    }
    let mut iso = vec![0; 0x9000];
    iso[0x8001..0x8006].copy_from_slice(b"CD001");
    assert!(described(&iso).contains("ISO 9660"));
    assert_eq!(described(b""), "has 0 bytes, too few for a disk");
    assert!(described(b"hello").contains("too few for a disk"));
}

#[test]
fn a_qcow2_that_is_not_whole_and_alone_is_refused() {
    type Change = fn(&mut Vec<u8>);
    let cases: [(Change, &str); 10] = [
        (|h| h[15] = 104, "backing file"),
        (|h| h[35] = 1, "encrypted"),
        (|h| h[79] = 1 << 2, "external data file"),
        (|h| h[79] = 1 << 1, "corrupt"),
        (|h| h[79] = 1, "not closed"),
        (|h| h[79] = 1 << 5, "0x20"),
        (|h| h[7] = 1, "version 1"),
        (|h| h.truncate(40), "cut off after 40 bytes"),
        (|h| h[24..32].fill(0), "0 bytes"),
        (|h| h[23] = 60, "2^60"),
    ];
    for (change, reason) in cases {
        let mut image = qcow2();
        change(&mut image);
        assert!(described(&image).contains(reason), "{reason}: {}", described(&image));
    }
    for length in 0..200 {
        let text = described(&qcow2()[..length]);
        assert!(!text.starts_with("raw") || length < 4, "{length} bytes: {text}");
    }
}

#[test]
fn lists_of_sums_are_read_in_both_forms() {
    // SHA-256 of the empty string and of "abc" (FIPS 180-4).
    let none = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let text = format!(
        "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n\n{none}  ./a.img\n{abc} *b c.qcow2\n# \
         x\n\
         SHA256 (d.img) = {abc}\nSHA512 (d.img) = {abc}{none}\n{abc}{none}  d.img\n\
         SHA1 (e.img) = abc\n{none}{none}  f.img\n\
         -----BEGIN PGP SIGNATURE-----\nnonsense\n"
    );
    let sums = Sums::parse(&text).unwrap();
    let of = |name: &str| sums.of(name).map(|sum| sum.to_string());
    assert_eq!(of("a.img").as_deref(), Some(none));
    assert_eq!(of("b c.qcow2").as_deref(), Some(abc));
    assert_eq!(of("d.img").as_deref(), Some(abc));
    assert_eq!((of("absent"), of("e.img"), of("f.img")), (None, None, None));
    let stated = |name: &str| sums.stated(name).map(|sum| (sum.algorithm(), sum.to_string()));
    assert_eq!(stated("a.img"), Some(("SHA-256", none.to_owned())));
    assert_eq!(stated("d.img"), Some(("SHA-512", format!("{abc}{none}"))));
    assert_eq!(stated("f.img"), Some(("SHA-512", format!("{none}{none}"))));
    let sum = Sha256::of(&b"abc"[..], &mut |_| true).unwrap();
    assert_eq!(sum, abc.to_uppercase().parse().unwrap());
    assert!(Sha256::of(&b"abc"[..], &mut |_| false).is_err());
    assert_eq!(Sums::parse(&format!("{none}  a\nnonsense\n")), Err(SumError::Line { line: 2 }));
    let twice = Sums::parse(&format!("{none}  a\n{abc}  a\n"));
    assert_eq!(twice, Err(SumError::Twice { name: "a".into() }));
    for bad in ["", "abc", &none[1..], &format!("{none}0"), &"é".repeat(32)] {
        assert!(bad.parse::<Sha256>().is_err(), "{bad}");
    }
    // SHA-512 of "abc" (FIPS 180-4).
    let wide: Sha512 = "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                        2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f"
        .parse()
        .unwrap();
    let computed = |wants| Computed::of(&b"abc"[..], wants, &mut |_| true).unwrap();
    assert_eq!(computed(true), Computed { sha256: sum, sha512: Some(wide) });
    assert!(computed(true).is(&Sum::Sha512(wide)) && computed(true).is(&Sum::Sha256(sum)));
    // A checksum that was not computed is not taken for right.
    assert!(!computed(false).is(&Sum::Sha512(wide)) && computed(false).is(&Sum::Sha256(sum)));
    let error = "abc".parse::<Sha512>().unwrap_err().to_string();
    assert_eq!(error, "\"abc\" is not a SHA-512 of 128 hexadecimal digits");
}

#[test]
fn names_that_could_leave_the_pool_are_refused() {
    for good in ["debian-12", "a", "Ubuntu_24.04+x", "1"] {
        assert_eq!(ImageName::new(good).unwrap().as_str(), good);
    }
    for bad in [
        "",
        ".",
        "..",
        "../a",
        "a/b",
        ".hidden",
        "-rf",
        "a b",
        "ä",
        "a\n",
        "a$(b)",
        &"x".repeat(101),
    ] {
        assert!(ImageName::new(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn parts_missing_in_a_copy_are_named() {
    let head = |snapshots: u8, autoclear: u8| {
        let mut head = b"QFI\xfb\0\0\0\x03".to_vec();
        head.resize(usize::try_from(HEAD).unwrap(), 0);
        (head[63], head[95]) = (snapshots, autoclear);
        kept(&head)
    };
    assert_eq!(head(0, 0), None);
    assert_eq!(head(1, 0).as_deref(), Some("an internal snapshot"));
    assert_eq!(head(3, 1).as_deref(), Some("3 internal snapshots"));
    assert_eq!(head(0, 1).as_deref(), Some("bitmaps of incremental backups"));
    assert_eq!(kept(&[1; 104]), None);
    assert_eq!(kept(b"QFI\xfb"), None);
}
