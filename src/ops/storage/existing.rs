//! Existing disks, which a guest gets as they are. Their format is read from their content: a guest
//! that sees a qcow2 container as a raw disk destroys it with its first write (gpuvm-nvidia-vm(7),
//! TRAPS OF THE GUIDE, T20).

use super::{Disks, StorageError};
use crate::backing::{Trusted, chain, format_made, untrusted};
use crate::blockdev::used_by;
use crate::discover::hung_mounts::Silent;
use crate::discover::signatures;
use crate::disks::of_host;
use crate::domain::guest::{BackingImage, Disk, DiskFormat, DiskKind};
use crate::error::{Class, Coded as _, Error, Refusal, Result, classed};
use crate::fsroot::FsRoot;
use crate::image::{self, Format};
use crate::input::{open_block, open_regular};
use crate::paths::path_text;
use crate::pools::IMAGES_DIR;
use crate::shell::word;
use crate::topology::Content;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// The smallest sector size in bytes; the size of every disk is a multiple of it.
const SECTOR: u64 = 512;
/// Where copies of images are kept.
const COPIES: &str = "/var/lib/libvirt/images";

/// Adds an existing disk: a device or a file. The path stays as it is given, since links such as
/// those of /dev/disk/by-id are more stable than their targets. `trusted` is none on a recorded
/// host, whose files are not here: only the name is known.
pub(super) fn existing_disk(
    path: &Path,
    trusted: Option<Trusted<'_>>,
    disks: &mut Disks,
) -> Result<()> {
    let text = path_text(path)?;
    let Some(trusted) = trusted else {
        let kind = if path.starts_with("/dev") { DiskKind::Block } else { DiskKind::File };
        let format = match named(path) {
            Some("qcow2") => DiskFormat::Qcow2,
            _ => DiskFormat::Raw,
        };
        disks.disks.push(Disk::new(text, format, kind));
        return Ok(());
    };
    let at = path.display();
    let failed = |error: std::io::Error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => {
                "name an existing image or device, or give a size for a new disk"
            }
            _ => "",
        };
        StorageError::Unreadable { at: at.to_string(), error: error.to_string() }.refusal(hint)
    };
    if let Some(why) = Silent::read().why(path) {
        return Err(StorageError::Silent { at: at.to_string(), why: why.to_string() }.bare());
    }
    let kind = std::fs::metadata(path).map_err(failed)?.file_type();
    let kind = match (kind.is_block_device(), kind.is_file()) {
        (true, _) => DiskKind::Block,
        (_, true) => DiskKind::File,
        _ => return Err(StorageError::Kind { at: at.to_string() }.bare()),
    };
    if kind == DiskKind::Block {
        refuse_used(path)?;
        disks.losses.extend(remains(path));
    } else if let Some(why) = of_host(path, false, false)? {
        return Err(StorageError::OfHost { at: at.to_string(), why }.hint(instead_of(path)));
    }
    let format = format_of(path, kind, trusted, disks)?;
    let bytes = std::fs::metadata(path).map_err(failed)?.len();
    refuse_unlike(path, &text, (kind, format, bytes), trusted)?;
    let mut disk = Disk::new(text, format, kind);
    if format == DiskFormat::Qcow2 {
        disk.backing = images_below(path, trusted, disks)?;
    }
    disks.disks.push(disk);
    Ok(())
}

/// The format of a disk: one that gpuvm made raw is raw, whatever a guest has written to it.
fn format_of(
    path: &Path,
    kind: DiskKind,
    trusted: Trusted<'_>,
    disks: &mut Disks,
) -> Result<DiskFormat> {
    let at = path.display();
    let failed = |error: std::io::Error| -> Error {
        StorageError::Unreadable { at: at.to_string(), error: error.to_string() }.bare()
    };
    let mut disk = match kind {
        DiskKind::Block => open_block(path).map_err(failed)?,
        // A path that is no longer a file, or a file of the kernel, is refused.
        DiskKind::File => open_regular(path)?,
    };
    let found = image::disk(&mut disk);
    if format_made(path, trusted.state) == Some(DiskFormat::Raw) {
        if !matches!(&found, Ok(found) if found.format == Format::Raw) {
            disks.warn(format!(
                "disk {at} begins like an image of another format; gpuvm made it raw, so the guest \
                 gets it as raw"
            ));
        }
        return Ok(DiskFormat::Raw);
    }
    let found = found.map_err(|error| {
        let message = format!("disk `{at}` {error}");
        Error::from(error).around(Refusal::around(message, ""))
    })?;
    Ok(match found.format {
        Format::Raw => DiskFormat::Raw,
        Format::Qcow2 => DiskFormat::Qcow2,
    })
}

