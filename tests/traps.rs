//! The traps in the vendor guide's own text, T1 to T41 of gpuvm-nvidia-vm(7), TRAPS OF THE GUIDE:
//! each has a test that gpuvm avoids it.

use crate::support::{gpuvm, project, run};
use gpuvm::memsize::MemSize;
use std::collections::BTreeSet;
use std::path::Path;

/// The tests of each trap by name, in order; for virtual hosts, scripts.
const TRAPS: [&[&str]; 41] = [
    // T1: sysctl.conf is overwritten with a number.
    &[
        "t1_t32_no_file_of_all_and_no_partition_table_is_written",
        "boot_settings_are_read_back",
        "systemd_does_what_the_lines_say_at_boot_only",
        "the_pages_of_a_node_are_set_now_and_at_boot",
    ],
    // T2 to T4: pages and memory that do not divide.
    &["t2_t3_t4_memory_is_whole_pages_in_each_cell"],
    &[
        "t2_t3_t4_memory_is_whole_pages_in_each_cell",
        "t3_memory_that_is_no_whole_page_is_found_in_a_domain_of_the_guide",
    ],
    &["t2_t3_t4_memory_is_whole_pages_in_each_cell"],
    // T5: the kernel gives fewer pages, or on another node.
    &[
        "a_shortfall_is_reported_with_numbers_and_can_be_undone",
        "missing_pages_are_reported_reserved_and_released",
    ],
    // T6, T7: a topology for the wrong number of vCPUs, and in the wrong element.
    &[
        "t6_t7_a_topology_that_does_not_multiply_out_is_mended_where_it_belongs",
        "errors_of_the_guide_are_refused_with_numbers",
    ],
    &["t6_t7_a_topology_that_does_not_multiply_out_is_mended_where_it_belongs"],
    // T8: a pin too many.
    &["t8_a_pin_for_a_vcpu_that_is_not_there_goes_and_no_core_is_split"],
    // T9: no value for four GPUs.
    &[
        "every_dgx2_slot_has_the_replaced_tools_pins_and_sizes",
        "the_guides_examples_come_out_correct",
    ],
    // T10: cells whose vCPUs are on the other node.
    &["t10_each_cells_vcpus_are_pinned_to_the_node_of_its_memory"],
    // T11: wrong units, cores that are vCPUs.
    &[
        "t11_amounts_are_shown_in_their_own_units_and_vcpus_as_such",
        "reads_units_of_1024",
        "reads_the_units_of_libvirt",
    ],
    // T12: the beginning of a tag is missing.
    &["t12_vcpus_that_are_in_no_cell_get_one"],
    // T13: the emulator runs on the cores of others.
    &[
        "t13_the_emulator_leaves_the_cores_of_others",
        "every_dgx2_slot_has_core_pairs_and_its_emulator_core",
    ],
    // T14, T15: files of libvirtd are edited.
    &["t14_t15_no_file_of_libvirtd_is_written"],
    &["t14_t15_no_file_of_libvirtd_is_written"],
    // T16: virtual functions without right, until the next boot, over another number.
    &["a_new_number_goes_by_none", "systemd_takes_the_unit"],
    // T17 to T19: XML that is not well-formed.
    &["t17_t18_t19_malformed_xml_is_refused_with_its_line"],
    &["t17_t18_t19_malformed_xml_is_refused_with_its_line"],
    &[
        "t17_t18_t19_malformed_xml_is_refused_with_its_line",
        "templates_and_guests_are_valid_by_libvirts_schema",
        "netplans_file_says_it_in_present_syntax",
    ],
    // T20: a disk that is written as another format than it has.
    &[
        "t20_the_format_of_a_disk_is_never_touched",
        "a_disk_that_is_there_is_what_its_bytes_say",
        "a_disk_is_converted_compared_and_given_back",
    ],
    // T21: I/O threads that no disk uses.
    &[
        "t21_no_more_iothreads_than_disks_use_and_each_is_named",
        "errors_of_the_guide_are_refused_with_numbers",
    ],
    // T22: more queues than vCPUs.
    &["errors_of_the_guide_are_refused_with_numbers"],
    // T23: a file system without O_DIRECT.
    &[
        "support_of_direct_writes_is_probed_not_guessed",
        "errors_of_the_guide_are_refused_with_numbers",
    ],
    // T24, T25: addresses and drives by a script over words: only the bus, whose maker is Micron.
    &["t24_t25_a_drive_has_its_whole_address_and_no_maker"],
    &[
        "t24_t25_a_drive_has_its_whole_address_and_no_maker",
        "drives_in_use_are_refused_with_their_user",
        "devices_needed_by_the_host_are_never_taken",
        "functions_of_the_same_slot_come_along_and_bridges_stay",
    ],
    // T26: a drive that is gone after the guest's next shutdown, and assembled by the host. Here it
    // is in the definition, and udev does not assemble released drives.
    &[
        "t24_t25_a_drive_has_its_whole_address_and_no_maker",
        "a_gpu_is_reserved_before_it_is_unbound",
        "drives.sh",
    ],
    // T27: an array is stopped under other guests, and fstab still names it.
    &["lines_of_fstab_that_mean_the_array_are_commented", "drives.sh"],
    // T28: the array is recreated instead of assembled, from names that change, and without its old
    // UUID.
    &[
        "arrays_are_released_restored_and_rebuilt",
        "marked_text_is_restored_byte_for_byte",
        "drives.sh",
    ],
    // T29: two lines for one array.
    &["exactly_the_entry_of_the_array_is_replaced"],
    // T30: the kernel's name of a drive.
    &["a_free_drive_becomes_a_disk_by_a_stable_name"],
    // T31: the host mounts a guest's drive.
    &["every_user_of_a_drive_is_named", "drives_in_use_are_refused_with_their_user"],
    // T32: a table of partitions that ends at 2 TiB.
    &["t1_t32_no_file_of_all_and_no_partition_table_is_written"],
    // T33: another partition is passed than the text says, and the guest is trusted to mount it.
    // Here it is the one that is named, and cloud-init makes and mounts what lies on the data disk.
    &["a_free_drive_becomes_a_disk_by_a_stable_name", "a_seed_says_who_may_log_in"],
    // T34: names that change within an example.
    &["the_readme_does_what_it_says"],
    // T35: NUMA balancing until the next boot.
    &["hosts_that_cost_the_guest_are_found", "boot_settings_are_read_back"],
    // T36: a static address among those for everybody.
    &[
        "static_addresses_shrink_the_dhcp_range",
        "networks_of_every_kind_are_made_changed_and_deleted",
    ],
    // T37: guests silently lose their links.
    &["guests_that_lose_a_link_are_named", "networks_of_every_kind_are_made_changed_and_deleted"],
    // T38: netplan apply over ssh cuts the admin off, and its syntax is old: an unconfirmed bridge
    // is reverted, also if the program is killed or the gateway does not answer, and the file uses
    // `routes:`.
    &[
        "a_silent_gateway_and_a_timeout_revert_the_change",
        "killing_the_tool_during_the_wait_reverts_the_change",
        "a_bridge_comes_up_is_confirmed_and_goes_without_trace",
        "netplans_file_says_it_in_present_syntax",
    ],
    // T39: five vCPUs.
    &[
        "t39_a_guest_of_one_gpu_with_an_odd_number_of_vcpus_keeps_to_its_own_three_cores",
        "every_dgx2_slot_has_core_pairs_and_its_emulator_core",
    ],
    // T40: edits of others.
    &[
        "cores_that_are_not_free_are_refused_with_who_holds_them",
        "running_guests_are_tuned_and_undone_and_edits_by_others_kept",
    ],
    // T41: a start that looks like a hang: it is announced, and has no time limit.
    &["t41_a_start_that_takes_long_is_announced_and_not_given_up"],
];

