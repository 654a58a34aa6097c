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
fn lines_of_the_list_of_functions_are_read() {
    let gpu = "4108\t10de1db8\t1e\t        fb000000\t0\tnvidia";
    assert_eq!(pci_line(gpu), Some(("0000:41:01.0".into(), 0x10de, 0x1db8)));
    for bad in ["", "4108", "zz 10de1db8", "4108 10de1db8ff"] {
        assert_eq!(pci_line(bad), None, "{bad}");
    }
}