/// The images below an image, as its definition states them.
fn images_below(
    path: &Path,
    trusted: Trusted<'_>,
    disks: &mut Disks,
) -> Result<Option<Vec<BackingImage>>> {
    let chain = chain(path, trusted).map_err(|refused| untrusted(path, refused))?;
    if !chain.names.is_empty() {
        let at = path.display();
        let below = chain.names.join(", ");
        disks.warn(format!("disk {at} is an overlay on {below}, which the guest reads too"));
    }
    Ok(chain.images)
}

/// The replacement to give a guest for a file of the host.
fn instead_of(path: &Path) -> String {
    if !path.canonicalize().is_ok_and(|real| real.starts_with(IMAGES_DIR)) {
        return "use an image, such as those in /var/lib/libvirt/images, or a device".to_owned();
    }
    let text = path.to_string_lossy();
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let copy = format!("{COPIES}/copy-{file}");
    format!(
        "`cp --sparse=always {} {}` makes a copy that a guest may have; `gpuvm create --image {}` \
         makes one by itself",
        word(&text),
        word(&copy),
        word(file.rsplit_once('.').map_or(&*file, |(name, _)| name))
    )
}

/// Refuses a disk whose content differs from its format, or from its name.
fn refuse_unlike(
    path: &Path,
    text: &str,
    (kind, format, bytes): (DiskKind, DiskFormat, u64),
    trusted: Trusted<'_>,
) -> Result<()> {
    let at = path.display();
    if kind == DiskKind::Block && format == DiskFormat::Qcow2 {
        // A previous user of the device may have written that header, with any file of the host as
        // its backing file.
        let hint = format!(
            "`qemu-img convert -f qcow2 -O raw {at} /var/tmp/{name}.raw` writes its content to a \
             file; `wipefs --all {at}` takes the mark away",
            at = word(text),
            name = word(&path.file_name().unwrap_or_default().to_string_lossy())
        );
        return Err(StorageError::Qcow2OnDevice { at: at.to_string() }.hint(hint));
    }
    if kind == DiskKind::File && format == DiskFormat::Raw && (bytes == 0 || bytes % SECTOR != 0) {
        return Err(StorageError::Sectors {
            at: at.to_string(),
            bytes: bytes.to_string(),
            sector: SECTOR.to_string(),
        }
        .hint(format!(
            "if it is an image nevertheless, `truncate -s %512 {}` fills its last sector",
            word(text)
        )));
    }
    let is_known = format_made(path, trusted.state).is_some();
    if let Some(name) = named(path).filter(|_| !is_known)
        && name != format.as_str()
    {
        let is = format.as_str();
        let hint = format!(
            "rename it if the content is right: `mv {at} {as_it_is}`; `qemu-img convert -O {name} \
             {at} {copy}` makes what the name says",
            at = word(text),
            as_it_is = word(&path.with_extension(is).to_string_lossy()),
            name = word(name),
            copy = word(&path.with_extension(format!("copy.{name}")).to_string_lossy()),
        );
        let (at, name, is) = (at.to_string(), name.to_string(), is.to_string());
        return Err(StorageError::OtherFormat { at, name, is }.hint(hint));
    }
    Ok(())
}

/// Refuses a block device that the host uses, under any name.
fn refuse_used(path: &Path) -> Result<()> {
    let uses = used_by(&FsRoot::live()?, path)?;
    let Some(first) = uses.first() else { return Ok(()) };
    let lines: String = uses.iter().map(|one| format!("\n  {one}")).collect();
    let hint = if first.used.is_system() {
        "the host runs from it, so it is never given away".to_owned()
    } else {
        format!(
            "free it first; `lsblk {}` shows what is built on it",
            word(&path.to_string_lossy())
        )
    };
    Err(classed(
        Class::InUse,
        format!("disk `{}` cannot be given to the guest{lines}", path.display()),
        hint,
    ))
}

/// The data on a block device that a guest boots from and may overwrite. A partition table is
/// expected, since the guest boots from it.
fn remains(path: &Path) -> Vec<String> {
    let mut content = signatures::content(path);
    if let Content::Signatures(all) = &mut content {
        all.retain(|one| !one.is_table());
    }
    content.says(&path.display().to_string())
}