/// The Rust files below a directory, each with its text.
fn sources(dir: &Path, into: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            sources(&entry, into);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            into.push(std::fs::read_to_string(entry).unwrap());
        }
    }
}

/// The tests that a text has.
fn tests(text: &str) -> impl Iterator<Item = &str> {
    text.split("#[test]").skip(1).filter_map(|after| {
        let function = after.split("fn ").nth(1)?;
        function.split('(').next()
    })
}

#[test]
fn each_trap_has_a_test_that_is_there() {
    let mut texts = Vec::new();
    ["src", "tests"].iter().for_each(|dir| sources(&project().join(dir), &mut texts));
    let known: BTreeSet<&str> = texts.iter().flat_map(|text| tests(text)).collect();
    let list = std::fs::read_to_string(project().join("tests/vdgx/all")).unwrap();
    for (number, names) in (1..).zip(&TRAPS) {
        assert!(!names.is_empty(), "T{number}");
        for name in *names {
            let script = name.strip_suffix(".sh");
            let runs = script.is_some_and(|script| {
                let words = list.split(|c: char| !c.is_ascii_alphanumeric());
                words.into_iter().any(|word| word == script)
            });
            assert!(known.contains(name) || runs, "T{number}: no test `{name}`");
        }
    }
}

/// Asserts that the program, apart from its tests, has none of these words.
fn names_none_of(words: &[&str]) {
    let mut texts = Vec::new();
    sources(&project().join("src"), &mut texts);
    assert!(texts.len() > 100, "only {} files were seen", texts.len());
    for text in &texts {
        // Settings of firmware there are looked at, so that no guest gets those of another; a hint
        // says where QEMU keeps the files of shared memory.
        let program = text.split("#[cfg(test)]").next().unwrap();
        let program = program.replace("/var/lib/libvirt/qemu/nvram\"", "");
        let program = program.replace("below /var/lib/libvirt/qemu/ram", "");
        for word in words {
            let head: String = program.chars().take(200).collect();
            assert!(!program.contains(word), "{word} is named in\n{head}");
        }
    }
}

