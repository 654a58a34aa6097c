//! Ports on a tree of config space files.

use super::record::{DIR, PortRecord};
use super::*;
use crate::apply::Step;
use std::os::unix::fs::FileExt as _;
use tempfile::TempDir;

const PORT: &str = "0000:22:07.0";
const A: &str = "6ab1f0c4-44aa-4d06-8b4e-9cf1c0f0ce6b";
const B: &str = "1d7cf5a5-9b67-4a0d-a7b4-dba6f4f4f5a2";

/// A host with one port.
struct Host {
    dir: TempDir,
    root: FsRoot,
}

/// Takes notes.
#[derive(Default)]
struct Notes(Vec<String>);

impl Observer for Notes {
    fn doing(&mut self, _: &Step) {}
    fn undoing(&mut self, _: &Step) {}
    fn interrupted(&mut self) -> Option<String> {
        None
    }
    fn note(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }
}

impl Host {
    /// The port behind another capability, with this ACS control.
    fn new(ctl: u16) -> Host {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("sys/bus/pci/devices").join(PORT);
        std::fs::create_dir_all(&at).unwrap();
        let mut config = vec![0; 4096];
        config[..4].copy_from_slice(&[0xb5, 0x10, 0x97, 0x97]);
        config[0x100..0x104].copy_from_slice(&[0x01, 0, 1, 0x14]);
        config[0x140..0x148].copy_from_slice(&[0x0d, 0, 1, 0, 0x5f, 0, 0, 0]);
        std::fs::write(at.join("config"), config).unwrap();
        let root = FsRoot::at(dir.path()).unwrap();
        let host = Host { dir, root };
        host.put(ctl);
        host
    }

    fn config(&self) -> std::path::PathBuf {
        self.dir.path().join("sys/bus/pci/devices").join(PORT).join("config")
    }

    fn put(&self, ctl: u16) {
        let file = std::fs::OpenOptions::new().write(true).open(self.config()).unwrap();
        file.write_all_at(&ctl.to_le_bytes(), 0x146).unwrap();
    }

    fn ctl(&self) -> u16 {
        let bytes = std::fs::read(self.config()).unwrap();
        u16::from_le_bytes([bytes[0x146], bytes[0x147]])
    }

    /// All of config space but ACS control.
    fn rest(&self) -> Vec<u8> {
        let mut bytes = std::fs::read(self.config()).unwrap();
        bytes[0x146..0x148].fill(0);
        bytes
    }

    fn guests(&self) -> Vec<String> {
        let all = owners(&self.root);
        all.into_values().flatten().collect()
    }

    fn records(&self) -> usize {
        std::fs::read_dir(self.dir.path().join(DIR)).map_or(0, Iterator::count)
    }

    fn run(&self, step: &P2pStep) -> Vec<String> {
        let mut notes = Notes::default();
        step.perform_on(&self.root, &mut notes).unwrap();
        notes.0
    }
}

fn port() -> Bdf {
    PORT.parse().unwrap()
}

fn set(guest: &str) -> P2pStep {
    P2pStep::SetDirect { port: port(), guest: guest.into(), was: 0x1d }
}

fn clear(guest: &str) -> P2pStep {
    P2pStep::ClearDirect { port: port(), guest: guest.into() }
}

#[test]
fn a_port_is_set_for_a_guest_and_restored_after_it() {
    let host = Host::new(0x1d);
    let before = host.rest();
    assert_eq!(
        set(A).to_string(),
        format!("set DT at {PORT}, for direct transfers below its switch")
    );
    Work::on(&host.root).expect(port(), 0x1d).unwrap();
    assert_eq!(host.run(&set(A)), [""; 0]);
    assert_eq!((host.ctl(), host.guests()), (0x5d, vec![A.to_owned()]));
    // Repeated after a kill, it is the same.
    assert_eq!(host.run(&set(A)), [""; 0]);
    assert_eq!((host.ctl(), host.guests().len()), (0x5d, 1));
    assert_eq!(host.run(&clear(B)), [""; 0]);
    assert_eq!(host.ctl(), 0x5d, "another guest has no part in it");
    assert_eq!(host.run(&clear(A)), [""; 0]);
    assert_eq!((host.ctl(), host.records()), (0x1d, 0));
    assert_eq!(host.run(&clear(A)), [""; 0]);
    assert_eq!((host.ctl(), host.rest()), (0x1d, before));
}

#[test]
fn the_last_of_two_guests_restores_the_port() {
    for (first, last) in [(A, B), (B, A)] {
        let host = Host::new(0x1d);
        host.run(&set(A));
        host.run(&set(B));
        host.run(&clear(first));
        assert_eq!((host.ctl(), host.guests()), (0x5d, vec![last.to_owned()]));
        // The undo of a start that failed takes one guest off.
        set(last).undo_on(&host.root).unwrap();
        assert_eq!((host.ctl(), host.records()), (0x1d, 0));
        clear(last).undo_on(&host.root).unwrap();
        assert_eq!((host.ctl(), host.guests()), (0x5d, vec![last.to_owned()]));
    }
}

