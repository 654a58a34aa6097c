//! What is wanted of a guest, with defaults filled in and every value checked. No flag about how to run.

use crate::bdf::Bdf;
use crate::memsize::MemSize;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The longest name taken: libvirt makes file names of it, and with its suffixes it must fit in 255 bytes.
pub const MAX_NAME: usize = 128;

/// Is a domain's name that libvirt, file systems and shells all take.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct DomainName(String);

/// Says why a request cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The name is empty or too long.
    #[error("a domain name has 1 to {MAX_NAME} characters, this one has {length}")]
    NameLength {
        /// Characters given.
        length: usize,
    },
    /// The name holds a character that is not taken, or starts with `-` or `.`.
    #[error("domain name {name:?}: character {character:?} at {at} is not taken")]
    NameCharacter {
        /// The name, shortened.
        name: String,
        /// The character.
        character: char,
        /// Its place, from 1.
        at: usize,
    },
    /// No vCPU.
    #[error("a guest needs at least one vCPU")]
    NoVcpus,
    /// Memory below 1 MiB.
    #[error("{memory} of memory is too little for a guest")]
    TooLittleMemory {
        /// What was asked.
        memory: MemSize,
    },
    /// The same device twice.
    #[error("device {bdf} is asked for twice")]
    DeviceTwice {
        /// The device.
        bdf: Bdf,
    },
}

impl DomainName {
    /// Takes letters, digits, `-`, `_`, `.` and `+`, starting with a letter, digit or `_`.
    pub fn new(name: &str) -> Result<DomainName, RequestError> {
        let length = name.chars().count();
        if length == 0 || length > MAX_NAME {
            return Err(RequestError::NameLength { length });
        }
        let good = |at: usize, c: char| {
            c.is_ascii_alphanumeric() || c == '_' || (at > 0 && matches!(c, '-' | '.' | '+'))
        };
        match name.chars().enumerate().find(|&(at, c)| !good(at, c)) {
            Some((at, character)) => {
                let name = name.chars().take(40).collect();
                Err(RequestError::NameCharacter { name, character, at: at + 1 })
            }
            None => Ok(DomainName(name.to_owned())),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DomainName {
    type Err = RequestError;
    fn from_str(text: &str) -> Result<DomainName, RequestError> {
        DomainName::new(text)
    }
}

impl<'de> Deserialize<'de> for DomainName {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<DomainName, D::Error> {
        DomainName::new(&String::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

/// Is which GPUs are wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuWish {
    /// So many, wherever they fit best.
    Count(u32),
    /// `count` GPUs in index order from `first` on, as the replaced tool's `--gpu-index` and `--gpu-count`.
    Run {
        /// Index of the first, by PCI address.
        first: u32,
        /// How many.
        count: u32,
    },
    /// Exactly these.
    Exact(Vec<Bdf>),
}

/// Is by which rule sizes and pins are chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// A GPU owns its share of its node's cores; the last core of the share carries emulator and I/O threads.
    #[default]
    Share,
    /// The replaced tool's sizes and pin order (spec/nvidia-vm.md 2.3 and 2.4), for parity.
    NvidiaVm,
}

/// Is how vCPUs are pinned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PinPolicy {
    /// Each vCPU on one pcpu; successive vCPUs on the threads of one core.
    #[default]
    Core,
    /// No pins: the guest floats over the host. For machines too small to pin on, and tests.
    None,
}

/// Is how many guest NUMA cells are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CellWish {
    /// One per host node that the guest's cores stand on.
    #[default]
    PerNode,
    /// So many; only for guests without pins.
    Count(u32),
}

/// Is a page size that backs guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PageSize {
    /// 2 MiB pages.
    #[serde(rename = "2M")]
    TwoMib,
    /// 1 GiB pages.
    #[serde(rename = "1G")]
    OneGib,
}

impl PageSize {
    /// The page's size.
    pub fn size(self) -> MemSize {
        match self {
            PageSize::TwoMib => MemSize::from_kib(2048),
            PageSize::OneGib => MemSize::from_gib(1),
        }
    }
}

/// Is what is wanted of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// GPUs.
    pub gpus: GpuWish,
    /// vCPUs; none: what the profile gives for the GPUs.
    pub vcpus: Option<u32>,
    /// Memory; none: what the profile gives for the GPUs.
    pub memory_kib: Option<MemSize>,
    /// Huge pages that back the memory; none: normal pages.
    pub huge_pages: Option<PageSize>,
    /// Rule for sizes and pins.
    pub profile: Profile,
    /// How vCPUs are pinned.
    pub pins: PinPolicy,
    /// Guest NUMA cells.
    pub cells: CellWish,
    /// Threads per core that the guest sees; none: those of the host's cores, or 1 without pins.
    pub threads: Option<u32>,
}

impl Request {
    /// A request for so many GPUs with every default.
    pub fn for_gpus(count: u32) -> Request {
        Request {
            gpus: GpuWish::Count(count),
            vcpus: None,
            memory_kib: None,
            huge_pages: None,
            profile: Profile::default(),
            pins: PinPolicy::default(),
            cells: CellWish::default(),
            threads: None,
        }
    }

    /// Checks what can be checked without a host.
    pub fn check(&self) -> Result<(), RequestError> {
        if self.vcpus == Some(0) || self.threads == Some(0) {
            return Err(RequestError::NoVcpus);
        }
        if let Some(memory) = self.memory_kib.filter(|m| m.kib() < 1024) {
            return Err(RequestError::TooLittleMemory { memory });
        }
        if let GpuWish::Exact(bdfs) = &self.gpus {
            let mut seen = std::collections::BTreeSet::new();
            if let Some(&bdf) = bdfs.iter().find(|&&bdf| !seen.insert(bdf)) {
                return Err(RequestError::DeviceTwice { bdf });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_names_that_hurt_somewhere() {
        let long = "x".repeat(300);
        let bad = [
            "",
            "a/b",
            "..",
            ".hidden",
            "-rf",
            "a b",
            "a'b",
            "a\"b",
            "a<b",
            "a\nb",
            "a\u{0}b",
            "ä",
            "a$b",
            "a:b",
            long.as_str(),
        ];
        for name in bad {
            assert!(DomainName::new(name).is_err(), "{name:?} was accepted");
        }
    }

    #[test]
    fn takes_the_replaced_tools_names() {
        for name in ["testme-8g8-15", "dgx2vm-labThu1726-8g0-7", "2gpu-vm-2g0-1", "_x", "a.b+c"] {
            assert_eq!(DomainName::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn refuses_requests_that_cannot_be_meant() {
        let base = Request::for_gpus(1);
        assert!(base.check().is_ok());
        assert_eq!(Request { vcpus: Some(0), ..base.clone() }.check(), Err(RequestError::NoVcpus));
        let memory = MemSize::from_kib(512);
        assert!(Request { memory_kib: Some(memory), ..base.clone() }.check().is_err());
        let bdf: Bdf = "34:00.0".parse().unwrap();
        let gpus = GpuWish::Exact(vec![bdf, bdf]);
        assert_eq!(Request { gpus, ..base }.check(), Err(RequestError::DeviceTwice { bdf }));
    }
}