/// The format that a file's name suggests, if any.
pub(super) fn named(path: &Path) -> Option<&'static str> {
    /// File name extensions with their formats.
    const ENDINGS: [(&str, &str); 8] = [
        ("raw", "raw"),
        ("qcow2", "qcow2"),
        ("qcow", "qcow2"),
        ("vmdk", "vmdk"),
        ("vdi", "vdi"),
        ("vhd", "vhd"),
        ("vhdx", "vhdx"),
        ("qed", "qed"),
    ];
    let ending = path.extension()?.to_str()?;
    let known = ENDINGS.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(ending));
    known.map(|(_, format)| format)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest header of a qcow2 image of 1 MiB, with this backing file if the name is not
    /// empty.
    fn qcow2(backing: &str) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 18];
        bytes[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        if !backing.is_empty() {
            bytes[8..16].copy_from_slice(&0x200_u64.to_be_bytes());
            bytes[16..20].copy_from_slice(&u32::try_from(backing.len()).unwrap().to_be_bytes());
            bytes[0x200..0x200 + backing.len()].copy_from_slice(backing.as_bytes());
        }
        bytes[20..24].copy_from_slice(&16_u32.to_be_bytes());
        bytes[24..32].copy_from_slice(&(1_u64 << 20).to_be_bytes());
        bytes[36..40].copy_from_slice(&1_u32.to_be_bytes());
        bytes[40..48].copy_from_slice(&0x30000_u64.to_be_bytes());
        bytes[48..56].copy_from_slice(&0x10000_u64.to_be_bytes());
        bytes[56..60].copy_from_slice(&1_u32.to_be_bytes());
        // The dirty flag: QEMU repairs such an image.
        bytes[79] = 1;
        bytes[100..104].copy_from_slice(&104_u32.to_be_bytes());
        bytes
    }

    #[test]
    fn the_format_comes_from_the_content_and_must_match_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let raw = || b"anything".repeat(128);
        std::fs::write(dir.path().join("base.raw"), raw()).unwrap();
        let mut tar = raw();
        tar[257..262].copy_from_slice(b"ustar");
        for (name, content, good) in [
            ("a.raw", raw(), Ok((DiskFormat::Raw, 0))),
            ("a.img", raw(), Ok((DiskFormat::Raw, 0))),
            ("a.img", tar, Ok((DiskFormat::Raw, 0))),
            ("empty", Vec::new(), Err("has 0 bytes; a raw disk has one or more whole sectors")),
            (
                "odd",
                vec![b'x'; 700],
                Err("has 700 bytes; a raw disk has one or more whole sectors"),
            ),
            ("a.qcow2", qcow2(""), Ok((DiskFormat::Qcow2, 0))),
            ("a.IMG", qcow2("base.raw"), Ok((DiskFormat::Qcow2, 1))),
            ("b.img", qcow2("/no/base.raw"), Err("No such file")),
            ("a.qcow2", raw(), Err("is qcow2 by its name and raw by its content")),
            ("a.RAW", qcow2(""), Err("is raw by its name and qcow2 by its content")),
            ("a.vmdk", raw(), Err("is vmdk by its name and raw by its content")),
            ("a.img", b"KDMV".repeat(200), Err("is a VMDK disk; only raw and qcow2 are supported")),
            ("a.raw", b"\x1f\x8b".repeat(400), Err("is compressed (gzip)")),
            ("short", b"QFI\xfb".to_vec(), Err("is qcow2 cut off after 4 bytes")),
            ("cut.qcow2", qcow2("")[..64].to_vec(), Err("is qcow2 cut off after 64 bytes")),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            let mut disks = Disks::default();
            let trusted = Trusted { accepted: &[], state: dir.path() };
            let taken = existing_disk(&path, Some(trusted), &mut disks).map_err(|e| e.to_string());
            match good {
                Ok((format, warnings)) => {
                    assert_eq!(taken, Ok(()), "{name}");
                    assert_eq!((disks.disks[0].format, disks.notices.len()), (format, warnings));
                }
                Err(text) => assert!(taken.as_ref().unwrap_err().contains(text), "{taken:?}"),
            }
            assert!(
                disks.notices.iter().all(|w| w.to_string().contains("is an overlay on base.raw"))
            );
        }
    }
}
