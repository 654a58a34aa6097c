//! Nova's PCI pools: each function one of its own, since Placement knows it by its address, taken
//! in the order in which they were found (`PciDeviceStats`, gpuvm-placement(7), OTHER PLANNERS).

use super::super::super::model::Ask;
use super::super::host::{Device, Host};
use gpuvm_core::bdf::Bdf;

/// Is `hw:pci_numa_affinity_policy`; `socket` is not modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Affinity {
    /// Devices of the chosen cells.
    Required,
    /// Those, otherwise also devices without a node; also the default.
    Legacy,
    /// Those, otherwise any.
    Preferred,
}

/// The devices that a guest gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got {
    /// GPUs.
    pub gpus: Vec<Bdf>,
    /// NICs.
    pub nics: Vec<Bdf>,
    /// NVMe drives.
    pub nvmes: Vec<Bdf>,
}

/// The devices of a guest whose cells are on these nodes; `None` if there are too few.
pub fn consume(host: &Host<'_>, ask: &Ask, cells: &[usize], affinity: Affinity) -> Option<Got> {
    let from = |list: &[Device], number: u32| take(list, number as usize, cells, affinity);
    Some(Got {
        gpus: from(&host.gpus, ask.gpus)?,
        nics: from(&host.nics, ask.nics)?,
        nvmes: from(&host.nvmes, ask.nvmes)?,
    })
}

/// Free devices of any kind on a node: what cells are sorted by.
pub fn free_on(host: &Host<'_>, node: usize) -> usize {
    let lists = [&host.gpus, &host.nics, &host.nvmes];
    let all = lists.into_iter().flatten();
    all.filter(|device| device.free && device.node == Some(node)).count()
}

fn take(list: &[Device], number: usize, cells: &[usize], affinity: Affinity) -> Option<Vec<Bdf>> {
    let mut pools: Vec<&Device> = list.iter().filter(|device| device.free).collect();
    let near = |pool: &Device| pool.node.is_some_and(|node| cells.contains(&node));
    let some = |pool: &Device| near(pool) || pool.node.is_none();
    let count = |keep: &dyn Fn(&Device) -> bool| pools.iter().filter(|pool| keep(pool)).count();
    let (strict, legacy) = (count(&near) >= number, count(&some) >= number);
    if strict || affinity == Affinity::Required {
        pools.retain(|pool| near(pool));
    } else if legacy || affinity == Affinity::Legacy {
        pools.retain(|pool| some(pool));
    } else {
        pools.sort_by_key(|pool| !some(pool));
    }
    let taken: Vec<Bdf> = pools.into_iter().map(|pool| pool.bdf).take(number).collect();
    (taken.len() == number).then_some(taken)
}

#[cfg(test)]
mod tests {
    use super::Affinity::{Legacy, Preferred, Required};
    use super::*;

    /// Devices with these nodes on buses 0, 1, ..
    fn devices(nodes: &[Option<usize>]) -> Vec<Device> {
        let device = |(bus, &node): (u8, &Option<usize>)| Device {
            bdf: Bdf::new(0, bus, 0, 0).unwrap(),
            node,
            product: (1, 1),
            usable: true,
            free: true,
        };
        (0..).zip(nodes).map(device).collect()
    }

    /// A case: chosen cells, policy, devices asked for, buses of those taken (`None` if refused).
    type Case = (&'static [usize], Affinity, usize, Option<&'static [u8]>);

    /// One device on node 0, one on node 1, one without a node
    /// (`_test_consume_requests_numa_policy` in Nova's `test_stats.py`: pr0, pr1 and pr_none).
    const POLICIES: [Case; 10] = [
        (&[0], Required, 1, Some(&[0])),
        (&[9], Required, 1, None),
        (&[0], Legacy, 1, Some(&[0])),
        (&[9], Legacy, 1, Some(&[2])),
        (&[0], Preferred, 2, Some(&[0, 2])),
        (&[0], Preferred, 1, Some(&[0])),
        // Ours, by the same rules.
        (&[0], Legacy, 3, None),
        (&[0, 1], Legacy, 2, Some(&[0, 1])),
        (&[1], Preferred, 3, Some(&[1, 2, 0])),
        (&[], Required, 0, Some(&[])),
    ];

    #[test]
    fn pools_follow_the_policy() {
        let list = devices(&[Some(0), Some(1), None]);
        for (cells, affinity, number, wanted) in POLICIES {
            let got = take(&list, number, cells, affinity);
            let got = got.map(|bdfs| bdfs.iter().map(|bdf| bdf.bus()).collect::<Vec<u8>>());
            assert_eq!(got.as_deref(), wanted, "{cells:?} {affinity:?} {number}");
        }
    }

    /// As Nova 34.0.0 does in each case of `tests/export/nova_cases.py`; before it had pools by
    /// address, it took the highest ones of a node.
    #[test]
    fn devices_are_taken_as_they_were_found() {
        let list = devices(&[Some(0), Some(0), Some(0), Some(1), Some(1)]);
        let buses = |cells: &[usize], number| -> Vec<u8> {
            take(&list, number, cells, Legacy).unwrap().iter().map(|bdf| bdf.bus()).collect()
        };
        assert_eq!(buses(&[0], 2), [0, 1]);
        assert_eq!(buses(&[0, 1], 4), [0, 1, 2, 3]);
    }
}
