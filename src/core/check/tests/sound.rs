//! Changes to the correct domain that look like defects but are not.

use super::setting::{GIB_PAGES, NIC_35, Setting, large_bars, other, pages, set};
use gpuvm_core::cpuset::NodeSet;
use gpuvm_core::memsize::MemSize;

/// A change of the domain and a change of the host and of the other domains.
type Change = (&'static [(&'static str, &'static str)], fn(&mut Setting));

/// Edits and settings; none may give a finding.
pub const SOUND: &[Change] = &[
    (&[], |_| {}),
    // Two vCPUs over both threads of one core.
    (&[("cpuset='2'", "cpuset='2,50'"), ("'50'", "'2,50'")], |_| {}),
    (&[("threads='2'", "threads='1'"), ("cores='5'", "cores='10'")], |s| {
        s.host.machine.cpu_vendor = Some("AuthenticAMD".into());
    }),
    (&[("<maxphysaddr", "<feature policy='require' name='topoext'/><maxphysaddr")], |s| {
        s.host.machine.cpu_vendor = Some("AuthenticAMD".into());
    }),
    // Memory that may go elsewhere when its node is full.
    (&[("mode='strict' nodeset='0'", "mode='preferred' nodeset='1'")], |_| {}),
    (&[GIB_PAGES], |s| pages(s, 180)),
    (&[GIB_PAGES], |s| s.host.nodes.iter_mut().for_each(|node| node.huge_pages.clear())),
    (&[("'128'", "'3'")], |_| {}),
    (&[("'128'", "'252'")], |_| {}),
    (
        &[("<maxphysaddr mode='passthrough'/>", "<maxphysaddr mode='emulate' bits='40'/>")],
        large_bars,
    ),
    (&[], large_bars),
    (&[("<maxphysaddr mode='passthrough'/>", "")], large_bars),
    (
        &[(
            "<vcpu ",
            "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking><vcpu ",
        )],
        |_| {},
    ),
    (&[("0x61", "0x67")], |_| {}),
    (&[NIC_35], |_| {}),
    (&[("iothread='1' queues='8'", "iothread='1' queues='10'")], |_| {}),
    (
        &[
            ("<iothreads>1<", "<iothreads>2<"),
            (
                "io='native' iothread='1' queues='8'/>",
                "io='native' queues='8'><iothreads><iothread id='1'/><iothread id='2'/></iothreads>\
                 </driver>",
            ),
        ],
        |_| {},
    ),
    // A neighbour on the next cores, and one whose emulator is beside ours.
    (&[], |s| {
        other(s, |h| {
            h.vcpu_pins.push(set("6-10,54-58"));
            h.emulator_pin = Some(set("5,53"));
            h.devices.push("39:00.0".parse().unwrap());
            h.memory.push(("0".parse().unwrap(), MemSize::from_gib(500)));
            h.memory.push(("1".parse().unwrap(), MemSize::from_gib(700)));
            h.memory.push((NodeSet::new(), MemSize::from_gib(700)));
        })
    }),
];
