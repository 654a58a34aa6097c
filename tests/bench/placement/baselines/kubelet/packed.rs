//! The CPU manager's packed taker: whole nodes and packages, then level-3 caches where asked for,
//! whole cores, and at last single threads; the fullest unit first at every step
//! (gpuvm-placement(7), OTHER PLANNERS).

use super::super::host::Host;

/// A level of a host's hierarchy, as the taker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// NUMA nodes.
    Node,
    /// Packages.
    Package,
    /// Level-3 caches: the kubelet's "uncore caches".
    L3,
    /// Cores.
    Core,
}

/// The options that an operator can enable.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// `prefer-align-cpus-by-uncorecache`.
    pub by_l3: bool,
    /// `distribute-cpus-across-cores`.
    pub across_cores: bool,
}

/// A set of free threads that is being taken from.
pub struct Taker<'h> {
    host: &'h Host<'h>,
    free: Vec<bool>,
    /// Free threads of each unit, by level.
    left: [Vec<usize>; 4],
    /// Threads of each unit, by level.
    all: [Vec<usize>; 4],
    /// Cores of each unit above cores, by level.
    members: [Vec<Vec<usize>>; 3],
    /// Whether nodes are the larger units: where there are at least as many packages.
    nodes_first: bool,
    need: usize,
    taken: Vec<usize>,
}

/// Takes threads among the available ones; `None` if there are too few.
pub fn take(
    host: &Host<'_>,
    available: &[bool],
    need: usize,
    options: Options,
) -> Option<Vec<usize>> {
    let mut taker = Taker::new(host, available, need);
    if available.iter().filter(|free| **free).count() < need {
        return None;
    }
    let levels = if taker.nodes_first {
        [Level::Node, Level::Package]
    } else {
        [Level::Package, Level::Node]
    };
    for level in levels {
        taker.take_whole(level);
    }
    if options.by_l3 {
        taker.take_by_l3();
    }
    if !options.across_cores {
        taker.take_whole(Level::Core);
    }
    taker.take_threads(options.across_cores);
    Some(taker.taken)
}

