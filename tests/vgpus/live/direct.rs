//! `--p2p auto` of real domains: a libvirtd on a tree with a GPU and a NIC below one switch, whose
//! config spaces are files. A write to the register of a port is read back from these.

use super::Machine;
use crate::support::tree::Small;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

const NIC: &str = "0000:3e:00.0";
/// The port of the NIC, and its id.
const PORT: (&str, u16) = ("0000:3c:01.0", 0x9797);

/// Config space of a function: its ids, and extended capabilities with their two registers.
fn config(ids: (u16, u16), capabilities: &[(u8, [u16; 2])]) -> Vec<u8> {
    let mut config = vec![0; 4096];
    config[..2].copy_from_slice(&ids.0.to_le_bytes());
    config[2..4].copy_from_slice(&ids.1.to_le_bytes());
    for (number, (id, [low, high])) in capabilities.iter().enumerate() {
        let at = 0x100 + 0x10 * number;
        let next = if number + 1 < capabilities.len() { at + 0x10 } else { 0 };
        let head = u32::from(*id) | 1 << 16 | u32::try_from(next).unwrap() << 20;
        config[at..at + 4].copy_from_slice(&head.to_le_bytes());
        config[at + 4..at + 6].copy_from_slice(&low.to_le_bytes());
        config[at + 6..at + 8].copy_from_slice(&high.to_le_bytes());
    }
    config
}

/// A machine with a GPU and a NIC on vfio-pci, each below a port of one switch.
struct Bench {
    machine: Machine,
}

impl Bench {
    /// Sets it up; none if this machine cannot have it.
    fn new() -> Option<Bench> {
        let host = Small::new(1, 16);
        let root = "pci0000:3a/0000:3a:01.0";
        let switch = format!("{root}/0000:3b:00.0");
        let [of_gpu, of_nic] = ["00.0", "01.0"].map(|slot| format!("{switch}/0000:3c:{slot}"));
        let places = [
            (root.to_owned(), "0604 8086:347a"),
            (switch, "0604 10b5:9797"),
            (of_gpu.clone(), "0604 10b5:9797"),
            (of_nic.clone(), "0604 10b5:9797"),
            (format!("{of_gpu}/0000:3d:00.0"), "0302 10de:26b9"),
            (format!("{of_nic}/{NIC}"), "0200 15b3:1021"),
        ];
        for ((place, ids), group) in places.iter().zip(1..) {
            host.function(place, ids, group, &[]);
        }
        fs::create_dir_all(host.path().join("sys/bus/pci/drivers/vfio-pci")).unwrap();
        for (place, modalias) in [
            (&places[4].0, "pci:v000010DEd000026B9sv000010DEsd00001851bc03sc02i00"),
            (&places[5].0, "pci:v000015B3d00001021sv000015B3sd00000001bc02sc00i00"),
        ] {
            let driver = Path::new("/sys/bus/pci/drivers/vfio-pci");
            symlink(driver, host.path().join(format!("sys/devices/{place}/driver"))).unwrap();
            host.write(&format!("sys/devices/{place}/modalias"), modalias);
        }
        let machine = Machine::on(host, &[])?;
        let bench = Bench { machine };
        let acs = |ids| config(ids, &[(0x0d, [0x5f, 0x1d])]);
        bench.put("0000:3a:01.0", &acs((0x8086, 0x347a)));
        bench.put("0000:3b:00.0", &config((0x10b5, 0x9797), &[(0x0b, [0, 0])]));
        bench.put("0000:3c:00.0", &acs((0x10b5, 0x9797)));
        bench.put(PORT.0, &acs((0x10b5, PORT.1)));
        bench.put("0000:3d:00.0", &config((0x10de, 0x26b9), &[(0x0b, [0, 0])]));
        // With a serial number, and ATS as the kernel sets it for a guest.
        let nic = [(0x0f, [0x20, 0x8000]), (0x03, [0x1234, 0x5678])];
        bench.put(NIC, &config((0x15b3, 0x1021), &nic));
        Some(bench)
    }

    fn put(&self, function: &str, config: &[u8]) {
        let dir = self.machine.host.path().join("sys/bus/pci/devices").join(function);
        fs::write(dir.join("config"), config).unwrap();
    }

    /// ACS control of the NIC's port.
    fn ctl(&self) -> u16 {
        let dir = self.machine.host.path().join("sys/bus/pci/devices").join(PORT.0);
        let config = fs::read(dir.join("config")).unwrap();
        u16::from_le_bytes([config[0x106], config[0x107]])
    }

