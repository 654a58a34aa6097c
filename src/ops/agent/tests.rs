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

#[test]
fn base64_is_decoded_or_refused() {
    for (text, bytes) in
        [("", ""), ("MA==", "0"), ("MC0=", "0-"), ("MC0x", "0-1"), ("MC0xCg==", "0-1\n")]
    {
        assert_eq!(base64(text).unwrap(), bytes.as_bytes(), "{text}");
    }
    assert_eq!(base64("Pz8/Pj4+").unwrap(), b"???>>>");
    assert_eq!(base64("M C0"), None);
    for bytes in [&b""[..], b"0", b"0-", b"0-1", b"0-1\n", b"???>>>", &[0, 255, 254]] {
        assert_eq!(base64(&to_base64(bytes)).as_deref(), Some(bytes));
    }
    assert_eq!((&*to_base64(b"0"), &*to_base64(b"0-1\n")), ("MA==", "MC0xCg=="));
}
