//! Reasons for GPUs, as data and as text.

use crate::bdf::Bdf;
use crate::placement::explain::{count, list};
use crate::topology::{PartitionId, SetAside};
use crate::words::are;
use std::fmt;

/// The name of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuName {
    /// Its index among the host's GPUs.
    Index(usize),
    /// The address of a display, which has no index.
    Address(Bdf),
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuName::Index(index) => index.fmt(f),
            GpuName::Address(bdf) => bdf.fmt(f),
        }
    }
}

/// GPUs by their names: `GPU 3`, `GPUs 0, 5 and 7`.
pub(in crate::placement) fn label(gpus: &[GpuName]) -> String {
    format!("{} {}", if gpus.len() == 1 { "GPU" } else { "GPUs" }, list(gpus))
}

/// GPUs by their names: `GPU 3 (0000:39:00.0)`, `GPUs 0 to 3`, `GPUs 0, 5 and 7`; displays by
/// address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuList {
    /// Indexes, ascending.
    pub indexes: Vec<usize>,
    /// Address of the only one with an index.
    pub only: Option<Bdf>,
    /// Addresses of displays.
    pub displays: Vec<Bdf>,
}

impl GpuList {
    /// Number of GPUs.
    pub fn number(&self) -> usize {
        self.indexes.len() + self.displays.len()
    }

    fn counted(&self) -> String {
        match (&self.indexes[..], self.only) {
            ([only], Some(bdf)) => format!("GPU {only} ({bdf})"),
            ([first, .., last], _)
                if self.indexes.len() > 2 && last - first == self.indexes.len() - 1 =>
            {
                format!("GPUs {first} to {last}")
            }
            _ => format!("GPUs {}", list(&self.indexes)),
        }
    }
}

impl fmt::Display for GpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.displays.is_empty() {
            return f.write_str(&self.counted());
        }
        let counted = (!self.indexes.is_empty()).then(|| self.counted());
        let displays = self.displays.iter().map(|bdf| format!("GPU {bdf}"));
        f.write_str(&list(counted.into_iter().chain(displays)))
    }
}

/// A unit of the tree above the GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A PCIe switch.
    Switch,
    /// A root complex.
    Root,
    /// A host node.
    Node,
    /// A node whose cores serve GPUs of several.
    Home,
    /// A package.
    Package,
    /// The host, of several packages.
    Host,
}

impl Unit {
    fn noun(self) -> &'static str {
        match self {
            Unit::Switch => "PCIe switch",
            Unit::Root => "root complex",
            Unit::Node | Unit::Home => "node",
            Unit::Package => "package",
            Unit::Host => "host",
        }
    }

    /// The place of GPUs that share it, to follow "all".
    fn place(self) -> &'static str {
        match self {
            Unit::Switch => "below one PCIe switch",
            Unit::Root => "below one root complex",
            Unit::Node => "on one node",
            Unit::Home => "nearest to the cores of one node",
            Unit::Package => "in one package",
            Unit::Host => "on this host, not all in one package",
        }
    }
}

/// Which of all free sets were compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Compared {
    /// All.
    #[default]
    All,
    /// One of those that differ only in GPUs of one model below the same switch.
    Different,
    /// Those that fill the units of the tree best: there are too many.
    Some,
}

/// A criterion of comparing sets of GPUs; less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Criterion {
    /// Cores off the GPUs' node.
    Remote,
    /// Nodes.
    Nodes,
    /// Packages.
    Packages,
    /// Distance of the farthest GPU to NICs and drives.
    Farthest,
    /// Distance of all GPUs to NICs and drives.
    Far,
    /// Distance of NICs and drives to the nearest GPU.
    Off,
    /// Root complexes.
    Roots,
    /// PCIe switches.
    Switches,
    /// GPU models.
    Models,
    /// Cores of its share that others hold.
    Short,
    /// GPUs of other guests on its nodes.
    Neighbours,
}

impl Criterion {
    fn noun(self) -> &'static str {
        match self {
            Criterion::Remote => "core off the GPUs' node",
            Criterion::Nodes => "node",
            Criterion::Packages => "package",
            Criterion::Farthest => "step of its farthest GPU to a NIC or drive",
            Criterion::Far => "step to NICs and drives",
            Criterion::Off => "step of NICs and drives to its GPUs",
            Criterion::Roots => "root complex",
            Criterion::Switches => "PCIe switch",
            Criterion::Models => "GPU model",
            Criterion::Short => "core of its share that other guests have",
            Criterion::Neighbours => "GPU of other guests beside it",
        }
    }
}

/// The criterion by which the next best set lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostBy {
    /// NVLinks inside.
    Nvlinks {
        /// Of the next.
        next: u64,
        /// Of the best.
        best: u64,
    },
    /// More of a criterion.
    More {
        /// The criterion.
        of: Criterion,
        /// Of the next.
        next: u32,
        /// Of the best.
        best: u32,
    },
    /// The cost to later guests.
    Future {
        /// Cost of the next.
        next: u32,
        /// Cost of the best.
        best: u32,
        /// Cost of one GPU.
        unit: u32,
    },
    /// NVLinks that are cut.
    Cut {
        /// By the next.
        next: u64,
        /// By the best.
        best: u64,
    },
    /// Cores of free GPUs' shares.
    Strain {
        /// Taken by the next.
        next: u32,
        /// Taken by the best.
        best: u32,
    },
    /// Its indexes are higher.
    Order,
}

