//! Nova's PCI pools: like devices of one node, taken from the end (`PciDeviceStats`,
//! gpuvm-placement(7), OTHER PLANNERS).

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

/// A pool.
#[derive(Debug, Clone)]
struct Pool {
    /// Vendor and device id.
    product: (u16, u16),
    /// Its node.
    node: Option<usize>,
    /// Free devices, in the order in which they were found.
    devices: Vec<Bdf>,
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

/// The devices of a guest whose cells are on these nodes; none: there are too few.
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

/// Takes devices of one kind.
fn take(list: &[Device], number: usize, cells: &[usize], affinity: Affinity) -> Option<Vec<Bdf>> {
    let mut pools: Vec<Pool> = Vec::new();
    for device in list.iter().filter(|device| device.free) {
        let same = |pool: &&mut Pool| (pool.product, pool.node) == (device.product, device.node);
        match pools.iter_mut().find(same) {
            Some(pool) => pool.devices.push(device.bdf),
            None => {
                let (product, node) = (device.product, device.node);
                pools.push(Pool { product, node, devices: vec![device.bdf] });
            }
        }
    }
    let near = |pool: &Pool| pool.node.is_some_and(|node| cells.contains(&node));
    let some = |pool: &Pool| near(pool) || pool.node.is_none();
    let count = |keep: &dyn Fn(&Pool) -> bool| -> usize {
        pools.iter().filter(|pool| keep(pool)).map(|pool| pool.devices.len()).sum()
    };
    let (strict, legacy) = (count(&near) >= number, count(&some) >= number);
    if strict || affinity == Affinity::Required {
        pools.retain(near);
    } else if legacy || affinity == Affinity::Legacy {
        pools.retain(some);
    } else {
        pools.sort_by_key(|pool| !some(pool));
    }
    let taken: Vec<Bdf> =
        pools.into_iter().flat_map(|pool| pool.devices.into_iter().rev()).take(number).collect();
    (taken.len() == number).then_some(taken)
}

#[cfg(test)]
mod tests {
    use super::Affinity::{Legacy, Preferred, Required};
    use super::*;

    /// Devices with these nodes on buses 0, 1, ..; each a product of its own.
    fn devices(nodes: &[Option<usize>], one_product: bool) -> Vec<Device> {
        let device = |(bus, &node): (u8, &Option<usize>)| Device {
            bdf: Bdf::new(0, bus, 0, 0).unwrap(),
            node,
            product: (1, if one_product { 1 } else { u16::from(bus) }),
            usable: true,
            free: true,
        };
        (0..).zip(nodes).map(device).collect()
    }

    /// A case: chosen cells, policy, devices asked for, buses of those taken (none: refused).
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
        let list = devices(&[Some(0), Some(1), None], false);
        for (cells, affinity, number, wanted) in POLICIES {
            let got = take(&list, number, cells, affinity);
            let got = got.map(|bdfs| bdfs.iter().map(|bdf| bdf.bus()).collect::<Vec<u8>>());
            assert_eq!(got.as_deref(), wanted, "{cells:?} {affinity:?} {number}");
        }
    }

    /// Devices are popped from the end of a pool, so a guest gets the highest addresses of its node
    /// (gpuvm-placement(7), OTHER PLANNERS).
    #[test]
    fn devices_are_taken_from_the_end() {
        let list = devices(&[Some(0), Some(0), Some(0), Some(1), Some(1)], true);
        let buses = |cells: &[usize], number| -> Vec<u8> {
            take(&list, number, cells, Legacy).unwrap().iter().map(|bdf| bdf.bus()).collect()
        };
        assert_eq!(buses(&[0], 2), [2, 1]);
        assert_eq!(buses(&[0, 1], 4), [2, 1, 0, 4]);
    }
}
