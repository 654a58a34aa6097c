//! The traps in the vendor guide's own text, T1 to T41 of spec/nvidia-vm.md chapter 6: each has a test that we do not fall
//! into it, or a reason why this program cannot.

use crate::support::project;
use std::collections::BTreeSet;
use std::path::Path;

/// Is why we do not fall into a trap.
enum Why {
    /// These tests, by name, and where a virtual host is needed these scripts.
    Tested(&'static [&'static str]),
    /// There is nothing here that could.
    Cannot(&'static str),
}

use Why::{Cannot, Tested};

/// Each trap, in order.
const TRAPS: [Why; 41] = [
    // T1: sysctl.conf is overwritten with a number.
    Tested(&[
        "systemd_does_what_the_lines_say_at_boot_only",
        "the_pages_of_a_node_are_set_now_and_at_boot",
    ]),
    // T2 to T4: pages and memory that do not divide.
    Tested(&["t2_t3_t4_memory_is_whole_pages_in_each_cell"]),
    Tested(&[
        "t2_t3_t4_memory_is_whole_pages_in_each_cell",
        "t3_memory_that_is_no_whole_page_is_found_in_a_domain_of_the_guide",
    ]),
    Tested(&["t2_t3_t4_memory_is_whole_pages_in_each_cell"]),
    // T5: the kernel gives fewer pages, or on another node.
    Tested(&[
        "a_shortfall_is_told_with_numbers_and_can_be_undone",
        "pages_that_lack_are_told_reserved_and_given_back",
    ]),
    // T6, T7: a topology for another number of vCPUs, and in the wrong element.
    Tested(&[
        "t6_t7_a_topology_that_does_not_multiply_out_is_mended_where_it_belongs",
        "what_the_guide_gets_wrong_is_refused_with_numbers",
    ]),
    Tested(&["t6_t7_a_topology_that_does_not_multiply_out_is_mended_where_it_belongs"]),
    // T8: a pin too many.
    Tested(&["t8_a_pin_for_a_vcpu_that_is_not_there_goes_and_no_core_is_split"]),
    // T9: no value for four GPUs.
    Tested(&[
        "every_dgx2_slot_has_the_replaced_tools_pins_and_sizes",
        "the_guides_examples_come_out_as_they_should_have_been",
    ]),
    // T10: cells whose vCPUs are on the other node.
    Tested(&["t10_each_cells_vcpus_are_pinned_to_the_node_of_its_memory"]),
    // T11: wrong units.
    Tested(&["reads_units_of_1024", "reads_the_units_of_libvirt"]),
    // T12: the beginning of a tag is missing.
    Tested(&["t12_vcpus_that_are_in_no_cell_get_one"]),
    // T13: the emulator runs on the cores of others.
    Tested(&[
        "t13_the_emulator_leaves_the_cores_of_others",
        "every_dgx2_slot_has_core_pairs_and_its_emulator_core",
    ]),
    // T14, T15: files of libvirtd are edited.
    Tested(&["t14_t15_no_file_of_libvirtd_is_written"]),
    Tested(&["t14_t15_no_file_of_libvirtd_is_written"]),
    // T16: virtual functions without right, until the next boot, over another number.
    Tested(&["a_new_number_goes_by_none", "systemd_takes_the_unit"]),
    // T17 to T19: XML that is not well-formed.
    Tested(&["t17_t18_t19_what_is_not_well_formed_is_refused_with_its_line"]),
    Tested(&["t17_t18_t19_what_is_not_well_formed_is_refused_with_its_line"]),
    Tested(&[
        "t17_t18_t19_what_is_not_well_formed_is_refused_with_its_line",
        "templates_and_guests_are_valid_by_libvirts_schema",
    ]),
    // T20: a disk that is written as another format than it has.
    Tested(&[
        "t20_the_format_of_a_disk_is_never_touched",
        "a_disk_that_is_there_is_what_its_bytes_say",
    ]),
    // T21: I/O threads that nobody uses.
    Tested(&[
        "t21_no_more_iothreads_than_disks_use_and_each_is_named",
        "what_the_guide_gets_wrong_is_refused_with_numbers",
    ]),
    // T22: more queues than vCPUs.
    Tested(&["what_the_guide_gets_wrong_is_refused_with_numbers"]),
    // T23: a file system without O_DIRECT.
    Tested(&[
        "what_takes_direct_writes_is_asked_and_not_guessed",
        "what_the_guide_gets_wrong_is_refused_with_numbers",
    ]),
    // T24, T25: addresses and drives by a script over words.
    Tested(&[
        "drives_are_added_when_asked_for",
        "what_is_free_becomes_a_disk_by_a_name_that_stays",
    ]),
    Tested(&["what_is_used_is_refused_with_its_holder", "what_the_host_needs_is_never_taken"]),
    // T26: a drive that is gone after the guest's next shutdown, and assembled by the host.
    Tested(&[
        "a_gpu_is_reserved_before_it_is_unbound",
        "members_of_a_released_array_are_free",
        "drives.sh",
    ]),
    // T27: an array is stopped under other guests, and fstab still names it.
    Tested(&["lines_of_fstab_that_mean_the_array_are_commented", "drives.sh"]),
    // T28: the array is made anew instead of put together.
    Tested(&["what_is_marked_is_put_back_byte_for_byte", "drives.sh"]),
    // T29: two lines for one array.
    Tested(&["exactly_the_entry_of_the_array_is_replaced"]),
    // T30: the kernel's name of a drive.
    Tested(&["what_is_free_becomes_a_disk_by_a_name_that_stays"]),
    // T31: the host mounts what a guest has.
    Tested(&["every_user_of_a_drive_is_named", "what_is_used_is_refused_with_its_holder"]),
    // T32: a table of partitions that ends at 2 TiB.
    Cannot("gpuvm writes no table of partitions"),
    // T33: where the guest mounts it.
    Cannot(
        "gpuvm makes no file system; what the guest makes and mounts stands in its own user-data",
    ),
    // T34: names that change within an example.
    Tested(&["the_readme_does_what_it_says"]),
    // T35: NUMA balancing until the next boot.
    Tested(&["hosts_that_cost_the_guest_are_found"]),
    // T36: a static address among those for everybody.
    Tested(&[
        "static_addresses_shrink_what_is_handed_out",
        "networks_of_every_kind_are_made_changed_and_deleted",
    ]),
    // T37: guests lose their links without a word.
    Tested(&["who_loses_a_link_is_named"]),
    // T38: the host's own link is changed over itself.
    Cannot("gpuvm changes no link of the host's and writes no netplan"),
    // T39: five vCPUs.
    Tested(&[
        "t39_a_guest_of_one_gpu_with_an_odd_number_of_vcpus_keeps_to_its_own_three_cores",
        "every_dgx2_slot_has_core_pairs_and_its_emulator_core",
    ]),
    // T40: what others have edited.
    Tested(&[
        "cores_that_are_not_free_are_refused_with_who_holds_them",
        "what_runs_is_tuned_and_undone_and_what_others_edit_is_kept",
    ]),
    // T41: a start that looks like a hang: it is announced, and may take as long as it takes.
    Tested(&["who_does_not_wait_for_the_lock_is_told_who_has_it"]),
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
fn each_trap_has_a_test_that_is_there_or_a_reason() {
    let mut texts = Vec::new();
    ["src", "tests"].iter().for_each(|dir| sources(&project().join(dir), &mut texts));
    let known: BTreeSet<&str> = texts.iter().flat_map(|text| tests(text)).collect();
    let list = std::fs::read_to_string(project().join("tests/vdgx/all")).unwrap();
    for (number, why) in (1..).zip(&TRAPS) {
        match why {
            Tested(names) => {
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
            Cannot(reason) => assert!(!reason.is_empty(), "T{number}"),
        }
    }
}

#[test]
fn t14_t15_no_file_of_libvirtd_is_written() {
    let mut texts = Vec::new();
    sources(&project().join("src"), &mut texts);
    assert!(texts.len() > 100, "only {} files were seen", texts.len());
    for text in &texts {
        let program = text.split("#[cfg(test)]").next().unwrap();
        for dir in
            ["etc/libvirt/qemu/", "etc/libvirt/qemu\"", "run/libvirt/qemu", "lib/libvirt/qemu"]
        {
            assert!(!program.contains(dir), "{dir} is named in\n{}", &program[..200]);
        }
    }
}
