//! Sets of ids: their list form and their operations.

use super::*;
use proptest::prelude::*;

#[test]
fn refuses_invalid_lists() {
    for text in ["a", "1-", "-1", "3-1", "1--2", "1-2-3", "0x1", "1;2", "^", "1:2:3", "0-4:0", "+1"]
    {
        assert!(text.parse::<CpuSet>().is_err(), "{text:?} was accepted");
    }
    assert!(matches!(
        "0-4294967295".parse::<CpuSet>(),
        Err(IdSetError::TooLarge { id: 4_294_967_295, .. })
    ));
}

#[test]
fn reads_and_prints_the_kernels_lists() {
    for (text, printed) in [
        ("", ""),
        (" 0-23,48-71\n", "0-23,48-71"),
        ("3,2,1,7", "1-3,7"),
        ("0-7,^3", "0-2,4-7"),
        ("0-6:2", "0,2,4,6"),
        ("65535", "65535"),
    ] {
        assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), printed);
    }
}

/// Ids close together, and ids with wide gaps before and between them.
fn some_ids() -> impl Strategy<Value = std::collections::BTreeSet<u32>> {
    let close = proptest::collection::btree_set(0u32..300, 0..60);
    prop_oneof![close, proptest::collection::btree_set(0u32..4096, 0..4)]
}

proptest! {
    #[test]
    fn print_then_read_is_the_same(ids in proptest::collection::btree_set(0u32..2000, 0..200)) {
        let set: CpuSet = ids.iter().map(|&id| PcpuId(id)).collect();
        prop_assert_eq!(&set.to_string().parse::<CpuSet>().unwrap(), &set);
        prop_assert_eq!(set.len(), ids.len());
        prop_assert_eq!(set.last().map(|p| p.0), ids.last().copied());
        prop_assert!(set.iter().map(|p| p.0).eq(ids.iter().copied()));
        let downwards: CpuSet = ids.iter().rev().map(|&id| PcpuId(id)).collect();
        prop_assert_eq!(downwards, set);
    }

    #[test]
    fn operations_are_those_of_sets(a in some_ids(), b in some_ids()) {
        let set = |ids: &std::collections::BTreeSet<u32>| -> NodeSet { ids.iter().map(|&i| NodeId(i)).collect() };
        let (x, y) = (set(&a), set(&b));
        prop_assert_eq!(x.and(&y), set(&a.intersection(&b).copied().collect()));
        prop_assert_eq!(x.or(&y), set(&a.union(&b).copied().collect()));
        prop_assert_eq!(x.minus(&y), set(&a.difference(&b).copied().collect()));
        prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
        prop_assert_eq!(x.intersects(&y), !a.is_disjoint(&b));
        let mut without = x.clone();
        b.iter().for_each(|&i| without.remove(NodeId(i)));
        prop_assert_eq!(without, x.minus(&y));
    }
}
