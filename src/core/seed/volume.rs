//! The FAT volume labelled CIDATA that cloud-init looks for.

use super::{Seed, SeedError};
use std::io::{Cursor, Write as _};

/// Size of the volume in bytes: the smallest round size that fits every document (given.rs limits
/// them) and that FAT supports.
pub const VOLUME_BYTES: usize = 4 << 20;
/// The space in it for the file system's own tables, and the ends of files that fill no cluster;
/// much more than these take.
const TABLES: usize = 512 << 10;

const LABEL: [u8; 11] = *b"CIDATA     ";

/// Whether a volume that begins with these bytes is a seed: by the label in the first sector of
/// FAT12 and FAT16.
pub fn is_seed(head: &[u8]) -> bool {
    head.get(43..54) == Some(&LABEL[..]) && head.get(510..512) == Some(&[0x55, 0xaa][..])
}

/// Refuses a seed that has no room in its volume, which is made only where that is not plain.
pub fn check(seed: &Seed) -> Result<(), SeedError> {
    let files = seed.files();
    let bytes: usize = files.iter().map(|(_, content)| content.len()).sum();
    if bytes <= VOLUME_BYTES - TABLES { Ok(()) } else { volume(seed).map(drop) }
}

/// The bytes of a seed's volume. The same seed gives the same bytes.
pub fn volume(seed: &Seed) -> Result<Vec<u8>, SeedError> {
    let failed = |error: std::io::Error| SeedError::Volume { reason: error.to_string() };
    let mut image = Cursor::new(vec![0; VOLUME_BYTES]);
    let options = fatfs::FormatVolumeOptions::new().volume_label(LABEL);
    fatfs::format_volume(&mut image, options).map_err(failed)?;
    image.set_position(0);
    {
        let options = fatfs::FsOptions::new().time_provider(&Epoch).update_accessed_date(false);
        let system = fatfs::FileSystem::new(&mut image, options).map_err(failed)?;
        for (name, content) in seed.files() {
            let mut file = system.root_dir().create_file(name).map_err(failed)?;
            file.write_all(content.as_bytes()).and_then(|()| file.flush()).map_err(failed)?;
        }
        system.unmount().map_err(failed)?;
    }
    Ok(image.into_inner())
}

/// The start of FAT's epoch, the time of every file.
#[derive(Debug)]
struct Epoch;

impl fatfs::TimeProvider for Epoch {
    fn get_current_date(&self) -> fatfs::Date {
        fatfs::Date { year: 1980, month: 1, day: 1 }
    }

    fn get_current_date_time(&self) -> fatfs::DateTime {
        let time = fatfs::Time { hour: 0, min: 0, sec: 0, millis: 0 };
        fatfs::DateTime { date: self.get_current_date(), time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announced_room_exists() {
        let with = |bytes: usize| Seed { nccl: Some("a".repeat(bytes)), ..Seed::default() };
        let of = |seed: &Seed| -> usize { seed.files().iter().map(|(_, text)| text.len()).sum() };
        // The most that is said without trying it.
        let plain = with(VOLUME_BYTES - TABLES - of(&with(0)) - 64);
        assert!(of(&plain) <= VOLUME_BYTES - TABLES && check(&plain).is_ok());
        assert_eq!(volume(&plain).unwrap().len(), VOLUME_BYTES);
        // Larger contents are tried, and refused if they do not fit.
        let more = with(VOLUME_BYTES - TABLES);
        assert_eq!(check(&more).is_ok(), volume(&more).is_ok());
        assert!(check(&with(VOLUME_BYTES)).is_err());
    }
}
