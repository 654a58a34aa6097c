//! Whether a disk image is as it was made: empty. The bytes decide, never a time.

use crate::input::open_regular;
use gpuvm_core::image::{below, is_untouched};
use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Bytes that are read at a time.
const PART: usize = 1 << 20;
/// The most bytes that are read of an image: more, such as zeros that were written to reserve
/// space, would take minutes.
const MOST: u64 = 16 << 30;

/// Whether an image of this machine has no data, so that nothing is lost with it; false: it has, or
/// it cannot be read.
pub fn is_blank(image: &Path) -> bool {
    open_regular(image).is_ok_and(|mut image| is_empty(&mut image).unwrap_or(false))
}

/// Whether an open image has no data.
fn is_empty(image: &mut File) -> io::Result<bool> {
    let mut head = [0; 4];
    let has_head = image.read_exact(&mut head).is_ok();
    image.rewind()?;
    if has_head && head == *b"QFI\xfb" {
        let has_backing = below(image).map_or(true, |below| !below.is_empty());
        image.rewind()?;
        return Ok(!has_backing && is_untouched(image)?);
    }
    let (bytes, mut read) = (image.metadata()?.len(), 0);
    let mut part = vec![0; PART];
    let mut from = data_from(image, 0, bytes)?;
    while from < bytes {
        let rest = usize::try_from(bytes - from).unwrap_or(PART).min(PART);
        image.read_exact_at(&mut part[..rest], from)?;
        read += rest as u64;
        if read > MOST || part[..rest].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        from = data_from(image, from + rest as u64, bytes)?;
    }
    Ok(true)
}

/// Where the next data begins, at `from` or behind; `bytes` if there is none.
fn data_from(image: &File, from: u64, bytes: u64) -> io::Result<u64> {
    let at = i64::try_from(from).map_err(io::Error::other)?;
    match lseek(image, at, Whence::SeekData) {
        Ok(data) => Ok(u64::try_from(data).unwrap_or(from).min(bytes)),
        Err(Errno::ENXIO) => Ok(bytes),
        // The file system does not know where its data is.
        Err(_) => Ok(from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_blank_until_a_byte_of_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.raw");
        assert!(!is_blank(&path), "it is not there");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 30).unwrap();
        assert!(is_blank(&path));
        file.write_all_at(&[0; 4096], 1 << 29).unwrap();
        assert!(is_blank(&path), "zeros are no data");
        file.write_all_at(&[1], (1 << 30) - 1).unwrap();
        assert!(!is_blank(&path));
        // A boot sector is data, too.
        file.set_len(1 << 20).unwrap();
        assert!(is_blank(&path));
        file.write_all_at(&[0x55, 0xaa], 510).unwrap();
        assert!(!is_blank(&path));
    }
}
