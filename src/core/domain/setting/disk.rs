//! Settings of a disk: its driver's attributes, and the file that backs it.

use super::Put;
use crate::domain::fragment::{Fragment, Want};
use crate::domain::placed::IoThread;
use crate::domain::shape;
use serde::Serialize;

/// The wanted driver settings and file of a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskTuning {
    /// Place among the document's disks, from 0.
    pub nth: usize,
    /// Its format: `raw`, `qcow2`.
    pub format: Put<String>,
    /// The file that it is on, of a disk that is on a file.
    pub file: Put<String>,
    /// libvirt's word for how the host caches it.
    pub cache: Put<String>,
    /// libvirt's word for how QEMU reads and writes it.
    pub io: Put<String>,
    /// Its queues.
    pub queues: Put<u32>,
    /// The I/O threads that serve it; none at all: QEMU's main loop.
    pub iothreads: Put<Vec<IoThread>>,
    /// Its name as a disk on virtio, which it becomes; `None` if it stays where it is.
    pub on_virtio: Option<String>,
}

impl DiskTuning {
    /// Returns the wanted state of its element.
    pub(super) fn fragment(&self) -> Fragment {
        let mut driver = Fragment::new("driver");
        let attributes =
            [("type", self.format.want()), ("cache", self.cache.want()), ("io", self.io.want())];
        let wanted = attributes.into_iter().filter_map(|(name, want)| Some((name, want?)));
        driver.attributes.extend(wanted);
        driver = match &self.queues {
            Put::Stays => driver,
            Put::Gone => shape::with_queues(driver, 1),
            Put::Is(queues) => shape::with_queues(driver, *queues),
        };
        driver = match &self.iothreads {
            Put::Stays => driver,
            Put::Gone => shape::with_iothreads(driver, &[]),
            Put::Is(threads) => shape::with_iothreads(driver, threads),
        };
        // A `<driver>` without any setting would have no name, which libvirt refuses.
        let says = driver.attributes.iter().any(|(_, want)| matches!(want, Want::Set(_)))
            || driver.children.iter().any(Fragment::is_made);
        if says {
            driver.attributes.insert(0, ("name", Want::Set("qemu".into())));
        } else {
            driver = driver.if_there();
        }
        let mut disk = Fragment::new("disk").nth(self.nth).if_there().child(driver);
        if let Some(name) = &self.on_virtio {
            let target = Fragment::new("target").if_there().attr("dev", name).attr("bus", "virtio");
            // Of a place on its previous controller, and of settings that only that one has.
            disk = disk
                .child(target.want("rotation_rate", Want::Absent).want("tray", Want::Absent))
                .child(Fragment::gone("address"));
        }
        match self.file.want() {
            None => disk,
            // The backing chain of the old file does not apply to the new one.
            Some(file) => disk
                .child(Fragment::new("source").if_there().want("file", file))
                .child(Fragment::gone("backingStore")),
        }
    }
}
