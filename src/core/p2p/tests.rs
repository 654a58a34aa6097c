//! Registers from config space, the routing table, and the table against a walk up a tree.

use super::*;
use crate::bdf::Bdf;
use bits::{CR, DT, EC, RR, SV, TB, UF};
use proptest::prelude::*;

/// Config space of a function with these extended capabilities, at 0x100, 0x180 and so on: id and
/// the double word after the header.
fn config(capabilities: &[(u16, u32)], bytes: usize) -> Vec<u8> {
    let mut config = vec![0; 4096];
    config[..4].copy_from_slice(&[0x86, 0x80, 0x34, 0x12]);
    // A list of capabilities: power management, then PCI Express with relaxed ordering on.
    config[6] = 0x10;
    config[0x34] = 0x40;
    config[0x40..0x42].copy_from_slice(&[0x01, 0x60]);
    config[0x60..0x62].copy_from_slice(&[0x10, 0x00]);
    config[0x68..0x6a].copy_from_slice(&[0x10, 0x29]);
    for (place, (id, word)) in capabilities.iter().enumerate() {
        let at = 0x100 + place * 0x80;
        let next = if place + 1 < capabilities.len() { at as u32 + 0x80 } else { 0 };
        let header = u32::from(*id) | 1 << 16 | next << 20;
        config[at..at + 4].copy_from_slice(&header.to_le_bytes());
        config[at + 4..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    config.truncate(bytes);
    config
}

/// Registers of a function with this config space.
fn read(config: &[u8]) -> Registers {
    Registers::read((0x10b5, 0x9797), |at| {
        let bytes = config.get(usize::from(at)..usize::from(at) + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().unwrap()))
    })
}

#[test]
fn registers_are_read_by_following_both_lists() {
    let port = config(&[(0x0001, 0), (0x000d, 0x001d_005f)], 4096);
    let found = read(&port);
    assert_eq!(found.acs, Some(Acs { cap: 0x5f, ctl: 0x1d }));
    assert_eq!(found.ats, Some(Ats { present: false, enabled: false }));
    assert_eq!(found.devctl, Some(0x2910));
    let nic = read(&config(&[(0x000f, 0x8000_0020)], 4096));
    assert_eq!(nic.ats, Some(Ats { present: true, enabled: true }));
    assert_eq!(nic.acs, Some(Acs { cap: 0, ctl: 0 }));
    // Without extended capabilities the list is empty, which is known.
    assert_eq!(read(&config(&[], 4096)).acs, Some(Acs { cap: 0, ctl: 0 }));
}

#[test]
fn an_unreadable_state_is_unknown_and_never_off() {
    let good = config(&[(0x0001, 0), (0x000d, 0x0000_005f), (0x000f, 0x20)], 4096);
    assert_eq!(read(&good).acs, Some(Acs { cap: 0x5f, ctl: 0 }));
    let of = |config: &[u8]| (read(config).acs, read(config).ats);
    // The part that a user may read, a function without extended space, and one that is gone.
    assert_eq!(read(&good[..64]), Registers::default());
    assert_eq!((of(&good[..256]), read(&good[..256]).devctl), ((None, None), Some(0x2910)));
    assert_eq!(read(&[0xff; 4096]), Registers::default());
    assert_eq!(read(&[]), Registers::default());
    // A list that ends in the middle, is cyclic, points back or to nowhere.
    assert_eq!(of(&good[..0x184]), (None, None));
    let changed = |at: usize, bytes: &[u8]| {
        let mut config = good.clone();
        config[at..at + bytes.len()].copy_from_slice(bytes);
        config
    };
    assert_eq!(of(&changed(0x100, &[1, 0, 1, 0x10])), (None, None));
    assert_eq!(of(&changed(0x100, &[1, 0, 1, 0x04])), (None, None));
    assert_eq!(of(&changed(0x100, &[1, 0, 0xf1, 0xff])), (None, None));
    assert_eq!(of(&changed(0x100, &[0xff; 4])), (None, None));
    assert_eq!(of(&changed(0x100, &[0xff, 0xff, 0, 0])), (None, None));
    assert_eq!(of(&changed(0x184, &[0xff; 4])), (None, None));
    // The first list may be cyclic, too.
    assert_eq!(read(&changed(0x41, &[0x40])).devctl, None);
    assert_eq!(read(&changed(0x60, &[0xff; 4])).devctl, None);
    // Root ports of Intel whose registers lie elsewhere.
    let word = |at: u16| {
        let at = usize::from(at);
        Some(u32::from_le_bytes(good.get(at..at + 4)?.try_into().unwrap()))
    };
    assert_eq!(Registers::read((0x8086, 0xa110), word).acs, None);
    assert!(Registers::read((0x8086, 0xa190), word).acs.is_some());
}

/// An address on this bus.
fn at(bus: u8) -> Bdf {
    format!("0000:{bus:02x}:00.0").parse().unwrap()
}

/// A port with every bit in its capability.
fn port(bus: u8, ctl: u16) -> Port {
    Port { at: at(bus), acs: Some(Acs { cap: 0x5f, ctl }) }
}

/// A function below ports with this control, its own first.
fn end(bus: u8, translation: Translation, relaxed: bool, ctls: &[u16]) -> End {
    let ports = ctls.iter().zip(1..).map(|(ctl, place)| port(bus + place, *ctl)).collect();
    let (function, ordered_by) = (at(bus), at(bus));
    let (translation, relaxed) = (Some(translation), Some(relaxed));
    End { function, translation, relaxed, ordered_by, ports }
}

#[test]
fn each_line_of_the_routing_table_holds() {
    use Translation::{Absent, Off, On};
    use Way::{Rejected, Root, Switch};
    const SAFE: u16 = SV | RR | CR | UF;
    let write = |translation, ctls: &[u16]| {
        let (from, to) = (end(0x10, translation, true, ctls), end(0x20, Absent, true, &[0]));
        route(&from, &to, Op::Write).way
    };
    let cases: [(Translation, &[u16], Way); 20] = [
        // Untranslated: by RR or EC of the divergence port.
        (Absent, &[0], Switch),
        (Absent, &[SV | CR | UF], Switch),
        (Absent, &[RR], Root),
        (Absent, &[EC], Root),
        (Absent, &[SAFE], Root),
        (Absent, &[SAFE | DT], Root),
        (Off, &[SAFE | DT], Root),
        (Off, &[0], Switch),
        (Absent, &[TB], Switch),
        // Translated: by DT, then by RR or EC.
        (On, &[0], Switch),
        (On, &[SAFE], Root),
        (On, &[EC], Root),
        (On, &[SAFE | DT], Switch),
        (On, &[SAFE | EC | DT], Switch),
        (On, &[SAFE | TB | DT], Rejected),
        (On, &[TB], Rejected),
        // A nested port decides nothing but TB.
        (Absent, &[SAFE, 0], Switch),
        (Absent, &[0, SAFE], Root),
        (On, &[SAFE, SAFE | DT], Switch),
        (On, &[TB, SAFE | DT], Rejected),
    ];
    for (translation, ctls, way) in cases {
        assert_eq!(write(translation, ctls), way, "{translation:?} {ctls:x?}");
    }
    // A read needs the completion, too: CR of the completer, unless ordering is relaxed.
    let read = |relaxed, completer: &[u16]| {
        let (from, to) =
            (end(0x10, On, relaxed, &[SAFE | DT]), end(0x20, Absent, false, completer));
        route(&from, &to, Op::Read)
    };
    assert_eq!(read(true, &[SAFE]).way, Switch);
    assert_eq!(read(false, &[SAFE & !CR]).way, Switch);
    assert_eq!(read(false, &[CR, 0]).way, Switch);
    let back = read(false, &[SAFE]);
    assert_eq!(
        (back.way, &back.blocked[..]),
        (Root, &[Block { code: Code::CrWithoutRo, at: at(0x10) }][..])
    );
}

#[test]
fn both_that_are_missing_are_named_with_their_place() {
    let to = end(0x20, Translation::Absent, true, &[0x1d]);
    let blocked = |from: &End| {
        let route = route(from, &to, Op::Write);
        route.blocked.into_iter().map(|block| (block.code, block.at)).collect::<Vec<_>>()
    };
    let mut nic = end(0x10, Translation::Absent, true, &[0, 0x1d]);
    assert_eq!(blocked(&nic), [(Code::NoAts, at(0x10)), (Code::NoDt, at(0x12))]);
    nic.translation = Some(Translation::Off);
    assert_eq!(blocked(&nic), [(Code::AtsOff, at(0x10)), (Code::NoDt, at(0x12))]);
    nic.translation = Some(Translation::On);
    assert_eq!(blocked(&nic), [(Code::NoDt, at(0x12))]);
    nic.ports[1].acs = Some(Acs { cap: 0x1f, ctl: 0x1d });
    assert_eq!(blocked(&nic), [(Code::DtUnsupported, at(0x12))]);
    nic.ports[1].acs = Some(Acs { cap: 0x5f, ctl: 0x5d });
    assert_eq!(blocked(&nic), []);
    nic.ports[0].acs = Some(Acs { cap: 0x5f, ctl: 0x1f });
    assert_eq!(blocked(&nic), [(Code::Tb, at(0x11))]);
}

#[test]
fn an_unknown_register_is_unknown_only_where_it_matters() {
    let to = end(0x20, Translation::Absent, true, &[0x1d]);
    let mut nic = end(0x10, Translation::On, true, &[0x1d, 0x5d]);
    let way = |nic: &End, op| route(nic, &to, op).way;
    assert_eq!(way(&nic, Op::Write), Way::Switch);
    nic.ports[0].acs = None;
    assert_eq!(way(&nic, Op::Write), Way::Unknown);
    nic.translation = Some(Translation::Off);
    assert_eq!(way(&nic, Op::Write), Way::Root);
    nic.translation = None;
    assert_eq!(way(&nic, Op::Write), Way::Unknown);
    nic.ports[0].acs = Some(Acs { cap: 0, ctl: 0 });
    assert_eq!(way(&nic, Op::Write), Way::Unknown);
    // Without DT a translated request goes up, too.
    nic.ports[1].acs = Some(Acs { cap: 0x5f, ctl: 0x1d });
    assert_eq!(way(&nic, Op::Write), Way::Root);
    nic.ports[1].acs = None;
    assert_eq!(way(&nic, Op::Write), Way::Unknown);
    let nic = End { relaxed: None, ..end(0x10, Translation::On, true, &[0x5d]) };
    assert_eq!((way(&nic, Op::Write), way(&nic, Op::Read)), (Way::Switch, Way::Unknown));
}

/// A bridge or function of a tree: the bridge above it, and the control of a downstream port.
#[derive(Debug, Clone)]
struct Node {
    /// The bridge above it; `None` for the root port.
    above: Option<usize>,
    ctl: u16,
}

/// Whether a node is another or below it.
fn is_below(tree: &[Node], node: usize, of: usize) -> bool {
    std::iter::successors(Some(node), |node| tree[*node].above).any(|node| node == of)
}

/// Sends a packet from one node up, hop by hop, as switches do: a downstream port that it reaches
/// from below rejects it, sends it up, or lets its switch look whether the target is below it.
/// Downstream ports have an even depth here, upstream ports an odd one.
fn walk(tree: &[Node], from: usize, to: usize, is_packet: (bool, bool)) -> Way {
    let (is_translated, is_completion) = is_packet;
    let is_relaxed = is_translated && is_completion;
    let depth =
        |node: usize| std::iter::successors(tree[node].above, |node| tree[*node].above).count();
    let mut here = tree[from].above;
    while let Some(port) = here {
        if depth(port) % 2 == 1 {
            // An upstream port: nothing below was the target.
            here = tree[port].above;
            continue;
        }
        let ctl = tree[port].ctl;
        if is_translated && !is_completion && ctl & TB != 0 {
            return Way::Rejected;
        }
        let Some(switch) = tree[port].above else { return Way::Root };
        let redirected = if is_completion {
            ctl & CR != 0 && !is_relaxed
        } else {
            ctl & (RR | EC) != 0 && !(is_translated && ctl & DT != 0)
        };
        if is_below(tree, to, switch) {
            return if redirected { Way::Root } else { Way::Switch };
        }
        here = Some(switch);
    }
    Way::Root
}

/// The ports of a node up to the bridge that it has in common with another.
fn ports(tree: &[Node], node: usize, other: usize) -> Vec<Port> {
    let above = std::iter::successors(tree[node].above, |node| tree[*node].above);
    let own = above.take_while(|bridge| !is_below(tree, other, *bridge));
    own.map(|bridge| port(u8::try_from(bridge).unwrap(), tree[bridge].ctl)).collect()
}

/// A tree below one root port: each switch has an upstream port and downstream ports, each of these
/// a function or another switch.
fn tree() -> impl Strategy<Value = (Vec<Node>, usize, usize)> {
    let ports = proptest::collection::vec((0..8usize, 0..0x80u16, any::<bool>()), 2..12);
    (ports, any::<(usize, usize)>()).prop_map(|(ports, (from, to))| {
        let node = |above, ctl| Node { above, ctl };
        // The root port, and the upstream port of its switch.
        let mut tree = vec![node(None, 0x1d), node(Some(0), 0)];
        let (mut upstream, mut functions) = (vec![1], Vec::new());
        for (switch, ctl, is_switch) in ports {
            let above = upstream[switch % upstream.len()];
            tree.push(node(Some(above), ctl & !1));
            tree.push(node(Some(tree.len() - 1), 0));
            let list = if is_switch { &mut upstream } else { &mut functions };
            list.push(tree.len() - 1);
        }
        let from = functions.get(from % functions.len().max(1)).copied().unwrap_or(1);
        let to = functions.get(to % functions.len().max(1)).copied().unwrap_or(1);
        (tree, from, to)
    })
}

proptest! {
    #[test]
    fn routes_are_those_of_a_packet_that_walks_up_the_tree(
        (tree, from, to) in tree(),
        is_translated in any::<bool>(),
        is_relaxed in any::<bool>(),
    ) {
        prop_assume!(from != to);
        let translation = if is_translated { Translation::On } else { Translation::Off };
        let end = |node: usize, other| End {
            function: at(u8::try_from(node).unwrap()),
            translation: Some(translation),
            relaxed: Some(is_relaxed),
            ordered_by: at(u8::try_from(node).unwrap()),
            ports: ports(&tree, node, other),
        };
        let (requester, completer) = (end(from, to), end(to, from));
        let request = walk(&tree, from, to, (is_translated, false));
        prop_assert_eq!(route(&requester, &completer, Op::Write).way, request);
        let completion = walk(&tree, to, from, (is_relaxed, true));
        let expected = if request == Way::Rejected { request } else { request.max(completion) };
        let found = route(&requester, &completer, Op::Read);
        prop_assert_eq!(found.way, expected);
        prop_assert_eq!(found.blocked.is_empty(), found.way == Way::Switch);
    }
}