/// Why GPUs are on more units than necessary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scatter {
    /// Fewer have not enough free GPUs.
    Taken {
        /// Units that would suffice on the empty host.
        least: u32,
    },
    /// GPUs on fewer units are free, but not what comes with them.
    Short {
        /// Units that have enough free GPUs.
        least: u32,
        /// Those GPUs.
        gpus: GpuList,
    },
    /// GPUs on fewer units are worse in what counts first.
    Lost {
        /// Units that have enough free GPUs.
        least: u32,
        /// Those GPUs.
        gpus: GpuList,
        /// What they are worse in.
        by: LostBy,
    },
}

impl fmt::Display for Scatter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scatter::Taken { least } => write!(f, "{least} would do were they free"),
            Scatter::Short { least, gpus } => write!(
                f,
                "{least} would do with {gpus}, but too few cores, memory, NICs or drives are free \
                 there"
            ),
            Scatter::Lost { least, gpus, by } => {
                write!(f, "{least} would do with {gpus}, but that set {by}")
            }
        }
    }
}

impl fmt::Display for LostBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            LostBy::Nvlinks { next, best } => {
                write!(
                    f,
                    "has {} inside instead of {}",
                    count(next, "NVLink"),
                    count(best, "NVLink")
                )
            }
            LostBy::More { of, next, best } => {
                write!(f, "has {} instead of {best}", count(next, of.noun()))
            }
            LostBy::Future { next, best, unit } => {
                let gpus = |cost: u32| f64::from(cost) / f64::from(unit);
                write!(f, "costs later guests {:.2} GPUs instead of {:.2}", gpus(next), gpus(best))
            }
            LostBy::Cut { next, best } => {
                write!(f, "cuts {} instead of {best}", count(next, "NVLink"))
            }
            LostBy::Strain { next, best } => {
                write!(f, "takes {} of free GPUs' shares instead of {best}", count(next, "core"))
            }
            LostBy::Order => f.write_str("is as good but has higher indexes"),
        }
    }
}

/// The partitions left after a larger one is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterSplit {
    /// One of its size.
    Same(String),
    /// The largest has this many GPUs.
    Smaller(usize),
    /// None.
    Nothing,
}

/// A reason for GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuReason {
    /// They were named.
    Asked {
        /// GPUs.
        gpus: GpuList,
    },
    /// The smallest unit of the tree that they share.
    Together {
        /// GPUs.
        gpus: GpuList,
        /// The unit; `None` if it is one GPU.
        unit: Option<Unit>,
    },
    /// A partition, or a GPU beside the board.
    Partition {
        /// GPUs.
        gpus: GpuList,
        /// Its number.
        id: Option<PartitionId>,
        /// GPUs of the largest set that stays free; `None` if no GPU does.
        left: Option<usize>,
    },
    /// A larger free partition is broken.
    Breaks {
        /// Its name.
        name: String,
        /// Its GPUs.
        gpus: usize,
        /// The remaining ones.
        after: AfterSplit,
    },
    /// They form no partition.
    NoPartition {
        /// GPUs.
        gpus: GpuList,
        /// Why no partition was taken.
        why: String,
    },
    /// The sets that they were compared with.
    BestOf {
        /// Free sets that were compared.
        sets: usize,
        /// Which of all free sets these are.
        compared: Compared,
        /// The next best.
        next: GpuList,
        /// The criterion by which it lost.
        by: LostBy,
    },
    /// A unit whose GPUs were all free is broken.
    BreaksUnit {
        /// The unit.
        unit: Unit,
        /// Its GPUs.
        gpus: usize,
    },
    /// They are on more units than necessary.
    Scattered {
        /// The unit.
        unit: Unit,
        /// Units that they are on.
        on: u32,
        /// Why they are not on fewer.
        why: Scatter,
    },
    /// Several models.
    Mixed {
        /// Number and name of each model.
        models: Vec<(usize, String)>,
    },
    /// NVLinks between them.
    Links {
        /// Their number.
        links: u64,
    },
    /// The recorded NVLinks are not used ([`crate::topology::Fabric::links_unread`]).
    LinksUnread {
        /// The warning.
        warning: String,
    },
    /// Functions that come along.
    Along {
        /// Functions.
        functions: Vec<Bdf>,
        /// Whether the IOMMU keeps them together; otherwise they are on the same card.
        by_iommu: bool,
    },
    /// A display, which the host loses.
    Display {
        /// The GPU.
        gpu: Bdf,
        /// Why it is set aside.
        aside: SetAside,
    },
    /// GPUs that are never placed, a line each with the reason.
    Never {
        /// Lines.
        lines: Vec<String>,
    },
    /// GPUs that are not tested since their last guest, a line each.
    Untested {
        /// Lines.
        lines: Vec<String>,
    },
    /// Functions that are not bound to the driver that passes them through.
    Unbound {
        /// Functions.
        functions: Vec<Bdf>,
        /// Their driver.
        driver: Option<String>,
        /// The driver that passes them through.
        to: &'static str,
    },
    /// Functions without an IOMMU group.
    NoGroup {
        /// Functions.
        functions: Vec<Bdf>,
    },
    /// NVSwitches that go along.
    Switches {
        /// NVSwitches.
        switches: Vec<Bdf>,
        /// NVSwitches that serve these GPUs.
        pool: usize,
        /// Working NVLinks of each GPU.
        nvlinks: u32,
    },
    /// GPUs with peer-to-peer transfers.
    Clique {
        /// GPUs.
        gpus: Vec<Bdf>,
    },
}