#[test]
fn t14_t15_no_file_of_libvirtd_is_written() {
    // The pid files below /run/libvirt/qemu are read, as proof of whose a process is.
    names_none_of(&["etc/libvirt/qemu/", "etc/libvirt/qemu\"", "lib/libvirt/qemu"]);
}

#[test]
fn t1_t32_no_file_of_all_and_no_partition_table_is_written() {
    names_none_of(&["etc/sysctl.conf", "\"fdisk\"", "\"sfdisk\"", "\"sgdisk\"", "\"parted\""]);
}

#[test]
fn t11_amounts_are_shown_in_their_own_units_and_vcpus_as_such() {
    // The guide's 739 GiB of cores 0-45.
    assert_eq!(MemSize::from_kib(758_456_320).to_string(), "723.3 GiB");
    let host = project().join("topologies/dgx-2.json");
    let args = ["plan", "--gpus", "16", "--memory", "1516912640K", "--name", "a", "--host"];
    let (code, out, err) = run(gpuvm(&args).arg(&host));
    assert_eq!(code, 0, "{err}");
    // Rounded to whole pages of 2 MiB, and the exact amount beside it.
    assert!(out.contains("cell 0: 723.3 GiB (758456320 KiB)"), "{out}");
    assert!(out.contains("vCPUs 0-45 on"), "{out}");
}

#[test]
fn t24_t25_a_drive_has_its_whole_address_and_no_maker() {
    let record = std::fs::read_to_string(project().join("topologies/dgx-2.json")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // As the same drive would be recorded in another place, of another maker.
    let (old, new) = ("0000:2f:00.0", "000a:2f:1f.5");
    let maker = record.replace(old, new).replace("Micron_9200", "OTHER_9200");
    let file = dir.path().join("host.json");
    std::fs::write(&file, maker).unwrap();
    let on = |words: &str| {
        let (code, out, err) =
            run(gpuvm(&words.split(' ').collect::<Vec<_>>()).arg("--host").arg(&file));
        assert_eq!(code, 0, "{words}: {err}");
        out
    };
    let xml = on("export --name a --vcpus 4 --nvme 000a:2f:1f.5");
    let source = "<address domain='0x000a' bus='0x2f' slot='0x1f' function='0x5'/>";
    assert!(xml.contains(source), "{xml}");
    // A number takes a free drive of any maker; a drive of the same maker with the system on it is
    // not free.
    let list = on("drive list");
    assert!(list.contains("OTHER_9200") && !list.contains("Micron"), "{list}");
    let plan = on("plan --name a --vcpus 4 --nvme 8 --json");
    assert!(plan.contains(new), "{plan}");
}
