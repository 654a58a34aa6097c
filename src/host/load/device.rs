//! The link and the error counters of a passed-through function, and of the port above it. Reading
//! them costs a configuration cycle each.

use crate::fsroot::{Dir, FsRoot};
use gpuvm_core::bdf::Bdf;
use gpuvm_core::load::{AerCounts, DeviceSample};

/// Reads a function; `None` if it is gone.
pub(super) fn device(root: &FsRoot, bdf: Bdf) -> Option<DeviceSample> {
    let path = format!("sys/bus/pci/devices/{bdf}");
    let dir = root.dir(&path).ok()??;
    let port = root.dir(&format!("{path}/..")).ok().flatten();
    let most = width(&dir, "max_link_width");
    let way = root.dir("sys/bus/pci/devices").ok().flatten();
    let way = way.and_then(|list| list.link(&bdf.to_string()).ok().flatten());
    // A function directly below the host bridge has no port.
    let port_most = port.as_ref().and_then(|port| width(port, "max_link_width"));
    Some(DeviceSample {
        bdf,
        width: width(&dir, "current_link_width"),
        max_width: most.map(|most| port_most.map_or(most, |port| most.min(port))),
        aer: aer(&dir),
        port: way.and_then(|way| way.rsplit('/').nth(1)?.parse().ok()),
        port_aer: port.as_ref().and_then(aer),
    })
}

/// Lanes of a link; `None` for a virtual function (0), and where the card does not answer (255).
fn width(dir: &Dir<'_>, name: &str) -> Option<u32> {
    let text = dir.read_if_any(name).ok()??;
    text.parse().ok().filter(|lanes| (1..=32).contains(lanes))
}

fn aer(dir: &Dir<'_>) -> Option<AerCounts> {
    let total = |kind: &str| -> Option<u64> {
        let text = dir.read_if_any(&format!("aer_dev_{kind}")).ok()??;
        let line = text.lines().find(|line| line.starts_with("TOTAL_ERR_"))?;
        line.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    let (correctable, nonfatal, fatal) =
        (total("correctable")?, total("nonfatal")?, total("fatal")?);
    Some(AerCounts { correctable, nonfatal, fatal })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn link_and_errors_are_those_of_the_function_and_its_port() {
        let dir = tempfile::tempdir().unwrap();
        let bdf: Bdf = "0000:3b:00.0".parse().unwrap();
        let port = dir.path().join("sys/devices/pci0000:3a/0000:3a:00.0");
        let function = port.join("0000:3b:00.0");
        let list = dir.path().join("sys/bus/pci/devices");
        for path in [&function, &list] {
            std::fs::create_dir_all(path).unwrap();
        }
        let target = "../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
        symlink(target, list.join("0000:3b:00.0")).unwrap();
        let write = |path: &std::path::Path, name: &str, text: &str| {
            std::fs::write(path.join(name), text).unwrap();
        };
        let root = FsRoot::at(dir.path()).unwrap();
        write(&function, "current_link_width", "8\n");
        write(&function, "max_link_width", "16\n");
        write(&port, "max_link_width", "8\n");
        for (kind, name, count) in
            [("correctable", "COR", 3), ("nonfatal", "NONFATAL", 2), ("fatal", "FATAL", 1)]
        {
            let text = format!("RxErr 0\nTOTAL_ERR_{name} {count}\n");
            write(&port, &format!("aer_dev_{kind}"), &text);
        }
        let sample = device(&root, bdf).unwrap();
        assert_eq!((sample.width, sample.max_width, sample.aer), (Some(8), Some(8), None));
        let errors = AerCounts { correctable: 3, nonfatal: 2, fatal: 1 };
        assert_eq!(sample.port_aer, Some(errors));
        assert_eq!(sample.port, "0000:3a:00.0".parse().ok());
        for text in ["0\n", "255\n", "Unknown\n"] {
            write(&function, "current_link_width", text);
            assert_eq!(device(&root, bdf).unwrap().width, None, "{text}");
        }
        assert!(device(&root, "0000:3c:00.0".parse().unwrap()).is_none());
    }
}