impl<'h> Taker<'h> {
    /// Counts the resources.
    pub fn new(host: &'h Host<'h>, available: &[bool], need: usize) -> Taker<'h> {
        let sizes = [host.nodes.len(), host.packages, host.l3, host.cores.len()];
        let counts = || sizes.map(|size| vec![0; size]);
        let lists = |level: usize| vec![Vec::new(); sizes[level]];
        let with_cores = host.nodes.iter().filter(|node| !node.cores.is_empty()).count();
        let mut taker = Taker {
            host,
            free: available.to_vec(),
            left: counts(),
            all: counts(),
            members: [lists(0), lists(1), lists(2)],
            nodes_first: host.packages >= with_cores,
            need,
            taken: Vec::new(),
        };
        for (place, core) in host.cores.iter().enumerate() {
            let units = [core.node, core.package, core.l3, place];
            let free = core.threads.clone().filter(|&thread| available[thread]).count();
            for (level, unit) in units.into_iter().enumerate() {
                taker.all[level][unit] += core.threads.len();
                taker.left[level][unit] += free;
                if let Some(lists) = taker.members.get_mut(level) {
                    lists[unit].push(place);
                }
            }
        }
        taker
    }

    /// Free threads of each node.
    pub fn left_on_nodes(&self) -> &[usize] {
        &self.left[Level::Node as usize]
    }

    /// The unit of a level that a core belongs to.
    fn unit(&self, level: Level, core: usize) -> usize {
        match level {
            Level::Node => self.host.cores[core].node,
            Level::Package => self.host.cores[core].package,
            Level::L3 => self.host.cores[core].l3,
            Level::Core => core,
        }
    }

    /// Units of a level that have free threads on these cores, the fullest first, then by number.
    fn among(&self, cores: impl Iterator<Item = usize>, level: Level) -> Vec<usize> {
        let free = cores.filter(|&core| self.left[Level::Core as usize][core] > 0);
        let mut units: Vec<usize> = free.map(|core| self.unit(level, core)).collect();
        units.sort_unstable_by_key(|&unit| (self.left[level as usize][unit], unit));
        units.dedup();
        units
    }

    /// Units of a level in the taker's order: by the order of the larger units that they are in.
    pub fn order(&self, level: Level) -> Vec<usize> {
        let above = match (level, self.nodes_first) {
            (Level::Node, true) | (Level::Package, false) => {
                return self.among(0..self.host.cores.len(), level);
            }
            (Level::Node, false) | (Level::Core, true) => Level::Package,
            (Level::Package, true) | (Level::Core, false) | (Level::L3, _) => Level::Node,
        };
        let inside = |unit: usize| {
            let cores = &self.members[above as usize][unit];
            self.among(cores.iter().copied(), level)
        };
        self.order(above).into_iter().flat_map(inside).collect()
    }

    /// Units of a level that are wholly free, in the taker's order.
    pub fn whole(&self, level: Level) -> Vec<usize> {
        let is_whole =
            |unit: &usize| self.left[level as usize][*unit] == self.all[level as usize][*unit];
        self.order(level).into_iter().filter(is_whole).collect()
    }

    fn take(&mut self, thread: usize) {
        if self.need == 0 || !self.free[thread] {
            return;
        }
        let core = self.host.threads[thread].core;
        for level in [Level::Node, Level::Package, Level::L3, Level::Core] {
            let unit = self.unit(level, core);
            self.left[level as usize][unit] -= 1;
        }
        self.free[thread] = false;
        self.need -= 1;
        self.taken.push(thread);
    }

    /// Takes all threads of whole units of a level, as long as that many are wanted.
    fn take_whole(&mut self, level: Level) {
        for unit in self.whole(level) {
            if self.need < self.all[level as usize][unit] {
                continue;
            }
            let cores = match level {
                Level::Core => vec![unit],
                _ => self.members[level as usize][unit].clone(),
            };
            for core in cores {
                self.host.cores[core].threads.clone().for_each(|thread| self.take(thread));
            }
        }
    }

    /// Takes whole level-3 caches, and the rest out of the first cache that has it all in its
    /// lowest cores.
    fn take_by_l3(&mut self) {
        for unit in self.order(Level::L3) {
            if self.need >= self.all[Level::L3 as usize][unit] {
                self.take_whole(Level::L3);
            }
            if self.need == 0 {
                return;
            }
            let cores = self.members[Level::L3 as usize][unit].iter().copied();
            let open = cores.filter(|&core| self.left[Level::Core as usize][core] > 0);
            let lowest = open.take(self.need.div_ceil(self.host.smt()));
            let threads = lowest.flat_map(|core| self.host.cores[core].threads.clone());
            let mut threads: Vec<usize> = threads.filter(|&thread| self.free[thread]).collect();
            threads.sort_unstable_by_key(|&thread| self.host.threads[thread].pcpu);
            threads.truncate(self.need);
            if threads.len() == self.need {
                threads.into_iter().for_each(|thread| self.take(thread));
                return;
            }
        }
    }

    /// Takes single threads: of the most used cores first, or across cores, package by package.
    fn take_threads(&mut self, across_cores: bool) {
        if self.need == 0 {
            return;
        }
        let of = |core: usize| self.host.cores[core].threads.clone();
        let threads: Vec<usize> = if across_cores {
            let package = |unit: usize| {
                let cores = self.members[Level::Package as usize][unit].iter();
                let mut threads: Vec<usize> = cores.flat_map(|&core| of(core)).collect();
                threads.sort_unstable_by_key(|&thread| self.host.threads[thread].pcpu);
                threads
            };
            self.order(Level::Package).into_iter().flat_map(package).collect()
        } else {
            self.order(Level::Core).into_iter().flat_map(of).collect()
        };
        threads.into_iter().for_each(|thread| self.take(thread));
    }
}