#[test]
fn a_bit_that_another_has_set_is_not_ours() {
    let host = Host::new(0x5d);
    Work::on(&host.root).expect(port(), 0x5d).unwrap();
    assert_eq!(host.run(&set(A)), [""; 0]);
    assert_eq!(host.records(), 0);
    assert_eq!(host.run(&clear(A)), [""; 0]);
    assert_eq!(host.ctl(), 0x5d);
}

#[test]
fn a_register_that_another_has_changed_since_is_left() {
    // Bits beside ours: left, and said.
    let host = Host::new(0x1d);
    host.run(&set(A));
    host.put(0x5f);
    let said = host.run(&clear(A));
    assert!(said.len() == 1 && said[0].contains("is 0x5f, not 0x5d"), "{said:?}");
    assert_eq!((host.ctl(), host.records()), (0x5f, 0));
    // Cleared by a reset: nothing to restore, and other bits stay as they came.
    for lost in [0x1d, 0x1c] {
        let host = Host::new(0x1d);
        host.run(&set(A));
        host.put(lost);
        assert_eq!(host.run(&clear(A)), [""; 0]);
        assert_eq!((host.ctl(), host.records()), (lost, 0));
    }
    // The next start sets it again, for both guests.
    let host = Host::new(0x1d);
    host.run(&set(A));
    host.put(0x1d);
    host.run(&set(B));
    assert_eq!((host.ctl(), host.guests().len()), (0x5d, 2));
    // Another device is at the address.
    let mut other = std::fs::read(host.config()).unwrap();
    other[2] = 0x98;
    std::fs::write(host.config(), other).unwrap();
    host.run(&clear(A));
    assert_eq!((host.ctl(), host.records()), (0x5d, 0));
    let error = Work::on(&host.root).expect(port(), 0x0d).unwrap_err();
    assert!(error.to_string().contains("is 0x5d; it was 0xd"), "{error}");
}

#[test]
fn a_kill_at_each_point_leaves_nothing_after_recovery() {
    let record = |guests: &[&str]| PortRecord {
        port: port(),
        ids: (0x10b5, 0x9797),
        was: 0x1d,
        set: 0x5d,
        guests: guests.iter().map(|&guest| guest.to_owned()).collect(),
    };
    // Before the record, after the record, after the write.
    for (recorded, ctl) in [(false, 0x1d), (true, 0x1d), (true, 0x5d)] {
        let host = Host::new(ctl);
        if recorded {
            record(&[A]).write(&host.root).unwrap();
        }
        set(A).undo_on(&host.root).unwrap();
        assert_eq!((host.ctl(), host.records()), (0x1d, 0), "{recorded} {ctl:#x}");
    }
    // While it is cleared: before the write, after it, after the record is gone.
    for (recorded, ctl) in [(true, 0x5d), (true, 0x1d), (false, 0x1d)] {
        let host = Host::new(ctl);
        if recorded {
            record(&[A]).write(&host.root).unwrap();
        }
        host.run(&clear(A));
        assert_eq!((host.ctl(), host.records()), (0x1d, 0), "{recorded} {ctl:#x}");
    }
    // The second guest, recorded or not.
    for guests in [&[A][..], &[A, B]] {
        let host = Host::new(0x5d);
        record(guests).write(&host.root).unwrap();
        set(B).undo_on(&host.root).unwrap();
        assert_eq!((host.ctl(), host.guests()), (0x5d, vec![A.to_owned()]));
    }
}

#[test]
fn ports_that_are_gone_or_unreadable_change_nothing() {
    let host = Host::new(0x1d);
    host.run(&set(A));
    let bytes = std::fs::read(host.config()).unwrap();
    std::fs::write(host.config(), &bytes[..64]).unwrap();
    let error = set(B).perform_on(&host.root, &mut Notes::default()).unwrap_err();
    assert_eq!(<&str>::from(&error), "p2p-control-unreadable");
    // It is not known whether the bit is on, so the record stays.
    assert!(clear(A).perform_on(&host.root, &mut Notes::default()).is_err());
    assert_eq!(host.guests(), [A]);
    std::fs::remove_dir_all(host.config().parent().unwrap()).unwrap();
    let error = set(B).perform_on(&host.root, &mut Notes::default()).unwrap_err();
    assert_eq!(<&str>::from(&error), "p2p-port-absent");
    host.run(&clear(A));
    assert_eq!(host.records(), 0);
}

#[test]
fn steps_are_the_same_in_documents() {
    let text = serde_json::to_string(&Step::from(set(A))).unwrap();
    assert_eq!(
        text,
        format!(
            "{{\"step\":\"p2p\",\"do\":\"set-direct\",\"port\":\"{PORT}\",\"guest\":\"{A}\",\"was\":29}}"
        )
    );
    for step in [set(A), clear(A)].map(Step::from) {
        let text = serde_json::to_string(&step).unwrap();
        assert_eq!(serde_json::from_str::<Step>(&text).unwrap(), step);
    }
}