impl fmt::Display for GpuReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuReason::Asked { gpus } => write!(f, "{gpus} as requested"),
            GpuReason::Together { gpus, unit: None } => gpus.fmt(f),
            GpuReason::Together { gpus, unit: Some(unit) } => {
                write!(f, "{gpus}, all {}", unit.place())
            }
            GpuReason::Partition { gpus, id, left } => {
                match id {
                    Some(id) if gpus.number() == 1 => write!(f, "{gpus} is partition {id}; ")?,
                    Some(id) => write!(f, "{gpus} are partition {id}; ")?,
                    None => write!(f, "{gpus}; ")?,
                }
                match left {
                    None => f.write_str("no GPU stays free"),
                    Some(left) => {
                        write!(f, "the largest set that stays free has {}", count(*left, "GPU"))
                    }
                }
            }
            GpuReason::Breaks { name, gpus, after } => {
                write!(f, "costs later guests: breaks {name} of {gpus} free GPUs; ")?;
                let gpus = count(*gpus, "GPU");
                match after {
                    AfterSplit::Same(name) => write!(f, "{gpus} still fit: {name}"),
                    AfterSplit::Smaller(left) => write!(f, "no {gpus} fit then, {left} do"),
                    AfterSplit::Nothing => write!(f, "no {gpus} fit then"),
                }
            }
            GpuReason::NoPartition { gpus, why } => {
                write!(f, "{gpus} do not form a partition: no NVLink between them; {why}")
            }
            GpuReason::BestOf { sets, compared, next, by } => {
                match compared {
                    Compared::All => write!(f, "best of {sets} free sets")?,
                    Compared::Different => {
                        write!(f, "best of {sets} free sets, those of like GPUs counted once")?;
                    }
                    Compared::Some => {
                        write!(f, "best of the {sets} free sets that were tried of many")?;
                    }
                }
                write!(f, "; the next, {next}, {by}")
            }
            GpuReason::BreaksUnit { unit, gpus } => {
                let (unit, gpus) = (unit.noun(), count(*gpus, "GPU"));
                write!(f, "costs later guests: breaks a {unit} of {gpus} that was all free")
            }
            GpuReason::Scattered { unit, on, why } => {
                let on = count(*on, unit.noun());
                write!(f, "its GPUs are spread over {on}; {why}")
            }
            GpuReason::Mixed { models } => {
                let each = models.iter().map(|(number, name)| format!("{number} x {name}"));
                write!(f, "its GPUs are of several models: {}", list(each))
            }
            GpuReason::LinksUnread { warning } => f.write_str(warning),
            GpuReason::Links { links } => write!(f, "{} between them", count(*links, "NVLink")),
            _ => self.beside(f),
        }
    }
}

impl GpuReason {
    /// Writes the text for devices that come with GPUs.
    fn beside(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuReason::Along { functions, by_iommu } => {
                let one = functions.len() == 1;
                write!(f, "{} {} included: ", list(functions), are(functions.len()))?;
                f.write_str(match (by_iommu, one) {
                    (true, _) => "in the same IOMMU group",
                    (false, true) => "a function of the same card",
                    (false, false) => "functions of the same card",
                })
            }
            GpuReason::Display { gpu, aside } => write!(f, "{gpu} {}", aside.costs()),
            GpuReason::Untested { lines } => {
                write!(f, "not tested since their last guest: {}", lines.join("; "))
            }
            GpuReason::Never { lines } => write!(f, "never placed: {}", lines.join("; ")),
            GpuReason::Unbound { functions, driver, to } => {
                let driver = driver.as_deref().unwrap_or("no driver");
                let functions = list(functions);
                write!(f, "{functions} must be bound to {to} before start (now: {driver})")
            }
            GpuReason::NoGroup { functions } => {
                let functions = list(functions);
                write!(f, "{functions}: no IOMMU group is known; the IOMMU must be on before start")
            }
            GpuReason::Switches { switches, pool, nvlinks } => write!(
                f,
                "{}, the first free of {pool} usable ones; each GPU has {} in this partition",
                list(switches),
                count(*nvlinks, "active NVLink"),
            ),
            GpuReason::Clique { gpus } => write!(
                f,
                "{} are below one PCIe switch and may use peer-to-peer; its speed depends on \
                 ACS and ATS, which are not checked here",
                list(gpus)
            ),
            _ => Ok(()),
        }
    }
}
