use super::*;

#[test]
fn answers_are_read_as_the_agent_writes_them() {
    let vcpus = json!([
        { "logical-id": 0, "online": true, "can-offline": false },
        { "logical-id": 1, "online": false, "can-offline": true },
    ]);
    assert_eq!((online(&vcpus), online(&json!({}))), (Some(1), None));
    let nics = json!([
        { "name": "lo", "hardware-address": "00:00:00:00:00:00" },
        { "name": "enp1s0", "hardware-address": "52:54:00:AB:00:01" },
        { "name": "tun0" },
    ]);
    let macs: Vec<String> = strings(&nics, "hardware-address").into_iter().collect();
    assert_eq!(macs, ["00:00:00:00:00:00", "52:54:00:ab:00:01"]);
    let disks = json!([
        { "name": "/dev/vda1", "partition": true, "address": { "bus-type": "virtio" } },
        { "name": "/dev/vda", "partition": false, "address": { "bus-type": "virtio" } },
        { "name": "/dev/nvme0n1", "partition": false, "address": { "bus-type": "nvme" } },
        { "name": "/dev/loop0", "partition": false },
    ]);
    assert_eq!((virtio_disks(&disks), virtio_disks(&json!("?"))), (1, 0));
}

#[test]
fn whole_disks_on_virtio_are_counted_by_their_names() {
    let text = "major minor  #blocks  name\n\n 254  0  8388608 vda\n 254  1  8387584 vda1\n\
                254 16  1024 vdaa\n 259  0  4096 nvme0n1\n 8 0 512 sda\n 254 32 1 vd\n";
    assert_eq!((virtio_names(text), virtio_names("")), (2, 0));
}

/// CVE-2026-77158: the daemon frees memory twice by a malicious answer.
#[test]
fn an_agent_is_asked_about_its_disks_only_by_a_libvirt_that_takes_no_harm() {
    use crate::hypervisor::Hypervisor as _;
    use gpuvm_core::versions::{Version, Versions};
    let count = |libvirt: Option<Version>, answers: &[(&'static str, &'static str)]| {
        let stage = crate::stage::Stage::who_says(crate::reporter::Answer::Nobody);
        stage.fake.versions.set(Versions { libvirt, ..Versions::default() });
        stage.fake.agent.borrow_mut().extend(answers.iter().copied());
        let wait = Duration::from_secs(10);
        let agent = Agent { hypervisor: &*stage.fake, name: "a", until: Instant::now() + wait };
        assert_eq!(stage.fake.versions().libvirt, libvirt);
        agent.virtio_disks()
    };
    let disks = ("guest-get-disks", r#"[{"partition":false,"address":{"bus-type":"virtio"}}]"#);
    assert_eq!(count(Some(Version(12, 7, 0)), &[disks]), Ok(1));
    for old in [Some(Version(12, 6, 9)), None] {
        let refused = count(old, &[disks]).unwrap_err();
        assert!(refused.contains("CVE-2026-77158"), "{refused}");
        // `vda` and `vda1`.
        let text = r#"{"count":30,"buf-b64":"IDI1NCAwIDggdmRhCiAyNTQgMSA4IHZkYTEK","eof":true}"#;
        let files =
            [("guest-file-open", "7"), ("guest-file-read", text), ("guest-file-close", "{}")];
        assert_eq!(count(old, &[&files[..], &[disks]].concat()), Ok(1));
    }
}

#[test]
fn lines_of_the_list_of_functions_are_read() {
    let gpu = "4108\t10de1db8\t1e\t        fb000000\t0\tnvidia";
    assert_eq!(pci_line(gpu), Some(("0000:41:01.0".into(), 0x10de, 0x1db8)));
    for bad in ["", "4108", "zz 10de1db8", "4108 10de1db8ff"] {
        assert_eq!(pci_line(bad), None, "{bad}");
    }
}