    /// Sets it, as a reset or another program does.
    fn set(&self, ctl: u16) {
        self.put(PORT.0, &config((0x10b5, PORT.1), &[(0x0d, [0x5f, ctl])]));
    }

    /// Whether gpuvm has recorded the port as set by itself.
    fn is_recorded(&self) -> bool {
        let file = format!("run/gpuvm/p2p/{}.json", PORT.0);
        self.machine.place.daemon.own_path(&file).exists()
    }

    fn restore(&self, more: &[&str]) -> (i32, String) {
        let (code, out, err) =
            self.machine.place.gpuvm(&[&["host", "p2p", "restore"], more].concat());
        (code, out + &err)
    }
}

#[test]
fn a_port_is_set_for_a_guest_and_restored_after_a_reset_and_a_start_by_libvirt() {
    let Some(bench) = Bench::new() else { return };
    let more = ["--gpu", "0", "--nic", NIC, "--p2p", "auto"];
    let create = bench.machine.create("a", &more);
    let explained = bench.machine.place.done(&[
        "plan",
        "--gpu",
        "0",
        "--nic",
        NIC,
        "--p2p",
        "auto",
        "--explain",
    ]);
    let because = format!("direct, as bit DT of {} is set before the guest starts", PORT.0);
    assert!(explained.contains(&because), "{explained}");
    bench.machine.place.done(&create);
    assert_eq!((bench.ctl(), bench.is_recorded()), (0x5d, true));
    assert!(!bench.machine.broken("a").iter().any(|rule| rule.starts_with("p2p-")));
    let described = bench.machine.place.done(&["get", "a"]);
    assert!(described.contains("p2p: auto"), "{described}");
    assert_eq!(bench.restore(&[]).0, 0);
    // A reset of the port loses the bit.
    bench.set(0x1d);
    assert!(bench.machine.broken("a").contains(&"p2p-redirected".to_owned()));
    let (code, said) = bench.restore(&["--dry-run"]);
    assert!(code == 0 && said.contains(&format!("set DT at {}", PORT.0)), "{said}");
    assert_eq!(bench.ctl(), 0x1d);
    let (code, said) = bench.restore(&["--json"]);
    assert_eq!((code, bench.ctl()), (0, 0x5d), "{said}");
    assert!(!bench.machine.broken("a").iter().any(|rule| rule.starts_with("p2p-")));
    // Others have changed it.
    bench.set(0x3d);
    let (code, said) = bench.restore(&["--json"]);
    assert_eq!((code, bench.ctl()), (1, 0x3d), "{said}");
    for part in ["p2p-not-restored", "ACS control is 0x3d, not 0x5d", "gpuvm restart a"] {
        assert!(said.contains(part), "{said}");
    }
    bench.set(0x5d);
    // A guest that ends without gpuvm keeps its port until then.
    bench.machine.place.virsh(&["destroy", "a"]);
    assert_eq!((bench.ctl(), bench.is_recorded()), (0x5d, true));
    assert_eq!(bench.restore(&[]).0, 0);
    assert_eq!((bench.ctl(), bench.is_recorded()), (0x1d, false));
    // libvirt starts it by itself.
    bench.machine.place.virsh(&["start", "a"]);
    assert_eq!(bench.ctl(), 0x1d);
    assert_eq!(bench.restore(&[]).0, 0);
    assert_eq!((bench.ctl(), bench.is_recorded()), (0x5d, true));
    bench.machine.place.done(&["delete", "a", "--force"]);
    assert_eq!((bench.ctl(), bench.is_recorded()), (0x1d, false));
}

#[test]
fn the_unit_of_the_boot_is_written_and_removed() {
    let Some(bench) = Bench::new() else { return };
    let unit = bench.machine.place.daemon.own_path("etc/systemd/system/gpuvm-p2p.service");
    let (code, said) = bench.restore(&["--at-boot", "--dry-run"]);
    assert!(code == 0 && !unit.exists(), "{said}");
    let (code, said) = bench.restore(&["--at-boot"]);
    assert_eq!(code, 0, "{said}");
    let text = fs::read_to_string(&unit).unwrap();
    assert!(text.contains("host p2p restore --lock-wait 600"), "{text}");
    let (code, said) = bench.restore(&["--at-boot"]);
    assert!(code == 0 && said.contains("already set; nothing to do"), "{said}");
    bench.machine.place.done(&["host", "undo", "--yes"]);
    assert!(!unit.exists());
    assert_eq!(bench.restore(&["--at-boot"]).0, 0);
    let (code, said) = bench.restore(&["--at-boot", "--remove"]);
    assert!(code == 0 && !unit.exists(), "{said}");
    let target = unit.with_file_name("multi-user.target.d");
    assert!(!target.exists());
}
